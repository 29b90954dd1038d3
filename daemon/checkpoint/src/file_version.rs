//! What tells one state of a file from another.

use std::{fmt, fs::Metadata, os::unix::fs::MetadataExt};

/// A state of a file: device, inode, length, and when content and inode changed last. Whoever changes a file's bytes can set
/// back the time of its content, but not that of its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileVersion {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds.
    content_changed: (i64, i64),
    inode_changed: (i64, i64),
}

impl From<&Metadata> for FileVersion {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            content_changed: (metadata.mtime(), metadata.mtime_nsec()),
            inode_changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl fmt::Display for FileVersion {
    /// One line, which begins with device and inode up to the first blank.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (content, inode) = (self.content_changed, self.inode_changed);
        write!(
            f,
            "{:x}:{:x} {} {}.{} {}.{}",
            self.device, self.inode, self.bytes, content.0, content.1, inode.0, inode.1
        )
    }
}
