//! The two lists of the jobs page: work and models.

use ratatui::{
    layout::{Constraint, Layout, Rect},
    text::Line,
};
use sluice_proto::v1::{Model, ModelOrigin, ModelState, Operation, OperationProgress};
use sluice_shared::units;

use super::super::{
    super::{
        hit_areas::HitTarget,
        jobs::{EndedWork, Jobs, JobsPane, Work, WorkOutcome},
        screen::{Screen, ScreenShape},
    },
    table::{Cell, Column, Table, bar, column},
};
use crate::{
    formats,
    paint::Role,
    text::{clip, sanitise_line},
};

const BAR_COLUMNS: usize = 14;

const WORK: &[Column] = &[
    column("WHAT", 20, 0),
    column("KIND", 10, 2),
    column("", 7, 1),
    column("HOW FAR", BAR_COLUMNS, 5),
    column("", 26, 6),
    column("A SECOND", 13, 7),
    column("LEFT", 8, 4),
    column("TIME", 11, 3),
    column("THREADS", 7, 8),
];

pub(super) fn draw_work(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    let is_focused = state.jobs.list == JobsPane::Work;
    let (running, ended) = state.works();
    let title = match running.len() {
        0 => "Jobs: none runs".to_owned(),
        1 => "Jobs: 1 runs".to_owned(),
        count => format!("Jobs: {count} run"),
    };
    let inner = screen.pane(area, &title, is_focused);
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    rows.extend(running.iter().map(|work| work_row(&state.jobs, work)));
    rows.extend(ended.iter().map(|ended| ended_row(ended)));
    if rows.is_empty() {
        nothing(screen, inner, "nothing runs, and nothing ended");
        return;
    }
    let at = state.selected_work();
    let about = match at.checked_sub(running.len()) {
        None => running.get(at).map(about_work),
        Some(at) => ended.get(at).map(|ended| about_ended(ended)),
    };
    let table = Table {
        columns: WORK,
        widest: usize::MAX,
        rows,
        selected: Some(at),
        is_focused,
        target: HitTarget::Row,
    };
    draw_with_foot(screen, inner, &table, about);
}

/// Draws a table, and below it a line about the selected row.
fn draw_with_foot(
    screen: &mut Screen<'_, '_>,
    area: Rect,
    table: &Table<'_>,
    about: Option<(String, Role)>,
) {
    let [top, foot] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(area);
    table.draw(screen, top);
    if let Some((words, role)) = about {
        let words = clip(&sanitise_line(&words), usize::from(foot.width));
        let line = Line::styled(words, screen.style(role));
        screen.frame.render_widget(line, foot);
    }
}

fn nothing(screen: &mut Screen<'_, '_>, area: Rect, otherwise: &str) {
    let words = match screen.state.filter.value().is_empty() {
        true => otherwise,
        false => "none that the filter lets through",
    };
    let line = Line::styled(words.to_owned(), screen.style(Role::Dim));
    screen.lines(area, vec![line]);
}

fn work_row(jobs: &Jobs, work: &Work) -> Vec<Cell> {
    let far = work.progress.as_ref();
    let share = far.and_then(|far| far.share());
    let unknown = || Cell::styled("–", Role::Dim);
    let rate = jobs.rate(work).zip(far);
    vec![
        work.what.clone().into(),
        work.kind.into(),
        share.map_or_else(unknown, |share| format!("{:>3.0} %", share * 100.0).into()),
        share.map_or_else(unknown, |share| bar(share, BAR_COLUMNS).into()),
        far.map_or_else(unknown, |far| far.words().into()),
        rate.map_or_else(unknown, |(rate, far)| far.rate_words(rate).into()),
        jobs.left_ms(work)
            .map_or_else(unknown, |ms| units::about_ms(ms).into()),
        units::duration_ms(work.elapsed_ms).into(),
        work.threads
            .map_or_else(unknown, |threads| threads.to_string().into()),
    ]
}

fn ended_row(ended: &EndedWork) -> Vec<Cell> {
    let (word, role) = match &ended.outcome {
        WorkOutcome::Pending => ("ended", Role::Dim),
        WorkOutcome::Done(_) => ("done", Role::Good),
        WorkOutcome::Cancelled => ("stopped", Role::Warning),
        WorkOutcome::Failed(_) => ("failed", Role::Bad),
        WorkOutcome::Unknown => ("ended", Role::Warning),
    };
    let (words, _) = about_ended(ended);
    vec![
        Cell::styled(ended.what.clone(), Role::Dim),
        Cell::styled(ended.kind, Role::Dim),
        Cell::styled(word, role),
        Cell::default(),
        Cell::styled(words, role),
        Cell::default(),
        Cell::default(),
        units::duration_ms(ended.elapsed_ms).into(),
        Cell::default(),
    ]
}

fn about_work(work: &Work) -> (String, Role) {
    let far = work
        .progress
        .map_or("how far is not known".to_owned(), |far| {
            format!("{} done", far.words())
        });
    let at = match work.at.as_str() {
        "" => String::new(),
        at => format!(", at {at}"),
    };
    let words = format!("{} {}: {far}{at}", work.kind, work.what);
    (words, Role::Committed)
}

