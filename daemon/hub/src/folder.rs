//! The folder of a model, and the partial folder that it is downloaded to.

use std::{
    collections::BTreeSet,
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::fs::{CWD, RenameFlags, renameat_with, statvfs};

use crate::{
    HubError, HubName, Manifest, PulledFile,
    disk::{failed, make_folder, remove, remove_folder, sync},
};

/// Name of the folder for partial downloads, in the folder of models.
pub const PARTIAL: &str = ".partial";
/// How long a lock is waited for: a cancelled pull ends its last write or its last piece of hashing within that.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// How often a lock is tried meanwhile.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);
/// Bytes that must stay free on the disk.
const MARGIN_BYTES: u64 = 64 << 20;

/// The places of a model that is being downloaded.
pub(crate) struct ModelFolder {
    pub(crate) target: PathBuf,
    pub(crate) partial: PathBuf,
    pub(crate) lock: Arc<FolderLock>,
}

/// Lock against other processes that download or remove the same model. The system releases it when the process dies.
#[derive(Debug)]
pub struct FolderLock(#[expect(dead_code, reason = "held, not read")] File);

impl FolderLock {
    /// Takes the lock of a model in the folder of models. Waits a moment for it, since a pull that was just cancelled may
    /// still end a write: not for async code.
    ///
    /// # Errors
    /// When another process goes on holding it, or it cannot be created.
    pub fn take(models: &Path, name: &HubName) -> Result<Self, HubError> {
        let partials = models.join(PARTIAL);
        make_folder(&partials)?;
        let path = partials.join(format!("{}.lock", key(name)));
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            match Self::of(&path, &name.to_string()) {
                Err(HubError::Locked { .. }) if Instant::now() < deadline => sleep(LOCK_INTERVAL),
                taken => return taken,
            }
        }
    }

    pub(crate) fn of(path: &Path, name: &str) -> Result<Self, HubError> {
        // Never removed: another process might hold a lock on a file that a third one no longer finds.
        let lock = File::options().create(true).append(true).open(path);
        let lock = lock.map_err(|cause| failed("open", path, cause))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self(lock)),
            Err(TryLockError::WouldBlock) => Err(HubError::Locked {
                name: name.to_owned(),
            }),
            Err(TryLockError::Error(cause)) => Err(failed("lock", path, cause)),
        }
    }
}

impl ModelFolder {
    pub(crate) fn open(models: &Path, name: &HubName) -> Result<Self, HubError> {
        let lock = FolderLock::take(models, name)?;
        Ok(Self {
            target: models.join(name.folder()),
            partial: models.join(PARTIAL).join(key(name)),
            lock: Arc::new(lock),
        })
    }

    /// Whether exactly this was downloaded before.
    ///
    /// # Errors
    /// When the folder exists, but wasn't downloaded.
    pub(crate) fn is_complete(&self, wanted: &Manifest) -> Result<bool, HubError> {
        if !self.target.exists() {
            return Ok(false);
        }
        let Some(there) = Manifest::read(&self.target) else {
            return Err(HubError::FolderTaken {
                folder: self.target.clone(),
            });
        };
        let is_whole = |file: &PulledFile| {
            let facts = fs::metadata(self.target.join(&file.name));
            there.has(&file.name, &file.remote)
                // By size only: hashing gigabytes on every pull of a model that is there would take minutes.
                && facts.is_ok_and(|facts| facts.len() == file.remote.bytes)
        };
        Ok(there.files.len() == wanted.files.len() && wanted.files.iter().all(is_whole))
    }

