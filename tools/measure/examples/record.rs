//! Records what the engine computes, as figures: to compare before and after a change that should change nothing.
//!
//! ```sh
//! cargo run --release -p sluice-measure --example record -- MODEL... > before.txt
//! ```
//!
//! One line for each thing: logits of every position, plans, events and tokens of requests, resident, streamed and over level
//! switches, and the files that `compress` and `decompress` make. What is long stands as a hash. Kernels differ from processor
//! to processor, so only files of one machine compare.

use std::{
    collections::hash_map::DefaultHasher,
    error::Error,
    fmt::Write as _,
    fs,
    hash::Hasher,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, atomic::AtomicBool, mpsc},
};

use sluice_checkpoint::{
    Source,
    compression::{self, CompressOptions, CompressionMethod, Lossless, compress, decompress},
    family::PUBLISHED_SHAPES,
};
use sluice_engine::{
    ApplyEvent, Budget, Engine, EngineOptions, Event, Generate, Outcome, PlanOptions, PlanSettings,
    Score, Work, check,
    event::{CanvasPosition, TokenState},
    runtime::ModelOutline,
};
use sluice_machine::Profile;
use sluice_ops::{Ops, device::Device, ledger::Ledger};
use sluice_plan::{BLOCK_DEFAULT, Machine, Plan, Workload, transition};
use sluice_shared::{
    decoding::{Decoding, KvCacheReuse},
    level::{EmbeddingPlacement, KvCacheFormat, Level},
    policy::{self, PolicyChoice},
    sampling::{EosPolicy, KvCacheMode, Remasking, Sampling},
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Fixed, since the scratch memory of all threads is part of a plan.
const THREADS: usize = 2;
const TOKENS: usize = 24;
const PROMPT: std::ops::Range<u32> = 3..12;
/// From nothing but streaming to everything resident, for models of any size.
const BUDGETS: [u64; 7] = [
    4 << 20,
    16 << 20,
    64 << 20,
    1 << 30,
    4 << 30,
    12 << 30,
    u64::MAX,
];
const LEVELS: [Level; 5] = [
    Level::Off,
    Level::Mild,
    Level::Standard,
    Level::Moderate,
    Level::Aggressive,
];

fn main() -> Result<()> {
    let models: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if models.is_empty() {
        return Err("a model's folder or file is needed".into());
    }
    for preset in &PUBLISHED_SHAPES {
        let outline = ModelOutline::of_published_shape(preset, machine());
        plans(preset.name, &outline);
    }
    for model in &models {
        let name = model.file_name().unwrap_or_default().to_string_lossy();
        let source = Source::Folder(model.clone());
        plans(&name, &ModelOutline::of_checkpoint(&source, machine())?);
        if model.join("expected.safetensors").exists() {
            logits(&name, model)?;
        }
        requests(&name, model)?;
        if model.is_dir() {
            containers(&name, model)?;
        }
    }
    Ok(())
}

/// A folder for files that are made on the way.
fn scratch() -> PathBuf {
    std::env::temp_dir().join(format!("sluice-record-{}", std::process::id()))
}

fn machine() -> Machine {
    Machine::unmeasured(Profile::cpu(THREADS), u64::MAX)
}

fn hash(bytes: impl AsRef<[u8]>) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes.as_ref());
    format!("{:016x}", hasher.finish())
}

/// Plans of all levels and budgets, and the ways from each to the next.
fn plans(name: &str, outline: &ModelOutline) {
    let mut last: Option<Plan> = None;
    for canvas in [32, 256] {
        for level in LEVELS {
            for budget in BUDGETS {
                let workload = Workload::new(canvas, BLOCK_DEFAULT, 1);
                let line = format!("plan {name} {} {canvas} {budget}", level.name());
                let Ok(plan) = outline.plan(level, budget, workload) else {
                    println!("{line} none");
                    continue;
                };
                println!(
                    "{line} {} {} {} {}",
                    plan.peak_bytes(),
                    plan.resident_bytes(),
                    plan.streamed_bytes(),
                    hash(described(&plan))
                );
                if let Some(last) = last.filter(|last| last.workload == plan.workload) {
                    let steps = transition(&last, &plan);
                    println!("  after the one before: {} steps", steps.len());
                }
                last = Some(plan);
            }
        }
    }
}

