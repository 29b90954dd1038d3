use sluice_shared::level::Level;

use super::{latent_thought::PriorFindings, *};
use crate::{
    batch::BatchOptions,
    config::{LatentThoughtConfig, Rwkv7Config, TransformerConfig},
    judge::{
        GapScores, Schedule, Scores, Settings, Turn,
        curve::{Curve, Row},
        rate::Rate,
        ways::{self, Ways},
    },
    latent::{LatentOptions, bound::Bound},
    log::Entry,
    optimizer::OptimizerOptions,
    precision::Precision,
    prior::{
        Origin, PriorConfig,
        comparison::{Comparison, ComparisonOptions, SetRow},
        training::PriorOptions,
    },
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
    scores.effort.texts = 10;
    scores.effort.tokens = 1000;
    scores.effort.passes = passes;
    scores
}

fn settings() -> Settings {
    Settings {
        prompts: 10,
        seed: 4,
        length: 128,
        block_length: 32,
        schedule: Schedule::Steps(128),
    }
}

fn facts() -> Facts {
    let settings = settings();
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
    let findings = DiffusionFindings {
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
        judgement: judgement(settings),
    };
    Facts {
        run: run(Objective::Diffusion, 0.25),
        findings: Findings::Diffusion(Box::new(findings)),
    }
}

fn judgement(settings: Settings) -> Judgement {
    Judgement {
        settings,
        weights: "1".to_owned(),
        threads: 2,
        left_out: 0,
        overall: scores(7, 1000),
        right_answers: scores(10, 1000),
        tasks: Vec::new(),
        word_gaps: GapScores::default(),
        sentence_gaps: GapScores::default(),
        examples: vec![example("fill gap", "Then <it> rained.")],
    }
}

fn example(task: &str, answer: &str) -> Example {
    Example {
        task: task.to_owned(),
        messages: vec![Turn {
            role: "user".to_owned(),
            content: "Mia ran. ___ She fell.\n\nFill the gap.".to_owned(),
        }],
        answer: answer.to_owned(),
    }
}

fn check(card: &str, parts: &[&str]) {
    for expected in parts {
        assert!(
            card.contains(expected),
            "{expected:?} is missing in\n{card}"
        );
    }
}

#[test]
fn the_card_tells_numbers_commands_and_samples() {
    let card = text(&facts());
    check(
        &card,
        &[
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
        ],
    );
}

#[test]
fn a_card_tells_what_a_run_began_with_and_that_time_ended_it() {
    let mut facts = facts();
    facts.run.progress.began_with = Some("00ff".to_owned());
    facts.run.progress.seconds_planned = Some(3600);
    let card = text(&facts);
    check(
        &card,
        &[
            "train --output run --seed 7 --seconds 3600 \\\n",
            "--part-tokens 1536 --from BEFORE\n",
            "with the weights 00ff",
            "gives other weights elsewhere",
            "900 steps, 3.0 million tokens",
        ],
    );
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
    check(
        &card,
        &[
            "--heads 4 \\\n    --quantize aggressive --quantize-share 0.1 --task-weight 0.25 --kl-weight 0.75\n",
            "| this model at level `aggressive`, upper bound | 0.312 |",
            "The last 10 % of the run",
        ],
    );
}

#[test]
fn a_card_without_yardstick_does_not_speak_of_one() {
    let mut facts = facts();
    if let Findings::Diffusion(found) = &mut facts.findings {
        found.yardstick = None;
    }
    assert!(!text(&facts).contains("yardstick"));
}

#[test]
fn the_card_of_an_autoregressive_model_has_no_gaps_and_no_curve() {
    let mut run = run(Objective::Autoregressive, 0.3);
    run.progress.config = Rwkv7Config::new(256, 2, 512, 1024).into();
    let card = text(&Facts {
        run,
        findings: Findings::Autoregressive(Box::new(AutoregressiveFindings {
            judgement: judgement(settings()),
        })),
    });
    check(
        &card,
        &[
            "in the shape of RWKV-7\n([arXiv 2503.14456]",
            "train --output run --model rwkv7 --seed 7 --steps 1000 \\\n",
            "Tokenizer, text and initial weights all follow from the seed",
            "judge --model model --json --prompts 10 --seed 4 --length 128 > judge.json",
            "card --checkpoint run --model model --judgement judge.json --samples 50\n",
            "| this model | 0.3000 |",
            "70.0 %",
            "It took 100.0 tokens and",
            "> **The model:** Then \\<it\\> rained.",
            "## Limits",
        ],
    );
    for foreign in ["Gaps", "curve", "canvas has", "passes"] {
        assert!(!card.contains(foreign), "{foreign} stands in\n{card}");
    }
}

