//! Rows beside each other: the layout that the CPU's kernels read weights in. Of each 16 rows, word `k` (4 bytes) of all
//! of them lies side by side, so that one load of 64 bytes is an operand whose lanes are rows. It is a permutation of the
//! stored bytes: it takes as many bytes, and [`restore`] undoes it. A rest of fewer than 16 rows stays as it is stored.
//!
//! Blocks stay in order. Those of 16 rows are cut in pieces, halves (2 bytes) and words (4 bytes), and a block of the
//! layout is piece after piece, each of all 16 rows. llama.cpp and ik_llama.cpp "repack" rows for the same reason, into
//! formats of their own.

use std::ops::Range;

use crate::{Format, blocks::widest};

/// Rows that lie beside each other.
pub const ROWS: usize = 16;

/// How the bytes of a format's block are cut: halves first, then words, then halves again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pieces {
    /// Elements of a block; a format's own, but pairs of `bf16` are words.
    elements: usize,
    leading: usize,
    words: usize,
    trailing: usize,
}

impl Pieces {
    const fn of(format: Format) -> Option<Self> {
        let (elements, leading, words, trailing) = match format {
            Format::F32 => (1, 0, 1, 0),
            Format::F16 => (1, 1, 0, 0),
            // Two inputs are what an instruction for `bf16` multiplies and adds in a lane.
            Format::Bf16 => (2, 0, 1, 0),
            Format::Q8_0 => (32, 1, 8, 0),
            Format::Q6K => (256, 0, 52, 1),
            Format::Q5K => (256, 2, 43, 0),
            Format::Q5_1 => (32, 2, 5, 0),
            Format::Q5_0 => (32, 1, 5, 0),
            Format::Q4K => (256, 2, 35, 0),
            Format::Q4_1 => (32, 2, 4, 0),
            Format::Q4_0 => (32, 1, 4, 0),
            // These are dequantized row by row.
            Format::Q3K | Format::Q2K => return None,
        };
        Some(Self {
            elements,
            leading,
            words,
            trailing,
        })
    }

    const fn bytes(self) -> usize {
        2 * (self.leading + self.trailing) + 4 * self.words
    }
}

impl Format {
    /// Whether rows of this width can lie [beside each other](crate::interleaved).
    #[must_use]
    pub const fn interleaves(self, width: usize) -> bool {
        match Pieces::of(self) {
            Some(pieces) => width.is_multiple_of(pieces.elements),
            None => false,
        }
    }

    /// Elements of the smallest piece of interleaved rows that can be read; `None` if rows of this format can't be
    /// interleaved.
    #[must_use]
    pub const fn interleaved_len(self) -> Option<usize> {
        match Pieces::of(self) {
            Some(pieces) => Some(pieces.elements),
            None => None,
        }
    }
}

/// Interleaves rows of `width` elements in place. `scratch` comes to hold 16 of them.
///
/// # Panics
/// When [`Format::interleaves`] says no, or the bytes are not whole rows.
pub fn interleave(format: Format, width: usize, bytes: &mut [u8], scratch: &mut Vec<u8>) {
    each_group(
        format,
        width,
        bytes,
        scratch,
        |pieces, stored, interleaved| {
            pieces.interleave(stored, interleaved);
        },
    );
}

/// Undoes [`interleave`].
///
/// # Panics
/// As [`interleave`].
pub fn restore(format: Format, width: usize, bytes: &mut [u8], scratch: &mut Vec<u8>) {
    each_group(
        format,
        width,
        bytes,
        scratch,
        |pieces, interleaved, rows| {
            let stride = rows.len() / ROWS;
            let blocks = 0..stride / pieces.bytes();
            for (row, out) in rows.chunks_exact_mut(stride).enumerate() {
                pieces.copy_row(interleaved, row, blocks.clone(), out);
            }
        },
    );
}

/// Copies some elements of an interleaved row as they are stored.
///
/// # Panics
/// When they are not whole blocks, lie outside, or `out` has not as many bytes as they have.
pub fn copy_row(
    format: Format,
    width: usize,
    bytes: &[u8],
    row: usize,
    elements: Range<usize>,
    out: &mut [u8],
) {
    let pieces = expect_pieces(format, width);
    let stride = format.bytes(width);
    let rows = bytes.len() / stride;
    if row >= rows / ROWS * ROWS {
        let part = format.bytes(elements.start)..format.bytes(elements.end);
        out.copy_from_slice(&bytes[row * stride..][part]);
        return;
    }
    let group = &bytes[row / ROWS * ROWS * stride..][..ROWS * stride];
    let len = pieces.elements;
    assert!(elements.start.is_multiple_of(len) && elements.end.is_multiple_of(len));
    let blocks = elements.start / len..elements.end / len;
    pieces.copy_row(group, row % ROWS, blocks, out);
}

