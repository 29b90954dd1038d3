//! Any bytes as a `.sluice` container: once as they are, once as the header of a container whose checksum matches, so that
//! more than the checksum is met. It may be refused; nothing may panic, run on, or take more memory than the file could mean.

#![no_main]

use std::sync::atomic::AtomicBool;

use libfuzzer_sys::fuzz_target;
use sluice_codec::container::{Container, Hash, MAGIC, VERSION};

/// Bytes behind the header, for tensors to be in.
const REST_BYTES: usize = 16 << 10;

fuzz_target!(|bytes: &[u8]| {
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
});

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
}
