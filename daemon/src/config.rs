//! The configuration: four layers, each giving way to the next, and every check that can be
//! made before a socket opens.

mod file;
mod flags;
mod layers;
mod manual;
mod models;
mod row;
mod show;
mod table;
mod toml_file;
mod values;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use sluice_engine::PlanSettings;
use sluice_hub::Access;
use sluice_shared::renames;

pub use self::{
    flags::Flags,
    manual::manual,
    models::{ModelTable, ModelTables, ModelsFile},
    table::Config,
    values::{
        ComputeDtype, Device, DiskReadLimit, Folders, HttpListen, IdleUnload, InstructionsChoice,
        Listen, LoadedModelsMax, LogFilter, LogFormat, MaxSlowdown, MemoryFile, OptionalPath,
        PinnedMemoryLimit, SocketFolder, SocketPath, Threads, WebOrigins, WeightCacheLimit, Within,
        is_loopback,
    },
};
use self::{layers::Layers, table::ROWS};

/// A value and the layer it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting<T> {
    /// The value in force.
    pub value: T,
    /// Who set it.
    pub source: SettingSource,
}

impl<T> Setting<T> {
    /// One that nobody said anything of.
    #[must_use]
    pub fn built_in(value: T) -> Self {
        Self {
            value,
            source: SettingSource::Default,
        }
    }
}