    /// Creates the partial folder, removes files that don't belong to this download, and returns the bytes that can be
    /// kept.
    pub(crate) fn prepare(&self, wanted: &Manifest) -> Result<u64, HubError> {
        make_folder(&self.partial)?;
        let before = Manifest::read(&self.partial);
        let keeps = |name: &str| {
            let file = wanted
                .files
                .iter()
                .find(|file| file.name == name.strip_suffix(".part").unwrap_or(name));
            // A partial file is a beginning only of the very bytes that it was downloaded for.
            let known = file.zip(before.as_ref());
            // Files of another commit are kept only if their hashes are equal.
            known.is_some_and(|(file, before)| before.has(&file.name, &file.remote))
        };
        let folders = wanted.folders();
        sweep(&self.partial, |name, is_folder| match is_folder {
            true => folders.contains(name),
            false => keeps(name),
        })?;
        for folder in &folders {
            let inner = self.partial.join(folder);
            make_folder(&inner)?;
            sweep(&inner, |name, is_folder| {
                !is_folder && keeps(&format!("{folder}/{name}"))
            })?;
        }
        // Written before any download, so that a pull after a crash knows what the partial files are.
        wanted.write(&self.partial)?;
        self.take_over(wanted);
        let present = wanted.files.iter().filter_map(|file| {
            self.size(&file.name)
                .or_else(|| self.size(&file.part_name()))
        });
        Ok(present.sum())
    }

    /// Takes over files that a newer commit has left unchanged, so that they aren't downloaded again.
    fn take_over(&self, wanted: &Manifest) {
        let Some(there) = Manifest::read(&self.target) else {
            return;
        };
        for file in wanted
            // Only files with a SHA-256, the large ones: the others are quickly downloaded.
            .files
            .iter()
            .filter(|file| file.remote.sha256.is_some())
        {
            let old = self.target.join(&file.name);
            let is_whole = fs::metadata(&old).is_ok_and(|facts| facts.len() == file.remote.bytes);
            if is_whole && there.has(&file.name, &file.remote) {
                // Where hard links fail, the file is downloaded; one that is there already is kept.
                let _ = fs::hard_link(&old, self.partial.join(&file.name));
            }
        }
    }

    /// Bytes of a file in the partial folder.
    pub(crate) fn size(&self, name: &str) -> Option<u64> {
        let facts = fs::symlink_metadata(self.partial.join(name)).ok()?;
        facts.is_file().then_some(facts.len())
    }

    pub(crate) fn check_free_space(&self, missing_bytes: u64) -> Result<(), HubError> {
        let needed_bytes = missing_bytes.saturating_add(MARGIN_BYTES);
        // A file system that doesn't tell its free space is tried.
        let Ok(facts) = statvfs(&self.partial) else {
            return Ok(());
        };
        let free_bytes = facts.f_bavail.saturating_mul(facts.f_frsize);
        // If nothing is missing, a full disk is no reason to fail.
        match missing_bytes > 0 && needed_bytes > free_bytes {
            true => Err(HubError::NoSpace {
                folder: self.partial.clone(),
                needed_bytes,
                free_bytes,
            }),
            false => Ok(()),
        }
    }

    /// Moves the complete folder, with these in it, to its final name, in place of an older one.
    pub(crate) fn install(&self, folders: &BTreeSet<&str>) -> Result<(), HubError> {
        let renamed = |cause| failed("rename", &self.partial, cause);
        // Durable before the name is: after a crash, a complete name must not hold an incomplete model.
        for folder in folders {
            sync(&self.partial.join(folder))?;
        }
        sync(&self.partial)?;
        let parent = self
            .target
            .parent()
            .expect("a model lies in its owner's folder");
        make_folder(parent)?;
        if self.target.exists() {
            let exchanged =
                renameat_with(CWD, &self.partial, CWD, &self.target, RenameFlags::EXCHANGE);
            if exchanged.is_err() {
                // Not every file system can exchange two names.
                self.exchange_by_turns()?;
            }
            sync(parent)?;
            // The older folder was downloaded as well. Programs that have its files open keep them.
            return remove_folder(&self.partial);
        }
        fs::rename(&self.partial, &self.target).map_err(renamed)?;
        sync(parent)?;
        // Remains of an exchange that was interrupted.
        remove_folder(&self.aside())
    }

