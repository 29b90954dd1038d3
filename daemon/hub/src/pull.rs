//! A pull: from a name to a folder that holds the model. What is on its way lies in a folder of its own, and is
//! renamed when it is whole, so that a kill at any moment leaves either nothing or everything, and the next pull goes on.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    Client, HubError, HubName, Manifest, PulledFile,
    choose::{self, ChosenFiles, INDEX, INDEX_BYTES_MAX, WantedModel},
    fetch::{Fetch, FetchProgress},
    folder::ModelFolder,
    listing::{self, Listing},
};

/// The branch that is meant when nobody names one.
pub const REVISION_DEFAULT: &str = "main";

/// What to pull.
#[derive(Debug, Clone)]
pub struct Pull {
    /// The model.
    pub name: HubName,
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
        name: HubName,
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
pub struct PulledModel {
    /// Its name, with a label where the repository has several.
    pub name: HubName,
    /// Its folder.
    pub folder: PathBuf,
    /// Whether it was there before.
    pub was_present: bool,
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
    ) -> Result<PulledModel, HubError> {
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
        let place = ModelFolder::open(models, &chosen.name)?;
        if place.is_complete(&manifest)? {
            return Ok(PulledModel {
                name: chosen.name,
                folder: place.target,
                was_present: true,
            });
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
            if place.size(&file.name) != Some(file.remote.bytes) {
                let fetch = Fetch {
                    client,
                    name: &self.name,
                    commit: &listing.commit,
                    file: &file.remote,
                    folder: &place.partial,
                    lock: &place.lock,
                };
                fetch.run(&mut telling).await?;
            }
            telling.before += file.remote.bytes;
            (telling.report)(PullEvent::Progress {
                done_bytes: telling.before,
            });
        }
        place.install()?;
        Ok(PulledModel {
            name: chosen.name,
            folder: place.target,
            was_present: false,
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
    chosen: &ChosenFiles,
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
        return Err(HubError::WrongResponse {
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

    fn retry(&mut self, reason: &HubError, pause: Duration) {
        (self.report)(PullEvent::Retry {
            reason: reason.to_string(),
            pause,
        });
    }
}
