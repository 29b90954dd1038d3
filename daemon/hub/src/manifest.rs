//! The manifest of a download, kept beside the files: it says which files are ours, and whether the hub has newer ones.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Read as _,
    path::Path,
};

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
    /// Its name in the model's folder: a file name, or that of a folder and a file.
    pub name: String,
    /// The hub's description of it.
    #[serde(flatten)]
    pub remote: RemoteFile,
}

impl PulledFile {
    /// Its name as long as it isn't complete.
    pub(crate) fn part_name(&self) -> String {
        format!("{}.part", self.name)
    }

    /// The folder that it lies in, if that isn't the model's own.
    fn folder(&self) -> Option<&str> {
        self.name.split_once('/').map(|(folder, _)| folder)
    }

    /// Whether its name leads to a file in the model's folder, or in one in there.
    fn is_inside(&self) -> bool {
        let is_plain = |part: &str| !part.is_empty() && !part.starts_with('.');
        self.name.split('/').all(is_plain) && self.name.split('/').count() <= 2
    }
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
        let is_link = |inner: &&str| {
            let facts = fs::symlink_metadata(folder.join(inner));
            facts.is_ok_and(|facts| facts.is_symlink())
        };
        let is_inside = manifest.files.iter().all(PulledFile::is_inside)
            && !manifest.folders().iter().any(is_link);
        is_inside.then_some(manifest)
    }

    /// The folders in the model's own that files lie in.
    #[must_use]
    pub fn folders(&self) -> BTreeSet<&str> {
        self.files.iter().filter_map(PulledFile::folder).collect()
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<(), HubError> {
        let path = folder.join(MANIFEST);
        let text = serde_json::to_vec_pretty(self).expect("names and numbers serialize as JSON");
        // Written and renamed, so that a crash never leaves half a manifest.
        let temporary = folder.join(".sluice.json.new");
        fs::write(&temporary, text)
            .and_then(|()| fs::rename(&temporary, &path))
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
