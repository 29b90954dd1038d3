//! Loads a checkpoint by a plan, runs a few passes, and prints what was predicted beside what was measured:
//!
//! ```sh
//! cargo run -p sluice-engine --example plan_and_measure -- DIR LEVEL BUDGET [CANVAS] [PASSES] [CACHE_DIR]
//! ```

use std::{error::Error, fs, path::PathBuf, sync::mpsc};

use sluice_engine::{
    Change, Engine, Event, Generate, LoadEvent, Options, Settings, Slot, Work,
    checkpoint::Source,
    event::PassReport,
    plan::{Plan, Workload},
};
use sluice_shared::{
    policy::PolicyChoice,
    sampling::{EosPolicy, Remasking, Sampling},
    units,
};

const BLOCK: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |name| arguments.next().ok_or(format!("{name} is missing"));
    let folder = PathBuf::from(next("DIR")?);
    let settings = Settings {
        level: next("LEVEL")?.parse()?,
        budget_bytes: Some(units::parse_bytes(&next("BUDGET")?)?),
        ..Settings::default()
    };
    let canvas: usize = next("CANVAS").unwrap_or("64".to_owned()).parse()?;
    let passes: usize = next("PASSES").unwrap_or("3".to_owned()).parse()?;
    let derivatives = next("CACHE_DIR").ok().map(PathBuf::from);

    let engine = Engine::start(Options {
        derivatives,
        ..Options::default()
    })?;
    let (send, loaded) = mpsc::channel();
    let report = Box::new(move |event| {
        if let LoadEvent::Finished(result) = event {
            // The receiver lives until the load is over.
            drop(send.send(result));
        }
    });
    engine.load(Source::Folder(folder), settings, report);
    let model = loaded.recv()??;
    let workload = Workload {
        canvas,
        block: BLOCK.min(canvas),
        requests: 1,
    };
    // The plan in force, which was made for the usual canvas, with the activations of this one.
    let loaded_with = engine.in_force().ok_or("no plan is in force")?.plan;
    let plan = Plan {
        working: engine.plan(&Change::default(), workload)?.working,
        ..Plan::clone(&loaded_with)
    };
    let asked = engine.plan(&Change::default(), workload)?;
    println!(
        "level {}  budget {}  canvas {canvas}",
        plan.level,
        units::bytes(plan.budget_bytes)
    );
    for (kind, bytes) in plan.bytes_by_kind() {
        println!("  {:<12} {:>12}", kind.name(), units::bytes(bytes));
    }
    println!("streamed a pass  {}", units::bytes(plan.streamed_bytes()));

    let reports = generate(&engine, model.id, canvas, passes)?;
    let memory = engine.memory();
    println!(
        "peak   predicted {}  measured {}  ratio {:.4}",
        units::bytes(plan.peak_bytes()),
        units::bytes(memory.peak_bytes),
        memory.peak_bytes as f64 / plan.peak_bytes() as f64
    );
    let predicted = asked.pass.map(|pass| 1000.0 * pass.total_s());
    for report in &reports {
        let measured = 1000.0 * report.pass_time.as_secs_f64();
        println!(
            "pass {}  predicted {}  measured {}  ratio {:.3}  waited {}",
            report.pass,
            predicted.map_or("unknown".to_owned(), units::duration_ms),
            units::duration_ms(measured),
            measured / predicted.unwrap_or(f64::NAN),
            units::duration_ms(1000.0 * report.waited.as_secs_f64()),
        );
    }
    if let Some(pass) = asked.pass {
        println!(
            "of these by the plan: compute {}  copy {}  disk {}",
            units::duration_ms(1000.0 * pass.compute_s),
            units::duration_ms(1000.0 * pass.copy_s),
            units::duration_ms(1000.0 * pass.disk_s)
        );
        let first = pass.first_s().map(|first| 1000.0 * first);
        let first = first.map_or("unknown".to_owned(), units::duration_ms);
        println!("the first pass by the plan, with nothing in the cache: {first}");
    }
    let status = fs::read_to_string("/proc/self/status")?;
    for line in status
        .lines()
        .filter(|line| line.starts_with("VmHWM") || line.starts_with("VmData"))
    {
        println!("{line}");
    }
    Ok(())
}

fn generate(
    engine: &Engine,
    model: sluice_engine::ModelId,
    canvas: usize,
    passes: usize,
) -> Result<Vec<PassReport>, Box<dyn Error>> {
    let (send, events) = mpsc::channel();
    let sink = Box::new(move |event| drop(send.send(event)));
    let prompt = canvas / 2;
    let request = Generate {
        model,
        prompt: (1..=prompt as u32).collect(),
        canvas: vec![Slot::Masked; canvas - prompt],
        block_length: BLOCK.min(canvas - prompt),
        steps: canvas - prompt,
        temperature: 0.0,
        guidance: 0.0,
        remasking: Remasking::LowConfidence,
        eos: EosPolicy::Suppress,
        policy: PolicyChoice::default(),
        sampling: Sampling::default(),
        stops: Vec::new(),
        seed: 1,
    };
    let ticket = engine.submit(Work::Generate(request), sink)?;
    let mut reports = Vec::new();
    for event in events {
        match event {
            Event::Pass(report) => {
                reports.push(report);
                if reports.len() == passes {
                    engine.cancel(ticket);
                }
            }
            Event::Finished(result) => {
                result?;
                break;
            }
            _ => {}
        }
    }
    Ok(reports)
}