    /// Exchanges the new folder and the old one in three renames. In between there is neither for a moment; after a
    /// crash there, the next pull repairs it.
    fn exchange_by_turns(&self) -> Result<(), HubError> {
        let renamed = |cause| failed("rename", &self.partial, cause);
        let aside = self.aside();
        remove_folder(&aside)?;
        fs::rename(&self.target, &aside).map_err(renamed)?;
        if let Err(cause) = fs::rename(&self.partial, &self.target) {
            // The old folder is better than nothing.
            fs::rename(&aside, &self.target).map_err(renamed)?;
            return Err(renamed(cause));
        }
        fs::rename(&aside, &self.partial).map_err(renamed)
    }

    /// Where the old folder lies during the exchange. `~` is in no model's name, so no model uses this path.
    fn aside(&self) -> PathBuf {
        let mut path = self.partial.clone().into_os_string();
        path.push("~old");
        path.into()
    }
}

/// Removes what `keeps` refuses of the entries of a folder. It gets their names, and whether they are folders.
fn sweep(folder: &Path, keeps: impl Fn(&str, bool) -> bool) -> Result<(), HubError> {
    let read = |cause| failed("read", folder, cause);
    for entry in fs::read_dir(folder).map_err(read)? {
        let entry = entry.map_err(read)?;
        // Of a link itself, which is no folder then.
        let is_folder = entry.file_type().map_err(read)?.is_dir();
        let name = entry.file_name();
        match (
            name.to_str().is_some_and(|name| keeps(name, is_folder)),
            is_folder,
        ) {
            (true, _) => {}
            (false, true) => remove_folder(&entry.path())?,
            (false, false) => remove(&entry.path())?,
        }
    }
    Ok(())
}

/// A model's name as a file name.
fn key(name: &HubName) -> String {
    name.to_string().replacen('/', "--", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(models: &Path, name: &str) -> ModelFolder {
        ModelFolder::open(models, &name.parse().unwrap()).unwrap()
    }

    fn put(folder: &Path, text: &str) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("x"), text).unwrap();
    }

    fn text(folder: &Path) -> String {
        fs::read_to_string(folder.join("x")).unwrap()
    }

    #[test]
    fn a_lock_that_is_about_to_go_is_waited_for() {
        let models = tempfile::tempdir().unwrap();
        let held = place(models.path(), "o/m");
        let (send, begins) = std::sync::mpsc::channel();
        let path = models.path().to_owned();
        let next = std::thread::Builder::new()
            .name("next".to_owned())
            .spawn(move || {
                send.send(()).unwrap();
                FolderLock::take(&path, &"o/m".parse().unwrap())
            });
        begins.recv().unwrap();
        sleep(3 * LOCK_INTERVAL);
        drop(held);
        assert!(next.unwrap().join().unwrap().is_ok());
    }

    #[test]
    fn folders_change_places_by_turns_and_meet_no_other_model() {
        let models = tempfile::tempdir().unwrap();
        let place = |name| place(models.path(), name);
        // Were the last part replaced, the two would have one place aside, which may be a third's own.
        let (first, second, third) = (place("o/m-1.5"), place("o/m-1.6"), place("o/m-1.old"));
        assert_ne!(first.aside(), second.aside());
        put(&third.partial, "third");
        // Left over from an exchange that was cut short.
        put(&first.aside(), "older");
        put(&first.target, "old");
        put(&first.partial, "new");
        first.exchange_by_turns().unwrap();
        assert_eq!(
            (text(&first.target), text(&first.partial)),
            ("new".into(), "old".into())
        );
        assert_eq!(text(&third.partial), "third");
        assert!(!first.aside().exists());
    }

    #[test]
    fn what_an_exchange_left_goes_with_the_next_pull() {
        let models = tempfile::tempdir().unwrap();
        let place = place(models.path(), "o/m");
        put(&place.aside(), "old");
        put(&place.partial, "new");
        place.install(&BTreeSet::new()).unwrap();
        assert_eq!(text(&place.target), "new");
        assert!(!place.aside().exists());
    }
}
