//! Memory on a GPU into which weights are decompressed, where the matmul cannot take them as they are.
//!
//! Some rows of a matrix are decompressed, then multiplied, then the next: that takes the same time on the GPU as
//! decompressing all of it would, and a part of the memory. A tensor is decompressed in pieces of about the same size,
//! none above a limit.

use sluice_formats::DType;
use sluice_machine::{Profile, page::PAGE_BYTES};
use sluice_weights::{
    LayerKind, Storage, TensorPart, TensorPlan, WeightGroupPlan,
    decompressed::{BYTES_MAX, ROWS, is_decompressed_first},
};

use super::PlanInput;

/// Rows that go through an MLP together, where its weights are not decompressed for them: enough for the kernel, few
/// enough that a long canvas needs no matrix of its length times the intermediate size.
pub const MLP_ROWS: usize = 512;
/// Rows that go through an MLP together where a GPU decompresses its weights first, once for each chunk of rows.
///
/// The MLPs of LLaDA-8B are 4.8 G weights: the matmul with 512 rows takes a GPU of 50 T operations a second 100 ms, and
/// decompressing them some 50 ms more at 100 G weights a second. 2048 rows pay that once instead of four times. The
/// activations between the matmuls then take 84 MiB more (1,536 rows of 2 × 12,288 + 4,096 elements of 16 bits), only
/// in a pass that has so many rows. As many more bytes of weights cross the bus for it, 7 ms of a pass at 12 GB/s,
/// against 150 ms of decompression. Both grow with the intermediate size, the gain with the number of layers and the
/// hidden size besides: where it would be a loss a model is small, and not streamed. Doubling it again has half as much
/// to gain and takes twice the memory.
const MLP_ROWS_DECOMPRESSED: usize = 2048;

/// Rows that go through an MLP of this model together on this device, while memory is not short.
///
/// It follows from how the checkpoint stores its weights, which the plans of all levels share: plain weights that a
/// level converts to block formats go through in the shorter chunks, and a plan under which nothing is decompressed
/// after all has some 84 MiB less for weights.
pub fn mlp_rows(groups: &[WeightGroupPlan], profile: &Profile) -> usize {
    let Some(gpu) = &profile.gpu else {
        return MLP_ROWS;
    };
    let is_decoded = |tensor: &TensorPlan| {
        let kept = tensor
            .compressed
            .map_or(tensor.storage, Storage::Compressed);
        is_decompressed_first(gpu, kept.on_gpu(), MLP_ROWS)
    };
    let mut tensors = groups.iter().flat_map(|group| &group.tensors);
    match tensors.any(|tensor| tensor.part.is_of_mlp() && is_decoded(tensor)) {
        true => MLP_ROWS_DECOMPRESSED,
        false => MLP_ROWS,
    }
}

/// Bytes of decompression memory that some of a model's weight groups take for what the plan is asked for.
pub(super) fn bytes(groups: &[WeightGroupPlan], input: &PlanInput<'_>) -> u64 {
    let (shape, workload) = (input.shape, &input.workload);
    let Some(gpu) = &input.machine.device.gpu else {
        return 0;
    };
    let rows = workload.rows().max(workload.lm_head_rows());
    // Plain weights alone are multiplied by from the other side: where gradients go back (a request that thinks finds the plan
    // as it stands), and where the head's rows are summed.
    let goes_back = matches!(shape.layer_kind, LayerKind::LatentThought(_));
    let is_transposed = |part| goes_back || (part == TensorPart::LmHead && shape.sums_lm_head());
    let is_decoded = |tensor: &&TensorPlan| {
        // Vectors are not multiplied by, and tables are read row by row.
        tensor.rows > 1
            && !tensor.part.is_table()
            && match is_transposed(tensor.part) {
                true => !tensor.storage.on_gpu().is_plain(),
                false => is_decompressed_first(gpu, tensor.storage.on_gpu(), rows),
            }
    };
    // A tensor larger than the limit goes in pieces; a piece has at least so many rows, or the kernel would starve.
    let piece = |tensor: &TensorPlan| {
        let dtype = match tensor.part {
            // A router's logits are computed in `f32`.
            TensorPart::Router => DType::F32,
            _ => gpu.dtype,
        };
        let row_bytes = tensor.width * dtype.bytes();
        let least = ROWS.min(tensor.rows) * row_bytes;
        (tensor.rows * row_bytes).min(BYTES_MAX.max(least))
    };
    let tensors = groups.iter().flat_map(|group| &group.tensors);
    let most = tensors.filter(is_decoded).map(piece).max().unwrap_or(0);
    most.next_multiple_of(PAGE_BYTES) as u64
}
