//! The folder of the converted-weight cache: lists it, removes from it, and keeps it within a limit. The least recently
//! used copies go first; copies in use stay, and so does whatever Sluice hasn't written.

use std::{
    collections::HashMap,
    fs::{self, File},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use sluice_shared::{level::Level, mix::MixId};

use super::{
    LEVEL_KEY, PATH_KEY, SOURCE_KEY, Source, VERSION_KEY,
    choice::choice_of,
    compressed::{self, EXTENSION},
    expect,
    fingerprint::DIGITS,
    mix::{CANDIDATE, losses_of},
    read_metadata,
    write::{LockState, try_lock},
};
use crate::file::CheckpointFile;

/// Converted weights of a model at a level, in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedWeights {
    /// Name of the file.
    pub file_name: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Name of the model's folder or GGUF file.
    pub model: String,
    /// Path of the checkpoint when they were written; `None` for embedded files.
    pub checkpoint: Option<PathBuf>,
    /// The level that they are for.
    pub level: Level,
    /// The mix of level `optimized`; `None` also for those that mixes are compared by.
    pub mix: Option<MixId>,
    /// Bytes of the file.
    pub bytes: u64,
    /// Whether a daemon reads from them.
    pub is_in_use: bool,
    used: SystemTime,
}

/// Totals of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemovedWeights {
    /// Number of removed files.
    pub files: usize,
    /// Bytes of the removed files.
    pub bytes: u64,
    /// Number of files that could not be removed: a daemon reads from them, or the system refused.
    pub not_removed: usize,
}

/// All converted weights in a folder, the least recently used first. Files that cannot be examined or that Sluice
/// hasn't written are left out.
#[must_use]
pub fn cached_weights(folder: &Path) -> Vec<CachedWeights> {
    // Examining a file locks it for a moment: two threads at once would take each other for its user.
    static LOOKING: Mutex<()> = Mutex::new(());
    let _looking = LOOKING.lock().unwrap_or_else(PoisonError::into_inner);
    let Ok(files) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let files = files.filter_map(|file| CachedWeights::look_at(folder, &file.ok()?));
    let mut kept: Vec<_> = files.collect();
    kept.sort_by_key(|kept| kept.used);
    kept
}

/// Removes the selected files, unless they are in use.
pub fn remove_cached(folder: &Path, is_meant: impl Fn(&CachedWeights) -> bool) -> RemovedWeights {
    let mut removed = RemovedWeights::default();
    for kept in cached_weights(folder).into_iter().filter(is_meant) {
        if kept.remove() {
            removed.files += 1;
            removed.bytes += kept.bytes;
        } else {
            removed.not_removed += 1;
        }
    }
    removed
}

/// An evicted file.
#[derive(Debug, PartialEq, Eq)]
pub struct EvictedWeights {
    /// Name of the file.
    pub name: String,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Evicts converted weights until those in the folder take at most `bytes_max`, or only files in use are left. Returns
/// the evicted files and the bytes that remain. Files that cannot be examined or deleted stay.
pub fn evict(folder: &Path, bytes_max: u64) -> (Vec<EvictedWeights>, u64) {
    let kept = cached_weights(folder);
    let mut held: u64 = kept.iter().map(|kept| kept.bytes).sum();
    let mut deleted = Vec::new();
    for kept in kept {
        if held <= bytes_max {
            break;
        }
        // A file in use counts towards the limit all the same; others go in its place.
        if kept.remove() {
            held -= kept.bytes;
            deleted.push(EvictedWeights {
                name: kept.file_name,
                bytes: kept.bytes,
            });
        }
    }
    (deleted, held)
}

impl CachedWeights {
    /// Deletes the file unless a reader holds a lock on it; returns whether it was deleted.
    fn remove(&self) -> bool {
        let Ok(file) = File::open(&self.path) else {
            return false;
        };
        // Where there are no locks, nobody knows who reads the file: it stays.
        let is_removed = try_lock(&file) == LockState::Taken && fs::remove_file(&self.path).is_ok();
        if is_removed {
            // What was measured of it, if it is one that mixes are compared by; where that stays, it takes some kilobytes.
            drop(fs::remove_file(losses_of(&self.path)));
            // And what is known of its choice, if it is a mix.
            drop(fs::remove_file(choice_of(&self.path)));
        }
        is_removed
    }

