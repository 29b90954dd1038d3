//! What ways of decoding gain and lose on a model: for each, tokens a pass, passes, rows and time, the share of tokens that are
//! those of the first way, and the model's own estimate of how likely the texts are.
//!
//! ```sh
//! cargo run -p sluice-measure --example decoding_table -- MODEL PROMPTS.txt LENGTH BLOCK DRAWS KV < WAYS
//! ```
//!
//! KV is the format of the KV cache: auto, f32, bf16, q8_0, q5_0 or q4_0. DRAWS are the Monte Carlo draws of an estimate,
//! 0 for none. A line of WAYS is a policy, a KV cache reuse, a suffix window or `all`, a canvas growth and a speculation,
//! separated by blanks; the others are compared with the first.

use std::{
    error::Error,
    io::{BufRead, stdin},
    path::PathBuf,
    sync::mpsc,
    time::Instant,
};

use sluice_checkpoint::Source;
use sluice_engine::{
    Engine, EngineOptions, Event, Generate, ModelId, Outcome, PlanSettings, Score, Work,
};
use sluice_shared::{decoding::Decoding, policy::PolicyChoice, sampling::EosPolicy};

struct DecodingRow {
    text: String,
    policy: PolicyChoice,
    decoding: Decoding,
}

#[derive(Default)]
struct Sums {
    tokens: usize,
    passes: usize,
    rows: usize,
    seconds: f64,
    same: usize,
    of: usize,
    likelihood: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, prompts, length, block, draws, kv] = &arguments[..] else {
        return Err("MODEL PROMPTS LENGTH BLOCK DRAWS KV are needed".into());
    };
    let (length, block, draws) = (length.parse()?, block.parse()?, draws.parse()?);
    let engine = Engine::start(EngineOptions::default())?;
    let source = Source::Folder(PathBuf::from(model));
    let settings = PlanSettings {
        kv_cache_format: kv.parse()?,
        ..PlanSettings::default()
    };
    let loaded = engine.load_now(source, settings)?;
    let text = loaded
        .tokenizer
        .as_ref()
        .ok_or("the model has no tokenizer")?;
    let ends = &loaded.info.eos_token_ids;
    let prompts = std::fs::read_to_string(prompts)?;
    let prompts = prompts
        .lines()
        .map(|line| text.encode_chat(&[("user", line)]));
    let prompts = prompts.collect::<Result<Vec<_>, _>>()?;
    let mut first: Vec<Vec<u32>> = Vec::new();
    println!("| way | tokens a pass | rows a pass | tokens/s | same tokens | nats a token |");
    println!("|---|---:|---:|---:|---:|---:|");
    for line in stdin().lock().lines() {
        let way = parse_row(&line?)?;
        let mut sums = Sums::default();
        let mut answers = Vec::new();
        for prompt in &prompts {
            let request = Generate {
                block_length: block,
                steps: length,
                eos: EosPolicy::Stop,
                policy: way.policy,
                decoding: way.decoding,
                ..Generate::greedy(loaded.id, prompt.clone(), length)
            };
            let started = Instant::now();
            let (mut tokens, rows, passes) = generate(&engine, request)?;
            sums.seconds += started.elapsed().as_secs_f64();
            let end = tokens.iter().position(|token| ends.contains(token));
            tokens.truncate(end.map_or(tokens.len(), |end| end + 1));
            sums.tokens += tokens.len();
            sums.rows += rows;
            sums.passes += passes;
            if draws > 0 {
                sums.likelihood += likelihood(&engine, loaded.id, prompt, &tokens, draws)?;
            }
            answers.push(tokens);
        }
        if first.is_empty() {
            first.clone_from(&answers);
        }
        for (answer, first) in answers.iter().zip(&first) {
            sums.same += answer.iter().zip(first).filter(|(a, b)| a == b).count();
            sums.of += answer.len().max(first.len());
        }
        println!(
            "| {} | {:.2} | {:.0} | {:.0} | {:.1} % | {:.3} |",
            way.text,
            sums.tokens as f64 / sums.passes as f64,
            sums.rows as f64 / sums.passes as f64,
            sums.tokens as f64 / sums.seconds,
            100.0 * sums.same as f64 / sums.of as f64,
            -sums.likelihood / sums.tokens as f64,
        );
    }
    Ok(())
}

fn parse_row(line: &str) -> Result<DecodingRow, Box<dyn Error>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [policy, caching, window, growth, speculation] = words[..] else {
        return Err(format!("five words are needed, not '{line}'").into());
    };
    Ok(DecodingRow {
        text: line.to_owned(),
        policy: policy.parse()?,
        decoding: Decoding {
            kv_cache: caching.parse()?,
            suffix_window: match window {
                "all" => None,
                masks => Some(masks.parse()?),
            },
            canvas_growth: growth.parse()?,
            speculation: speculation.parse()?,
        },
    })
}

/// The tokens, and how many rows and passes they took.
fn generate(
    engine: &Engine,
    request: Generate,
) -> Result<(Vec<u32>, usize, usize), Box<dyn Error>> {
    let (send, events) = mpsc::channel();
    // The receiver lives until the request is over.
    let sink = Box::new(move |event| send.send(event).unwrap_or_default());
    engine.submit(Default::default(), Work::Generate(request), sink)?;
    let (mut rows, mut passes) = (0, 0);
    for event in events {
        match event {
            Event::Pass(report) => {
                rows += report.rows;
                passes += 1;
            }
            Event::Finished(Ok(Outcome::Generated(generated))) => {
                return Ok((generated.tokens, rows, passes));
            }
            Event::Finished(other) => return Err(format!("{other:?}").into()),
            _ => {}
        }
    }
    Err("the engine is gone".into())
}

fn likelihood(
    engine: &Engine,
    model: ModelId,
    prompt: &[u32],
    answer: &[u32],
    draws: usize,
) -> Result<f64, Box<dyn Error>> {
    let score = Score {
        model,
        prompt: prompt.to_vec(),
        answer: answer.to_vec(),
        draws,
        guidance: 0.0,
        seed: 1,
        check_greedy: false,
        think_steps: None,
    };
    match engine.run(Work::Score(score))? {
        Outcome::Scored(scored) => Ok(scored.log_likelihood),
        other => Err(format!("{other:?}").into()),
    }
}
