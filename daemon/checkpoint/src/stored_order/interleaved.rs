//! Rows of queries and keys as llama.cpp stores them for its RoPE of neighbouring pairs: in each head, rows of the
//! first and the second half alternate. The engine rotates a row of the first half with its counterpart of the second,
//! as models are published, so it reads rows in that order. A row is whole blocks of any format, so nothing is
//! computed.

use std::ops::Range;

use super::super::CheckpointError;

/// The heads of a tensor whose halves are stored alternately. They are put in order one at a time, with memory for one
/// head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Interleaved {
    /// Rows of a head, an even number.
    pub(in super::super) head_rows: u64,
    /// Bytes of a row.
    pub(in super::super) row_bytes: u64,
}

impl Interleaved {
    fn head_bytes(&self) -> u64 {
        self.head_rows * self.row_bytes
    }

    /// Whether a part of the tensor consists of whole heads.
    pub(super) fn is_whole(&self, part: &Range<u64>) -> bool {
        [part.start, part.end]
            .iter()
            .all(|end| end.is_multiple_of(self.head_bytes()))
    }

    /// Fills `out` with bytes `part` of the tensor in order; `read` reads bytes as they are stored.
    ///
    /// # Errors
    /// The errors of `read`.
    pub(super) fn read(
        &self,
        part: Range<u64>,
        mut out: &mut [u8],
        read: impl Fn(Range<u64>, &mut [u8]) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        // Rows of one head are read at once and copied in order: reading row by row would be thousands of small reads.
        let mut head = vec![0; self.head_bytes() as usize];
        let mut at = part.start;
        while at < part.end {
            let start = at - at % self.head_bytes();
            let end = start + self.head_bytes();
            read(start..end, &mut head)?;
            while at < end.min(part.end) {
                // Parts may begin and end within rows: fingerprints sample bytes anywhere.
                let (row, within) = ((at - start) / self.row_bytes, at % self.row_bytes);
                let len = (self.row_bytes - within).min(part.end - at);
                let from = (self.stored_row(row) * self.row_bytes + within) as usize;
                let (now, rest) = out.split_at_mut(len as usize);
                now.copy_from_slice(&head[from..from + len as usize]);
                out = rest;
                at += len;
            }
        }
        Ok(())
    }

    /// Puts whole heads in order.
    pub(super) fn sort(&self, heads: &mut [u8]) {
        let row_bytes = self.row_bytes as usize;
        let mut stored = Vec::new();
        for head in heads.chunks_exact_mut(self.head_bytes() as usize) {
            stored.clear();
            stored.extend_from_slice(head);
            for (row, out) in head.chunks_exact_mut(row_bytes).enumerate() {
                let from = self.stored_row(row as u64) as usize * row_bytes;
                out.copy_from_slice(&stored[from..from + row_bytes]);
            }
        }
    }

    /// Index in the stored head of the row that is row `row` in order.
    fn stored_row(&self, row: u64) -> u64 {
        // Stored are row 0 of the first half, row 0 of the second, row 1 of the first, and so on.
        let half = self.head_rows / 2;
        2 * (row % half) + row / half
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_stored_in_turn_come_apart() {
        let halves = Interleaved {
            head_rows: 6,
            row_bytes: 2,
        };
        // Two heads; a row's bytes are its number in order.
        let row = |number: u8| [number, number + 100];
        let stored: Vec<u8> = [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]
            .into_iter()
            .flat_map(row)
            .collect();
        let sorted: Vec<u8> = (0..12).flat_map(row).collect();

        let mut whole = stored.clone();
        halves.sort(&mut whole);
        assert_eq!(whole, sorted);

        for start in 0..24 {
            for end in start..=24 {
                let mut out = vec![0; end - start];
                let read = |range: Range<u64>, out: &mut [u8]| {
                    out.copy_from_slice(&stored[range.start as usize..range.end as usize]);
                    Ok(())
                };
                halves
                    .read(start as u64..end as u64, &mut out, read)
                    .unwrap();
                assert_eq!(out, sorted[start..end], "{start}..{end}");
            }
        }
        assert!(halves.is_whole(&(12..24)) && !halves.is_whole(&(0..6)));
    }
}