/// Everything in a plan that follows from the model and not from the machine.
fn described(plan: &Plan) -> String {
    let mut text = String::new();
    for group in &plan.groups {
        write!(text, "{} {}:", group.tier.name(), group.staging_bytes()).expect("a string grows");
        for tensor in &group.tensors {
            write!(
                text,
                " {} {}+{}x{} {}",
                tensor.tensor,
                tensor.first_row,
                tensor.rows,
                tensor.width,
                tensor.storage.name()
            )
            .expect("a string grows");
        }
        text.push('\n');
    }
    let (slots, working) = (plan.staging, plan.working);
    let numbers = [
        slots.count as u64,
        slots.bytes_each,
        slots.decompress_bytes,
        plan.pinned_bytes,
        working.context_bytes,
        working.tables_bytes,
        working.activation_bytes,
        working.kv_cache_bytes,
        working.logits_bytes,
        working.scratch_bytes,
        working.mlp_rows as u64,
    ];
    write!(text, "{numbers:?}").expect("a string grows");
    text
}

/// The logits of a fixture's texts.
fn logits(name: &str, folder: &Path) -> Result<()> {
    let ops = Ops::new(Device::cpu(THREADS)?, Ledger::default())?;
    let profile = ops.device().profile();
    for level in LEVELS {
        let resident = check::fixture_forwards(folder, &ops, &|shape, sources| {
            check::resident(profile, shape, sources, level).map(Some)
        });
        let Ok(resident) = resident else {
            println!("logits {name} {} none", level.name());
            continue;
        };
        let streamed = check::fixture_forwards(folder, &ops, &|shape, sources| match level {
            Level::Off | Level::Standard => {
                check::streamed(profile, shape, sources, level, 0).map(Some)
            }
            // These are streamed from converted weights, which only an engine makes.
            _ => Ok(None),
        })?;
        for (way, cases) in [("resident", resident), ("streamed", streamed)] {
            for case in cases {
                let bytes: Vec<u8> = case.found.iter().flat_map(|x| x.to_le_bytes()).collect();
                println!(
                    "logits {name} {} {way} {} {} {}",
                    level.name(),
                    case.name,
                    case.found.len(),
                    hash(bytes)
                );
            }
        }
    }
    Ok(())
}

/// Answers of all kinds with everything resident, then some while streaming and at other levels.
fn requests(name: &str, model: &Path) -> Result<()> {
    let engine = Engine::start(EngineOptions {
        threads: THREADS,
        weight_cache: Some(scratch().join("copies")),
        ..EngineOptions::default()
    })?;
    let settings = PlanSettings {
        kv_cache_format: KvCacheFormat::F32,
        ..PlanSettings::default()
    };
    engine.load_now(Source::Folder(model.to_owned()), settings)?;
    let plain = plain(&engine);
    for (what, request) in kinds(&engine, &plain) {
        generate(&engine, &format!("{name} {what}"), request)?;
    }
    for (what, guidance) in [("score", 0.0), ("guided score", 0.5)] {
        let score = Score {
            model: plain.model,
            prompt: PROMPT.collect(),
            answer: (20..36).collect(),
            draws: 4,
            guidance,
            seed: 5,
            check_greedy: guidance == 0.0,
            think_steps: None,
        };
        match engine.run(Work::Score(score)) {
            Ok(Outcome::Scored(scored)) => {
                println!(
                    "{what} {name} {:016x} {:?}",
                    scored.log_likelihood.to_bits(),
                    scored.is_greedy
                );
            }
            Ok(_) => unreachable!("asked for a score"),
            Err(_) => println!("{what} {name} refused"),
        }
    }
    for level in LEVELS {
        for streams in [false, true] {
            let mut change = PlanOptions {
                level: Some(level),
                budget: Some(Budget::Default),
                embedding: Some(EmbeddingPlacement::Host),
                ..PlanOptions::default()
            };
            if streams {
                change.budget = Some(Budget::Bytes(1));
                if let Err(error) = engine.plan(&change, in_force(&engine).workload) {
                    change.budget = Some(least(&error).into());
                }
            }
            let way = format!(
                "{name} {} {}",
                level.name(),
                if streams { "streamed" } else { "resident" }
            );
            match apply(&engine, change) {
                Ok(plan) => {
                    println!(
                        "switch {way} {} {}",
                        plan.streamed_bytes(),
                        hash(described(&plan))
                    );
                    generate(&engine, &way, plain.clone())?;
                }
                Err(_) => println!("switch {way} refused"),
            }
        }
    }
    drop(engine);
    Ok(fs::remove_dir_all(scratch())?)
}

