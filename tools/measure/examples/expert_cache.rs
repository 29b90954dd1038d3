//! What passes of a mixture of experts read through the expert cache, beside what they would with other caches of as many experts:
//!
//! ```sh
//! cargo run -p sluice-measure --example expert_cache -- MODEL BUDGET [BLOCKS [PROMPT [POLICY [LEVEL [CPU_EXPERTS]]]]]
//! ```
//!
//! A request is decoded under the budget, and what its routers choose is replayed: with a cache that gives up what was used least
//! recently (LRU), with the best there can be, which knows what comes (Belady's), and with none. Replays read nothing ahead. Where the
//! CPU computes some (`auto`), the cache isn't asked for those, and nothing is replayed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    error::Error,
    ops::Range,
    path::PathBuf,
    time::Duration,
};

use sluice_checkpoint::Source;
use sluice_engine::{
    Budget, Engine, EngineOptions, Generate, PlanOptions, PlanSettings,
    event::{PassPhases, PassReport},
};
use sluice_measure::engine_options;
use sluice_ops::{Routing, RoutingLog};
use sluice_plan::Workload;
use sluice_shared::{
    decoding::{Decoding, KvCacheReuse},
    policy::PolicyChoice,
    sampling::{EosPolicy, KvCacheMode},
    units,
};

/// The experts that one layer of one pass goes through, numbered over all layers.
type Visit = Vec<usize>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |name| arguments.next().ok_or(format!("{name} is missing"));
    let folder = PathBuf::from(next("MODEL")?);
    let budget = Budget::Bytes(units::parse_bytes(&next("BUDGET")?)?);
    let blocks: usize = next("BLOCKS").unwrap_or("4".to_owned()).parse()?;
    let prompt: usize = next("PROMPT").unwrap_or("64".to_owned()).parse()?;
    let policy = match next("POLICY") {
        Ok(name) => PolicyChoice::new(&name, [])?,
        Err(_) => PolicyChoice::default(),
    };
    let level = next("LEVEL").unwrap_or("off".to_owned()).parse()?;
    let cpu_experts = next("CPU_EXPERTS").unwrap_or("off".to_owned()).parse()?;

    let log = RoutingLog::default();
    let engine = Engine::start(EngineOptions {
        routing_log: Some(log.clone()),
        ..engine_options()?
    })?;
    let settings = PlanSettings {
        level,
        budget,
        cpu_experts,
        ..PlanSettings::default()
    };
    let model = engine.load_now(Source::Folder(folder), settings)?;
    let blocks_of_model = model.info.mask.and_then(|mask| mask.blocks);
    let block = blocks_of_model.ok_or("the model has no blocks")?.length;
    let workload = Workload::new(prompt + blocks * block, block, 1);
    let asked = engine.plan(&PlanOptions::default(), workload)?;
    let plan = engine.in_force().ok_or("no plan is in force")?.plan;
    let experts = plan.experts.ok_or("the model has no experts")?.shape.count;
    let places = plan.streamed().filter(|group| group.group.is_expert());
    let layers = places.count() / experts;
    let cached = plan.staging.expert_buffers;
    let bytes = plan.staging.expert_buffer_bytes;
    // What the load has measured.
    drop(log.take());

    let request = Generate {
        block_length: block,
        eos: EosPolicy::Suppress,
        policy,
        decoding: Decoding {
            kv_cache: KvCacheReuse {
                mode: KvCacheMode::Blocks,
                ..KvCacheReuse::default()
            },
            ..Decoding::default()
        },
        ..Generate::greedy(model.id, (1..=prompt as u32).collect(), blocks * block)
    };
    let reports = engine.passes(request, usize::MAX)?;
    if cached == 0 {
        println!("all experts are on the device under this budget");
        let (_, steady) = steady(&reports);
        println!("a pass: {}", units::duration_ms(1000.0 * mean_s(steady)));
        print_phases(steady);
        return Ok(());
    }
    let predicted = asked.pass.map(|pass| 1000.0 * pass.total_s());
    if let Some(split) = plan.cpu_experts {
        let (_, steady) = steady(&reports);
        println!(
            "of a layer's touched experts the GPU takes {}, the CPU those with at most {} rows; the cache holds {cached}",
            split.on_gpu, split.rows_max
        );
        print_passes(steady, predicted);
        return Ok(());
    }
    let visits: Vec<Visit> = (log.take().iter().enumerate())
        .map(|(number, routing)| touched(routing, number % layers * experts))
        .collect();
    let touched: u64 = reports
        .iter()
        .map(|report| report.cost.experts.touched)
        .sum();
    if touched as usize != visits.iter().map(Vec::len).sum::<usize>() {
        return Err("the log has not what the cache was asked for".into());
    }

    let of_blocks = by_block(&reports);
    let union = |passes: &Range<usize>| {
        let visits = &visits[passes.start * layers..passes.end * layers];
        let all: BTreeSet<usize> = visits.iter().flatten().copied().collect();
        all.len()
    };
    println!(
        "{layers} layers of {experts} experts of {}; the cache holds {cached}",
        units::bytes(bytes)
    );
    let memory = engine.memory();
    println!(
        "peak: predicted {}, measured {}, budget {}",
        units::bytes(plan.peak_bytes()),
        units::bytes(memory.peak_bytes),
        units::bytes(plan.budget_bytes)
    );
    let replays = [
        reports
            .iter()
            .map(|report| report.cost.experts.read)
            .collect(),
        replay(&visits, layers, cached, Lru::default()),
        replay(&visits, layers, cached, Belady::new(&visits)),
        reports
            .iter()
            .map(|report| report.cost.experts.touched)
            .collect(),
    ];
    println!(
        "block  passes  experts  first pass and each later one read: the cache, LRU, the best, no cache"
    );
    for (number, passes) in of_blocks.iter().enumerate() {
        let union = union(passes);
        print!("{number:5}  {:6}  {union:7}", passes.len());
        for reads in &replays {
            let reads = &reads[passes.clone()];
            let later: u64 = reads[1..].iter().sum();
            let each = later as f64 / (reads.len() - 1).max(1) as f64;
            print!("  {:6} {each:7.1}", reads[0]);
        }
        println!("  cache / experts {:.2}", cached as f64 / union as f64);
    }
    let (after, steady) = steady(&reports);
    let tokens = ((of_blocks.len() - 1) * block).max(1);
    for (name, reads) in ["the cache", "LRU", "the best", "no cache"]
        .iter()
        .zip(&replays)
    {
        let read: u64 = reads[after..].iter().sum();
        println!(
            "{name}: {} a token after the first block, {} a pass",
            units::bytes(read * bytes / tokens as u64),
            units::bytes(read * bytes / (reports.len() - after).max(1) as u64)
        );
    }
    print_passes(steady, predicted);
    Ok(())
}

