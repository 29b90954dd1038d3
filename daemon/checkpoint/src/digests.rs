//! Digests of whole files that somebody has written down beside them: whoever downloaded them, or published them.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use serde::Deserialize;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use super::{
    CheckpointError, Source,
    file::{self, CheckpointFile},
    parse_json,
};

/// What `sluice pull` writes beside a model's files.
const PULLED_MANIFEST: &str = ".sluice.json";
/// What `sha256sum` writes.
const SUMS: &str = "SHA256SUMS";
/// Largest file of either kind; one of a thousand shards has a quarter of it.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// Where `huggingface_hub` writes down what it has downloaded to a folder of the user's choice.
const HUB_METADATA: &str = ".cache/huggingface/download";
/// Longest such file, which has three lines.
const HUB_METADATA_BYTES_MAX: u64 = 4096;
/// Folder of `huggingface_hub`'s cache where files have their digests as names.
const BLOBS: &str = "blobs";
/// Bytes that are read and hashed at a time.
const PIECE_BYTES: usize = 4 << 20;

/// A digest of a whole file, in lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileDigest {
    /// SHA-256 of its bytes.
    Sha256(String),
    /// Git's name for it: SHA-1 of its length and its bytes.
    Git(String),
}

impl FileDigest {
    /// Tells the two apart by their lengths; `None` for anything else.
    #[must_use]
    pub fn of_hex(digits: &str) -> Option<Self> {
        let digits = digits.to_ascii_lowercase();
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        match digits.len() {
            64 if is_hex => Some(Self::Sha256(digits)),
            40 if is_hex => Some(Self::Git(digits)),
            _ => None,
        }
    }

    /// The kind and the digits.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Sha256(digits) => format!("sha256:{digits}"),
            Self::Git(digits) => format!("git:{digits}"),
        }
    }

    /// The same digest of what the file has now; `None` if cancelled. `progress` is told how many bytes were read.
    pub(super) fn of_file(
        &self,
        file: &CheckpointFile,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<Self>, CheckpointError> {
        Ok(match self {
            Self::Sha256(_) => hash(Sha256::new(), file, cancel, progress)?.map(Self::Sha256),
            Self::Git(_) => {
                let head = format!("blob {}\0", file.len);
                let begun = Sha1::new_with_prefix(head);
                hash(begun, file, cancel, progress)?.map(Self::Git)
            }
        })
    }
}

fn hash(
    mut hasher: impl sha2::Digest,
    file: &CheckpointFile,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(u64),
) -> Result<Option<String>, CheckpointError> {
    let mut piece = vec![0; file.len.min(PIECE_BYTES as u64) as usize];
    let mut done = 0;
    while done < file.len {
        if cancel.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let count = (file.len - done).min(PIECE_BYTES as u64) as usize;
        file.read_at(done, &mut piece[..count])?;
        hasher.update(&piece[..count]);
        done += count as u64;
        progress(done);
    }
    let digest = hasher.finalize();
    Ok(Some(
        digest.iter().map(|byte| format!("{byte:02x}")).collect(),
    ))
}

/// The digests that are written down for the files of a folder.
pub(super) struct FolderDigests {
    folder: PathBuf,
    /// By file name, with the name of the file that says so.
    listed: HashMap<String, (FileDigest, &'static str)>,
}

#[derive(Deserialize)]
struct PulledManifest {
    files: Vec<PulledFile>,
}

#[derive(Deserialize)]
struct PulledFile {
    name: String,
    sha256: Option<String>,
    blob: Option<String>,
}

impl FolderDigests {
    /// Reads what lies in the folder.
    ///
    /// # Errors
    /// When a list is there and cannot be read: then nobody knows what it promised.
    pub(super) fn read(folder: &Path) -> Result<Self, CheckpointError> {
        let source = Source::Folder(folder.to_owned());
        let mut listed = HashMap::new();
        if let Some(text) = file::read_small(&source, SUMS, MANIFEST_BYTES_MAX)? {
            for line in String::from_utf8_lossy(&text).lines() {
                // `HEX  NAME`, or `HEX *NAME` for files that were read as binary.
                let Some((digits, name)) = line.split_once([' ', '\t']) else {
                    continue;
                };
                let name = name.trim_start_matches([' ', '\t', '*']);
                let name = name.strip_prefix("./").unwrap_or(name).trim_end();
                if let Some(digest @ FileDigest::Sha256(_)) = FileDigest::of_hex(digits) {
                    listed.insert(name.to_owned(), (digest, SUMS));
                }
            }
        }
        if let Some(text) = file::read_small(&source, PULLED_MANIFEST, MANIFEST_BYTES_MAX)? {
            let manifest: PulledManifest = parse_json(&source, PULLED_MANIFEST, &text)?;
            for PulledFile { name, sha256, blob } in manifest.files {
                // Git's name of a large file is that of a pointer to it.
                if let Some(digest) = sha256.or(blob).and_then(|hex| FileDigest::of_hex(&hex)) {
                    listed.insert(name, (digest, PULLED_MANIFEST));
                }
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            listed,
        })
    }

    /// The digest of a file, and where it is written.
    pub(super) fn of(&self, name: &str) -> Option<(FileDigest, String)> {
        if let Some((digest, list)) = self.listed.get(name) {
            return Some((digest.clone(), (*list).to_owned()));
        }
        self.of_blob(name).or_else(|| self.of_download(name))
    }

    /// From the name of the file that a link in `huggingface_hub`'s cache leads to.
    fn of_blob(&self, name: &str) -> Option<(FileDigest, String)> {
        let path = fs::canonicalize(self.folder.join(name)).ok()?;
        let is_blob = path.parent()?.file_name()? == BLOBS;
        let digits = path.file_name()?.to_str().filter(|_| is_blob)?;
        Some((
            FileDigest::of_hex(digits)?,
            "its name in the cache".to_owned(),
        ))
    }

    /// From what `huggingface_hub` wrote down for a file: commit, entity tag, and when.
    fn of_download(&self, name: &str) -> Option<(FileDigest, String)> {
        let note = format!("{HUB_METADATA}/{name}.metadata");
        let source = Source::Folder(self.folder.clone());
        let text = file::read_small(&source, &note, HUB_METADATA_BYTES_MAX).ok()??;
        let text = String::from_utf8(text).ok()?;
        let mut lines = text.lines().skip(1);
        let digest = FileDigest::of_hex(lines.next()?.trim())?;
        let written: f64 = lines.next()?.trim().parse().ok()?;
        // A file that was changed later is the user's own, as for `huggingface_hub`: damage keeps the time.
        let changed = fs::metadata(self.folder.join(name)).ok()?.mtime();
        (changed as f64 <= written + 1.0).then_some((digest, note))
    }
}