/// The smallest budget that would work; `None` for another error.
fn least(error: &sluice_engine::EngineError) -> Option<u64> {
    match error {
        sluice_engine::EngineError::Plan(sluice_plan::PlanError::BudgetTooSmall {
            least_bytes,
            ..
        }) => Some(*least_bytes),
        _ => None,
    }
}

fn in_force(engine: &Engine) -> Arc<Plan> {
    engine.in_force().expect("a model is loaded").plan
}

fn plain(engine: &Engine) -> Generate {
    let model = engine.model().expect("it was loaded");
    Generate {
        block_length: TOKENS / 3,
        ..Generate::greedy(model.id, PROMPT.collect(), TOKENS)
    }
}

/// Requests that differ from the plain one in one thing each.
fn kinds(engine: &Engine, plain: &Generate) -> Vec<(String, Generate)> {
    let mut kinds = vec![("plain".to_owned(), plain.clone())];
    let mut add = |what: String, request: Generate| kinds.push((what, request));
    add(
        "drawn".to_owned(),
        Generate {
            temperature: 0.8,
            seed: 11,
            eos: EosPolicy::Stop,
            ..plain.clone()
        },
    );
    if engine
        .model()
        .is_some_and(|model| model.info.mask.is_none())
    {
        add(
            "sampled".to_owned(),
            Generate {
                temperature: 0.7,
                seed: 3,
                sampling: Sampling {
                    top_k: Some(20),
                    top_p: Some(0.9),
                    min_p: Some(0.01),
                    repetition_penalty: Some(1.1),
                },
                ..plain.clone()
            },
        );
        return kinds;
    }
    add(
        "guided".to_owned(),
        Generate {
            guidance: 1.5,
            ..plain.clone()
        },
    );
    add(
        "few steps".to_owned(),
        Generate {
            steps: TOKENS / 4,
            ..plain.clone()
        },
    );
    for (what, remasking) in [
        ("random", Remasking::Random),
        ("margin", Remasking::Margin),
        ("entropy", Remasking::Entropy),
    ] {
        add(
            format!("remasking {what}"),
            Generate {
                remasking,
                seed: 2,
                ..plain.clone()
            },
        );
    }
    for info in policy::POLICIES {
        let policy = PolicyChoice::new(info.name, []).expect("it is listed");
        add(
            format!("policy {}", info.name),
            Generate {
                policy,
                ..plain.clone()
            },
        );
    }
    for (what, kind) in [
        ("prefix", KvCacheMode::Prefix),
        ("dual", KvCacheMode::Dual),
        ("vicinity", KvCacheMode::Vicinity),
    ] {
        let decoding = Decoding {
            kv_cache: KvCacheReuse {
                mode: kind,
                ..KvCacheReuse::default()
            },
            ..Decoding::default()
        };
        add(
            format!("cache {what}"),
            Generate {
                decoding,
                policy: PolicyChoice::new("threshold", [("t", 0.5)]).expect("it is listed"),
                ..plain.clone()
            },
        );
    }
    kinds
}

/// Runs a request and writes down its events and tokens.
fn generate(engine: &Engine, name: &str, request: Generate) -> Result<()> {
    let events = Arc::new(Mutex::new(String::new()));
    let written = events.clone();
    let (send, done) = mpsc::channel();
    let queued = engine.submit(
        Default::default(),
        Work::Generate(request),
        Box::new(move |event| match event {
            Event::Finished(result) => send.send(result).expect("it is waited for"),
            event => event_line(&event, &mut written.lock().expect("nobody panics")),
        }),
    );
    if queued.is_err() {
        println!("generate {name} refused");
        return Ok(());
    }
    match done.recv()? {
        Ok(Outcome::Generated(generated)) => println!(
            "generate {name} {} passes {:?} events {} tokens {:?}",
            generated.passes,
            generated.finish_reason,
            hash(events.lock().expect("nobody panics").as_bytes()),
            generated.tokens
        ),
        Ok(_) => unreachable!("asked to generate"),
        Err(_) => println!("generate {name} failed"),
    }
    Ok(())
}

