//! Text and tokens come out as they should, events in their order.

use std::fs;

use serde_json::Value;
use sluice_proto::v1::{self, generation_event::Event};

use crate::support::{Daemon, RequestOptions, chat, checkpoints, done, generate, pictures, tokens};

#[tokio::test]
async fn the_reference_tokens_come_out() {
    for name in ["llada-tiny", "llada-tiny-bf16"] {
        let folder = checkpoints::fixture(name);
        let daemon = Daemon::with_model(&folder, &[]).await;
        let expected = fs::read(folder.join("expected.json")).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let mut compared = 0;
        for case in expected["generate"].as_array().unwrap() {
            if case["algorithm"] != "LLaDA plain"
                || case["prompt_ids"].as_array().unwrap().len() != 1
            {
                continue;
            }
            let ids =
                |key: &str| -> Vec<u32> { serde_json::from_value(case[key][0].clone()).unwrap() };
            let parameters = &case["params"];
            let number = |key: &str| parameters[key].as_u64().unwrap() as u32;
            let request = v1::GenerateRequest {
                block_length: Some(number("block_length")),
                ..tokens(&ids("prompt_ids"), number("gen_length"))
            }
            .sampled(|sampling| sampling.eos_policy = v1::EosPolicy::Keep.into())
            .diffused(|diffusion| {
                diffusion.steps = Some(number("steps"));
                diffusion.guidance = parameters["cfg_scale"].as_f64();
            });
            let events = generate(&daemon, request).await.unwrap();
            let done = done(&events);
            assert_eq!(done.token_ids, ids("generated"), "{name} {}", case["name"]);
            assert_eq!(done.passes, number("steps"));
            assert!(done.is_exact);
            assert_eq!(done.text, None, "there is no tokenizer");
            compared += 1;
        }
        assert!(compared >= 4, "{compared} cases");
    }
}

#[tokio::test]
async fn the_same_seed_gives_the_same_tokens() {
    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let run = async |seed| {
        let request = tokens(&[1, 2, 3], 32).sampled(|sampling| {
            sampling.temperature = Some(1.0);
            sampling.greedy = false;
            sampling.seed = seed;
        });
        let events = generate(&daemon, request).await.unwrap();
        let done = done(&events);
        (done.seed, done.token_ids.clone())
    };
    let first = run(Some(5)).await;
    assert_eq!(run(Some(5)).await, first);
    assert_ne!(run(Some(6)).await.1, first.1);
    // A drawn seed is told, and gives the same again.
    let drawn = run(None).await;
    assert_eq!(run(Some(drawn.0)).await, drawn);
}

#[tokio::test]
async fn the_embedded_model_answers_in_words() {
    let daemon = Daemon::embedded().await;
    let model = daemon.snapshot().await.model.unwrap();
    assert_eq!(model.name, "sluice-demo");
    assert!(model.is_demonstration && model.shape.unwrap().has_tokenizer);

    let events = generate(&daemon, chat("Tell me a story.")).await.unwrap();
    let Event::Queued(queued) = &events[0] else {
        panic!("the first event is {:?}", events[0]);
    };
    // The load at the start is the first operation.
    assert_eq!((queued.request_id, queued.ahead), (2, 0));
    let Event::Started(started) = &events[1] else {
        panic!("the second event is {:?}", events[1]);
    };
    assert_eq!(
        (started.length, started.blocks, started.steps()),
        (32, 8, 32)
    );
    assert_eq!(started.seed, 7);
    let prompt = String::from_utf8_lossy(&started.prompt_text);
    assert!(prompt.contains("Tell me a story."), "{prompt}");

    // The certain part only grows, up to the text that is shown in the end.
    let done = done(&events);
    let text = done.text.clone().unwrap();
    let mut stable: &[u8] = b"";
    for event in &events {
        let Event::PassDone(pass) = event else {
            continue;
        };
        let next = &pass.stable_text;
        assert!(next.starts_with(stable));
        stable = next;
    }
    assert!(text.as_bytes().starts_with(stable));
    assert!(!text.trim().is_empty());
    assert!(!text.contains("<|"), "special tokens are dropped: {text}");
}

