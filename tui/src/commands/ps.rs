//! `sluice ps` and `sluice stop`: the loaded model and its requests in short, and unloading it.

use std::path::{Path, PathBuf};

use serde_json::json;
use sluice_proto::v1::{Model, ModelState, Snapshot};
use sluice_shared::units;

use super::{
    library,
    operations::{CancelEnd, CancelledOperation, cancel_and_wait},
    paths, present, requests,
};
use crate::{
    cli::Stop,
    connection::DaemonConnection,
    output::{Failure, StandardOutput},
    text::{self, sanitise_line},
};

/// Shows the loaded model and its requests.
pub(super) async fn run(
    daemon: &DaemonConnection,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let snapshot = daemon.snapshot().await?;
    if json {
        return out.json(&to_json(&snapshot));
    }
    for line in lines(&snapshot) {
        out.line(&sanitise_line(&line))?;
    }
    Ok(())
}

fn to_json(snapshot: &Snapshot) -> serde_json::Value {
    let device = snapshot.device.as_ref();
    let models: Vec<_> = snapshot
        .model
        .iter()
        .map(|model| {
            json!({
                "name": model.name,
                "path": model.path,
                "state": model.state(),
                "device": device.map(|device| device.kind()),
                "device_bytes": device.map(|device| device.used_bytes),
                "level": snapshot.plan.as_ref().map(|plan| plan.level()),
                "budget_bytes": snapshot.plan.as_ref().map(|plan| plan.budget_bytes),
            })
        })
        .collect();
    json!({"models": models, "requests": snapshot.requests().collect::<Vec<_>>()})
}

fn lines(snapshot: &Snapshot) -> Vec<String> {
    let Some(model) = &snapshot.model else {
        return vec!["no model is loaded; `sluice run NAME` loads one".to_owned()];
    };
    let (device, plan) = (snapshot.device.as_ref(), snapshot.plan.as_ref());
    let held = device.map_or_else(|| "?".to_owned(), |device| units::bytes(device.used_bytes));
    let state = match model.state() {
        ModelState::Ready => "loaded".to_owned(),
        state => state.to_string(),
    };
    let work = snapshot.queue.as_ref().map_or_else(String::new, |queue| {
        match (queue.running, queue.waiting) {
            (0, 0) => "nothing asked".to_owned(),
            (running, 0) => format!("{running} running"),
            (running, waiting) => format!("{running} running, {waiting} waiting"),
        }
    });
    let width = text::width(&model.name).clamp(5, 48);
    let mut lines = vec![
        format!(
            "{:<width$}  {:<8}  {:<6}  {:>9}  {:<10}  REQUESTS",
            "MODEL", "STATE", "DEVICE", "HELD", "LEVEL"
        ),
        format!(
            "{:<width$}  {:<8}  {:<6}  {:>9}  {:<10}  {}",
            model.name,
            state,
            device.map_or_else(|| "?".to_owned(), |device| device.kind().to_string()),
            held,
            plan.map_or_else(|| "-".to_owned(), |plan| plan.level().to_string()),
            work,
        ),
    ];
    let mut rows = snapshot.requests().map(requests::row).peekable();
    if rows.peek().is_some() {
        lines.extend([String::new(), requests::header()]);
        lines.extend(rows);
    }
    lines
}

/// Unloads the model if it is the one that is named, or cancels a load that is under way.
pub(super) async fn stop(
    socket: PathBuf,
    arguments: &Stop,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let daemon = DaemonConnection::connect(socket).await?;
    let models = present::list(&daemon).await?;
    if let Some(name) = &arguments.model {
        check_named(&models, name)?;
    }
    match present::loading(&models) {
        // A load that is under way would replace the loaded model, so it is what the user wants stopped.
        Some(model) => stop_load(&daemon, model, arguments.json, out).await,
        None => library::unload(&daemon, arguments.json, out).await,
    }
}

/// Cancels the load of a model and waits for its end, so that another can begin. A load that is done before it could be
/// stopped is unloaded.
async fn stop_load(
    daemon: &DaemonConnection,
    model: &Model,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let ended = match model.operation_id {
        Some(operation_id) => Some(cancel_and_wait(daemon, operation_id).await?),
        None => None,
    };
    let was_late = |ended: &CancelledOperation| ended.end != CancelEnd::Cancelled;
    if ended.as_ref().is_some_and(was_late) {
        let models = present::list(daemon).await?;
        if present::loaded(&models).is_some_and(|loaded| loaded.name == model.name) {
            return library::unload(daemon, json, out).await;
        }
    }
    if json {
        let was_loading = ended.is_some_and(|ended| ended.was_active);
        return out.json(&json!({"name": model.name, "was_loading": was_loading}));
    }
    match ended {
        Some(ended) => ended.tell(json, out),
        None => out.line(&format!(
            "the load of {} has already finished",
            sanitise_line(&model.name)
        )),
    }
}

/// Checks that the named model is the one that is loaded or being loaded, so that no other client's model is unloaded.
fn check_named(models: &[Model], name: &Path) -> Result<(), Failure> {
    let subject = paths::subject(name)?;
    let named = present::find(models, &subject);
    let present = present::loading(models).or_else(|| present::loaded(models));
    match (present, named) {
        (Some(present), Some(named)) if present.name == named.name => Ok(()),
        (present, _) => {
            let failure = Failure::new(format!(
                "{} is not loaded",
                sanitise_line(&name.to_string_lossy())
            ));
            Err(match present {
                Some(present) => failure.with_hint(format!("{} is", sanitise_line(&present.name))),
                None => failure.with_hint("nothing is"),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::{
        DeviceKind, DeviceStatus, Level, Operation, OperationKind, Plan, QueueStatus,
    };

    use super::*;

    #[test]
    fn the_model_and_its_work_fit_a_line() {
        let snapshot = Snapshot {
            model: Some(Model {
                name: "o/m".into(),
                state: ModelState::Ready.into(),
                ..Default::default()
            }),
            device: Some(DeviceStatus {
                kind: DeviceKind::Cpu.into(),
                used_bytes: 3 << 30,
                ..Default::default()
            }),
            plan: Some(Plan {
                level: Level::Standard.into(),
                ..Default::default()
            }),
            queue: Some(QueueStatus {
                running: 1,
                waiting: 2,
                ..Default::default()
            }),
            ..Default::default()
        };
        assert_eq!(
            lines(&snapshot),
            [
                "MODEL  STATE     DEVICE       HELD  LEVEL       REQUESTS",
                "o/m    loaded    cpu      3.00 GiB  standard    1 running, 2 waiting",
            ]
        );
        let busy = Snapshot {
            operations: vec![Operation {
                kind: OperationKind::Generate.into(),
                ..Default::default()
            }],
            ..snapshot.clone()
        };
        let busy = lines(&busy);
        assert_eq!((busy.len(), &busy[3]), (5, &requests::header()));
        let none = lines(&Snapshot::default());
        assert_eq!(none, ["no model is loaded; `sluice run NAME` loads one"]);
        assert_eq!(to_json(&snapshot)["models"][0]["device_bytes"], 3_u64 << 30);
    }
}