fn expect_pieces(format: Format, width: usize) -> Pieces {
    let pieces = Pieces::of(format).filter(|pieces| width.is_multiple_of(pieces.elements));
    pieces.expect("only rows that can be interleaved are")
}

/// Calls `work` for all whole groups of rows, with a copy of what they are, and where they are written to.
fn each_group(
    format: Format,
    width: usize,
    bytes: &mut [u8],
    scratch: &mut Vec<u8>,
    mut work: impl FnMut(Pieces, &[u8], &mut [u8]),
) {
    let pieces = expect_pieces(format, width);
    let stride = format.bytes(width);
    assert!(
        stride > 0 && bytes.len().is_multiple_of(stride),
        "not whole rows"
    );
    for group in bytes.chunks_exact_mut(ROWS * stride) {
        scratch.clear();
        scratch.extend_from_slice(group);
        work(pieces, scratch, group);
    }
}

impl Pieces {
    /// The same pieces, of a whole row of this many bytes where all of a block's are alike: fewer and longer loops.
    const fn of_rows(self, stride: usize) -> Self {
        let blocks = stride / self.bytes();
        match self {
            Self {
                leading: 0,
                trailing: 0,
                ..
            }
            | Self { words: 0, .. } => Self {
                elements: blocks * self.elements,
                leading: blocks * self.leading,
                words: blocks * self.words,
                trailing: blocks * self.trailing,
            },
            _ => self,
        }
    }

    fn interleave(self, rows: &[u8], out: &mut [u8]) {
        #[inline(always)]
        fn all(pieces: Pieces, rows: &[u8], out: &mut [u8]) {
            let (stride, len) = (rows.len() / ROWS, pieces.bytes());
            let (words_at, trailing_at) =
                (2 * pieces.leading, 2 * pieces.leading + 4 * pieces.words);
            let blocks = (0..stride).step_by(len);
            for (start, out) in blocks.zip(out.chunks_exact_mut(ROWS * len)) {
                let (leading, rest) = out.split_at_mut(ROWS * words_at);
                let (words, trailing) = rest.split_at_mut(ROWS * 4 * pieces.words);
                let rows = &rows[start..];
                side_by_side::<2>(rows, stride, leading);
                side_by_side::<4>(&rows[words_at..], stride, words);
                side_by_side::<2>(&rows[trailing_at..], stride, trailing);
            }
        }
        let pieces = self.of_rows(rows.len() / ROWS);
        widest!(all(pieces: Pieces, rows: &[u8], out: &mut [u8]));
    }

    /// Copies blocks of one of a group's rows.
    fn copy_row(self, group: &[u8], row: usize, blocks: Range<usize>, out: &mut [u8]) {
        let (words_at, trailing_at) = (2 * self.leading, 2 * self.leading + 4 * self.words);
        assert_eq!(out.len(), blocks.len() * self.bytes());
        let outs = out.chunks_exact_mut(self.bytes());
        for (block, out) in blocks.zip(outs) {
            let block = &group[block * ROWS * self.bytes()..][..ROWS * self.bytes()];
            let (leading, rest) = block.split_at(ROWS * words_at);
            let (words, trailing) = rest.split_at(ROWS * 4 * self.words);
            one_of_them::<2>(leading, row, &mut out[..words_at]);
            one_of_them::<4>(words, row, &mut out[words_at..trailing_at]);
            one_of_them::<2>(trailing, row, &mut out[trailing_at..]);
        }
    }
}

/// Writes pieces of 16 rows, which begin `stride` bytes apart, side by side.
#[inline(always)]
fn side_by_side<const BYTES: usize>(rows: &[u8], stride: usize, out: &mut [u8]) {
    let out = out.as_chunks_mut::<BYTES>().0.as_chunks_mut::<ROWS>().0;
    if out.is_empty() {
        return;
    }
    let mut pieces = [&[][..]; ROWS];
    for (row, pieces) in pieces.iter_mut().enumerate() {
        *pieces = &rows[row * stride..].as_chunks::<BYTES>().0[..out.len()];
    }
    for (index, lanes) in out.iter_mut().enumerate() {
        for (lane, pieces) in lanes.iter_mut().zip(pieces) {
            *lane = pieces[index];
        }
    }
}

/// Copies a row's pieces from its lane.
fn one_of_them<const BYTES: usize>(lanes: &[u8], lane: usize, out: &mut [u8]) {
    let pieces = lanes.as_chunks::<BYTES>().0.as_chunks::<ROWS>().0;
    for (out, lanes) in out.as_chunks_mut::<BYTES>().0.iter_mut().zip(pieces) {
        *out = lanes[lane];
    }
}

#[cfg(test)]
mod tests;
