//! Which KV heads and MLP channels go: the shares that were asked for of those with the lowest scores.

use sluice_weights::Shape;

use super::{PruneShares, PrunedLayer};
use crate::compression::PruneError;

/// Elements of a block of the level `aggressive`, the longest of all levels: where rows are no whole number of them, it
/// stores twice the bits.
const BLOCK: usize = 256;
/// Elements of a block of the level `moderate`.
const SHORT_BLOCK: usize = 32;
/// Least number of steps that a layer must have for units to be removed a step at a time.
const STEPS_MIN: usize = 8;

/// Scores of a layer's units, comparable across layers: what has the lowest is missed least.
#[derive(Debug, Clone, Default)]
pub(super) struct LayerScores {
    pub(super) kv_heads: Vec<f64>,
    pub(super) channels: Vec<f64>,
}

/// Chooses what to remove.
///
/// KV heads are compared across layers: layers differ in how much they need theirs. Of channels each layer loses the same share, since they differ less, and a layer's channels are many.
/// Both go in steps that keep the rows of `o` and `down` whole blocks, where the model is large enough for that.
pub(super) fn choose(
    shape: &Shape,
    shares: PruneShares,
    scores: &[LayerScores],
) -> Result<Vec<PrunedLayer>, PruneError> {
    shares.check()?;
    let mut layers = vec![PrunedLayer::default(); shape.layers];
    choose_kv_heads(shape, shares.heads, scores, &mut layers)?;
    let kept = kept_channels(shape.intermediate_size, shares.channels);
    for (layer, scores) in layers.iter_mut().zip(scores) {
        let ranked = ranked(&scores.channels);
        let mut removed: Vec<u32> = (ranked[..shape.intermediate_size - kept].iter())
            .map(|&channel| channel as u32)
            .collect();
        removed.sort_unstable();
        layer.removed_channels = removed;
    }
    match layers.iter().any(|layer| *layer != PrunedLayer::default()) {
        true => Ok(layers),
        false => Err(PruneError::NothingRemoved {
            kv_heads: shape.layers * shape.kv_heads,
            channels: shape.intermediate_size,
        }),
    }
}

/// The most KV heads that a choice may remove from a layer, and how many channels it removes.
pub(super) fn most_removed(shape: &Shape, shares: PruneShares) -> [usize; 2] {
    let channels = kept_channels(shape.intermediate_size, shares.channels);
    [
        shape.kv_heads - head_step(shape),
        shape.intermediate_size - channels,
    ]
}

fn choose_kv_heads(
    shape: &Shape,
    share: f64,
    scores: &[LayerScores],
    layers: &mut [PrunedLayer],
) -> Result<(), PruneError> {
    let step = head_step(shape);
    let all = shape.layers * shape.kv_heads;
    let count = (all as f64 * share / step as f64).round() as usize;
    // At least a step of heads stays in each layer.
    let of_layer = shape.kv_heads / step - 1;
    let most = of_layer * shape.layers;
    if count > most {
        return Err(PruneError::NothingLeft {
            units: "KV heads",
            removed: count * step,
            all,
            most: most * step,
        });
    }
    // The lowest heads of each layer, a step at a time. Their scores rise, so a layer's first steps go first.
    let mut steps: Vec<(f64, usize, Vec<usize>)> = Vec::new();
    for (layer, scores) in scores.iter().enumerate() {
        let ranked = ranked(&scores.kv_heads);
        for heads in ranked.chunks_exact(step).take(of_layer) {
            let sum: f64 = heads.iter().map(|&head| scores.kv_heads[head]).sum();
            steps.push((sum, layer, heads.to_vec()));
        }
    }
    // A stable sort, so that equal scores are decided by the layers' order.
    steps.sort_by(|one, other| one.0.total_cmp(&other.0));
    for (_, layer, heads) in steps.into_iter().take(count) {
        let removed = &mut layers[layer].removed_kv_heads;
        removed.extend(heads.into_iter().map(|head| head as u16));
        removed.sort_unstable();
    }
    Ok(())
}

/// How many KV heads go together, so that rows of `o` stay whole blocks.
fn head_step(shape: &Shape) -> usize {
    let width = shape.attention_heads / shape.kv_heads * shape.head_dim;
    let fits = |step: &usize| (step * width).is_multiple_of(BLOCK);
    let step = (1..=BLOCK).find(fits).unwrap_or(1);
    match shape.kv_heads.is_multiple_of(step) && shape.kv_heads / step >= STEPS_MIN {
        true => step,
        false => 1,
    }
}

