//! The dashboard: what a bare `sluice` shows.
//!
//! Each layer uses only those before it. First come words: [`keys`] says what keys do, [`event`] lists all that can happen and
//! all that can be asked for, [`hit_areas`] what reacts to the mouse; [`chat`], [`requests`], [`jobs`], [`levels`] and others
//! hold what is known of one subject. [`state`] is all of it. [`view`] draws the state, with a module of `pages` for each of
//! the six pages. [`mod@update`] is the one function that changes the state. This module runs them: it waits for the next
//! event, and carries out what the update asks for.

pub mod chat;
mod command;
pub mod event;
mod files;
pub mod history;
pub mod hit_areas;
pub mod jobs;
mod keyboard;
pub mod keys;
pub mod levels;
pub mod line;
pub mod options;
mod pages;
mod panels;
pub mod persist;
mod persister;
mod prompt;
pub mod recall;
pub mod reel;
pub mod requests;
mod screen;
pub mod state;
mod tasks;
mod terminal;
pub mod update;
pub mod view;

#[cfg(test)]
mod tests;

use std::{
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

use crossterm::event::{Event as Input, KeyEventKind, MouseButton, MouseEvent, MouseEventKind};
use tokio::{sync::mpsc, time::MissedTickBehavior};

use crate::{
    output::{Failure, say},
    paint::Paint,
    record::Runs,
};
use event::{Effect, Event};
use hit_areas::HitAreas;
use keyboard::Keyboard;
use keys::Page;
use persist::FixedLooks;
use persister::Persister;
use reel::OpenedRun;
use state::{DaemonLink, DashboardState};
use tasks::Tasks;
use terminal::{Ends, Session, Stops, SuspendTarget};
use update::update;

/// Events that may wait for the update; beyond that the stream waits, and the daemon skips
/// pictures for us.
const EVENTS_MAX: usize = 256;
/// Least time between two frames where a person did something: an answer to a key is soon there.
const FRAME: Duration = Duration::from_millis(16);
/// The same where only figures moved: 15 a second are as many as anybody can read.
const FRAME_OF_DATA: Duration = Duration::from_millis(66);
/// The same on the canvas page, where each pass moves every cell of the heat map.
const FRAME_OF_PASSES: Duration = Duration::from_millis(100);
/// Precision of what counts seconds, and of passes that are played.
const TICK: Duration = Duration::from_millis(100);

/// What the dashboard is started with.
#[derive(Debug, Clone)]
pub struct DashboardSetup {
    /// Where the daemon listens.
    pub socket: PathBuf,
    /// How things look.
    pub paint: Paint,
    /// Whether the dashboard takes mouse events; otherwise the terminal keeps them, for selecting text.
    pub mouse: bool,
    /// The file of what survives between runs; `None`: nothing does.
    pub persist_path: Option<PathBuf>,
    /// Which looks flags or settings already decide, so that the file does not change them.
    pub fixed: FixedLooks,
}

/// Runs the dashboard until the user leaves.
///
/// # Errors
/// When the terminal cannot be taken over or drawn on. A daemon that is absent is no error:
/// the screen says so and waits for it.
pub async fn run(setup: DashboardSetup) -> Result<(), Failure> {
    show(setup, None).await
}

/// Shows a saved run until the user leaves. No daemon is looked for.
///
/// # Errors
/// When the terminal cannot be taken over or drawn on.
pub async fn replay(setup: DashboardSetup, run: OpenedRun) -> Result<(), Failure> {
    show(setup, Some(run)).await
}

async fn show(setup: DashboardSetup, replayed: Option<OpenedRun>) -> Result<(), Failure> {
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let mut state = DashboardState::new(setup.socket.display().to_string(), setup.paint);
    state.mouse = setup.mouse;
    state.runs = Runs::here();
    state.size = crossterm::terminal::size().unwrap_or(state.size);
    // Before the screen is taken over: the first frame has the restored theme, and the session the restored mouse mode.
    let mut keeper = (setup.persist_path)
        .and_then(|path| Persister::begin(path, setup.fixed, &mut state, sender.clone()));
    // Signals are caught before raw mode begins, so that no signal can end the process with the terminal still taken over.
    let ends = Ends::listen()?;
    let stops = Stops::listen()?;
    let session = Session::enter(state.mouse)?;
    let tasks = match replayed {
        Some(run) => {
            let name = run.name.clone();
            state.link = DaemonLink::Replay { name };
            update::canvas::open(&mut state, Box::new(run));
            Tasks::alone(setup.socket, sender)
        }
        None => Tasks::start(setup.socket, sender),
    };
    let runtime = Runtime {
        session,
        events,
        ends,
        stops,
        tasks,
    };
    let shown = runtime.run(&mut state, &mut keeper).await;
    // `run` consumed the session, so the terminal is given back and a failed write can be reported on it. However the
    // dashboard ended, also with its terminal, the last state is written.
    if let Some(keeper) = keeper
        && let Err(problem) = keeper.end(&state).await
    {
        say(&problem);
    }
    match shown {
        // Closing the terminal window is a way to quit, not an error.
        Err(error) if terminal::is_gone(&error) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(ShowEnd::Left) => Ok(()),
        Ok(ShowEnd::Panicked) => Err(Failure::new("a part of the dashboard failed")),
    }
}

/// Why the event loop ended.
enum ShowEnd {
    /// The user quit, or a signal or hang-up asked for the end.
    Left,
    /// A task or thread panicked.
    Panicked,
}

/// What wakes the event loop, and what carries out its effects.
struct Runtime {
    session: Session,
    events: mpsc::Receiver<Event>,
    ends: Ends,
    stops: Stops,
    tasks: Tasks,
}

impl Runtime {
    /// Draws, waits for what happens next and takes it in, until the end. The terminal is given back then.
    async fn run(
        mut self,
        state: &mut DashboardState,
        keeper: &mut Option<Persister>,
    ) -> io::Result<ShowEnd> {
        let mut keyboard = Keyboard::listen()?;
        let start = Instant::now();
        let mut ticks = tokio::time::interval(TICK);
        // After a suspend or a slow frame, missed ticks are dropped: a tick only says that time passed.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut targets = HitAreas::default();
        let mut drawn = start;
        let mut due = Some(start);
        loop {
            // A frame drawn after a panic would overwrite the panic's message, which is on the normal screen by now.
            if terminal::has_panicked() {
                terminal::panicked().await;
                return Ok(ShowEnd::Panicked);
            }
            if due.is_some_and(|at| at <= Instant::now()) {
                self.session
                    .draw(|frame| targets = view::view(frame, state))?;
                drawn = Instant::now();
                due = None;
            }
            let next_frame = due.unwrap_or(start);
            let mut taken = Vec::new();
            let mut stopped_by = None;
            let frame = tokio::select! {
                // In this order: the end, suspension and keys are never delayed by figures, however many the daemon sends.
                biased;
                () = terminal::panicked() => return Ok(ShowEnd::Panicked),
                () = self.ends.next() => { taken.push(Event::Terminate); FRAME }
                () = self.stops.next() => { stopped_by = Some(SuspendTarget::Us); FRAME }
                given = keyboard.next() => {
                    taken.extend(match given {
                        Some(Ok(given)) => translate(given, &targets),
                        // A failed or closed keyboard is a terminal that went away.
                        Some(Err(_)) | None => Some(Event::Terminate),
                    });
                    FRAME
                }
                // While a frame is due, events wait in the channel and are taken in together just before it is drawn: waking
                // for each message of a busy daemon costs more time than drawing.
                () = tokio::time::sleep_until(next_frame.into()), if due.is_some() => {
                    while taken.len() < EVENTS_MAX && let Ok(event) = self.events.try_recv() {
                        taken.push(event);
                    }
                    FRAME_OF_DATA
                }
                Some(event) = self.events.recv(), if due.is_none() => {
                    taken.push(event);
                    FRAME_OF_DATA
                }
                _ = ticks.tick() => { taken.push(Event::Tick); FRAME_OF_DATA }
            };
            let now_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
            for event in taken {
                let outcome = update(state, event, now_ms);
                if outcome.changed {
                    let is_of_passes = frame == FRAME_OF_DATA && state.page == Page::Canvas;
                    let soonest = drawn + if is_of_passes { FRAME_OF_PASSES } else { frame };
                    // A key makes a frame due earlier; data never postpones one that is due already.
                    due = Some(due.map_or(soonest, |due| due.min(soonest)));
                }
                for effect in outcome.effects {
                    match effect {
                        Effect::Quit => return Ok(ShowEnd::Left),
                        Effect::Suspend => stopped_by = Some(SuspendTarget::Group),
                        Effect::Mouse(ours) => self.session.take_mouse(ours)?,
                        Effect::Copy(text) => self.session.copy(&text)?,
                        Effect::Persist(kept) => {
                            if let Some(keeper) = keeper {
                                keeper.persist(*kept);
                            }
                        }
                        other => self.tasks.carry_out(other),
                    }
                }
            }
            if let Some(whom) = stopped_by {
                // Keys typed from here on are meant for the shell, so the reading thread has to stop before the process does.
                keyboard.rest().await;
                self.session.suspend(&mut self.stops, whom).await?;
                keyboard.go_on()?;
                // No resize event arrives while stopped.
                state.size = crossterm::terminal::size().unwrap_or(state.size);
                due = Some(Instant::now());
            }
        }
    }
}

/// Translates terminal input to an [`Event`]; `None` for input that means nothing here.
fn translate(input: Input, targets: &HitAreas) -> Option<Event> {
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
