//! Whether requests leave anything behind: the memory that is free on a card before many of them and after, as the driver
//! tells, and what the engine accounts for.

use std::{
    iter,
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use sluice_engine::{
    Change, Engine, EngineError, Generate, ModelId, Options, Outcome, Work,
    check::Check,
    checkpoint::{
        Source,
        synth::{Element, Synthesis},
    },
    device::{self, Choice, Number},
    model::shape::{Naming, Shape},
};
use sluice_shared::{
    decoding::{Caching, Decoding},
    sampling::{Cache, EosPolicy},
};

use super::{
    Deadline, Failure,
    memory::{Peak, Watch, tolerance_bytes},
    scratch::Scratch,
};

/// Memory is looked at after so many requests, no two of which are alike.
const ROUND: usize = 10;
/// Some of them are answered before anything is looked at: drivers keep what they need for the first launches.
const WARM_UP: usize = ROUND;
/// What a request held is free again so soon after its answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// And surely by then.
const REST: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(1);
/// The figures that are told where some differ.
const TOLD_MAX: usize = 8;

/// Requests to a small model of random weights.
pub(super) struct Requests {
    count: usize,
    device: Choice,
    number: Option<Number>,
}

/// Bytes at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Moment {
    /// Requests answered by then.
    answered: usize,
    /// As the driver tells; nothing on the CPU.
    free_bytes: Option<u64>,
    /// By the engine's account.
    held_bytes: u64,
}

/// What was free and held as requests went by.
#[derive(Debug, Default)]
struct Moments {
    /// Before the model was loaded, and after it was unloaded.
    ends: Option<(Option<u64>, Option<u64>)>,
    /// After the first requests, and after each round of them.
    during: Vec<Moment>,
    /// The most that was held meanwhile.
    peak: Option<Peak>,
}

impl Requests {
    /// So many, to this device.
    pub(super) fn new(count: usize, device: Choice, number: Option<Number>) -> Self {
        Self {
            count,
            device,
            number,
        }
    }

    /// Answers them, and tells what was free when, whether that stayed as it was, and whether the most that was held was
    /// planned. `device` stays open all the while.
    pub(super) fn answer(
        &self,
        device: &device::Device,
        deadline: Deadline,
    ) -> (Value, Vec<Check>) {
        let mut moments = Moments::default();
        let watch = Watch::new(device);
        let answered = watch.during(|| self.answer_all(&watch, deadline, &mut moments));
        let checks = match &answered {
            Ok(()) => {
                let peak = moments.peak.as_ref().and_then(peak_check);
                iter::once(moments.check()).chain(peak).collect()
            }
            Err(failure) => vec![Check::failed("requests", failure)],
        };
        (moments.json(), checks)
    }

    fn answer_all(
        &self,
        watch: &Watch<'_>,
        deadline: Deadline,
        moments: &mut Moments,
    ) -> Result<(), Failure> {
        let scratch = Scratch::new()?;
        let model = scratch.path().join("model");
        let never = AtomicBool::new(false);
        synthesis().write(&model, &never, &mut |_, _| {})?;
        let options = Options {
            device: self.device,
            number: self.number,
            ..Options::default()
        };
        let source = Source::Folder(model);
        for is_warm in [false, true] {
            let before = watch.free_bytes();
            let engine = Engine::start(options.clone())?;
            let id = engine.load_now(source.clone(), options.settings)?.id;
            // Rates were measured before, in memory that is free again.
            watch.begin();
            for index in 0..WARM_UP {
                answer(&engine, id, index)?;
            }
            if is_warm {
                let look = |answered| Moment {
                    answered,
                    free_bytes: watch.free_bytes(),
                    held_bytes: engine.memory().used_bytes,
                };
                // What the last of them held is on its way back.
                thread::sleep(REST);
                let first = look(0);
                moments.during.push(first);
                for index in 0..self.count {
                    if deadline.is_over() {
                        break;
                    }
                    answer(&engine, id, index)?;
                    if (index + 1) % ROUND == 0 || index + 1 == self.count {
                        moments.during.push(settled(first, || look(index + 1)));
                    }
                }
            }
            moments.peak = Some(peak(&engine, id, watch)?);
            engine.stop();
            drop(engine);
            moments.ends = is_warm.then(|| (before, watch.free_bytes()));
        }
        Ok(())
    }
}

/// The most that was held by now, beside the most that is planned for any of these requests.
fn peak(engine: &Engine, model: ModelId, watch: &Watch<'_>) -> Result<Peak, EngineError> {
    let now = engine.in_force().ok_or(EngineError::NoModel)?;
    let working = (0..ROUND).map(|index| {
        let workload = Work::Generate(request(model, index)).workload();
        let plan = engine.plan(&Change::default(), workload)?;
        Ok(plan.working.total_bytes())
    });
    let working: Vec<u64> = working.collect::<Result<_, EngineError>>()?;
    let working_bytes = working.into_iter().max().unwrap_or(0);
    let counted = |bytes| watch.counted(bytes, engine.device());
    let plan_bytes = counted(now.plan.weight_bytes() + working_bytes);
    Ok(Peak {
        budget_bytes: None,
        plan_bytes,
        account_bytes: counted(now.measured.peak_bytes),
        driver_bytes: watch.most_held_bytes(),
        tolerance_bytes: tolerance_bytes(plan_bytes, now.plan.units.len()),
    })
}

/// Whether the driver held what was planned; nothing where it doesn't tell.
fn peak_check(peak: &Peak) -> Option<Check> {
    let share = |bytes: u64| bytes as f64 / peak.plan_bytes as f64;
    Some(Check {
        name: "requests: most held by the driver's account, beside the plan".to_owned(),
        error: share(peak.driver_bytes?.abs_diff(peak.plan_bytes)),
        tolerance: share(peak.tolerance_bytes),
        cause: peak.faults().first().map(ToString::to_string),
    })
}

