use sluice_shared::level::Level;

use super::*;
use crate::{
    batch::BatchOptions,
    config::TransformerConfig,
    judge::{GapScores, Scores, Settings, Turn, curve::Row, rate::Rate},
    log::Entry,
    optimizer::OptimizerOptions,
    precision::Precision,
};

fn run(objective: Objective, held_out: f64) -> Run {
    Run {
        progress: Progress {
            config: TransformerConfig {
                n_layers: 4,
                ..TransformerConfig::demonstration(1024)
            }
            .into(),
            batch: BatchOptions {
                text: None,
                seed: 7,
                objective,
                parts: 2,
                part_tokens: 1536,
                length_max: 512,
                length_warm_up_steps: 60,
                exercise_steps: 11,
            },
            learning_rate: 0.0015,
            warm_up_steps: 9,
            step: 900,
            steps_planned: 1000,
            tokens: 3_000_000,
            train_seconds: 600.0,
            seconds_planned: None,
            began_with: None,
            latent: None,
            optimizer: OptimizerOptions::default(),
            precision: Precision::F32,
            quantization: None,
        },
        vocabulary: 1000,
        held_out,
        held_out_rounded: None,
        samples: 50,
    }
}

fn rate(hits: usize) -> Rate {
    Rate { hits, of: 10 }
}

fn scores(hits: usize, passes: usize) -> Scores {
    let mut scores = Scores {
        answers: 10,
        names_kept: rate(hits),
        sentences_whole: rate(hits),
        right: rate(hits),
        ..Scores::default()
    };
    scores.effort.tokens = 1000;
    scores.effort.passes = passes;
    scores
}

fn facts() -> Facts {
    let settings = Settings {
        prompts: 10,
        seed: 4,
        length: 128,
        block_length: 32,
        schedule: Schedule::Steps(128),
    };
    let row = |schedule, hits, passes| Row {
        schedule,
        setting: Settings {
            schedule,
            ..settings.clone()
        }
        .schedule_in_words(),
        scores: scores(hits, passes),
        questions: scores(hits, passes),
    };
    Facts {
        run: run(Objective::Diffusion, 0.25),
        yardstick: Some(run(Objective::Autoregressive, 0.125)),
        curve: Curve {
            settings: settings.clone(),
            weights: "1".to_owned(),
            threads: 2,
            rows: vec![
                row(Schedule::Steps(128), 9, 1000),
                row(Schedule::Steps(32), 3, 250),
                row(Schedule::Threshold(0.9), 9, 400),
                row(Schedule::Threshold(0.5), 7, 200),
            ],
        },
        judgement: Judgement {
            settings,
            weights: "1".to_owned(),
            threads: 2,
            left_out: 0,
            overall: scores(7, 1000),
            right_answers: scores(10, 1000),
            tasks: Vec::new(),
            word_gaps: GapScores::default(),
            sentence_gaps: GapScores::default(),
            examples: vec![Example {
                task: "fill gap".to_owned(),
                messages: vec![Turn {
                    role: "user".to_owned(),
                    content: "Mia ran. ___ She fell.\n\nFill the gap.".to_owned(),
                }],
                answer: "Then <it> rained.".to_owned(),
            }],
        },
    }
}

#[test]
fn the_card_tells_numbers_commands_and_samples() {
    let card = text(&facts());
    for expected in [
        "---\nlicense: apache-2.0\nlanguage: en\n---\n",
        "train --output run --seed 7 --steps 1000 \\\n",
        "--learning-rate 0.0015 --warm-up-steps 9 --exercise-steps 11 --length-warm-up-steps 60 \\\n",
        "--vocabulary 1000 --layers 4 --width 256 --mlp 512 --heads 4\n",
        "train --output yardstick --objective autoregressive --seed 7",
        "--prompts 10 --seed 4 --length 128 --block-length 32 --steps 128 > judge.json",
        "--judgement judge.json --curve curve.json --samples 50 --yardstick yardstick",
        "900 steps of 1000 planned, 3.0 million tokens (prompts and padding included), 10 minutes,\n5000 tokens a second.",
        "| this model, upper bound | 0.250 |",
        "exact | 0.125 |",
        "70.0 %",
        "reference, 4 tokens a pass",
        "> **User:** Mia ran. \\_\\_\\_ She fell.  \n>   \n> Fill the gap.",
        "> **The model:** Then \\<it\\> rained.",
        "](loss.svg)",
        "](quality.svg)",
    ] {
        assert!(
            card.contains(expected),
            "{expected:?} is missing in\n{card}"
        );
    }
}

#[test]
fn a_card_tells_what_a_run_began_with_and_that_time_ended_it() {
    let mut facts = facts();
    facts.run.progress.began_with = Some("00ff".to_owned());
    facts.run.progress.seconds_planned = Some(3600);
    let card = text(&facts);
    for expected in [
        "train --output run --seed 7 --seconds 3600 \\\n",
        "--part-tokens 1536 --from BEFORE\n",
        "with the weights 00ff",
        "gives other weights elsewhere",
        "900 steps, 3.0 million tokens",
    ] {
        assert!(
            card.contains(expected),
            "{expected:?} is missing in\n{card}"
        );
    }
}

#[test]
fn a_card_tells_of_training_for_a_level() {
    let mut facts = facts();
    assert!(!text(&facts).contains("quantiz"));
    facts.run.progress.quantization = Some(QuantizationOptions {
        level: Level::Aggressive,
        share: 0.1,
        task_weight: 0.25,
        kl_weight: 0.75,
    });
    facts.run.held_out_rounded = Some(0.3125);
    let card = text(&facts);
    for expected in [
        "--heads 4 \\\n    --quantize aggressive --quantize-share 0.1 --task-weight 0.25 --kl-weight 0.75\n",
        "| this model at level `aggressive`, upper bound | 0.312 |",
        "The last 10 % of the run",
    ] {
        assert!(
            card.contains(expected),
            "{expected:?} is missing in\n{card}"
        );
    }
}

#[test]
fn a_card_without_yardstick_does_not_speak_of_one() {
    let facts = Facts {
        yardstick: None,
        ..facts()
    };
    assert!(!text(&facts).contains("yardstick"));
}

#[test]
fn pictures_show_every_series() {
    let entry = |step: u64, loss: f64, held_out: Option<f64>| Entry {
        step,
        tokens: step * 10_000,
        loss,
        kl: None,
        held_out,
        held_out_rounded: None,
        held_out_kl: None,
        gradient_norm: 1.0,
        learning_rate: 0.001,
        tokens_per_second: 1.0,
        data_wait: 0.0,
        train_seconds: 1.0,
        memory: None,
    };
    let log = [
        entry(50, 6.0, None),
        entry(100, 2.0, Some(1.9)),
        entry(150, 0.5, Some(0.4)),
    ];
    let loss = picture::loss(&log, Some(&log)).expect("draw");
    let quality = picture::quality(&facts().curve).expect("draw");
    for (picture, labels) in [
        (
            &loss,
            [
                "masked tokens",
                "upper bound",
                "the yardstick",
                "millions",
                "nats a token",
            ],
        ),
        (
            &quality,
            [
                "sentences whole",
                "names kept",
                "questions right",
                "threshold policy",
                "100 %",
            ],
        ),
    ] {
        assert!(picture.trim_end().ends_with("</svg>"));
        for label in labels {
            assert!(picture.contains(label), "{label} is missing");
        }
    }
    assert!(
        !picture::loss(&log, None)
            .expect("draw")
            .contains("yardstick")
    );
    assert!(picture::loss(&[], None).is_ok());
}