/// A layer of the configuration.
#[derive(Debug, Clone, PartialEq)]
pub enum SettingSource {
    /// Nobody said anything.
    Default,
    /// Nobody said anything, and the defaults are those for small memory.
    SmallMemory,
    /// The configuration file at this path.
    File(PathBuf),
    /// The environment variable of this name.
    Variable(&'static str),
    /// The command-line flag of this name.
    Flag(&'static str),
}

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::SmallMemory => f.write_str("small_memory"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Variable(name) => write!(f, "${name}"),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// What the configuration reads besides the command line, so that it can be tested.
#[derive(Debug)]
pub struct Environment {
    /// Environment variables by name.
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

/// What the command line says of the configuration, kept so that it can be read again.
#[derive(Debug, Clone, Default)]
pub struct ConfigArguments {
    /// Settings.
    pub flags: Flags,
    /// The file that `--config` names.
    pub file: Option<PathBuf>,
    /// The daemon was started on the way to an answer.
    pub in_background: bool,
}

impl ConfigArguments {
    /// The configuration that these arguments lead to in this environment.
    ///
    /// # Errors
    /// What is wrong and where it was said.
    pub fn resolve(&self, environment: &Environment) -> Result<Config, ConfigError> {
        let Self {
            flags,
            file,
            in_background,
        } = self;
        resolve(flags, file.as_deref(), *in_background, environment)
    }

    /// The file that is read: the one that somebody named, or the first that is there of the usual ones.
    #[must_use]
    pub fn file_in_use(&self, environment: &Environment) -> Option<PathBuf> {
        let usual = || toml_file::usual_paths(environment).find(|path| path.exists());
        toml_file::named(self.file.as_deref(), environment).or_else(usual)
    }
}

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {cause}", path = path.display())]
    Unreadable {
        /// Path of the configuration file.
        path: PathBuf,
        /// The system's words.
        cause: std::io::Error,
    },
    /// The file is wrong at a place.
    #[error("{path}:{line}:{column}: {problem}", path = path.display())]
    File {
        /// Path of the configuration file.
        path: PathBuf,
        /// Line of the file, from 1.
        line: usize,
        /// In characters, from 1.
        column: usize,
        /// What is wrong.
        problem: String,
    },
    /// A variable is set by the name that it had before.
    #[error("`{old}` is now `{new}`")]
    RenamedVariable {
        /// The name that is set.
        old: String,
        /// The name to use.
        new: String,
    },
    /// A value is wrong.
    #[error("{key} (from {source_name}): {problem}{hint}", hint = hint_line(*hint))]
    Value {
        /// The setting's key.
        key: &'static str,
        /// Name of the layer that has the value, for the message.
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

/// Merges the layers and checks the result: flags, environment, the file that a flag names or the usual one, and what is
/// built in, which differs a little in the background.
///
/// # Errors
/// What is wrong and where it was said.
pub fn resolve(
    flags: &Flags,
    file_flag: Option<&Path>,
    in_background: bool,
    environment: &Environment,
) -> Result<Config, ConfigError> {
    let mut renamed = renames::variables();
    if let Some((old, new)) = renamed.find(|(old, _)| environment.variable(old).is_some()) {
        return Err(ConfigError::RenamedVariable { old, new });
    }
    let layers = Layers {
        rows: &ROWS,
        flags: flags.texts(),
        environment,
        file: file::read(file_flag, environment)?,
        in_background,
    };
    let variable = |name: &str| environment.variable(name).cloned();
    let hub = Access::from_variables(&variable).map_err(|error| {
        let source = SettingSource::Variable("HF_ENDPOINT");
        let hint = "name one such as https://huggingface.co, or none for that one";
        wrong("hub", &source, error.to_string(), Some(hint))
    })?;
    let models_file = Arc::new(ModelsFile::open(file_flag, environment)?);
    let hub_cache = Access::cache_folder(&variable);
    let config = Config::of(&layers, models_file, hub, hub_cache)?;
    config.check()?;
    Ok(config)
}

impl Config {
    /// What models are loaded with.
    #[must_use]
    pub fn engine_settings(&self) -> PlanSettings {
        PlanSettings {
            level: self.level.value,
            budget: self.budget.value,
            embedding: self.embedding.value,
            max_slowdown: self.max_slowdown.value.0,
            kv_cache_format: self.kv_cache_format.value,
            cpu_experts: self.cpu_experts.value,
            // Mixes belong to one model each: a daemon takes the latest of the one that it loads.
            mix: None,
            resolved_mix: None,
        }
    }

    /// The checks that look at more than one value's form.
    fn check(&self) -> Result<(), ConfigError> {
        if let Some(path) = &self.model.value.0 {
            // Names of models travel as text.
            if path.to_str().is_none() {
                let problem = format!("{} is not UTF-8", path.display());
                return Err(wrong("model", &self.model.source, problem, None));
            }
        }
        if let Some(path) = &self.model.value.0
            && matches!(path.try_exists(), Ok(false))
        {
            return Err(wrong(
                "model",
                &self.model.source,
                format!("{} does not exist", path.display()),
                Some("name a checkpoint's folder, or none for the demonstration model"),
            ));
        }
        if self.keep_converted.value && self.weight_cache.value.0.is_none() {
            return Err(wrong(
                "keep_converted",
                &self.keep_converted.source,
                "there is no folder for converted weights".to_owned(),
                Some("set one with --weight-cache"),
            ));
        }
        self.check_tls()?;
        let socket = &self.socket.value.path;
        // The client takes such a name; here it would become a path below the current folder.
        let text = socket.to_string_lossy();
        if self.socket.source != SettingSource::Default
            && ["http:/", "https:/"]
                .iter()
                .any(|scheme| text.contains(scheme))
        {
            let problem = "a socket is a path, not an address".to_owned();
            let hint = "to open a port as well, use --listen 127.0.0.1:PORT";
            return Err(wrong("socket", &self.socket.source, problem, Some(hint)));
        }
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

impl Config {
    /// Whether what TLS takes is there: all of it for a port that other machines can reach.
    fn check_tls(&self) -> Result<(), ConfigError> {
        let (certificate, key) = (&self.tls_certificate, &self.tls_key);
        let client_ca = &self.tls_client_ca;
        let missing = |key, present: &Setting<OptionalPath>, problem: &str| {
            Err(wrong(key, &present.source, problem.to_owned(), None))
        };
        match (&certificate.value.0, &key.value.0) {
            (Some(_), None) => {
                return missing(
                    "tls_key",
                    certificate,
                    "the certificate needs its private key",
                );
            }
            (None, Some(_)) => {
                return missing(
                    "tls_certificate",
                    key,
                    "the private key needs its certificate",
                );
            }
            (None, None) if client_ca.value.0.is_some() => {
                let problem =
                    "clients' certificates come by TLS, which needs tls_certificate and tls_key";
                return missing("tls_client_ca", client_ca, problem);
            }
            _ => {}
        }
        let (listen, http) = (&self.listen, &self.http);
        self.check_reached("listen", listen.value.address(), &listen.source)?;
        self.check_reached("http", http.value.address(), &http.source)
    }

    /// Whether what a port takes is there that other machines can reach, if they can.
    fn check_reached(
        &self,
        key: &'static str,
        address: Option<SocketAddr>,
        source: &SettingSource,
    ) -> Result<(), ConfigError> {
        let Some(address) = address.filter(|address| !is_loopback(*address)) else {
            return Ok(());
        };
        let certificate = &self.tls_certificate.value.0;
        let (client_ca, tokens) = (&self.tls_client_ca.value.0, &self.token_file.value.0);
        let lacks = match (certificate, tokens, client_ca) {
            (Some(_), None, None) => "nothing tells who calls: set token_file or tls_client_ca",
            (Some(_), ..) => return Ok(()),
            (None, None, None) => {
                "there is no TLS and nothing tells who calls: set tls_certificate and tls_key, and token_file or tls_client_ca"
            }
            (None, ..) => "there is no TLS: set tls_certificate and tls_key",
        };
        let problem = format!(
            "{address} is reachable from other machines, and {lacks}; or listen on 127.0.0.1:{port}, and come from elsewhere \
             through a tunnel, such as `ssh -L {port}:127.0.0.1:{port} HOST`",
            port = address.port()
        );
        Err(wrong(key, source, problem, None))
    }
}

fn wrong(
    key: &'static str,
    source: &SettingSource,
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
