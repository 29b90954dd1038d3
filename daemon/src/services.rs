//! What answers calls: the services, health and reflection, behind bounds that keep
//! any caller from taking the daemon's memory.

mod calibration;
mod call_terms;
mod calls;
mod deadline;
mod embedding;
mod gate;
mod generation;
#[cfg(feature = "http")]
mod http;
mod incoming;
mod library;
mod memory;
mod messages;
mod model;
mod operation;
mod optimization;
mod optimizer;
mod permissions;
mod protocol;
mod requests;
mod snapshot;
mod states;
mod telemetry;
mod waiting;

use std::{path::PathBuf, sync::Arc, time::Instant};

pub use incoming::{Listeners, Port};
use sluice_checkpoint::VerifiedFiles;
use sluice_engine::Engine;
use sluice_proto::{
    FILE_DESCRIPTOR_SET,
    client::MESSAGE_BYTES_MAX,
    v1::{
        DaemonState, embedding_service_server::EmbeddingServiceServer,
        generation_service_server::GenerationServiceServer,
        memory_service_server::MemoryServiceServer, model_service_server::ModelServiceServer,
        operation_service_server::OperationServiceServer,
        optimizer_service_server::OptimizerServiceServer,
        telemetry_service_server::TelemetryServiceServer,
    },
};
use sluice_shared::{origin::Origin, preset::Preset};
use tokio_util::sync::CancellationToken;
use tonic::{service::Routes, transport::Server};
use tonic_health::{ServingStatus, server::HealthReporter};
use tower::ServiceBuilder;

use self::gate::Gate;
pub(crate) use self::library::load_configured;
use crate::{
    access::AccessRules,
    engines::Engines,
    examine::Examiner,
    failure::Failure,
    library::{Library, Pulls},
    limits::{
        CALLS_READ_MAX, HEADER_BYTES_MAX, LISTING_LINE_MAX, LISTING_MAX, PING_INTERVAL,
        PING_TIMEOUT, PREPARING_LINE_MAX, PREPARING_MAX, REQUEST_BYTES_MAX, STREAMS_MAX,
        UNLOADING_LINE_MAX, WINDOW_BYTES,
    },
    measurements::Measurements,
    memory::Memory,
    models::Models,
    operations::{ChangeNotifier, Operations, WriteQueue},
    requests::Requests,
    settings::ModelSettings,
    stall::StallReport,
    telemetry::{GpuFigures, HostFacts},
    tls::Tls,
};

/// What all services share.
pub struct Daemon {
    /// The first engine, which is asked what is so for all: the device, the folder of converted weights, budgets.
    pub engine: Arc<Engine>,
    /// The engines, one for each model that is loaded.
    pub engines: Arc<Engines>,
    /// The models that are loaded, and the ones that load, failed or sleep.
    pub models: Arc<Models>,
    /// Models on disk.
    pub library: Arc<Library>,
    /// What is remembered.
    pub memory: Arc<Memory>,
    /// Downloads under way.
    pub pulls: Arc<Pulls>,
    /// The registry of all operations.
    pub operations: Arc<Operations>,
    /// The records of requests, with their events.
    pub requests: Arc<Requests>,
    /// The last fidelity results.
    pub measurements: Measurements,
    /// Told whenever anything changes that a snapshot shows.
    pub changes: ChangeNotifier,
    /// Why the engine counts as stuck; `None` while it gets on.
    pub stall: StallReport,
    /// Who may do what.
    pub access: Arc<AccessRules>,
    /// What ports are encrypted by, where they are.
    pub tls: Option<Tls>,
    /// Ends every stream that would not end by itself.
    pub closing: CancellationToken,
    /// Path of the Unix socket.
    pub socket: PathBuf,
    /// Each model's settings, and where they come from.
    pub settings: Arc<ModelSettings>,
    /// Preset of requests that do not set one.
    pub default_preset: Preset,
    /// When the daemon started.
    pub started: Instant,
    /// Facts and figures of the host.
    pub host: HostFacts,
    /// Recent figures of the GPU.
    pub gpu_figures: GpuFigures,
    /// Examines the daemon for who asks; `None`: only its device.
    examiner: Option<Arc<Examiner>>,
    draining: CancellationToken,
    preparing: Arc<Gate>,
    memory_turns: memory::MemoryTurns,
    listing: Arc<Gate>,
    unloading: Arc<Gate>,
    line: waiting::WaitingLine,
    states: Arc<states::StateAccount>,
    writes: WriteQueue,
}

