//! Which weights a GPU decodes before it multiplies with them, and in which pieces.

use sluice_formats::Format;
use sluice_machine::CardProfile;

use super::Storage;

/// Most bytes of it, but for rows so long that no piece has room. Less keeps a large card waiting between launches, more
/// gains nothing.
pub const BYTES_MAX: usize = 64 << 20;
/// Rows of a piece are whole multiples of this, as a container's chunks and the tiles of a multiply are.
pub const ROWS: usize = 256;
/// Rows of input from which cuBLAS multiplies decoded blocks faster than our own kernels those that they decode: what
/// decoding takes more of the card's memory is then little beside the multiply.
const BLAS_ROWS: usize = 256;
/// What a weight on a card is, as far as it decides whether it is decoded first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Numbers or blocks of this format.
    Stored(Format),
    /// Coded, with an index by which it can be multiplied.
    Indexed,
    /// Coded.
    Coded,
}

/// Whether a card decodes a weight before it multiplies so many rows with it.
pub fn is_decoded_first(card: &CardProfile, kept: Kept, rows: usize) -> bool {
    let gains = card.workspace_bytes > 0 && rows >= BLAS_ROWS;
    match kept {
        Kept::Stored(format) if format.block_len() == 1 => false,
        Kept::Stored(format) => gains || !format.is_multiplied_on_cards(),
        Kept::Indexed => gains,
        Kept::Coded => true,
    }
}

impl Storage {
    /// What it is on a card.
    pub fn on_card(self) -> Kept {
        match self {
            Self::Plain(format) => Kept::Stored(format),
            Self::Coded(coding) if coding.index_bytes > 0 => Kept::Indexed,
            Self::Coded(_) => Kept::Coded,
        }
    }
}

/// Rows of a piece that are decoded at once of a matrix of so many, in so much memory; `None` when that is too little.
pub fn piece_rows(rows: usize, row_bytes: usize, bytes: usize) -> Option<usize> {
    let most = bytes / row_bytes.max(1) / ROWS * ROWS;
    if rows * row_bytes <= bytes {
        return Some(rows.max(1));
    }
    let pieces = rows.div_ceil((most > 0).then_some(most)?);
    // Of about the same size.
    Some(rows.div_ceil(pieces).next_multiple_of(ROWS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_alike_and_have_room() {
        for (rows, row_bytes, bytes, expected) in [
            (12_288, 8192, BYTES_MAX, Some(6144)),
            (4096, 8192, BYTES_MAX, Some(4096)),
            (4096, 24_576, BYTES_MAX, Some(2048)),
            (1000, 100, 30_000, Some(256)),
            (1000, 100, 99_999, Some(512)),
            (1000, 100, 100_000, Some(1000)),
            (300, 100, 25_599, None),
            (200, 100, 20_000, Some(200)),
            (0, 100, 0, Some(1)),
        ] {
            let found = piece_rows(rows, row_bytes, bytes);
            assert_eq!(found, expected, "{rows} rows in {bytes} bytes");
            assert!(found.is_none_or(|rows| rows * row_bytes <= bytes.max(row_bytes)));
        }
    }
}