    /// Examines a directory entry; `None` unless its name and its contents say that Sluice wrote it.
    fn look_at(folder: &Path, entry: &fs::DirEntry) -> Option<Self> {
        let file_name = entry.file_name().into_string().ok()?;
        let Parts {
            model,
            fingerprint,
            level,
            mix,
            is_container,
        } = Parts::of(&file_name)?;
        // Doesn't follow links: Sluice writes none.
        let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        // Taken before the file is read, since examining it is no use of it.
        let used = metadata.accessed().ok()?;
        let said: HashMap<String, String> = if is_container {
            compressed::origin(&entry.path())?
        } else {
            let source = Source::Folder(folder.to_owned());
            read_metadata(&CheckpointFile::open(&source, &file_name).ok()?).ok()?
        };
        // Copies of other versions are ours as well, and of no more use, so they are listed and can be evicted.
        let is_ours = said.contains_key(VERSION_KEY)
            && expect(&said, SOURCE_KEY, fingerprint).is_ok()
            && expect(&said, LEVEL_KEY, level.name()).is_ok();
        is_ours.then_some(())?;
        let opened = File::open(entry.path());
        let is_in_use = (opened.as_ref()).is_ok_and(|file| try_lock(file) == LockState::Held);
        // Reading the header has changed the access time, by which eviction goes; it is set back.
        let times = fs::FileTimes::new().set_accessed(used);
        drop(opened.and_then(|opened| opened.set_times(times)));
        Some(Self {
            path: entry.path(),
            model: model.to_owned(),
            checkpoint: said.get(PATH_KEY).map(PathBuf::from),
            level,
            mix,
            bytes: metadata.len(),
            is_in_use,
            used,
            file_name,
        })
    }
}

/// The parts of a file's name.
struct Parts<'a> {
    model: &'a str,
    fingerprint: &'a str,
    level: Level,
    mix: Option<MixId>,
    is_container: bool,
}

impl<'a> Parts<'a> {
    fn of(name: &'a str) -> Option<Self> {
        let (stem, is_container) = match name.strip_suffix(EXTENSION) {
            Some(stem) => (stem, true),
            None => (name.strip_suffix(".safetensors")?, false),
        };
        // From the right: a model's name may contain hyphens. A mix has its name behind the level's.
        let (rest, last) = stem.rsplit_once('-')?;
        let mix = last.strip_prefix(CANDIDATE).unwrap_or(last);
        let (rest, level) = match mix.parse::<MixId>() {
            Ok(_) => rest.rsplit_once('-')?,
            Err(_) => (rest, last),
        };
        let (model, fingerprint) = rest.rsplit_once('-')?;
        let is_fingerprint = fingerprint.len() == DIGITS
            && fingerprint.bytes().all(|digit| digit.is_ascii_hexdigit());
        (!model.is_empty() && is_fingerprint).then_some(())?;
        Some(Self {
            model,
            fingerprint,
            level: level.parse().ok()?,
            mix: last.parse().ok(),
            is_container,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    const FINGERPRINT: &str = "0123456789abcdef";

    /// A file with a copy's header, last used so many hours ago.
    fn write(folder: &Path, name: &str, source: &str, level: &str, hours: u64) {
        let path = format!(
            "/models/{}",
            &name[..name.find(FINGERPRINT).unwrap_or(1) - 1]
        );
        let header = json!({"__metadata__": {
            VERSION_KEY: "1", SOURCE_KEY: source, LEVEL_KEY: level, PATH_KEY: path
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

        assert_eq!(evict(folder, 3000), (Vec::new(), 3000));
        assert_eq!(names(folder), all);

        let source = Source::Folder(folder.to_owned());
        let reading = CheckpointFile::open(&source, &oldest).unwrap();
        reading.hold();
        // As others see the one that was held: it is the newest now, too.
        let deleted = evict(folder, 2999);
        let name = old;
        assert_eq!(deleted, (vec![EvictedWeights { name, bytes: 1000 }], 2000));
        let kept = cached_weights(folder);
        let told: Vec<_> = (kept.iter())
            .map(|kept| (&kept.file_name[..], &kept.model[..], kept.is_in_use))
            .collect();
        assert_eq!(told, [(&new[..], "c", false), (&oldest[..], "a-b", true)]);
        assert_eq!(
            kept[1].checkpoint.as_deref(),
            Some(Path::new("/models/a-b"))
        );
        let in_use = remove_cached(folder, |kept| kept.model == "a-b");
        assert_eq!((in_use.files, in_use.not_removed), (0, 1));
        let (gone, left_bytes) = evict(folder, 0);
        assert_eq!(
            (gone.len(), left_bytes),
            (1, 1000),
            "{new} goes, {oldest} stays"
        );
        assert!(folder.join(&oldest).exists() && !folder.join(&new).exists());
        drop(reading);
        let removed = remove_cached(folder, |kept| kept.model == "a-b");
        assert_eq!(
            (removed.files, removed.bytes, removed.not_removed),
            (1, 1000, 0)
        );
        assert_eq!(names(folder).len(), all.len() - 3, "nothing else is gone");
        assert_eq!(evict(&folder.join("nowhere"), 0), (Vec::new(), 0));
    }
}
