//! `sluice report`: what each level costs and saves for a model on this machine, as a table. The level that was in force
//! before is in force again afterwards, however the report ends.

mod level;
mod row;
mod samples;

use std::{cell::Cell, path::PathBuf};

use sluice_proto::v1::{
    ApplyRequest, LoadModelRequest, Model, ModelKind, OperationProgress, PlanOptions,
    RestoreRequest, RestoreTarget, SettingsStatus, Snapshot,
};
use sluice_shared::level::Level;

use self::{level::Measurer, row::ReportRow};
use super::{apply, follow::interrupts, load, operations::owned, paths::subject};
use crate::{
    cli::Report,
    connection::DaemonConnection,
    output::{Failure, StandardOutput, dim},
};

/// The levels of a report that names none, the most faithful first.
const LEVELS: [Level; 6] = [
    Level::Off,
    Level::Standard,
    Level::Mild,
    Level::Moderate,
    Level::Aggressive,
    Level::Optimized,
];
/// The daemon's reason where a model has no mix for level `optimized`.
const NO_MIX: &str = "NO_MIX";

/// Measures the levels one after another, and prints each row as soon as it is known.
pub(super) async fn run(
    socket: PathBuf,
    arguments: &Report,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let text = samples::text(arguments.text.as_deref())?;
    let daemon = DaemonConnection::connect(socket).await?;
    let mut interrupts = interrupts()?;
    if let Some(model) = &arguments.model {
        let request = LoadModelRequest {
            model: subject(model)?.into(),
            ..Default::default()
        };
        load::model(&daemon, request, false, &mut interrupts, out).await?;
    }
    let snapshot = daemon.snapshot().await?;
    let model = loaded(&snapshot)?;
    let before = Before::of(&snapshot)?;
    let measurer = Measurer {
        daemon: &daemon,
        request: level::request(&model, arguments.length),
        samples: samples::of_model(text, &model),
        samples_max: arguments.samples,
        seed: arguments.seed,
    };
    let is_changed = Cell::new(false);
    let measured = tokio::select! {
        measured = rows(&measurer, arguments, &is_changed, out) => measured,
        _ = interrupts.recv() => Err(Failure::interrupted("the report is not complete")),
    };
    if !is_changed.get() {
        return measured;
    }
    let restored = tokio::select! {
        restored = before.restore(&daemon) => restored,
        _ = interrupts.recv() => Err(Failure::interrupted("the daemon still goes back to the level before")),
    };
    match (measured, restored) {
        (measured, Ok(())) => measured,
        (Ok(()), Err(failure)) => Err(failure.with_hint(before.hint())),
        (Err(failure), Err(_)) => {
            dim(&format!(
                "note: the level before is not in force again; {}",
                before.hint()
            ));
            Err(failure)
        }
    }
}

async fn rows(
    measurer: &Measurer<'_>,
    arguments: &Report,
    is_changed: &Cell<bool>,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let asked = &arguments.levels;
    let mut done: Vec<ReportRow> = Vec::new();
    for level in if asked.is_empty() {
        &LEVELS
    } else {
        &asked[..]
    } {
        if done.iter().any(|row| row.level() == (*level).into()) {
            continue;
        }
        let plan = measurer.plan(*level).await;
        let is_left_out = |failure: &Failure| asked.is_empty() && failure.reason() == Some(NO_MIX);
        let row = match plan {
            Err(failure) if is_left_out(&failure) => continue,
            Err(failure) => ReportRow::not_measured(*level, failure)?,
            Ok(plan) => {
                is_changed.set(true);
                measurer.row(plan, &done).await?
            }
        };
        if arguments.json {
            out.json(&row)?;
        } else {
            if done.is_empty() {
                out.line(&row::header())?;
            }
            for line in row.lines() {
                out.line(&line)?;
            }
        }
        done.push(row);
    }
    match row::footer(&done, arguments.length) {
        None => Err(Failure::new("no level could be measured")),
        Some(_) if arguments.json => Ok(()),
        Some(footer) => out.line(&footer),
    }
}

/// The model that is in memory.
fn loaded(snapshot: &Snapshot) -> Result<Model, Failure> {
    let model = snapshot.model.clone().filter(|_| snapshot.plan.is_some());
    model.ok_or_else(|| {
        Failure::new("no model is loaded")
            .with_hint("name one, as in `sluice report NAME`; `sluice list` shows which there are")
    })
}

fn is_masked_diffusion(model: &Model) -> bool {
    let kind = model.shape.as_ref().map(|shape| shape.kind());
    kind != Some(ModelKind::Autoregressive)
}

/// The settings that were in force before the report.
struct Before {
    options: PlanOptions,
    /// They are those that the model was loaded with, so nobody asked for others since.
    is_start: bool,
}

impl Before {
    fn of(snapshot: &Snapshot) -> Result<Self, Failure> {
        let settings: &SettingsStatus = snapshot
            .settings
            .as_ref()
            .ok_or_else(|| Failure::new("the daemon's snapshot has no settings"))?;
        let options = settings.options.unwrap_or_default();
        Ok(Self {
            options,
            is_start: settings.loaded_with == Some(options),
        })
    }

    /// Puts them in force again.
    async fn restore(&self, daemon: &DaemonConnection) -> Result<(), Failure> {
        let level = self.options.level();
        let line =
            move |step: &OperationProgress| format!("back to {level}: {}", apply::step_line(step));
        let mut client = daemon.optimizer();
        // What is applied is remembered for the model's later loads. Where nothing was, nothing is to be remembered afterwards.
        if self.is_start {
            let target = RestoreTarget::Start.into();
            let call = client.restore(RestoreRequest {
                target,
                ..Default::default()
            });
            owned(daemon, call, line).await?;
        } else {
            let options = PlanOptions {
                level: self.options.level,
                mix: self.options.mix,
                ..Default::default()
            };
            let call = client.apply(ApplyRequest {
                options: Some(options),
                ..Default::default()
            });
            owned(daemon, call, line).await?;
        }
        Ok(())
    }

    fn hint(&self) -> String {
        match self.is_start {
            true => "`sluice restore` goes back to it".to_owned(),
            false => format!("`sluice level {}` goes back to it", self.options.level()),
        }
    }
}
