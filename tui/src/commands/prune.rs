//! `sluice prune`: a smaller model, made by the daemon.

use std::path::PathBuf;

use sluice_proto::v1::{PruneRequest, PruneScore, model_ref::By};

use super::{
    jobs::{alone, follow_own},
    load,
    offline::{self, flag, offline_hint},
    paths::{absolute, subject},
};
use crate::{
    cli::Prune,
    output::{Failure, StandardOutput},
};

/// Prunes a checkpoint into a file.
pub(super) async fn run(
    socket: PathBuf,
    arguments: &Prune,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let model = subject(&arguments.model)?;
    let score = arguments.score.map(PruneScore::from);
    let request = PruneRequest {
        model: model.clone().into(),
        output_path: absolute(&arguments.output)?,
        head_share: arguments.heads.unwrap_or(0.0),
        channel_share: arguments.channels.unwrap_or(0.0),
        score: score.unwrap_or_default().into(),
        compensate: arguments.compensate,
        calibration_path: match &arguments.calibration {
            Some(path) => absolute(path)?,
            None => String::new(),
        },
        threads: arguments.threads,
    };
    let command = "prune DIR --output FILE.sluice --heads SHARE --channels SHARE";
    let alone = match &model {
        By::Path(path) => alone(&arguments.following, command, || {
            let mut words = vec!["prune".to_owned(), path.clone()];
            words.extend(flag("--output", Some(&request.output_path)));
            words.extend(flag("--heads", arguments.heads));
            words.extend(flag("--channels", arguments.channels));
            words.extend(flag("--score", arguments.score));
            let calibration = Some(&request.calibration_path);
            words.extend(flag(
                "--calibration",
                calibration.filter(|path| !path.is_empty()),
            ));
            words.extend(arguments.compensate.then(|| "--compensate".to_owned()));
            words.extend(flag("--threads", arguments.threads));
            words
        }),
        By::Name(_) | By::Shape(_) => Err(offline_hint(command)),
    };
    let output = request.output_path.clone();
    let daemon = offline::daemon(socket, alone).await?;
    let mut client = daemon.optimizer();
    let call = client.prune(request);
    let ended = follow_own(&daemon, call, &arguments.following, out).await?;
    match arguments.load && ended.is_some() {
        true => load::in_place(&daemon, By::Path(output), arguments.following.json, out).await,
        false => Ok(()),
    }
}
