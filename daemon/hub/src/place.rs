//! Where a model comes to lie, and where it lies until then.

use std::{
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, RenameFlags, renameat_with, statvfs};

use crate::{
    HubError, Manifest, Name, PulledFile,
    part::{failed, remove},
};

/// Where files on their way lie, below the folder of models.
pub const PARTIAL: &str = ".partial";
/// What has to stay free on the disk.
const MARGIN_BYTES: u64 = 64 << 20;

/// Where a model comes to lie, and where it lies until then.
pub(crate) struct Place {
    pub(crate) target: PathBuf,
    pub(crate) partial: PathBuf,
    /// Nobody else downloads the same while this lives; the system gives it back when the process dies.
    _lock: File,
}

impl Place {
    pub(crate) fn open(models: &Path, name: &Name) -> Result<Self, HubError> {
        let partials = models.join(PARTIAL);
        make_folder(&partials)?;
        let key = name.to_string().replacen('/', "--", 1);
        let path = partials.join(format!("{key}.lock"));
        let lock = File::options().create(true).append(true).open(&path);
        let lock = lock.map_err(|cause| failed("open", &path, cause))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(HubError::Locked {
                    name: name.to_string(),
                });
            }
            Err(TryLockError::Error(cause)) => return Err(failed("lock", &path, cause)),
        }
        Ok(Self {
            target: models.join(name.folder()),
            partial: partials.join(key),
            _lock: lock,
        })
    }

    /// Whether the very same was pulled before.
    ///
    /// # Errors
    /// When something lies there that nobody pulled.
    pub(crate) fn is_there(&self, wanted: &Manifest) -> Result<bool, HubError> {
        if !self.target.exists() {
            return Ok(false);
        }
        let Some(there) = Manifest::read(&self.target) else {
            return Err(HubError::Taken {
                folder: self.target.clone(),
            });
        };
        let is_whole = |file: &PulledFile| {
            let facts = fs::metadata(self.target.join(&file.name));
            there.has(&file.name, &file.remote)
                && facts.is_ok_and(|facts| facts.len() == file.remote.bytes)
        };
        Ok(there.files.len() == wanted.files.len() && wanted.files.iter().all(is_whole))
    }

    /// Makes the folder for what is on its way, keeps what still counts in it, and returns the bytes of that.
    pub(crate) fn prepare(&self, wanted: &Manifest) -> Result<u64, HubError> {
        make_folder(&self.partial)?;
        let before = Manifest::read(&self.partial);
        let keeps = |name: &str| {
            let file = wanted
                .files
                .iter()
                .find(|file| file.name == name.strip_suffix(".part").unwrap_or(name));
            let known = file.zip(before.as_ref());
            known.is_some_and(|(file, before)| before.has(&file.name, &file.remote))
        };
        let entries =
            fs::read_dir(&self.partial).map_err(|cause| failed("read", &self.partial, cause))?;
        for entry in entries {
            let entry = entry.map_err(|cause| failed("read", &self.partial, cause))?;
            if !entry.file_name().to_str().is_some_and(keeps) {
                remove(&entry.path())?;
            }
        }
        wanted.write(&self.partial)?;
        self.take_over(wanted);
        let present = wanted.files.iter().filter_map(|file| {
            self.size(&file.name)
                .or_else(|| self.size(&format!("{}.part", file.name)))
        });
        Ok(present.sum())
    }

    /// Files that a newer commit has left as they were are not downloaded again.
    fn take_over(&self, wanted: &Manifest) {
        let Some(there) = Manifest::read(&self.target) else {
            return;
        };
        for file in wanted
            .files
            .iter()
            .filter(|file| file.remote.sha256.is_some())
        {
            let old = self.target.join(&file.name);
            let is_whole = fs::metadata(&old).is_ok_and(|facts| facts.len() == file.remote.bytes);
            if is_whole && there.has(&file.name, &file.remote) {
                // Where there are no such links, or it is there already, it is downloaded or kept.
                let _ = fs::hard_link(&old, self.partial.join(&file.name));
            }
        }
    }

    /// Bytes of a file on its way.
    pub(crate) fn size(&self, name: &str) -> Option<u64> {
        let facts = fs::symlink_metadata(self.partial.join(name)).ok()?;
        facts.is_file().then_some(facts.len())
    }

    pub(crate) fn check_room(&self, missing_bytes: u64) -> Result<(), HubError> {
        let needed_bytes = missing_bytes.saturating_add(MARGIN_BYTES);
        // A file system that does not tell is tried.
        let Ok(facts) = statvfs(&self.partial) else {
            return Ok(());
        };
        let free_bytes = facts.f_bavail.saturating_mul(facts.f_frsize);
        match missing_bytes > 0 && needed_bytes > free_bytes {
            true => Err(HubError::NoSpace {
                folder: self.partial.clone(),
                needed_bytes,
                free_bytes,
            }),
            false => Ok(()),
        }
    }

    /// Gives the folder its name, in the place of an older one.
    pub(crate) fn put(&self) -> Result<(), HubError> {
        let renamed = |cause| failed("rename", &self.partial, cause);
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
                // Not every file system can: for a moment there is neither, and the next pull would mend it.
                let aside = self.partial.with_extension("old");
                fs::rename(&self.target, &aside).map_err(renamed)?;
                fs::rename(&self.partial, &self.target).map_err(renamed)?;
                fs::rename(&aside, &self.partial).map_err(renamed)?;
            }
            sync(parent)?;
            // What it replaced was pulled too; who has it open keeps it.
            return fs::remove_dir_all(&self.partial)
                .map_err(|cause| failed("remove", &self.partial, cause));
        }
        fs::rename(&self.partial, &self.target).map_err(renamed)?;
        sync(parent)
    }
}

fn make_folder(path: &Path) -> Result<(), HubError> {
    fs::create_dir_all(path).map_err(|cause| failed("make the folder", path, cause))
}

/// Puts a folder's names on the disk.
fn sync(folder: &Path) -> Result<(), HubError> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|cause| failed("write", folder, cause))
}
