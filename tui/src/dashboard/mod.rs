//! The dashboard: what a bare `sluice` shows.
//!
//! [`event`] lists all that can happen, [`keys`] what keys do, [`state`] holds what is known,
//! [`levels`] the list of
//! levels, [`mod@update`] is the one function that changes it, [`view`] draws it. This module runs them: it waits
//! for the next event, and carries out what the update asks for.

pub mod event;
pub mod keys;
pub mod levels;
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

use crossterm::event::{Event as Input, EventStream, KeyEventKind};
use futures_util::StreamExt;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use crate::output::{Failure, colour_allowed};
use event::{Effect, Event};
use state::State;
use tasks::Tasks;
use terminal::Session;
use update::update;

/// Events that may wait for the update; beyond that the stream waits, and the daemon skips
/// pictures for us.
const EVENTS_MAX: usize = 256;
/// Least time between two frames: about 30 a second.
const FRAME: Duration = Duration::from_millis(33);
/// Precision of what counts seconds.
const TICK: Duration = Duration::from_millis(250);

/// Runs the dashboard until the user leaves.
///
/// # Errors
/// When the terminal can't be taken over or drawn on. A daemon that is absent is no error:
/// the screen says so and waits for it.
pub async fn run(socket: PathBuf) -> Result<(), Failure> {
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    let shown = socket.display().to_string();
    let mut state = State::new(shown);
    let colour = colour_allowed();
    let mut ends = [
        signal(SignalKind::terminate())?,
        signal(SignalKind::hangup())?,
        signal(SignalKind::interrupt())?,
    ];
    let start = Instant::now();
    let mut session = Session::enter()?;
    let mut input = EventStream::new();
    let mut tasks = Tasks::start(socket, sender);
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut due = Some(start);
    loop {
        if due.is_some_and(|at| at <= Instant::now()) {
            session
                .terminal
                .draw(|frame| view::view(frame, &state, colour))?;
            due = None;
        }
        let [terminated, hung_up, interrupted] = &mut ends;
        let next_frame = due.unwrap_or(start);
        let event = tokio::select! {
            pressed = input.next() => match pressed {
                Some(Ok(Input::Key(key))) if key.kind != KeyEventKind::Release => Event::Key(key),
                Some(Ok(Input::Paste(text))) => Event::Paste(text),
                Some(Ok(Input::Resize(..))) => Event::Redraw,
                Some(Ok(_)) => continue,
                Some(Err(_)) | None => Event::Terminate,
            },
            Some(event) = events.recv() => event,
            _ = ticks.tick() => Event::Tick,
            () = tokio::time::sleep_until(next_frame.into()), if due.is_some() => continue,
            _ = terminated.recv() => Event::Terminate,
            _ = hung_up.recv() => Event::Terminate,
            _ = interrupted.recv() => Event::Terminate,
        };
        let now_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let outcome = update(&mut state, event, now_ms);
        if outcome.changed && due.is_none() {
            due = Some(Instant::now() + FRAME);
        }
        for effect in outcome.effects {
            match effect {
                Effect::Quit => return Ok(()),
                Effect::Suspend => {
                    // A live stream would go on reading keys that are meant for the shell.
                    drop(input);
                    session.suspend()?;
                    input = EventStream::new();
                    due = Some(Instant::now());
                }
                Effect::Generate(prompt) => tasks.generate(prompt),
                Effect::Cancel(request_id) => tasks.cancel(request_id),
                Effect::Watch(request_id) => tasks.watch(request_id),
                Effect::AskPlans => tasks.ask_plans(),
                Effect::Apply(level) => tasks.apply(level),
            }
        }
    }
}
