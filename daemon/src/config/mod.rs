//! The configuration: four layers, each giving way to the next, and every check that can be
//! made before a socket opens.

mod file;
mod layers;
pub mod limits;
mod models;
mod show;
mod values;

use std::{collections::BTreeMap, ffi::OsString, fmt, path::PathBuf, sync::Arc};

use sluice_engine::PARALLEL_DEFAULT;
use sluice_hub::Access;
use sluice_shared::{
    dial::Dial,
    level::{Embedding, Kv, Level},
};

use self::layers::Layers;
pub use self::models::{ModelsFile, Table, Tables};
pub use self::values::{
    AutoFactor, Budget, CacheLimit, Compute, Device, Filter, IdleUnload, Listen, PinLimit,
    ReadLimit,
};
use crate::cli::Arguments;

/// Everything the daemon can be told, checked.
#[derive(Debug)]
pub struct Config {
    /// Checkpoint, absolute; `None`: the embedded model.
    pub model: Setting<Option<PathBuf>>,
    /// Where to listen, unless systemd hands a socket over.
    pub socket: Setting<Address>,
    /// A port to listen on beside it.
    pub listen: Setting<Listen>,
    /// Where to compute.
    pub device: Setting<Device>,
    /// What a card computes in.
    pub compute: Setting<Compute>,
    /// Threads that compute.
    pub threads: Setting<usize>,
    /// How faithful weights are.
    pub level: Setting<Level>,
    /// Most bytes of the device's memory.
    pub budget: Setting<Budget>,
    /// Most bytes a second that are read of weights that are streamed.
    pub read_limit: Setting<ReadLimit>,
    /// Most bytes of the host's memory that are pinned for a card.
    pub pin_limit: Setting<PinLimit>,
    /// Where the embedding is.
    pub embedding: Setting<Embedding>,
    /// How much longer a pass may take at level `auto` than the fastest level's.
    pub auto_factor: Setting<AutoFactor>,
    /// How a causal model's keys and values are kept.
    pub kv: Setting<Kv>,
    /// How much requests give up for speed that say nothing of it.
    pub dial: Setting<Dial>,
    /// Folder for converted copies of checkpoints; `None`: nowhere.
    pub cache: Setting<Option<PathBuf>>,
    /// Whether converted weights are kept there even when nothing is streamed from them.
    pub keep_converted: Setting<bool>,
    /// Most bytes that converted copies take.
    pub cache_limit: Setting<CacheLimit>,
    /// Folder that models are downloaded into; `None`: nowhere.
    pub models: Setting<Option<PathBuf>>,
    /// After how long without requests the model is let go.
    pub idle_unload: Setting<IdleUnload>,
    /// What holds for single models.
    pub model_settings: Arc<ModelsFile>,
    /// The hub that models come from, by the variables that its own programs know.
    pub hub: Access,
    /// Where those programs keep what they downloaded.
    pub hub_cache: Option<PathBuf>,
    /// Requests that may wait.
    pub queue: Setting<usize>,
    /// Requests that share a pass, at most.
    pub parallel: Setting<usize>,
    /// Seconds that running requests get on shutdown.
    pub drain_seconds: Setting<u64>,
    /// What to log.
    pub log: Setting<Filter>,
}

/// A value and the layer it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting<T> {
    /// The value in force.
    pub value: T,
    /// Who set it.
    pub source: Source,
}

impl<T> Setting<T> {
    /// One that nobody said anything of.
    #[must_use]
    pub fn built_in(value: T) -> Self {
        layers::set(value, Source::Default)
    }
}

/// A layer of the configuration.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// Nobody said anything.
    Default,
    /// This file.
    File(PathBuf),
    /// This variable.
    Variable(&'static str),
    /// This flag.
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Variable(name) => write!(f, "${name}"),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// A socket's path, and what may be done to the folder it lies in.
#[derive(Debug, Clone, PartialEq)]
pub struct Address {
    /// The socket.
    pub path: PathBuf,
    /// The folder around it.
    pub folder: Folder,
}

/// How the socket's folder is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Folder {
    /// Somebody else's: it has to be there.
    Given,
    /// Ours, in a place that only this user can write to: made when missing.
    Ours,
    /// Ours, in a place that everybody can write to: made when missing, refused when
    /// somebody else made it.
    OursInPublic,
}

