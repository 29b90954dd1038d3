//! A model that denoises canvases of random tokens, over the wire.

use sluice_proto::v1::{self, generation_event::Event};

use crate::support::{Daemon, RequestOptions, checkpoints, done, generate, tokens};

#[tokio::test]
async fn canvases_are_written_by_the_models_own_policy() {
    let folder = checkpoints::fixture("diffusion-gemma-tiny");
    let daemon = Daemon::with_model(&folder, &[]).await;
    let shape = daemon.snapshot().await.model.unwrap().shape.unwrap();
    assert_eq!(
        (shape.family.as_str(), shape.kind(), shape.mask_token_id),
        ("diffusion_gemma", v1::ModelKind::MaskedDiffusion, None)
    );
    let ask = || {
        tokens(&[5, 90, 31, 7], 40)
            .sampled(|sampling| sampling.eos_policy = v1::EosPolicy::Keep.into())
    };
    let steps = |steps: u32| ask().diffused(|diffusion| diffusion.steps = Some(steps));
    let mut written = Vec::new();
    for preset in [v1::DecodingPreset::Exact, v1::DecodingPreset::Fast] {
        let request = steps(12).diffused(|diffusion| diffusion.preset = preset.into());
        let events = generate(&daemon, request).await.unwrap();
        let done = done(&events);
        assert_eq!(done.token_ids.len(), 40);
        assert_eq!(done.finish_reason(), v1::FinishReason::Length);
        assert!(done.is_exact);
        // Three canvases of four passes each, and passes that read the prompt and the first two canvases.
        assert_eq!(done.passes, 12 + 3);
        let blocks = events
            .iter()
            .filter(|event| matches!(event, Event::BlockDone(_)));
        assert_eq!(blocks.count(), 3);
        written.push(done.token_ids.clone());
    }
    assert_eq!(written[0], written[1]);
    let other = generate(
        &daemon,
        steps(12).sampled(|sampling| sampling.seed = Some(8)),
    )
    .await;
    assert_ne!(done(&other.unwrap()).token_ids, written[0]);
    let pinned = steps(12).diffused(|diffusion| {
        diffusion.pins = vec![v1::CanvasPin {
            position: 3,
            content: Some(v1::canvas_pin::Content::Tokens(v1::TokenIds {
                ids: vec![9],
            })),
            anywhere: false,
        }];
    });
    let refused = generate(&daemon, pinned).await.unwrap_err();
    assert!(
        refused.message.contains("denoises whole canvases"),
        "{refused:?}"
    );
    let warm = steps(12).sampled(|sampling| {
        sampling.greedy = false;
        sampling.temperature = Some(0.5);
    });
    let refused = generate(&daemon, warm.clone()).await.unwrap_err();
    assert!(
        refused.message.contains("temperatures of its own"),
        "{refused:?}"
    );
    let skipped = warm.sampled(|sampling| sampling.skip_unused_temperature = true);
    let events = generate(&daemon, skipped).await.unwrap();
    assert_eq!(done(&events).token_ids, written[0]);
    let Some(Event::Started(started)) =
        (events.iter()).find(|event| matches!(event, Event::Started(_)))
    else {
        panic!("{events:?}");
    };
    assert_eq!(
        started.warnings,
        [
            "temperature 0.5 changes nothing: policy 'renoise' has temperatures of its own, tmin and tmax"
        ]
    );
    assert!(
        started
            .settings
            .iter()
            .all(|setting| setting.name != "temperature")
    );
    let both = steps(12).diffused(|diffusion| {
        diffusion.policy = Some(v1::CommitPolicy {
            name: "renoise".into(),
            ..Default::default()
        });
    });
    let refused = generate(&daemon, both).await.unwrap_err();
    assert!(
        refused.message.contains("leave one of both out"),
        "{refused:?}"
    );
}