impl Daemon {
    /// A daemon around an engine, without a model. Writes a file: not for async code, but at the start.
    #[must_use]
    pub fn new(
        engine: Arc<Engine>,
        library: Library,
        settings: ModelSettings,
        socket: PathBuf,
        preset: Preset,
    ) -> Self {
        let changes = ChangeNotifier::default();
        let closing = CancellationToken::new();
        let library = Arc::new(library);
        let operations = Operations::after(library.state().clone(), changes.clone());
        operations.clear_up_files();
        let operations = Arc::new(operations);
        let verified = VerifiedFiles::new(engine.weight_cache().map(|(folder, _)| folder));
        let pulls = Pulls::new(library.clone(), operations.clone(), verified);
        let settings = Arc::new(settings);
        let engines = Arc::new(Engines::new(engine.clone()));
        let requests = Requests::new(operations.clone(), changes.clone());
        let models = Models::new(
            Arc::downgrade(&engines),
            settings.clone(),
            operations.clone(),
            changes.clone(),
        );
        Self {
            engine,
            engines,
            models: Arc::new(models),
            library,
            memory: Arc::default(),
            pulls: Arc::new(pulls),
            operations,
            requests: Arc::new(requests),
            measurements: Measurements::new(changes.clone()),
            changes: changes.clone(),
            stall: StallReport::default(),
            access: Arc::default(),
            tls: None,
            closing,
            socket,
            settings,
            default_preset: preset,
            started: Instant::now(),
            host: HostFacts::new(),
            gpu_figures: GpuFigures::default(),
            examiner: None,
            draining: CancellationToken::new(),
            preparing: Gate::new(PREPARING_MAX, PREPARING_LINE_MAX, changes.clone()),
            memory_turns: memory::MemoryTurns::new(changes.clone()),
            listing: Gate::new(LISTING_MAX, LISTING_LINE_MAX, changes.clone()),
            unloading: Gate::new(1, UNLOADING_LINE_MAX, changes),
            line: waiting::WaitingLine::default(),
            states: Arc::default(),
            writes: WriteQueue::default(),
        }
    }

    /// Lets callers do what these rules say; without, only root and the daemon's own user may do anything.
    #[must_use]
    pub fn with_access(mut self, access: AccessRules) -> Self {
        self.access = Arc::new(access);
        self
    }

    /// Remembers what it is told to.
    #[must_use]
    pub fn with_memory(mut self, memory: Memory) -> Self {
        self.memory = Arc::new(memory);
        self
    }

    /// Follows the files of what ports are encrypted by.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Tls>) -> Self {
        self.tls = tls;
        self
    }

    /// Reads files of tokens and certificates again if they changed; what is wrong with those that are there now.
    pub(crate) fn look_at_files(&self) -> Vec<String> {
        self.access.look();
        self.tls.iter().for_each(Tls::look);
        self.file_problems()
    }

    /// Why files of tokens and certificates are not in force as they are now, where they are not.
    pub(crate) fn file_problems(&self) -> Vec<String> {
        let of_tls = self.tls.as_ref().and_then(Tls::problem);
        self.access.problem().into_iter().chain(of_tls).collect()
    }

    /// Lets `doctor` examine more than the device.
    #[must_use]
    pub fn with_examiner(mut self, examiner: Examiner) -> Self {
        self.examiner = Some(Arc::new(examiner));
        self
    }

    /// Makes the daemon refuse everything new.
    pub fn drain(&self) {
        self.draining.cancel();
        self.changes.tell();
    }

    /// What the daemon is at.
    pub(crate) fn state(&self) -> DaemonState {
        match self.models.serving() {
            _ if self.is_draining() => DaemonState::Draining,
            _ if self.models.shown().is_some() => DaemonState::Ready,
            Err(Failure::ModelLoading { .. }) => DaemonState::Loading,
            _ => DaemonState::NoModel,
        }
    }

    /// Whether the daemon is shutting down.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Requests that wait for a model to load, or for room in the engine's queue.
    pub(crate) fn waiting_for_model(&self) -> usize {
        self.line.len()
    }

    /// Returns once all loads and changes that began have ended, and all that outlives the daemon is on disk or cannot be
    /// written.
    pub(crate) async fn is_recorded(&self) {
        self.writes.finished().await;
        let operations = self.operations.clone();
        // Fails only by a panic, which is in the log.
        let _ = tokio::task::spawn_blocking(move || operations.save()).await;
    }

    fn check_open(&self) -> Result<(), Failure> {
        if self.is_draining() {
            return Err(Failure::Draining);
        }
        Ok(())
    }
}

