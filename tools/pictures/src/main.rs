//! Makes the pictures of the documentation: the screen of the real client on a terminal after some keys, with a real daemon
//! and its demonstration model.
//!
//! `cargo pictures` builds all that is needed and runs this. [`scenes`] lists the pictures.

mod palette;
mod scenes;
mod shapes;
mod svg;

use std::{
    error::Error,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use scenes::{Move, SCENES, Scene};
use testkit::terminal::Journey;

const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Size in bytes from which on a file is not small any more.
const TOO_LARGE_BYTES: usize = 60_000;

const USAGE: &str = "Usage: pictures FOLDER [NAME ...]

Writes FOLDER/NAME.svg for all scenes, or for those named. $SLUICE_PROGRAMS is the folder with sluiced and sluice, else
they are looked for beside this program.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((folder, names)) = arguments.split_first() else {
        eprintln!("{USAGE}");
        return ExitCode::from(64);
    };
    match draw(Path::new(folder), names) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pictures: {error}");
            ExitCode::FAILURE
        }
    }
}

fn draw(folder: &Path, names: &[String]) -> Result<(), Box<dyn Error>> {
    let known = |name: &&String| SCENES.iter().any(|scene| scene.name == **name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        return Err(format!("there is no scene '{unknown}'").into());
    }
    let programs = match std::env::var_os("SLUICE_PROGRAMS") {
        Some(folder) => PathBuf::from(folder),
        None => {
            let own = std::env::current_exe()?;
            let beside = own.parent().ok_or("this program lies in no folder")?;
            beside.to_owned()
        }
    };
    let programs = programs.canonicalize()?;
    fs::create_dir_all(folder)?;
    for scene in SCENES {
        if !names.is_empty() && !names.iter().any(|name| name == scene.name) {
            continue;
        }
        let picture = picture(scene, &programs)?;
        let file = folder.join(scene.name).with_extension("svg");
        fs::write(&file, &picture)?;
        println!("{} · {} bytes", file.display(), picture.len());
        if picture.len() >= TOO_LARGE_BYTES {
            return Err(format!("{} is too large", file.display()).into());
        }
    }
    Ok(())
}

/// Plays a scene with a daemon of its own.
fn picture(scene: &Scene, programs: &Path) -> Result<String, Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let _daemon = Daemon::start(programs, folder.path())?;
    let client = |arguments: &[&str]| {
        let mut command = Command::new(programs.join("sluice"));
        clear(&mut command);
        // An empty home, so that no settings or history of the user show up.
        for variable in ["HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"] {
            command.env(variable, folder.path());
        }
        // The same text on the screen in every run.
        command.current_dir(folder.path());
        command.args(["--socket", "sluice.sock"]).args(arguments);
        command
    };
    let start = Instant::now();
    let is_ready = || -> std::io::Result<bool> {
        let output = client(&["models", "--json"]).output()?;
        let models = String::from_utf8_lossy(&output.stdout).replace(' ', "");
        Ok(models.contains("\"state\":\"ready\""))
    };
    while !is_ready()? {
        if start.elapsed() > START_TIMEOUT {
            let log = fs::read_to_string(folder.path().join("log")).unwrap_or_default();
            return Err(format!("sluiced has no model yet; its words:\n{log}").into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }

    let mut command = client(&[]);
    command.env("COLORTERM", "truecolor").env("LANG", "C.UTF-8");
    if !scene.colour {
        command.env("NO_COLOR", "1");
    }
    let (columns, rows) = scene.size;
    let mut journey = Journey::sized(command, columns, rows);
    for step in scene.moves {
        match step {
            Move::Press(keys) => journey.press(keys),
            Move::Wait(words) => {
                journey.expect(words);
            }
            Move::Pause(milliseconds) => std::thread::sleep(Duration::from_millis(*milliseconds)),
        }
    }
    journey.wait_until_drawn();
    Ok(journey.look(|screen| svg::svg(screen, scene.palette, scene.words)))
}

/// A daemon that is killed when this value is dropped.
struct Daemon(Child);

impl Daemon {
    /// With nothing but defaults: the user's own configuration and variables stay out.
    fn start(programs: &Path, folder: &Path) -> Result<Self, Box<dyn Error>> {
        let program = programs.join("sluiced");
        let configuration = folder.join("sluiced.toml");
        fs::write(&configuration, "")?;
        let log = File::create(folder.join("log"))?;
        let mut command = Command::new(&program);
        clear(&mut command);
        let started = command
            .arg("--config")
            .arg(configuration)
            .arg("--socket")
            .arg(folder.join("sluice.sock"))
            .env("HOME", folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn();
        match started {
            Ok(child) => Ok(Self(child)),
            Err(error) => Err(format!("cannot start {}: {error}", program.display()).into()),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself. Killing is enough, since it keeps nothing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes away what the surroundings would have a program do.
fn clear(command: &mut Command) {
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        let ours = name.starts_with("SLUICE_") || name.starts_with("LC_");
        if ours || ["NO_COLOR", "NOTIFY_SOCKET", "LISTEN_PID"].contains(&&*name) {
            command.env_remove(&variable);
        }
    }
}
