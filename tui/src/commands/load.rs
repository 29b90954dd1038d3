//! `sluice load`.

use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use sluice_proto::v1::{LoadModelRequest, load_model_response::Kind};
use sluice_shared::units;

use super::models::describe;
use crate::{
    connection::Daemon,
    output::{Failure, Out, Progress},
};

/// Loads a checkpoint, or the embedded model where no folder is named.
pub(super) async fn run(socket: PathBuf, dir: Option<&Path>, out: &mut Out) -> Result<(), Failure> {
    let path = dir.map_or(Ok(String::new()), absolute)?;
    let daemon = Daemon::connect(socket).await?;
    let answer = daemon.models().load_model(LoadModelRequest { path }).await;
    let mut stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let mut progress = Progress::new();
    let mut model = None;
    while let Some(answer) = stream.next().await {
        match answer.map_err(|status| daemon.failure(status))?.kind {
            Some(Kind::Progress(step)) => progress.show(&format!(
                "loading {} {} of {}",
                bar(step.loaded_bytes, step.total_bytes),
                units::bytes(step.loaded_bytes),
                units::bytes(step.total_bytes)
            )),
            Some(Kind::Model(loaded)) => model = Some(loaded),
            None => {}
        }
    }
    progress.clear();
    match model {
        Some(model) => out.line(&format!("loaded {}", describe(&model))),
        None => Err(Failure::new("the daemon ended the stream without a model")),
    }
}

/// The daemon has another working folder, so the path is made absolute here.
fn absolute(dir: &Path) -> Result<String, Failure> {
    let shown = dir.display();
    let path = std::path::absolute(dir)
        .map_err(|error| Failure::new(format!("make '{shown}' absolute: {error}")))?;
    let path = path.into_os_string().into_string();
    path.map_err(|_| Failure::new(format!("the path '{shown}' is not UTF-8")))
}

/// Columns of the bar.
const BAR_COLUMNS: u64 = 24;

fn bar(part: u64, whole: u64) -> String {
    let filled = match whole {
        0 => 0,
        whole => (u128::from(part.min(whole)) * u128::from(BAR_COLUMNS) / u128::from(whole)) as u64,
    };
    let filled = "━".repeat(filled as usize);
    format!("{filled:─<0$}", BAR_COLUMNS as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_has_one_width() {
        assert_eq!(bar(0, 0).chars().count(), 24);
        assert_eq!(bar(1, 2), "━".repeat(12) + &"─".repeat(12));
        assert_eq!(bar(9, 2), "━".repeat(24));
        assert_eq!(bar(u64::MAX, u64::MAX), "━".repeat(24));
    }

    #[test]
    fn paths_become_absolute() {
        let path = absolute(Path::new("models/x")).unwrap();
        assert!(
            path.starts_with('/') && path.ends_with("models/x"),
            "{path}"
        );
    }
}
