//! What the tests share: running `sluice`, and a daemon that plays a script.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses its own part of this module"
)]

pub mod terminal;

use std::{
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex, mpsc},
    time::{Duration, Instant},
};

use sluice_proto::v1::{
    generation_service_server::{GenerationService, GenerationServiceServer},
    job_service_server::{JobService, JobServiceServer},
    model_service_server::{ModelService, ModelServiceServer},
    optimizer_service_server::{OptimizerService, OptimizerServiceServer},
    telemetry_service_server::{TelemetryService, TelemetryServiceServer},
    *,
};
use tokio::{net::UnixListener, runtime::Runtime};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, transport};

/// `sluice` with its output caught and nothing of the tester's surroundings.
pub fn sluice(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command
        .args(arguments)
        .env_remove("SLUICE_SOCKET")
        .env_remove("NO_COLOR")
        .env_remove("HOME")
        .env_remove("XDG_STATE_HOME")
        .env_remove("XDG_CONFIG_HOME")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a command with bytes on its standard input.
pub fn run_with_input(mut command: Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).spawn().expect("start sluice");
    let mut stdin = child.stdin.take().expect("piped");
    // The program may refuse before it has read all.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().expect("run sluice")
}

pub fn code(output: &Output) -> i32 {
    output.status.code().expect("not killed")
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// One step of what the fake does when asked to generate.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "a script has but a few steps")]
pub enum Step {
    Send(generation_event::Kind),
    Fail(Status),
    /// Say nothing until the client goes.
    Hang,
    /// The whole daemon goes, with its connections.
    Die,
}

/// What the fake does when asked to load or download a model, for a job, or to change its level or budget.
#[derive(Debug, Clone, Default)]
pub struct Change {
    pub load: Vec<load_model_response::Kind>,
    pub pull: Vec<pull_model_response::Kind>,
    pub apply: Vec<apply_response::Kind>,
    pub job: Vec<job_event::Kind>,
    /// Nothing of a job comes, not even its beginning.
    pub silent: bool,
    /// Never come to the end; a load, a download or a job waits for its cancellation.
    pub hangs: bool,
}

/// A daemon that plays `script` for every generation and watch.
pub struct Fake {
    pub socket: PathBuf,
    pub seen: Arc<Mutex<Seen>>,
    _folder: tempfile::TempDir,
    script: Arc<[Step]>,
    change: Arc<Change>,
    stop: mpsc::Sender<()>,
}

/// What the client asked for.
#[derive(Debug, Default)]
pub struct Seen {
    pub generate: Vec<GenerateRequest>,
    pub cancelled: Vec<u64>,
    pub loaded: Vec<LoadModelRequest>,
    pub loads_cancelled: u32,
    pub pulled: Vec<PullModelRequest>,
    pub pulls_cancelled: Vec<String>,
    pub removed: Vec<RemoveModelRequest>,
    pub inspected: Vec<InspectModelRequest>,
    pub compressed: Vec<CompressRequest>,
    pub decompressed: Vec<DecompressRequest>,
    pub verified: Vec<VerifyRequest>,
    pub watched: Vec<u64>,
    pub jobs_cancelled: Vec<u64>,
    pub planned: Vec<PlanRequest>,
    pub applied: Vec<ApplyRequest>,
    pub restored: Vec<String>,
    pub measured: Vec<MeasureFidelityRequest>,
}

impl Fake {
    pub fn start(script: Vec<Step>) -> Self {
        Self::with_changes(script, Change::default())
    }

    /// One that plays `change` for every load and every change of level or budget too.
    pub fn with_changes(script: Vec<Step>, change: Change) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = folder.path().join("fake.sock");
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (script, change) = (Arc::from(script), Arc::new(change));
        let stop = Service::serve(&script, &change, &seen, &socket);
        Self {
            socket,
            seen,
            _folder: folder,
            script,
            change,
            stop,
        }
    }

    /// Takes the daemon away, with its connections.
    pub fn die(&self) {
        let _ = self.stop.send(());
        eventually("the daemon to be gone", || {
            std::os::unix::net::UnixStream::connect(&self.socket).is_err()
        });
    }

    /// Starts it anew on the same socket.
    pub fn come_back(&mut self) {
        std::fs::remove_file(&self.socket).expect("a socket of the one before");
        self.stop = Service::serve(&self.script, &self.change, &self.seen, &self.socket);
    }

    /// `sluice` that talks to this daemon.
    pub fn sluice(&self, arguments: &[&str]) -> Command {
        let mut command = sluice(&["--socket", self.socket.to_str().expect("UTF-8")]);
        command.args(arguments);
        command
    }

    pub fn output(&self, arguments: &[&str]) -> Output {
        self.sluice(arguments).output().expect("run sluice")
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = self.stop.send(());
    }
}

