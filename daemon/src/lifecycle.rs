//! The daemon's life: start, serving, drain and shutdown.

use std::{
    env, fs,
    io::{self, IsTerminal, Write},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use listenfd::ListenFd;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sluice_engine::{Engine, EngineError, EngineOptions, PlanOptions};
use sluice_formats::DType;
use sluice_machine::Instructions;
use sluice_ops::{OpsError, device::DeviceChoice};
use sluice_proto::v1;
use sluice_shared::{exit, units};
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    access::AccessRules,
    config::{self, Config, Device, SettingSource},
    credential_file::CredentialError,
    examine::Examiner,
    gpu_fit, idle, learned_experts,
    library::Library,
    limits::DESCRIPTORS,
    listen::{self, ListenError, Listening},
    memory::Memory,
    model_name::ModelName,
    operations::STOPPED_AT_SHUTDOWN,
    renewal,
    services::{self, Daemon, HttpPort, Listeners, Port},
    settings::{self, SettingOrigin},
    state::StateStore,
    systemd,
    tls::{PortProtocol, Tls},
    watchdog::{self, StallLimits},
};

/// Threads that answer calls; computing is the engine's own threads' work.
const CALL_THREADS: usize = 2;
/// How often the daemon checks that the engine's thread is alive.
const PULSE: Duration = Duration::from_millis(100);
/// Time that cancelled requests and jobs get to end: about one pass of a large model.
const CANCEL_GRACE: Duration = Duration::from_secs(5);
/// Time that streams get to reach their readers.
const STREAM_GRACE: Duration = Duration::from_secs(2);
/// Time that the engine's thread gets to stop.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Why the daemon could not begin.
#[derive(Debug, thiserror::Error)]
enum StartError {
    /// The socket or the port could not be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The engine refused to start, for example because the requested GPU is missing.
    #[error("cannot start the engine: {0}")]
    Engine(#[from] EngineError),
    /// The token file, or a file of TLS, cannot be used.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// The system refused the runtime or the signal handlers.
    #[error("cannot {operation}: {cause}")]
    System {
        /// What was tried, as a verb.
        operation: &'static str,
        /// The system's words.
        cause: io::Error,
    },
}

/// The driver's name for the folder in which it keeps the kernels that it compiles.
pub const KERNEL_FOLDER: &str = "CUDA_CACHE_PATH";

/// Where the driver is to keep compiled kernels, unless somebody chose a place: in the folder that Sluice was given to keep
/// things in.
///
/// The driver's own choice is below the home folder, which a service may not have or may not write to, and then it compiles
/// at every start.
#[must_use]
pub fn kernel_folder(config: &Config) -> Option<PathBuf> {
    let has_default = config.weight_cache.source == SettingSource::Default;
    if has_default || config.device.value == Device::Cpu {
        return None;
    }
    Some(config.weight_cache.value.0.as_ref()?.join("kernels"))
}

/// Serves with the examiner's configuration until told to stop; the exit code. The configuration's model, or the default, is loaded at the start, unless
/// another is about to be asked for.
#[must_use]
pub fn run(examiner: Examiner, loads_at_start: bool) -> u8 {
    // Changes the environment, so it comes before any other thread.
    let handed_over = ListenFd::from_env();
    raise_descriptors();
    let code = runtime::Builder::new_multi_thread()
        .worker_threads(CALL_THREADS)
        .enable_all()
        .build()
        .map_err(|cause| StartError::System {
            operation: "start the runtime",
            cause,
        })
        .and_then(|runtime| {
            let code = runtime.block_on(serve(examiner, loads_at_start, handed_over));
            // Does not wait for blocking threads: nobody wants a text that is still being tokenized.
            runtime.shutdown_background();
            code
        });
    code.unwrap_or_else(|error| {
        // Not through the log, whose filter could hide why the daemon did not start.
        eprintln!("sluiced: {error}");
        if let StartError::Engine(EngineError::Ops(OpsError::NoGpu(unavailable))) = &error {
            eprintln!("hint: {}", unavailable.hint());
        }
        exit::FAILURE
    })
}

/// Raises the number of descriptors to what connections take, as far as the system lets it: 1024 is common.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit
        .maximum
        .map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit {
            current: Some(wanted),
            ..limit
        };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::debug!(%error, "cannot raise the number of file descriptors");
        }
    }
}

