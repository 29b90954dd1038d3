//! How fast a checkpoint's disk is, by a short probe.

use std::{
    os::unix::fs::FileExt,
    time::{Duration, Instant},
};

use super::{
    Checkpoint,
    file::{CheckpointFile, PIECE_BYTES},
};
use crate::page::{PAGE_BYTES, Page};

/// Reads of the probe, at most: 64 MiB.
const READS_MAX: u64 = 8;
/// No read starts later than this.
const TIME_MAX: Duration = Duration::from_millis(150);
/// In a smaller file the time of a read's way would hide the disk's rate.
const FILE_BYTES_MIN: u64 = 1 << 20;

/// Bytes a second that come from the disk past the page cache, by one thread: measured on
/// the middle half of the largest file. `None` for files inside the program, too small to
/// tell, or on a file system without such reads.
#[must_use]
pub fn disk_rate(checkpoint: &Checkpoint) -> Option<f64> {
    let largest = checkpoint.files.iter().max_by_key(|file| file.len)?;
    let mut pages: Box<[Page]> =
        bytemuck::allocation::try_zeroed_slice_box(PIECE_BYTES / PAGE_BYTES).ok()?;
    measure(largest, bytemuck::cast_slice_mut(&mut pages))
}

fn measure(file: &CheckpointFile, target: &mut [u8]) -> Option<f64> {
    let direct = file.direct().filter(|_| file.len >= FILE_BYTES_MIN)?;
    let page = PAGE_BYTES as u64;
    let half = file.len / 2 / page * page;
    let first = half / 2 / page * page;
    let piece = half.min(target.len() as u64);
    // Spread, since a drive or the cache behind it may be faster where it was read last.
    let reads = (half / piece).min(READS_MAX);
    let stride = half / reads / page * page;
    let start = Instant::now();
    let mut read_bytes = 0;
    for read in 0..reads {
        let target = &mut target[..piece as usize];
        direct.read_exact_at(target, first + read * stride).ok()?;
        read_bytes += piece;
        if start.elapsed() >= TIME_MAX {
            break;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    (seconds > 0.0).then(|| read_bytes as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::checkpoint::Source;

    fn rate(source: &Source) -> Option<f64> {
        let file = CheckpointFile::open(source, "file").unwrap();
        measure(&file, bytemuck::cast_slice_mut(&mut pages()))
    }

    fn pages() -> Box<[Page]> {
        bytemuck::allocation::zeroed_slice_box(PIECE_BYTES / PAGE_BYTES)
    }

    #[test]
    fn a_file_on_a_disk_has_a_rate_and_others_have_none() {
        static EMBEDDED: &[(&str, &[u8])] = &[("file", &[0; 2 << 20])];
        assert_eq!(rate(&Source::Embedded(EMBEDDED)), None);

        let folder = tempfile::tempdir().unwrap();
        let source = Source::Folder(folder.path().to_owned());
        let path = folder.path().join("file");
        fs::write(&path, [1; 1000]).unwrap();
        assert_eq!(rate(&source), None, "too small to tell");

        for len in [FILE_BYTES_MIN as usize, (40 << 20) + 77] {
            fs::write(&path, vec![1; len]).unwrap();
            let file = CheckpointFile::open(&source, "file").unwrap();
            let found = rate(&source);
            // The temporary folder may lie on a file system without direct reads.
            assert_eq!(found.is_some(), file.direct().is_some(), "{len} bytes");
            assert!(found.is_none_or(|rate| rate.is_finite() && rate > 0.0));
        }
    }
}
