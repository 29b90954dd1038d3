//! Sentence encoders: BERT's layers, whose norms stand behind attention and MLP and behind the embeddings.
//!
//! Paper: Devlin et al. 2018 (arXiv 1810.04805). Reference: `BertModel` of transformers 5.24.

use sluice_formats::DType;
use sluice_ops::{Activation, ChannelFunction, KeyRows, Ops};
use sluice_weights::{EncoderShape, LayerKind, TensorPart, WeightGroup};

use super::{
    Network, acquire,
    attention::{KEY, QUERY, VALUE},
    rows::{BatchKeys, BatchRows},
};
use crate::{
    error::EngineError,
    residency::{Residency, WeightGuard},
};

impl Network {
    /// The sizes of a sentence encoder.
    pub(super) fn encoder(&self) -> Option<&EncoderShape> {
        match &self.config.shape.layer_kind {
            LayerKind::Encoder(encoder) => Some(encoder),
            _ => None,
        }
    }

    /// Adds positions and the first token type to the embedding's rows, and norms the sums.
    pub(super) fn finish_embedding(
        &self,
        ops: &Ops,
        weights: &Residency,
        mut hidden: Activation,
        rows: &BatchRows<'_>,
    ) -> Result<Activation, EngineError> {
        let group = acquire(ops, weights, WeightGroup::EmbeddingEnd)?;
        let positions: Vec<u32> = rows.positions.iter().map(|place| place as u32).collect();
        let positions = ops.embed(&positions, &group.weight(TensorPart::PositionEmbedding))?;
        ops.add(&mut hidden, &positions)?;
        drop(positions);
        let types = group.weight(TensorPart::TokenTypeEmbedding);
        ops.add_bias(&mut hidden, &types.rows(0, 1))?;
        let parts = [TensorPart::EmbeddingNorm, TensorPart::EmbeddingNormBias];
        self.normed(ops, &group, &hidden, parts)
    }

    /// A layer: attention to the whole text, and the MLP. All rows are computed, since all of them count.
    pub(super) fn encoder_layer(
        &self,
        ops: &Ops,
        weights: &Residency,
        layer: usize,
        hidden: Activation,
        seen: &mut BatchKeys<'_>,
    ) -> Result<Activation, EngineError> {
        let mut hidden = self.encoder_attention(ops, weights, layer, hidden, seen)?;
        let gate_up = acquire(ops, weights, WeightGroup::GateUp(layer))?;
        // Both groups are held for all chunks of rows, since a streamed one would have to be read again for each.
        let down = acquire(ops, weights, WeightGroup::Down(layer))?;
        let up = [TensorPart::Up, TensorPart::UpBias].map(|part| gate_up.weight(part));
        let norm = [TensorPart::MlpNorm, TensorPart::MlpNormBias];
        for start in (0..hidden.len()).step_by(self.mlp_rows) {
            let rows = start..hidden.len().min(start + self.mlp_rows);
            // A copy: the chunk is the MLP's input, and what its output is added to.
            let mut chunk = ops.take_rows(&hidden, &ops.indices(rows)?)?;
            let x = ops.rounded(&chunk)?;
            let mut inner = ops.linear_biased(x.as_ref().unwrap_or(&chunk), &up[0], &up[1])?;
            drop(x);
            ops.channel_function(&mut inner, ChannelFunction::Gelu)?;
            ops.linear_add(&mut chunk, 0, &inner, &down.weight(TensorPart::Down))?;
            drop(inner);
            ops.add_bias(&mut chunk, &down.weight(TensorPart::DownBias))?;
            let chunk = self.normed(ops, &gate_up, &chunk, norm)?;
            ops.set_rows(&mut hidden, start, &chunk)?;
        }
        Ok(hidden)
    }

    fn encoder_attention(
        &self,
        ops: &Ops,
        weights: &Residency,
        layer: usize,
        mut hidden: Activation,
        seen: &mut BatchKeys<'_>,
    ) -> Result<Activation, EngineError> {
        let group = acquire(ops, weights, WeightGroup::Attention(layer))?;
        let x = ops.rounded(&hidden)?;
        let parts = [QUERY, KEY, VALUE];
        let [q, k, v] = self.projections(ops, &group, x.as_ref().unwrap_or(&hidden), parts)?;
        drop(x);
        let keys = KeyRows {
            pass: Some([&k, &v]),
            caches: &[],
            layer,
        };
        let tasks = seen.of_kind(0).tasks(false);
        let attended = ops.attend(&q, &keys, self.attention_shape(layer), tasks)?;
        drop((q, k, v));
        let output = group.weight(TensorPart::AttentionOutput);
        ops.linear_add(&mut hidden, 0, &attended, &output)?;
        drop(attended);
        ops.add_bias(&mut hidden, &group.weight(TensorPart::AttentionOutputBias))?;
        let norm = [TensorPart::AttentionNorm, TensorPart::AttentionNormBias];
        self.normed(ops, &group, &hidden, norm)
    }

    /// All rows through the norm of this weight and bias.
    fn normed(
        &self,
        ops: &Ops,
        group: &WeightGuard<'_>,
        x: &Activation,
        parts: [TensorPart; 2],
    ) -> Result<Activation, EngineError> {
        let norm = ops.vectors(&parts.map(|part| group.weight(part)))?;
        let (all, epsilon) = (0..x.len(), self.config.epsilon);
        Ok(ops.layer_norm(x, all, (&norm, [0, 1]), epsilon, DType::F32)?)
    }
}