fn about_ended(ended: &EndedWork) -> (String, Role) {
    match &ended.outcome {
        WorkOutcome::Pending => ("ended; the daemon is asked how".to_owned(), Role::Dim),
        WorkOutcome::Done(words) => (words.clone(), Role::Good),
        WorkOutcome::Cancelled => ("cancelled".to_owned(), Role::Warning),
        WorkOutcome::Failed(why) => (format!("failed: {why}"), Role::Bad),
        WorkOutcome::Unknown => ("ended; how is not known".to_owned(), Role::Warning),
    }
}

/// Width beyond which names are cut.
const MODEL_COLUMNS_MAX: usize = 60;

const MODELS: &[Column] = &[
    column("MODEL", 18, 0),
    column("", 7, 3),
    column("STATE", 9, 1),
    column("FAMILY", 10, 4),
    column("PARAMETERS", 14, 6),
    column("SIZE", 9, 2),
    column("FORMAT", 11, 5),
    column("FROM", 14, 7),
];

pub(super) fn draw_models(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    let is_focused = state.jobs.list == JobsPane::Models;
    let models = state.models();
    let title = match &state.jobs.models {
        Some(all) => format!("Models: {}", all.len()),
        None => "Models".to_owned(),
    };
    let inner = screen.pane(area, &title, is_focused);
    if models.is_empty() {
        let words = match (&state.jobs.models, state.is_connected()) {
            (Some(_), _) => "none; p downloads one",
            (None, true) => "asking",
            (None, false) => "unknown",
        };
        nothing(screen, inner, words);
        return;
    }
    let selected = state.selected_model();
    let at = models
        .iter()
        .position(|model| Some(&model.name) == selected.map(|model| &model.name));
    let operations = (screen.state.snapshot()).map_or(&[][..], |snapshot| &snapshot.operations);
    let table = Table {
        columns: MODELS,
        widest: MODEL_COLUMNS_MAX,
        rows: models
            .iter()
            .map(|model| model_row(model, operations))
            .collect(),
        selected: at,
        is_focused,
        target: HitTarget::OtherRow,
    };
    let about = selected.map(|model| about_model(model, operations));
    match screen.shape {
        ScreenShape::Small => table.draw(screen, inner),
        ScreenShape::Wide | ScreenShape::Tall => draw_with_foot(screen, inner, &table, about),
    }
}

fn model_row(model: &Model, operations: &[Operation]) -> Vec<Cell> {
    let shape = model.shape.as_ref();
    let family = shape.map_or(&model.family, |shape| &shape.family);
    let parameters = shape.map(|shape| shape.parameters).or(model.parameters);
    let size = match (pull(model, operations), model.disk_bytes, shape) {
        (Some(step), ..) => Some(step.done),
        (None, 0, shape) => shape.map(|shape| shape.weight_bytes),
        (None, bytes, _) => Some(bytes),
    };
    let format = formats::file_format(model).unwrap_or_default();
    let role = match model.state() {
        ModelState::Ready => Role::Good,
        ModelState::Loading | ModelState::Pulling | ModelState::Partial => Role::Warning,
        ModelState::Failed => Role::Bad,
        _ => Role::Committed,
    };
    vec![
        model.name.clone().into(),
        if model.is_default { "default" } else { "" }.into(),
        Cell::styled(state_words(model), role),
        known(family),
        parameters.map_or_else(|| known(""), |count| units::count(count).into()),
        size.map_or_else(|| known(""), |bytes| units::bytes(bytes).into()),
        known(&format),
        known(origin(model.origin())),
    ]
}

fn known(words: &str) -> Cell {
    match words {
        "" => Cell::styled("unknown", Role::Dim),
        words => words.into(),
    }
}

fn state_words(model: &Model) -> String {
    match model.state() {
        ModelState::Ready => "loaded".to_owned(),
        ModelState::Available if model.is_demonstration => "built in".to_owned(),
        ModelState::Available => "on disk".to_owned(),
        other => other.to_string(),
    }
}

fn origin(origin: ModelOrigin) -> &'static str {
    match origin {
        ModelOrigin::Embedded => "sluiced itself",
        ModelOrigin::Pulled => "downloaded",
        ModelOrigin::Local => "put there",
        ModelOrigin::HubCache => "hub's cache",
        ModelOrigin::Path => "its path",
        ModelOrigin::Unspecified => "",
    }
}

fn about_model(model: &Model, operations: &[Operation]) -> (String, Role) {
    if !model.error.is_empty() {
        return (format!("{}: {}", model.name, model.error), Role::Bad);
    }
    let mut words = match model.path.as_str() {
        "" if model.is_demonstration => "the demonstration model, inside sluiced".to_owned(),
        "" => model.name.clone(),
        path => path.to_owned(),
    };
    if let Some(step) = pull(model, operations) {
        words += &format!(
            ", {} of {} came",
            units::bytes(step.done),
            units::bytes(step.total.unwrap_or(0))
        );
    }
    (words, Role::Dim)
}

/// Progress of a model's download.
fn pull<'a>(model: &Model, operations: &'a [Operation]) -> Option<&'a OperationProgress> {
    let step = model.progress_in(operations);
    step.filter(|_| model.state() == ModelState::Pulling)
}
