//! `cargo demo`: a daemon of one's own, and one text written before one's eyes.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::system::{Stopping, TemporaryFolder, built, cargo, interruption, is_set, root};

/// One of the things the demonstration model was made for.
pub(crate) const PROMPT: &str = "Tell me a story about Mia and a lost kite.";

const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
const LOG_LINES_SHOWN: usize = 20;
/// What a shell says of a program ended by Ctrl-C.
const INTERRUPTED: u8 = 130;

/// Answers the prompt, with options of `sluice generate`.
pub(crate) fn run(options: &[&str], prompt: &str) -> ExitCode {
    match show(options, prompt) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn show(options: &[&str], prompt: &str) -> io::Result<u8> {
    let interrupted = interruption()?;
    eprintln!("building sluiced and sluice (the first time takes some minutes) …");
    // All that `cargo test` builds: picking packages would build most crates a second time, with
    // other features, for whoever runs the tests next.
    let status = cargo()
        .args(["build", "--bins"])
        .current_dir(root())
        .status()?;
    if is_set(&interrupted) {
        return Ok(INTERRUPTED);
    }
    if !status.success() {
        return Err(io::Error::other("the build failed"));
    }

    let folder = TemporaryFolder::new("demo")?;
    let programs = Programs::in_folder(folder.path())?;
    eprintln!("starting sluiced on {} …", programs.socket.display());
    let mut daemon = programs.start_daemon(folder.path(), &[])?;
    if let Err(error) = programs.wait_until_ready(&mut daemon, &interrupted) {
        let stopped = is_set(&interrupted);
        return if stopped { Ok(INTERRUPTED) } else { Err(error) };
    }

    eprintln!(
        "ready. A small demonstration model, which knows nothing but tiny stories, fills in the \
         answer block by block:\n\n> {prompt}\n"
    );
    let code = programs.generate(options, prompt, &interrupted)?;
    daemon.stop(STOP_TIMEOUT)?;
    match code {
        0 => eprintln!("\n{}", programs.next_steps()),
        INTERRUPTED => {}
        _ => eprintln!(
            "\nsluice ended with code {code}; the daemon's last words:\n{}",
            programs.last_words()
        ),
    }
    Ok(code)
}

/// A daemon of its own and its client, as they were built last.
pub(crate) struct Programs {
    daemon: PathBuf,
    client: PathBuf,
    pub(crate) socket: PathBuf,
    log: PathBuf,
}

impl Programs {
    pub(crate) fn in_folder(folder: &Path) -> io::Result<Self> {
        Ok(Self {
            daemon: built("sluiced")?,
            client: built("sluice")?,
            socket: folder.join("sluice.sock"),
            log: folder.join("log"),
        })
    }

    /// With nothing but defaults and `options`: the user's own configuration, variables, models and what was remembered of them
    /// stay out, and nothing is added to them.
    pub(crate) fn start_daemon(&self, folder: &Path, options: &[&str]) -> io::Result<Stopping> {
        let config = folder.join("sluiced.toml");
        fs::write(&config, "")?;
        let log = File::create(&self.log)?;
        let mut command = Command::new(&self.daemon);
        for (variable, _) in std::env::vars_os() {
            let ours = variable.to_string_lossy().starts_with("SLUICE_");
            // Neither is this the service that systemd may have started this shell for.
            if ours || variable == "NOTIFY_SOCKET" || variable == "LISTEN_PID" {
                command.env_remove(&variable);
            }
        }
        let child = command
            .arg("--config")
            .arg(&config)
            .arg("--socket")
            .arg(&self.socket)
            .arg("--models")
            .arg(folder.join("models"))
            .arg("--weight-cache")
            .arg(folder.join("cache"))
            .args(options)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C is for the client first; the daemon is stopped afterwards.
            .process_group(0)
            .spawn()
            .map_err(|error| {
                io::Error::other(format!("cannot start {}: {error}", self.daemon.display()))
            })?;
        Ok(Stopping(child))
    }

    pub(crate) fn wait_until_ready(
        &self,
        daemon: &mut Stopping,
        interrupted: &AtomicBool,
    ) -> io::Result<()> {
        let fail = |problem: &str| {
            io::Error::other(format!("{problem}; its last words:\n{}", self.last_words()))
        };
        eprintln!("loading the model …");
        let start = Instant::now();
        while start.elapsed() < START_TIMEOUT && !is_set(interrupted) {
            if daemon.0.try_wait()?.is_some() {
                return Err(fail("sluiced ended early"));
            }
            let models = self
                .client()
                .args(["models", "--json"])
                .stdin(Stdio::null())
                .output()?;
            let models = String::from_utf8_lossy(&models.stdout).replace(' ', "");
            if models.contains("\"state\":\"ready\"") {
                return Ok(());
            }
            if models.contains("\"state\":\"failed\"") {
                return Err(fail("sluiced cannot load its model"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(fail("sluiced has no model yet"))
    }

    /// Runs the client on this terminal; its exit code.
    fn generate(&self, options: &[&str], prompt: &str, interrupted: &AtomicBool) -> io::Result<u8> {
        let mut command = self.client();
        command.arg("generate").args(options).args(["--", prompt]);
        let mut client = Stopping(command.spawn()?);
        let status = loop {
            if let Some(status) = client.0.try_wait()? {
                break status;
            }
            if is_set(interrupted) {
                // The terminal told the client as well; it gets a moment to cancel and redraw.
                break client.stop(STOP_TIMEOUT)?;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        if is_set(interrupted) {
            return Ok(INTERRUPTED);
        }
        Ok(status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1))
    }

    pub(crate) fn client(&self) -> Command {
        let mut command = Command::new(&self.client);
        command.arg("--socket").arg(&self.socket);
        command
    }

    fn next_steps(&self) -> String {
        let (daemon, client) = (short(&self.daemon), short(&self.client));
        format!(
            "That was `sluice generate`, and its daemon is gone again. To go on, start one that stays:\n\
             \n  {daemon}\n\
             \nand, in another terminal,\n\
             \n  {client}                  the dashboard (? for its keys)\
             \n  {client} chat             a conversation\
             \n  {client} generate --policy threshold:t=0.9 \"Tell me a story.\"\
             \n  {client} generate --help  all there is to decoding\n\
             \nA model of your own: {daemon} --model FOLDER. Both find the same socket by themselves;\n\
             --socket PATH or $SLUICE_SOCKET names another."
        )
    }

    /// What the daemon printed and logged.
    pub(crate) fn log(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }
}

/// The path as one would type it here.
fn short(path: &Path) -> String {
    let here = std::env::current_dir().ok();
    let shorter = here.and_then(|here| path.strip_prefix(here).ok());
    shorter.unwrap_or(path).display().to_string()
}