async fn serve(
    examiner: Examiner,
    loads_at_start: bool,
    handed_over: ListenFd,
) -> Result<u8, StartError> {
    let config = &*examiner.config().clone();
    banner(config);
    // Handlers first: a signal during the start is answered with a drain, so that the socket's file is removed.
    let mut signals = Signals::new()?;
    // Before anything is opened that they guard.
    let access = AccessRules::of(config)?;
    let tls = Tls::of(config)?;
    let mut listening = listen::open(handed_over, &config.socket.value).await?;
    let port = listen::open_port("--listen", config.listen.value.address()).await?;
    let http_port = listen::open_port("--http", config.http.value.address()).await?;
    let state = StateStore::open(config.models.value.0.as_deref());
    let state = Arc::new(state.map_err(|cause| StartError::System {
        operation: "start a thread",
        cause,
    })?);
    let library = Library::new(
        config.models.value.0.clone(),
        config.hub_cache.clone(),
        config.hub.clone(),
        state.clone(),
    );
    let name = configured_model(&library, config);
    let options = |device| EngineOptions {
        device,
        compute_dtype: config.compute_dtype.value.dtype(),
        instructions: config.instructions.value.instructions(),
        threads: config.threads.value.get(),
        queue_max: config.queue.value.get(),
        parallel: config.parallel.value.get(),
        disk_read_limit_bytes_per_s: config.disk_read_limit.value.bytes_per_s(),
        pinned_memory_limit_bytes: config.pinned_memory_limit.value.bytes(),
        settings: config.engine_settings(),
        weight_cache: config.weight_cache.value.0.clone(),
        keep_converted: config.keep_converted.value,
        weight_cache_bytes_max: config.weight_cache_limit.value.bytes(),
        // The very program that runs, even if its file was replaced since.
        tokenizer_program: Some(PathBuf::from("/proc/self/exe")),
        routing_log: None,
        rates: None,
    };
    let settings = settings::ModelSettings::new(
        settings::StartSettings {
            level: config.level.clone(),
            budget: config.budget.clone(),
            small_memory: config.small_memory.value,
            loaded_models: config.loaded_models.value.get(),
            load_on_request: config.load_on_request.value,
        },
        config.model_settings.clone(),
        state,
    );
    let holds = settings.for_load(&name, &PlanOptions::default());
    let mut engine = Engine::start(options(config.device.value.choice()))?;
    if config.device.value == Device::Auto
        && loads_at_start
        && let Some(reason) =
            gpu_fit::reason(&engine, &name, engine.settings().with(&holds.change()))
    {
        // Dropped before the next one starts, so that all of the GPU's memory is free again.
        drop(engine);
        engine = Engine::start(options(DeviceChoice::Cpu))?.without_gpu(reason);
    }
    let engine = Arc::new(engine);
    learned_experts::restore(&engine, library.state());
    tell_device(&engine);
    make_kernel_folder(config, &engine);
    let socket = listening.path.clone();
    let daemon = Daemon::new(engine, library, settings, socket, config.preset.value);
    let daemon = daemon.with_access(access).with_examiner(examiner);
    let encoder = config.memory_encoder.value.clone();
    let daemon = daemon.with_memory(Memory::new(config.memory.value.0.clone(), encoder));
    let daemon = Arc::new(daemon.with_tls(tls.clone()));
    if loads_at_start {
        load_configured_model(&daemon, name);
    }
    let (replace, replacements) = mpsc::channel(1);
    let address = port.as_ref().map(|(_, address)| *address);
    let http_address = http_port.as_ref().map(|(_, address)| *address);
    let http_port = http_port.map(|port| HttpPort {
        port: Port::new(port, PortProtocol::Http, tls.clone()),
        origins: config.http_origins.value.origins().to_vec(),
        has_tokens: config.token_file.value.0.is_some(),
    });
    let listeners = Listeners {
        unix: listening
            .take_listener()
            .expect("a socket that was just opened has its listener"),
        replacements,
        port: port.map(|port| Port::new(port, PortProtocol::Grpc, tls)),
    };
    let server = tokio::spawn(services::serve(daemon.clone(), listeners, http_port));
    tokio::spawn(tell_systemd(daemon.clone()));
    tokio::spawn(renewal::watch(daemon.clone()));
    tokio::spawn(learned_experts::watch(daemon.clone()));
    tokio::spawn(watchdog::watch(daemon.clone(), StallLimits::default()));
    if let Some(after) = config.idle_unload.value.after() {
        tokio::spawn(idle::watch(daemon.clone(), after));
    }
    announce(&listening, address, http_address, config);

    let code = tokio::select! {
        name = signals.next() => {
            tracing::info!(signal = name, "shutting down");
            tokio::select! {
                () = drain(&daemon, config.drain_seconds.value.get() as u64) => exit::OK,
                name = signals.impatient() => {
                    tracing::warn!(signal = name, "leaving at once");
                    listening.remove_file();
                    // A second signal means now: not even the engine's thread is waited for.
                    std::process::exit(exit::FAILURE.into());
                }
            }
        }
        () = listening.keep(replace) => unreachable!("it goes on"),
        () = engine_death(&daemon) => {
            match daemon.engine.device().has_failed() {
                true => tracing::error!("the GPU failed; exiting for a clean restart"),
                false => tracing::error!("the engine's thread has ended; leaving, for a clean start"),
            }
            exit::FAILURE
        }
    };
    close(&daemon, server).await;
    // Before the engine stops, which may take seconds: clients see at once that nobody listens.
    listening.remove_file();
    tracing::info!(code, "sluiced ends");
    let has_stopped = stop_engine(&daemon).await;
    // After the engine, whose thread ends loads and changes: each end may still put a write into the queue.
    let is_recorded = timeout(STREAM_GRACE, daemon.is_recorded()).await.is_ok();
    if !is_recorded {
        tracing::warn!("the daemon's state is not saved");
    }
    // Returning would drop the engine and the state, which wait for their threads.
    if !has_stopped || !is_recorded {
        std::process::exit(code.into());
    }
    Ok(code)
}