/// How long these passes took, beside the prediction in milliseconds, and where their experts were.
fn print_passes(passes: &[PassReport], predicted: Option<f64>) {
    let waited: f64 = (passes.iter())
        .map(|report| report.cost.waited.as_secs_f64())
        .sum();
    let sum = |of: &dyn Fn(&PassReport) -> u64| passes.iter().map(of).sum::<u64>() as f64;
    let touched = sum(&|report| report.cost.experts.touched);
    println!(
        "a pass: predicted {}, measured {}, waited {}; of the experts {:.1} % were there, {:.1} % read ahead, {:.1} % missed, {:.1} % the CPU's",
        predicted.map_or("unknown".to_owned(), units::duration_ms),
        units::duration_ms(1000.0 * mean_s(passes)),
        units::duration_ms(1000.0 * waited / passes.len().max(1) as f64),
        100.0 * sum(&|report| report.cost.experts.hits) / touched,
        100.0 * sum(&|report| report.cost.experts.fetched_ahead) / touched,
        100.0 * sum(&|report| report.cost.experts.missed) / touched,
        100.0 * sum(&|report| report.cost.experts.computed_by_cpu) / touched,
    );
    print_phases(passes);
}

/// The passes after the first block, and how many there are before: what that block reads, an empty cache would, too.
fn steady(reports: &[PassReport]) -> (usize, &[PassReport]) {
    let before = by_block(reports).first().map_or(0, |passes| passes.end);
    (before, &reports[before..])
}

