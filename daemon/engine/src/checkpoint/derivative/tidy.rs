//! Keeping the folder of converted copies within a limit: those that were used longest ago go first, those in use stay,
//! and so does whatever isn't a copy.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::SystemTime,
};

use sluice_shared::level::Level;

use super::{
    LEVEL_KEY, SOURCE_KEY, Source, VERSION_KEY,
    fingerprint::DIGITS,
    read_metadata,
    write::{Lock, try_lock},
};
use crate::checkpoint::file::CheckpointFile;

/// A copy that was deleted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Deleted {
    /// Its file's name.
    pub(crate) name: String,
    /// What it took of the disk.
    pub(crate) bytes: u64,
}

/// Deletes copies until those in the folder take at most `bytes_max`, or only such as are in use are left. One that can't
/// be looked at or deleted is left alone.
pub(crate) fn tidy(folder: &Path, bytes_max: u64) -> Vec<Deleted> {
    let Ok(files) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let files = files.filter_map(|file| Copy::look_at(folder, &file.ok()?));
    let mut copies: Vec<Copy> = files.collect();
    copies.sort_by_key(|copy| copy.used);
    let mut held: u64 = copies.iter().map(|copy| copy.bytes).sum();
    let mut deleted = Vec::new();
    for Copy {
        name, path, bytes, ..
    } in copies
    {
        if held <= bytes_max {
            break;
        }
        let Ok(file) = File::open(&path) else {
            continue;
        };
        // Whoever reads from a copy holds a lock on it.
        if try_lock(&file) == Lock::Taken && fs::remove_file(&path).is_ok() {
            held -= bytes;
            deleted.push(Deleted { name, bytes });
        }
    }
    deleted
}

/// A copy in the folder, of any model.
struct Copy {
    name: String,
    path: PathBuf,
    bytes: u64,
    /// When it was last opened to be read from.
    used: SystemTime,
}

impl Copy {
    /// `None` for what no copy is: its name and what it says of itself have to fit.
    fn look_at(folder: &Path, entry: &fs::DirEntry) -> Option<Self> {
        let name = entry.file_name().into_string().ok()?;
        let (fingerprint, level) = parts(&name)?;
        // Not followed: a link is nothing that was written here.
        let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        let file = CheckpointFile::open(&Source::Folder(folder.to_owned()), &name).ok()?;
        let said = read_metadata(&file).ok()?;
        let is = |key: &str, value: &str| said.get(key).is_some_and(|found| found == value);
        // Looking is no use of it.
        let used = metadata.accessed().ok()?;
        let times = fs::FileTimes::new().set_accessed(used);
        drop(File::open(entry.path()).and_then(|opened| opened.set_times(times)));
        let is_ours =
            said.contains_key(VERSION_KEY) && is(SOURCE_KEY, fingerprint) && is(LEVEL_KEY, level);
        is_ours.then_some(Self {
            path: entry.path(),
            bytes: metadata.len(),
            used,
            name,
        })
    }
}

/// Fingerprint and level of a copy's name.
fn parts(name: &str) -> Option<(&str, &str)> {
    let (rest, level) = name.strip_suffix(".safetensors")?.rsplit_once('-')?;
    let (model, fingerprint) = rest.rsplit_once('-')?;
    let is_fingerprint =
        fingerprint.len() == DIGITS && fingerprint.bytes().all(|digit| digit.is_ascii_hexdigit());
    let is_copy = !model.is_empty() && is_fingerprint && level.parse::<Level>().is_ok();
    is_copy.then_some((fingerprint, level))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    const FINGERPRINT: &str = "0123456789abcdef";

    /// A file with a copy's header, last used so many hours ago.
    fn write(folder: &Path, name: &str, source: &str, level: &str, hours: u64) {
        let header = json!({"__metadata__": {
            VERSION_KEY: "1", SOURCE_KEY: source, LEVEL_KEY: level
        }});
        let header = header.to_string();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(1000, 0);
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        let used = SystemTime::now() - Duration::from_hours(hours);
        let times = fs::FileTimes::new().set_accessed(used);
        let file = File::options().write(true).open(&path).unwrap();
        file.set_times(times).unwrap();
    }

    fn names(folder: &Path) -> Vec<String> {
        let files = fs::read_dir(folder).unwrap();
        let name = |file: fs::DirEntry| file.file_name().into_string().unwrap();
        let mut names: Vec<_> = files.map(|file| name(file.unwrap())).collect();
        names.sort();
        names
    }

    #[test]
    fn what_was_used_longest_ago_goes_and_what_is_in_use_or_foreign_stays() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let copy = |model: &str, hours| {
            let name = format!("{model}-{FINGERPRINT}-moderate.safetensors");
            write(folder, &name, FINGERPRINT, "moderate", hours);
            name
        };
        let (oldest, old, new) = (copy("a-b", 9), copy("b", 8), copy("c", 1));
        // Old as well, and none of ours.
        write(folder, "model.safetensors", FINGERPRINT, "moderate", 99);
        let other = format!("d-{FINGERPRINT}-moderate.safetensors");
        write(folder, &other, "another", "moderate", 99);
        fs::write(
            folder.join(format!("e-{FINGERPRINT}-mild.safetensors")),
            "x",
        )
        .unwrap();
        std::os::unix::fs::symlink(
            folder.join("model.safetensors"),
            folder.join(format!("f-{FINGERPRINT}-moderate.safetensors")),
        )
        .unwrap();
        let all = names(folder);

        assert_eq!(tidy(folder, 3000), []);
        assert_eq!(names(folder), all);

        let source = Source::Folder(folder.to_owned());
        let reading = CheckpointFile::open(&source, &oldest).unwrap();
        reading.hold();
        // As others see the one that was held: it is the newest now, too.
        let deleted = tidy(folder, 2999);
        assert_eq!(
            deleted,
            [Deleted {
                name: old,
                bytes: 1000
            }]
        );
        assert_eq!(tidy(folder, 0).len(), 1, "{new} goes, {oldest} stays");
        assert!(folder.join(&oldest).exists() && !folder.join(&new).exists());
        drop(reading);
        assert_eq!(tidy(folder, 0).len(), 1);
        assert_eq!(names(folder).len(), all.len() - 3, "nothing else is gone");
        assert_eq!(tidy(&folder.join("nowhere"), 0), []);
    }
}
