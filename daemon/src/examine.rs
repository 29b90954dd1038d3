//! What `doctor` says of configuration, machine and device: by the daemon that runs, of itself, or where none runs by
//! `sluiced doctor`, as a daemon of the same user would find them.

mod device;
mod folders;
mod machine;

use std::{
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use sluice_ops::device::Device;
use sluice_proto::v1::Finding;
use sluice_report::findings::{self, ok, problem, warning};
use sluice_shared::exit;

use crate::{
    access,
    config::{Config, ConfigArguments, ConfigError, Environment},
    offline::print,
};

/// `sluiced doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Configuration file [default: the usual one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Examines and prints; the exit code.
#[must_use]
pub fn run(options: &Doctor) -> u8 {
    let arguments = ConfigArguments {
        file: options.config.clone(),
        ..ConfigArguments::default()
    };
    let found = without_daemon(&arguments);
    let code = match findings::has_problem(&found) {
        true => exit::FAILURE,
        false => exit::OK,
    };
    let text = match options.json {
        true => findings::json(found).to_string(),
        false => findings::lines(&found).join("\n"),
    };
    match print(&(text + "\n")) {
        Ok(()) => code,
        Err(error) => {
            eprintln!("sluiced: {error}");
            exit::FAILURE
        }
    }
}

fn without_daemon(arguments: &ConfigArguments) -> Vec<Finding> {
    let environment = Environment::of_process();
    let mut found = vec![program()];
    match arguments.resolve(&environment) {
        Ok(config) => {
            found.push(configuration(arguments, &environment));
            found.extend(credentials(&config));
            found.extend(machine::findings(&config));
            let (choice, dtype) = (config.device.value.choice(), config.compute_dtype.value);
            // One thread: nothing is computed.
            found.push(match Device::open(choice, dtype.dtype(), 1) {
                Ok(opened) => device::finding(&opened.device, opened.gpu_unavailable.as_ref()),
                Err(error) => device::not_opened(&error),
            });
            found.extend(folders::findings(&config));
        }
        Err(error) => found.push(broken(&error, "the daemon does not start")),
    }
    found
}

/// Examines the daemon that runs.
#[derive(Debug)]
pub struct Examiner {
    arguments: ConfigArguments,
    config: Arc<Config>,
    /// The last findings, for who asks soon after.
    recent: tokio::sync::Mutex<Option<(Instant, Vec<Finding>)>>,
}

impl Examiner {
    /// How long findings are sent again: examining reads from the disk.
    const PATIENCE: Duration = Duration::from_secs(5);

    /// For a daemon with this configuration, which these arguments led to.
    #[must_use]
    pub fn new(arguments: ConfigArguments, config: Arc<Config>) -> Self {
        Self {
            arguments,
            config,
            recent: tokio::sync::Mutex::default(),
        }
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// What is found, on a blocking thread. Callers that come meanwhile wait on the lock for the same findings. `device` is what
    /// the engine knows.
    pub(crate) async fn examine(
        self: &Arc<Self>,
        device: impl FnOnce() -> Finding + Send + 'static,
    ) -> Vec<Finding> {
        let mut recent = self.recent.lock().await;
        if let Some((since, found)) = &*recent
            && since.elapsed() < Self::PATIENCE
        {
            return found.clone();
        }
        let examiner = self.clone();
        let examining = tokio::task::spawn_blocking(move || {
            let mut found = vec![program(), examiner.configuration()];
            found.extend(credentials(&examiner.config));
            found.extend(machine::findings(&examiner.config));
            found.push(device());
            found.extend(folders::findings(&examiner.config));
            found
        });
        // Fails only by a panic, which is in the log.
        let found = examining.await.unwrap_or_default();
        *recent = Some((Instant::now(), found.clone()));
        found
    }

    /// Whether a daemon that started now would have the same configuration.
    fn configuration(&self) -> Finding {
        let environment = Environment::of_process();
        match self.arguments.resolve(&environment) {
            Ok(now) if now.to_string() == self.config.to_string() => {
                configuration(&self.arguments, &environment)
            }
            Ok(_) => warning(
                "configuration",
                "it changed since the daemon started",
                "restart the daemon to put it in force",
            ),
            Err(error) => broken(
                &error,
                "the daemon has the one before, and would not start again",
            ),
        }
    }
}

pub(crate) use device::finding as of_device;

/// Version and place of this program.
fn program() -> Finding {
    const SUBJECT: &str = "sluiced";
    let version = env!("CARGO_PKG_VERSION");
    let path = fs::read_link("/proc/self/exe").unwrap_or_default();
    let path = path.to_string_lossy();
    match path.strip_suffix(" (deleted)") {
        // As the kernel names a program whose file was replaced.
        Some(path) => warning(
            SUBJECT,
            format!("{version}; {path} was replaced since it started"),
            "restart the daemon to run the new program",
        ),
        None => ok(SUBJECT, format!("{version}, {path}")),
    }
}

fn configuration(arguments: &ConfigArguments, environment: &Environment) -> Finding {
    let found = match arguments.file_in_use(environment) {
        Some(path) => format!("{} is fine", path.display()),
        None => "no file; defaults hold".to_owned(),
    };
    ok("configuration", found)
}

/// Whether the files of tokens and certificates can be used as they are now; nothing, where there are none.
fn credentials(config: &Config) -> Option<Finding> {
    const SUBJECT: &str = "credentials";
    let settings = [
        &config.token_file,
        &config.tls_certificate,
        &config.tls_client_ca,
    ];
    if settings.iter().all(|setting| setting.value.0.is_none()) {
        return None;
    }
    Some(match access::check_files(config) {
        Ok(()) => ok(SUBJECT, "files of tokens and certificates can be used"),
        Err(error) => {
            let told = error.to_string();
            let (found, hint) = told.split_once("\nhint: ").unwrap_or((&told, ""));
            let so = "correct it: a daemon that runs has what the file said before, and would not start again";
            let advice = match hint {
                "" => so.to_owned(),
                hint => format!("{so}; {hint}"),
            };
            problem(SUBJECT, found, advice)
        }
    })
}

fn broken(error: &ConfigError, so: &str) -> Finding {
    problem(
        "configuration",
        error.to_string(),
        format!("correct it: {so}; `sluiced --check-config` checks it"),
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sluice_proto::v1::FindingState;

    use super::*;

    fn arguments(file: &Path) -> ConfigArguments {
        ConfigArguments {
            file: Some(file.to_owned()),
            ..ConfigArguments::default()
        }
    }

    #[test]
    fn files_of_tokens_that_cannot_be_used_are_a_problem() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let [file, tokens] = ["sluiced.toml", "tokens"].map(|name| folder.path().join(name));
        fs::write(&file, "token_file = \"tokens\"\n").unwrap();
        let credentials = || {
            let found = without_daemon(&arguments(&file));
            let mut found = found.into_iter();
            found
                .find(|finding| finding.subject == "credentials")
                .unwrap()
        };
        fs::write(&tokens, "generate 0123456789abcdef\n").unwrap();
        fs::set_permissions(&tokens, fs::Permissions::from_mode(0o644)).unwrap();
        let found = credentials();
        assert_eq!(found.state(), FindingState::Problem);
        assert!(found.found.contains("every user can read"), "{found:?}");
        assert!(found.advice().ends_with("; chmod 600"), "{found:?}");
        fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(credentials().state(), FindingState::Ok);
        fs::write(&file, "").unwrap();
        let found = without_daemon(&arguments(&file));
        assert!(found.iter().all(|finding| finding.subject != "credentials"));
    }

    #[test]
    fn a_broken_configuration_is_a_problem_and_nothing_is_guessed_from_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sluiced.toml");
        fs::write(&file, "quue = 2\n").unwrap();
        let found = without_daemon(&arguments(&file));
        let last = found.last().unwrap();
        assert_eq!(last.state(), FindingState::Problem);
        assert!(
            last.found.contains("sluiced.toml:1:1: unknown key `quue`"),
            "{last:?}"
        );
        assert_eq!(found.len(), 2);
    }

    #[tokio::test]
    async fn a_configuration_that_was_edited_or_broken_since_the_start_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sluiced.toml");
        fs::write(&file, "queue = 2\n").unwrap();
        let arguments = arguments(&file);
        let config = arguments.resolve(&Environment::of_process()).unwrap();
        let examiner = Examiner::new(arguments, Arc::new(config));
        assert_eq!(examiner.configuration().state(), FindingState::Ok);
        fs::write(&file, "queue = 3\n").unwrap();
        let edited = examiner.configuration();
        assert_eq!(edited.state(), FindingState::Warning);
        assert!(edited.advice().contains("restart"), "{edited:?}");
        fs::write(&file, "queue = \"x\"\n").unwrap();
        let broken = examiner.configuration();
        assert_eq!(broken.state(), FindingState::Problem);
        assert!(
            broken.advice().contains("would not start again"),
            "{broken:?}"
        );
    }

    #[tokio::test]
    async fn who_asks_again_soon_gets_the_same_findings() {
        let config = ConfigArguments::default().resolve(&Environment::of_process());
        let examiner = Arc::new(Examiner::new(
            ConfigArguments::default(),
            Arc::new(config.unwrap()),
        ));
        let first = examiner.examine(|| ok("device", "the first time")).await;
        assert!(
            first
                .iter()
                .any(|finding| finding.found == "the first time")
        );
        let second = examiner.examine(|| unreachable!("it is known")).await;
        assert_eq!(first, second);
    }
}