/// What the configuration reads besides the command line, so that it can be tested.
#[derive(Debug)]
pub struct Environment {
    /// Environment variables.
    pub variables: BTreeMap<String, OsString>,
    /// Where relative paths begin.
    pub current_folder: PathBuf,
    /// Folder for temporary files.
    pub temporary: PathBuf,
    /// The system's configuration file.
    pub system_file: PathBuf,
    /// Number of the user.
    pub user_id: u32,
    /// Threads the machine can run at once.
    pub cores: usize,
}

impl Environment {
    /// That of this process.
    #[must_use]
    pub fn of_process() -> Self {
        Self {
            variables: std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
                .collect(),
            current_folder: std::env::current_dir().unwrap_or_else(|_| "/".into()),
            temporary: std::env::temp_dir(),
            system_file: "/etc/sluice/sluiced.toml".into(),
            user_id: rustix::process::getuid().as_raw(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// A variable's value; an empty one counts as unset.
    fn variable(&self, name: &str) -> Option<&OsString> {
        self.variables.get(name).filter(|value| !value.is_empty())
    }
}

/// Why the configuration can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("can't read the configuration {path}: {cause}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's words.
        cause: std::io::Error,
    },
    /// The file is wrong at a place.
    #[error("{path}:{line}:{column}: {problem}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// In characters, from 1.
        column: usize,
        /// What is wrong.
        problem: String,
    },
    /// A value is wrong.
    #[error("{key} (from {source_name}): {problem}{hint}", hint = hint_line(*hint))]
    Value {
        /// The key.
        key: &'static str,
        /// The layer.
        source_name: String,
        /// What is wrong.
        problem: String,
        /// What to do about it.
        hint: Option<&'static str>,
    },
}

fn hint_line(hint: Option<&str>) -> String {
    hint.map_or_else(String::new, |hint| format!("\nhint: {hint}"))
}

/// Longest path that a Unix socket can have on Linux, without the closing zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Requests that may wait when nobody says how many.
const QUEUE_DEFAULT: usize = 16;
/// Seconds to drain when nobody says how many.
const DRAIN_SECONDS_DEFAULT: u64 = 10;

