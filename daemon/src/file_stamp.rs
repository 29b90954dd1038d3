//! By what a file is known to be the same as before.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

/// Changes with the file at a path, also where a link on the way leads elsewhere now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStamp {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    /// Of contents or mode.
    changed: (i64, i64),
}

impl FileStamp {
    /// The stamp of the file at a path now; `None` where there is none.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let facts = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some(Self {
            device: facts.dev(),
            inode: facts.ino(),
            bytes: facts.len(),
            modified: (facts.mtime(), facts.mtime_nsec()),
            changed: (facts.ctime(), facts.ctime_nsec()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_stamp_changes_with_contents_mode_and_where_links_lead() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("1"), folder.path().join("2"));
        let link = folder.path().join("link");
        fs::write(&one, "a").unwrap();
        fs::write(&two, "a").unwrap();
        symlink(&one, &link).unwrap();
        let first = FileStamp::of(&link).unwrap();
        assert_eq!(FileStamp::of(&link), Some(first));
        fs::set_permissions(&one, fs::Permissions::from_mode(0o600)).unwrap();
        let second = FileStamp::of(&link).unwrap();
        assert_ne!(second, first);
        fs::write(&one, "ab").unwrap();
        let third = FileStamp::of(&link).unwrap();
        assert_ne!(third, second);
        // As a secret of Kubernetes changes, and a certificate of certbot's.
        let other = folder.path().join("other");
        symlink(&two, &other).unwrap();
        fs::rename(&other, &link).unwrap();
        assert_ne!(FileStamp::of(&link), Some(third));
        fs::remove_file(&two).unwrap();
        assert_eq!(FileStamp::of(&link), None);
    }
}