fn thinking() -> Facts {
    let mut run = run(Objective::Latent, 1.5);
    run.progress.config = LatentThoughtConfig {
        dim: 64,
        n_layers: 2,
        n_heads: 4,
        hidden_dim: Some(96),
        multiple_of: 32,
        vocab_size: 1024,
        max_seq_len: 256,
        max_z_len: 4,
        window_size: 5,
        norm_eps: 1e-5,
        rope_theta: 10_000.0,
    }
    .into();
    run.progress.latent = Some(LatentOptions {
        kl_warm_up: 5.0,
        ..LatentOptions::default()
    });
    let row = |steps, hits, answer: &str| ways::Row {
        way: format!("think {steps}"),
        scores: scores(hits, 100),
        examples: vec![example("question", "Nobody."), example("story", answer)],
    };
    let set = |name: &str, evaluations, distance| SetRow {
        name: name.to_owned(),
        evaluations,
        nll: 2.25,
        mixture: 1.75,
        distance,
    };
    let findings = LatentThoughtFindings {
        bound: Bound {
            nll: 0.5,
            kl: 1.0,
            multi_sample: 1.4,
            answers: vec![0.9, 0.6],
            tokens: 1000.0,
            answer_tokens: 600.0,
        },
        draws: 8,
        thinking: vec![0, 16],
        ways: Ways {
            settings: settings(),
            weights: "1".to_owned(),
            threads: 2,
            rows: vec![row(0, 1, "A cat ran."), row(16, 8, "Mia ran.")],
            right_answers: scores(10, 100),
        },
        prior: Some(PriorFindings {
            config: PriorConfig {
                vectors: 4,
                latent_width: 64,
                width: 32,
                layers: 2,
                heads: 2,
            },
            origin: Some(Origin {
                options: PriorOptions {
                    steps: 500,
                    texts: 64,
                    learning_rate: 0.001,
                    seed: 3,
                    threads: 2,
                },
                posteriors: 1024,
            }),
            comparison: Comparison {
                options: ComparisonOptions::default(),
                latents: 255,
                measured: 32,
                sets: vec![
                    set("posterior samples", None, -0.0001),
                    set("`heun`, 20 steps", Some(39), 0.01),
                ],
            },
        }),
    };
    Facts {
        run,
        findings: Findings::LatentThought(Box::new(findings)),
    }
}

#[test]
fn the_card_of_a_latent_thought_model_tells_what_thinking_does_and_what_its_prior_is_worth() {
    let card = text(&thinking());
    check(
        &card,
        &[
            "train --output run --model ltm --seed 7",
            "    --window 5 --latents-per-layer 2 \\\n    --fast-steps 16 --fast-learning-rate 0.3",
            "--initial-log-variance -5 --kl-warm-up 5 --prefix-share 0\n",
            "posteriors --checkpoint run --count 1024 --output",
            "--threads 2 prior --model model --posteriors posteriors.safetensors --seed 3 \\\n    --steps 500 --texts 64",
            "--width 32 --layers 2 --heads 2\n",
            "--way \"think 0\" --way \"think 16\" > think.json",
            "--judgement think.json --samples 50 --prior-samples 256\n",
            "(NLL) | 0.500 |",
            "N(0, 1) | 1.000 |",
            "−log p(x) | 1.500 |",
            "of 8 samples (arXiv 1509.00519) | 1.400 |",
            "at a weight of 0.20",
            "Attention sees 5 positions",
            "0.900 |     10.0 % |",
            "0.600 |     80.0 % |",
            "> **Think 0:** A cat ran.\n>\n> **Think 16:** Mia ran.\n",
            "|           – | 2.250 |",
            "|          39 | 2.250 |",
            "-0.0001 |",
            "Each row is a set of 255 latents",
            "each token of 32 held-out texts",
            "](loss.svg)",
        ],
    );
    // Only requests for stories are shown.
    assert!(!card.contains("Nobody."));
}

#[test]
fn without_a_prior_the_card_says_so() {
    let mut facts = thinking();
    if let Findings::LatentThought(found) = &mut facts.findings {
        found.prior = None;
    }
    let card = text(&facts);
    assert!(card.contains("no other prior was learned"));
    assert!(!card.contains("posteriors.safetensors"));
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
    let loss = picture::loss(Objective::Diffusion, &log, Some(&log)).expect("draw");
    let Findings::Diffusion(found) = facts().findings else {
        panic!("facts of another kind");
    };
    let quality = picture::quality(&found.curve).expect("draw");
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
    let loss = |objective, log: &[Entry]| picture::loss(objective, log, None).expect("draw");
    assert!(!loss(Objective::Diffusion, &log).contains("yardstick"));
    assert!(loss(Objective::Autoregressive, &log).contains("answer tokens"));
    let thinks = [Entry {
        kl: Some(1.5),
        ..entry(50, 6.0, None)
    }];
    let picture = loss(Objective::Latent, &thinks);
    assert!(picture.contains("KL divergence") && !picture.contains("held-out"));
    assert!(!loss(Objective::Latent, &[]).is_empty());
}