/// An event without its times.
fn event_line(event: &Event, text: &mut String) {
    let positions = |positions: &[CanvasPosition], text: &mut String| {
        for position in positions {
            let state = match position.state {
                TokenState::Masked => 'm',
                TokenState::Provisional => 'p',
                TokenState::Committed => 'c',
                TokenState::Pinned => 'f',
            };
            let confidence = position.confidence.map(f32::to_bits);
            write!(
                text,
                " {}{state}{:?}{:?}{}",
                position.position, position.token, confidence, position.is_fresh
            )
            .expect("a string grows");
        }
        text.push('\n');
    };
    match event {
        Event::Started { blocks, is_exact } => {
            writeln!(text, "started {blocks} {is_exact}").expect("a string grows");
        }
        Event::Pass(pass) => {
            write!(
                text,
                "pass {} {} {} {} {} {}",
                pass.passes,
                pass.block,
                pass.passes_in_block,
                pass.committed,
                pass.rows,
                pass.lm_head_rows
            )
            .expect("a string grows");
            positions(&pass.positions, text);
        }
        Event::BlockDone {
            block,
            passes,
            positions: all,
        } => {
            write!(text, "block {block} {passes}").expect("a string grows");
            positions(all, text);
        }
        // The recorded models have no latents.
        Event::Thought(_) => {}
        // Nor has what they are asked for any pins without a position.
        Event::Placed(_) => {}
        // Notices are prose, which may change.
        Event::Notice(_) => text.push_str("notice\n"),
        Event::ScoreProgress { .. } | Event::Finished(_) => {}
    }
}

fn apply(engine: &Engine, change: PlanOptions) -> std::result::Result<Arc<Plan>, String> {
    let (send, events) = mpsc::channel();
    engine.apply(
        change,
        Box::new(move |event| {
            if let ApplyEvent::Finished(result) = event {
                send.send(result).expect("it is waited for");
            }
        }),
    );
    let result = events.recv().map_err(|error| error.to_string())?;
    result.map_err(|error| error.to_string())
}

/// Compresses a folder's weights, and decompresses the result.
fn containers(name: &str, folder: &Path) -> Result<()> {
    let scratch = scratch();
    fs::create_dir_all(&scratch)?;
    let never = AtomicBool::new(false);
    for (way, how) in [
        ("lossless", CompressionMethod::Lossless(Lossless::Huffman)),
        (
            "4 bits",
            CompressionMethod::Trellis(sluice_codec::TrellisTarget::Bits(4.0)),
        ),
    ] {
        let file = scratch.join("coded.sluice");
        let options = CompressOptions {
            method: how,
            tile: 256,
            tensors: Default::default(),
            all: true,
            threads: THREADS,
            replace: true,
        };
        let source = Source::Folder(folder.to_owned());
        match compress(&source, &file, &options, &never, &mut |_, _| {}) {
            Ok(_) => println!("compress {name} {way} {}", hash(fs::read(&file)?)),
            // The reason is prose, which may change.
            Err(_) => {
                println!("compress {name} {way} refused");
                continue;
            }
        }
        let target = scratch.join("restored");
        let container = compression::open(&file)?;
        decompress(&container, &target, THREADS, &never, &mut |_, _| {})?;
        let mut files: Vec<_> = fs::read_dir(&target)?.collect::<std::result::Result<_, _>>()?;
        files.sort_by_key(fs::DirEntry::file_name);
        for file in files {
            let (path, file) = (file.path(), file.file_name());
            let same = fs::read(&path)? == fs::read(folder.join(&file))?;
            println!(
                "decompress {name} {way} {} {} {same}",
                file.display(),
                hash(fs::read(&path)?)
            );
        }
        fs::remove_dir_all(&target)?;
    }
    Ok(fs::remove_dir_all(&scratch)?)
}
