//! Zip archives of stored entries, with 64-bit sizes where needed. Compressed or encrypted entries are refused: nothing
//! of them could be read from its offset.
//!
//! The format: PKWARE's APPNOTE.TXT, 4.3.

use std::collections::BTreeMap;

use super::super::{CheckpointError, file::CheckpointFile, safetensors::NAME_BYTES_MAX};

/// Most entries: of a model with as many tensors as safetensors files may have, and some.
const ENTRIES_MAX: u64 = 1 << 17;
/// Largest central directory in bytes: a file of 3,000 tensors has one of 300 KB.
const DIRECTORY_BYTES_MAX: u64 = 32 << 20;
/// Lengths of the fixed parts of records.
const END_BYTES: usize = 22;
const LOCATOR_BYTES: u64 = 20;
const END_64_BYTES: usize = 56;
const ENTRY_BYTES: usize = 46;
const LOCAL_BYTES: usize = 30;
/// Longest comment after the end record.
const COMMENT_BYTES_MAX: u64 = 0xFFFF;
/// What 32-bit and 16-bit fields hold when the number is in a 64-bit field elsewhere.
const IN_64_BITS: u32 = u32::MAX;
const COUNT_IN_64_BITS: u16 = u16::MAX;

/// An entry's bytes in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ZipEntry {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// The central directory.
#[derive(Debug)]
pub(super) struct Archive {
    entries: BTreeMap<String, ZipEntry>,
}

/// Where the central directory is.
struct Directory {
    offset: u64,
    bytes: u64,
    entries: u64,
}

impl Archive {
    pub(super) fn read(file: &CheckpointFile) -> Result<Self, CheckpointError> {
        let malformed = |cause: String| CheckpointError::MalformedFile {
            path: file.path.clone(),
            cause,
        };
        let directory = Directory::find(file)?;
        if directory.bytes > DIRECTORY_BYTES_MAX || directory.entries > ENTRIES_MAX {
            return Err(malformed(format!(
                "its directory would have {} entries in {} bytes; the limits are {ENTRIES_MAX} and {DIRECTORY_BYTES_MAX}",
                directory.entries, directory.bytes
            )));
        }
        let mut bytes = vec![0; directory.bytes as usize];
        file.read_at(directory.offset, &mut bytes)?;
        let mut rest = &bytes[..];
        let mut entries = BTreeMap::new();
        for _ in 0..directory.entries {
            let (name, entry, behind) = listed(rest).map_err(malformed)?;
            rest = behind;
            let entry = with_data(file, entry, &name, directory.offset)?;
            if entries.insert(name.clone(), entry).is_some() {
                return Err(malformed(format!("it has the entry {name} twice")));
            }
        }
        Ok(Self { entries })
    }

    pub(super) fn find(&self, name: &str) -> Option<ZipEntry> {
        self.entries.get(name).copied()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }
}

impl Directory {
    /// Finds it by the record at the file's end.
    fn find(file: &CheckpointFile) -> Result<Self, CheckpointError> {
        let malformed = |cause: &str| CheckpointError::MalformedFile {
            path: file.path.clone(),
            cause: cause.to_owned(),
        };
        let tail_bytes = file.len.min(END_BYTES as u64 + COMMENT_BYTES_MAX);
        let mut tail = vec![0; tail_bytes as usize];
        let tail_start = file.len - tail_bytes;
        file.read_at(tail_start, &mut tail)?;
        // Only a comment may follow it, of the length that it says.
        let is_end = |&at: &usize| {
            tail[at..].starts_with(b"PK\x05\x06")
                && at + END_BYTES + usize::from(u16_at(&tail, at + 20)) == tail.len()
        };
        let at = (0..=tail.len().saturating_sub(END_BYTES))
            .rev()
            .filter(|at| at + END_BYTES <= tail.len())
            .find(is_end)
            .ok_or_else(|| {
                malformed(
                    "it is no whole zip archive, as torch.save writes since PyTorch 1.6; if the download is complete, load and save it again with a recent version",
                )
            })?;
        let end = &tail[at..];
        let end_start = tail_start + at as u64;
        let (mut entries, mut bytes, mut offset) = (
            u64::from(u16_at(end, 10)),
            u64::from(u32_at(end, 12)),
            u64::from(u32_at(end, 16)),
        );
        let mut directory_end = end_start;
        let is_in_64_bits = u16_at(end, 10) == COUNT_IN_64_BITS
            || [12, 16].iter().any(|&at| u32_at(end, at) == IN_64_BITS);
        if is_in_64_bits {
            let missing = || malformed("its directory is damaged");
            let locator_start = end_start.checked_sub(LOCATOR_BYTES).ok_or_else(missing)?;
            let mut locator = [0; LOCATOR_BYTES as usize];
            file.read_at(locator_start, &mut locator)?;
            let record_start = u64_at(&locator, 8);
            let is_inside = record_start
                .checked_add(END_64_BYTES as u64)
                .is_some_and(|end| end <= locator_start);
            if !locator.starts_with(b"PK\x06\x07") || !is_inside {
                return Err(missing());
            }
            let mut record = [0; END_64_BYTES];
            file.read_at(record_start, &mut record)?;
            if !record.starts_with(b"PK\x06\x06") {
                return Err(missing());
            }
            (entries, bytes, offset) = (
                u64_at(&record, 32),
                u64_at(&record, 40),
                u64_at(&record, 48),
            );
            directory_end = record_start;
        }
        let end = offset.checked_add(bytes);
        if end.is_none_or(|end| end > directory_end) {
            return Err(malformed("its directory would lie beyond its end"));
        }
        Ok(Self {
            offset,
            bytes,
            entries,
        })
    }
}

