//! The exponential of many elements at once. The standard library's takes them one by one, which made a third of the
//! time of attention with short heads.

use sluice_machine::Instructions;

use super::vectors::{LANES, with_vectors};

/// The inputs for which the result is a normal number: ln(2^-126), and the largest whose rounded exponent is still 127.
const LEAST: f32 = -87.336_54;
const MOST: f32 = 88.376_26;
/// 1.5 · 2^23: adding it rounds to an integer, which then stands in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts (Cody and Waite). The first has few digits, so that its multiples are exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// `e^x` within two units in the last place; zero where that is less than the least normal number; NaN for NaN. Cephes'
/// polynomial.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Comparisons that are false for NaN let it through.
    let is_least = x < LEAST;
    let x = if x > MOST { MOST } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let r = x - whole * LN_2[0] - whole * LN_2[1];
    // e^r = 1 + r + r² · p(r) for |r| ≤ ln 2 / 2, by Horner's rule: only multiplications and additions, so it
    // vectorizes.
    let mut p = 1.987_569_2e-4;
    for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5] {
        p = p * r + coefficient;
    }
    // 2^n is made from its bits: n plus the bias of 127, in the exponent field. Where n is not within −126 to 127, the
    // result is not taken.
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits());
    let scale = f32::from_bits(exponent.wrapping_add(127) << 23);
    let exp = (p * r * r + r + 1.0) * scale;
    if is_least { 0.0 } else { exp }
}

#[inline(always)]
fn exp_sum_body(values: &mut [f32], max: f32, first: usize) -> f32 {
    // Sixteen running sums, in a fixed order: the result is the same whatever vector width the loop is compiled for.
    let mut sums = [0.0; LANES];
    let head = values.len().min((LANES - first) % LANES);
    let (head, values) = values.split_at_mut(head);
    for (value, sum) in head.iter_mut().zip(&mut sums[first..]) {
        *value = exp(*value - max);
        *sum += *value;
    }
    let mut chunks = values.chunks_exact_mut(LANES);
    for chunk in &mut chunks {
        for (value, sum) in chunk.iter_mut().zip(&mut sums) {
            *value = exp(*value - max);
            *sum += *value;
        }
    }
    for (value, sum) in chunks.into_remainder().iter_mut().zip(&mut sums) {
        *value = exp(*value - max);
        *sum += *value;
    }
    sums.iter().sum()
}

#[inline(always)]
fn exp_total_body(values: &[f32], max: f32) -> f64 {
    let mut sums = [0.0; LANES];
    let mut chunks = values.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (value, sum) in chunk.iter().zip(&mut sums) {
            // Terms are `f32`, their sum is `f64`: beside a sum near 1, `f32` would drop terms below 6e-8.
            *sum += f64::from(exp(*value - max));
        }
    }
    for (value, sum) in chunks.remainder().iter().zip(&mut sums) {
        *sum += f64::from(exp(*value - max));
    }
    sums.iter().sum()
}

#[inline(always)]
fn max_body(values: &[f32]) -> f32 {
    let mut most = [f32::NEG_INFINITY; LANES];
    let mut chunks = values.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (most, &value) in most.iter_mut().zip(chunk) {
            // A comparison instead of `f32::max`: it compiles to one instruction, and NaN, which compares false, is
            // passed over.
            *most = if value > *most { value } else { *most };
        }
    }
    let rest = chunks.remainder().iter().chain(&most);
    // `f32::max` passes NaN over, too, so the rest is treated as the chunks are.
    rest.copied().fold(f32::NEG_INFINITY, f32::max)
}

#[inline(always)]
fn exp_lanes_body(
    values: &mut [f32],
    first: usize,
    largest: &mut [f32],
    sums: &mut [f32],
    shrunk: &mut [f32],
) {
    let columns = largest.len();
    let groups = (largest.as_chunks_mut::<LANES>().0.iter_mut())
        .zip(sums.as_chunks_mut::<LANES>().0)
        .zip(shrunk.as_chunks_mut::<LANES>().0);
    for (group, ((largest, sums), shrunk)) in groups.enumerate() {
        let place = group * LANES..(group + 1) * LANES;
        let mut most = *largest;
        // Two passes over the rows: the maximum must be known before the first exponential.
        for row in values.chunks_exact(columns) {
            let (row, _) = row[place.clone()].as_chunks::<LANES>();
            for (most, &value) in most.iter_mut().zip(&row[0]) {
                *most = if value > *most { value } else { *most };
            }
        }
        for lane in 0..LANES {
            // By how much sums so far were too large for the new maximum; 1 where it did not change.
            shrunk[lane] = exp(largest[lane] - most[lane]);
        }
        // A lane's sixteen running sums, as `exp_sum` has them of one row.
        let mut totals = [[0.0; LANES]; LANES];
        for (index, row) in values.chunks_exact_mut(columns).enumerate() {
            let (row, _) = row[place.clone()].as_chunks_mut::<LANES>();
            let total = &mut totals[(first + index) % LANES];
            for lane in 0..LANES {
                row[0][lane] = exp(row[0][lane] - most[lane]);
                total[lane] += row[0][lane];
            }
        }
        let mut total = [0.0; LANES];
        for part in &totals {
            for lane in 0..LANES {
                total[lane] += part[lane];
            }
        }
        for lane in 0..LANES {
            // The tile's terms were summed apart, so the earlier sum is scaled once and not for each term.
            sums[lane] = sums[lane] * shrunk[lane] + total[lane];
        }
        *largest = most;
    }
}

