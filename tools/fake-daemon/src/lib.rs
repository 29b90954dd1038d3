//! A daemon that answers as it is told to, without a model: it plays a script for each request, or tells much at a steady
//! rate, and notes what it was asked for.

mod load;
mod memory;
mod pictures;
mod service;

use std::{
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use sluice_proto::v1::*;
use testkit::eventually;
use tokio::sync::Notify;
use tonic::Status;

pub use load::{EventCounts, StressLoad};
pub use memory::hits;
pub use pictures::{generation_events, job, operation, plan, switch_pictures};
use service::Service;

/// One step of what the fake does when asked to generate.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "a script has but a few steps")]
pub enum ScriptStep {
    /// Send an event.
    Send(generation_event::Event),
    /// Fail with a status.
    Fail(Status),
    /// Say nothing until the client goes.
    Hang,
    /// The whole daemon goes, with its connections.
    Die,
}

/// What the fake does when asked to load or download a model, for a job, or to change its level or budget.
#[derive(Debug, Clone, Default)]
pub struct ChangeScript {
    /// The pictures of a load, between its first and its last.
    pub load: Vec<Operation>,
    /// The pictures of a download, before its last.
    pub pull: Vec<Operation>,
    /// The pictures of a change of level or budget.
    pub apply: Vec<Operation>,
    /// The pictures of a job, after its first.
    pub job: Vec<Operation>,
    /// Nothing of a job comes, not even its beginning.
    pub silent: bool,
    /// Never come to the end; a load, a download or a job waits for its cancellation.
    pub hangs: bool,
}

/// What clients asked for, in the order in which they did.
#[derive(Debug, Default)]
pub struct ReceivedCalls {
    /// Requests to generate.
    pub generate: Vec<GenerateRequest>,
    /// Requests to load a model, in order.
    pub loaded: Vec<LoadModelRequest>,
    /// Requests to download a model, in order.
    pub pulled: Vec<PullModelRequest>,
    /// Models to remove.
    pub removed: Vec<RemoveModelRequest>,
    /// Models to inspect.
    pub inspected: Vec<InspectModelRequest>,
    /// Jobs to compress.
    pub compressed: Vec<CompressRequest>,
    /// Jobs to decompress.
    pub decompressed: Vec<DecompressRequest>,
    /// Jobs to prune.
    pub pruned: Vec<PruneRequest>,
    /// Jobs to verify.
    pub verified: Vec<VerifyRequest>,
    /// Jobs to optimize.
    pub optimized: Vec<OptimizeRequest>,
    /// Jobs to calibrate.
    pub calibrated: Vec<CalibrateRequest>,
    /// Operations that were followed to their ends, by id.
    pub watched: Vec<u64>,
    /// Operations that were cancelled, by id.
    pub operations_cancelled: Vec<u64>,
    /// Requests for a plan, in order.
    pub planned: Vec<PlanRequest>,
    /// Changes of level or budget.
    pub applied: Vec<ApplyRequest>,
    /// What to go back to.
    pub restored: Vec<RestoreTarget>,
    /// How imports began.
    pub imports: Vec<ImportBegin>,
    /// Sources of imports, with their contents.
    pub imported: Vec<(SourceHeader, Vec<u8>)>,
    /// Searches of memory.
    pub searched: Vec<SearchMemoryRequest>,
    /// Sources and collections to forget.
    pub forgotten: Vec<remove_sources_request::What>,
    /// How often everything was to be forgotten.
    pub wipes: usize,
    /// Measurements of fidelity.
    pub measured: Vec<MeasureFidelityRequest>,
}

/// A daemon that plays a script for every generation and watch; it ends with this value.
pub struct FakeDaemon {
    /// Where it listens.
    pub socket: PathBuf,
    /// What it was asked for so far.
    pub seen: Arc<Mutex<ReceivedCalls>>,
    _folder: tempfile::TempDir,
    service: Service,
    stop: Arc<Notify>,
}

impl FakeDaemon {
    /// One whose loads and changes succeed at once.
    pub fn start(script: Vec<ScriptStep>) -> Self {
        Self::with_changes(script, ChangeScript::default())
    }

    /// One that plays `change` for every load and every change of level or budget too.
    pub fn with_changes(script: Vec<ScriptStep>, change: ChangeScript) -> Self {
        Self::serve(Service::new(script, change, None))
    }

    /// One that is full, and tells of what it does at a steady rate; how much it told is counted.
    pub fn under_load(load: StressLoad) -> (Self, Arc<EventCounts>) {
        let refusal = ScriptStep::Fail(Status::resource_exhausted("the queue is full"));
        let teller = load::Teller::new(load);
        let counts = teller.counts.clone();
        let service = Service::new(vec![refusal], ChangeScript::default(), Some(teller));
        (Self::serve(service), counts)
    }

    fn serve(service: Service) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = folder.path().join("fake.sock");
        let stop = service.serve(&socket);
        Self {
            socket,
            seen: service.seen.clone(),
            _folder: folder,
            service,
            stop,
        }
    }

    /// Takes the daemon away, with its connections.
    pub fn die(&self) {
        self.stop.notify_one();
        eventually("the daemon to be gone", || {
            UnixStream::connect(&self.socket).is_err()
        });
    }

    /// Starts it anew on the same socket.
    pub fn come_back(&mut self) {
        std::fs::remove_file(&self.socket).expect("a socket of the one before");
        self.stop = self.service.serve(&self.socket);
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        self.stop.notify_one();
    }
}
