//! The time of a pass over a canvas of 256 positions, of which 32 are read, by one thread with all weights in memory: the
//! best of seven, taken in turns. For models that differ in their weights, such as a pruned one beside its source.
//!
//! ```sh
//! cargo run -p sluice-measure --example pass_times -- MODEL...
//! ```

use std::{error::Error, path::Path, sync::atomic::AtomicBool, time::Instant};

use sluice_engine::model::network::{Sequence, VisibleKeys};
use sluice_measure::loaded::Loaded;
use sluice_ops::{Ops, device::Device, ledger::Ledger};
use sluice_shared::{level::Level, units};

const POSITIONS: usize = 256;
const READ: usize = 32;
const RUNS: usize = 7;

/// A model, and its best time.
struct Timed {
    path: String,
    ops: Ops,
    loaded: Loaded,
    best_s: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    for level in [Level::Off, Level::Moderate, Level::Aggressive] {
        let models = paths.iter().map(|path| Timed::new(path, level));
        let mut models = models.collect::<Result<Vec<_>, _>>()?;
        for _ in 0..RUNS {
            for model in &mut models {
                model.run();
            }
        }
        for model in &models {
            let (bytes, ms) = (units::bytes(model.loaded.bytes), model.best_s * 1e3);
            println!("{level:10} {:>9} {ms:7.1} ms  {}", bytes, model.path);
        }
    }
    Ok(())
}

impl Timed {
    fn new(path: &str, level: Level) -> Result<Self, Box<dyn Error>> {
        let ops = Ops::new(Device::cpu(1)?, Ledger::default())?;
        let loaded = Loaded::new(Path::new(path), level, &ops)?;
        Ok(Self {
            path: path.to_owned(),
            loaded,
            best_s: f64::INFINITY,
            ops,
        })
    }

    fn run(&mut self) {
        let positions: Vec<usize> = (0..POSITIONS).collect();
        let mut canvas = [Sequence {
            tokens: &[1; POSITIONS],
            positions: &positions,
            wanted: &positions[..READ],
            sees: VisibleKeys::Each { checks: 0 },
        }];
        let never = AtomicBool::new(false);
        let begun = Instant::now();
        let rows =
            (self.loaded.model).forward(&self.ops, &self.loaded.weights, &mut canvas, &never);
        self.best_s = self.best_s.min(begun.elapsed().as_secs_f64());
        assert!(rows.is_ok(), "a pass failed");
    }
}
