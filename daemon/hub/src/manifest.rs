//! The manifest of a download, kept beside the files: it says which files are ours, and whether the hub has newer ones.

use std::{fs::File, io::Read as _, path::Path};

use serde::{Deserialize, Serialize};

use crate::{HubError, HubName, HubNameError, RemoteFile, disk::failed};

/// File name of the manifest.
pub const MANIFEST: &str = ".sluice.json";
/// Largest manifest in bytes; one of a thousand shards has a quarter of it.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;

/// What was downloaded, and from where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Address of the hub.
    pub endpoint: String,
    /// The repository, as `OWNER/NAME`.
    pub repository: String,
    /// The label, if the repository has several models.
    pub label: Option<String>,
    /// The branch, tag or commit that was asked for.
    pub revision: String,
    /// The commit that the revision named at that time.
    pub commit: String,
    /// All files of the model.
    pub files: Vec<PulledFile>,
}

/// A downloaded file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PulledFile {
    /// Its file name in the model's folder.
    pub name: String,
    /// The hub's description of it.
    #[serde(flatten)]
    pub remote: RemoteFile,
}

impl Manifest {
    /// Reads a folder's manifest; `None` if there is none, or it is invalid.
    #[must_use]
    pub fn read(folder: &Path) -> Option<Self> {
        let file = File::open(folder.join(MANIFEST)).ok()?;
        let mut text = String::new();
        file.take(MANIFEST_BYTES_MAX)
            .read_to_string(&mut text)
            .ok()?;
        let manifest: Self = serde_json::from_str(&text).ok()?;
        // Files that it names may be deleted, so paths that lead elsewhere are refused.
        let is_plain = |file: &PulledFile| {
            !file.name.is_empty() && !file.name.starts_with('.') && !file.name.contains('/')
        };
        manifest.files.iter().all(is_plain).then_some(manifest)
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<(), HubError> {
        let path = folder.join(MANIFEST);
        let text = serde_json::to_vec_pretty(self).expect("names and numbers serialize as JSON");
        // Written and renamed, so that a crash never leaves half a manifest.
        let temporary = folder.join(".sluice.json.new");
        std::fs::write(&temporary, text)
            .and_then(|()| std::fs::rename(&temporary, &path))
            .map_err(|cause| failed("write", &path, cause))
    }

    /// The model's name, with its label.
    ///
    /// # Errors
    /// When it isn't a valid name.
    pub fn name(&self) -> Result<HubName, HubNameError> {
        match &self.label {
            Some(label) => format!("{}:{label}", self.repository).parse(),
            None => self.repository.parse(),
        }
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files
            .iter()
            .fold(0, |sum, file| sum.saturating_add(file.remote.bytes))
    }

    /// Whether it lists a file of this name with the same bytes as `remote`.
    pub(crate) fn has(&self, name: &str, remote: &RemoteFile) -> bool {
        let file = self.files.iter().find(|file| file.name == name);
        file.is_some_and(|file| {
            let known = &file.remote;
            // Small files have git's hash only. A file with neither hash is never taken for the same.
            let is_same = match (&known.sha256, &remote.sha256) {
                (Some(known), Some(now)) => known == now,
                (None, None) => known.blob.is_some() && known.blob == remote.blob,
                _ => false,
            };
            is_same && known.bytes == remote.bytes
        })
    }
}
