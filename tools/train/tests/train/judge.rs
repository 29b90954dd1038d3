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

/// Trains a small network of a kind for three steps, and exports it.
fn export_kind(folder: &Path, kind: &[&str]) {
    fs::create_dir(folder.join("run")).expect("folder");
    Vocabulary::train(1, 512, 500)
        .and_then(|vocabulary| vocabulary.save(&folder.join("run/tokenizer.json")))
        .expect("tokenizer");
    let train = "train --output run --layers 1 --width 64 --mlp 64 --steps 3 --part-tokens 200 --evaluate-steps 0 \
                 --report-steps 1 --exercise-steps 0 --length-warm-up-steps 0";
    let train: Vec<&str> = train.split_whitespace().collect();
    run(folder, &[&train[..], kind].concat());
    run(
        folder,
        &["export", "--checkpoint", "run", "--output", "model"],
    );
}

/// Judges with these options, and writes the card.
fn describe(folder: &Path, options: &[&str]) -> String {
    let judge = ["judge", "--model", "model", "--json", "--prompts", "12"];
    let judgement = run(folder, &[&judge[..], options].concat());
    fs::write(folder.join("judge.json"), judgement).expect("write");
    let card =
        "card --checkpoint run --model model --judgement judge.json --samples 4 --prior-samples 4";
    run(folder, &card.split(' ').collect::<Vec<_>>());
    assert!(folder.join("model/loss.svg").exists());
    fs::read_to_string(folder.join("model/README.md")).expect("read card")
}

#[test]
fn an_autoregressive_model_is_judged_without_gaps_and_described() {
    let folder = tempfile::tempdir().expect("folder");
    let folder = folder.path();
    export_kind(folder, &["--model", "rwkv7"]);

    let card = describe(folder, &["--length", "64"]);

    assert!(card.contains("in the shape of RWKV-7"), "{card}");
    let judged = fs::read(folder.join("judge.json")).expect("read");
    let judged: Judgement = serde_json::from_slice(&judged).expect("understand");
    assert_eq!(judged.overall.answers, 12);
    assert_eq!(judged.word_gaps.effort.texts, 0);
    // The engine is asked to think, and refuses.
    let think = ["judge", "--model", "model", "--way", "think 3"];
    let refused = start(folder, &think);
    let complaint = String::from_utf8_lossy(&refused.stderr);
    assert!(complaint.contains("latent"), "{complaint}");
    // A curve is of masked diffusion models.
    let card = "card --checkpoint run --model model --judgement judge.json --curve judge.json";
    let refused = start(folder, &card.split(' ').collect::<Vec<_>>());
    let complaint = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && complaint.contains("masked diffusion"),
        "{complaint}"
    );
}

#[test]
fn a_latent_thought_model_is_described_by_what_thinking_does_and_by_its_prior() {
    let folder = tempfile::tempdir().expect("folder");
    let folder = folder.path();
    let sizes = "--model ltm --window 4 --latents-per-layer 2 --fast-steps 2 --sequence-length 256";
    export_kind(folder, &sizes.split(' ').collect::<Vec<_>>());
    for command in [
        "posteriors --checkpoint run --count 8 --output posteriors.safetensors",
        "prior --model model --posteriors posteriors.safetensors --steps 2 --texts 4 --width 16 --layers 1 --heads 2",
    ] {
        run(folder, &command.split(' ').collect::<Vec<_>>());
    }

    let ways = ["--length", "64", "--way", "think 0", "--way", "think 3"];
    let card = describe(folder, &ways);

    for expected in [
        "--steps 2 --texts 4 --learning-rate 0.001 --width 16 --layers 1 --heads 2",
        "posteriors --checkpoint run --count 8",
        "## What thinking does",
        "| 0  ",
        "| 3  ",
        "`dpm-solver-pp-2m`, 10 steps",
        "`heun`, 50 steps",
        "> **Think 3:**",
    ] {
        assert!(
            card.contains(expected),
            "{expected:?} is missing in\n{card}"
        );
    }
    let judged = fs::read(folder.join("judge.json")).expect("read");
    let judged: Ways = serde_json::from_slice(&judged).expect("understand");
    let [before, after] = &judged.rows[..] else {
        panic!("two ways were asked for");
    };
    assert_eq!([before.examples.len(), after.examples.len()], [12; 2]);
    assert_eq!([&before.way[..], &after.way], ["think 0", "think 3"]);
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