fn banner(config: &Config) {
    let model = config.model.value.0.as_ref();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        pid = std::process::id(),
        model = model.map_or_else(|| "embedded".to_owned(), |path| path.display().to_string()),
        device = %config.device.value,
        instructions = config.instructions.value.instructions().name(),
        threads = config.threads.value.get(),
        queue = config.queue.value.get(),
        parallel = config.parallel.value.get(),
        level = config.level.value.name(),
        budget = %config.budget.value,
        "sluiced starts"
    );
    if let Some(reason) = Instructions::amx_barred() {
        tracing::warn!(reason, "the processor has AMX, which is left out");
    }
}

/// Logs which GPU computes, or why the CPU does although a GPU might.
fn tell_device(engine: &Engine) {
    if let Some(unavailable) = engine.gpu_unavailable() {
        let (reason, hint) = (unavailable.to_string(), unavailable.hint());
        match unavailable.is_fault() {
            false => tracing::info!(reason, hint, "no usable GPU, running on the CPU"),
            true => tracing::warn!(reason, hint, "no usable GPU, running on the CPU"),
        }
    }
    let device = engine.device();
    if device.gpu().is_none() && device.product_dtype() == DType::Bf16 {
        tracing::info!("the CPU multiplies in bf16: no answer is exact");
    }
    if let Some(gpu) = device.gpu() {
        let (facts, live) = (gpu.properties(), gpu.live_stats());
        let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
        let free = live.free_bytes.or(device.memory().free_bytes);
        tracing::info!(
            gpu = facts.name,
            compute_capability = version(facts.capability),
            compute_dtype = device.dtype().name(),
            memory = units::bytes(facts.total_bytes),
            free = free.map(units::bytes),
            driver = facts.driver_version,
            cuda = version(facts.cuda_version),
            cublas = gpu.blas().map_or("none", |blas| blas.name()),
            "running on a GPU"
        );
        if let Some(reason) = gpu.blas_absence() {
            tracing::info!(
                reason,
                "cuBLAS is not available, using Sluice's own GEMM kernels"
            );
        }
    }
}

