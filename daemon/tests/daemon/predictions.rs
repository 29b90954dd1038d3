//! Predicted times learn from the passes that ran.

use sluice_proto::v1::{self, generation_event::Event};

use crate::support::{Daemon, checkpoints, generate, tokens};

async fn plan(daemon: &Daemon, canvas: u32) -> v1::Plan {
    let request = v1::PlanRequest {
        workload: Some(v1::Workload {
            canvas_length: Some(canvas),
            ..Default::default()
        }),
        ..Default::default()
    };
    let answer = daemon.optimizer().await.plan(request).await.unwrap();
    answer.into_inner().plan.unwrap()
}

#[tokio::test]
async fn a_predicted_pass_is_corrected_by_those_like_it() {
    let arguments = ["--device", "cpu", "--threads", "1"];
    let daemon = Daemon::with_model(checkpoints::slow(), &arguments).await;
    let before = plan(&daemon, 64).await;
    let first_ms = before.pass_ms.unwrap();
    assert_eq!(before.pass_correction, None);

    // A canvas of 64, a pass for each masked position.
    let events = generate(&daemon, tokens(&[1, 2, 3, 4], 60)).await.unwrap();
    let took_ms = events.iter().filter_map(|event| match event {
        Event::PassDone(pass) => Some(pass.pass_ms),
        _ => None,
    });
    let measured_ms = daemon.snapshot().await.passes.unwrap().mean_ms;
    let after = plan(&daemon, 64).await;
    let (now_ms, correction) = (after.pass_ms.unwrap(), after.pass_correction.unwrap());
    // On a machine that others share a pass takes what it takes. Whatever is made of them lies among them, or on the way there
    // from what was predicted.
    let known = took_ms.chain(measured_ms).chain([first_ms]);
    let (least_ms, most_ms) = known.fold((f64::MAX, 0.0_f64), |(least, most), ms| {
        (least.min(ms), most.max(ms))
    });
    assert!(
        (0.99 * least_ms..=1.01 * most_ms).contains(&now_ms),
        "{first_ms} ms were predicted, {least_ms} to {most_ms} ms taken, {now_ms} ms are predicted now"
    );
    // The rates stay what they were.
    assert!((now_ms / correction / first_ms - 1.0).abs() < 1e-6);
    // Of passes with other numbers of rows nothing is known.
    assert_eq!(plan(&daemon, 4).await.pass_correction, None);
}
