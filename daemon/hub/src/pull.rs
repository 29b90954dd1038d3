//! A pull: from a name to a folder that holds the model. What is on its way lies in a folder of its own, and is
//! renamed when it is whole, so that a kill at any moment leaves either nothing or everything, and the next pull goes on.

use std::{
    collections::BTreeSet,
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{CWD, RenameFlags, renameat_with, statvfs};

use crate::{
    Client, HubError, Manifest, Name, PulledFile,
    choose::{self, Chosen, INDEX, INDEX_BYTES_MAX, Wanted},
    fetch::{Fetch, Told},
    listing::{self, Listing},
    part::{failed, remove},
};

/// Where files on their way lie, below the folder of models.
pub const PARTIAL: &str = ".partial";
/// What has to stay free on the disk.
const MARGIN_BYTES: u64 = 64 << 20;
/// The branch that is meant when nobody names one.
const REVISION_DEFAULT: &str = "main";

/// What to pull.
#[derive(Debug, Clone)]
pub struct Pull {
    /// The model.
    pub name: Name,
    /// One of its files by name, where it has several.
    pub file: Option<String>,
    /// A branch, a tag or a commit; `None`: the main branch.
    pub revision: Option<String>,
}

/// How a pull goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullEvent {
    /// The hub was asked, and there is room.
    Resolved {
        /// With the label, where the repository has several models.
        name: Name,
        /// Files in all.
        files: usize,
        /// Bytes in all.
        total_bytes: u64,
        /// Bytes that were there from before.
        present_bytes: u64,
        /// Bytes of the weights among them.
        weight_bytes: u64,
    },
    /// Another file.
    File {
        /// Its name.
        name: String,
    },
    /// Bytes of all files that are there.
    Progress {
        /// So many.
        done_bytes: u64,
    },
    /// An attempt failed; the next comes after a pause.
    Retry {
        /// Why.
        reason: String,
        /// How long.
        pause: Duration,
    },
}

/// Where the model is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// Its name, with a label where the repository has several.
    pub name: Name,
    /// Its folder.
    pub folder: PathBuf,
    /// Whether it was there before.
    pub was_there: bool,
}

impl Pull {
    /// Downloads the model into the folder of models.
    ///
    /// # Errors
    /// What [`HubError`] lists. What was downloaded stays, unless it is the fault.
    pub async fn run(
        &self,
        client: &Client,
        models: &Path,
        report: &mut (dyn FnMut(PullEvent) + Send),
    ) -> Result<Pulled, HubError> {
        let revision = self.revision.as_deref().unwrap_or(REVISION_DEFAULT);
        if client.access().is_offline {
            return Err(HubError::Offline {
                what: self.name.to_string(),
            });
        }
        let mut retry = |error: &HubError, pause| {
            report(PullEvent::Retry {
                reason: error.to_string(),
                pause,
            });
        };
        let listing = listing::list(client, &self.name, revision, &mut retry).await?;
        let chosen = self.choose(client, &listing, &mut retry).await?;
        let manifest = manifest(client, &chosen, revision, &listing.commit)?;
        let place = Place::open(models, &chosen.name)?;
        if place.is_there(&manifest)? {
            return Ok(Pulled {
                name: chosen.name,
                folder: place.target,
                was_there: true,
            });
        }
        let present_bytes = place.prepare(&manifest)?;
        let total_bytes = manifest.bytes();
        place.check_room(total_bytes.saturating_sub(present_bytes))?;
        report(PullEvent::Resolved {
            name: chosen.name.clone(),
            files: manifest.files.len(),
            total_bytes,
            present_bytes,
            weight_bytes: chosen.weight_bytes,
        });
        let mut telling = Telling { report, before: 0 };
        for file in &manifest.files {
            (telling.report)(PullEvent::File {
                name: file.name.clone(),
            });
            if place.size(&file.name) != Some(file.remote.bytes) {
                let fetch = Fetch {
                    client,
                    name: &self.name,
                    commit: &listing.commit,
                    file: &file.remote,
                    folder: &place.partial,
                };
                fetch.run(&mut telling).await?;
            }
            telling.before += file.remote.bytes;
            (telling.report)(PullEvent::Progress {
                done_bytes: telling.before,
            });
        }
        place.put()?;
        Ok(Pulled {
            name: chosen.name,
            folder: place.target,
            was_there: false,
        })
    }

    async fn choose(
        &self,
        client: &Client,
        listing: &Listing,
        retry: &mut (dyn FnMut(&HubError, Duration) + Send),
    ) -> Result<Chosen, HubError> {
        let wanted = Wanted {
            file: self.file.clone(),
        };
        let index = match choose::needs_index(&listing.files, &self.name, &wanted) {
            true => {
                let path = listing::file_path(&self.name, &listing.commit, INDEX);
                let refused =
                    |answer: &_| listing::refusal(client, answer, &self.name, &listing.commit);
                Some(
                    client
                        .get_small(&path, INDEX_BYTES_MAX, refused, retry)
                        .await?,
                )
            }
            false => None,
        };
        choose::choose(&listing.files, &self.name, &wanted, index.as_deref())
    }
}

/// What will have been pulled.
fn manifest(
    client: &Client,
    chosen: &Chosen,
    revision: &str,
    commit: &str,
) -> Result<Manifest, HubError> {
    let files: Vec<_> = chosen
        .files
        .iter()
        .map(|file| PulledFile {
            name: file.file_name().to_owned(),
            remote: file.clone(),
        })
        .collect();
    let names: BTreeSet<_> = files.iter().map(|file| &file.name).collect();
    if names.len() != files.len() {
        return Err(HubError::Answer {
            host: client.access().endpoint().to_owned(),
            problem: "two files of one name belong to one model".to_owned(),
        });
    }
    Ok(Manifest {
        endpoint: client.access().endpoint().to_owned(),
        repository: chosen.name.repository(),
        label: chosen.name.label().map(str::to_owned),
        revision: revision.to_owned(),
        commit: commit.to_owned(),
        files,
    })
}

/// Adds up what the files have.
struct Telling<'a> {
    report: &'a mut (dyn FnMut(PullEvent) + Send),
    before: u64,
}

impl Told for Telling<'_> {
    fn bytes(&mut self, bytes: u64) {
        (self.report)(PullEvent::Progress {
            done_bytes: self.before.saturating_add(bytes),
        });
    }

    fn retry(&mut self, reason: &HubError, pause: Duration) {
        (self.report)(PullEvent::Retry {
            reason: reason.to_string(),
            pause,
        });
    }
}

/// Where a model comes to lie, and where it lies until then.
struct Place {
    target: PathBuf,
    partial: PathBuf,
    /// Nobody else downloads the same while this lives; the system gives it back when the process dies.
    _lock: File,
}

impl Place {
    fn open(models: &Path, name: &Name) -> Result<Self, HubError> {
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
    fn is_there(&self, wanted: &Manifest) -> Result<bool, HubError> {
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
    fn prepare(&self, wanted: &Manifest) -> Result<u64, HubError> {
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
    fn size(&self, name: &str) -> Option<u64> {
        let facts = fs::symlink_metadata(self.partial.join(name)).ok()?;
        facts.is_file().then_some(facts.len())
    }

    fn check_room(&self, missing_bytes: u64) -> Result<(), HubError> {
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
    fn put(&self) -> Result<(), HubError> {
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