/// Makes the folder for compiled kernels once a GPU is known to use it.
fn make_kernel_folder(config: &Config, engine: &Engine) {
    let has_gpu = engine.device().gpu().is_some();
    if let Some(folder) = kernel_folder(config).filter(|_| has_gpu)
        && env::var_os(KERNEL_FOLDER).is_some_and(|chosen| chosen == folder)
        && let Err(error) = fs::create_dir_all(&folder)
    {
        // Only time is lost: the driver compiles again the next time.
        tracing::debug!(%error, folder = %folder.display(), "cannot make the folder for compiled kernels");
    }
}

/// The model that is loaded at the start.
fn configured_model(library: &Library, config: &Config) -> ModelName {
    let told = config.model.value.0.as_ref();
    let name = settings::resolve([
        (
            SettingOrigin::from(&config.model.source),
            told.map(|path| {
                let absolute = std::path::absolute(path);
                library.at(absolute.as_ref().unwrap_or(path))
            }),
        ),
        (SettingOrigin::Remembered, library.default()),
        (SettingOrigin::BuiltIn, Some(ModelName::embedded())),
    ]);
    name.expect("there is always the embedded one").value
}

/// In the background: the socket answers meanwhile, and a failure shows in the list of models.
fn load_configured_model(daemon: &Arc<Daemon>, name: ModelName) {
    if let Err(error) = services::load_configured(daemon, name) {
        unreachable!("the first load meets no other: {error}");
    }
}

fn announce(
    listening: &Listening,
    port: Option<SocketAddr>,
    http: Option<SocketAddr>,
    config: &Config,
) {
    let socket = listening.path.display();
    tracing::info!(%socket, activated = listening.activated, "listening");
    let scheme = match config.tls_certificate.value.0 {
        Some(_) => "https",
        None => "http",
    };
    for (port, what) in [(port, "listening"), (http, "serving HTTP")] {
        let Some(port) = port else {
            continue;
        };
        let who = match config::is_loopback(port) {
            true => "every user of this machine can connect",
            false => "other machines can connect",
        };
        tracing::info!(%port, scheme, "{what}; {who}");
        // A script that asks for port 0 reads the chosen port here. A closed pipe is no error: nobody need read it.
        let _ = writeln!(io::stdout(), "{what} on {scheme}://{port}");
    }
    systemd::ready("listening, the model is loading");
    if io::stderr().is_terminal() {
        let flag = match config.socket.source {
            SettingSource::Flag(_) | SettingSource::File(_) => format!(" --socket {socket}"),
            SettingSource::Default | SettingSource::SmallMemory | SettingSource::Variable(_) => {
                String::new()
            }
        };
        eprintln!(
            "sluiced listens on {socket}; in another terminal: \
             sluice{flag} generate \"Tell me a story.\""
        );
    }
}

/// Keeps systemd's status line true until the end.
async fn tell_systemd(daemon: Arc<Daemon>) {
    let mut changes = daemon.changes.subscribe();
    let mut told = String::new();
    loop {
        let status = status_line(&daemon);
        if status != told && !daemon.is_draining() {
            systemd::status(&status);
            told = status;
        }
        tokio::select! {
            () = daemon.closing.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

fn status_line(daemon: &Daemon) -> String {
    if let Some(stall) = daemon.stall.get() {
        return stall.to_string();
    }
    let Some(model) = daemon.models.present() else {
        return "no model".to_owned();
    };
    match model.state() {
        v1::ModelState::Ready => format!("serving {}", model.name),
        v1::ModelState::Asleep => format!("{} sleeps until a request", model.name),
        v1::ModelState::Failed => format!("{} failed: {}", model.name, model.error),
        _ => format!("loading {}", model.name),
    }
}

/// The signals that end the daemon.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// The terminal was closed; `None` where whoever started the daemon has this ignored, as `nohup` does.
    hangup: Option<Signal>,
}

impl Signals {
    fn new() -> Result<Self, StartError> {
        let listen = |kind| {
            signal(kind).map_err(|cause| StartError::System {
                operation: "listen for signals",
                cause,
            })
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: match ignores_hangup() {
                true => None,
                false => Some(listen(SignalKind::hangup())?),
            },
        })
    }

    async fn next(&mut self) -> &'static str {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = hangup => "SIGHUP",
        }
    }

    /// A signal of somebody who doesn't want to wait. A terminal that closes may send SIGHUP more than once.
    async fn impatient(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Whether SIGHUP is ignored by inheritance, as the kernel tells.
fn ignores_hangup() -> bool {
    const HANGUP: u64 = 1 << (rustix::process::Signal::HUP.as_raw() - 1);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut ignored = status
        .lines()
        .filter_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored
        .next()
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & HANGUP != 0)
}

