//! Models of random weights, small enough for a GPU that a processor stands in for, large enough to be compressed.

pub(crate) mod compressed;
pub(crate) mod loaded;

use std::{
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use sluice_checkpoint::synth::{SynthDType, SynthOptions, SynthRouter};
use sluice_weights::{LayerKind, Shape, TensorNaming};

/// A model of so many layers: each of its weight groups, the LM head's included, is up to half a MiB.
pub(crate) fn shape(layers: usize) -> Shape {
    Shape {
        naming: TensorNaming::Llada,
        layers,
        hidden_size: 256,
        attention_heads: 4,
        kv_heads: 4,
        head_dim: 64,
        intermediate_size: 512,
        padded_vocab_size: 1024,
        context_length: 64,
        causal: false,
        tied: false,
        biases: false,
        qk_norms: false,
        layer_kind: LayerKind::Attention,
    }
}

/// Writes it into a folder of this folder.
pub(crate) fn write(folder: &Path, layers: usize) -> PathBuf {
    write_shape(folder, shape(layers))
}

/// Writes one of another shape.
pub(crate) fn write_shape(folder: &Path, shape: Shape) -> PathBuf {
    let model = folder.join("model");
    write_as(&model, shape, SynthDType::Bf16, 1);
    model
}

/// Writes one with other weights, in place.
pub(crate) fn write_as(model: &Path, shape: Shape, element: SynthDType, seed: u64) {
    let synthesis = SynthOptions {
        shape,
        dtype: element,
        seed,
        family: None,
        router: SynthRouter::default(),
        threads: 2,
    };
    let never = AtomicBool::new(false);
    synthesis.write(model, &never, &mut |_, _| {}).unwrap();
}
