//! What a repository contains: files with sizes and hashes, at one commit.

use std::time::Duration;

use http::StatusCode;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};

use crate::{Client, HubError, HubName, client::HubResponse};

/// Largest list in bytes; a repository of a thousand shards has a tenth of it.
const LIST_BYTES_MAX: usize = 16 << 20;
/// Most files of a repository.
const FILES_MAX: usize = 20_000;
/// Longest path of a file, in bytes.
const PATH_BYTES_MAX: usize = 512;
/// Characters that are escaped in a path.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// A file as the hub describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteFile {
    /// Its path in the repository, which was checked.
    pub path: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// SHA-256 in hexadecimal digits, which the hub gives for large files.
    pub sha256: Option<String>,
    /// Git's hash of the file, or of its LFS pointer if there is a SHA-256.
    pub blob: Option<String>,
}

impl RemoteFile {
    /// The last component of its path.
    #[must_use]
    pub fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// The hash of its bytes that the hub gives: the SHA-256, or git's.
    #[must_use]
    pub fn hash(&self) -> Option<&str> {
        self.sha256.as_deref().or_else(|| self.git_hash())
    }

    /// Git's hash of its bytes, if there is no SHA-256.
    pub(crate) fn git_hash(&self) -> Option<&str> {
        let blob = self.blob.as_deref().filter(|_| self.sha256.is_none())?;
        (blob.len() == 40 && is_hex(blob)).then_some(blob)
    }

    /// Whether it lies in the repository's root.
    #[must_use]
    pub fn is_at_root(&self) -> bool {
        !self.path.contains('/')
    }
}

/// A repository at a commit.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) commit: String,
    pub(crate) files: Vec<RemoteFile>,
}

#[derive(Deserialize)]
struct Answered {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

/// Requests the list of a repository's files.
pub(crate) async fn list(
    client: &Client,
    name: &HubName,
    revision: &str,
    tell: &mut (dyn FnMut(&HubError, Duration) + Send),
) -> Result<Listing, HubError> {
    // `blobs=true` adds sizes and hashes, which the plain answer lacks.
    let path = format!(
        "/api/models/{}/revision/{}?blobs=true",
        name.repository(),
        utf8_percent_encode(revision, ESCAPED)
    );
    let refused = |answer: &HubResponse| refusal(client, answer, name, revision);
    let bytes = client
        .get_small(&path, LIST_BYTES_MAX, refused, tell)
        .await?;
    read(&bytes).map_err(|problem| HubError::WrongResponse {
        host: client.access().endpoint().to_owned(),
        problem,
    })
}

/// The hub's path of a file's bytes.
pub(crate) fn file_path(name: &HubName, commit: &str, file: &str) -> String {
    let parts: Vec<_> = file
        .split('/')
        .map(|part| utf8_percent_encode(part, ESCAPED).to_string())
        .collect();
    format!(
        "/{}/resolve/{commit}/{}",
        name.repository(),
        parts.join("/")
    )
}

/// The error that a refusal of the hub means.
pub(crate) fn refusal(
    client: &Client,
    answer: &HubResponse,
    name: &HubName,
    revision: &str,
) -> HubError {
    let repository = name.repository();
    let has_token = client.access().token.is_some();
    let gated = || HubError::Gated {
        repository: repository.clone(),
        page: format!("{}/{repository}", client.access().endpoint()),
        has_token,
    };
    // Only the hub's own words say anything about a repository.
    if !answer.is_hub {
        return answer.failure();
    }
    match (
        answer.status(),
        // The hub's own code tells apart what statuses don't.
        answer.header("x-error-code").unwrap_or_default(),
    ) {
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, "GatedRepo")
        | (StatusCode::FORBIDDEN, _) => gated(),
        (StatusCode::NOT_FOUND, "RevisionNotFound") => HubError::NoRevision {
            repository,
            revision: revision.to_owned(),
        },
        (StatusCode::NOT_FOUND, _) | (StatusCode::UNAUTHORIZED, "RepoNotFound") => {
            HubError::NoRepository {
                repository,
                has_token,
            }
        }
        // Without a token, the hub answers 401 for repositories that don't exist, too.
        (StatusCode::UNAUTHORIZED, _) if !has_token => HubError::NoRepository {
            repository,
            has_token,
        },
        (StatusCode::UNAUTHORIZED, _) => HubError::WrongToken,
        _ => answer.failure(),
    }
}