/// Merges the layers and checks the result.
///
/// # Errors
/// What is wrong and where it was said.
pub fn resolve(arguments: &Arguments, environment: &Environment) -> Result<Config, ConfigError> {
    let layers = Layers {
        environment,
        file: file::read(arguments.config.as_deref(), environment)?,
    };
    let cache = layers.cache(arguments.cache.as_deref());
    let config = Config {
        model: layers.model(arguments.model.as_deref())?,
        socket: layers.socket(arguments.socket.as_deref())?,
        listen: layers.value(
            ("--listen", arguments.listen),
            "listen",
            "SLUICE_LISTEN",
            |file| file.listen,
            Listen::default(),
        )?,
        device: layers.value(
            ("--device", arguments.device),
            "device",
            "SLUICE_DEVICE",
            |file| file.device,
            Device::Auto,
        )?,
        compute: layers.value(
            ("--compute", arguments.compute),
            "compute",
            "SLUICE_COMPUTE",
            |file| file.compute,
            Compute::Auto,
        )?,
        threads: layers.number(
            ("--threads", arguments.threads),
            &limits::THREADS,
            |file| file.threads,
            environment.cores,
        )?,
        level: layers.value(
            ("--level", arguments.level),
            "level",
            "SLUICE_LEVEL",
            |file| file.level,
            Level::Standard,
        )?,
        budget: layers.value(
            ("--budget", arguments.budget),
            "budget",
            "SLUICE_BUDGET",
            |file| file.budget,
            Budget::default(),
        )?,
        read_limit: layers.value(
            ("--read-limit", arguments.read_limit),
            "read_limit",
            "SLUICE_READ_LIMIT",
            |file| file.read_limit,
            ReadLimit::default(),
        )?,
        pin_limit: layers.value(
            ("--pin-limit", arguments.pin_limit),
            "pin_limit",
            "SLUICE_PIN_LIMIT",
            |file| file.pin_limit,
            PinLimit::default(),
        )?,
        embedding: layers.value(
            ("--embedding", arguments.embedding),
            "embedding",
            "SLUICE_EMBEDDING",
            |file| file.embedding,
            Embedding::Auto,
        )?,
        auto_factor: layers.value(
            ("--auto-factor", arguments.auto_factor),
            "auto_factor",
            "SLUICE_AUTO_FACTOR",
            |file| file.auto_factor,
            AutoFactor::default(),
        )?,
        kv: layers.value(
            ("--kv", arguments.kv),
            "kv",
            "SLUICE_KV",
            |file| file.kv,
            Kv::Auto,
        )?,
        dial: layers.value(
            ("--dial", arguments.dial),
            "dial",
            "SLUICE_DIAL",
            |file| file.dial,
            Dial::default(),
        )?,
        keep_converted: layers.value(
            ("--keep-converted", arguments.keep_converted),
            "keep_converted",
            "SLUICE_KEEP_CONVERTED",
            |file| file.keep_converted,
            cache.value.is_some(),
        )?,
        cache,
        cache_limit: layers.value(
            ("--cache-limit", arguments.cache_limit),
            "cache_limit",
            "SLUICE_CACHE_LIMIT",
            |file| file.cache_limit,
            CacheLimit::default(),
        )?,
        models: layers.models(arguments.models.as_deref()),
        idle_unload: layers.value(
            ("--idle-unload", arguments.idle_unload),
            "idle_unload",
            "SLUICE_IDLE_UNLOAD",
            |file| file.idle_unload,
            match arguments.background {
                Some(_) => IdleUnload::IN_BACKGROUND,
                None => IdleUnload::default(),
            },
        )?,
        model_settings: Arc::new(ModelsFile::open(arguments.config.as_deref(), environment)?),
        hub: Access::from_variables(&|name| environment.variable(name).cloned()).map_err(
            |error| {
                let source = Source::Variable("HF_ENDPOINT");
                let hint = "name one such as https://huggingface.co, or none for that one";
                wrong("hub", &source, error.to_string(), Some(hint))
            },
        )?,
        hub_cache: Access::cache_folder(&|name| environment.variable(name).cloned()),
        queue: layers.number(
            ("--queue", arguments.queue),
            &limits::QUEUE,
            |file| file.queue,
            QUEUE_DEFAULT,
        )?,
        parallel: layers.number(
            ("--parallel", arguments.parallel),
            &limits::PARALLEL,
            |file| file.parallel,
            PARALLEL_DEFAULT,
        )?,
        drain_seconds: layers.number(
            ("--drain-seconds", arguments.drain_seconds),
            &limits::DRAIN_SECONDS,
            |file| file.drain_seconds,
            DRAIN_SECONDS_DEFAULT,
        )?,
        log: layers.value(
            ("--log", arguments.log.clone()),
            "log",
            "SLUICE_LOG",
            |file| file.log.clone(),
            Filter::default(),
        )?,
    };
    config.check()?;
    Ok(config)
}

impl Config {
    /// The checks that look at more than one value's form.
    fn check(&self) -> Result<(), ConfigError> {
        if let Some(path) = &self.model.value
            && matches!(path.try_exists(), Ok(false))
        {
            return Err(wrong(
                "model",
                &self.model.source,
                format!("{} does not exist", path.display()),
                Some("name a checkpoint's folder, or none for the demonstration model"),
            ));
        }
        if self.keep_converted.value && self.cache.value.is_none() {
            return Err(wrong(
                "keep_converted",
                &self.keep_converted.source,
                "there is no folder to keep converted copies in".to_owned(),
                Some("name one with --cache"),
            ));
        }
        let socket = &self.socket.value.path;
        if socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(wrong(
                "socket",
                &self.socket.source,
                format!(
                    "{} has {} bytes; a socket's path may have {SOCKET_PATH_BYTES_MAX}",
                    socket.display(),
                    socket.as_os_str().len(),
                ),
                Some("choose a shorter path"),
            ));
        }
        Ok(())
    }
}

fn wrong(
    key: &'static str,
    source: &Source,
    problem: String,
    hint: Option<&'static str>,
) -> ConfigError {
    ConfigError::Value {
        key,
        source_name: source.to_string(),
        problem,
        hint,
    }
}

#[cfg(test)]
mod tests;
