//! Compiles the schema with protox, so that no `protoc` is needed, and keeps the
//! descriptor set for the reflection service.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=sluice");
    let protos = [
        "sluice/v1/generation.proto",
        "sluice/v1/job.proto",
        "sluice/v1/model.proto",
        "sluice/v1/optimizer.proto",
        "sluice/v1/telemetry.proto",
    ];
    let descriptors = protox::compile(protos, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(
        out.join("sluice_descriptors.bin"),
        descriptors.encode_to_vec(),
    )?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
