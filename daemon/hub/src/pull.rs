//! A pull: from a name to a folder with the model. Partial downloads lie in a folder of their own, which is renamed
//! when it is complete. So a crash at any moment leaves either nothing or a complete model, and the next pull resumes.

use std::{
    fs::Metadata,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    Client, HubError, HubName, Manifest, PulledFile,
    choose::{self, ChosenFiles, NamingFiles, WantedModel},
    disk::remove,
    fetch::{self, Fetch, FetchProgress, blocking},
    folder::ModelFolder,
    listing::{self, Listing},
};

/// The branch that is used unless another one is named.
pub const REVISION_DEFAULT: &str = "main";

/// What to pull.
#[derive(Debug, Clone)]
pub struct Pull {
    /// The model to pull.
    pub name: HubName,
    /// One of its files by name, if it has several models.
    pub file: Option<String>,
    /// A branch, tag or commit; `None` for the main branch.
    pub revision: Option<String>,
}

/// Progress of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullEvent {
    /// The files are known, and there is enough free space.
    Resolved {
        /// The model's name, with a label if the repository has several models.
        name: HubName,
        /// Number of files.
        files: usize,
        /// Bytes of all files.
        total_bytes: u64,
        /// Bytes that are on disk from earlier pulls.
        present_bytes: u64,
        /// Bytes of the weights among them.
        weight_bytes: u64,
    },
    /// The next file begins.
    File {
        /// Name of the file.
        name: String,
    },
    /// Bytes of all files that are on disk by now.
    Progress {
        /// Bytes on disk.
        done_bytes: u64,
    },
    /// A partial file of an earlier attempt is hashed, before the rest of it is downloaded.
    Hashing {
        /// Bytes of all files before it, and those of it that are hashed.
        done_bytes: u64,
    },
    /// An attempt failed; the next follows after a pause.
    Retry {
        /// The error, in words.
        reason: String,
        /// Time until the next attempt.
        pause: Duration,
    },
}

/// A downloaded model.
#[derive(Debug, Clone)]
pub struct PulledModel {
    /// Its name, with a label if the repository has several models.
    pub name: HubName,
    /// The folder that holds its files.
    pub folder: PathBuf,
    /// Whether it was complete and intact before.
    pub was_present: bool,
    /// The files that were hashed, and have the promised hash.
    pub hashed: Vec<HashedFile>,
}

/// A file that has the promised hash.
#[derive(Debug, Clone)]
pub struct HashedFile {
    /// What the system says of it.
    pub metadata: Metadata,
    /// The hash in hexadecimal digits: SHA-256, or git's.
    pub hash: String,
}

/// Whether a file of this description is known to have this hash.
pub type IsKnown<'a> = &'a (dyn Fn(&Metadata, &str) -> bool + Send + Sync);

impl Pull {
    /// Downloads the model to the folder of models. Of one that is there files are hashed unless `is_known` has them, and
    /// damaged ones are downloaded again.
    ///
    /// # Errors
    /// Any [`HubError`]. Downloaded bytes stay, unless they are wrong.
    pub async fn run(
        &self,
        client: &Client,
        models: &Path,
        is_known: IsKnown<'_>,
        report: &mut (dyn FnMut(PullEvent) + Send),
    ) -> Result<PulledModel, HubError> {
        let revision = self.revision.as_deref().unwrap_or(REVISION_DEFAULT);
        // Refused here already, so that the message names the model rather than a path of the hub.
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
        // Locked from here on. The name has its label only since the files were chosen.
        let (folder, name) = (models.to_owned(), chosen.name.clone());
        let place = blocking(move || ModelFolder::open(&folder, &name)).await?;
        let mut hashed = Vec::new();
        // Nothing is downloaded and no space is needed if the folder is complete.
        if place.is_complete(&manifest)? {
            let resolved = PullEvent::Resolved {
                name: chosen.name.clone(),
                files: manifest.files.len(),
                total_bytes: manifest.bytes(),
                present_bytes: manifest.bytes(),
                weight_bytes: chosen.weight_bytes,
            };
            let damaged =
                find_damaged(&place, &manifest, is_known, resolved, &mut hashed, report).await?;
            if damaged.is_empty() {
                return Ok(PulledModel {
                    name: chosen.name,
                    folder: place.target,
                    was_present: true,
                    hashed,
                });
            }
            // Otherwise the new folder would take them over.
            for path in damaged {
                remove(&path)?;
            }
        }
        let present_bytes = place.prepare(&manifest)?;
        let total_bytes = manifest.bytes();
        place.check_free_space(total_bytes.saturating_sub(present_bytes))?;
        report(PullEvent::Resolved {
            name: chosen.name.clone(),
            files: manifest.files.len(),
            total_bytes,
            present_bytes,
            weight_bytes: chosen.weight_bytes,
        });
        let mut telling = ProgressReport { report, before: 0 };
        for file in &manifest.files {
            (telling.report)(PullEvent::File {
                name: file.name.clone(),
            });
            // A file gets its final name only after it was verified, so one of this name and size is complete.
            if place.size(&file.name) != Some(file.remote.bytes) {
                let fetch = Fetch {
                    client,
                    name: &self.name,
                    commit: &listing.commit,
                    file,
                    folder: &place.partial,
                    lock: &place.lock,
                };
                let metadata = fetch.run(&mut telling).await?;
                hashed.extend(file.hashed(metadata));
            }
            telling.before += file.remote.bytes;
            (telling.report)(PullEvent::Progress {
                done_bytes: telling.before,
            });
        }
        // Every file is verified by now.
        place.install(&manifest.folders())?;
        Ok(PulledModel {
            name: chosen.name,
            folder: place.target,
            was_present: false,
            hashed,
        })
    }

