//! `sluice calibrate`: measures the inputs of the loaded model's matrices.

use std::path::PathBuf;

use sluice_proto::v1::CalibrateRequest;

use super::{input, jobs::follow_own, paths::absolute};
use crate::{
    cli::Calibrate,
    connection::DaemonConnection,
    output::{Failure, StandardOutput},
};

/// Calibrates the loaded model, and follows the job.
pub(super) async fn run(
    socket: PathBuf,
    arguments: &Calibrate,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let request = CalibrateRequest {
        texts: input::texts(&arguments.texts)?,
        output_path: match &arguments.output {
            Some(path) => absolute(path)?,
            None => String::new(),
        },
        replace: arguments.replace,
        seed: arguments.seed,
        max_positions: arguments.positions,
        diagonal: arguments.diagonal,
        memory_bytes: arguments.memory,
        threads: arguments.threads,
    };
    let daemon = DaemonConnection::connect(socket).await?;
    let mut client = daemon.optimizer();
    let call = client.calibrate(request);
    follow_own(&daemon, call, &arguments.following, out)
        .await
        .map(drop)
}
