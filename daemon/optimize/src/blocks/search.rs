//! Weighted searches of a group's scale, and minimum, after llama.cpp's `make_qx_quants` and `make_qkx3_quants`
//! (ggml-quants.c): candidate scales, levels by rounding, a least-squares fit to the levels, the best of all.

use super::layout::nearest;

/// Partial sums side by side, which the compiler turns into vectors; one running sum it may not.
const LANES: usize = 8;
/// Candidates of a scale on each side of the one that just reaches the largest weight, in tenths of a level.
const CANDIDATES: i32 = 9;
/// Candidates of a scale with a minimum, in twentieths of a level, the first nine tenths below.
const CANDIDATES_WITH_MINIMUM: i32 = 36;

/// Compiles a search for vectors of eight elements, too, which are used where the CPU has them. Results are the same:
/// sums have the same lanes, and Rust fuses no multiplications with additions.
macro_rules! widest {
    ($(#[$doc:meta])* $name:ident = $portable:ident($($argument:ident: $type:ty),*) -> $out:ty) => {
        $(#[$doc])*
        pub(super) fn $name($($argument: $type),*) -> $out {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn wide($($argument: $type),*) -> $out {
                    $portable($($argument),*)
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the CPU has the feature that the function is compiled for.
                    return unsafe { wide($($argument),*) };
                }
            }
            $portable($($argument),*)
        }
    };
}

widest! {
    /// Weighted squared error of a group with a scale and a minimum, its levels rounded.
    error = portable_error(values: &[f32], weights: &[f32], grid: (f32, f32), levels: SignedLevels) -> f32
}

widest! {
    /// The best scale of a group without a minimum; negative if the largest weight is positive, since there is one more
    /// level below zero.
    scale = portable_scale(values: &[f32], weights: &[f32], levels: SignedLevels) -> f32
}

widest! {
    /// The best scale and minimum of a group whose levels are `0..=most`. The minimum is never above zero.
    scale_and_minimum =
        portable_scale_and_minimum(values: &[f32], weights: &[f32], most: f32) -> (f32, f32)
}

/// Levels without a minimum, on both sides of zero.
#[derive(Clone, Copy)]
pub(super) struct SignedLevels {
    pub(super) least: f32,
    pub(super) most: f32,
}

/// The sum over lanes of what `add` adds.
#[inline(always)]
fn sums<const COUNT: usize>(
    values: &[f32],
    weights: &[f32],
    add: impl Fn(f32, f32) -> [f32; COUNT],
) -> [f32; COUNT] {
    let mut sums = [[0.; LANES]; COUNT];
    let chunks = values.as_chunks::<LANES>().0.iter();
    for (values, weights) in chunks.zip(weights.as_chunks::<LANES>().0) {
        let mut parts = [[0.; LANES]; COUNT];
        for lane in 0..LANES {
            let added = add(values[lane], weights[lane]);
            for (part, added) in parts.iter_mut().zip(added) {
                part[lane] = added;
            }
        }
        for (sums, parts) in sums.iter_mut().zip(&parts) {
            for (sum, part) in sums.iter_mut().zip(parts) {
                *sum += part;
            }
        }
    }
    sums.map(|lanes| lanes.iter().sum())
}

#[inline(always)]
fn portable_error(
    values: &[f32],
    weights: &[f32],
    (scale, minimum): (f32, f32),
    levels: SignedLevels,
) -> f32 {
    let inverse = if scale == 0. { 0. } else { 1. / scale };
    let [error] = sums(values, weights, |value, weight| {
        let level = nearest((value - minimum) * inverse, levels.least, levels.most);
        let off = value - minimum - scale * level;
        [weight * off * off]
    });
    error
}

#[inline(always)]
fn portable_scale(values: &[f32], weights: &[f32], levels: SignedLevels) -> f32 {
    let larger = |most: f32, value: &f32| {
        if value.abs() > most.abs() {
            *value
        } else {
            most
        }
    };
    let largest = values.iter().fold(0., larger);
    if largest == 0. {
        return 0.;
    }
    let (mut best, mut best_gain) = (0., -1.);
    for candidate in -CANDIDATES..=CANDIDATES {
        let inverse = (levels.least - 0.1 * candidate as f32) / largest;
        let [products, squares] = sums(values, weights, |value, weight| {
            let level = nearest(value * inverse, levels.least, levels.most);
            [weight * value * level, weight * level * level]
        });
        // The error is what all squares are, less this.
        let gain = products * products / squares;
        if squares > 0. && gain > best_gain {
            (best, best_gain) = (products / squares, gain);
        }
    }
    // Weights of zero, or numbers too small to square: the largest weight decides.
    if best_gain <= 0. {
        largest / levels.least
    } else {
        best
    }
}

#[inline(always)]
fn portable_scale_and_minimum(values: &[f32], weights: &[f32], most: f32) -> (f32, f32) {
    let lowest = values.iter().fold(0_f32, |least, value| least.min(*value));
    let highest = values.iter().fold(f32::MIN, |most, value| most.max(*value));
    let range = highest - lowest;
    if range <= 0. {
        // All weights are the same and not above zero: the minimum says it all.
        return (0., lowest);
    }
    let levels = SignedLevels { least: 0., most };
    let mut best = (range / most, lowest);
    let mut best_error = portable_error(values, weights, best, levels);
    let [all, all_values] = sums(values, weights, |value, weight| [weight, weight * value]);
    let mut minimum = lowest;
    for candidate in 0..=CANDIDATES_WITH_MINIMUM {
        let inverse = (most - 0.9 + 0.05 * candidate as f32) / range;
        let round = |value: f32| nearest((value - minimum) * inverse, 0., most);
        let [levels, squares, products] = sums(values, weights, |value, weight| {
            let level = round(value);
            [
                weight * level,
                weight * level * level,
                weight * value * level,
            ]
        });
        let determinant = all * squares - levels * levels;
        if determinant <= 0. {
            continue;
        }
        let mut fitted = (
            (all * products - all_values * levels) / determinant,
            (squares * all_values - levels * products) / determinant,
        );
        if fitted.1 > 0. {
            fitted = (products / squares, 0.);
        }
        let [error] = sums(values, weights, |value, weight| {
            let off = fitted.0 * round(value) + fitted.1 - value;
            [weight * off * off]
        });
        if error < best_error {
            (best, best_error) = (fitted, error);
            minimum = fitted.1;
        }
    }
    best
}

/// One scale above several, so that each is a level of it: the scale, and the levels of `0..=most`. Values are not
/// negative.
pub(super) fn shared_scale<const GROUPS: usize>(
    values: &[f32; GROUPS],
    weights: &[f32; GROUPS],
    most: f32,
) -> (f32, [f32; GROUPS]) {
    let largest = values.iter().fold(0_f32, |most, value| most.max(*value));
    if largest <= 0. {
        return (0., [0.; GROUPS]);
    }
    let mut best = (
        largest / most,
        values.map(|value| nearest(value * most / largest, 0., most)),
    );
    let mut best_error = f32::INFINITY;
    for candidate in -4..=4 {
        let inverse = (most + 0.1 * candidate as f32) / largest;
        let levels = values.map(|value| nearest(value * inverse, 0., most));
        let both = || values.iter().zip(weights).zip(&levels);
        let products: f32 = both()
            .map(|((value, weight), level)| weight * value * level)
            .sum();
        let squares: f32 = both()
            .map(|((_, weight), level)| weight * level * level)
            .sum();
        if squares <= 0. {
            continue;
        }
        let scale = products / squares;
        let error = both().map(|((value, weight), level)| weight * (value - scale * level).powi(2));
        let error: f32 = error.sum();
        if error < best_error {
            (best, best_error) = ((scale, levels), error);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gaussians;

    #[test]
    fn wide_vectors_find_the_same() {
        let signed = SignedLevels {
            least: -32.,
            most: 31.,
        };
        let (all, importance) = (gaussians(1, 3200), gaussians(2, 3200));
        for (values, weights) in all.chunks_exact(32).zip(importance.chunks_exact(32)) {
            let weights: Vec<f32> = weights.iter().map(|weight| weight * weight).collect();
            let found = scale(values, &weights, signed);
            assert_eq!(found, portable_scale(values, &weights, signed));
            let both = scale_and_minimum(values, &weights, 15.);
            assert_eq!(both, portable_scale_and_minimum(values, &weights, 15.));
            let off = error(values, &weights, (found, 0.), signed);
            assert_eq!(off, portable_error(values, &weights, (found, 0.), signed));
        }
    }

    /// Of all scales on a fine grid, the best are only a little better than those that were found.
    #[test]
    fn a_scale_is_nearly_the_best_of_all() {
        let signed = SignedLevels {
            least: -8.,
            most: 7.,
        };
        let (all, importance) = (gaussians(3, 640), gaussians(4, 640));
        let (mut sum, mut least_sum) = (0., 0.);
        for (values, weights) in all.chunks_exact(32).zip(importance.chunks_exact(32)) {
            let weights: Vec<f32> = weights.iter().map(|weight| weight * weight).collect();
            let largest = values
                .iter()
                .fold(0_f32, |most, value| most.max(value.abs()));
            let at = |scale| error(values, &weights, (scale, 0.), signed);
            let grid = (1..4000).map(|at| at as f32 / 2000. * largest / 4.);
            least_sum += grid
                .map(|scale| at(scale).min(at(-scale)))
                .fold(f32::MAX, f32::min);
            sum += at(scale(values, &weights, signed));
        }
        assert!(
            sum < 1.15 * least_sum,
            "{sum} where {least_sum} is possible"
        );
    }
}
