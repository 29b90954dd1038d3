//! Everything that can wake the dashboard, and everything it can ask for.

use crossterm::event::KeyEvent;
use sluice_proto::v1::{Plan, Snapshot, generation_event::Kind};
use sluice_shared::level::Level;

/// What happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// A key went down.
    Key(KeyEvent),
    /// Text was pasted.
    Paste(String),
    /// The screen has another size, or was given back after a suspension.
    Redraw,
    /// The clock moved on.
    Tick,
    /// A daemon answers on the socket.
    Connected,
    /// Nothing answers, or what did went away; the next try comes later.
    Lost {
        /// What the system or the daemon said.
        cause: String,
        /// Wait before the next try.
        retry_ms: u64,
    },
    /// The daemon's present state.
    Snapshot(Box<Snapshot>),
    /// Something happened to a request that is followed, our own included.
    Request {
        /// Whose.
        request_id: u64,
        /// What.
        kind: Box<Kind>,
    },
    /// Our own request was refused, failed or was cut off.
    OwnFailed(String),
    /// A followed request failed, or can't be followed.
    WatchFailed {
        /// Whose.
        request_id: u64,
        /// Why.
        message: String,
    },
    /// A cancellation or a change was answered, or failed.
    Told(String),
    /// The daemon said what a level would lead to, or why it can't be.
    Planned {
        /// Which.
        level: Level,
        /// What it said.
        answer: Result<Box<Plan>, String>,
    },
    /// How far weights are converted for the level that we asked for; nothing once they are.
    Converting(Option<String>),
    /// Somebody asked the process to end.
    Terminate,
}

/// What the runtime is to do, decided by the update and carried out beside it.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Send a prompt as a conversation of one turn.
    Generate(String),
    /// Stop a request.
    Cancel(u64),
    /// Follow this request and no other.
    Watch(Option<u64>),
    /// Ask what each level would lead to.
    AskPlans,
    /// Put a level in force.
    Apply(Level),
    /// Hand the terminal back and stop the process until it is continued.
    Suspend,
    /// End.
    Quit,
}
