//! Runs that are saved and opened beside the screen.

use std::{
    env,
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
};

use tokio::{sync::mpsc::Sender, task::spawn_blocking};

use super::{event::Event, state::Opened};
use crate::record::{self, Recording};

/// Writes a run to a new file.
pub(super) fn save(path: PathBuf, recording: Box<Recording>, events: Sender<Event>) {
    spawn_blocking(move || {
        let path = in_home(&path);
        let name = path.display();
        let event = match record::save(&path, &recording) {
            Ok(()) => Event::Told(format!("saved {name}")),
            Err(error) => Event::Failed(format!("save {name}: {error}")),
        };
        // Nobody listens once the screen is gone.
        let _ = events.blocking_send(event);
    });
}

/// Reads a run from a file.
pub(super) fn open(path: PathBuf, events: Sender<Event>) {
    spawn_blocking(move || {
        let event = match read(&in_home(&path)) {
            Ok(opened) => Event::Opened(Box::new(opened)),
            Err(problem) => Event::Failed(problem),
        };
        let _ = events.blocking_send(event);
    });
}

fn read(path: &Path) -> Result<Opened, String> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| format!("open {name}: {error}"))?;
    let recording =
        record::load(BufReader::new(file)).map_err(|error| format!("{name}, {error}"))?;
    Ok(Opened { name, recording })
}

/// The path with a leading `~` read as shells do, since no shell has seen it.
fn in_home(path: &Path) -> PathBuf {
    match (path.strip_prefix("~"), env::var_os("HOME")) {
        (Ok(rest), Some(home)) => Path::new(&home).join(rest),
        _ => path.to_owned(),
    }
}
