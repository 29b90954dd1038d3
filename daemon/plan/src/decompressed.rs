//! Memory on a card that weights are decoded into, where they aren't multiplied as they are.
//!
//! Some rows of a matrix are decoded, then multiplied, then the next: that takes the same time on the card as decoding all
//! of it would, and a part of the memory. A tensor is decoded in pieces of about the same size, none above a limit.

use sluice_machine::{Profile, page::PAGE_BYTES};
use sluice_weights::{
    Storage, TensorPart, TensorPlan, WeightGroupPlan,
    decompressed::{BYTES_MAX, ROWS, is_decompressed_first},
};

use super::Workload;

/// Rows that go through an MLP together, where its weights aren't decoded for them: enough for the kernel, few enough that a
/// long canvas needs no matrix of its length times the MLP's width.
pub const MLP_ROWS: usize = 512;
/// Rows that go through an MLP together where a card decodes its weights first, once for each turn.
///
/// The MLPs of LLaDA-8B are 4.8 G numbers: multiplying them with 512 rows takes a card of 50 T operations a second 100 ms, and
/// decoding them some 50 ms more at 100 G numbers a second. 2048 rows pay that once instead of four times. What lies between
/// the products then takes 84 MiB more (1,536 rows of 2 × 12,288 + 4,096 numbers of 16 bits), only in a pass that has so many
/// rows. As much more of the weights crosses the bus for it, 7 ms of a pass at 12 GB/s, against 150 ms of decoding. Both grow
/// with the MLP's width, the gain with the model's layers and width besides: where it would be a loss a model is small, and
/// not streamed. A step further has half as much to gain and takes twice the memory.
const MLP_ROWS_DECOMPRESSED: usize = 2048;

/// Rows that go through an MLP of this model together on this device, while memory isn't short.
///
/// It follows from how the checkpoint has its weights, which the plans of all levels share: blocks that a level makes of plain
/// weights go through in shorter turns, and a plan under which nothing is decoded after all has some 84 MiB less for weights.
pub fn mlp_rows(groups: &[WeightGroupPlan], profile: &Profile) -> usize {
    let Some(card) = &profile.gpu else {
        return MLP_ROWS;
    };
    let is_decoded = |tensor: &TensorPlan| {
        let kept = tensor
            .compressed
            .map_or(tensor.storage, Storage::Compressed);
        is_decompressed_first(card, kept.on_gpu(), MLP_ROWS)
    };
    let mut tensors = groups.iter().flat_map(|unit| &unit.tensors);
    match tensors.any(|tensor| tensor.part.is_of_mlp() && is_decoded(tensor)) {
        true => MLP_ROWS_DECOMPRESSED,
        false => MLP_ROWS,
    }
}

/// Bytes of it that units take on this device for this workload.
pub(super) fn bytes(groups: &[WeightGroupPlan], profile: &Profile, workload: &Workload) -> u64 {
    let Some(card) = &profile.gpu else { return 0 };
    let rows = workload.rows().max(workload.lm_head_rows());
    let is_decoded = |tensor: &&TensorPlan| {
        tensor.rows > 1
            && tensor.part != TensorPart::Embedding
            && is_decompressed_first(card, tensor.storage.on_gpu(), rows)
    };
    let piece = |tensor: &TensorPlan| {
        let row_bytes = tensor.width * card.dtype.bytes();
        let least = ROWS.min(tensor.rows) * row_bytes;
        (tensor.rows * row_bytes).min(BYTES_MAX.max(least))
    };
    let tensors = groups.iter().flat_map(|unit| &unit.tensors);
    let most = tensors.filter(is_decoded).map(piece).max().unwrap_or(0);
    most.next_multiple_of(PAGE_BYTES) as u64
}