    async fn choose(
        &self,
        client: &Client,
        listing: &Listing,
        retry: &mut (dyn FnMut(&HubError, Duration) + Send),
    ) -> Result<ChosenFiles, HubError> {
        let wanted = WantedModel {
            file: self.file.clone(),
        };
        let mut naming = NamingFiles::new();
        for (file, bytes_max) in choose::naming_files(&listing.files, &self.name, &wanted) {
            let path = listing::file_path(&self.name, &listing.commit, file);
            let refused =
                |answer: &_| listing::refusal(client, answer, &self.name, &listing.commit);
            let bytes = client
                .get_small(&path, bytes_max as usize, refused, retry)
                .await?;
            naming.insert(file, bytes);
        }
        choose::choose(&listing.files, &self.name, &wanted, &naming)
    }
}

impl PulledFile {
    fn hashed(&self, metadata: Metadata) -> Option<HashedFile> {
        let hash = self.remote.hash()?.to_owned();
        Some(HashedFile { metadata, hash })
    }
}

/// The files of a complete folder that don't have the promised hash; `hashed` gets the others that were read. The first event
/// is told before anything is.
async fn find_damaged(
    place: &ModelFolder,
    manifest: &Manifest,
    is_known: IsKnown<'_>,
    resolved: PullEvent,
    hashed: &mut Vec<HashedFile>,
    report: &mut (dyn FnMut(PullEvent) + Send),
) -> Result<Vec<PathBuf>, HubError> {
    let mut resolved = Some(resolved);
    let mut damaged = Vec::new();
    let mut telling = ProgressReport { report, before: 0 };
    for file in &manifest.files {
        let path = place.target.join(&file.name);
        let is_known = |hash| {
            let metadata = std::fs::metadata(&path);
            metadata.is_ok_and(|metadata| is_known(&metadata, hash))
        };
        if file.remote.hash().is_some_and(|hash| !is_known(hash)) {
            resolved.take().into_iter().for_each(&mut *telling.report);
            (telling.report)(PullEvent::File {
                name: file.name.clone(),
            });
            match fetch::compare(path.clone(), file.remote.clone(), &mut telling).await? {
                Some(metadata) => hashed.extend(file.hashed(metadata)),
                None => damaged.push(path),
            }
        }
        telling.before += file.remote.bytes;
    }
    Ok(damaged)
}

/// The manifest of the selected files.
fn manifest(
    client: &Client,
    chosen: &ChosenFiles,
    revision: &str,
    commit: &str,
) -> Result<Manifest, HubError> {
    let manifest = Manifest {
        endpoint: client.access().endpoint().to_owned(),
        repository: chosen.name.repository(),
        label: chosen.name.label().map(str::to_owned),
        revision: revision.to_owned(),
        commit: commit.to_owned(),
        files: chosen.files.clone(),
    };
    // Weights of subfolders are stored flat, so two could have the same name; and a hub may list a file and a folder of one.
    let mut names = manifest.folders();
    let mut files = manifest.files.iter().map(|file| file.name.as_str());
    match files.all(|name| names.insert(name)) {
        true => Ok(manifest),
        false => Err(HubError::WrongResponse {
            host: client.access().endpoint().to_owned(),
            problem: "two files of one name belong to one model".to_owned(),
        }),
    }
}

/// Adds up the progress of all files.
struct ProgressReport<'a> {
    report: &'a mut (dyn FnMut(PullEvent) + Send),
    before: u64,
}

impl FetchProgress for ProgressReport<'_> {
    fn bytes(&mut self, bytes: u64) {
        (self.report)(PullEvent::Progress {
            done_bytes: self.before.saturating_add(bytes),
        });
    }

    fn hashed(&mut self, bytes: u64) {
        (self.report)(PullEvent::Hashing {
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
