//! Whether requests leave anything behind: a GPU's free memory before many of them and after, as the driver reports it,
//! and the engine's ledger.

use std::{
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use sluice_checkpoint::{
    Source,
    synth::{SynthDType, SynthOptions, SynthRouter},
};
use sluice_engine::{
    Engine, EngineError, EngineOptions, Generate, ModelId, Outcome, PlanOptions, Work,
    check::CheckResult,
};
use sluice_formats::DType;
use sluice_ops::device::{self, DeviceChoice};
use sluice_shared::{
    decoding::{Decoding, KvCacheReuse},
    sampling::{EosPolicy, KvCacheMode},
};
use sluice_weights::{LayerKind, Shape, TensorNaming};

use super::{
    Deadline, Failure,
    memory::{Peak, Watch, tolerance_bytes},
    scratch::Scratch,
};

/// How many requests are answered between two looks at memory; no two of them are alike.
const ROUND: usize = 10;
/// Requests that are answered before the first look: drivers keep what they need for the first launches.
const WARM_UP: usize = ROUND;
/// How long after an answer a request's memory may take to be free again.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long after which it surely is, and below how often it is checked.
const REST: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(1);
/// What a driver may keep or free of its own meanwhile: it allocates in pieces of 2 MiB. Leaks of a thousand requests
/// soon exceed this.
const DRIVERS_OWN_BYTES: u64 = 16 << 20;
/// Most figures that are printed where some differ.
const TOLD_MAX: usize = 8;

/// Requests to a small model of random weights.
pub(super) struct Requests {
    count: usize,
    device: DeviceChoice,
    number: Option<DType>,
}

/// Memory at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Moment {
    /// Requests that were answered before.
    answered: usize,
    /// By the driver; `None` on the CPU.
    free_bytes: Option<u64>,
    /// By the engine's ledger.
    held_bytes: u64,
}

/// Free and held memory over the requests.
#[derive(Debug, Default)]
struct Moments {
    /// Before the model was loaded, and after it was unloaded.
    ends: Option<(Option<u64>, Option<u64>)>,
    /// After the warm-up, and after each round of requests.
    during: Vec<Moment>,
    /// The peak meanwhile.
    peak: Option<Peak>,
}

impl Requests {
    /// So many requests to this device.
    pub(super) fn new(count: usize, device: DeviceChoice, number: Option<DType>) -> Self {
        Self {
            count,
            device,
            number,
        }
    }

    /// Answers them; returns the figures, and the checks that memory stayed as it was and that the peak was planned.
    /// `device` stays open all the while.
    pub(super) fn answer(
        &self,
        device: &device::Device,
        deadline: Deadline,
    ) -> (Value, Vec<CheckResult>) {
        let mut moments = Moments::default();
        let watch = Watch::new(device);
        let answered = watch.during(|| self.answer_all(&watch, deadline, &mut moments));
        let checks = match &answered {
            Ok(()) => {
                let peak = moments.peak.as_ref().and_then(peak_check);
                moments.checks().into_iter().chain(peak).collect()
            }
            Err(failure) => vec![CheckResult::failed("requests", failure)],
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
        let options = EngineOptions {
            device: self.device,
            compute_dtype: self.number,
            ..EngineOptions::default()
        };
        let source = Source::Folder(model);
        // Twice: what the first engine leaves behind is the driver's, what the second one leaves is a leak.
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
                // The last request's memory is still being freed.
                thread::sleep(REST);
                let first = look(0);
                moments.during.push(first);
                for index in 0..self.count {
                    if deadline.is_over() {
                        break;
                    }
                    answer(&engine, id, index)?;
                    if (index + 1) % ROUND == 0 || index + 1 == self.count {
                        let last = *moments.during.last().unwrap_or(&first);
                        let now = settled(first, last, || look(index + 1));
                        moments.during.push(now);
                    }
                }
            }
            moments.peak = Some(peak(&engine, id, watch)?);
            engine.stop();
            drop(engine);
            watch.begin_anew();
            moments.ends = is_warm.then(|| (before, watch.free_bytes()));
        }
        Ok(())
    }
}