#[tokio::test]
async fn pinned_words_stay() {
    let daemon = Daemon::embedded().await;
    let request = chat("Tell me a story.")
        .sampled(|sampling| sampling.eos_policy = v1::EosPolicy::Suppress.into())
        .diffused(|diffusion| {
            diffusion.pins = vec![v1::CanvasPin {
                position: 4,
                content: Some(v1::canvas_pin::Content::Text(" red kite".to_owned())),
                anywhere: false,
            }];
        });
    let events = generate(&daemon, request).await.unwrap();
    let text = done(&events).text.clone().unwrap();
    assert!(text.contains(" red kite"), "{text}");
    let pinned = events.iter().find_map(|event| match event {
        Event::Started(started) => Some(started.pinned.clone()),
        _ => None,
    });
    let pieces: Vec<u8> = pinned
        .unwrap()
        .into_iter()
        .flat_map(|token| token.piece)
        .collect();
    assert_eq!(pieces, b" red kite");
}

#[tokio::test]
async fn a_text_that_may_stand_anywhere_is_told_where_it_stands() {
    let daemon = Daemon::embedded().await;
    let anywhere = |text: &str| v1::CanvasPin {
        content: Some(v1::canvas_pin::Content::Text(text.to_owned())),
        anywhere: true,
        ..Default::default()
    };
    let plain = chat("Tell me a story.")
        .sampled(|sampling| sampling.eos_policy = v1::EosPolicy::Suppress.into());
    let request = v1::GenerateRequest {
        length: Some(48),
        ..plain
    }
    .diffused(|diffusion| diffusion.pins = vec![anywhere("red kite")]);
    let events = generate(&daemon, request.clone()).await.unwrap();
    let is_placed = |event: &Event| matches!(event, Event::Placed(_));
    let is_pass = |event: &Event| matches!(event, Event::PassDone(_));
    let at = events.iter().position(is_placed).unwrap();
    assert!(at < events.iter().position(is_pass).unwrap());
    assert_eq!(events.iter().filter(|event| is_placed(event)).count(), 1);
    let Event::Placed(placed) = &events[at] else {
        unreachable!("it was looked for");
    };
    assert!(placed.without_room.is_empty());
    let [text] = &placed.texts[..] else {
        panic!("{placed:?}");
    };
    assert!(!text.is_name && text.mean_logprob < 0.0);
    let bytes: Vec<u8> = text
        .tokens
        .iter()
        .flat_map(|token| token.piece.clone())
        .collect();
    assert_eq!(bytes, b" red kite");
    // Blocks, which nobody misses, have it as pinned.
    let blocks = events.iter().filter_map(|event| match event {
        Event::BlockDone(block) => Some(&block.tokens),
        _ => None,
    });
    let pinned = blocks
        .flatten()
        .filter(|token| token.state() == v1::TokenState::Pinned);
    assert_eq!(pinned.cloned().collect::<Vec<_>>(), text.tokens);
    let done = done(&events);
    assert!(done.text.clone().unwrap().contains(" red kite"));
    let pins = text.tokens.len() as u32;
    assert_eq!(
        (
            done.filled_positions,
            done.generated_tokens,
            done.text_tokens
        ),
        (48 - pins, 48 - pins, 48)
    );
    // A pass for the place, and one for each token at most.
    assert!(done.passes <= 1 + 48 - pins);

    // What finds no room between other texts is told as well: a pin leaves too little on either side.
    let crowded = v1::GenerateRequest {
        length: Some(2 * pins - 1),
        ..request
    }
    .diffused(|diffusion| {
        let between = v1::CanvasPin {
            position: pins - 1,
            content: Some(v1::canvas_pin::Content::Tokens(v1::TokenIds {
                ids: vec![9],
            })),
            ..Default::default()
        };
        diffusion.pins = vec![between, anywhere("red kite")];
    });
    let events = generate(&daemon, crowded).await.unwrap();
    let placed = events.iter().find_map(|event| match event {
        Event::Placed(placed) => Some(placed.clone()),
        _ => None,
    });
    let placed = placed.unwrap();
    assert!(placed.texts.is_empty());
    assert_eq!(placed.without_room, [" red kite"]);
}

