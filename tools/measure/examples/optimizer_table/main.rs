//! What a calibration is worth: the divergence of a model's checkpoint from the same with its layers' matrices quantized,
//! to block formats, by trellis codes and by columns, with and without statistics of inputs, and by the optimizer's mixes
//! beside one rate for all:
//!
//! ```sh
//! cargo run -p sluice-measure --example optimizer_table -- MODEL CALIBRATION_TEXT TEST_TEXT [SEEDS]
//! ```
//!
//! Everything is chosen by the first text and measured on the second. All rows are measured with the same masks, or the
//! same lines of an autoregressive model; ± is the standard error by the differences of the seeds.

mod made;
mod methods;
mod statistics;

use std::path::Path;

use sluice_checkpoint::calibration::Calibration;
use sluice_formats::Format;
use sluice_measure::{
    Result,
    fidelity::{Fidelity, Original},
};
use sluice_shared::compression::MIX_BITS;

use crate::{
    made::Made,
    methods::{Matrices, Scope},
    statistics::Knowledge,
};

const SEEDS: u64 = 8;
/// Bits per weight that trellis codes and columns are measured at.
const BITS: [f64; 7] = [2.5, 3.0, 3.4, 3.9, 4.5, 5.2, 6.0];
/// Mean bits per weight of mixes.
const MEAN_BITS: [f64; 8] = [6.0, 5.5, 5.0, 4.5, 4.0, 3.5, 3.0, 2.5];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, calibration, test, seeds @ ..] = &arguments[..] else {
        return Err("a model, a text to calibrate on, and another to test on are needed".into());
    };
    let seeds = match seeds.first() {
        Some(seeds) => seeds.parse()?,
        None => SEEDS,
    };
    let [model, calibration, test] = [model, calibration, test].map(Path::new);
    let table = Table {
        original: Original::new(model, test, seeds)?,
        matrices: Matrices::open(model)?,
    };
    let made = Made::new(model, calibration, test)?;
    let diagonal = made.calibration(false)?;
    let full = made.calibration(true)?;
    let likelihood = match table.original.is_autoregressive() {
        true => "NLL",
        false => "NLL bound",
    };
    println!("| bits | | KL | same top | {likelihood} |\n|---:|---|---:|---:|---:|");
    table.blocks(&full)?;
    for bits in BITS {
        let quantized = table.matrices.trellis(bits)?;
        table.row("trellis", &quantized)?;
    }
    for (name, calibration) in [
        ("columns", None),
        ("columns, importance", Some(&diagonal)),
        ("columns, importance and feedback", Some(&full)),
    ] {
        for bits in BITS {
            let quantized = table.matrices.columns(bits, calibration, Scope::Layers)?;
            table.row(name, &quantized)?;
        }
    }
    table.mixes(&made, &full)
}

/// What rows are measured with.
struct Table {
    original: Original,
    matrices: Matrices,
}

impl Table {
    /// Measures a model with these matrices, and prints what it found.
    fn row(&self, name: &str, quantized: &methods::Quantized) -> Result<Fidelity> {
        let folder = tempfile::tempdir()?;
        self.matrices.write(quantized, folder.path())?;
        let found = self.original.compare(folder.path())?;
        println!(
            "| {:.3} | {name} | {:.5} ± {:.5} | {:.1} % | {:.4} |",
            quantized.bits,
            found.mean_kl(),
            found.standard_error(),
            100.0 * found.same_top,
            found.likelihood
        );
        Ok(found)
    }

    fn blocks(&self, full: &Calibration) -> Result<()> {
        for format in [Format::Q8_0, Format::Q6K, Format::Q4K, Format::Q4_0] {
            for (name, knowledge) in [
                ("", Knowledge::Nothing),
                (", importance", Knowledge::Importance(full)),
                (", importance and feedback", Knowledge::All(full)),
            ] {
                let quantized = self.matrices.blocks(format, knowledge)?;
                self.row(&format!("`{}`{name}", format.name()), &quantized)?;
            }
        }
        self.row("`q3_k`", &self.matrices.q3_k()?)?;
        Ok(())
    }

    fn mixes(&self, made: &Made, full: &Calibration) -> Result<()> {
        println!(
            "\n| mean bits | lowest, highest | predicted KL | of it the gap at most | KL | same top | one rate: predicted KL | KL | same top | KL less by |\n\
             |---:|---|---:|---:|---:|---:|---:|---:|---:|---:|"
        );
        for mix in made.mixes(&MEAN_BITS)? {
            let folder = tempfile::tempdir()?;
            let mixed = self.matrices.mix(&mix.record, full)?;
            self.matrices.write(&mixed, folder.path())?;
            let own = self.original.compare(folder.path())?;
            let rate = mixed.bits.min(*MIX_BITS.end());
            let uniform = self.matrices.columns(rate, Some(full), Scope::All)?;
            self.matrices.write(&uniform, folder.path())?;
            let same = self.original.compare(folder.path())?;
            let prediction = mix.prediction.as_ref().ok_or("a budget was given")?;
            let rates = mix.record.groups.iter().map(|group| group.bits);
            let lowest = rates.clone().fold(f64::INFINITY, f64::min);
            let highest = rates.fold(0.0, f64::max);
            println!(
                "| {:.2} | {lowest:.2}, {highest:.2} | {:.5} | {:.1} % | {:.5} ± {:.5} | {:.1} % | {:.5} | {:.5} ± {:.5} | {:.1} % | {:.0} % |",
                mixed.bits,
                prediction.kl_nats,
                100.0 * prediction.gap_kl_nats / prediction.kl_nats,
                own.mean_kl(),
                own.standard_error(),
                100.0 * own.same_top,
                prediction.uniform_kl_nats,
                same.mean_kl(),
                same.standard_error(),
                100.0 * same.same_top,
                100.0 * (1.0 - own.mean_kl() / same.mean_kl())
            );
        }
        Ok(())
    }
}