/// The peak so far, beside the largest plan of any of these requests.
fn peak(engine: &Engine, model: ModelId, watch: &Watch<'_>) -> Result<Peak, EngineError> {
    let now = engine.in_force().ok_or(EngineError::NoModel)?;
    let working = (0..ROUND).map(|index| {
        let workload = Work::Generate(request(model, index)).workload();
        let plan = engine.plan(&PlanOptions::default(), workload)?;
        Ok(plan.working.total_bytes())
    });
    let working: Vec<u64> = working.collect::<Result<_, EngineError>>()?;
    let working_bytes = working.into_iter().max().unwrap_or(0);
    let counted = |bytes| watch.counted(bytes, engine.device());
    let plan_bytes = counted(now.plan.weight_bytes() + working_bytes);
    Ok(Peak {
        budget_bytes: None,
        plan_bytes,
        account_bytes: counted(now.passes.peak_bytes),
        driver_bytes: watch.most_held_bytes(),
        tolerance_bytes: tolerance_bytes(plan_bytes, now.plan.groups.len()),
        unplanned_bytes: watch.unplanned_bytes(),
    })
}

/// Whether the driver held what was planned; `None` where it does not report that.
fn peak_check(peak: &Peak) -> Option<CheckResult> {
    let share = |bytes: u64| bytes as f64 / peak.plan_bytes as f64;
    Some(CheckResult {
        name: "requests: most held by the driver's account, beside the plan".to_owned(),
        error: share(peak.driver_bytes?.abs_diff(peak.plan_bytes)),
        tolerance: share(peak.tolerance_bytes),
        cause: peak.faults().first().map(ToString::to_string),
    })
}

/// Waits until memory is as it was at first, but not for ever, and not at all where it was already different last time.
fn settled(first: Moment, last: Moment, look: impl Fn() -> Moment) -> Moment {
    let begun = Instant::now();
    loop {
        let now = look();
        if now.is_like(&first) || !last.is_like(&first) || begun.elapsed() > PATIENCE {
            return now;
        }
        thread::sleep(PAUSE);
    }
}

/// The difference of two of the driver's figures; 0 where one is missing.
fn apart(one: Option<u64>, other: Option<u64>) -> u64 {
    one.zip(other).map_or(0, |(one, other)| one.abs_diff(other))
}

impl Moment {
    /// Whether as much is held, and as much is free apart from the driver's own.
    fn is_like(&self, other: &Self) -> bool {
        self.held_bytes == other.held_bytes
            && apart(self.free_bytes, other.free_bytes) <= DRIVERS_OWN_BYTES
    }
}

impl Moments {
    /// Bytes that were not freed, at the worst moment, by our ledger and by the driver.
    fn checks(&self) -> Vec<CheckResult> {
        let Some((first, during)) = self.during.split_first() else {
            return vec![CheckResult {
                name: "requests: none was answered".to_owned(),
                error: f64::NAN,
                tolerance: 0.0,
                cause: None,
            }];
        };
        let worst = |of: &dyn Fn(&Moment) -> u64| during.iter().map(of).max().unwrap_or(0);
        let held = worst(&|moment| first.held_bytes.abs_diff(moment.held_bytes));
        let at_ends = self.ends.map_or(0, |(before, after)| apart(before, after));
        let free = worst(&|moment| apart(first.free_bytes, moment.free_bytes)).max(at_ends);
        let answered = during.last().map_or(0, |last| last.answered);
        let check = |whose: &str, worst: u64, tolerance: u64| CheckResult {
            name: format!("{answered} requests: bytes not given back, by {whose}"),
            error: worst as f64,
            tolerance: tolerance as f64,
            cause: (worst > tolerance).then(|| self.figures(*first, at_ends)),
        };
        vec![
            check("our account", held, 0),
            check("the driver's", free, DRIVERS_OWN_BYTES),
        ]
    }

