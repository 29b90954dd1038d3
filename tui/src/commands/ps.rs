//! `sluice ps` and `sluice stop`: the loaded models, those that load or sleep, and their requests in short; and unloading one.

use std::path::{Path, PathBuf};

use serde_json::json;
use sluice_proto::v1::{Model, ModelState, Plan, QueueStatus, Snapshot};
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

/// Shows the loaded models and their requests.
pub(super) async fn run(
    daemon: &DaemonConnection,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let snapshot = daemon.snapshot().await?;
    let known = present::list(daemon).await?;
    if json {
        return out.json(&to_json(&snapshot, &known));
    }
    for line in lines(&snapshot, &known) {
        out.line(&sanitise_line(&line))?;
    }
    Ok(())
}

fn to_json(snapshot: &Snapshot, known: &[Model]) -> serde_json::Value {
    let device = snapshot.device.as_ref();
    let models: Vec<_> = rows_of(snapshot, known)
        .iter()
        .map(|row| {
            json!({
                "name": row.model.name,
                "path": row.model.path,
                "state": row.model.state(),
                "device": device.map(|device| device.kind()),
                "device_bytes": row.device_bytes,
                "level": row.plan.map(|plan| plan.level()),
                "budget_bytes": row.plan.map(|plan| plan.budget_bytes),
                "is_present": row.is_present,
                "is_pinned": row.is_pinned,
                "running": row.queue.map(|queue| queue.running),
                "waiting": row.queue.map(|queue| queue.waiting),
                "unused_ms": row.unused_ms,
            })
        })
        .collect();
    json!({"models": models, "requests": snapshot.requests().collect::<Vec<_>>()})
}

/// What a row of the table says of a model.
struct ModelRow<'a> {
    model: &'a Model,
    device_bytes: Option<u64>,
    plan: Option<&'a Plan>,
    queue: Option<&'a QueueStatus>,
    is_present: bool,
    is_pinned: bool,
    unused_ms: Option<u64>,
}

/// The loaded models, or of an older daemon the one that it shows; and of all `known` ones those that load or sleep.
fn rows_of<'a>(snapshot: &'a Snapshot, known: &'a [Model]) -> Vec<ModelRow<'a>> {
    let loaded = snapshot.loaded_models.iter().filter_map(|loaded| {
        Some(ModelRow {
            model: loaded.model.as_ref()?,
            device_bytes: Some(loaded.device_bytes),
            plan: loaded.plan.as_ref(),
            queue: loaded.queue.as_ref(),
            is_present: loaded.is_present,
            is_pinned: loaded.is_pinned,
            unused_ms: loaded.unused_ms,
        })
    });
    let mut rows: Vec<_> = loaded.collect();
    if rows.is_empty() {
        let device = snapshot.device.as_ref();
        rows.extend(snapshot.model.as_ref().map(|model| ModelRow {
            model,
            device_bytes: device.map(|device| device.used_bytes),
            plan: snapshot.plan.as_ref(),
            queue: snapshot.queue.as_ref(),
            is_present: true,
            is_pinned: false,
            unused_ms: None,
        }));
    }
    for model in known {
        let is_on_its_way = matches!(model.state(), ModelState::Loading | ModelState::Asleep);
        let is_there = |row: &ModelRow<'_>| {
            (&row.model.name, &row.model.path) == (&model.name, &model.path)
                && row.model.state() == model.state()
        };
        if is_on_its_way && !rows.iter().any(is_there) {
            rows.push(ModelRow {
                model,
                device_bytes: None,
                plan: None,
                queue: None,
                is_present: false,
                is_pinned: false,
                unused_ms: None,
            });
        }
    }
    rows
}

fn lines(snapshot: &Snapshot, known: &[Model]) -> Vec<String> {
    let models = rows_of(snapshot, known);
    if models.is_empty() {
        return vec!["no model is loaded; `sluice run NAME` loads one".to_owned()];
    }
    let device = snapshot.device.as_ref();
    let device = device.map_or_else(|| "?".to_owned(), |device| device.kind().to_string());
    let width = models.iter().map(|row| text::width(&row.model.name)).max();
    let width = width.unwrap_or_default().clamp(5, 48);
    let mut lines = vec![format!(
        "{:<width$}  {:<8}  {:<6}  {:>9}  {:<10}  REQUESTS",
        "MODEL", "STATE", "DEVICE", "HELD", "LEVEL"
    )];
    for row in &models {
        let state = match (row.model.state(), row.is_pinned) {
            (ModelState::Ready, true) => "pinned".to_owned(),
            (ModelState::Ready, false) => "loaded".to_owned(),
            (state, _) => state.to_string(),
        };
        let unknown = match row.model.state() {
            ModelState::Asleep => "-",
            _ => "?",
        };
        let held = row
            .device_bytes
            .map_or_else(|| unknown.to_owned(), units::bytes);
        let level = row
            .plan
            .map_or_else(|| "-".to_owned(), |plan| plan.level().to_string());
        let present = match row.is_present && models.len() > 1 {
            true => "; present",
            false => "",
        };
        lines.push(format!(
            "{:<width$}  {state:<8}  {device:<6}  {held:>9}  {level:<10}  {}{present}",
            row.model.name,
            work(row),
        ));
    }
    let mut rows = snapshot.requests().map(requests::row).peekable();
    if rows.peek().is_some() {
        lines.extend([String::new(), requests::header()]);
        lines.extend(rows);
    }
    lines
}

