//! What a checkpoint is known again by when its copies are looked for.

use std::{fs, os::unix::fs::MetadataExt};

use super::super::{Checkpoint, CheckpointError, Source};

/// Bytes from the middle of each tensor that a fingerprint is made from: copies made with the same times are told apart,
/// and that takes no time.
const SAMPLE_BYTES: usize = 256;

/// Digits of a fingerprint.
pub(super) const DIGITS: usize = 16;

/// A file as it was when it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct FileStamp {
    inode: u64,
    len: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl FileStamp {
    /// `None` for what is no file on disk.
    pub(in super::super) fn of(source: &Source, name: &str) -> Option<Self> {
        let Source::Folder(folder) = source else {
            return None;
        };
        let metadata = fs::metadata(folder.join(name)).ok()?;
        Some(Self {
            inode: metadata.ino(),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}

impl Checkpoint {
    /// Sixteen digits from all headers, the files' lengths and times of change, and a few bytes of each tensor. Where the
    /// files lie is no part of it.
    ///
    /// # Errors
    /// When those bytes can't be read.
    pub fn fingerprint(&self) -> Result<String, CheckpointError> {
        let mut sum = Sum::default();
        for (file, stamp) in self.files.iter().zip(&self.stamps) {
            sum.number(file.len);
            match (stamp, file.embedded()) {
                (Some(FileStamp { modified, .. }), _) => {
                    sum.number(modified.0.cast_unsigned());
                    sum.number(modified.1.cast_unsigned());
                }
                // Files inside the program have no times, and are small.
                (None, bytes) => sum.bytes(bytes),
            }
        }
        for (name, entry) in &self.tensors {
            sum.text(name);
            match &entry.format {
                Ok(format) => sum.text(format.name()),
                Err(other) => sum.text(other),
            }
            sum.number(entry.shape.len() as u64);
            for &size in &entry.shape {
                sum.number(size as u64);
            }
            sum.number(entry.file as u64);
            sum.number(entry.offset);
            let mut sample = [0; SAMPLE_BYTES];
            let len = entry.bytes.min(SAMPLE_BYTES as u64);
            let start = (entry.bytes - len) / 2;
            let sample = &mut sample[..len as usize];
            self.read_part(entry, start..start + len, sample)?;
            sum.bytes(sample);
        }
        Ok(format!("{:0DIGITS$x}", sum.0))
    }

    /// Whether all files still are what they were when they were opened.
    ///
    /// # Errors
    /// Names the first that isn't.
    pub fn check_all_unchanged(&self) -> Result<(), CheckpointError> {
        self.files
            .iter()
            .try_for_each(|file| file.check_unchanged())
    }
}

/// FNV-1a, which stays the same from one version of the compiler to the next.
struct Sum(u64);

impl Default for Sum {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Sum {
    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes(text.as_bytes());
    }
}
