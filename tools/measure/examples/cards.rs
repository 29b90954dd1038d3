//! The properties of this machine's NVIDIA GPUs, or why there are none: `cargo run --release -p sluice-measure
//! --example cards`

use std::process::ExitCode;

use sluice_cuda::{Gpu, GpuUnavailable, devices};

fn main() -> ExitCode {
    match show() {
        Ok(()) => ExitCode::SUCCESS,
        Err(unavailable) => {
            eprintln!("{unavailable}\nhint: {}", unavailable.hint());
            ExitCode::FAILURE
        }
    }
}

fn show() -> Result<(), GpuUnavailable> {
    for device in devices()? {
        let gpu = Gpu::open(device.ordinal)?;
        println!("{:#?}\n{:#?}", gpu.properties(), gpu.live_stats());
        println!("context: {:?} bytes", gpu.context_bytes());
        println!("{:#?}", gpu.measure_bandwidth()?);
        match gpu.blas() {
            Some(blas) => println!("cuBLAS: {}", blas.name()),
            None => println!("cuBLAS: none ({})", gpu.blas_absence().unwrap_or("?")),
        }
    }
    Ok(())
}