fn read(bytes: &[u8]) -> Result<Listing, String> {
    let answer: Answered =
        serde_json::from_slice(bytes).map_err(|error| format!("the list of files: {error}"))?;
    // All files are then requested at this commit, so that a push during the download cannot mix two versions. The
    // commit becomes part of request paths.
    if answer.sha.len() < 7 || answer.sha.len() > 64 || !is_hex(&answer.sha) {
        return Err("the list of files has no commit".to_owned());
    }
    if answer.siblings.len() > FILES_MAX {
        return Err(format!(
            "{} files, more than {FILES_MAX}",
            answer.siblings.len()
        ));
    }
    let files = answer
        .siblings
        .into_iter()
        .filter(|file| is_safe(&file.rfilename))
        .map(checked);
    Ok(Listing {
        commit: answer.sha,
        files: files.collect::<Result<_, _>>()?,
    })
}

fn checked(file: Sibling) -> Result<RemoteFile, String> {
    let Sibling {
        rfilename: path,
        size,
        blob,
        lfs,
    } = file;
    let (sha256, lfs_bytes) = lfs.map_or((None, None), |lfs| (lfs.sha256, lfs.size));
    if sha256
        .as_ref()
        .is_some_and(|hash| hash.len() != 64 || !is_hex(hash))
    {
        return Err(format!("{path} has an invalid SHA-256"));
    }
    // LFS's size is that of the contents, which the hash belongs to.
    let Some(bytes) = lfs_bytes.or(size) else {
        return Err(format!("{path} has no size"));
    };
    let sha256 = sha256.map(|hash| hash.to_ascii_lowercase());
    Ok(RemoteFile {
        path,
        bytes,
        sha256,
        blob,
    })
}

/// Whether a path stays inside the folder that it is joined to. Other paths are none that a model needs, and are
/// skipped.
fn is_safe(path: &str) -> bool {
    let is_plain = |part: &str| !part.is_empty() && !part.starts_with('.') && part.len() <= 200;
    path.len() <= PATH_BYTES_MAX
        && path.split('/').all(is_plain)
        && !path
            .chars()
            .any(|character| character.is_control() || character == '\\')
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_with_sizes_and_hashes() {
        let hash = "AB".repeat(32);
        let text = format!(
            r#"{{"sha":"0123456789abcdef","private":false,"siblings":[
                {{"rfilename":"config.json","size":12,"blobId":"beef"}},
                {{"rfilename":"model.safetensors","size":99,"blobId":"feed","lfs":{{"sha256":"{hash}","size":99,"pointerSize":1}}}}]}}"#
        );
        let listing = read(text.as_bytes()).unwrap();
        assert_eq!(listing.files[0].bytes, 12);
        assert_eq!(
            listing.files[1].sha256.as_deref(),
            Some(hash.to_lowercase().as_str())
        );
    }

    #[test]
    fn paths_that_lead_elsewhere_are_left_out() {
        for path in [
            "../a",
            "/a",
            "a/../b",
            "a//b",
            ".git/config",
            "a\\\\..\\\\b",
            "a\\u0000b",
            "a/",
            "",
        ] {
            let text =
                format!(r#"{{"sha":"0123456","siblings":[{{"rfilename":"{path}","size":1}}]}}"#);
            assert!(read(text.as_bytes()).unwrap().files.is_empty(), "{path}");
        }
    }

    #[test]
    fn lists_that_can_not_be_true_are_refused() {
        for text in [
            "",
            "[]",
            r#"{"siblings":[]}"#,
            r#"{"sha":"../../x"}"#,
            r#"{"sha":"0123456","siblings":[{"rfilename":"a"}]}"#,
            r#"{"sha":"0123456","siblings":[{"rfilename":"a","size":-1}]}"#,
            r#"{"sha":"0123456","siblings":[{"rfilename":"a","size":1,"lfs":{"sha256":"no","size":1}}]}"#,
        ] {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn names_of_files_are_escaped_in_addresses() {
        let name: HubName = "a/b".parse().unwrap();
        assert_eq!(
            file_path(&name, "c0", "x y/z?#%.gguf"),
            "/a/b/resolve/c0/x%20y/z%3F%23%25.gguf"
        );
    }
}
