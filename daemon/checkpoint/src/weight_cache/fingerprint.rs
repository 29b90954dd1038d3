//! Fingerprints, by which a checkpoint's copies are found again.

use std::{fs, os::unix::fs::MetadataExt};

use super::super::{Checkpoint, CheckpointError, Source};

/// Bytes from the middle of each tensor that a fingerprint includes: they tell checkpoints with equal times and sizes
/// apart, and reading them takes no time.
const SAMPLE_BYTES: usize = 256;

/// Hexadecimal digits of a fingerprint.
pub(super) const DIGITS: usize = 16;

/// A file's identity when it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct FileStamp {
    inode: u64,
    len: u64,
    /// Seconds and nanoseconds of the last modification.
    modified: (i64, i64),
}

impl FileStamp {
    /// The identity of a file; `None` if it isn't on disk.
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
    /// Sixteen digits from all headers, the files' lengths and modification times, and a few bytes of each tensor.
    /// Paths are not part of it, so that a checkpoint may be moved.
    ///
    /// # Errors
    /// When those bytes cannot be read.
    pub fn fingerprint(&self) -> Result<String, CheckpointError> {
        self.sum(|stamp, sum| {
            // Not the inode: a checkpoint that was moved to another disk with its times has the same fingerprint.
            sum.number(stamp.modified.0.cast_unsigned());
            sum.number(stamp.modified.1.cast_unsigned());
        })
    }

    /// The same without the times: a copy has the same one, such as on another machine.
    ///
    /// # Errors
    /// When those bytes cannot be read.
    pub fn content_fingerprint(&self) -> Result<String, CheckpointError> {
        self.sum(|_, _| {})
    }

    fn sum(&self, add_time: impl Fn(&FileStamp, &mut Sum)) -> Result<String, CheckpointError> {
        let mut sum = Sum::default();
        for (file, stamp) in self.files.iter().zip(&self.stamps) {
            sum.number(file.len);
            match (stamp, file.embedded()) {
                (Some(stamp), _) => add_time(stamp, &mut sum),
                // Embedded files have no times, and are small enough to be hashed whole.
                (None, bytes) => sum.bytes(bytes),
            }
        }
        // A sorted map, so the order of tensors in a header doesn't matter.
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
            // Offsets too: two tensors of equal shape may have swapped places.
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

    /// Checks that all files are still what they were when they were opened.
    ///
    /// # Errors
    /// Names the first that isn't.
    pub fn check_all_unchanged(&self) -> Result<(), CheckpointError> {
        self.files
            .iter()
            .try_for_each(|file| file.check_unchanged())
    }
}

/// FNV-1a: unlike std's hashers, it gives the same result in every version of the compiler.
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
