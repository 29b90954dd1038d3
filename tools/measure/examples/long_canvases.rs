//! Whether a pass costs the same however long the text has become: canvases of several lengths, each filled to its end with the
//! same number of tokens a pass, with a cache and a window or with neither.
//!
//! ```sh
//! cargo run -p sluice-measure --example long_canvases -- MODEL CACHE WINDOW|all TOKENS_A_PASS LENGTH...
//! ```

use std::{error::Error, path::PathBuf, sync::mpsc, time::Duration};

use sluice_checkpoint::Source;
use sluice_engine::{Engine, EngineOptions, Event, Generate, Outcome, PlanSettings, Work};
use sluice_shared::{decoding::Decoding, sampling::EosPolicy, units};

/// LLaDA's block length.
const BLOCK: usize = 32;
/// Tokens before the canvas.
const PROMPT: u32 = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, caching, window, tokens, lengths @ ..] = &arguments[..] else {
        return Err("MODEL CACHE WINDOW TOKENS_A_PASS LENGTH... are needed".into());
    };
    let tokens: usize = tokens.parse()?;
    let decoding = Decoding {
        kv_cache: caching.parse()?,
        suffix_window: match window.as_str() {
            "all" => None,
            masks => Some(masks.parse()?),
        },
        ..Decoding::default()
    };
    let engine = Engine::start(EngineOptions::default())?;
    let source = Source::Folder(PathBuf::from(model));
    let model = engine.load_now(source, PlanSettings::default())?.id;
    println!("| length | passes | rows a pass | ms a pass, mean | median | most held |");
    println!("|---:|---:|---:|---:|---:|---:|");
    for length in lengths {
        let length: usize = length.parse()?;
        let request = Generate {
            block_length: BLOCK,
            steps: length / tokens,
            eos: EosPolicy::Suppress,
            decoding,
            ..Generate::greedy(model, (1..=PROMPT).collect(), length)
        };
        let (send, events) = mpsc::channel();
        // The receiver lives until the request is over.
        let sink = Box::new(move |event| send.send(event).unwrap_or_default());
        engine.submit(Default::default(), Work::Generate(request), sink)?;
        let (mut rows, mut times) = (0, Vec::new());
        let mut peak = 0;
        for event in events {
            match event {
                Event::Pass(report) => {
                    rows += report.rows;
                    times.push(report.cost.time);
                }
                Event::Finished(Ok(Outcome::Generated(generated))) => {
                    peak = generated.peak_device_bytes;
                }
                Event::Finished(other) => return Err(format!("{other:?}").into()),
                _ => {}
            }
        }
        let passes = times.len();
        let mean = times.iter().sum::<Duration>().as_secs_f64() / passes as f64;
        times.sort_unstable();
        println!(
            "| {length} | {passes} | {:.1} | {:.1} | {:.1} | {} |",
            rows as f64 / passes as f64,
            1000.0 * mean,
            1000.0 * times[passes / 2].as_secs_f64(),
            units::bytes(peak),
        );
    }
    Ok(())
}
