//! Exponentials and sums that the compiler turns into vector instructions. The library's `exp` and a plain running sum
//! work on one element at a time, which cost a quarter of a training step.

/// Elements that are worked on side by side; a multiple of every vector width in use.
const LANES: usize = 16;

/// e to the power of `x`, to about one part in ten million (the polynomial of the Cephes library).
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Adding and subtracting this rounds to an integer, which then stands in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    // ln 2 in two parts, the first of which is exact in few bits.
    let rest = x - whole * 0.693_359_4 + whole * 2.121_944_4e-4;
    let mut sum = 1.987_569_1e-4;
    for coefficient in [
        1.398_2e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        sum = sum * rest + coefficient;
    }
    // The shift drops all bits of the sum but the integer's own, so nothing has to be subtracted first.
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    (sum * rest * rest + rest + 1.0) * power
}

/// The logistic function.
#[inline(always)]
pub(super) fn sigmoid(value: f32) -> f32 {
    (1.0 + exp(-value)).recip()
}

/// The sum of `term` over both rows.
#[inline(always)]
pub(super) fn sum_of(left: &[f32], right: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (left_chunks, right_chunks) = (left.chunks_exact(LANES), right.chunks_exact(LANES));
    let rest = left_chunks.remainder().iter().zip(right_chunks.remainder());
    let rest: f32 = rest.map(|(left, right)| term(*left, *right)).sum();
    for (left, right) in left_chunks.zip(right_chunks) {
        for lane in 0..LANES {
            lanes[lane] += term(left[lane], right[lane]);
        }
    }
    rest + lanes.iter().sum::<f32>()
}

/// The sum of a row.
pub(super) fn sum(row: &[f32]) -> f32 {
    sum_of(row, row, |value, _| value)
}

/// The largest element of a row.
pub(super) fn largest(row: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = row.chunks_exact(LANES);
    let rest = chunks
        .remainder()
        .iter()
        .copied()
        .fold(f32::NEG_INFINITY, larger);
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = larger(lanes[lane], chunk[lane]);
        }
    }
    lanes.into_iter().fold(rest, larger)
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn the_exponential_is_as_good_as_the_library() {
        for step in -8_700..8_800 {
            let x = step as f32 * 0.01;
            let expected = f64::from(x).exp();
            let error = (f64::from(exp(x)) - expected).abs() / expected;
            assert!(error < 3e-7, "exp({x}) is off by {error:e}");
        }
        assert!(exp(-1e9) < 1e-37);
        assert_eq!(exp(0.0), 1.0);
    }
}
