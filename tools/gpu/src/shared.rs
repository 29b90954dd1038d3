//! What is gained when requests share passes whose time is that of streaming.

use std::{sync::mpsc, time::Instant};

use serde_json::{Value, json};
use sluice_engine::{Engine, EngineError, Event, Generate, ModelId, Work, event::PassCost};
use sluice_shared::{sampling::EosPolicy, units};

use super::Deadline;

/// Positions of a prompt, and of an answer, unless the model's context is shorter.
const PROMPT: usize = 32;
const ANSWER: usize = 32;
/// Few passes, so that measuring a slow bus does not take long.
const TOKENS_A_PASS: usize = 2;

/// Times the same request alone, and several at once for each count.
pub(super) fn together(
    engine: &Engine,
    model: ModelId,
    counts: &[usize],
    deadline: Deadline,
) -> Result<Value, EngineError> {
    let context = (engine.model()).map_or(0, |loaded| loaded.info.context_length);
    let answer = ANSWER.min(context / 2);
    let prompt = PROMPT.min(context - answer);
    let request = |index: usize| Generate {
        eos: EosPolicy::Suppress,
        steps: answer.div_ceil(TOKENS_A_PASS),
        ..Generate::greedy(
            model,
            (1 + index as u32..=(prompt + index) as u32).collect(),
            answer,
        )
    };
    // The first pass reads what later ones find in the host's memory.
    engine.passes(request(0), 1)?;
    let mut found: Vec<Value> = Vec::new();
    let mut first_per_s = None;
    for &count in counts {
        if deadline.is_over() {
            break;
        }
        let begun = Instant::now();
        let costs = run(engine, (0..count).map(request))?;
        let tokens_per_s = (count * answer) as f64 / begun.elapsed().as_secs_f64();
        let ratio = tokens_per_s / *first_per_s.get_or_insert(tokens_per_s);
        let of_all = costs.iter().filter(|cost| cost.batch_requests == count);
        let times: Vec<f64> = of_all.map(|cost| cost.time.as_secs_f64()).collect();
        let pass_s = median(&times);
        let most = costs.iter().map(|cost| cost.batch_requests).max();
        eprintln!(
            "{count} at once: {tokens_per_s:.1} tokens/s, {ratio:.2} times the first, {} a pass of all",
            pass_s.map_or_else(|| "no".to_owned(), |s| units::duration_ms(1000.0 * s)),
        );
        found.push(json!({
            "requests": count,
            "tokens_per_s": tokens_per_s,
            "times_the_first": ratio,
            "shared_pass_s": pass_s,
            "most_shared_by": most,
        }));
    }
    Ok(json!(found))
}

/// Runs all of them at once; returns the cost of each pass that each saw.
fn run(
    engine: &Engine,
    requests: impl Iterator<Item = Generate>,
) -> Result<Vec<PassCost>, EngineError> {
    let (send, events) = mpsc::channel();
    for request in requests {
        let send = send.clone();
        let sink = Box::new(move |event| match event {
            // The receiver waits for all of them.
            Event::Pass(report) => drop(send.send(Ok(report.cost))),
            Event::Finished(Err(error)) => drop(send.send(Err(error))),
            _ => {}
        });
        engine.submit(Default::default(), Work::Generate(request), sink)?;
    }
    drop(send);
    events.into_iter().collect()
}

/// The median of some times; `None` of none.
pub(super) fn median(times: &[f64]) -> Option<f64> {
    let mut times = times.to_vec();
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[]), None);
    }
}
