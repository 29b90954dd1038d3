//! What calibration promises for each input of a model: the error of its matrices at high rates with one step for all
//! columns, with a step for each, and with error feedback, and the bits per weight that these save at equal error.
//!
//! `cargo run --release -p sluice-checkpoint --example calibration -- FILE.calibration.safetensors`

use std::{env, error::Error, path::Path};

use sluice_checkpoint::calibration::{Calibration, PositionKind};
use sluice_optimize::{
    factor::{DAMPING, Factor},
    moments::Moments,
};
use sluice_weights::MatrixInput;

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).ok_or("the file is missing")?;
    let calibration = Calibration::open(Path::new(&path))?;
    let origin = calibration.origin();
    println!("{}: {} positions", origin.model, origin.positions);
    println!(
        "{:<40} {:>7} {:>9} {:>9} {:>9} {:>9} {:>7} {:>8} {:>6}",
        "input", "rows", "AM(H)", "GM(H)", "AM(d)", "GM(d)", "columns", "feedback", "both"
    );
    for input in MatrixInput::all(origin.model.layers) {
        let mut all: Option<Moments> = None;
        for kind in PositionKind::ALL {
            let Some(moments) = calibration.input(input, kind)? else {
                continue;
            };
            print(&format!("{input}.{kind}"), moments.clone())?;
            match &mut all {
                None => all = Some(moments),
                Some(all) => all.merge(moments, 1.0)?,
            }
        }
        if let Some(moments) = all {
            print(&input.to_string(), moments)?;
        }
    }
    Ok(())
}

fn print(name: &str, mut moments: Moments) -> Result<(), Box<dyn Error>> {
    let rows = moments.rows();
    let second = moments.second_moments();
    let second = second.ok_or("it has only diagonals; calibrate without --diagonal")?;
    let gains = Factor::new(&second, DAMPING)?.rate_gains();
    println!(
        "{name:<40} {rows:>7} {:>9.2e} {:>9.2e} {:>9.2e} {:>9.2e} {:>7.2} {:>8.2} {:>6.2}",
        gains.moments_mean,
        gains.moments_geometric_mean,
        gains.pivots_mean,
        gains.pivots_geometric_mean,
        gains.column_steps_bits(),
        gains.feedback_bits(),
        gains.both_bits(),
    );
    Ok(())
}
