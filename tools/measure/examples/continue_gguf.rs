//! Continues ten texts with an autoregressive model's likeliest tokens, and times it: for comparing a GGUF file with
//! another program that runs the same one. Prints each text's ids and their continuation as a line of JSON, then how
//! fast prompts were read and tokens written, on standard error.
//!
//! ```sh
//! cargo run -p sluice-measure --example continue_gguf -- FILE [TOKENS] [THREADS] [KV]
//! ```
//!
//! llama.cpp's figures beside these: `llama-bench -m FILE -t THREADS -p 512 -n 128`.

use std::{error::Error, path::PathBuf, time::Duration};

use serde_json::json;
use sluice_checkpoint::Source;
use sluice_engine::{
    Engine, EngineOptions, Generate, ModelId, Outcome, PlanSettings, Work, event::GenerationResult,
};
use sluice_shared::{level::KvCacheFormat, sampling::EosPolicy};

/// Of different kinds: tales, facts, code, lists, numbers, other scripts.
const TEXTS: [&str; 10] = [
    "Once upon a time there was a small fox",
    "The capital of France is",
    "def fib(n):\n    ",
    "Hello, wörld! 你好 1234567  \n\n\ttabs",
    "Water boils at a temperature of",
    "The three primary colours are",
    "1, 2, 3, 5, 8, 13,",
    "Dear Sir or Madam,\n\n",
    "To make bread, first",
    "Q: What is the largest planet?\nA:",
];

/// Tokens of the prompt that is timed, and behind it.
const READ: usize = 512;
const WRITTEN: usize = 128;
const RUNS: u32 = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = PathBuf::from(arguments.next().ok_or("FILE is missing")?);
    let mut number = |default: usize| {
        arguments
            .next()
            .map_or(Ok(default), |argument| argument.parse())
    };
    let tokens = number(64)?;
    let threads = number(2)?;
    let settings = PlanSettings {
        kv_cache_format: arguments
            .next()
            .map_or(Ok(KvCacheFormat::Auto), |kv| kv.parse())?,
        ..PlanSettings::default()
    };
    let engine = Engine::start(EngineOptions {
        threads,
        ..EngineOptions::default()
    })?;
    let model = engine.load_now(Source::Folder(file), settings)?;
    let text = model
        .tokenizer
        .as_ref()
        .ok_or("the file has no tokenizer")?;
    for words in TEXTS {
        let ids = text.encode(words)?;
        let answer = generate(&engine, model.id, &ids, tokens, EosPolicy::Stop)?;
        let line = json!({ "text": words, "prompt": ids, "tokens": answer.tokens });
        println!("{line}");
    }
    // The fastest of a few: others met somebody else's work.
    let (mut reading, mut writing) = (Duration::MAX, Duration::MAX);
    for run in 0..RUNS {
        // Each begins with another token, so that nothing is kept of it from before.
        let mut long = text.encode(&TEXTS.join("\n").repeat(8))?;
        long[0] = run;
        long.truncate(READ);
        let read = generate(&engine, model.id, &long, 1, EosPolicy::Suppress)?;
        reading = reading.min(read.elapsed);
        // What was read is kept: all of this is writing.
        let written = generate(&engine, model.id, &long, WRITTEN, EosPolicy::Suppress)?;
        writing = writing.min(written.elapsed);
    }
    let rate = |count: usize, time: Duration| count as f64 / time.as_secs_f64();
    eprintln!(
        "{threads} threads: {READ} tokens read at {:.1} a second; {WRITTEN} tokens written behind them at {:.1} a second",
        rate(READ, reading),
        rate(WRITTEN, writing),
    );
    Ok(())
}

fn generate(
    engine: &Engine,
    model: ModelId,
    prompt: &[u32],
    tokens: usize,
    eos: EosPolicy,
) -> Result<GenerationResult, Box<dyn Error>> {
    let request = Generate {
        eos,
        ..Generate::greedy(model, prompt.to_vec(), tokens)
    };
    match engine.run(Work::Generate(request))? {
        Outcome::Generated(generated) => Ok(generated),
        other => Err(format!("asked to generate, got {other:?}").into()),
    }
}