/// A text of which one word is written anew.
fn edit() -> v1::GenerateRequest {
    let text = "Mia went to the lake with a blue boat. Then she went home.";
    let start = text.find("blue").unwrap();
    v1::GenerateRequest {
        input: Some(v1::generate_request::Input::Edit(v1::TextEdit {
            text: text.to_owned(),
            span_start_bytes: start as u32,
            span_end_bytes: (start + 4) as u32,
            ..Default::default()
        })),
        ..Default::default()
    }
    .sampled(|sampling| sampling.seed = Some(1))
}

#[tokio::test]
async fn what_passes_wrote_is_counted_apart_from_what_was_given() {
    let daemon = Daemon::embedded().await;
    let events = generate(&daemon, edit()).await.unwrap();
    let edited = done(&events);
    assert!(edited.text_tokens > 8, "{edited:?}");
    assert!(edited.generated_tokens < 4, "{edited:?}");
    // One position a pass is the reference's schedule.
    assert_eq!(edited.filled_positions, edited.generated_tokens);
    assert_eq!(edited.passes, edited.filled_positions);

    let request = v1::GenerateRequest {
        length: Some(64),
        ..chat("Tell me a story about a fox.")
    }
    .sampled(|sampling| sampling.seed = Some(1));
    let events = generate(&daemon, request).await.unwrap();
    let answer = done(&events);
    assert_eq!(answer.generated_tokens, answer.text_tokens);
    // Those behind the end of the text were filled, too.
    assert!(answer.filled_positions >= answer.generated_tokens);
    assert_eq!(answer.passes, answer.filled_positions);
}

#[tokio::test]
async fn an_edit_changes_its_span_alone() {
    let daemon = Daemon::embedded().await;
    let events = generate(&daemon, edit()).await.unwrap();
    let edited = done(&events).text.clone().unwrap();
    assert!(
        edited.starts_with("Mia went to the lake with a"),
        "{edited}"
    );
    assert!(edited.ends_with(" boat. Then she went home."), "{edited}");
}

#[tokio::test]
async fn an_estimate_tells_progress_and_a_result() {
    let daemon = Daemon::embedded().await;
    let score = async |answer: &str| {
        let request = v1::ScoreRequest {
            prompt: Some(v1::score_request::Prompt::RawText("Once upon".to_owned())),
            answer: Some(v1::score_request::Answer::AnswerText(answer.to_owned())),
            draws: Some(8),
            seed: Some(3),
            ..Default::default()
        };
        let answer = daemon.generation().await.score(request).await;
        let last = pictures(answer).await.unwrap().pop().unwrap();
        assert!(last.progress.is_some_and(|step| step.done == 8));
        match last.outcome {
            Some(v1::operation::Outcome::Score(result)) => (last.operation_id, result),
            other => panic!("the last picture has {other:?}"),
        }
    };
    let (id, likely) = score(" a time there was a fox").await;
    let (_, unlikely) = score(" xq zzv kkw jjq").await;
    assert_eq!((likely.draws, likely.seed), (8, 3));
    assert!(likely.log_likelihood < 0.0 && likely.standard_error.is_some());
    let each = |result: &v1::ScoreResult| result.log_likelihood / f64::from(result.answer_tokens);
    assert!(each(&likely) > each(&unlikely));
    let line = daemon.request(id).await;
    assert_eq!(line.kind(), v1::OperationKind::Score);
    assert_eq!(line.state(), v1::OperationState::Done);
}