/// How many channels of `all` stay: at least one, and whole blocks where there are many.
fn kept_channels(all: usize, share: f64) -> usize {
    let fits = |step: &usize| all.is_multiple_of(*step) && all / step >= STEPS_MIN;
    let step = [BLOCK, SHORT_BLOCK].into_iter().find(fits).unwrap_or(1);
    let kept = (all as f64 * (1.0 - share) / step as f64).round() as usize;
    kept.max(1) * step
}

/// Indices by rising score; of equals the first comes first.
fn ranked(scores: &[f64]) -> Vec<usize> {
    let mut ranked: Vec<usize> = (0..scores.len()).collect();
    ranked.sort_by(|&one, &other| scores[one].total_cmp(&scores[other]));
    ranked
}

#[cfg(test)]
mod tests {
    use sluice_weights::{LayerKind, TensorNaming};

    use super::*;

    fn shape(heads: usize, kv_heads: usize, head_dim: usize, channels: usize) -> Shape {
        Shape {
            naming: TensorNaming::HuggingFace,
            layers: 2,
            hidden_size: 64,
            attention_heads: heads,
            kv_heads,
            head_dim,
            intermediate_size: channels,
            padded_vocab_size: 100,
            context_length: 32,
            causal: true,
            tied: false,
            biases: false,
            qk_norms: false,
            layer_kind: LayerKind::Attention,
        }
    }

    fn shares(heads: f64, channels: f64) -> PruneShares {
        PruneShares { heads, channels }
    }

    #[test]
    fn the_lowest_go_and_each_layer_keeps_one() {
        let shape = shape(4, 4, 16, 5);
        let scores = [
            LayerScores {
                kv_heads: vec![0.5, 0.1, 9.0, 0.2],
                channels: vec![5.0, 1.0, 4.0, 2.0, 3.0],
            },
            LayerScores {
                kv_heads: vec![2.0, 3.0, 1.0, 4.0],
                channels: vec![1.0; 5],
            },
        ];
        let chosen = |heads, channels| choose(&shape, shares(heads, channels), &scores);
        let layers = chosen(0.5, 0.4).unwrap();
        assert_eq!(layers[0].removed_kv_heads, [0, 1, 3]);
        assert_eq!(layers[1].removed_kv_heads, [2]);
        assert_eq!(layers[0].removed_channels, [1, 3]);
        assert_eq!(layers[1].removed_channels, [0, 1]);
        let most = chosen(0.75, 0.999).unwrap();
        assert_eq!(most[0].removed_kv_heads.len(), 3);
        assert_eq!(most[1].removed_kv_heads.len(), 3);
        assert_eq!(most[0].removed_channels.len(), 4);
    }

    #[test]
    fn wrong_shares_are_explained() {
        let shape = shape(4, 2, 16, 5);
        let layer = LayerScores {
            kv_heads: vec![1.0, 2.0],
            channels: vec![1.0; 5],
        };
        let scores = [layer.clone(), layer];
        for (heads, channels, said) in [
            (1.0, 0.0, "the share of heads to remove is 1;"),
            (f64::NAN, 0.0, "the share of heads to remove is NaN;"),
            (0.0, -0.1, "the share of channels to remove is -0.1;"),
            (
                0.0,
                f64::INFINITY,
                "the share of channels to remove is inf;",
            ),
            (
                0.9,
                0.0,
                "removing 4 of 4 KV heads would leave a layer without any: at most 2",
            ),
            (
                0.01,
                0.01,
                "these shares remove nothing: the model has 4 KV heads, and 5 channels",
            ),
        ] {
            let refused = choose(&shape, shares(heads, channels), &scores).unwrap_err();
            assert!(refused.to_string().starts_with(said), "{refused}");
        }
    }

    #[test]
    fn large_models_keep_whole_blocks() {
        // LLaDA-8B: two heads of 128 are a block.
        assert_eq!(head_step(&shape(32, 32, 128, 12288)), 2);
        // Llama 3 8B: four query heads of 128 for each KV head.
        assert_eq!(head_step(&shape(32, 8, 128, 14336)), 1);
        assert_eq!(head_step(&shape(4, 4, 64, 512)), 1);
        for (all, share, kept) in [
            (12288, 0.1, 11008),
            (12288, 0.2, 9728),
            (512, 0.1, 448),
            (512, 0.2, 416),
            (512, 0.999, 32),
            (160, 0.2, 128),
            (5, 0.0, 5),
        ] {
            assert_eq!(kept_channels(all, share), kept, "{all} {share}");
        }
    }
}
