//! Terminal input, read on a thread of its own.
//!
//! crossterm spins for ever on a terminal that was hung up. On its own thread that is harmless: the event loop learns of the
//! hang-up by [`super::terminal::Ends`], and the process ends with the loop.

use std::{io, thread, time::Duration};

use crossterm::event::{Event as Input, EventStream};
use futures_util::StreamExt;
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
};

/// Most inputs that wait for the event loop; more stay in the terminal's buffer.
const INPUTS_MAX: usize = 64;
/// Longest wait for the thread to stop reading.
const REST: Duration = Duration::from_secs(1);

/// Keys, pastes, mouse events and resizes, in their order.
pub(super) struct Keyboard {
    sender: mpsc::Sender<io::Result<Input>>,
    inputs: mpsc::Receiver<io::Result<Input>>,
    reading: Option<Reading>,
}

/// The reading thread. Dropping `stop` makes it stop; it drops `stopped` when it has.
struct Reading {
    stop: oneshot::Sender<()>,
    stopped: oneshot::Receiver<()>,
}

impl Keyboard {
    /// Begins to read.
    pub(super) fn listen() -> io::Result<Self> {
        let (sender, inputs) = mpsc::channel(INPUTS_MAX);
        let mut keyboard = Self {
            sender,
            inputs,
            reading: None,
        };
        keyboard.go_on()?;
        Ok(keyboard)
    }

    /// Waits for the next input; `None` once reading has failed.
    pub(super) async fn next(&mut self) -> Option<io::Result<Input>> {
        self.inputs.recv().await
    }

    /// Stops reading, so that later keys go to the program that has the terminal next.
    pub(super) async fn rest(&mut self) {
        if let Some(Reading { stop, stopped }) = self.reading.take() {
            drop(stop);
            // Bounded: a thread that spins on a dead terminal must not keep the process from suspending.
            let _ = tokio::time::timeout(REST, stopped).await;
        }
    }

    /// Starts a reading thread.
    pub(super) fn go_on(&mut self) -> io::Result<()> {
        let (stop, asked_to_stop) = oneshot::channel();
        let (has_stopped, stopped) = oneshot::channel();
        let (runtime, sender) = (Handle::current(), self.sender.clone());
        thread::Builder::new()
            .name("keyboard".to_owned())
            .spawn(move || runtime.block_on(read(sender, asked_to_stop, has_stopped)))?;
        self.reading = Some(Reading { stop, stopped });
        Ok(())
    }
}

/// Reads until it is asked to stop. `_has_stopped` is dropped last, which tells that the terminal is free.
async fn read(
    sender: mpsc::Sender<io::Result<Input>>,
    mut stop: oneshot::Receiver<()>,
    _has_stopped: oneshot::Sender<()>,
) {
    let mut stream = EventStream::new();
    loop {
        // Room in the channel is reserved before reading: an input that was read while asked to stop would be lost.
        let room = tokio::select! {
            biased;
            _ = &mut stop => return,
            room = sender.reserve() => room,
        };
        let given = tokio::select! {
            biased;
            _ = &mut stop => return,
            given = stream.next() => given,
        };
        match (room, given) {
            (Ok(room), Some(given)) => room.send(given),
            _ => return,
        }
    }
}
