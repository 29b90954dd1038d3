//! Saving and opening runs on threads for blocking I/O, so that a slow disk delays no frame.

use std::{
    env,
    fs::{self, File},
    io::{self, BufReader},
    path::{Path, PathBuf},
};

use tokio::{sync::mpsc::Sender, task::spawn_blocking};

use super::{event::Event, reel::OpenedRun};
use crate::record::{self, Recording};

/// Writes a run to a new file.
pub(super) fn save(path: PathBuf, recording: Box<Recording>, events: Sender<Event>) {
    spawn_blocking(move || {
        let path = in_home(&path);
        let name = path.display();
        let event = match record::save(&path, &recording) {
            Ok(()) => Event::Succeeded(format!("saved {name}")),
            Err(error) => Event::Failed(format!("save {name}: {error}")),
        };
        // The send fails only if the dashboard has ended.
        let _ = events.blocking_send(event);
    });
}

/// Reads a run from a file.
pub(super) fn open(path: PathBuf, events: Sender<Event>) {
    spawn_blocking(move || {
        let path = in_home(&path);
        // A large file takes seconds; without this the key seems to have done nothing.
        let _ = events.blocking_send(Event::Succeeded(format!("reading {}", path.display())));
        let event = match read(&path) {
            Ok(opened) => Event::Opened(Box::new(opened)),
            Err(problem) => Event::Failed(problem),
        };
        let _ = events.blocking_send(event);
    });
}

fn read(path: &Path) -> Result<OpenedRun, String> {
    let name = path.display().to_string();
    let problem = |error: io::Error| format!("open {name}: {error}");
    // Opening a pipe or a terminal would block this thread until somebody writes to it.
    if !fs::metadata(path).map_err(problem)?.is_file() {
        return Err(format!("open {name}: it is no file"));
    }
    let file = File::open(path).map_err(problem)?;
    let recording =
        record::load(BufReader::new(file)).map_err(|error| format!("{name}, {error}"))?;
    Ok(OpenedRun { name, recording })
}

/// The path with a leading `~` expanded: it was typed in the dashboard, where no shell expands it.
fn in_home(path: &Path) -> PathBuf {
    match (path.strip_prefix("~"), env::var_os("HOME")) {
        (Ok(rest), Some(home)) => Path::new(&home).join(rest),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use tokio::{sync::mpsc, time::timeout};

    use super::*;

    #[tokio::test]
    async fn what_is_no_file_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for path in [pipe.as_path(), Path::new("/dev/null"), folder.path()] {
            let (sender, mut events) = mpsc::channel(2);
            open(path.to_owned(), sender);
            let mut next = async || timeout(Duration::from_secs(5), events.recv()).await;
            let name = path.display();
            let Ok(Some(Event::Succeeded(words))) = next().await else {
                panic!("{name} is told");
            };
            assert_eq!(words, format!("reading {name}"));
            let Ok(Some(Event::Failed(words))) = next().await else {
                panic!("{name} is refused");
            };
            assert_eq!(words, format!("open {name}: it is no file"));
        }
    }
}
