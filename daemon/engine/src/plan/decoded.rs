//! Memory on a card that weights are decoded into, where they aren't multiplied as they are.
//!
//! Some rows of a matrix are decoded, then multiplied, then the next: that takes the same time on the card as decoding all
//! of it would, and a part of the memory. A tensor is decoded in pieces of about the same size, none above a limit.

use super::{
    Workload,
    unit::{Storage, TensorPlan, UnitPlan},
};
use crate::{
    format::Format,
    machine::{CardProfile, Profile},
    model::transformer::MLP_ROWS,
    page::PAGE_BYTES,
    weights::Part,
};

/// Most bytes of it, but for rows so long that no piece has room. Less keeps a large card waiting between launches, more
/// gains nothing.
pub(crate) const BYTES_MAX: usize = 64 << 20;
/// Rows of a piece are whole multiples of this, as a container's chunks and the tiles of a multiply are.
pub(crate) const ROWS: usize = 256;
/// Rows of input from which cuBLAS multiplies decoded blocks faster than our own kernels those that they decode: what
/// decoding takes more of the card's memory is then little beside the multiply.
const BLAS_ROWS: usize = 256;
/// Rows that go through an MLP together where a card decodes its weights first, once for each turn.
///
/// The MLPs of LLaDA-8B are 4.8 G numbers: multiplying them with 512 rows takes a card of 50 T operations a second 100 ms, and
/// decoding them some 50 ms more at 100 G numbers a second. 2048 rows pay that once instead of four times. What lies between
/// the products then takes 84 MiB more (1,536 rows of 2 × 12,288 + 4,096 numbers of 16 bits), only in a pass that has so many
/// rows. As much more of the weights crosses the bus for it, 7 ms of a pass at 12 GB/s, against 150 ms of decoding. Both grow
/// with the MLP's width, the gain with the model's layers and width besides: where it would be a loss a model is small, and
/// not streamed. A step further has half as much to gain and takes twice the memory.
const MLP_ROWS_DECODED: usize = 2048;

/// What a weight on a card is, as far as it decides whether it is decoded first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Numbers or blocks of this format.
    Stored(Format),
    /// Coded, with an index by which it can be multiplied.
    Indexed,
    /// Coded.
    Coded,
}

/// Whether a card decodes a weight before it multiplies so many rows with it.
pub(crate) fn is_decoded_first(card: &CardProfile, kept: Kept, rows: usize) -> bool {
    let gains = card.workspace_bytes > 0 && rows >= BLAS_ROWS;
    match kept {
        Kept::Stored(format) if format.block_len() == 1 => false,
        Kept::Stored(format) => gains || !format.is_multiplied_on_cards(),
        Kept::Indexed => gains,
        Kept::Coded => true,
    }
}

/// Rows that go through an MLP of this model together on this device, while memory isn't short.
///
/// It follows from how the checkpoint has its weights, which the plans of all levels share: blocks that a level makes of plain
/// weights go through in shorter turns, and a plan under which nothing is decoded after all has some 84 MiB less for weights.
pub(crate) fn mlp_rows(units: &[UnitPlan], profile: &Profile) -> usize {
    let Some(card) = &profile.card else {
        return MLP_ROWS;
    };
    let is_decoded = |tensor: &TensorPlan| {
        let kept = tensor.coded.map_or(tensor.storage, Storage::Coded);
        is_decoded_first(card, kept.on_card(), MLP_ROWS)
    };
    let mut tensors = units.iter().flat_map(|unit| &unit.tensors);
    match tensors.any(|tensor| tensor.part.is_of_mlp() && is_decoded(tensor)) {
        true => MLP_ROWS_DECODED,
        false => MLP_ROWS,
    }
}

impl Storage {
    /// What it is on a card.
    pub(super) fn on_card(self) -> Kept {
        match self {
            Self::Plain(format) => Kept::Stored(format),
            Self::Coded(coding) if coding.index_bytes > 0 => Kept::Indexed,
            Self::Coded(_) => Kept::Coded,
        }
    }
}

/// Rows of a piece that are decoded at once of a matrix of so many, in so much memory; `None` when that is too little.
pub(crate) fn piece_rows(rows: usize, row_bytes: usize, bytes: usize) -> Option<usize> {
    let most = bytes / row_bytes.max(1) / ROWS * ROWS;
    if rows * row_bytes <= bytes {
        return Some(rows.max(1));
    }
    let pieces = rows.div_ceil((most > 0).then_some(most)?);
    // Of about the same size.
    Some(rows.div_ceil(pieces).next_multiple_of(ROWS))
}

/// Bytes of it that units take on this device for this workload.
pub(super) fn bytes(units: &[UnitPlan], profile: &Profile, workload: &Workload) -> u64 {
    let Some(card) = &profile.card else { return 0 };
    let rows = workload.rows().max(workload.head_rows());
    let is_decoded = |tensor: &&TensorPlan| {
        tensor.rows > 1
            && tensor.part != Part::Embedding
            && is_decoded_first(card, tensor.storage.on_card(), rows)
    };
    let piece = |tensor: &TensorPlan| {
        let row_bytes = tensor.width * card.number.bytes();
        let least = ROWS.min(tensor.rows) * row_bytes;
        (tensor.rows * row_bytes).min(BYTES_MAX.max(least))
    };
    let tensors = units.iter().flat_map(|unit| &unit.tensors);
    let most = tensors.filter(is_decoded).map(piece).max().unwrap_or(0);
    most.next_multiple_of(PAGE_BYTES) as u64
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
