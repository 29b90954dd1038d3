//! The dashboard: what a bare `sluice` shows.
//!
//! [`event`] lists all that can happen, [`keys`] what keys do, [`state`] holds what is known, [`mod@update`] is the one function
//! that changes it, [`view`] draws it. Each of the six pages is a module that draws and says what its keys do. This module runs
//! them: it waits for the next event, and carries out what the update asks for.

pub mod chat;
mod command;
pub mod event;
mod files;
pub mod history;
pub mod jobs;
pub mod keep;
pub mod keys;
pub mod levels;
pub mod line;
pub mod options;
mod pages;
mod panels;
pub mod state;
mod tasks;
mod terminal;
pub mod update;
pub mod view;

#[cfg(test)]
mod tests;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use crossterm::event::{
    Event as Input, EventStream, KeyEventKind, MouseButton, MouseEvent, MouseEventKind,
};
use futures_util::StreamExt;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use crate::{
    output::{Failure, say},
    paint::Paint,
    record::Runs,
};
use event::{Effect, Event};
use keep::{Fixed, Keeper};
use state::{Link, Opened, State};
use tasks::Tasks;
use terminal::Session;
use update::update;
use view::Targets;

/// Events that may wait for the update; beyond that the stream waits, and the daemon skips
/// pictures for us.
const EVENTS_MAX: usize = 256;
/// Least time between two frames where a person did something: an answer to a key is soon there.
const FRAME: Duration = Duration::from_millis(16);
/// The same where only figures moved: 20 a second are as many as anybody can read.
const FRAME_OF_DATA: Duration = Duration::from_millis(50);
/// Precision of what counts seconds, and of passes that are played.
const TICK: Duration = Duration::from_millis(100);

/// What the dashboard is started with.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Where the daemon listens.
    pub socket: PathBuf,
    /// How things look.
    pub paint: Paint,
    /// Whether the mouse is ours.
    pub mouse: bool,
    /// The file of what survives between runs; `None`: nothing does.
    pub keep: Option<PathBuf>,
    /// What of the looks is not to come from there.
    pub fixed: Fixed,
}

/// Runs the dashboard until the user leaves.
///
/// # Errors
/// When the terminal can't be taken over or drawn on. A daemon that is absent is no error:
/// the screen says so and waits for it.
pub async fn run(setup: Setup) -> Result<(), Failure> {
    show(setup, None).await
}

/// Shows a saved run until the user leaves. No daemon is looked for.
///
/// # Errors
/// When the terminal can't be taken over or drawn on.
pub async fn replay(setup: Setup, run: Opened) -> Result<(), Failure> {
    show(setup, Some(run)).await
}

async fn show(setup: Setup, replayed: Option<Opened>) -> Result<(), Failure> {
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    let mut state = State::new(setup.socket.display().to_string(), setup.paint);
    state.mouse = setup.mouse;
    state.runs = Runs::here();
    state.size = crossterm::terminal::size().unwrap_or(state.size);
    let mut keeper =
        (setup.keep).and_then(|path| Keeper::begin(path, setup.fixed, &mut state, sender.clone()));
    let mut ends = [
        signal(SignalKind::terminate())?,
        signal(SignalKind::hangup())?,
        signal(SignalKind::interrupt())?,
    ];
    let start = Instant::now();
    let mut session = Session::enter(state.mouse)?;
    let mut input = EventStream::new();
    let mut tasks = match replayed {
        Some(run) => {
            let name = run.name.clone();
            state.link = Link::Replay { name };
            pages::canvas::open(&mut state, Box::new(run));
            Tasks::alone(setup.socket, sender)
        }
        None => Tasks::start(setup.socket, sender),
    };
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut targets = Targets::default();
    let mut drawn = start;
    let mut due = Some(start);
    loop {
        if due.is_some_and(|at| at <= Instant::now()) {
            session.terminal.draw(|frame| {
                targets = view::view(frame, &state);
            })?;
            drawn = Instant::now();
            due = None;
        }
        let [terminated, hung_up, interrupted] = &mut ends;
        let next_frame = due.unwrap_or(start);
        let mut taken = Vec::new();
        let frame = tokio::select! {
            biased;
            _ = terminated.recv() => { taken.push(Event::Terminate); FRAME }
            _ = hung_up.recv() => { taken.push(Event::Terminate); FRAME }
            _ = interrupted.recv() => { taken.push(Event::Terminate); FRAME }
            given = input.next() => {
                taken.extend(match given {
                    Some(Ok(given)) => translate(given, &targets),
                    Some(Err(_)) | None => Some(Event::Terminate),
                });
                FRAME
            }
            // What came since the last frame is taken in at once: to wake for each message of a busy daemon takes more time
            // than to draw.
            () = tokio::time::sleep_until(next_frame.into()), if due.is_some() => {
                while taken.len() < EVENTS_MAX && let Ok(event) = events.try_recv() {
                    taken.push(event);
                }
                FRAME_OF_DATA
            }
            Some(event) = events.recv(), if due.is_none() => { taken.push(event); FRAME_OF_DATA }
            _ = ticks.tick() => { taken.push(Event::Tick); FRAME_OF_DATA }
        };
        let now_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        for event in taken {
            let outcome = update(&mut state, event, now_ms);
            if outcome.changed {
                let soonest = drawn + frame;
                due = Some(due.map_or(soonest, |due| due.min(soonest)));
            }
            for effect in outcome.effects {
                match effect {
                    Effect::Quit => {
                        drop(session);
                        if let Some(keeper) = keeper
                            && let Err(problem) = keeper.end(&state).await
                        {
                            say(&problem);
                        }
                        return Ok(());
                    }
                    Effect::Suspend => {
                        // A live stream would go on reading keys that are meant for the shell.
                        drop(input);
                        session.suspend()?;
                        state.size = crossterm::terminal::size().unwrap_or(state.size);
                        input = EventStream::new();
                        due = Some(Instant::now());
                    }
                    Effect::Mouse(ours) => session.take_mouse(ours)?,
                    Effect::Keep(kept) => {
                        if let Some(keeper) = &mut keeper {
                            keeper.keep(*kept);
                        }
                    }
                    other => tasks.carry_out(other),
                }
            }
        }
    }
}

/// What a person did, in the dashboard's terms.
fn translate(input: Input, targets: &Targets) -> Option<Event> {
    match input {
        Input::Key(key) if key.kind != KeyEventKind::Release => Some(Event::Key(key)),
        Input::Paste(text) => Some(Event::Paste(text)),
        Input::Resize(columns, rows) => Some(Event::Resized(columns, rows)),
        Input::Mouse(MouseEvent {
            kind, column, row, ..
        }) => {
            let target = targets.at(column, row);
            match kind {
                MouseEventKind::Down(MouseButton::Left) => target.map(Event::Click),
                MouseEventKind::ScrollUp => Some(Event::Wheel(target, -1)),
                MouseEventKind::ScrollDown => Some(Event::Wheel(target, 1)),
                _ => None,
            }
        }
        _ => None,
    }
}