/// A port for HTTP, and what the administrator decides of it.
#[derive(Debug)]
pub struct HttpPort {
    /// The port.
    pub port: Port,
    /// Web pages that may call.
    pub origins: Vec<Origin>,
    /// Whether there are tokens.
    pub has_tokens: bool,
}

/// Serves until [`Daemon::closing`] is cancelled and the last stream has ended.
///
/// # Errors
/// When the transport fails.
pub async fn serve(
    daemon: Arc<Daemon>,
    listeners: Listeners,
    http_port: Option<HttpPort>,
) -> Result<(), tonic::transport::Error> {
    let (reporter, health) = tonic_health::server::health_reporter();
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let made_here = "both descriptor sets were made by our own build";
    report_health(&reporter, &daemon).await;
    tokio::spawn(follow_health(reporter, daemon.clone()));

    let generation = GenerationServiceServer::new(generation::Service(daemon.clone()));
    let embedding = EmbeddingServiceServer::new(embedding::Service(daemon.clone()));
    let memory = MemoryServiceServer::new(memory::Service(daemon.clone()));
    let model = ModelServiceServer::new(model::Service(daemon.clone()));
    let operation = OperationServiceServer::new(operation::Service(daemon.clone()));
    let optimizer = OptimizerServiceServer::new(optimizer::Service(daemon.clone()));
    let telemetry = TelemetryServiceServer::new(telemetry::Service(daemon.clone()));
    let closing = daemon.closing.clone();
    let admission = incoming::Admission::new(daemon.access.clone());
    let calls = calls::Calls::new(daemon.access.clone());
    let mut routes = Routes::builder();
    routes
        .add_service(
            generation
                .max_decoding_message_size(REQUEST_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX),
        )
        .add_service(
            embedding
                .max_decoding_message_size(REQUEST_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX),
        )
        .add_service(
            memory
                .max_decoding_message_size(REQUEST_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX),
        )
        .add_service(model.max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(operation.max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(optimizer.max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(telemetry.max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(health)
        .add_service(reflection().build_v1().expect(made_here))
        // For tools that still ask for the reflection service of before 2023.
        .add_service(reflection().build_v1alpha().expect(made_here));
    let routes = routes.routes().prepare();
    #[cfg(feature = "http")]
    let door = http::DaemonDoor {
        daemon: daemon.clone(),
        calls: calls.clone(),
    };
    let layers = ServiceBuilder::new()
        .layer(incoming::LocalNames)
        .layer(calls);
    #[cfg(feature = "http")]
    let http = http::serve(
        http_port,
        admission.clone(),
        layers.clone().service(routes.clone()),
        door,
        closing.clone(),
    );
    // Without the front, the setting is refused.
    #[cfg(not(feature = "http"))]
    let http = async { drop(http_port) };
    let grpc = Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .concurrency_limit_per_connection(CALLS_READ_MAX)
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .layer(layers)
        .add_routes(routes)
        .serve_with_incoming_shutdown(
            incoming::connections(listeners, admission),
            closing.cancelled_owned(),
        );
    let (served, ()) = tokio::join!(grpc, http);
    served
}

/// Keeps the health service true until the end.
async fn follow_health(reporter: HealthReporter, daemon: Arc<Daemon>) {
    let mut changes = daemon.changes.subscribe();
    loop {
        report_health(&reporter, &daemon).await;
        tokio::select! {
            () = daemon.closing.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

async fn report_health(reporter: &HealthReporter, daemon: &Daemon) {
    for (service, serves) in health(daemon) {
        let status = match serves {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        };
        reporter.set_service_status(service, status).await;
    }
}

/// Which services serve, the daemon as a whole first: it does while it takes calls and its engine gets on; generation only where a
/// request finds a model or has one loaded.
pub(crate) fn health(daemon: &Daemon) -> [(&'static str, bool); 6] {
    let open = !daemon.is_draining();
    let gets_on = daemon.stall.get().is_none();
    let has_model = daemon.models.serves();
    [
        ("", open && gets_on),
        ("sluice.v1.GenerationService", open && gets_on && has_model),
        ("sluice.v1.ModelService", open),
        ("sluice.v1.OperationService", open),
        ("sluice.v1.OptimizerService", open),
        ("sluice.v1.TelemetryService", open),
    ]
}