/// What is free and held once that is as it was, or after a while that it isn't.
fn settled(first: Moment, look: impl Fn() -> Moment) -> Moment {
    let begun = Instant::now();
    loop {
        let now = look();
        if now.is_like(&first) || begun.elapsed() > PATIENCE {
            return now;
        }
        thread::sleep(PAUSE);
    }
}

impl Moment {
    fn is_like(&self, other: &Self) -> bool {
        (self.free_bytes, self.held_bytes) == (other.free_bytes, other.held_bytes)
    }
}

impl Moments {
    /// Bytes that were not given back, at the worst moment.
    fn check(&self) -> Check {
        let Some((first, during)) = self.during.split_first() else {
            return Check {
                name: "requests: none was answered".to_owned(),
                error: f64::NAN,
                tolerance: 0.0,
                cause: None,
            };
        };
        let apart = |one: Option<u64>, other: Option<u64>| {
            one.zip(other).map_or(0, |(one, other)| one.abs_diff(other))
        };
        let of = |moment: &Moment| {
            apart(first.free_bytes, moment.free_bytes)
                .max(first.held_bytes.abs_diff(moment.held_bytes))
        };
        let at_ends = self.ends.map_or(0, |(before, after)| apart(before, after));
        let worst = during.iter().map(of).max().unwrap_or(0).max(at_ends);
        let odd = during.iter().filter(|moment| !moment.is_like(first));
        let cause = (worst > 0).then(|| {
            let mut figures = vec![first.words()];
            figures.extend(odd.take(TOLD_MAX).map(Moment::words));
            if at_ends > 0 {
                let (before, after) = self.ends.unwrap_or_default();
                figures.push(format!(
                    "free before the model was loaded {}, after it was unloaded {}",
                    bytes(before),
                    bytes(after)
                ));
            }
            figures.push("memory of other programs on the card counts, too".to_owned());
            figures.join("; ")
        });
        Check {
            name: format!(
                "{} requests: bytes not given back",
                during.last().map_or(0, |last| last.answered)
            ),
            error: worst as f64,
            tolerance: 0.0,
            cause,
        }
    }

    fn json(&self) -> Value {
        let during: Vec<Value> = (self.during.iter())
            .map(|moment| {
                json!({
                    "answered": moment.answered,
                    "free_bytes": moment.free_bytes,
                    "held_bytes": moment.held_bytes,
                })
            })
            .collect();
        json!({
            "free_before_bytes": self.ends.and_then(|(before, _)| before),
            "free_after_bytes": self.ends.and_then(|(_, after)| after),
            "during": during,
            "peak": self.peak.as_ref().map(Peak::json),
        })
    }
}

impl Moment {
    fn words(&self) -> String {
        format!(
            "after {} requests {} free, {} held",
            self.answered,
            bytes(self.free_bytes),
            self.held_bytes
        )
    }
}

/// To the byte, since that is what differs.
fn bytes(count: Option<u64>) -> String {
    count.map_or_else(|| "unknown".to_owned(), |count| count.to_string())
}

/// As small as a model can be that takes every way through the layers.
fn synthesis() -> Synthesis {
    Synthesis {
        shape: Shape {
            naming: Naming::Llada,
            layers: 2,
            width: 128,
            heads: 2,
            kv_heads: 2,
            head_dim: 64,
            mlp_width: 256,
            embedding_rows: 512,
            context_length: 128,
            causal: false,
            tied: false,
            biases: false,
        },
        element: Element::Bf16,
        seed: 1,
        threads: 1,
    }
}

/// One of the requests of a round: canvases, blocks and what is kept differ.
fn request(model: ModelId, index: usize) -> Generate {
    let turn = index % ROUND;
    let kinds = [Cache::None, Cache::Prefix, Cache::Dual];
    let caching = Caching {
        kind: kinds[turn % kinds.len()],
        ..Caching::default()
    };
    let (prompt, length, block) = (5 + 3 * turn, 8 + 4 * (turn % 3), 4);
    Generate {
        block_length: block,
        steps: length / block,
        eos: EosPolicy::Suppress,
        decoding: Decoding {
            caching,
            ..Decoding::default()
        },
        ..Generate::greedy(model, (1..=prompt as u32).collect(), length)
    }
}

fn answer(engine: &Engine, model: ModelId, index: usize) -> Result<(), Failure> {
    match engine.run(Work::Generate(request(model, index)))? {
        Outcome::Generated(_) => Ok(()),
        other => unreachable!("asked to generate: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(answered: usize, free: u64, held: u64) -> Moment {
        Moment {
            answered,
            free_bytes: Some(free),
            held_bytes: held,
        }
    }

    fn moments(during: &[Moment], after: u64) -> Moments {
        Moments {
            ends: Some((Some(1000), Some(after))),
            during: during.to_vec(),
            peak: None,
        }
    }

    #[test]
    fn whatever_is_not_given_back_fails_the_check_with_the_figures() {
        let steady = [moment(0, 700, 30), moment(10, 700, 30)];
        assert!(moments(&steady, 1000).check().passes());
        let wrong = [
            moments(&[steady[0], steady[1], moment(20, 650, 30)], 1000),
            moments(&[steady[0], steady[1], moment(20, 700, 80)], 1000),
            moments(&steady, 950),
            Moments::default(),
        ];
        for moments in &wrong {
            assert!(!moments.check().passes(), "{moments:?}");
        }
        let cause = wrong[0].check().cause.unwrap();
        assert!(cause.contains("after 20 requests 650 free"), "{cause}");
        assert!(!cause.contains("after 10 requests"), "{cause}");
        assert_eq!(wrong[2].check().error, 50.0);
    }
}
