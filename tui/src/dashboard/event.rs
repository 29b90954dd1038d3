//! Everything that can wake the dashboard, and everything it can ask for.

use std::path::PathBuf;

use crossterm::event::KeyEvent;
use sluice_proto::v1::{
    ApplyResult, FidelityMeasurement, FidelityResult, GenerateRequest, ListMixesResponse, Model,
    Operation, Plan, SearchMemoryResponse, Snapshot, generation_event,
};
use sluice_shared::{level::Level, options::PlanOptions};

use super::{hit_areas::HitTarget, persist::PersistedState, reel::OpenedRun};
use crate::record::Recording;

/// Something that wakes the dashboard.
#[derive(Debug, Clone)]
pub enum Event {
    /// A key was pressed, or repeats while it is held.
    Key(KeyEvent),
    /// Text was pasted.
    Paste(String),
    /// The mouse pressed on something.
    Click(HitTarget),
    /// The wheel turned over a target (`None`: over nothing that scrolls), by this many notches; downwards is positive.
    Wheel(Option<HitTarget>, isize),
    /// The screen's new size in columns and rows.
    Resized(u16, u16),
    /// Time passed: comes ten times a second.
    Tick,
    /// A daemon answers on the socket.
    Connected,
    /// Nothing answers on the socket, or the connection broke. The next try comes by itself.
    Lost {
        /// The system's or the daemon's message.
        cause: String,
        /// Milliseconds until the next try.
        retry_ms: u64,
    },
    /// The daemon's present state.
    Snapshot(Box<Snapshot>),
    /// Something happened to a request that is watched.
    Request {
        /// The daemon's id of the request.
        request_id: u64,
        /// The event of its stream.
        kind: Box<generation_event::Event>,
    },
    /// Something happened to a request of ours, over its own stream.
    Own {
        /// The dashboard's own serial number of the request.
        serial: u64,
        /// The daemon's id of the request; 0 while it waits for a model to load.
        request_id: u64,
        /// The event of its stream.
        kind: Box<generation_event::Event>,
    },
    /// A request of ours was refused, failed or was cut off.
    OwnFailed {
        /// The dashboard's own serial number of the request.
        serial: u64,
        /// The failure's message, without its hint.
        message: String,
    },
    /// A followed request failed, or cannot be followed.
    WatchFailed {
        /// The daemon's id of the request.
        request_id: u64,
        /// The failure's message, without its hint.
        message: String,
    },
    /// What the daemon remembers about some words.
    Recalled {
        /// The words that were looked for.
        query: String,
        /// What was found.
        answer: Box<SearchMemoryResponse>,
    },
    /// A run was read from a file.
    Opened(Box<OpenedRun>),
    /// An effect succeeded; the message to show.
    Succeeded(String),
    /// An effect failed; the message to show.
    Failed(String),
    /// The plan of a level, or why the daemon cannot plan it.
    Planned {
        /// The level that was asked about.
        level: Level,
        /// The plan, or the failure's message.
        answer: Result<Box<Plan>, String>,
    },
    /// The plan of a choice that is judged before it is applied.
    Predicted {
        /// The serial number that [`Effect::AskPlan`] had.
        serial: u64,
        /// The plan, or the failure's message.
        answer: Result<Box<Plan>, String>,
    },
    /// A change that was asked for is planned and begins.
    Changing {
        /// Counts the changes that were asked for, from 1.
        serial: u64,
        /// The plan that will be in force.
        plan: Box<Plan>,
        /// The plan that was in force before.
        before: Box<Plan>,
    },
    /// Bytes of weights converted for the level that was asked for, and their total; `None` once all are.
    Converting(Option<(u64, u64)>),
    /// A change that was asked for is in force.
    Applied {
        /// The change's serial number, as in [`Event::Changing`].
        serial: u64,
        /// The measured result.
        applied: Box<ApplyResult>,
        /// Time from the request to its end, in milliseconds.
        elapsed_ms: f64,
    },
    /// A change that was asked for was refused, or failed.
    ApplyFailed {
        /// The change's serial number, as in [`Event::Changing`].
        serial: u64,
        /// The failure's message, without its hint.
        message: String,
    },
    /// Progress of a fidelity measurement, in passes.
    Measuring {
        /// The daemon's id of the measurement.
        request_id: u64,
        /// Passes that are done.
        done: u32,
        /// Passes in all.
        total: u32,
    },
    /// The measured fidelity of a level, or the failure's message.
    Measured(Result<Box<FidelityResult>, String>),
    /// The fidelity measurement was cancelled, here or by another client.
    MeasuringStopped,
    /// The models that the daemon knows.
    Models(Vec<Model>),
    /// Operations that wait or run, and some that ended.
    Operations(Vec<Operation>),
    /// Measurements of fidelity that the daemon keeps, the earliest first.
    Fidelity(Vec<FidelityMeasurement>),
    /// The mixes that the daemon keeps of the loaded model.
    Mixes(ListMixesResponse),
    /// A signal asked the process to end, or the terminal is gone.
    Terminate,
}

