//! What it gains that requests share passes: the same request once, and several times at once.
//!
//! ```sh
//! cargo run -p sluice-engine --example share_passes -- MODEL TOKENS [BUDGET|all] [PROMPT_TOKENS]
//! ```

use std::{error::Error, path::PathBuf, sync::mpsc, time::Instant};

use sluice_engine::{
    Engine, Event, Generate, Options, Outcome, Settings, Work, checkpoint::Source, event::PassCost,
};
use sluice_shared::{sampling::EosPolicy, units};

const AT_ONCE: [usize; 4] = [1, 2, 4, 8];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = PathBuf::from(arguments.next().ok_or("a model is needed")?);
    let tokens = arguments
        .next()
        .ok_or("a number of tokens is needed")?
        .parse()?;
    let budget = arguments.next().filter(|budget| budget != "all");
    let prompt = arguments.next().map_or(Ok(32), |count| count.parse())?;
    let engine = Engine::start(Options {
        parallel: AT_ONCE[AT_ONCE.len() - 1],
        ..Options::default()
    })?;
    let settings = Settings {
        budget_bytes: budget.as_deref().map(units::parse_bytes).transpose()?,
        ..Settings::default()
    };
    let model = engine.load_now(Source::Folder(model), settings)?.id;
    // The first pass reads what later ones find in the system's cache.
    engine.passes(Generate::greedy(model, (1..=prompt).collect(), 2), 2)?;
    let mut alone = None;
    for count in AT_ONCE {
        let (send, events) = mpsc::channel();
        let started = Instant::now();
        for index in 0..count as u32 {
            let request = Generate {
                eos: EosPolicy::Suppress,
                ..Generate::greedy(model, (1 + index..=prompt + index).collect(), tokens)
            };
            let send = send.clone();
            let sink = Box::new(move |event| match event {
                // The receiver lives until all are over.
                Event::Pass(report) => send.send(Ok(report.cost)).unwrap_or_default(),
                Event::Finished(Ok(Outcome::Generated(_))) => {}
                Event::Finished(other) => {
                    send.send(Err(format!("{other:?}"))).unwrap_or_default();
                }
                _ => {}
            });
            engine.submit(Work::Generate(request), sink)?;
        }
        drop(send);
        let costs: Vec<PassCost> = events.into_iter().collect::<Result<_, String>>()?;
        let rate = (count * tokens) as f64 / started.elapsed().as_secs_f64();
        let alone = *alone.get_or_insert(rate);
        let mut times: Vec<_> = costs
            .iter()
            .filter(|cost| cost.requests == count)
            .map(|cost| cost.time)
            .collect();
        times.sort_unstable();
        let median = times
            .get(times.len() / 2)
            .map_or(0.0, |time| time.as_secs_f64());
        println!(
            "{count} at once: {rate:.1} tokens/s, {:.2} times as many; median pass of all {}",
            rate / alone,
            units::duration_ms(1000.0 * median)
        );
    }
    let memory = engine.memory();
    println!("most held at once: {}", units::bytes(memory.peak_bytes));
    Ok(())
}
