//! The gain of batching: the same request once, and several times in one batch, beside what the plan's formula allows.
//!
//! ```sh
//! cargo run -p sluice-measure --example share_passes -- MODEL TOKENS [BUDGET|all] [PROMPT_TOKENS] [READ_LIMIT]
//! ```
//!
//! A pass takes as long as the longer of streaming, S, and arithmetic, C1 of one request and Cn of n, so that n at once may
//! get n · max(S, C1) / max(S, Cn) as many tokens as one. S is the plan's; C1 and Cn are measured first, with all weights in
//! memory that have room there, as the time of a pass less what it waited for weights.

use std::{
    error::Error,
    path::{Path, PathBuf},
    sync::mpsc,
    time::{Duration, Instant},
};

use sluice_checkpoint::Source;
use sluice_engine::{
    Engine, EngineOptions, Event, Generate, Outcome, PlanSettings, Work, event::PassCost,
};
use sluice_shared::{sampling::EosPolicy, units};

const AT_ONCE: [usize; 3] = [1, 4, 16];
/// Few passes, so that measuring a slow link does not take long.
const TOKENS_A_PASS: usize = 2;

/// What all requests have in common.
#[derive(Clone, Copy)]
struct Shape {
    prompt: u32,
    tokens: usize,
}

/// The measurements of so many requests at once.
struct Measured {
    tokens_per_s: f64,
    /// Medians of the passes that all requests shared, in seconds.
    pass_s: f64,
    arithmetic_s: f64,
    /// Seconds of reading, predicted by the plan.
    streaming_s: f64,
    streamed_bytes: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = PathBuf::from(arguments.next().ok_or("a model is needed")?);
    let tokens = arguments
        .next()
        .ok_or("a number of tokens is needed")?
        .parse()?;
    let budget = arguments.next().filter(|budget| budget != "all");
    let prompt = arguments.next().map_or(Ok(32), |count| count.parse())?;
    let limit = arguments.next().map(|rate| units::parse_bandwidth(&rate));
    let shape = Shape { prompt, tokens };
    let engine = Engine::start(EngineOptions {
        parallel: AT_ONCE[AT_ONCE.len() - 1],
        disk_read_limit_bytes_per_s: limit.transpose()?,
        ..EngineOptions::default()
    })?;
    let resident = measure(&engine, &model, None, shape)?;
    let measured = match budget.as_deref().map(units::parse_bytes).transpose()? {
        Some(budget) => &measure(&engine, &model, Some(budget), shape)?,
        None => &resident,
    };
    for ((count, one), own) in AT_ONCE.into_iter().zip(measured).zip(&resident) {
        let streaming_s = measured[0].streaming_s;
        let longer = |arithmetic_s: f64| streaming_s.max(arithmetic_s);
        let gain = one.tokens_per_s / measured[0].tokens_per_s;
        let gain_allowed =
            count as f64 * longer(resident[0].arithmetic_s) / longer(own.arithmetic_s);
        let allowed = (count * TOKENS_A_PASS) as f64 / longer(own.arithmetic_s);
        println!(
            "{count} at once: {:.1} tokens/s of {allowed:.1} ({:.2}), {gain:.2} times as many of {gain_allowed:.2} ({:.2})",
            one.tokens_per_s,
            one.tokens_per_s / allowed,
            gain / gain_allowed,
        );
        let ms = |seconds: f64| units::duration_ms(1000.0 * seconds);
        println!(
            "  a pass of all {}, S = {}, C{count} = {}, streamed {}",
            ms(one.pass_s),
            ms(one.streaming_s),
            ms(own.arithmetic_s),
            units::bytes(one.streamed_bytes),
        );
    }
    let memory = engine.memory();
    println!("most held at once: {}", units::bytes(memory.peak_bytes));
    Ok(())
}

/// Each number of requests at once, within this budget.
fn measure(
    engine: &Engine,
    model: &Path,
    budget_bytes: Option<u64>,
    shape: Shape,
) -> Result<Vec<Measured>, Box<dyn Error>> {
    let settings = PlanSettings {
        budget: budget_bytes.into(),
        ..PlanSettings::default()
    };
    let model = engine
        .load_now(Source::Folder(model.to_owned()), settings)?
        .id;
    let request = |index: u32| Generate {
        eos: EosPolicy::Suppress,
        steps: shape.tokens.div_ceil(TOKENS_A_PASS),
        ..Generate::greedy(
            model,
            (1 + index..=shape.prompt + index).collect(),
            shape.tokens,
        )
    };
    // The first pass reads what later ones find in the system's cache.
    engine.passes(request(0), 1)?;
    let all = AT_ONCE.map(|count| {
        let (send, events) = mpsc::channel();
        let started = Instant::now();
        for index in 0..count as u32 {
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
            engine.submit(Default::default(), Work::Generate(request(index)), sink)?;
        }
        drop(send);
        let costs: Vec<PassCost> = events.into_iter().collect::<Result<_, String>>()?;
        let took = started.elapsed();
        let plan = engine.in_force().ok_or("no plan is in force")?.plan;
        let shared = || costs.iter().filter(|cost| cost.batch_requests == count);
        Ok(Measured {
            tokens_per_s: (count * shape.tokens) as f64 / took.as_secs_f64(),
            pass_s: median(shared().map(|cost| cost.time)),
            arithmetic_s: median(shared().map(|cost| cost.time.saturating_sub(cost.waited))),
            streaming_s: plan.pass.ok_or("nothing was measured")?.reader_s,
            streamed_bytes: plan.streamed_bytes(),
        })
    });
    all.into_iter().collect()
}

/// The median in seconds; 0 of none.
fn median(times: impl Iterator<Item = Duration>) -> f64 {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    times
        .get(times.len() / 2)
        .map_or(0.0, |time| time.as_secs_f64())
}
