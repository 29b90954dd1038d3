//! What was pulled: kept beside the files, so that it is known which are ours and whether the hub has newer ones.

use std::{fs::File, io::Read as _, path::Path};

use serde::{Deserialize, Serialize};

use crate::{HubError, HubName, HubNameError, RemoteFile, disk::failed};

/// Name of the file that holds it.
pub const MANIFEST: &str = ".sluice.json";
/// Largest one; a thousand shards take a quarter of it.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;

/// What was pulled, from where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The hub.
    pub endpoint: String,
    /// `OWNER/NAME`.
    pub repository: String,
    /// Which of several models in it.
    pub label: Option<String>,
    /// The branch, tag or commit that was asked for.
    pub revision: String,
    /// The commit that it meant.
    pub commit: String,
    /// All files.
    pub files: Vec<PulledFile>,
}

/// A file that was pulled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PulledFile {
    /// Its name here.
    pub name: String,
    /// What the hub said of it.
    #[serde(flatten)]
    pub remote: RemoteFile,
}

impl Manifest {
    /// That of a folder, if it has one that can be believed.
    #[must_use]
    pub fn read(folder: &Path) -> Option<Self> {
        let file = File::open(folder.join(MANIFEST)).ok()?;
        let mut text = String::new();
        file.take(MANIFEST_BYTES_MAX)
            .read_to_string(&mut text)
            .ok()?;
        let manifest: Self = serde_json::from_str(&text).ok()?;
        // What it names may be deleted one day.
        let is_plain = |file: &PulledFile| {
            !file.name.is_empty() && !file.name.starts_with('.') && !file.name.contains('/')
        };
        manifest.files.iter().all(is_plain).then_some(manifest)
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<(), HubError> {
        let path = folder.join(MANIFEST);
        let text = serde_json::to_vec_pretty(self).expect("names and numbers serialize as JSON");
        let temporary = folder.join(".sluice.json.new");
        std::fs::write(&temporary, text)
            .and_then(|()| std::fs::rename(&temporary, &path))
            .map_err(|cause| failed("write", &path, cause))
    }

    /// The model's name, with its label.
    ///
    /// # Errors
    /// When it is none.
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

    /// Whether a file of this name was, or is to be, these very bytes.
    pub(crate) fn has(&self, name: &str, remote: &RemoteFile) -> bool {
        let file = self.files.iter().find(|file| file.name == name);
        file.is_some_and(|file| {
            let known = &file.remote;
            let is_same = match (&known.sha256, &remote.sha256) {
                (Some(known), Some(now)) => known == now,
                (None, None) => known.blob.is_some() && known.blob == remote.blob,
                _ => false,
            };
            is_same && known.bytes == remote.bytes
        })
    }
}