#[inline(always)]
fn silu_body(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = *gate / (1.0 + exp(-*gate)) * up;
    }
}

#[inline(always)]
fn gelu_body(gate: &mut [f32], up: &[f32]) {
    // (1 + tanh(u)) / 2 is the sigmoid of 2u.
    const TWICE_ROOT: f32 = 2.0 * 0.797_884_6;
    for (gate, up) in gate.iter_mut().zip(up) {
        let x = *gate;
        let twice = TWICE_ROOT * (x + 0.044_715 * x * x * x);
        *gate = x / (1.0 + exp(-twice)) * up;
    }
}

#[inline(always)]
fn erf_gelu_body(values: &mut [f32]) {
    /// Beyond this the error function is ±1 in `f32`.
    const FAR: f32 = 4.0;
    // A ratio of polynomials, as Eigen has it (`MathFunctionsImpl.h`): within 2e-7.
    const ODD: [f32; 7] = [
        -2.726_142_3e-10,
        2.770_681_5e-8,
        -2.101_024e-6,
        -5.692_506_6e-5,
        -7.349_906_4e-4,
        -2.954_6e-3,
        -1.609_603_3e-2,
    ];
    const EVEN: [f32; 5] = [
        -1.456_607_2e-5,
        -2.133_740_6e-4,
        -1.682_827e-3,
        -7.373_329e-3,
        -1.426_473_9e-2,
    ];
    for value in values {
        let x = *value;
        let z = (x * std::f32::consts::FRAC_1_SQRT_2).clamp(-FAR, FAR);
        let square = z * z;
        let [mut odd, mut even] = [ODD[0], EVEN[0]];
        for factor in &ODD[1..] {
            odd = odd * square + factor;
        }
        for factor in &EVEN[1..] {
            even = even * square + factor;
        }
        *value = 0.5 * x * (1.0 + z * odd / even);
    }
}

#[inline(always)]
fn cap_body(values: &mut [f32], cap: f32, factor: f32) {
    for value in values {
        // Exact to 1e-7 of the cap.
        let tanh = 1.0 - 2.0 / (exp(2.0 * *value / cap) + 1.0);
        *value = tanh * cap * factor;
    }
}

#[inline(always)]
fn silu_backward_body(gate: &mut [f32], up: &mut [f32], d_out: &[f32]) {
    for ((gate, up), d_out) in gate.iter_mut().zip(up).zip(d_out) {
        let sigmoid = 1.0 / (1.0 + exp(-*gate));
        let slope = sigmoid * (1.0 + *gate * (1.0 - sigmoid));
        (*gate, *up) = (d_out * *up * slope, d_out * *gate * sigmoid);
    }
}

#[inline(always)]
fn sigmoid_body(values: &mut [f32]) {
    for value in values {
        *value = 1.0 / (1.0 + exp(-*value));
    }
}

#[inline(always)]
fn tanh_body(values: &mut [f32]) {
    for value in values {
        // Near 0 it is exact to 1e-7 of 1, and not of itself: enough for what goes into a matmul.
        *value = 1.0 - 2.0 / (exp(2.0 * *value) + 1.0);
    }
}

/// Puts `e^(value - max)` in the place of each value, and returns their sum.
pub(super) fn exp_sum(instructions: Instructions, values: &mut [f32], max: f32) -> f32 {
    exp_sum_from(instructions, values, max, 0)
}

with_vectors! {
    /// `1 / (1 + e^-value)` in the place of each value.
    sigmoid, sigmoid_body, (values: &mut [f32])
}

with_vectors! {
    /// The hyperbolic tangent in the place of each value, within 1e-6.
    tanh, tanh_body, (values: &mut [f32])
}

