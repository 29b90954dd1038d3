//! The weights that training begins with, as the official trainer has them (`RWKV-v7/train_temp` of BlinkDL/RWKV-LM):
//! decays from slow to fast over the channels, token shifts by depth, small keys, and outputs of zero, so that each layer
//! begins as the identity.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::{
    config::{
        Rwkv7Config,
        rwkv7::{EMBEDDING, HEAD, HEAD_WIDTH},
    },
    random::Random,
};

/// The embedding is normed right away, so its size does not matter; small rows take up their first gradients soon.
const EMBEDDING_SPREAD: f64 = 1e-4;

/// Random weights for a shape.
pub(in crate::model) fn random_weights(
    config: &Rwkv7Config,
    seed: u64,
) -> Result<BTreeMap<String, Vec<f32>>> {
    let mut random = Random::new(seed, u64::MAX);
    let tensors = config.tensors().into_iter().map(|(name, shape)| {
        let values = initial(config, &name, &shape, &mut random);
        (name, values.into_iter().map(|value| value as f32).collect())
    });
    Ok(tensors.collect())
}

fn initial(config: &Rwkv7Config, name: &str, shape: &[usize], random: &mut Random) -> Vec<f64> {
    let count: usize = shape.iter().product();
    let mut uniform = |bound: f64| -> Vec<f64> {
        (0..count)
            .map(|_| (2.0 * random.unit() - 1.0) * bound)
            .collect()
    };
    let Some((layer, part)) = part(name) else {
        return match name {
            EMBEDDING => uniform(EMBEDDING_SPREAD),
            HEAD => {
                let rows = shape[0] as f64 / shape[1] as f64;
                orthogonal(shape, 0.5 * rows.max(1.0).sqrt(), random)
            }
            _ if name.ends_with("weight") => vec![1.0; count],
            _ => vec![0.0; count],
        };
    };
    let width = config.hidden_size as f64;
    let layers = config.num_hidden_layers as f64;
    // From 0 in the first layer to 1 in the last, and from 1 to nearly 0.
    let depth = layer as f64 / (layers - 1.0).max(1.0);
    let height = 1.0 - layer as f64 / layers;
    let channels = |value: &dyn Fn(usize) -> f64| (0..count).map(value).collect::<Vec<_>>();
    let shift = |power: f64| channels(&|channel| 1.0 - (channel as f64 / width).powf(power));
    let along = |channel: usize| channel as f64 / (width - 1.0);
    let line = |channel: usize| along(channel) - 0.5;
    let zigzag = |channel: usize| {
        let middle = (HEAD_WIDTH - 1) as f64 / 2.0;
        let place = ((channel % HEAD_WIDTH) as f64 - middle) / middle;
        place * place.abs()
    };
    match part {
        "attn.x_r" | "attn.x_g" => shift(0.2 * height),
        "attn.x_w" | "attn.x_a" => shift(0.9 * height),
        "attn.x_k" | "attn.x_v" => shift(0.7 * height),
        "ffn.x_k" => shift(height.powi(4)),
        "attn.w_lora.lora.2.bias" => channels(&|channel| {
            let speed = -6.0 + 6.0 * along(channel).powf(1.0 + depth.powf(0.3));
            speed + 0.5 + 2.5 * zigzag(channel)
        }),
        "attn.a_lora.lora.2.bias" => {
            channels(&|channel| -0.19 + 0.3 * zigzag(channel) + 0.4 * line(channel))
        }
        "attn.v_lora.lora.2.bias" => channels(&|channel| 0.73 - 0.4 * line(channel)),
        "attn.k_k" => channels(&|channel| 0.71 - 0.1 * line(channel)),
        "attn.k_a" => vec![1.02; count],
        "attn.r_k" => vec![-0.04; count],
        "attn.g_norm.weight" => vec![((layer + 1) as f64 / layers).powf(0.7); count],
        "attn.r_proj.weight" | "attn.v_proj.weight" | "ffn.key.weight" => {
            uniform(0.5 / width.sqrt())
        }
        "attn.k_proj.weight" => uniform(0.05 / width.sqrt()),
        "attn.o_proj.weight" | "ffn.value.weight" => vec![0.0; count],
        _ if part.ends_with("lora.0.weight") => vec![0.0; count],
        _ if part.ends_with("lora.2.weight") => {
            // The official matrices are stored the other way round, with as many rows as ranks.
            orthogonal(shape, 0.1, random)
        }
        _ if part.ends_with("norm.weight") => vec![1.0; count],
        _ => vec![0.0; count],
    }
}

/// Layer and part of a name inside the layers.
fn part(name: &str) -> Option<(usize, &str)> {
    let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
    Some((layer.parse().ok()?, part))
}

/// A matrix whose rows or columns, whichever are fewer, are orthogonal and of length `scale` (Saxe et al. 2014).
fn orthogonal(shape: &[usize], scale: f64, random: &mut Random) -> Vec<f64> {
    let (rows, columns) = (shape[0], shape[1]);
    let (few, many) = (rows.min(columns), rows.max(columns));
    let mut vectors: Vec<Vec<f64>> = Vec::with_capacity(few);
    for _ in 0..few {
        let mut vector: Vec<f64> = (0..many).map(|_| random.normal()).collect();
        // Gram and Schmidt, twice against rounding.
        for _ in 0..2 {
            for other in &vectors {
                let along: f64 = vector.iter().zip(other).map(|(x, y)| x * y).sum();
                vector
                    .iter_mut()
                    .zip(other)
                    .for_each(|(x, y)| *x -= along * y);
            }
        }
        let length = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
        vector.iter_mut().for_each(|x| *x /= length);
        vectors.push(vector);
    }
    let at = |row: usize, column: usize| {
        if rows <= columns {
            vectors[row][column]
        } else {
            vectors[column][row]
        }
    };
    (0..rows * columns)
        .map(|index| scale * at(index / columns, index % columns))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decays_differ_by_channel_and_outputs_are_zero() {
        let config = Rwkv7Config::new(128, 2, 256, 300);
        let weights = random_weights(&config, 3).expect("weights");
        let expected: Vec<_> = config.tensors();
        for (name, shape) in &expected {
            let count: usize = shape.iter().product();
            assert_eq!(weights[name].len(), count, "{name}");
            assert!(
                weights[name].iter().all(|value| value.is_finite()),
                "{name}"
            );
        }
        let speeds = &weights["model.layers.1.attn.w_lora.lora.2.bias"];
        assert!(speeds[32] < speeds[96] - 1.0, "later channels decay faster");
        assert!(
            weights["model.layers.0.attn.o_proj.weight"]
                .iter()
                .all(|value| *value == 0.0)
        );
        let head = &weights[HEAD];
        let column = |index: usize| head.iter().skip(index).step_by(128);
        let product: f32 = column(0).zip(column(1)).map(|(x, y)| x * y).sum();
        assert!(
            product.abs() < 1e-5,
            "columns of the head are orthogonal: {product}"
        );
    }
}