    /// The moments that differ from the first, and the ends where they differ.
    fn figures(&self, first: Moment, at_ends: u64) -> String {
        let mut figures = vec![first.words()];
        let odd = self.during.iter().filter(|moment| !moment.is_like(&first));
        figures.extend(odd.take(TOLD_MAX).map(Moment::words));
        if at_ends > DRIVERS_OWN_BYTES {
            let (before, after) = self.ends.unwrap_or_default();
            figures.push(format!(
                "free before the model was loaded {}, after it was unloaded {}",
                bytes(before),
                bytes(after)
            ));
        }
        figures.push("memory of other programs on the GPU counts, too".to_owned());
        figures.join("; ")
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

/// To the byte, since bytes are what differs.
fn bytes(count: Option<u64>) -> String {
    count.map_or_else(|| "unknown".to_owned(), |count| count.to_string())
}

/// A model as small as possible that takes every path through the layers.
fn synthesis() -> SynthOptions {
    SynthOptions {
        shape: Shape {
            naming: TensorNaming::Llada,
            layers: 2,
            hidden_size: 128,
            attention_heads: 2,
            kv_heads: 2,
            head_dim: 64,
            intermediate_size: 256,
            padded_vocab_size: 512,
            context_length: 128,
            causal: false,
            tied: false,
            biases: false,
            qk_norms: false,
            layer_kind: LayerKind::Attention,
        },
        dtype: SynthDType::Bf16,
        seed: 1,
        family: None,
        router: SynthRouter::default(),
        threads: 1,
    }
}

/// One of the requests of a round: canvases, blocks and KV caches differ.
fn request(model: ModelId, index: usize) -> Generate {
    let turn = index % ROUND;
    let kinds = [KvCacheMode::None, KvCacheMode::Prefix, KvCacheMode::Dual];
    let caching = KvCacheReuse {
        mode: kinds[turn % kinds.len()],
        ..KvCacheReuse::default()
    };
    let (prompt, length, block) = (5 + 3 * turn, 8 + 4 * (turn % 3), 4);
    Generate {
        block_length: block,
        steps: length / block,
        eos: EosPolicy::Suppress,
        decoding: Decoding {
            kv_cache: caching,
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
            ends: Some((Some(1000 << 20), Some(after))),
            during: during.to_vec(),
            peak: None,
        }
    }

    #[test]
    fn whatever_is_not_given_back_fails_the_check_with_the_figures() {
        const MIB: u64 = 1 << 20;
        let steady = [moment(0, 700 * MIB, 30), moment(10, 690 * MIB, 30)];
        let passes = |moments: &Moments| moments.checks().iter().all(CheckResult::passes);
        assert!(passes(&moments(&steady, 1000 * MIB)));
        let wrong = [
            moments(
                &[steady[0], steady[1], moment(20, 650 * MIB, 30)],
                1000 * MIB,
            ),
            moments(
                &[steady[0], steady[1], moment(20, 700 * MIB, 31)],
                1000 * MIB,
            ),
            moments(&steady, 950 * MIB),
            Moments::default(),
        ];
        for moments in &wrong {
            assert!(!passes(moments), "{moments:?}");
        }
        let causes: Vec<_> = wrong[0]
            .checks()
            .into_iter()
            .filter_map(|check| check.cause)
            .collect();
        let free = 650 * MIB;
        assert!(
            causes[0].contains(&format!("after 20 requests {free} free")),
            "{causes:?}"
        );
        assert!(
            causes.len() == 1 && !causes[0].contains("after 10 requests"),
            "{causes:?}"
        );
        assert_eq!(wrong[2].checks()[1].error, (50 * MIB) as f64);
    }
}
