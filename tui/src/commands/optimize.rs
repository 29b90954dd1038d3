//! `sluice optimize`: the most faithful weights that fit a budget, found and put in force; `sluice quantize`: those of a rate.

use std::path::PathBuf;

use sluice_proto::v1::{
    self, CompressRequest, OptimizeRequest, OptimizeResult, operation::Outcome,
};
use sluice_shared::{
    level::Level,
    mix::MixId,
    options::{Budget, PlanOptions},
    units,
};

use super::{apply, input, jobs::follow_own, paths::absolute, usage};
use crate::{
    cli::{MixArgs, Optimize, Quantize},
    connection::DaemonConnection,
    output::{Failure, StandardOutput},
};

/// Optimizes the loaded model for a budget, follows the job, and puts the mix in force within it.
pub(super) async fn run(
    socket: PathBuf,
    arguments: &Optimize,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let request = OptimizeRequest {
        budget_bytes: arguments.budget.and_then(Budget::bytes),
        max_pass_ms: arguments.max_pass_ms,
        ..request(&arguments.mix)?
    };
    make(socket, request, &arguments.mix, arguments.budget, out).await
}

/// Quantizes the loaded model to a rate, follows the job, and puts the mix in force.
pub(super) async fn quantize(
    socket: PathBuf,
    arguments: &Quantize,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let request = OptimizeRequest {
        bits_per_weight: Some(arguments.bits),
        ..request(&arguments.mix)?
    };
    make(socket, request, &arguments.mix, None, out).await
}

fn request(arguments: &MixArgs) -> Result<OptimizeRequest, Failure> {
    Ok(OptimizeRequest {
        texts: input::texts(&arguments.texts)?,
        calibration_path: match &arguments.calibration {
            Some(path) => absolute(path)?,
            None => String::new(),
        },
        uncalibrated: arguments.uncalibrated,
        seed: arguments.seed,
        max_samples: arguments.samples,
        threads: arguments.threads,
        ..OptimizeRequest::default()
    })
}

async fn make(
    socket: PathBuf,
    request: OptimizeRequest,
    arguments: &MixArgs,
    budget: Option<Budget>,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let output_path = arguments.output.as_deref().map(absolute).transpose()?;
    // Before minutes of work. Whether the daemon may write there is found when it does.
    if let Some(output) = arguments.output.as_deref().filter(|output| output.exists()) {
        let problem = format!("{} exists", output.display());
        return Err(usage(&problem));
    }
    let daemon = DaemonConnection::connect(socket).await?;
    let mut client = daemon.optimizer();
    let call = client.optimize(request);
    let ended = follow_own(&daemon, call, &arguments.following, out).await?;
    let Some(Outcome::Optimize(made)) = ended else {
        // Whoever has detached applies it later.
        return Ok(());
    };
    // A mix of one rate has nothing to list.
    if !arguments.following.json && made.prediction.is_some() {
        table(&made, out)?;
    }
    if !arguments.no_apply {
        let options = PlanOptions {
            level: Some(Level::Optimized),
            budget,
            mix: MixId::from_number(made.mix),
            ..PlanOptions::default()
        };
        apply::in_force(&daemon, options, arguments.following.json, out).await?;
    }
    let Some(output_path) = output_path else {
        return Ok(());
    };
    let request = CompressRequest {
        output_path,
        mix: Some(made.mix),
        threads: arguments.threads,
        ..CompressRequest::default()
    };
    let call = client.compress(request);
    let written = follow_own(&daemon, call, &arguments.following, out).await;
    written.map(drop)
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
