//! How fast a device's operations are, at the sizes of LLaDA-8B.

use crate::{
    device::{Device, DeviceBuffer},
    error::EngineError,
    format::Format,
    ledger::{Kind, Ledger},
    ops::{AttentionRange, AttentionShape, KeyRows, KeySegment, Keys, Ops},
    page::Page,
    residency::{Data, Weight},
};

/// An operation, and how long it takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Speed {
    /// What was computed.
    pub name: String,
    /// The median of several runs, by the card's own clock where one computes.
    pub seconds: f64,
    /// Multiplications and additions.
    pub operations: f64,
    /// Bytes that must be read or written at least once.
    pub bytes: f64,
}

const WIDTH: usize = 4096;
const HEADS: usize = 32;
const ROWS: [usize; 6] = [1, 8, 32, 128, 512, 2048];
const CANVASES: [usize; 3] = [128, 512, 2048];
/// Runs of each, after one that only warms up; how long one should take, and how many launches may be in it.
const RUNS: usize = 7;
const RUN_S: f64 = 2e-3;
const LAUNCHES_MAX: usize = 32;
/// What is so slow needs no more runs.
const SLOW_S: f64 = 1.0;
/// Matrices of the most rows, in `f32`, that exist at once: queries, keys, values, results, and one on its way there.
const MATRICES: usize = 6;

/// Times products of 4096 × 4096 weights in every format that it has, and attention of one canvas. `told` hears of each as it is done.
///
/// # Errors
/// When memory can't be had, or an operation fails.
pub fn speeds(device: &Device, told: &mut dyn FnMut(&Speed)) -> Result<Vec<Speed>, EngineError> {
    let ledger = Ledger::default();
    let ops = Ops::new(device.clone(), ledger.clone())?;
    let number = device.number();
    // No run waits for the driver to find memory.
    let most_rows = ROWS[ROWS.len() - 1].max(CANVASES[CANVASES.len() - 1]);
    ops.reserve((MATRICES * most_rows * WIDTH * size_of::<f32>()) as u64)?;
    let mut all = Vec::new();
    let mut add = |speed: Speed| {
        told(&speed);
        all.push(speed);
    };
    let decoded = DeviceBuffer::<Page>::to_decode(device, &ledger)?;
    for format in Format::ALL {
        let bytes = format.bytes(WIDTH * WIDTH);
        let memory =
            DeviceBuffer::<u64>::filled(device, &ledger, Kind::Weights, bytes / 8, |words| {
                // A sound number in every format, as element, scale and code alike.
                words.fill(0x3C3C_3C3C_3C3C_3C3C);
            })?;
        let weight = Weight {
            format,
            rows: WIDTH,
            width: WIDTH,
            data: match &memory {
                DeviceBuffer::Host(words) => Data::Host(bytemuck::cast_slice(words)),
                on_card @ DeviceBuffer::Gpu(_) => Data::on_card(on_card.span(), decoded.on_card()),
            },
            epoch: 0,
        };
        for rows in ROWS {
            let x = ops.probe_rows(rows, &weight)?;
            let seconds = median(&ops, || ops.linear(&x, &weight).map(drop))?;
            add(Speed {
                name: format!("linear, {rows} x {WIDTH} x {WIDTH}, {}", format.name()),
                seconds,
                operations: 2.0 * (rows * WIDTH * WIDTH) as f64,
                bytes: (bytes + 2 * rows * WIDTH * number.bytes()) as f64,
            });
        }
    }
    for canvas in CANVASES {
        let values = vec![0.5; canvas * WIDTH];
        let [q, k, v] = [(); 3].map(|()| ops.matrix(canvas, WIDTH, &values, number));
        let (q, k, v) = (q?, k?, v?);
        let tasks = ops.attention_tasks(vec![AttentionRange {
            queries: 0..canvas,
            keys: Keys::Pass(vec![KeySegment {
                start: 0,
                len: canvas,
            }]),
        }])?;
        let shape = AttentionShape {
            heads: HEADS,
            kv_heads: HEADS,
            head_dim: WIDTH / HEADS,
        };
        let keys = KeyRows {
            pass: Some([&k, &v]),
            caches: &[],
            layer: 0,
        };
        let seconds = median(&ops, || ops.attend(&q, &keys, shape, &tasks).map(drop))?;
        add(Speed {
            name: format!(
                "attention, canvas of {canvas}, {HEADS} heads of {}",
                WIDTH / HEADS
            ),
            seconds,
            operations: 4.0 * (canvas * canvas * WIDTH) as f64,
            bytes: (4 * canvas * WIDTH * number.bytes()) as f64,
        });
    }
    Ok(all)
}

fn median(
    ops: &Ops,
    mut work: impl FnMut() -> Result<(), EngineError>,
) -> Result<f64, EngineError> {
    // What is needed once is made now.
    work()?;
    let once = ops.time(1, &mut work)?;
    if once > SLOW_S {
        return Ok(once);
    }
    let launches = ((RUN_S / once) as usize).clamp(1, LAUNCHES_MAX);
    let times: Result<Vec<f64>, _> = (0..RUNS).map(|_| ops.time(launches, &mut work)).collect();
    let mut times = times?;
    times.sort_unstable_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