/// Returns when an engine's thread is gone though nobody stopped it.
async fn engine_death(daemon: &Daemon) {
    while daemon.engines.are_alive() {
        sleep(PULSE).await;
    }
}

/// Refuses new work and lets running requests finish within `seconds`; cancels those that are left.
async fn drain(daemon: &Daemon, seconds: u64) {
    daemon.drain();
    daemon.operations.close();
    systemd::stopping("waiting for requests to finish");
    let active = daemon.requests.active();
    if active.is_empty() {
        return;
    }
    tracing::info!(
        requests = active.len(),
        seconds,
        "waiting for requests to finish"
    );
    for record in &active {
        record.notice(&format!(
            "sluiced is shutting down; this request is cancelled in {seconds} s if it still runs"
        ));
    }
    let idle = daemon.requests.idle();
    if timeout(Duration::from_secs(seconds), idle).await.is_ok() {
        return;
    }
    let late = daemon.requests.active();
    tracing::warn!(requests = late.len(), seconds, "time ran out, cancelling");
    for record in late {
        record.cancel();
    }
    if timeout(CANCEL_GRACE, daemon.requests.idle()).await.is_err() {
        tracing::warn!("a request does not end; leaving it");
    }
}

/// Ends jobs, downloads and watchers, lets the last events reach their readers, closes connections.
///
/// Jobs and downloads end before `closing` is cancelled, since that ends the streams that tell of them.
async fn close(daemon: &Daemon, mut server: JoinHandle<Result<(), tonic::transport::Error>>) {
    // Again, for the death of the engine, which no drain came before.
    daemon.drain();
    daemon.operations.close();
    let idle = daemon.operations.idle(&STOPPED_AT_SHUTDOWN);
    if timeout(CANCEL_GRACE, idle).await.is_err() {
        tracing::warn!("a job or a download does not end; leaving it");
    }
    learned_experts::save(daemon);
    daemon.closing.cancel();
    match timeout(STREAM_GRACE, &mut server).await {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(error))) => tracing::warn!(%error, "the server ended badly"),
        Ok(Err(error)) => tracing::warn!(%error, "the server's task failed"),
        Err(_) => {
            tracing::debug!("a client does not read to the end; closing its connection");
            server.abort();
        }
    }
}

/// Stops the engines' threads. False when one is in the middle of something that cannot be interrupted, such as a read from a
/// slow disk.
async fn stop_engine(daemon: &Arc<Daemon>) -> bool {
    let engines = daemon.engines.clone();
    let stopped = tokio::task::spawn_blocking(move || engines.stop());
    let in_time = timeout(STOP_GRACE, stopped).await.is_ok();
    if !in_time {
        tracing::warn!("the engine is still busy; leaving it");
    }
    in_time
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{cli::Arguments, config::Environment};

    fn config(flags: &[&str]) -> Config {
        let arguments = Arguments::parse_from(["sluiced"].iter().chain(flags));
        let environment = Environment {
            variables: [("HOME".to_owned(), "/home/a".into())].into(),
            system_file: "/nowhere/sluiced.toml".into(),
            ..Environment::of_process()
        };
        arguments.resolve(&environment).unwrap()
    }

    #[test]
    fn kernels_are_kept_where_sluice_was_told_to_keep_things() {
        let told = config(&["--weight-cache", "/a"]);
        assert_eq!(kernel_folder(&told), Some("/a/kernels".into()));
        // Nobody chose a place for Sluice, or there will be no kernels.
        assert_eq!(kernel_folder(&config(&[])), None);
        let cpu = config(&["--weight-cache", "/a", "--device", "cpu"]);
        assert_eq!(kernel_folder(&cpu), None);
    }
}
