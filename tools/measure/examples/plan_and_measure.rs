//! Loads a checkpoint by a plan, runs a few passes, and prints what was predicted beside what was measured:
//!
//! ```sh
//! cargo run -p sluice-measure --example plan_and_measure -- DIR LEVEL BUDGET [CANVAS] [PASSES] [CACHE_DIR]
//! ```

use std::{error::Error, fs, path::PathBuf};

use sluice_checkpoint::Source;
use sluice_engine::{Budget, Engine, EngineOptions, Generate, PlanOptions, PlanSettings};
use sluice_measure::engine_options;
use sluice_plan::{Plan, Workload};
use sluice_shared::{sampling::EosPolicy, units};

const BLOCK: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |name| arguments.next().ok_or(format!("{name} is missing"));
    let folder = PathBuf::from(next("DIR")?);
    let settings = PlanSettings {
        level: next("LEVEL")?.parse()?,
        budget: Budget::Bytes(units::parse_bytes(&next("BUDGET")?)?),
        ..PlanSettings::default()
    };
    let canvas: usize = next("CANVAS").unwrap_or("64".to_owned()).parse()?;
    let passes: usize = next("PASSES").unwrap_or("3".to_owned()).parse()?;
    let derivatives = next("CACHE_DIR").ok().map(PathBuf::from);

    let engine = Engine::start(EngineOptions {
        weight_cache: derivatives,
        ..engine_options()?
    })?;
    let model = engine.load_now(Source::Folder(folder), settings)?;
    let workload = Workload::new(canvas, BLOCK.min(canvas), 1);
    // The plan in force, which was made for the usual canvas, with the activations of this one.
    let loaded_with = engine.in_force().ok_or("no plan is in force")?.plan;
    let plan = Plan {
        working: engine.plan(&PlanOptions::default(), workload)?.working,
        ..Plan::clone(&loaded_with)
    };
    let asked = engine.plan(&PlanOptions::default(), workload)?;
    println!(
        "level {}  budget {}  canvas {canvas}",
        plan.level,
        units::bytes(plan.budget_bytes)
    );
    for (kind, bytes) in plan.bytes_by_kind() {
        println!("  {:<12} {:>12}", kind.name(), units::bytes(bytes));
    }
    println!("streamed a pass  {}", units::bytes(plan.streamed_bytes()));

    let prompt = canvas / 2;
    let request = Generate {
        block_length: BLOCK.min(canvas - prompt),
        eos: EosPolicy::Suppress,
        ..Generate::greedy(model.id, (1..=prompt as u32).collect(), canvas - prompt)
    };
    let reports = engine.passes(request, passes)?;
    let memory = engine.memory();
    println!(
        "peak   predicted {}  measured {}  ratio {:.4}",
        units::bytes(plan.peak_bytes()),
        units::bytes(memory.peak_bytes),
        memory.peak_bytes as f64 / plan.peak_bytes() as f64
    );
    let predicted = asked.pass.map(|pass| 1000.0 * pass.total_s());
    for report in &reports {
        let measured = 1000.0 * report.cost.time.as_secs_f64();
        println!(
            "pass {}  predicted {}  measured {}  ratio {:.3}  waited {}",
            report.passes,
            predicted.map_or("unknown".to_owned(), units::duration_ms),
            units::duration_ms(measured),
            measured / predicted.unwrap_or(f64::NAN),
            units::duration_ms(1000.0 * report.cost.waited.as_secs_f64()),
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
