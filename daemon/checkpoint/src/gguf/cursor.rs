//! Reading a GGUF header from its beginning on, a piece at a time: what a file says of its own lengths is held to what the
//! file has before anything is allocated for it.

use super::super::CheckpointError;

/// Longest header: a vocabulary of 262,144 tokens with its merges takes about 20 MB.
const HEADER_BYTES_MAX: u64 = 128 << 20;
/// Bytes that are read at once.
const PIECE_BYTES: usize = 64 << 10;

/// Fills a buffer from an offset on.
type ReadAt<'a> = &'a dyn Fn(u64, &mut [u8]) -> Result<(), CheckpointError>;

/// A file's bytes, wherever they are.
pub(super) struct Source<'a> {
    /// For messages.
    pub(super) path: &'a str,
    /// How many there are.
    pub(super) len: u64,
    pub(super) read: ReadAt<'a>,
}

/// A place in a header.
pub(super) struct Cursor<'a> {
    source: Source<'a>,
    at: u64,
    piece: Vec<u8>,
    /// Where the piece begins.
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

    /// Bytes before it.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Bytes of the file.
    pub(super) fn file_len(&self) -> u64 {
        self.source.len
    }

    /// Bytes that the header may still have.
    fn remaining(&self) -> u64 {
        self.source.len.min(HEADER_BYTES_MAX) - self.at
    }

    pub(super) fn malformed(&self, cause: impl Into<String>) -> CheckpointError {
        CheckpointError::MalformedFile {
            path: self.source.path.to_owned(),
            cause: cause.into(),
        }
    }

    /// So many things of at least `bytes_min` bytes: a number that the file could hold.
    pub(super) fn count(&mut self, what: &str, bytes_min: u64) -> Result<usize, CheckpointError> {
        let count = self.u64()?;
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

    /// So many bytes, which [`Self::count`] allowed.
    pub(super) fn bytes(&mut self, len: usize) -> Result<Vec<u8>, CheckpointError> {
        self.check(len)?;
        let mut out = vec![0; len];
        self.fill(&mut out)?;
        Ok(out)
    }

    /// A text with its length before it, as bytes.
    pub(super) fn text_bytes(&mut self) -> Result<Vec<u8>, CheckpointError> {
        let len = self.count("bytes of text", 1)?;
        self.bytes(len)
    }

    /// A name: a short text.
    pub(super) fn name(&mut self, what: &str, bytes_max: usize) -> Result<String, CheckpointError> {
        let len = self.count("bytes of text", 1)?;
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
        if end > HEADER_BYTES_MAX {
            return Err(self.malformed(format!("its header exceeds {HEADER_BYTES_MAX} bytes")));
        }
        Ok(())
    }

    fn fill(&mut self, mut out: &mut [u8]) -> Result<(), CheckpointError> {
        self.check(out.len())?;
        while !out.is_empty() {
            let from = (self.at - self.piece_start) as usize;
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