/// What a model is asked, or since when it is not.
fn work(row: &ModelRow<'_>) -> String {
    let Some(queue) = row.queue else {
        return String::new();
    };
    match (queue.running, queue.waiting, row.unused_ms) {
        (0, 0, None) => "nothing asked".to_owned(),
        (0, 0, Some(ms)) => format!("unused for {}", units::duration_ms(ms as f64)),
        (running, 0, _) => format!("{running} running"),
        (running, waiting, _) => format!("{running} running, {waiting} waiting"),
    }
}

/// Unloads the model that is named, or the present one, or cancels a load of it that is under way.
pub(super) async fn stop(
    socket: PathBuf,
    arguments: &Stop,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let daemon = DaemonConnection::connect(socket).await?;
    let models = present::list(&daemon).await?;
    let named = match &arguments.model {
        Some(name) => Some(named(&models, name)?),
        None => None,
    };
    let is_meant = |loading: &&Model| named.is_none_or(|named| named.name == loading.name);
    match present::loading(&models).filter(is_meant) {
        // A load that is under way is what the user wants stopped.
        Some(model) => stop_load(&daemon, model, arguments.json, out).await,
        None => {
            let model = named.map(|named| named.name.as_str());
            library::unload(&daemon, model, arguments.json, out).await
        }
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
        let is_loaded =
            |loaded: &Model| loaded.name == model.name && loaded.state() == ModelState::Ready;
        if models.iter().any(is_loaded) {
            return library::unload(daemon, Some(&model.name), json, out).await;
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

/// The named model, if it is loaded, asleep or being loaded.
fn named<'a>(models: &'a [Model], name: &Path) -> Result<&'a Model, Failure> {
    let subject = paths::subject(name)?;
    let is_there = |model: &&Model| {
        matches!(
            model.state(),
            ModelState::Ready | ModelState::Asleep | ModelState::Loading
        )
    };
    if let Some(model) = present::find(models, &subject).filter(is_there) {
        return Ok(model);
    }
    let failure = Failure::new(format!(
        "{} is not loaded",
        sanitise_line(&name.to_string_lossy())
    ));
    let others: Vec<_> = models.iter().filter(is_there).collect();
    let others: Vec<_> = others
        .iter()
        .map(|model| sanitise_line(&model.name))
        .collect();
    Err(failure.with_hint(match &others[..] {
        [] => "nothing is".to_owned(),
        [one] => format!("{one} is"),
        several => format!("{} are", several.join(", ")),
    }))
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::{
        DeviceKind, DeviceStatus, Level, LoadedModel, Operation, OperationKind, Plan, QueueStatus,
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
            lines(&snapshot, &[]),
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
        let busy = lines(&busy, &[]);
        assert_eq!((busy.len(), &busy[3]), (5, &requests::header()));
        let none = lines(&Snapshot::default(), &[]);
        assert_eq!(none, ["no model is loaded; `sluice run NAME` loads one"]);
        let json = to_json(&snapshot, &[]);
        assert_eq!(json["models"][0]["device_bytes"], 3_u64 << 30);
    }

    #[test]
    fn models_that_load_or_sleep_beside_others_are_listed() {
        let model = |name: &str, state: ModelState| Model {
            name: name.into(),
            path: format!("/m/{name}"),
            state: state.into(),
            ..Default::default()
        };
        let ready = model("ready", ModelState::Ready);
        let snapshot = Snapshot {
            loaded_models: vec![LoadedModel {
                model: Some(ready.clone()),
                is_present: true,
                ..Default::default()
            }],
            ..Default::default()
        };
        let known = [
            ready,
            model("late", ModelState::Loading),
            model("tired", ModelState::Asleep),
            model("on-disk", ModelState::Available),
        ];
        let rows = rows_of(&snapshot, &known);
        let names: Vec<_> = rows.iter().map(|row| &*row.model.name).collect();
        assert_eq!(names, ["ready", "late", "tired"]);
        let lines = lines(&snapshot, &known);
        assert!(lines[2].contains("loading"), "{}", lines[2]);
        assert!(lines[3].contains("asleep"), "{}", lines[3]);
    }
}
