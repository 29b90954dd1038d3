//! `sluice replay`: shows a saved run without a daemon.

use std::{
    fs::File,
    io::{BufRead, BufReader, IsTerminal, stdin},
    path::Path,
};

use super::input::STANDARD_INPUT;
use crate::{
    canvas::{Canvas, ids_text},
    cli::Replay,
    dashboard::{self, DashboardSetup, reel::OpenedRun},
    json::{
        self,
        read::{Events, ReadError},
    },
    output::{Failure, StandardOutput, dim},
    record,
};

/// Shows a run in the dashboard; without a terminal, prints its result or its events.
pub(super) async fn run(
    setup: impl FnOnce() -> Result<DashboardSetup, Failure>,
    arguments: &Replay,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let path = &arguments.file;
    if path == Path::new("-") {
        return print(stdin().lock(), STANDARD_INPUT, arguments.json, out);
    }
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| Failure::new(format!("open {name}: {error}")))?;
    let reader = BufReader::new(file);
    if !arguments.json && out.is_terminal() && stdin().is_terminal() {
        let setup = setup()?;
        let recording = record::load(reader).map_err(|error| wrong(&name, &error))?;
        return dashboard::replay(setup, OpenedRun { name, recording }).await;
    }
    print(reader, &name, arguments.json, out)
}

fn print(
    reader: impl BufRead,
    name: &str,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    if json {
        for kind in Events::new(reader) {
            out.line(&json::event(&kind.map_err(|error| wrong(name, &error))?))?;
        }
        return Ok(());
    }
    let recording = record::load(reader).map_err(|error| wrong(name, &error))?;
    let canvas = recording.canvas();
    out.line(&text(canvas))?;
    if !canvas.has_ended() {
        dim("the run was saved before its end");
    }
    Ok(())
}

fn wrong(name: &str, error: &ReadError) -> Failure {
    Failure::new(format!("{name}, {error}"))
        .with_hint("`sluice generate --json > FILE` saves a run")
}

/// The run's text; of a run without an end, the text that could no longer change.
fn text(canvas: &Canvas) -> String {
    match (&canvas.done, &canvas.pass) {
        (Some(done), _) => (done.text.clone()).unwrap_or_else(|| ids_text(&done.token_ids)),
        (None, Some(pass)) => String::from_utf8_lossy(&pass.stable_text).into_owned(),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::{GenerationDone, GenerationPass, generation_event::Event};

    use super::*;

    #[test]
    fn a_run_without_an_end_has_the_text_that_was_certain() {
        let mut canvas = Canvas::default();
        assert_eq!(text(&canvas), "");
        canvas.apply(Event::PassDone(GenerationPass {
            stable_text: b"Once".to_vec(),
            ..Default::default()
        }));
        assert_eq!(text(&canvas), "Once");
        canvas.apply(Event::Done(GenerationDone {
            token_ids: vec![1, 2],
            ..Default::default()
        }));
        assert_eq!(text(&canvas), "1,2");
    }
}