/// How long something may take; only a failure takes as long, and machines may be busy.
const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until something holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Reads what a program says until that has these words, and no further than the end of their line.
pub fn said(stream: &mut impl Read, words: &str) -> String {
    let mut said = Vec::new();
    while !(said.ends_with(b"\n") && String::from_utf8_lossy(&said).contains(words)) {
        let mut byte = [0];
        let read = stream.read(&mut byte).expect("read what it says");
        let so_far = String::from_utf8_lossy(&said);
        assert!(read > 0, "it ended without '{words}': {so_far}");
        said.push(byte[0]);
    }
    String::from_utf8(said).expect("UTF-8")
}

/// Ctrl-C for a program, and what came of it.
pub fn interrupt(child: Child) -> Output {
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("signal");
    child.wait_with_output().expect("run sluice")
}

#[derive(Clone)]
struct Service {
    script: Arc<[Step]>,
    change: Arc<Change>,
    cancelled: Arc<tokio::sync::Notify>,
    seen: Arc<Mutex<Seen>>,
    stop: mpsc::Sender<()>,
}

type Answers<T> = Result<Response<ReceiverStream<Result<T, Status>>>, Status>;

impl Service {
    /// Serves until what is returned is told to stop.
    fn serve(
        script: &Arc<[Step]>,
        change: &Arc<Change>,
        seen: &Arc<Mutex<Seen>>,
        socket: &Path,
    ) -> mpsc::Sender<()> {
        let (stop, stopped) = mpsc::channel();
        let service = Self {
            script: script.clone(),
            change: change.clone(),
            cancelled: Arc::default(),
            seen: seen.clone(),
            stop: stop.clone(),
        };
        let runtime = Runtime::new().expect("a runtime");
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(socket).expect("bind")
        };
        runtime.spawn(
            transport::Server::builder()
                .add_service(GenerationServiceServer::new(service.clone()))
                .add_service(JobServiceServer::new(service.clone()))
                .add_service(ModelServiceServer::new(service.clone()))
                .add_service(OptimizerServiceServer::new(service.clone()))
                .add_service(TelemetryServiceServer::new(service))
                .serve_with_incoming(UnixListenerStream::new(listener)),
        );
        let thread = std::thread::Builder::new().name("stop".into());
        let started = thread.spawn(move || {
            let _ = stopped.recv();
            runtime.shutdown_background();
        });
        started.expect("start a thread");
        stop
    }

    fn play<T: Send + 'static>(&self, wrap: fn(GenerationEvent) -> T) -> Answers<T> {
        // A daemon refuses before the stream begins.
        if let Some(Step::Fail(status)) = self.script.first() {
            return Err(status.clone());
        }
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        let (script, stop) = (self.script.clone(), self.stop.clone());
        tokio::spawn(async move {
            for step in script.iter() {
                let answer = match step.clone() {
                    Step::Send(kind) => Ok(wrap(GenerationEvent { kind: Some(kind) })),
                    Step::Fail(status) => Err(status),
                    Step::Hang => return sender.closed().await,
                    Step::Die => {
                        // Let what was sent reach the client first.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        let _ = stop.send(());
                        return sender.closed().await;
                    }
                };
                if sender.send(answer).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

#[tonic::async_trait]
impl GenerationService for Service {
    type GenerateStream = ReceiverStream<Result<GenerateResponse, Status>>;
    type ScoreStream = ReceiverStream<Result<ScoreResponse, Status>>;
    type WatchRequestStream = ReceiverStream<Result<WatchRequestResponse, Status>>;

    async fn generate(&self, request: Request<GenerateRequest>) -> Answers<GenerateResponse> {
        let mut seen = self.seen.lock().expect("no test panics with it");
        seen.generate.push(request.into_inner());
        drop(seen);
        self.play(|event| GenerateResponse { event: Some(event) })
    }

    async fn score(&self, _: Request<ScoreRequest>) -> Answers<ScoreResponse> {
        // As a daemon from before scoring would answer.
        Err(Status::unimplemented(""))
    }

    async fn list_requests(
        &self,
        _: Request<ListRequestsRequest>,
    ) -> Result<Response<ListRequestsResponse>, Status> {
        Ok(Response::new(ListRequestsResponse::default()))
    }

    async fn watch_request(
        &self,
        _: Request<WatchRequestRequest>,
    ) -> Answers<WatchRequestResponse> {
        self.play(|event| WatchRequestResponse { event: Some(event) })
    }

    async fn cancel_request(
        &self,
        request: Request<CancelRequestRequest>,
    ) -> Result<Response<CancelRequestResponse>, Status> {
        let mut seen = self.seen.lock().expect("no test panics with it");
        seen.cancelled.push(request.into_inner().request_id);
        Ok(Response::new(CancelRequestResponse { was_active: true }))
    }
}

#[tonic::async_trait]
impl ModelService for Service {
    type LoadModelStream = ReceiverStream<Result<LoadModelResponse, Status>>;
    type PullModelStream = ReceiverStream<Result<PullModelResponse, Status>>;

    async fn list_models(
        &self,
        _: Request<ListModelsRequest>,
    ) -> Result<Response<ListModelsResponse>, Status> {
        let mut models = vec![model(), on_disk()];
        let is_loading = {
            let seen = self.seen.lock().expect("no test panics with it");
            self.change.hangs && seen.loaded.len() as u32 > seen.loads_cancelled
        };
        if is_loading {
            models.push(Model {
                name: "on-its-way".to_owned(),
                state: ModelState::Loading.into(),
                ..Default::default()
            });
        }
        let kept = KeptWeights {
            model: "tiny".to_owned(),
            level: "moderate".to_owned(),
            bytes: 3 << 20,
            is_in_use: true,
            ..Default::default()
        };
        Ok(Response::new(ListModelsResponse {
            models,
            kept: vec![kept],
            kept_folder: "/cache".to_owned(),
            kept_bytes_max: Some(32 << 30),
        }))
    }

    async fn load_model(&self, request: Request<LoadModelRequest>) -> Answers<LoadModelResponse> {
        {
            let mut seen = self.seen.lock().expect("no test panics with it");
            seen.loaded.push(request.into_inner());
        }
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        let (change, cancelled) = (self.change.clone(), self.cancelled.clone());
        tokio::spawn(async move {
            for kind in &change.load {
                let kind = Some(kind.clone());
                let _ = sender.send(Ok(LoadModelResponse { kind })).await;
            }
            let last = if change.hangs {
                cancelled.notified().await;
                Err(Status::cancelled("the load was cancelled"))
            } else {
                let kind = Some(load_model_response::Kind::Model(model()));
                Ok(LoadModelResponse { kind })
            };
            let _ = sender.send(last).await;
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn cancel_load(
        &self,
        _: Request<CancelLoadRequest>,
    ) -> Result<Response<CancelLoadResponse>, Status> {
        let mut seen = self.seen.lock().expect("no test panics with it");
        seen.loads_cancelled += 1;
        self.cancelled.notify_one();
        Ok(Response::new(CancelLoadResponse { was_loading: true }))
    }

    async fn unload_model(
        &self,
        _: Request<UnloadModelRequest>,
    ) -> Result<Response<UnloadModelResponse>, Status> {
        Ok(Response::new(UnloadModelResponse {
            name: "fake".into(),
            device_bytes_before: 3 << 30,
            device_bytes_after: 8 << 20,
            resident_bytes_before: Some(4 << 30),
            resident_bytes_after: Some(40 << 20),
        }))
    }

    async fn pull_model(&self, request: Request<PullModelRequest>) -> Answers<PullModelResponse> {
        {
            let mut seen = self.seen.lock().expect("no test panics with it");
            seen.pulled.push(request.into_inner());
        }
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        let (change, cancelled) = (self.change.clone(), self.cancelled.clone());
        tokio::spawn(async move {
            for kind in &change.pull {
                let kind = Some(kind.clone());
                let _ = sender.send(Ok(PullModelResponse { kind })).await;
            }
            let last = if change.hangs {
                cancelled.notified().await;
                Err(Status::cancelled("the download was cancelled"))
            } else {
                let kind = Some(pull_model_response::Kind::Model(on_disk()));
                Ok(PullModelResponse { kind })
            };
            let _ = sender.send(last).await;
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn cancel_pull(
        &self,
        request: Request<CancelPullRequest>,
    ) -> Result<Response<CancelPullResponse>, Status> {
        let mut seen = self.seen.lock().expect("no test panics with it");
        seen.pulls_cancelled.push(request.into_inner().name);
        self.cancelled.notify_one();
        Ok(Response::new(CancelPullResponse { was_pulling: true }))
    }

    async fn remove_model(
        &self,
        request: Request<RemoveModelRequest>,
    ) -> Result<Response<RemoveModelResponse>, Status> {
        let mut seen = self.seen.lock().expect("no test panics with it");
        seen.removed.push(request.into_inner());
        let freed_bytes = 3 << 30;
        Ok(Response::new(RemoveModelResponse {
            freed_bytes,
            ..Default::default()
        }))
    }

    async fn inspect_model(
        &self,
        request: Request<InspectModelRequest>,
    ) -> Result<Response<InspectModelResponse>, Status> {
        let mut seen = self.seen.lock().expect("no test panics with it");
        let request = request.into_inner();
        let coded = request.path.ends_with(".sluice");
        let not_loadable = match request.name.as_str() {
            "o/odd" => "its model_type 'odd' is not known\x1b[2J".to_owned(),
            _ => String::new(),
        };
        seen.inspected.push(request);
        Ok(Response::new(InspectModelResponse {
            model: Some(on_disk()),
            facts: vec![Fact {
                name: "licence".into(),
                value: "mit\x1b[2J".into(),
            }],
            tensors: vec![TensorGroup {
                format: "BF16".into(),
                tensors: 12,
                parameters: 1_500_000_000,
                bytes: 3_000_000_000,
            }],
            levels: ["mild", "moderate"]
                .map(|level| LevelEstimate {
                    level: level.into(),
                    peak_bytes: 2 << 30,
                    weight_bytes: 1 << 30,
                    fits: true,
                    not_loadable: match level {
                        "mild" => "not yet".into(),
                        _ => String::new(),
                    },
                })
                .into(),
            coded: coded.then(contents),
            not_loadable,
            ..Default::default()
        }))
    }
}

/// What a small coded file has in it.
fn contents() -> CodedContents {
    let sum = CodedSum {
        scheme: "huffman".into(),
        tensors: 1,
        numbers: 1 << 20,
        bytes: 11 << 17,
        original_bytes: 1 << 21,
    };
    CodedContents {
        path: "/models/m.sluice".into(),
        bytes: (11 << 17) + 4096,
        original_bytes: 1 << 21,
        source_hash: "0123456789abcdef".into(),
        tile: 256,
        extents: 1,
        tensors: vec![CodedTensor {
            name: "wq\x1b[2J".into(),
            shape: vec![1024, 1024],
            number: "bf16".into(),
            scheme: sum.scheme.clone(),
            extent: "wq".into(),
            bytes: sum.bytes,
            original_bytes: sum.original_bytes,
            ..Default::default()
        }],
        schemes: vec![sum],
        files: vec![CodedFile {
            name: "config.json".into(),
            bytes: 1024,
            ..Default::default()
        }],
    }
}

impl Service {
    fn job(&self) -> Answers<JobEvent> {
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        let (change, cancelled) = (self.change.clone(), self.cancelled.clone());
        tokio::spawn(async move {
            if change.silent {
                return sender.closed().await;
            }
            let begun = job_event::Kind::Job(job());
            for kind in [begun].iter().chain(&change.job) {
                let kind = Some(kind.clone());
                let _ = sender.send(Ok(JobEvent { kind })).await;
            }
            if change.hangs {
                cancelled.notified().await;
                let status = Status::cancelled("the job was cancelled; what is done is kept in /p");
                let _ = sender.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

#[tonic::async_trait]
impl JobService for Service {
    type CompressStream = ReceiverStream<Result<JobEvent, Status>>;
    type DecompressStream = ReceiverStream<Result<JobEvent, Status>>;
    type VerifyStream = ReceiverStream<Result<JobEvent, Status>>;
    type WatchJobStream = ReceiverStream<Result<JobEvent, Status>>;

    async fn compress(&self, request: Request<CompressRequest>) -> Answers<JobEvent> {
        let mut seen = self.seen.lock().expect("no test panics with it");
        seen.compressed.push(request.into_inner());
        drop(seen);
        self.job()
    }

    async fn decompress(&self, request: Request<DecompressRequest>) -> Answers<JobEvent> {
        let mut seen = self.seen.lock().expect("no test panics with it");
        seen.decompressed.push(request.into_inner());
        drop(seen);
        self.job()
    }

    async fn verify(&self, request: Request<VerifyRequest>) -> Answers<JobEvent> {
        let mut seen = self.seen.lock().expect("no test panics with it");
        seen.verified.push(request.into_inner());
        drop(seen);
        self.job()
    }

    async fn list_jobs(
        &self,
        _: Request<ListJobsRequest>,
    ) -> Result<Response<ListJobsResponse>, Status> {
        let failed = Job {
            job_id: 2,
            kind: JobKind::Verify.into(),
            state: JobState::Failed.into(),
            output: String::new(),
            error: "it is gone\x1b[2J".into(),
            ..job()
        };
        let jobs = vec![failed, job()];
        Ok(Response::new(ListJobsResponse { jobs }))
    }

    async fn watch_job(&self, request: Request<WatchJobRequest>) -> Answers<JobEvent> {
        let mut seen = self.seen.lock().expect("no test panics with it");
        seen.watched.push(request.into_inner().job_id);
        drop(seen);
        self.job()
    }

    async fn cancel_job(
        &self,
        request: Request<CancelJobRequest>,
    ) -> Result<Response<CancelJobResponse>, Status> {
        let mut seen = self.seen.lock().expect("no test panics with it");
        seen.jobs_cancelled.push(request.into_inner().job_id);
        self.cancelled.notify_one();
        Ok(Response::new(CancelJobResponse { was_running: true }))
    }
}

impl Service {
    fn change(&self) -> Answers<ApplyResponse> {
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        let change = self.change.clone();
        tokio::spawn(async move {
            for kind in &change.apply {
                let kind = Some(kind.clone());
                let _ = sender.send(Ok(ApplyResponse { kind })).await;
            }
            if change.hangs {
                sender.closed().await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

#[tonic::async_trait]
impl OptimizerService for Service {
    type ApplyStream = ReceiverStream<Result<ApplyResponse, Status>>;
    type RestoreStream = ReceiverStream<Result<ApplyResponse, Status>>;
    type MeasureFidelityStream = ReceiverStream<Result<MeasureFidelityResponse, Status>>;

    async fn plan(&self, request: Request<PlanRequest>) -> Result<Response<PlanResponse>, Status> {
        let mut seen = self.seen.lock().expect("no test panics with it");
        let request = request.into_inner();
        let level = request.level.clone();
        seen.planned.push(request);
        let plan = Some(plan(level.as_deref().unwrap_or("standard")));
        Ok(Response::new(PlanResponse { plan }))
    }

    async fn apply(&self, request: Request<ApplyRequest>) -> Answers<ApplyResponse> {
        {
            let mut seen = self.seen.lock().expect("no test panics with it");
            seen.applied.push(request.into_inner());
        }
        self.change()
    }

    async fn restore(&self, request: Request<RestoreRequest>) -> Answers<ApplyResponse> {
        {
            let mut seen = self.seen.lock().expect("no test panics with it");
            seen.restored.push(request.into_inner().to);
        }
        self.change()
    }

    async fn measure_fidelity(
        &self,
        request: Request<MeasureFidelityRequest>,
    ) -> Answers<MeasureFidelityResponse> {
        use measure_fidelity_response::Kind;

        let request = request.into_inner();
        let kinds = [
            Kind::Progress(FidelityProgress {
                request_id: 7,
                done: 1,
                total: 6,
            }),
            Kind::Result(fidelity(&request)),
        ];
        let mut seen = self.seen.lock().expect("no test panics with it");
        seen.measured.push(request);
        drop(seen);
        let (sender, receiver) = tokio::sync::mpsc::channel(kinds.len());
        // Without its end, the stream is as one of a daemon that broke.
        let sent = if self.change.hangs { 1 } else { kinds.len() };
        for kind in kinds.into_iter().take(sent) {
            let answer = MeasureFidelityResponse { kind: Some(kind) };
            sender.try_send(Ok(answer)).expect("room for all");
        }
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn list_fidelity(
        &self,
        _: Request<ListFidelityRequest>,
    ) -> Result<Response<ListFidelityResponse>, Status> {
        let seen = self.seen.lock().expect("no test panics with it");
        let measurement = |request| FidelityMeasurement {
            model: "fake".into(),
            measured_at_s: 1_700_000_000,
            result: Some(fidelity(request)),
            ..Default::default()
        };
        let measurements = seen.measured.iter().map(measurement).collect();
        Ok(Response::new(ListFidelityResponse { measurements }))
    }
}

#[tonic::async_trait]
impl TelemetryService for Service {
    type WatchSnapshotsStream = ReceiverStream<Result<WatchSnapshotsResponse, Status>>;

    async fn get_snapshot(
        &self,
        _: Request<GetSnapshotRequest>,
    ) -> Result<Response<GetSnapshotResponse>, Status> {
        let snapshot = Some(snapshot());
        Ok(Response::new(GetSnapshotResponse { snapshot }))
    }

    async fn watch_snapshots(
        &self,
        _: Request<WatchSnapshotsRequest>,
    ) -> Answers<WatchSnapshotsResponse> {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let snapshot = Some(snapshot());
                let answer = Ok(WatchSnapshotsResponse { snapshot });
                if sender.send(answer).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

fn snapshot() -> Snapshot {
    Snapshot {
        server: Some(Server {
            version: "0.1.0".into(),
            protocol_version: sluice_proto::PROTOCOL,
            state: ServerState::Ready.into(),
            ..Default::default()
        }),
        model: Some(model()),
        plan: Some(plan("standard")),
        settings: Some(Settings {
            level: "standard".into(),
            budget_bytes: 4 << 30,
            is_default_budget: true,
            ..Default::default()
        }),
        jobs: vec![job()],
        ..Default::default()
    }
}

/// A job that is half done.
fn job() -> Job {
    Job {
        job_id: 3,
        kind: JobKind::Compress.into(),
        state: JobState::Running.into(),
        source: "/models/m".into(),
        output: "/models/m.sluice".into(),
        progress: Some(JobProgress {
            tensor: "blocks.1.ff_out.weight".into(),
            done_bytes: 1 << 30,
            total_bytes: 2 << 30,
        }),
        elapsed_ms: 90_000.0,
        threads: 2,
        ..Default::default()
    }
}

/// What a level comes to: near the checkpoint's own weights.
fn fidelity(request: &MeasureFidelityRequest) -> FidelityResult {
    FidelityResult {
        request_id: 7,
        level: request.level.clone().unwrap_or("standard".into()),
        samples: 3,
        rows: 1_234,
        mean_kl_nats: 0.00125,
        top_agreement: 0.9875,
        source_bound_nats: 1.5,
        level_bound_nats: 1.625,
        seed: request.seed.unwrap_or(99),
        elapsed_ms: 1_500.0,
    }
}

/// A plan that needs 3 of 4 GiB and streams nothing. Level `off` can only be planned.
pub fn plan(level: &str) -> Plan {
    Plan {
        model: "fake".into(),
        level: level.into(),
        budget_bytes: 4 << 30,
        canvas: 256,
        block: 32,
        requests: 1,
        peak_bytes: 3 << 30,
        pass_ms: Some(620.0),
        is_lossless: ["off", "standard", "mild"].contains(&level),
        is_loadable: level != "off",
        not_loadable: match level {
            "off" => "level off can only be planned".into(),
            _ => String::new(),
        },
        ..Default::default()
    }
}

/// The events of a change from `standard` to `level` that succeeds.
pub fn switch(level: &str) -> Vec<apply_response::Kind> {
    use apply_response::Kind;

    let before = Plan {
        peak_bytes: 4 << 30,
        pass_ms: Some(1800.0),
        streamed_bytes_per_pass: 2 << 30,
        ..plan("standard")
    };
    vec![
        Kind::Planned(ApplyPlanned {
            plan: Some(plan(level)),
            before: Some(before),
            steps: 2,
        }),
        Kind::Conversion(Conversion {
            done_bytes: 1 << 20,
            total_bytes: 4 << 20,
        }),
        Kind::Notice("a copy is written\x1b[2J".into()),
        Kind::Progress(Switch { done: 1, steps: 2 }),
        Kind::Applied(Applied {
            plan: Some(plan(level)),
            device_bytes: 2 << 30,
            elapsed_ms: 2_300.0,
        }),
    ]
}

fn model() -> Model {
    Model {
        name: "fake".into(),
        state: ModelState::Ready.into(),
        is_demonstration: true,
        ..Default::default()
    }
}

/// A downloaded model.
fn on_disk() -> Model {
    Model {
        name: "o/m".into(),
        path: "/models/o/m".into(),
        state: ModelState::Available.into(),
        origin: ModelOrigin::Pulled.into(),
        disk_bytes: 3 << 30,
        file_format: "safetensors".into(),
        family: "llada".into(),
        parameters: Some(1_500_000_000),
        is_default: true,
        ..Default::default()
    }
}

/// The events of a short, successful request.
pub fn story(text: &str) -> Vec<Step> {
    use generation_event::Kind;

    let words: Vec<&str> = text.split_inclusive(' ').collect();
    let tokens = |committed: usize| -> Vec<CanvasToken> {
        let token = |(position, word): (usize, &&str)| CanvasToken {
            position: position as u32,
            id: Some(position as u32 + 10),
            piece: word.as_bytes().to_vec(),
            confidence: Some(0.5),
            state: match position < committed {
                true => TokenState::Committed.into(),
                false => TokenState::Provisional.into(),
            },
            fresh: position + 1 == committed,
        };
        words.iter().enumerate().map(token).collect()
    };
    let length = words.len() as u32;
    let mut steps = vec![
        Step::Send(Kind::Queued(Queued {
            request_id: 7,
            ahead: 0,
        })),
        Step::Send(Kind::Started(Started {
            request_id: 7,
            length,
            block_length: length,
            blocks: 1,
            steps: length,
            model: "fake".into(),
            prompt_text: b"prompt".to_vec(),
            exact: true,
            ..Default::default()
        })),
    ];
    for pass in 1..=length {
        steps.push(Step::Send(Kind::PassDone(PassDone {
            request_id: 7,
            passes: pass,
            pass_in_block: pass,
            tokens: tokens(pass as usize),
            committed: pass,
            elapsed_ms: f64::from(pass) * 10.0,
            ..Default::default()
        })));
    }
    steps.push(Step::Send(Kind::BlockDone(BlockDone {
        request_id: 7,
        passes: length,
        tokens: tokens(words.len()),
        ..Default::default()
    })));
    steps.push(Step::Send(Kind::Done(Done {
        request_id: 7,
        finish_reason: FinishReason::Length.into(),
        tokens: (10..10 + length).collect(),
        text: Some(text.to_owned()),
        passes: length,
        elapsed_ms: 100.0,
        text_tokens: length,
        generated_tokens: length,
        filled_positions: length,
        exact: true,
        ..Default::default()
    })));
    steps
}
