//! Measures the disk bandwidth of a checkpoint by a short probe.

use std::{
    ffi::OsStr,
    io,
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, Instant},
};

use sluice_machine::{
    DiskBandwidth,
    mapped::MappedBuffer,
    page::{PAGE_BYTES, Page},
};

use super::{
    Checkpoint, Source,
    file::{CheckpointFile, PIECE_BYTES},
};

/// Most pieces that are read past the page cache: 64 MiB. Each goes to memory of its own, as streamed weights go to
/// staging buffers: bandwidth differs by a factor of two with the place in memory, so one buffer used again and again
/// would measure only that place.
const DIRECT_READS_MAX: u64 = 8;
/// Most pieces that are read through the page cache.
const COLD_READS_MAX: u64 = 4;
/// No read of either kind starts later than this.
const TIME_MAX: Duration = Duration::from_millis(150);
/// Least size of a file: in a smaller one, latency would hide the disk's bandwidth.
pub const MEASURED_BYTES_MIN: u64 = 1 << 20;

/// Measures the middle half of the largest file. Values are `None` for embedded files, files that are too small, and
/// file systems without direct reads.
#[must_use]
pub fn disk_bandwidth(checkpoint: &Checkpoint) -> DiskBandwidth {
    let largest = checkpoint.files.iter().max_by_key(|file| file.len);
    largest.map_or_else(DiskBandwidth::default, measure_alone)
}

/// The same of a file that need not be a checkpoint's.
#[must_use]
pub fn file_bandwidth(path: &Path) -> DiskBandwidth {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str))
    else {
        return DiskBandwidth::default();
    };
    let opened = CheckpointFile::open(&Source::Folder(folder.to_owned()), name);
    opened.map_or_else(|_| DiskBandwidth::default(), |file| measure_alone(&file))
}

/// Measures with memory of its own.
fn measure_alone(file: &CheckpointFile) -> DiskBandwidth {
    let count = DIRECT_READS_MAX as usize * PIECE_BYTES / PAGE_BYTES;
    let Some(mut pages) = MappedBuffer::<Page>::zeroed(count) else {
        return DiskBandwidth::default();
    };
    let memory: &mut [u8] = bytemuck::cast_slice_mut(&mut pages);
    // Touched once, so that page faults don't count.
    memory.fill(1);
    measure(file, memory)
}

fn measure(file: &CheckpointFile, memory: &mut [u8]) -> DiskBandwidth {
    let Some(direct) = file.direct().filter(|_| file.len >= MEASURED_BYTES_MIN) else {
        return DiskBandwidth::default();
    };
    // All offsets and lengths below are whole pages, as direct reads need them.
    let page = PAGE_BYTES as u64;
    // The beginning has just been read for its header, and may be cached.
    let half = file.len / 2 / page * page;
    let first = half / 2 / page * page;
    let piece = half.min(PIECE_BYTES as u64);
    // Spread out, since a drive or the cache behind it may be faster where it was read last.
    let spread = |reads_max: u64| {
        let reads = (half / piece).min(reads_max);
        (reads, half / reads / page * page)
    };
    let (reads, stride) = spread(DIRECT_READS_MAX);
    let direct_bytes_per_s = timed(reads, memory, piece, |read, target| {
        direct.read_exact_at(target, first + read * stride)
    });
    let (reads, stride) = spread(COLD_READS_MAX);
    let start = |read| first + read * stride;
    // Dropped from the page cache first, or the probe would measure memory.
    for read in 0..reads {
        file.drop_cached(start(read), piece);
    }
    let cold_bytes_per_s = timed(reads, memory, piece, |read, target| {
        file.will_need(start(read), piece);
        file.read_at(start(read), target).map_err(io::Error::other)
    });
    DiskBandwidth {
        direct_bytes_per_s,
        cold_bytes_per_s,
    }
}

/// Bytes per second of `reads` reads, each of a piece into its own part of `memory`.
fn timed(
    reads: u64,
    memory: &mut [u8],
    piece: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
) -> Option<f64> {
    let start = Instant::now();
    let mut read_bytes = 0;
    for (number, target) in (0..reads).zip(memory.chunks_exact_mut(piece as usize)) {
        read(number, target).ok()?;
        read_bytes += piece;
        // Looked at after each read, so that even the slowest disk gives one measurement.
        if start.elapsed() >= TIME_MAX {
            break;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    (seconds > 0.0 && read_bytes > 0).then(|| read_bytes as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn rates(source: &Source) -> DiskBandwidth {
        let file = CheckpointFile::open(source, "file").unwrap();
        let pages = DIRECT_READS_MAX as usize * PIECE_BYTES / PAGE_BYTES;
        let mut pages = bytemuck::allocation::zeroed_slice_box::<Page>(pages);
        measure(&file, bytemuck::cast_slice_mut(&mut pages))
    }

    #[test]
    fn a_file_on_a_disk_has_a_rate_and_others_have_none() {
        static EMBEDDED: &[(&str, &[u8])] = &[("file", &[0; 2 << 20])];
        let none = DiskBandwidth::default();
        assert_eq!(rates(&Source::Embedded(EMBEDDED)), none);

        let folder = tempfile::tempdir().unwrap();
        let source = Source::Folder(folder.path().to_owned());
        let path = folder.path().join("file");
        fs::write(&path, [1; 1000]).unwrap();
        assert_eq!(rates(&source), none, "too small to tell");

        for len in [MEASURED_BYTES_MIN as usize, (40 << 20) + 77] {
            fs::write(&path, vec![1; len]).unwrap();
            let file = CheckpointFile::open(&source, "file").unwrap();
            let found = rates(&source);
            for rate in [found.direct_bytes_per_s, found.cold_bytes_per_s] {
                // The temporary folder may lie on a file system without direct reads.
                assert_eq!(rate.is_some(), file.direct().is_some(), "{len} bytes");
                assert!(rate.is_none_or(|rate| rate.is_finite() && rate > 0.0));
            }
        }
    }
}
