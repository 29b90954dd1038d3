//! The program from a few steps of training to a judgement by the engine and a model card.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use sluice_train::{
    corpus::{self, Split},
    judge::{Judgement, curve::Curve, session::Session, ways::Ways},
    vocabulary::Vocabulary,
};

/// Runs `sluice-train` in a folder.
fn start(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice-train"))
        .current_dir(folder)
        .args(["--threads", "2"])
        .args(arguments)
        .output()
        .expect("start sluice-train")
}

/// What it prints when all goes well.
fn run(folder: &Path, arguments: &[&str]) -> Vec<u8> {
    let output = start(folder, arguments);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {complaint}");
    output.stdout
}

/// Trains a small network for a few steps and exports it.
fn export_small_model(folder: &Path) {
    fs::create_dir(folder.join("run")).expect("folder");
    Vocabulary::train(1, 512, 500)
        .and_then(|vocabulary| vocabulary.save(&folder.join("run/tokenizer.json")))
        .expect("tokenizer");
    let network = ["--layers", "1", "--mlp", "256"];
    let steps = [
        "--steps",
        "3",
        "--part-tokens",
        "200",
        "--evaluate-steps",
        "0",
    ];
    let train = ["train", "--output", "run", "--report-steps", "1"];
    run(folder, &[&train[..], &network, &steps].concat());
    run(
        folder,
        &["export", "--checkpoint", "run", "--output", "model"],
    );
}

const FEW: [&str; 8] = [
    "judge",
    "--model",
    "model",
    "--length",
    "64",
    "--block-length",
    "16",
    "--json",
];

fn judge(folder: &Path) -> Judgement {
    let printed = run(
        folder,
        &[&FEW[..], &["--prompts", "3", "--steps", "8"]].concat(),
    );
    serde_json::from_slice(&printed).expect("read judgement")
}

#[test]
fn a_model_is_judged_by_the_engine_and_described() {
    let folder = tempfile::tempdir().expect("folder");
    let folder = folder.path();
    export_small_model(folder);

    let judgement = judge(folder);

    assert_eq!(judgement.overall.answers, 3);
    assert_eq!(judgement.examples.len(), 3);
    let of_tasks = judgement.tasks.iter().map(|task| task.scores.answers);
    assert_eq!(of_tasks.sum::<usize>(), 3);
    let effort = judgement.overall.effort;
    assert!(effort.passes >= 3 && effort.seconds > 0.0);
    // Three steps teach nobody to tell a story, and the right answers have nothing to learn.
    assert_eq!(judgement.overall.answers_whole.hits, 0);
    assert_eq!(judgement.right_answers.answers_whole.hits, 3);
    for (number, example) in (0..).zip(&judgement.examples) {
        let asked = corpus::sample(Split::HeldOut, 1, number).messages;
        let shown = example.messages.iter().map(|turn| &turn.content);
        assert!(shown.eq(asked.iter().map(|message| &message.content)));
    }
    let mut again = judge(folder);
    again.overall.effort.seconds = effort.seconds;
    assert_eq!(again.overall, judgement.overall);
    assert_eq!(again.examples, judgement.examples);

    let curve = run(folder, &[&FEW[..], &["--prompts", "1", "--curve"]].concat());
    let rows = serde_json::from_slice::<Curve>(&curve)
        .expect("read curve")
        .rows;
    let passes = |row: usize| rows[row].scores.effort.passes;
    assert!(
        passes(3) < passes(0),
        "eight tokens a pass take fewer passes than one"
    );

    let ways = ["--prompts", "2", "--way", "fast", "--way", "reference dual"];
    let ways = run(folder, &[&FEW[..], &ways].concat());
    let ways: Ways = serde_json::from_slice(&ways).expect("read ways");
    assert_eq!(ways.rows[1].way, "reference dual");
    assert!(ways.rows.iter().all(|row| row.scores.answers == 2));
    assert_eq!(ways.right_answers.answers_whole.hits, 2);

    let judgement = serde_json::to_vec(&judgement).expect("write judgement");
    fs::write(folder.join("judge.json"), judgement).expect("write");
    fs::write(folder.join("curve.json"), curve).expect("write");
    let card = [
        "card",
        "--checkpoint",
        "run",
        "--model",
        "model",
        "--samples",
        "2",
    ];
    let card = [
        &card[..],
        &["--judgement", "judge.json", "--curve", "curve.json"],
    ]
    .concat();
    run(folder, &card);
    for name in ["README.md", "loss.svg", "quality.svg"] {
        assert!(
            folder.join("model").join(name).exists(),
            "{name} is missing"
        );
    }
    // Weights that were not judged get no card.
    let weights = folder.join("model/model.safetensors");
    let mut bytes = fs::read(&weights).expect("read");
    *bytes.last_mut().expect("byte") ^= 1;
    fs::write(&weights, bytes).expect("write");
    assert!(!start(folder, &card).status.success());
}

#[test]
fn the_engine_reads_a_conversation_as_training_wrote_it() {
    let folder = tempfile::tempdir().expect("folder");
    export_small_model(folder.path());
    let session = Session::open(&folder.path().join("model"), 1).expect("open");
    let tokenizer = folder.path().join("run/tokenizer.json");
    let vocabulary = Vocabulary::load(&tokenizer).expect("tokenizer");
    for number in 0..50 {
        let sample = corpus::sample(Split::HeldOut, 1, number);
        let (prompt, answer) = vocabulary.encode_sample(&sample).expect("encode");
        assert_eq!(session.encode(&sample.messages).expect("encode"), prompt);
        assert_eq!(Some(&session.end().expect("end")), answer.last());
    }
}