/// An entry as the directory lists it.
struct Listed {
    /// Where the entry's own header begins.
    header: u64,
    bytes: u64,
}

/// The first entry of these bytes of the directory, and the bytes behind it.
fn listed(bytes: &[u8]) -> Result<(String, Listed, &[u8]), String> {
    let damaged = || "its directory is damaged".to_owned();
    if bytes.len() < ENTRY_BYTES || !bytes.starts_with(b"PK\x01\x02") {
        return Err(damaged());
    }
    let (flags, method) = (u16_at(bytes, 8), u16_at(bytes, 10));
    let (packed, unpacked) = (u32_at(bytes, 20), u32_at(bytes, 24));
    let [name_bytes, extra_bytes, comment_bytes] =
        [28, 30, 32].map(|at| usize::from(u16_at(bytes, at)));
    let header = u32_at(bytes, 42);
    let rest = &bytes[ENTRY_BYTES..];
    if rest.len() < name_bytes + extra_bytes + comment_bytes {
        return Err(damaged());
    }
    let (name, rest) = rest.split_at(name_bytes);
    let (extra, rest) = rest.split_at(extra_bytes);
    if name_bytes > NAME_BYTES_MAX {
        return Err(format!(
            "an entry's name has more than {NAME_BYTES_MAX} bytes"
        ));
    }
    let name = std::str::from_utf8(name).map_err(|_| "an entry's name is not UTF-8".to_owned())?;
    // The first bit says that it is encrypted.
    if method != 0 || flags & 1 != 0 {
        return Err(format!(
            "the entry {name} is compressed or encrypted, as torch.save writes none"
        ));
    }
    let mut wide = Wide(wide_field(extra));
    // In this order, and only those that the 32 bits have no room for.
    let unpacked = wide.of(unpacked).ok_or_else(damaged)?;
    let packed = wide.of(packed).ok_or_else(damaged)?;
    let header = wide.of(header).ok_or_else(damaged)?;
    if packed != unpacked {
        return Err(format!("the entry {name} has two lengths"));
    }
    let entry = Listed {
        header,
        bytes: unpacked,
    };
    Ok((name.to_owned(), entry, &rest[comment_bytes..]))
}

/// An entry's bytes, which lie behind its own header and before the directory.
fn with_data(
    file: &CheckpointFile,
    entry: Listed,
    name: &str,
    directory: u64,
) -> Result<ZipEntry, CheckpointError> {
    let outside = || CheckpointError::MalformedFile {
        path: file.path.clone(),
        cause: format!("the entry {name} lies outside the archive"),
    };
    let end = entry.header.checked_add(LOCAL_BYTES as u64);
    if end.is_none_or(|end| end > directory) {
        return Err(outside());
    }
    let mut header = [0; LOCAL_BYTES];
    file.read_at(entry.header, &mut header)?;
    if !header.starts_with(b"PK\x03\x04") {
        return Err(outside());
    }
    // Its name and padding differ in length from those in the directory.
    let more = u64::from(u16_at(&header, 26)) + u64::from(u16_at(&header, 28));
    let offset = entry.header + LOCAL_BYTES as u64 + more;
    let end = offset.checked_add(entry.bytes);
    match end.is_some_and(|end| end <= directory) {
        true => Ok(ZipEntry {
            offset,
            bytes: entry.bytes,
        }),
        false => Err(outside()),
    }
}

/// The field with 64-bit numbers among an entry's extra fields; empty if there is none.
fn wide_field(mut extra: &[u8]) -> &[u8] {
    while extra.len() >= 4 {
        let (kind, len) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
        let Some(field) = extra[4..].get(..len) else {
            break;
        };
        if kind == 1 {
            return field;
        }
        extra = &extra[4 + len..];
    }
    &[]
}

/// 64-bit numbers in the order of the 32-bit fields that they stand for.
struct Wide<'a>(&'a [u8]);

impl Wide<'_> {
    fn of(&mut self, number: u32) -> Option<u64> {
        if number != IN_64_BITS {
            return Some(number.into());
        }
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*first))
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
