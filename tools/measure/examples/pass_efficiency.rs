//! How much of the GEMM kernel's speed whole passes reach: their useful operations per second beside those of the `gemm`
//! crate's bare `f32` matmul, on the same shapes and rows, as often as a pass has them, in turn with the passes:
//!
//! ```sh
//! cargo run -p sluice-daemon --bin sluiced -- \
//!     synth --layers 12 --hidden-size 1536 --attention-heads 12 --intermediate-size 4608 --vocab-size 49152 DIR
//! cargo run -p sluice-measure --example pass_efficiency -- DIR [LEVEL] [ROUNDS] [CANVAS]...
//! ```
//!
//! A pass's operations are two for each weight and row that is multiplied, of the last layer only for the rows that it
//! computes, and four for each number of a head, query and key of attention. Its time is all of it, the head's reduction
//! too. Both times are medians.

use std::{
    error::Error,
    path::PathBuf,
    time::{Duration, Instant},
};

use sluice_checkpoint::Source;
use sluice_engine::{
    Engine, EngineOptions, Generate, PlanSettings, event::PassReport, model::ModelInfo,
};
use sluice_shared::sampling::EosPolicy;

const BLOCK: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("DIR is missing")?);
    let settings = PlanSettings {
        level: arguments.next().unwrap_or("off".to_owned()).parse()?,
        ..PlanSettings::default()
    };
    let rounds: usize = arguments.next().unwrap_or("5".to_owned()).parse()?;
    let mut canvases: Vec<usize> = arguments.map(|len| len.parse()).collect::<Result<_, _>>()?;
    if canvases.is_empty() {
        canvases = vec![128, 256, 512];
    }

    let engine = Engine::start(EngineOptions::default())?;
    let model = engine.load_now(Source::Folder(folder), settings)?;
    let info = &model.info;
    println!(
        "{:.2} B parameters, {:?}",
        info.parameters as f64 / 1e9,
        info.formats
    );
    println!("canvas   pass ms   G op/s   kernel ms   G op/s   ratio");
    for canvas in canvases {
        let prompt = canvas / 2;
        let request = Generate {
            block_length: BLOCK.min(canvas - prompt),
            eos: EosPolicy::Suppress,
            ..Generate::greedy(model.id, (1..=prompt as u32).collect(), canvas - prompt)
        };
        let (mut passes, mut kernels) = (Vec::new(), Vec::new());
        let mut sizes = (0, 0);
        // The first round warms up.
        for round in 0..=rounds {
            let reports = engine.passes(request.clone(), 1)?;
            let report = reports.first().ok_or("no pass was run")?;
            let linears = matmuls(info, report);
            let kernel = bare(&linears);
            if round > 0 {
                passes.push(report.cost.time);
                kernels.push(kernel);
            }
            let of_linears = linears.iter().map(Matmul::operations).sum::<usize>();
            sizes = (of_linears + attention(info, report), of_linears);
        }
        let (pass, kernel) = (median(&mut passes), median(&mut kernels));
        let speed = |operations: usize, time: f64| operations as f64 / time / 1e9;
        let (of_pass, of_kernel) = (speed(sizes.0, pass), speed(sizes.1, kernel));
        println!(
            "{canvas:>6} {:>9.1} {of_pass:>8.1} {:>11.1} {of_kernel:>8.1} {:>7.3}",
            1000.0 * pass,
            1000.0 * kernel,
            of_pass / of_kernel
        );
    }
    Ok(())
}

/// A matmul of a pass.
struct Matmul {
    rows: usize,
    inputs: usize,
    outputs: usize,
    /// Number of times that the pass has it.
    times: usize,
}

impl Matmul {
    fn operations(&self) -> usize {
        2 * self.rows * self.inputs * self.outputs * self.times
    }
}

/// All matmuls of a pass.
fn matmuls(info: &ModelInfo, report: &PassReport) -> Vec<Matmul> {
    let ModelInfo {
        layers,
        hidden_size: width,
        intermediate_size: mlp_width,
        ..
    } = *info;
    let heads = info.attention_heads * info.head_dim;
    let kv_heads = info.kv_heads * info.head_dim;
    let (rows, read) = (report.rows, report.lm_head_rows);
    let linear = |rows, width, outputs, times| Matmul {
        rows,
        inputs: width,
        outputs,
        times,
    };
    let mut all = vec![
        linear(rows, width, kv_heads, 2 * layers),
        linear(read, width, info.padded_vocab_size, 1),
    ];
    for (rows, layers) in [(rows, layers - 1), (read, 1)] {
        all.extend([
            linear(rows, width, heads, layers),
            linear(rows, heads, width, layers),
            linear(rows, width, mlp_width, 2 * layers),
            linear(rows, mlp_width, width, layers),
        ]);
    }
    all
}

/// Operations of attention, in which each row sees all.
fn attention(info: &ModelInfo, report: &PassReport) -> usize {
    let queries = (info.layers - 1) * report.rows + report.lm_head_rows;
    4 * queries * report.rows * info.attention_heads * info.head_dim
}

/// The bare kernel's time for these, on all of the machine's threads.
fn bare(linears: &[Matmul]) -> Duration {
    let mut time = Duration::ZERO;
    for linear in linears {
        let Matmul {
            rows,
            inputs: width,
            outputs,
            times,
        } = *linear;
        let weights = vec![0.5f32; width * outputs];
        let x = vec![0.5f32; rows * width];
        let mut out = vec![0.0f32; rows * outputs];
        let started = Instant::now();
        for _ in 0..times {
            // SAFETY: the slices hold exactly the matrices that these sizes and strides describe.
            unsafe {
                gemm::gemm(
                    outputs,
                    rows,
                    width,
                    out.as_mut_ptr(),
                    outputs as isize,
                    1,
                    false,
                    weights.as_ptr(),
                    1,
                    width as isize,
                    x.as_ptr(),
                    width as isize,
                    1,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    gemm::Parallelism::Rayon(0),
                );
            }
        }
        time += started.elapsed();
    }
    time
}

/// The median of the passes' times, in seconds.
fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}
