//! The operations of the model with their gradients, each as one pass over memory.
//!
//! Candle keeps the tape; these are its custom operations on the CPU. Written from candle's elementary operations the
//! same network spends more time on temporaries than on multiplication (and its fused norm and softmax have no
//! gradient). On other devices the elementary form is what runs, and the tests compare each operation and its gradient
//! with it.

mod activation;
mod attention;
mod elementary;
mod elementwise;
mod keys;
mod linear;
mod loss;
mod mix;
mod numeric;
mod pack;
mod recurrence;
mod rotary;
mod rotation;
mod rwkv7;
mod span;

pub use activation::Activation;
pub use attention::{attention, cross_attention, windowed_attention};
pub use elementwise::{gated, rms_norm};
pub use keys::{bonus, normed_key, rated_key};
pub use linear::linear;
pub use loss::{cross_entropy, divergence};
pub use mix::{activate, group_norm, token_shift};
pub use pack::Pack;
pub use recurrence::recurrence;
pub use rotary::rotate;
pub use rotation::Rotation;

use std::{borrow::Cow, ops::Deref};

use candle_core::{CpuStorage, Error, Layout, Result, Storage, Tensor};
use half::bf16;

/// A read-only matrix view: `data[row * row_stride + column * column_stride]`.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    fn strided(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        Self {
            data,
            rows,
            columns,
            row_stride,
            column_stride: 1,
        }
    }

    fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    fn last_index(&self) -> usize {
        (self.rows - 1) * self.row_stride + (self.columns - 1) * self.column_stride
    }
}

/// Writes `scale · left · right` into the rows of `out`, which lie `out_row_stride` apart. One thread: a step is spread
/// over threads by its parts, which scales better than many small products each spread over all threads.
fn multiply(
    out: &mut [f32],
    out_row_stride: usize,
    left: Matrix<'_>,
    right: Matrix<'_>,
    scale: f32,
) {
    let (m, n, k) = (left.rows, right.columns, left.columns);
    assert_eq!(k, right.rows, "inner sizes of a product differ");
    if m == 0 || n == 0 || k == 0 {
        return;
    }
    assert!(n <= out_row_stride && (m - 1) * out_row_stride + n <= out.len());
    assert!(left.last_index() < left.data.len() && right.last_index() < right.data.len());
    // SAFETY: the assertions above show that every element the kernel touches lies inside its slice, and `out` is
    // borrowed mutably, so it overlaps neither operand. All strides fit, since slices are shorter than `isize::MAX`.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            out_row_stride as isize,
            false,
            left.data.as_ptr(),
            left.column_stride as isize,
            left.row_stride as isize,
            right.data.as_ptr(),
            right.column_stride as isize,
            right.row_stride as isize,
            0.0,
            scale,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// The elements of a tensor, as numbers to compute with.
struct Values<'a> {
    elements: Cow<'a, [f32]>,
    is_half: bool,
}

impl Deref for Values<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.elements
    }
}

impl Values<'_> {
    /// A result, stored as these are: in mixed precision operations compute in f32 and keep BF16.
    fn store(&self, result: Vec<f32>) -> CpuStorage {
        if self.is_half {
            CpuStorage::BF16(result.into_iter().map(bf16::from_f32).collect())
        } else {
            CpuStorage::F32(result)
        }
    }
}

/// The elements of a contiguous storage of f32 or BF16.
fn values<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<Values<'a>> {
    let (start, end) = layout
        .contiguous_offsets()
        .ok_or_else(|| Error::Msg("the training operations need contiguous tensors".into()))?;
    match storage {
        CpuStorage::F32(all) => Ok(Values {
            elements: Cow::Borrowed(&all[start..end]),
            is_half: false,
        }),
        CpuStorage::BF16(all) => Ok(Values {
            elements: all[start..end].iter().map(|value| value.to_f32()).collect(),
            is_half: true,
        }),
        _ => Err(Error::Msg(
            "the training operations need f32 or bf16 tensors".into(),
        )),
    }
}

/// Calls `read` with the elements of a CPU tensor.
fn with_values<R>(tensor: &Tensor, read: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => Ok(read(&values(storage, layout)?)),
        _ => Err(Error::Msg(
            "the training operations run on the CPU only".into(),
        )),
    }
}

/// A gradient of the same shape and dtype as the tensor it belongs to.
fn gradient(values: Vec<f32>, like: &Tensor) -> Result<Tensor> {
    Tensor::from_vec(values, like.shape(), like.device())?.to_dtype(like.dtype())
}

#[cfg(test)]
mod tests;