/// What the runtime is to do, decided by the update and carried out beside it.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Send a request of our own.
    Generate {
        /// The dashboard's own serial number, which its events will have.
        serial: u64,
        /// The request to send.
        request: Box<GenerateRequest>,
    },
    /// Drop the stream of a request of ours, by its serial number; the daemon then cancels the request.
    DropOwn(u64),
    /// Copy text to the terminal's clipboard.
    Copy(String),
    /// List the operations, those that ended lately included.
    ListOperations,
    /// Cancel an operation, by the daemon's id.
    Cancel(u64),
    /// Follow this request and no other; `None` follows none.
    Watch(Option<u64>),
    /// Ask for the plan of each of these levels, with these options.
    AskPlans(Vec<Level>, PlanOptions),
    /// Ask for the plan of one choice; other questions go on.
    AskPlan {
        /// Serial number of the question, which [`Event::Predicted`] repeats.
        serial: u64,
        /// The options to plan with; those that are unset stay as they are.
        options: PlanOptions,
    },
    /// Apply these options to the loaded model.
    Apply(PlanOptions),
    /// Go back to the checkpoint's own weights.
    Restore,
    /// Measure the fidelity of a level.
    Measure(Level),
    /// Drop the stream of the measurement that was asked for; the daemon then cancels it.
    StopMeasuring,
    /// List the models that the daemon knows.
    ListModels,
    /// Load a model by its name or path, in the place of the present one.
    Load(String),
    /// Unload the model.
    Unload,
    /// Download a model by its name at the hub.
    Pull(String),
    /// List the fidelity measurements that the daemon keeps.
    ListFidelity,
    /// List the mixes that the daemon keeps of the loaded model.
    ListMixes,
    /// Compress a model into a file.
    Compress {
        /// The model's name.
        name: String,
        /// The compressed file to write; it must not exist.
        output: PathBuf,
    },
    /// Write a run to a new file.
    Save(PathBuf, Box<Recording>),
    /// Read a run from a file.
    Open(PathBuf),
    /// Decompress a compressed file into a folder.
    Decompress {
        /// The compressed file to read.
        file: PathBuf,
        /// The checkpoint folder to make.
        folder: PathBuf,
    },
    /// Look for what the daemon remembers about some words.
    Recall(String),
    /// Have the daemon remember a note.
    Remember {
        /// The collection that takes it; empty: the default.
        collection: String,
        /// The note.
        text: String,
    },
    /// Compare a compressed file with its checksums.
    Verify(PathBuf),
    /// Take mouse events, or leave the mouse to the terminal.
    Mouse(bool),
    /// Write the state that the next dashboard restores.
    Persist(Box<PersistedState>),
    /// Hand the terminal back and stop the process group until it is continued.
    Suspend,
    /// End the dashboard.
    Quit,
}
