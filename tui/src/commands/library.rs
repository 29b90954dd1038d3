//! `sluice rm`, `inspect` and `unload`: models on disk, and unloading the loaded one.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Value, json};
use sluice_proto::v1::{
    InspectModelRequest, InspectModelResponse, RemoveModelRequest, RemoveModelResponse,
    UnloadModelRequest, UnloadModelResponse, model_ref::By,
};
use sluice_report as report;
use sluice_shared::{compression::is_container_path, units};

use super::{offline, paths::subject};
use crate::{
    cli::{Inspect, Remove},
    connection::DaemonConnection,
    formats,
    output::{Failure, StandardOutput},
    text::sanitise_line,
};

/// Deletes a downloaded model.
pub(super) async fn remove(
    socket: PathBuf,
    arguments: &Remove,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let daemon = DaemonConnection::connect(socket).await?;
    let request = RemoveModelRequest {
        model: By::Name(arguments.name.clone()).into(),
        force: arguments.force,
        converted_weights_only: arguments.converted,
    };
    let answer = daemon.models().remove_model(request).await;
    let removed = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    if arguments.json {
        return out.json(&Removal {
            name: &arguments.name,
            answer: &removed,
        });
    }
    out.line(&sanitise_line(&removal(arguments, &removed)))
}

/// The answer for scripts: the model that was asked for, and the result.
#[derive(Serialize)]
struct Removal<'a> {
    name: &'a str,
    #[serde(flatten)]
    answer: &'a RemoveModelResponse,
}

fn removal(arguments: &Remove, removed: &RemoveModelResponse) -> String {
    let (name, freed) = (&arguments.name, units::bytes(removed.freed_bytes));
    let in_use = match removed.files_in_use {
        0 => String::new(),
        count => {
            format!("; {count} in use stay: `sluice level off` or `sluice unload` lets them go")
        }
    };
    let path = &removed.kept_path;
    match (arguments.converted, removed.removed_files) {
        (true, 0) if removed.files_in_use == 0 => {
            format!("there are no converted weights of {name}")
        }
        (true, _) => format!("removed converted weights of {name}, {freed} freed{in_use}"),
        (false, _) if !path.is_empty() => format!("forgot {name}; its files stay in {path}"),
        (false, 0) => format!("removed {name}, {freed} freed{in_use}"),
        (false, _) => format!("removed {name} and its converted weights, {freed} freed{in_use}"),
    }
}

/// Unloads a model, or the present one.
pub(super) async fn unload(
    daemon: &DaemonConnection,
    model: Option<&str>,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let request = UnloadModelRequest {
        model: model.unwrap_or_default().to_owned(),
    };
    let answer = daemon.models().unload_model(request).await;
    let went = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    if json {
        return out.json(&went);
    }
    out.line(&sanitise_line(&unloaded(&went)))
}

fn unloaded(went: &UnloadModelResponse) -> String {
    if went.model.is_empty() {
        return "no model was loaded".to_owned();
    }
    let change = |before, after| format!("{} → {}", units::bytes(before), units::bytes(after));
    let mut line = format!(
        "unloaded {}: device {}",
        went.model,
        change(went.device_bytes_before, went.device_bytes_after)
    );
    if let (Some(before), Some(after)) = (went.resident_bytes_before, went.resident_bytes_after) {
        line += &format!(", sluiced {} resident", change(before, after));
    }
    line
}

/// Describes a checkpoint.
pub(super) async fn inspect(
    socket: PathBuf,
    arguments: &Inspect,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let model = subject(&arguments.model)?;
    let daemon = match (is_container_path(&arguments.model), &model) {
        // With `--json` scripts expect the daemon's whole message, of which `sluiced inspect` prints the container alone.
        (true, _) if arguments.json => {
            let hint = offline::offline_hint("inspect FILE.sluice --json");
            offline::daemon(socket, Err(hint)).await?
        }
        (true, By::Path(path)) => {
            offline::daemon(socket, Ok(vec!["inspect".to_owned(), path.clone()])).await?
        }
        _ => DaemonConnection::connect(socket).await?,
    };
    let request = InspectModelRequest {
        model: model.into(),
    };
    let answer = daemon.models().inspect_model(request).await;
    let facts = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    if arguments.json {
        out.json(&as_json(&facts))?;
    } else {
        for line in lines(&facts) {
            out.line(&sanitise_line(&line))?;
        }
    }
    match facts.not_loadable_reason.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "it cannot be loaded: {}",
            sanitise_line(&facts.not_loadable_reason)
        ))),
    }
}

fn as_json(facts: &InspectModelResponse) -> Value {
    let mut value = json!(facts);
    value["container"] = json!(facts.container.as_ref().map(report::container::json));
    value
}

fn lines(facts: &InspectModelResponse) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(model) = &facts.model {
        lines.push(format!("{} ({})", model.name, model.state()));
        if !model.path.is_empty() {
            lines.push(format!("  {:<16} {}", "path", model.path));
        }
        if model.disk_bytes > 0 {
            lines.push(format!("  {:<16} {}", "files", formats::files(model)));
        }
    }
    for fact in &facts.facts {
        lines.push(format!("  {:<16} {}", fact.name, fact.value));
    }
    if !facts.features.is_empty() {
        lines.push("what it can be asked for".to_owned());
    }
    for feature in &facts.features {
        let answer = match feature.refusal.is_empty() {
            true => "yes".to_owned(),
            false => format!("no: {}", feature.refusal),
        };
        lines.push(format!("  {:<42} {answer}", feature.name));
    }
    if !facts.settings.is_empty() {
        lines.push("settings and their sources".to_owned());
    }
    for setting in &facts.settings {
        let (value, origin) = (&setting.value, &setting.origin);
        lines.push(format!("  {:<18} {value} ({origin})", setting.name));
    }
    if !facts.tensors.is_empty() {
        lines.push("tensors".to_owned());
    }
    for group in &facts.tensors {
        lines.push(format!(
            "  {:<16} {:>6} with {} parameters, {}",
            group.dtype,
            units::count(group.tensors),
            units::count(group.parameters),
            units::bytes(group.bytes)
        ));
    }
    if !facts.levels.is_empty() {
        lines.push("levels, with everything in memory".to_owned());
    }
    for level in &facts.levels {
        let fits = match (level.not_loadable_reason.is_empty(), level.fits) {
            (false, _) => &level.not_loadable_reason[..],
            (true, true) => "fits the budget",
            (true, false) => "more than the budget: streamed",
        };
        lines.push(format!(
            "  {:<16} {:>8}, of it weights {:>8}; {fits}",
            level.level(),
            units::bytes(level.peak_bytes),
            units::bytes(level.weight_bytes)
        ));
    }
    if let Some(compressed) = &facts.container {
        lines.push(String::new());
        lines.extend(report::container::lines(compressed));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unloading_shows_what_came_back() {
        let went = UnloadModelResponse {
            model: "a/b".to_owned(),
            device_bytes_before: 3 << 30,
            device_bytes_after: 8 << 20,
            resident_bytes_before: Some(4 << 30),
            resident_bytes_after: Some(40 << 20),
        };
        assert_eq!(
            unloaded(&went),
            "unloaded a/b: device 3.00 GiB → 8.00 MiB, sluiced 4.00 GiB → 40.0 MiB resident"
        );
        assert_eq!(
            unloaded(&UnloadModelResponse::default()),
            "no model was loaded"
        );
    }
}