/// The mean time of these passes in seconds.
fn mean_s(reports: &[PassReport]) -> f64 {
    let times = reports.iter().map(|report| report.cost.time.as_secs_f64());
    times.sum::<f64>() / reports.len().max(1) as f64
}

/// Where the time of passes goes, but for what they waited.
fn print_phases(reports: &[PassReport]) {
    let phases = || reports.iter().filter_map(|report| report.cost.phases);
    let mean = |of: fn(&PassPhases) -> Duration| {
        let sum: f64 = phases().map(|phases| of(&phases).as_secs_f64()).sum();
        units::duration_ms(1000.0 * sum / phases().count().max(1) as f64)
    };
    println!(
        "of it: matmuls {}, attention {}, LM head {}, decompression {}, all else {}",
        mean(|phases| phases.matmul),
        mean(|phases| phases.attention),
        mean(|phases| phases.lm_head),
        mean(|phases| phases.decompress),
        mean(|phases| phases.other),
    );
}

fn touched(routing: &Routing, first: usize) -> Visit {
    let experts = 0..routing.experts();
    let touched = experts.filter(|&expert| !routing.places(expert).is_empty());
    touched.map(|expert| first + expert).collect()
}

/// The passes of each block; those that a prompt alone goes through count to the first one.
fn by_block(reports: &[PassReport]) -> Vec<Range<usize>> {
    let mut blocks: Vec<Range<usize>> = Vec::new();
    for (number, report) in reports.iter().enumerate() {
        if blocks.len() <= report.block {
            blocks.push(number..number);
        }
        blocks[report.block].end = number + 1;
    }
    blocks
}

/// What a cache gives up when it is full.
trait Eviction {
    /// Takes in that an expert is used, as the `number`th use of all.
    fn used(&mut self, expert: usize, number: usize);
    /// Takes out the expert that goes.
    fn victim(&mut self) -> usize;
}

/// What was used longest ago.
#[derive(Default)]
struct Lru {
    last: HashMap<usize, usize>,
    order: BTreeMap<usize, usize>,
}

impl Eviction for Lru {
    fn used(&mut self, expert: usize, number: usize) {
        if let Some(before) = self.last.insert(expert, number) {
            self.order.remove(&before);
        }
        self.order.insert(number, expert);
    }

    fn victim(&mut self) -> usize {
        let (_, expert) = self.order.pop_first().expect("a full cache");
        self.last.remove(&expert);
        expert
    }
}

/// What is used again last (L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", 1966).
struct Belady {
    /// For each use of all, when the same expert is used next.
    next: Vec<usize>,
    order: BTreeMap<usize, usize>,
}

impl Belady {
    fn new(visits: &[Visit]) -> Self {
        let uses: Vec<usize> = visits.iter().flatten().copied().collect();
        let mut later = HashMap::new();
        // An expert that isn't used again has an end of its own.
        let mut next: Vec<usize> = (0..uses.len()).map(|number| uses.len() + number).collect();
        for (number, expert) in uses.iter().enumerate().rev() {
            if let Some(again) = later.insert(*expert, number) {
                next[number] = again;
            }
        }
        let order = BTreeMap::new();
        Self { next, order }
    }
}

impl Eviction for Belady {
    fn used(&mut self, expert: usize, number: usize) {
        self.order.remove(&number);
        self.order.insert(self.next[number], expert);
    }

    fn victim(&mut self) -> usize {
        self.order.pop_last().expect("a full cache").1
    }
}

/// How many experts each pass reads with a cache of this many.
fn replay(visits: &[Visit], layers: usize, cached: usize, mut eviction: impl Eviction) -> Vec<u64> {
    let mut held = BTreeSet::new();
    let mut number = 0;
    let mut reads = Vec::new();
    for pass in visits.chunks(layers) {
        let mut read = 0;
        for &expert in pass.iter().flatten() {
            if !held.contains(&expert) {
                read += 1;
                if held.len() == cached {
                    held.remove(&eviction.victim());
                }
                held.insert(expert);
            }
            eviction.used(expert, number);
            number += 1;
        }
        reads.push(read);
    }
    reads
}
