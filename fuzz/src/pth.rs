//! Any bytes as a `.pth` file: as they are, and as the pickle of an archive that is sound otherwise, so that more than the
//! archive is met. They may be refused; nothing may panic, run on, or take more memory than the file could mean.

use std::slice;

use sluice_checkpoint::{Checkpoint, Source};

/// Bytes of the only storage.
const STORAGE_BYTES: usize = 4096;

type File = (&'static str, &'static [u8]);

/// Everything that is done with such bytes.
pub fn pth(bytes: &[u8]) {
    open(bytes);
    open(&archive(&[
        ("a/data.pkl", bytes),
        ("a/data/0", &[0; STORAGE_BYTES]),
    ]));
}

/// An archive of these entries, as PyTorch writes it.
#[must_use]
pub fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut directory = Vec::new();
    for (name, bytes) in entries {
        let (header, len) = (out.len() as u32, (bytes.len() as u32).to_le_bytes());
        let name_len = (name.len() as u16).to_le_bytes();
        out.extend_from_slice(b"PK\x03\x04");
        out.extend_from_slice(&[0; 22]);
        out.extend_from_slice(&name_len);
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(bytes);
        directory.extend_from_slice(b"PK\x01\x02");
        directory.extend_from_slice(&[0; 16]);
        directory.extend_from_slice(&[len, len].concat());
        directory.extend_from_slice(&name_len);
        directory.extend_from_slice(&[0; 12]);
        directory.extend_from_slice(&header.to_le_bytes());
        directory.extend_from_slice(name.as_bytes());
    }
    let (start, len) = (out.len() as u32, directory.len() as u32);
    let count = (entries.len() as u16).to_le_bytes();
    out.extend_from_slice(&directory);
    out.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    out.extend_from_slice(&[count, count].concat());
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&start.to_le_bytes());
    out.extend_from_slice(&[0; 2]);
    out
}

fn open(bytes: &[u8]) {
    // An index names a file that may have any ending.
    let index: File = (
        "model.safetensors.index.json",
        br#"{"weight_map": {"any": "model.pth"}}"#,
    );
    // SAFETY: files inside a program are for ever, these for as long as `read` runs: it takes them by a name that hides how
    // long, and leaves nothing behind that has them.
    let bytes: &'static [u8] = unsafe { slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
    let files = [index, ("model.pth", bytes)];
    // SAFETY: as above.
    read(unsafe { slice::from_raw_parts(files.as_ptr(), files.len()) });
}

/// What the engine does with it.
fn read(files: &'static [File]) {
    let Ok(checkpoint) = Checkpoint::open(&Source::Embedded(files)) else {
        return;
    };
    drop(checkpoint.model());
    for (entry, bytes) in checkpoint.tensors() {
        // From within an element to within another.
        for part in [0..bytes, bytes / 3..bytes - bytes / 5] {
            let mut out = vec![0; (part.end - part.start) as usize];
            drop(checkpoint.read_part(entry, part, &mut out));
        }
    }
}
