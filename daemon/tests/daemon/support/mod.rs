//! Starting daemons, talking to them, and waiting without sleeping longer than needed.

pub(crate) mod checkpoints;
pub(crate) mod clock;
pub(crate) mod http2;
pub(crate) mod repeated;
pub(crate) mod tls;

use std::{
    ffi::OsStr,
    fs::File,
    path::{Path, PathBuf},
    process::{ExitStatus, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, setrlimit};
use sluice_proto::{
    client::{self, CallError},
    operations::OperationResponse,
    v1::{
        self, generation_event::Event, generation_service_client::GenerationServiceClient,
        model_service_client::ModelServiceClient, operation_service_client::OperationServiceClient,
        optimizer_service_client::OptimizerServiceClient,
        telemetry_service_client::TelemetryServiceClient,
    },
};
use tempfile::TempDir;
use testkit::PATIENCE;
use tokio::process::{Child, Command};
use tonic::{Response, Status, Streaming, transport::Channel};

/// A running `sluiced` with a folder of its own; killed when dropped.
pub(crate) struct Daemon {
    pub(crate) folder: TempDir,
    pub(crate) socket: PathBuf,
    child: Child,
}

/// `sluiced` in an environment that says nothing but what the test does.
pub(crate) fn command(folder: &Path) -> Command {
    isolate(Command::new(env!("CARGO_BIN_EXE_sluiced")), folder)
}

/// Any program, in the same environment.
pub(crate) fn isolate(mut command: Command, folder: &Path) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    command
        .env_clear()
        .env("PATH", path)
        .env("HOME", folder)
        .env("XDG_CONFIG_HOME", folder.join("config"))
        .env("XDG_RUNTIME_DIR", folder)
        .current_dir(folder)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Runs `sluiced` to its end.
pub(crate) async fn run(folder: &Path, arguments: &[&str]) -> Output {
    let output = command(folder).args(arguments).output();
    within("sluiced to end", output).await.unwrap()
}

/// Lets this process have as many descriptors as it may, for tests with many connections: 1024 is common.
pub(crate) fn many_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
}

/// Waits, but not for ever.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {PATIENCE:?} for {what}"),
    }
}

/// Asks again and again until the answer is yes.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    let asking = async {
        while !ask().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(what, asking).await;
}

impl Daemon {
    /// Serves the checkpoint, ready to generate.
    pub(crate) async fn with_model(model: &Path, arguments: &[&str]) -> Self {
        let model = model.to_str().unwrap();
        let arguments = [&["--model", model], arguments].concat();
        let daemon = Self::start(&arguments).await;
        daemon.model_state(v1::ModelState::Ready).await;
        daemon
    }

    /// Serves the embedded model, ready to generate.
    pub(crate) async fn embedded() -> Self {
        let daemon = Self::start(&[""; 0]).await;
        daemon.model_state(v1::ModelState::Ready).await;
        daemon
    }

    /// A daemon that answers on its socket; its model may be loading.
    pub(crate) async fn start(arguments: &[impl AsRef<OsStr>]) -> Self {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("s");
        let mut command = command(folder.path());
        command.arg("--socket").arg(&socket).args(arguments);
        Self::spawn(folder, socket, command).await
    }

    /// The same from a command made elsewhere.
    pub(crate) async fn spawn(folder: TempDir, socket: PathBuf, mut command: Command) -> Self {
        let log = File::create(folder.path().join("log")).unwrap();
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let daemon = Self {
            folder,
            socket,
            child,
        };
        until("the socket", || async {
            assert!(daemon.socket_may_come(), "{}", daemon.log());
            client::connect(&daemon.socket).await.is_ok()
        })
        .await;
        daemon
    }

