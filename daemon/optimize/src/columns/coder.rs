//! What codes the columns of a chunk: `sluice_codec`'s encoder, and a scalar quantizer in tests, which tell what
//! feedback does apart from what the trellis does.

use sluice_codec::{ColumnsEncoder, EncodeError, Encoded};

/// Codes the columns of one chunk, each once, in any order.
pub(super) trait ColumnCoder {
    /// A finished chunk.
    type Chunk: Send;

    /// Quantizes a column with a step, and tells the values that a decoder will see: zeros for a step of 0.
    fn quantize_column(&mut self, column: usize, values: &[f32], step: f32, decoded: &mut [f32]);

    /// The chunk, and its bits.
    fn finish(self) -> Result<(Self::Chunk, f64), EncodeError>;
}

impl ColumnCoder for ColumnsEncoder {
    type Chunk = Encoded;

    fn quantize_column(&mut self, column: usize, values: &[f32], step: f32, decoded: &mut [f32]) {
        Self::quantize_column(self, column, values, step, decoded);
    }

    fn finish(self) -> Result<(Encoded, f64), EncodeError> {
        let encoded = Self::finish(self)?;
        let bits = encoded.bytes.len() as f64 * 8.;
        Ok((encoded, bits))
    }
}
