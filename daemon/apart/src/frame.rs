//! Frames between two processes: a length in bytes, then so many. Numbers are little-endian.
//!
//! A frame begins and ends with its tag: where a worker died while it wrote, what its supervisor writes behind it never
//! passes for the rest.

use std::io::{self, Read, Write};

/// A frame that is being written.
#[derive(Debug)]
pub struct Frame(Vec<u8>);

impl Frame {
    /// An empty one.
    #[must_use]
    pub fn new(tag: u8) -> Self {
        Self(vec![0, 0, 0, 0, tag])
    }

    /// Adds a number.
    ///
    /// # Panics
    /// When it doesn't fit 32 bits: what is sent is bounded far below.
    pub fn number(&mut self, number: usize) -> &mut Self {
        let number = u32::try_from(number).expect("what is sent is bounded far below 4 GiB");
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    /// Adds bytes, behind their number.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len()).0.extend_from_slice(bytes);
        self
    }

    /// Adds numbers, behind how many there are.
    pub fn ids(&mut self, ids: &[u32]) -> &mut Self {
        self.number(ids.len());
        (self.0).extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        self
    }

    /// Writes it.
    ///
    /// # Errors
    /// When it is longer than a frame can be, or cannot be written.
    pub fn send(mut self, mut to: impl Write) -> io::Result<()> {
        self.0.push(self.0[4]);
        let length = u32::try_from(self.0.len() - 4).map_err(io::Error::other)?;
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        to.write_all(&self.0)
    }
}

/// The next frame, of at most `max` bytes; `None` at the end of the stream.
///
/// # Errors
/// When it is longer, cut, or no frame, or cannot be read.
pub fn receive(mut from: impl Read, max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match from.read(&mut length)? {
        0 => return Ok(None),
        read => from.read_exact(&mut length[read..])?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > max {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut frame = vec![0; length];
    from.read_exact(&mut frame)?;
    let end = frame.pop();
    match end.is_some() && end == frame.first().copied() {
        true => Ok(Some(frame)),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A frame that is being read, or what is left of it. Each part fails where too few bytes are left.
#[derive(Debug)]
pub struct Reading<'a>(pub &'a [u8]);

#[expect(clippy::missing_errors_doc, reason = "the type tells")]
impl<'a> Reading<'a> {
    /// The tag, or another byte.
    pub fn tag(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    /// A number.
    pub fn number(&mut self) -> io::Result<usize> {
        let bytes = self.take(4)?.try_into().expect("four bytes were taken");
        Ok(u32::from_le_bytes(bytes) as usize)
    }

    /// Bytes.
    pub fn bytes(&mut self) -> io::Result<&'a [u8]> {
        let length = self.number()?;
        self.take(length)
    }

    /// Bytes that are a text.
    pub fn text(&mut self) -> io::Result<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(io::Error::other)
    }

    /// Numbers.
    pub fn ids(&mut self) -> io::Result<Vec<u32>> {
        let count = self.number()?;
        let bytes = self.take(count.saturating_mul(4))?;
        let id = |four: &[u8]| u32::from_le_bytes(four.try_into().expect("chunks of four"));
        Ok(bytes.chunks_exact(4).map(id).collect())
    }

    fn take(&mut self, count: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) = (self.0)
            .split_at_checked(count)
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        self.0 = rest;
        Ok(taken)
    }
}
