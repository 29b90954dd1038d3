//! Chooses the scales of a block: those of its groups by weighted searches, then the scale above them, then each
//! group's again among the stored ones that are near.

use sluice_formats::Format;

use super::{
    layout::{K_WEIGHTS, half, put_q4_k_scales, put_q6_k_scales, put_scale},
    search::{self, SignedLevels},
};

/// Writes the scales of a block, and nothing else of it. `weights` say how much the error of each value counts.
pub(super) fn put(format: Format, values: &[f32], weights: &[f32], block: &mut [u8]) {
    match format {
        Format::Q8_0 => single(values, weights, (-127., 127.), block),
        Format::Q4_0 => single(values, weights, (-8., 7.), block),
        Format::Q6K => q6_k(values, weights, block),
        Format::Q4K => q4_k(values, weights, block),
        _ => unreachable!("the format was checked"),
    }
}

fn single(values: &[f32], weights: &[f32], (least, most): (f32, f32), block: &mut [u8]) {
    let levels = SignedLevels { least, most };
    put_scale(half(search::scale(values, weights, levels)), block);
}

fn q6_k(values: &[f32], weights: &[f32], block: &mut [u8]) {
    const LEN: usize = K_WEIGHTS / 16;
    let levels = SignedLevels {
        least: -32.,
        most: 31.,
    };
    let group = |group: usize| {
        let range = group * LEN..(group + 1) * LEN;
        (&values[range.clone()], &weights[range])
    };
    let scales: [f32; 16] = std::array::from_fn(|at| {
        let (values, weights) = group(at);
        search::scale(values, weights, levels)
    });
    let larger = |most: f32, scale: &f32| {
        if scale.abs() > most.abs() {
            *scale
        } else {
            most
        }
    };
    let largest = scales.iter().fold(0., larger);
    // -128, not 127: the scale of the largest magnitude gets the side that reaches further.
    let above = half(largest / -128.);
    let unit = above.to_f32();
    let stored: [i8; 16] = std::array::from_fn(|at| {
        if unit == 0. {
            return 0;
        }
        let (values, weights) = group(at);
        let level = (scales[at] / unit).round();
        best([level, level - 1., level + 1.], |level| {
            let is_stored = (-128. ..=127.).contains(&level);
            is_stored.then(|| search::error(values, weights, (unit * level, 0.), levels))
        }) as i8
    });
    put_q6_k_scales(above, &stored, block);
}

fn q4_k(values: &[f32], weights: &[f32], block: &mut [u8]) {
    const LEN: usize = K_WEIGHTS / 8;
    const MOST: f32 = 63.;
    let levels = SignedLevels {
        least: 0.,
        most: 15.,
    };
    let group = |group: usize| {
        let range = group * LEN..(group + 1) * LEN;
        (&values[range.clone()], &weights[range])
    };
    let found: [(f32, f32); 8] = std::array::from_fn(|at| {
        let (values, weights) = group(at);
        search::scale_and_minimum(values, weights, levels.most)
    });
    let sums: [f32; 8] = std::array::from_fn(|at| group(at).1.iter().sum());
    let (above, scales) = search::shared_scale(&found.map(|(scale, _)| scale), &sums, MOST);
    let (below, minima) = search::shared_scale(&found.map(|(_, minimum)| -minimum), &sums, MOST);
    let both = [half(above), half(below)];
    let [above, below] = both.map(|one| one.to_f32());
    let stored: [[u8; 2]; 8] = std::array::from_fn(|at| {
        let (values, weights) = group(at);
        let near = [0., -1., 1.].map(|scale| [0., -1., 1.].map(|minimum| (scale, minimum)));
        let near = near.as_flattened().iter();
        let near = near.map(|(scale, minimum)| (scales[at] + scale, minima[at] + minimum));
        let (scale, minimum) = best(near, |(scale, minimum)| {
            let is_stored = [scale, minimum]
                .iter()
                .all(|level| (0. ..=MOST).contains(level));
            let pair = (above * scale, -below * minimum);
            is_stored.then(|| search::error(values, weights, pair, levels))
        });
        [scale as u8, minimum as u8]
    });
    put_q4_k_scales(
        both,
        &stored.map(|one| one[0]),
        &stored.map(|one| one[1]),
        block,
    );
}

/// The candidate of the least error, the first of equals; those without an error are left out, but for the first.
fn best<T: Copy>(candidates: impl IntoIterator<Item = T>, error: impl Fn(T) -> Option<f32>) -> T {
    let mut candidates = candidates.into_iter();
    let mut best = candidates.next().expect("there is a candidate");
    let mut least = error(best).unwrap_or(f32::INFINITY);
    for candidate in candidates {
        if let Some(error) = error(candidate)
            && error < least
        {
            (best, least) = (candidate, error);
        }
    }
    best
}