with_vectors! {
    /// Puts `e^(value - max)` in the place of each value, and returns their sum: that of sixteen sums, which take turns from
    /// the one with number `first` on.
    exp_sum_from, exp_sum_body, (values: &mut [f32], max: f32, first: usize) -> f32
}

with_vectors! {
    /// A step of a running softmax in each lane of rows as wide as `largest`: takes these rows into the running
    /// maximum, and replaces each value by `e^(value - largest)`. `shrunk` gets the factor by which earlier sums
    /// shrink, and `sums` are scaled by it before the new terms are added, whose sum is that of [`exp_sum_from`]. Lanes are
    /// whole vectors of 16.
    exp_lanes, exp_lanes_body, (
        values: &mut [f32],
        first: usize,
        largest: &mut [f32],
        sums: &mut [f32],
        shrunk: &mut [f32]
    )
}

with_vectors! {
    /// The sum of `e^(value - max)` in `f64`, where each term counts however small it is beside the others.
    exp_total, exp_total_body, (values: &[f32], max: f32) -> f64
}

with_vectors! {
    /// The largest value; −∞ for none. NaN is passed over.
    max, max_body, (values: &[f32]) -> f32
}

with_vectors! {
    /// `silu(gate) · up`, written to `gate`.
    silu_multiply, silu_body, (gate: &mut [f32], up: &[f32])
}

with_vectors! {
    /// `gelu(gate) · up`, written to `gate`; GELU by the hyperbolic tangent, as Gemma has it.
    gelu_multiply, gelu_body, (gate: &mut [f32], up: &[f32])
}

with_vectors! {
    /// GELU by the error function in the place of each value, as BERT has it.
    gelu, erf_gelu_body, (values: &mut [f32])
}

with_vectors! {
    /// `cap · tanh(value / cap) · factor` in the place of each value.
    cap, cap_body, (values: &mut [f32], cap: f32, factor: f32)
}

