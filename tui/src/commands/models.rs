//! `sluice list`, and models in words.

use sluice_proto::v1::{
    ConvertedWeights, ListModelsRequest, ListModelsResponse, Model, ModelOrigin, ModelState,
    Operation,
};
use sluice_shared::{mix::MixId, units};

use crate::{
    connection::DaemonConnection,
    formats,
    output::{Failure, StandardOutput},
    text::{self, sanitise_line},
};

/// Lists the models that the daemon knows.
pub(super) async fn run(
    daemon: &DaemonConnection,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let answer = daemon.models().list_models(ListModelsRequest {}).await;
    let list = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let models = &list.models;
    if json {
        return out.json(&list);
    }
    if models.is_empty() {
        out.line("no models")?;
    } else {
        show_models(models, &list.operations, out)?;
    }
    for line in converted_weights(&list) {
        out.line(&sanitise_line(&line))?;
    }
    Ok(())
}

fn show_models(
    models: &[Model],
    operations: &[Operation],
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let width = models.iter().map(|model| text::width(&model.name));
    let width = width.max().unwrap_or_default().clamp(4, NAME_COLUMNS_MAX);
    let licences = models.iter().map(|model| text::width(licence(model)));
    let licence_width = licences.max().unwrap_or_default();
    let licences = licence_width.clamp(7, LICENCE_COLUMNS_MAX);
    out.line(&format!(
        "  {:<width$}  {:<9}  {:<8}  {:>14}  {:>8}  {:<11}  {:<licences$}  FROM",
        "NAME", "STATE", "FAMILY", "PARAMETERS", "SIZE", "FORMAT", "LICENCE"
    ))?;
    for model in models {
        out.line(&row(model, operations, [width, licences]))?;
    }
    Ok(())
}

/// Lines about converted weights on disk: each with its size, and the total.
fn converted_weights(list: &ListModelsResponse) -> Vec<String> {
    if list.converted_weights.is_empty() {
        return Vec::new();
    }
    let all = list.converted_weights.iter().map(|kept| kept.bytes).sum();
    let limit = list
        .converted_weights_bytes_max
        .map_or_else(String::new, |bytes| {
            format!(" of at most {}", units::bytes(bytes))
        });
    let mut lines = vec![
        String::new(),
        format!(
            "converted weights, {}{limit} in {}; `sluice rm --converted NAME` removes a model's",
            units::bytes(all),
            list.converted_weights_folder
        ),
    ];
    let width = list
        .converted_weights
        .iter()
        .map(|kept| text::width(&kept.model));
    let width = width.max().unwrap_or_default().min(NAME_COLUMNS_MAX);
    let level = |kept: &ConvertedWeights| match MixId::from_number(kept.mix) {
        Some(mix) => format!("{} {mix}", kept.level()),
        None => kept.level().to_string(),
    };
    let levels = list.converted_weights.iter().map(|kept| level(kept).len());
    let level_width = levels.max().unwrap_or_default().max(LEVEL_COLUMNS);
    lines.extend(list.converted_weights.iter().map(|kept| {
        format!(
            "  {:<width$}  {:<level_width$}  {:>8}{}",
            kept.model,
            level(kept),
            units::bytes(kept.bytes),
            if kept.is_in_use { "  in use" } else { "" }
        )
    }));
    lines
}

/// Width of the levels' names, but for mixes.
const LEVEL_COLUMNS: usize = 10;
/// Width beyond which a name pushes the other columns aside.
const NAME_COLUMNS_MAX: usize = 48;
/// Width beyond which a licence does.
const LICENCE_COLUMNS_MAX: usize = 20;

/// The licence that a model's files name.
fn licence(model: &Model) -> &str {
    model.license.as_deref().unwrap_or("unknown")
}

/// A model as a row of the table; the default one is marked.
fn row(model: &Model, operations: &[Operation], [width, licence_width]: [usize; 2]) -> String {
    let shape = model.shape.as_ref();
    let family = shape.map_or(model.family.as_str(), |shape| shape.family.as_str());
    let parameters = shape.map(|shape| shape.parameters).or(model.parameters);
    let step = model.progress_in(operations);
    let pull = step.filter(|_| model.state() == ModelState::Pulling);
    let size = match (model.disk_bytes, shape, pull) {
        (_, _, Some(pull)) => units::bytes(pull.done),
        (0, Some(shape), _) => units::bytes(shape.weight_bytes),
        (0, None, _) => "?".to_owned(),
        (bytes, ..) => units::bytes(bytes),
    };
    let format = formats::file_format(model).unwrap_or_default();
    let mut line = format!(
        "{} {:<width$}  {:<9}  {:<8}  {:>14}  {size:>8}  {format:<11}  {:<licence_width$}  {}",
        if model.is_default { '*' } else { ' ' },
        model.name,
        state(model),
        if family.is_empty() { "?" } else { family },
        parameters.map_or_else(|| "?".to_owned(), units::count),
        licence(model),
        origin(model),
    );
    match (model.state(), step) {
        (ModelState::Pulling, Some(step)) => {
            line += &format!(", {} in all", units::bytes(step.total.unwrap_or(0)));
        }
        (ModelState::Loading, Some(step)) => {
            let (done, total) = (step.done, step.total.unwrap_or(0));
            line += &format!(", {} of {} read", units::bytes(done), units::bytes(total));
        }
        _ => {}
    }
    if !model.error.is_empty() {
        line += &format!(", error: {}", model.error);
    }
    sanitise_line(&line)
}

fn state(model: &Model) -> String {
    match model.state() {
        ModelState::Ready => "loaded".to_owned(),
        ModelState::Available if model.is_demonstration => "built in".to_owned(),
        ModelState::Available => "on disk".to_owned(),
        _ => model.state().to_string(),
    }
}

fn origin(model: &Model) -> String {
    let path = &model.path;
    match model.origin() {
        _ if model.is_demonstration => "demonstration model, inside sluiced".to_owned(),
        ModelOrigin::HubCache => format!("{path} (the hub's cache)"),
        ModelOrigin::Local => format!("{path} (local)"),
        _ => path.clone(),
    }
}

/// A model in one line.
pub(crate) fn describe(model: &Model) -> String {
    let mut line = format!("{} ({})", model.name, model.state());
    if let Some(shape) = &model.shape {
        line += &format!(
            ": {}, {} parameters, {}, {} layers, hidden size {}, context {}",
            shape.family,
            units::count(shape.parameters),
            formats::weight_formats(shape),
            shape.layers,
            shape.hidden_size,
            units::count(shape.context_length.into()),
        );
        if !shape.has_tokenizer {
            line += ", no tokenizer";
        }
    }
    if model.shape.is_none() && model.disk_bytes > 0 {
        line += &format!(": {}", formats::files(model));
    }
    if model.is_demonstration {
        line += ", demonstration model";
    }
    if !model.path.is_empty() {
        line += &format!(", from {}", model.path);
    }
    if !model.error.is_empty() {
        line += &format!(", error: {}", model.error);
    }
    sanitise_line(&line)
}
