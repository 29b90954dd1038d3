//! Everything that can wake the dashboard, and everything it can ask for.

use std::path::PathBuf;

use crossterm::event::KeyEvent;
use sluice_proto::v1::{
    ApplyResult, FidelityMeasurement, FidelityResult, GenerateRequest, Model, Operation, Plan,
    Snapshot, generation_event,
};
use sluice_shared::{level::Level, options::PlanOptions};

use super::{persist::PersistedState, state::OpenedRun, view::HitTarget};
use crate::record::Recording;

/// What happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// A key went down.
    Key(KeyEvent),
    /// Text was pasted.
    Paste(String),
    /// The mouse pressed on something.
    Click(HitTarget),
    /// The wheel turned over something, by so many notches; downwards is positive.
    Wheel(Option<HitTarget>, isize),
    /// The screen has so many columns and rows.
    Resized(u16, u16),
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
    /// Something happened to a request that is watched.
    Request {
        /// Whose.
        request_id: u64,
        /// What.
        kind: Box<generation_event::Event>,
    },
    /// Something happened to a request of ours, over its own stream.
    Own {
        /// Which of ours.
        serial: u64,
        /// The daemon's number of it.
        request_id: u64,
        /// What.
        kind: Box<generation_event::Event>,
    },
    /// A request of ours was refused, failed or was cut off.
    OwnFailed {
        /// Which of ours.
        serial: u64,
        /// Why.
        message: String,
    },
    /// A followed request failed, or can't be followed.
    WatchFailed {
        /// Whose.
        request_id: u64,
        /// Why.
        message: String,
    },
    /// A run was read from a file.
    Opened(Box<OpenedRun>),
    /// Something was done as it was asked for.
    Succeeded(String),
    /// Something that was asked for can't be had.
    Failed(String),
    /// The daemon said what a level would lead to, or why it can't be.
    Planned {
        /// Which.
        level: Level,
        /// What it said.
        answer: Result<Box<Plan>, String>,
    },
    /// The same for what is to be judged before it is asked for.
    Predicted {
        /// Of the question.
        serial: u64,
        /// What it said.
        answer: Result<Box<Plan>, String>,
    },
    /// What a change that was asked for will lead to, and what was in force.
    Changing {
        /// Counts the changes.
        serial: u64,
        /// What will be in force.
        plan: Box<Plan>,
        /// What was.
        before: Box<Plan>,
    },
    /// How far weights are converted for the level that we asked for, in bytes of bytes; nothing once they are.
    Converting(Option<(u64, u64)>),
    /// A change that was asked for is in force.
    Applied {
        /// Which.
        serial: u64,
        /// What came of it.
        applied: Box<ApplyResult>,
        /// How long it took.
        elapsed_ms: f64,
    },
    /// A change that was asked for was refused, or failed.
    ApplyFailed {
        /// Which.
        serial: u64,
        /// Why.
        message: String,
    },
    /// How far a measurement of fidelity is: passes of passes.
    Measuring {
        /// Its request.
        request_id: u64,
        /// Passes done.
        done: u32,
        /// Of so many.
        total: u32,
    },
    /// How faithful a level is, or why that isn't known.
    Measured(Result<Box<FidelityResult>, String>),
    /// The measurement of fidelity was stopped.
    MeasuringStopped,
    /// The models that the daemon knows.
    Models(Vec<Model>),
    /// Jobs that run, and some that ended.
    Jobs(Vec<Operation>),
    /// Requests that wait or run, and some that ended.
    Requests(Vec<Operation>),
    /// Measurements of fidelity that the daemon keeps, the earliest first.
    Fidelity(Vec<FidelityMeasurement>),
    /// Somebody asked the process to end.
    Terminate,
}

/// What the runtime is to do, decided by the update and carried out beside it.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Send a request of our own.
    Generate {
        /// Which of ours.
        serial: u64,
        /// What it asks for.
        request: Box<GenerateRequest>,
    },
    /// Let go of a request of ours that has no number yet; the daemon stops it then.
    DropOwn(u64),
    /// Give text to the terminal's clipboard.
    Copy(String),
    /// Ask for the requests, those that ended lately included.
    ListRequests,
    /// Stop a request.
    Cancel(u64),
    /// Follow this request and no other.
    Watch(Option<u64>),
    /// Ask what these levels would lead to, with these options.
    AskPlans(Vec<Level>, PlanOptions),
    /// Ask what one choice would lead to, beside all other questions.
    AskPlan {
        /// Of the question, for its answer.
        serial: u64,
        /// The choice.
        options: PlanOptions,
    },
    /// Put another level, budget or choice in force.
    Apply(PlanOptions),
    /// Go back to the checkpoint's own weights.
    Restore,
    /// Measure how faithful a level is.
    Measure(Level),
    /// Let go of the measurement that was asked for; the daemon stops it then.
    StopMeasuring,
    /// Ask for the models.
    ListModels,
    /// Put a model in the present one's place, by its name or path.
    Load(String),
    /// Stop the load that is under way.
    CancelLoad(u64),
    /// Let the model go.
    Unload,
    /// Download a model, by the hub's name of it.
    Pull(String),
    /// Stop a download.
    CancelPull {
        /// The model.
        name: String,
        /// The download.
        operation_id: u64,
    },
    /// Ask for the jobs.
    ListJobs,
    /// Ask for the measurements of fidelity.
    ListFidelity,
    /// Stop a job.
    CancelJob(u64),
    /// Code a model, by its name, into a file.
    Compress {
        /// The model.
        name: String,
        /// The file.
        output: PathBuf,
    },
    /// Write a run to a new file.
    Save(PathBuf, Box<Recording>),
    /// Read a run from a file.
    Open(PathBuf),
    /// Make a coded file into a folder.
    Decompress {
        /// The file.
        file: PathBuf,
        /// The folder.
        folder: PathBuf,
    },
    /// Compare a coded file with its checksums.
    Verify(PathBuf),
    /// Let the mouse choose and scroll, or leave it to the terminal.
    Mouse(bool),
    /// Write down what is to survive this run.
    Persist(Box<PersistedState>),
    /// Hand the terminal back and stop the process until it is continued.
    Suspend,
    /// End.
    Quit,
}