    fn socket_may_come(&self) -> bool {
        // Gone from the process table, or a zombie, when it ended at once.
        let Some(pid) = self.child.id() else {
            return false;
        };
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| !stat.contains(") Z "))
    }

    pub(crate) async fn channel(&self) -> Channel {
        client::connect(&self.socket).await.unwrap()
    }

    pub(crate) async fn generation(&self) -> GenerationServiceClient<Channel> {
        GenerationServiceClient::new(self.channel().await)
            .max_decoding_message_size(client::MESSAGE_BYTES_MAX)
    }

    pub(crate) async fn operations(&self) -> OperationServiceClient<Channel> {
        OperationServiceClient::new(self.channel().await)
    }

    pub(crate) async fn models(&self) -> ModelServiceClient<Channel> {
        ModelServiceClient::new(self.channel().await)
    }

    pub(crate) async fn optimizer(&self) -> OptimizerServiceClient<Channel> {
        OptimizerServiceClient::new(self.channel().await)
    }

    pub(crate) async fn snapshot(&self) -> v1::Snapshot {
        self.try_snapshot().await.unwrap()
    }

    /// A snapshot, if the daemon isn't too busy for one.
    pub(crate) async fn try_snapshot(&self) -> Result<v1::Snapshot, Status> {
        let mut client = TelemetryServiceClient::new(self.channel().await);
        let answer = client.get_snapshot(v1::GetSnapshotRequest {}).await?;
        Ok(answer.into_inner().snapshot.unwrap())
    }

    /// Waits until the present model is in this state, and returns it.
    pub(crate) async fn model_state(&self, state: v1::ModelState) -> v1::Model {
        until("the model's state", || async {
            let model = self.snapshot().await.model.unwrap();
            model.state() == state
        })
        .await;
        self.snapshot().await.model.unwrap()
    }

    /// One line of the list.
    pub(crate) async fn request(&self, id: u64) -> v1::Operation {
        let request = v1::ListOperationsRequest {
            kinds: v1::OperationKind::REQUESTS.map(Into::into).into(),
            ..Default::default()
        };
        let answer = self.operations().await.list_operations(request).await;
        let list = answer.unwrap().into_inner().operations;
        list.into_iter()
            .find(|request| request.operation_id == id)
            .unwrap()
    }

    /// Cancels an operation; whether it waited or ran.
    pub(crate) async fn cancel(&self, operation_id: u64) -> Result<bool, Status> {
        let request = v1::CancelOperationRequest { operation_id };
        let answer = self.operations().await.cancel_operation(request).await?;
        Ok(answer.into_inner().was_active)
    }

    /// Starts a request and reads it until its first pass.
    pub(crate) async fn running(
        &self,
        request: v1::GenerateRequest,
    ) -> (u64, Streaming<v1::GenerateResponse>) {
        let mut stream = self
            .generation()
            .await
            .generate(request)
            .await
            .unwrap()
            .into_inner();
        (pass(&mut stream).await, stream)
    }

    pub(crate) fn pid(&self) -> Pid {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        Pid::from_raw(pid).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for the process; how long it took from now, and what it logged.
    pub(crate) async fn ended(&mut self) -> (ExitStatus, Duration, String) {
        let begun = Instant::now();
        let status = within("the daemon to end", self.child.wait())
            .await
            .unwrap();
        (status, begun.elapsed(), self.log())
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

/// A request with some of its options changed.
pub(crate) trait RequestOptions {
    fn sampled(self, change: impl FnOnce(&mut v1::SamplingOptions)) -> Self;
    fn diffused(self, change: impl FnOnce(&mut v1::DiffusionOptions)) -> Self;
}

impl RequestOptions for v1::GenerateRequest {
    fn sampled(mut self, change: impl FnOnce(&mut v1::SamplingOptions)) -> Self {
        change(self.sampling_mut());
        self
    }

    fn diffused(mut self, change: impl FnOnce(&mut v1::DiffusionOptions)) -> Self {
        change(self.diffusion_mut());
        self
    }
}

/// A request of ids alone, answered the reference's way.
pub(crate) fn tokens(ids: &[u32], length: u32) -> v1::GenerateRequest {
    let ids = ids.to_vec();
    v1::GenerateRequest {
        input: Some(v1::generate_request::Input::Tokens(v1::TokenIds { ids })),
        length: Some(length),
        ..Default::default()
    }
    .sampled(|sampling| {
        sampling.seed = Some(7);
        sampling.greedy = true;
    })
}

/// A request that takes long on [`checkpoints::slow`].
pub(crate) fn long() -> v1::GenerateRequest {
    tokens(&[1, 2, 3], 256).sampled(|sampling| sampling.eos_policy = v1::EosPolicy::Suppress.into())
}

/// A question to the embedded model.
pub(crate) fn chat(question: &str) -> v1::GenerateRequest {
    let message = v1::ChatMessage {
        role: v1::ChatRole::User.into(),
        content: question.to_owned(),
        ..Default::default()
    };
    v1::GenerateRequest {
        input: Some(v1::generate_request::Input::Chat(v1::Chat {
            messages: vec![message],
            ..Default::default()
        })),
        length: Some(32),
        ..Default::default()
    }
    .sampled(|sampling| sampling.seed = Some(7))
}

/// The next event; `None` at the end.
pub(crate) async fn next(
    stream: &mut Streaming<v1::GenerateResponse>,
) -> Result<Option<Event>, Status> {
    let message = stream.message().await?;
    Ok(message.map(|message| message.event.unwrap().event.unwrap()))
}

/// Waits for a pass of a generation that goes on; the request's number.
pub(crate) async fn pass(stream: &mut Streaming<v1::GenerateResponse>) -> u64 {
    loop {
        let event = within("a pass", next(stream)).await.unwrap();
        if let Event::PassDone(pass) = event.expect("it goes on") {
            return pass.request_id;
        }
    }
}

/// All events to the end.
pub(crate) async fn rest(
    stream: &mut Streaming<v1::GenerateResponse>,
) -> Result<Vec<Event>, CallError> {
    let mut events = Vec::new();
    while let Some(event) = within("an event", next(stream)).await? {
        events.push(event);
    }
    Ok(events)
}

/// Runs a request to its end.
pub(crate) async fn generate(
    daemon: &Daemon,
    request: v1::GenerateRequest,
) -> Result<Vec<Event>, CallError> {
    let mut stream = daemon
        .generation()
        .await
        .generate(request)
        .await?
        .into_inner();
    rest(&mut stream).await
}

/// The last event of a request that came to its end.
pub(crate) fn done(events: &[Event]) -> &v1::GenerationDone {
    match events.last() {
        Some(Event::Done(done)) => done,
        other => panic!("the last event is {other:?}"),
    }
}

/// A change to a level.
pub(crate) fn level(level: v1::Level) -> v1::ApplyRequest {
    v1::ApplyRequest {
        options: Some(v1::PlanOptions {
            level: level.into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The pictures of a change to its end.
pub(crate) async fn apply(
    daemon: &Daemon,
    request: v1::ApplyRequest,
) -> Result<Vec<v1::Operation>, CallError> {
    pictures(daemon.optimizer().await.apply(request).await).await
}

/// All pictures of an operation, or what it ended with.
pub(crate) async fn pictures<R: OperationResponse>(
    answer: Result<Response<Streaming<R>>, Status>,
) -> Result<Vec<v1::Operation>, CallError> {
    rest_of(answer?.into_inner()).await
}

/// The pictures that are still to come, or what the operation ended with.
pub(crate) async fn rest_of<R: OperationResponse>(
    mut stream: Streaming<R>,
) -> Result<Vec<v1::Operation>, CallError> {
    let mut pictures = Vec::new();
    while let Some(answer) = within("a picture", stream.message()).await? {
        pictures.extend(answer.into_operation());
    }
    Ok(pictures)
}
