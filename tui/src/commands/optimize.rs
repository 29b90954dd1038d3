//! `sluice optimize`: the most faithful weights that fit a budget, found and put in force.

use std::path::PathBuf;

use sluice_proto::v1::{self, OptimizeRequest, OptimizeResult, operation::Outcome};
use sluice_shared::{
    level::Level,
    mix::MixId,
    options::{Budget, PlanOptions},
    units,
};

use super::{apply, input, jobs::follow_own, paths::absolute};
use crate::{
    cli::Optimize,
    connection::DaemonConnection,
    output::{Failure, StandardOutput},
};

/// Optimizes the loaded model, follows the job, and puts the mix in force.
pub(super) async fn run(
    socket: PathBuf,
    arguments: &Optimize,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let request = OptimizeRequest {
        texts: input::texts(&arguments.texts)?,
        budget_bytes: arguments.budget.and_then(Budget::bytes),
        calibration_path: match &arguments.calibration {
            Some(path) => absolute(path)?,
            None => String::new(),
        },
        uncalibrated: arguments.uncalibrated,
        seed: arguments.seed,
        max_samples: arguments.samples,
        threads: arguments.threads,
        max_pass_ms: arguments.max_pass_ms,
    };
    let daemon = DaemonConnection::connect(socket).await?;
    let mut client = daemon.optimizer();
    let call = client.optimize(request);
    let ended = follow_own(&daemon, call, &arguments.following, out).await?;
    let Some(Outcome::Optimize(made)) = ended else {
        // Whoever has detached applies it later.
        return Ok(());
    };
    if !arguments.following.json {
        table(&made, out)?;
    }
    if arguments.no_apply {
        return Ok(());
    }
    let options = PlanOptions {
        level: Some(Level::Optimized),
        budget: arguments.budget,
        mix: MixId::from_number(made.mix),
        ..PlanOptions::default()
    };
    apply::in_force(&daemon, options, arguments.following.json, out).await
}

/// What was chosen for each group of matrices: a row for each layer.
fn table(made: &OptimizeResult, out: &mut StandardOutput) -> Result<(), Failure> {
    use v1::MatrixGroupKind as Kind;
    const COLUMNS: [(Kind, &str); 5] = [
        (Kind::QueryKey, "q, k"),
        (Kind::Value, "v"),
        (Kind::AttentionOutput, "o"),
        (Kind::GateUp, "gate, up"),
        (Kind::Down, "down"),
    ];
    let mut heading = "bits per weight".to_owned();
    for (_, name) in COLUMNS {
        heading.push_str(&format!("{name:>10}"));
    }
    out.line(&heading)?;
    let of = |layer: u32, kind: Kind| {
        let mut groups = made.groups.iter();
        groups.find(|group| group.layer == Some(layer) && group.kind() == kind)
    };
    let layers = made.groups.iter().filter_map(|group| group.layer).max();
    for layer in 0..=layers.unwrap_or(0) {
        let mut line = format!("layer {layer:<9}");
        for (kind, _) in COLUMNS {
            let bits = of(layer, kind).map(bits_of);
            line.push_str(&format!("{:>10}", bits.unwrap_or_else(|| "–".to_owned())));
        }
        out.line(&line)?;
    }
    if let Some(head) = made
        .groups
        .iter()
        .find(|group| group.kind() == Kind::LmHead)
    {
        let bytes = units::bytes(head.bytes);
        out.line(&format!("LM head {:>17}   {bytes}", bits_of(head)))?;
    }
    Ok(())
}

fn bits_of(group: &v1::MatrixGroup) -> String {
    match group.is_original {
        true => "original".to_owned(),
        false => format!("{:.2}", group.bits_per_weight),
    }
}
