//! Reads a GGUF header from its beginning, a piece at a time. What a file says of its own lengths is compared with its
//! size before anything is allocated for it.

use super::super::CheckpointError;

/// Longest header in bytes: a vocabulary of 262,144 tokens with its merges takes about 20 MB.
const HEADER_BYTES_MAX: u64 = 128 << 20;
/// Bytes that are read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Fills a buffer from an offset on.
type ReadAt<'a> = &'a dyn Fn(u64, &mut [u8]) -> Result<(), CheckpointError>;

/// The bytes of a file, wherever they are.
pub(super) struct Source<'a> {
    /// Path for messages.
    pub(super) path: &'a str,
    /// Length in bytes.
    pub(super) len: u64,
    pub(super) read: ReadAt<'a>,
}

/// A position in a header.
pub(super) struct Cursor<'a> {
    source: Source<'a>,
    at: u64,
    piece: Vec<u8>,
    /// Offset of the buffered piece.
    piece_start: u64,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(source: Source<'a>) -> Self {
        Self {
            source,
            at: 0,
            piece: Vec::new(),
            piece_start: 0,
        }
    }

    /// Offset of the next byte.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Path for messages.
    pub(super) fn path(&self) -> &str {
        self.source.path
    }

    /// Length of the file in bytes.
    pub(super) fn file_len(&self) -> u64 {
        self.source.len
    }

    /// Bytes that the header may still have.
    fn remaining(&self) -> u64 {
        // No underflow: `check` lets `at` come no further than either.
        self.source.len.min(HEADER_BYTES_MAX) - self.at
    }

    pub(super) fn malformed(&self, cause: impl Into<String>) -> CheckpointError {
        CheckpointError::MalformedFile {
            path: self.source.path.to_owned(),
            cause: cause.into(),
        }
    }

    /// Reads a count of things of at least `bytes_min` bytes each, which the rest of the file must be able to hold.
    pub(super) fn count(&mut self, what: &str, bytes_min: u64) -> Result<usize, CheckpointError> {
        let count = self.u64()?;
        // A division, since a product with a hostile count could overflow.
        if count > self.remaining() / bytes_min {
            return Err(self.malformed(format!(
                "it would have {count} {what}, more than its {} bytes can hold",
                self.source.len
            )));
        }
        Ok(count as usize)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], CheckpointError> {
        let mut out = [0; N];
        self.fill(&mut out)?;
        Ok(out)
    }

    pub(super) fn u32(&mut self) -> Result<u32, CheckpointError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, CheckpointError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads `len` bytes, which [`Self::count`] has allowed.
    pub(super) fn bytes(&mut self, len: usize) -> Result<Vec<u8>, CheckpointError> {
        self.check(len)?;
        let mut out = vec![0; len];
        self.fill(&mut out)?;
        Ok(out)
    }

    /// Reads a text as bytes, with its length before it.
    pub(super) fn text_bytes(&mut self) -> Result<Vec<u8>, CheckpointError> {
        let len = self.count("bytes of text", 1)?;
        self.bytes(len)
    }

    /// Reads a name: a short text that must be UTF-8.
    pub(super) fn name(&mut self, what: &str, bytes_max: usize) -> Result<String, CheckpointError> {
        let len = self.count("bytes of text", 1)?;
        // Names are short: bounded more tightly than texts, before they are read.
        if len > bytes_max {
            return Err(self.malformed(format!(
                "the name of a {what} would have {len} bytes; they have up to {bytes_max}"
            )));
        }
        let bytes = self.bytes(len)?;
        String::from_utf8(bytes)
            .map_err(|_| self.malformed(format!("the name of a {what} is not UTF-8")))
    }

    fn check(&self, len: usize) -> Result<(), CheckpointError> {
        let end = self.at + len as u64;
        if end > self.source.len {
            return Err(CheckpointError::WrongLength {
                path: self.source.path.to_owned(),
                expected: end,
                found: self.source.len,
            });
        }
        // Even a file of many gigabytes gets no more memory for its header.
        if end > HEADER_BYTES_MAX {
            return Err(self.malformed(format!("its header exceeds {HEADER_BYTES_MAX} bytes")));
        }
        Ok(())
    }

    fn fill(&mut self, mut out: &mut [u8]) -> Result<(), CheckpointError> {
        self.check(out.len())?;
        while !out.is_empty() {
            let from = (self.at - self.piece_start) as usize;
            // Small reads come from a buffered piece: a vocabulary has hundreds of thousands of texts.
            if from >= self.piece.len() {
                let left = self.source.len - self.at;
                self.piece_start = self.at;
                self.piece.resize(left.min(PIECE_BYTES as u64) as usize, 0);
                (self.source.read)(self.at, &mut self.piece)?;
                continue;
            }
            let part = &self.piece[from..];
            let len = part.len().min(out.len());
            out[..len].copy_from_slice(&part[..len]);
            out = &mut out[len..];
            self.at += len as u64;
        }
        Ok(())
    }
}
