//! Any bytes as a `.sluice` container: once as they are, once as the header of a container whose checksum matches, so that
//! more than the checksum is met. It may be refused; nothing may panic, run on, or take more memory than the file could mean.
//! The same of the engine, which reads it as a checkpoint.

use std::{slice, sync::atomic::AtomicBool};

use sluice_checkpoint::{Checkpoint, Source};
use sluice_codec::container::{Container, Hash, MAGIC, VERSION};

/// Bytes behind the header, for tensors to be in.
const REST_BYTES: usize = 16 << 10;
/// Longest tensor that is read; a part of it takes all ways through the code that the whole does.
const READ_BYTES_MAX: u64 = 1 << 20;

type File = (&'static str, &'static [u8]);

/// Everything that is done with such bytes.
pub fn container(bytes: &[u8]) {
    check(bytes);
    let (header, rest) = match bytes.iter().position(|&byte| byte == 0) {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[][..]),
    };
    let mut made = Vec::new();
    made.extend_from_slice(&MAGIC);
    made.extend_from_slice(&VERSION.to_le_bytes());
    made.extend_from_slice(&(header.len() as u32).to_le_bytes());
    made.extend_from_slice(&Hash::of(header).0.to_le_bytes());
    made.extend_from_slice(header);
    made.resize(made.len().next_multiple_of(4096), 0);
    made.extend_from_slice(rest);
    made.resize(made.len().max(REST_BYTES), 0);
    check(&made);
}

/// What reading and verifying do with it.
fn check(bytes: &[u8]) {
    let Ok(container) = Container::read(bytes, "fuzz".to_owned()) else {
        return;
    };
    drop(container.verify(&AtomicBool::new(false), &mut |_| {}));
    let header = container.header();
    for file in header.files.iter().chain(&header.shards) {
        drop(container.read_file(file));
    }
    // An index names a file that may have any ending.
    let index: File = (
        "model.safetensors.index.json",
        br#"{"weight_map": {"any": "model.sluice"}}"#,
    );
    // SAFETY: files inside a program are for ever, these for as long as `load` runs: it takes them by a name that hides how
    // long, and leaves nothing behind that has them.
    let bytes: &'static [u8] = unsafe { slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
    let files = [index, ("model.sluice", bytes)];
    // SAFETY: as above.
    load(unsafe { slice::from_raw_parts(files.as_ptr(), files.len()) });
}

/// What the engine does with it.
fn load(files: &'static [File]) {
    let Ok(checkpoint) = Checkpoint::open(&Source::Embedded(files)) else {
        return;
    };
    drop(checkpoint.model());
    drop(checkpoint.tokenizer());
    for (entry, bytes) in checkpoint.tensors() {
        let end = bytes.min(READ_BYTES_MAX);
        // From within a row to within another.
        for part in [0..end, end / 3..end - end / 5] {
            let mut out = vec![0; (part.end - part.start) as usize];
            drop(checkpoint.read_part(entry, part, &mut out));
        }
    }
}
