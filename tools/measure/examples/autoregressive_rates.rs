//! How fast an autoregressive model reads and writes, and what it holds meanwhile:
//!
//! ```sh
//! cargo run --release -p sluice-measure --example autoregressive_rates -- CHECKPOINT LEVEL [cpu|cuda:N] [PROMPT,PROMPT] [WRITE]
//! ```
//!
//! For each length of a prompt of random tokens: its tokens a second on the way in, the median of the passes that write
//! one token behind it, and the bytes after the last of them by the ledger and by the system. The rate of llama.cpp:
//! `llama-bench -m FILE -p PROMPT -n 0` and `llama-bench -m FILE -p 0 -n WRITE -d PROMPT`.

use std::{error::Error, fs, path::Path, time::Duration};

use sluice_engine::{Engine, EngineOptions, Generate, PlanSettings};
use sluice_formats::noise::Noise;
use sluice_measure::{checkpoints::source, engine_options};
use sluice_ops::device::DeviceChoice;
use sluice_shared::{sampling::EosPolicy, units};

/// Token ids of prompts are below this, which every vocabulary holds.
const IDS: u64 = 250;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |name| arguments.next().ok_or(format!("{name} is missing"));
    let checkpoint = next("CHECKPOINT")?;
    let level = next("LEVEL")?.parse()?;
    let device = next("DEVICE").unwrap_or("cpu".to_owned());
    let prompts = next("PROMPTS").unwrap_or("128,512".to_owned());
    let writes: usize = next("WRITE").unwrap_or("32".to_owned()).parse()?;
    let device = match device.strip_prefix("cuda:") {
        Some(ordinal) => DeviceChoice::Cuda(ordinal.parse()?),
        None => DeviceChoice::Cpu,
    };

    let engine = Engine::start(EngineOptions {
        device,
        ..engine_options()?
    })?;
    let settings = PlanSettings {
        level,
        ..PlanSettings::default()
    };
    let model = engine.load_now(source(Path::new(&checkpoint)), settings)?;
    println!("  prompt   read, tokens/s   written, tokens/s      by the ledger    by the system");
    for (i, length) in prompts.split(',').enumerate() {
        let length: usize = length.parse()?;
        // Another prompt each time, so that nothing is found in the prefix cache.
        let noise = Noise::new(i as u64);
        let prompt = (0..length as u64).map(|k| (noise.uniform(0, k, 0) * IDS as f64) as u32);
        let request = Generate {
            eos: EosPolicy::Suppress,
            ..Generate::greedy(model.id, prompt.collect(), 1 + writes)
        };
        let reports = engine.passes(request, usize::MAX)?;
        // The pass that reads the prompt's end also writes a token.
        let (read, written) = (reports.iter())
            .position(|report| report.committed > 0)
            .map(|first| reports.split_at(first + 1))
            .ok_or("nothing was written")?;
        let read_s: f64 = read.iter().map(|pass| pass.cost.time.as_secs_f64()).sum();
        let mut times: Vec<Duration> = written.iter().map(|pass| pass.cost.time).collect();
        times.sort_unstable();
        let each_s = times
            .get(times.len() / 2)
            .map_or(f64::NAN, Duration::as_secs_f64);
        let held = reports.last().map_or(0, |pass| pass.cost.device_bytes);
        println!(
            "{length:>8} {:>16.1} {:>19.1} {:>18} {:>16}",
            length as f64 / read_s,
            1.0 / each_s,
            units::bytes(held),
            units::bytes(resident_bytes()?),
        );
    }
    Ok(())
}

/// What the system counts as this process's memory.
fn resident_bytes() -> Result<u64, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = (status.lines())
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .ok_or("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(1024 * kib)
}
