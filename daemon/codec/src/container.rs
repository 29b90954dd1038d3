//! `.sluice` files: a model in one file, compressed, each layer one read.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..8 | [`MAGIC`] |
//! | 8..12 | [`VERSION`], `u32` |
//! | 12..16 | bytes of the header, `u32` |
//! | 16..24 | the header's xxh3-64 |
//! | 24.. | the [`Header`], JSON |
//! | then, at multiples of 64 | the headers of the safetensors files that the tensors came from; the model's other files |
//! | then, at multiples of 4096 | extents: the tensors of a layer, each at a multiple of 64 |
//! | at a multiple of 4096, to the end | checks: 16 bits a tile |
//!
//! Integers are little-endian; bytes between the parts are zero. The header is written last, so an unfinished file
//! never begins like a container, whatever its name.

mod error;
mod hash;
mod header;
mod journal;
mod own;
mod read;
mod select;
mod tiles;
mod write;

pub use self::{
    error::{ContainerError, Damage},
    hash::{Hash, Hasher},
    header::{Chunk, Extent, FileRecord, Header, Section, TensorRecord, is_file_name},
    read::{Container, ReadAt},
    select::{CompressionRules, Glob, TensorFilter, TensorTreatment, extent_name},
    write::{
        ContainerPlan, ContainerWriter, PlannedTensor, WrittenContainer, journal_of, partial_of,
    },
};

/// The first bytes of every container.
pub const MAGIC: [u8; 8] = *b"SLUICE\0\x01";
/// The format version that this program reads and writes.
pub const VERSION: u32 = 1;
/// Parts begin at multiples of this.
pub const ALIGN_BYTES: u64 = 64;
/// Extents begin at multiples of this: direct I/O, which bypasses the page cache, needs aligned reads.
pub const EXTENT_ALIGN_BYTES: u64 = 4096;

/// Rows of a chunk when a container is written: for a layer's matrices that is some hundred KiB to a few MiB.
pub const CHUNK_ROWS: usize = 256;

/// Most elements of a chunk. A few compressed bytes may stand for many elements, so this bounds a reader's memory.
pub const CHUNK_ELEMENTS_MAX: usize = 1 << 26;

/// Longest file inside, or header of a shard: a tokenizer of half a million entries has 35 MB.
pub const FILE_BYTES_MAX: u64 = 256 << 20;
/// Most bytes of all files inside together.
pub const FILES_BYTES_MAX: u64 = 512 << 20;

/// Most chunks of a container. Each takes some memory while the container is open; a model of 8 B parameters has
/// 30,000.
pub const CHUNKS_MAX: usize = 1 << 20;

/// Bytes before the header: magic, version, length and checksum.
const PREFIX_BYTES: u64 = 24;
/// Longest header: one of 20,000 tensors has 8 MB.
const HEADER_BYTES_MAX: u64 = 64 << 20;

#[cfg(test)]
mod tests;
