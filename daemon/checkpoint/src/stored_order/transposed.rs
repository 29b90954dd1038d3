//! Matrices that are stored transposed: the low-rank matrices of RWKV's own files, which multiply from the other side.

use std::ops::Range;

use super::super::CheckpointError;

/// Bytes of stored columns that are read at once, unless one column has more.
const PIECE_BYTES: usize = 1 << 20;

/// A matrix that is stored column after column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Transposed {
    /// Rows of the matrix: elements of a stored column.
    pub(in super::super) rows: usize,
    /// Columns of the matrix.
    pub(in super::super) columns: usize,
    /// Bytes of an element.
    pub(in super::super) element_bytes: usize,
}

impl Transposed {
    /// Fills `out` with bytes `part` of the matrix in order; `read` reads bytes as they are stored.
    ///
    /// # Errors
    /// The errors of `read`.
    pub(super) fn read(
        &self,
        part: Range<u64>,
        out: &mut [u8],
        read: impl Fn(Range<u64>, &mut [u8]) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        let bytes = self.element_bytes;
        // Parts may begin and end within elements: fingerprints sample bytes anywhere.
        let (start, end) = (part.start as usize, part.end as usize);
        let elements = start / bytes..end.div_ceil(bytes);
        if elements.is_empty() {
            return Ok(());
        }
        let rows = elements.start / self.columns..(elements.end - 1) / self.columns + 1;
        // A part of one row needs some columns only.
        let columns = match rows.len() {
            1 => elements.start % self.columns..(elements.end - 1) % self.columns + 1,
            _ => 0..self.columns,
        };
        let column_bytes = self.rows * bytes;
        let at_once = (PIECE_BYTES / column_bytes).clamp(1, columns.len());
        let mut stored = vec![0; at_once * column_bytes];
        for first in columns.clone().step_by(at_once) {
            let last = (first + at_once).min(columns.end);
            let stored = &mut stored[..(last - first) * column_bytes];
            let place = (first * column_bytes) as u64;
            read(place..place + stored.len() as u64, stored)?;
            for row in rows.clone() {
                for (index, column) in (first..last).enumerate() {
                    let element = row * self.columns + column;
                    if !elements.contains(&element) {
                        continue;
                    }
                    let from = index * column_bytes + row * bytes;
                    let to = element * bytes;
                    let (begin, stop) = (to.max(start), (to + bytes).min(end));
                    out[begin - start..stop - start]
                        .copy_from_slice(&stored[from + begin - to..from + stop - to]);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rows: usize, columns: usize, element_bytes: usize, step: usize) {
        let order = Transposed {
            rows,
            columns,
            element_bytes,
        };
        let count = rows * columns;
        let byte = |element: usize, byte: usize| (element * element_bytes + byte) as u8;
        let element = |element: usize| (0..element_bytes).map(move |index| byte(element, index));
        let sorted: Vec<u8> = (0..count).flat_map(element).collect();
        let stored: Vec<u8> = (0..columns)
            .flat_map(|column| (0..rows).map(move |row| row * columns + column))
            .flat_map(element)
            .collect();
        let read = |range: Range<u64>, out: &mut [u8]| {
            out.copy_from_slice(&stored[range.start as usize..range.end as usize]);
            Ok(())
        };
        for start in (0..=sorted.len()).step_by(step) {
            for end in (start..=sorted.len()).step_by(step) {
                let mut out = vec![0; end - start];
                order
                    .read(start as u64..end as u64, &mut out, read)
                    .unwrap();
                assert!(out == sorted[start..end], "{start}..{end} of {order:?}");
            }
        }
    }

    #[test]
    fn any_part_of_a_transposed_matrix_is_read_in_order() {
        check(3, 5, 2, 1);
        check(5, 3, 4, 1);
        check(1, 7, 2, 1);
        check(7, 1, 2, 1);
    }

    #[test]
    fn long_columns_are_read_in_pieces() {
        // Three columns at once, of eleven.
        check(PIECE_BYTES / 6, 11, 2, 500_001);
        // Less than one.
        check(PIECE_BYTES, 3, 2, 900_001);
    }
}