with_vectors! {
    /// The gradients of gate and up of `silu(gate) · up` in their places.
    silu_backward, silu_backward_body, (gate: &mut [f32], up: &mut [f32], d_out: &[f32])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_every_width_give_the_same_bits() {
        let values: Vec<f32> = (0..1000).map(|x| (x * 37 % 101) as f32 / 10.0).collect();
        let of = |instructions| {
            let mut gates = values.clone();
            silu_multiply(instructions, &mut gates, &values);
            let total = exp_total(instructions, &values, 5.0);
            (exp_sum(instructions, &mut gates, 1.0), gates, total)
        };
        let expected = of(Instructions::PORTABLE);
        for &instructions in Instructions::all() {
            assert_eq!(of(instructions), expected, "{}", instructions.name());
        }
    }

    #[test]
    fn as_the_standard_library_has_it() {
        let mut values: Vec<f32> = (-87_300..88_300).map(|x| x as f32 / 1000.0).collect();
        let expected: Vec<f32> = values.iter().map(|x| x.exp()).collect();
        exp_sum(Instructions::best(), &mut values, 0.0);
        for (found, expected) in values.iter().zip(&expected) {
            assert!(
                (found / expected - 1.0).abs() < 2.5e-7,
                "{found} for {expected}"
            );
        }
        let mut values: Vec<f32> = (0..1000).map(|x| x as f32 / 100.0).collect();
        let exact: f64 = values.iter().map(|&x| f64::from(x - 5.0).exp()).sum();
        let total = exp_total(Instructions::best(), &values, 5.0);
        assert!((total / exact - 1.0).abs() < 1e-7);
        let sum = exp_sum(Instructions::best(), &mut values, 5.0);
        assert!((f64::from(sum) / exact - 1.0).abs() < 1e-5);
    }

    #[test]
    fn gelu_and_bounds_are_as_their_definitions() {
        let values: Vec<f32> = (-500..500).map(|x| x as f32 / 50.0).collect();
        let (mut gates, mut bounded) = (values.clone(), values.clone());
        gelu_multiply(Instructions::best(), &mut gates, &vec![3.0; values.len()]);
        cap(Instructions::best(), &mut bounded, 4.0, 2.0);
        for ((x, gelu), bounded) in values.iter().zip(&gates).zip(&bounded) {
            let x = f64::from(*x);
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            assert!((f64::from(*gelu) - 1.5 * x * (1.0 + u.tanh())).abs() < 1e-5);
            assert!((f64::from(*bounded) - 8.0 * (x / 4.0).tanh()).abs() < 1e-5);
        }
    }

    /// The error function as a series, in `f64`.
    fn erf(x: f64) -> f64 {
        let mut term = x;
        let mut sum = x;
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    }

    #[test]
    fn gelu_by_the_error_function_is_as_its_definition() {
        let values: Vec<f32> = (-5000..5000).map(|x| x as f32 / 1000.0).collect();
        let mut found = values.clone();
        gelu(Instructions::best(), &mut found);
        for (x, found) in values.iter().zip(&found) {
            let x = f64::from(*x);
            let exact = 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2));
            assert!(
                (f64::from(*found) - exact).abs() < 3e-7 * x.abs().max(1.0),
                "{x}: {found}"
            );
        }
        let mut far = [-50.0, 50.0, f32::NAN];
        gelu(Instructions::best(), &mut far);
        assert!(far[0].abs() < 1e-5 && (far[1] - 50.0).abs() < 1e-5 && far[2].is_nan());
    }

    #[test]
    fn far_below_is_nothing_and_nan_stays() {
        let mut values = [-1e30, f32::NEG_INFINITY, 3.0];
        assert_eq!(exp_sum(Instructions::best(), &mut values, 3.0), 1.0);
        assert!(values[0] == 0.0 && values[1] == 0.0);
        let mut values = [0.0, f32::NAN];
        assert!(exp_sum(Instructions::best(), &mut values, 0.0).is_nan());
        assert!(values[1].is_nan() && values[0] == 1.0);
        assert!(exp_total(Instructions::best(), &values, 0.0).is_nan());
    }

    #[test]
    fn one_and_the_least_beside_it() {
        let mut values = vec![-20.0; 100];
        values[3] = 7.0;
        let rest = exp_total(Instructions::best(), &values, 7.0) - 1.0;
        assert!((rest / (99.0 * f64::exp(-27.0)) - 1.0).abs() < 1e-3);
    }

    #[test]
    fn lanes_run_on_from_tile_to_tile() {
        const COLUMNS: usize = 2 * LANES;
        let score = |row: usize, lane: usize| (row * 37 % 11) as f32 - (lane * row % 7) as f32;
        let (mut largest, mut sums) = ([f32::MIN; COLUMNS], [0.0; COLUMNS]);
        let mut shrunk = [0.0; COLUMNS];
        let mut last = Vec::new();
        for rows in [0..5, 5..6, 6..40] {
            let first = rows.start;
            last = rows
                .flat_map(|row| (0..COLUMNS).map(move |lane| score(row, lane)))
                .collect();
            // A lane sees nothing at first.
            if last.len() == 5 * COLUMNS {
                last.iter_mut()
                    .step_by(COLUMNS)
                    .for_each(|score| *score = f32::NEG_INFINITY);
            }
            exp_lanes(
                Instructions::best(),
                &mut last,
                first % LANES,
                &mut largest,
                &mut sums,
                &mut shrunk,
            );
        }
        for lane in 0..COLUMNS {
            let from = if lane == 0 { 5 } else { 0 };
            let scores: Vec<f32> = (from..40).map(|row| score(row, lane)).collect();
            assert_eq!(largest[lane], max(Instructions::best(), &scores));
            let sum: f32 = scores
                .iter()
                .map(|score| (score - largest[lane]).exp())
                .sum();
            assert!((sums[lane] / sum - 1.0).abs() < 1e-5);
            let found = last[33 * COLUMNS + lane];
            assert!((found - (score(39, lane) - largest[lane]).exp()).abs() < 1e-6);
        }
    }

    #[test]
    fn functions_of_channels() {
        let values: Vec<f32> = (-2000..2000).map(|x| x as f32 / 100.0).collect();
        let (mut tanhs, mut sigmoids) = (values.clone(), values.clone());
        tanh(Instructions::best(), &mut tanhs);
        sigmoid(Instructions::best(), &mut sigmoids);
        for (index, x) in values.iter().enumerate() {
            assert!((tanhs[index] - x.tanh()).abs() < 1e-6, "{x}");
            assert!(
                (sigmoids[index] * (1.0 + (-x).exp()) - 1.0).abs() < 1e-6,
                "{x}"
            );
        }
    }

    #[test]
    fn largest_and_gates() {
        for len in [0, 1, 15, 16, 17, 40] {
            let values: Vec<f32> = (0..len).map(|i| (i * 7 % 31) as f32 - 40.0).collect();
            let expected = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(max(Instructions::best(), &values), expected);
            let mut gates = values.clone();
            let up = vec![2.0; len];
            silu_multiply(Instructions::best(), &mut gates, &up);
            for (found, x) in gates.iter().zip(&values) {
                let expected = x / (1.0 + (-x).exp()) * 2.0;
                assert!((found - expected).abs() <= 1e-6 * expected.abs() + 1e-30);
            }
        }
    }
}
