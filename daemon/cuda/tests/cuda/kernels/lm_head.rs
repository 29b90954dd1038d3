//! The LM head, and the comparison of two, against what the engine makes of logits.

use sluice_cuda::{
    CompareState, LM_HEAD_TOKENS, LmHeadMeans, LmHeadRow, LmHeadSampling, LmHeadState, NO_TOKEN,
};

use super::{
    formats::Random,
    support::{Buffer, on_gpu},
};

/// The engine's noise.
mod noise {
    fn mix(mut z: u64) -> u64 {
        z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn gumbel(key: u64, pass: u64, position: u64, token: u64) -> f64 {
        let place = key ^ mix((pass << 32) | position);
        let bits = mix(place.wrapping_add(token.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        let uniform = ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        -(-uniform.ln()).ln()
    }
}

/// What the engine makes of a piece of a row's logits, and of what was summed before.
fn reduce(
    (state, mean): (&mut LmHeadState, &mut f32),
    logits: &mut [f32],
    first: usize,
    row: &LmHeadRow,
    choice: &LmHeadSampling,
) {
    let len = logits.len();
    if choice.cap != 0.0 {
        for logit in &mut *logits {
            *logit = (*logit / choice.cap).tanh() * choice.cap * choice.factor;
        }
    }
    let inside = |id: u32| (id as usize).checked_sub(first).filter(|&i| i < len);
    for &id in &choice.suppressed[..choice.suppressed_count as usize] {
        if let Some(i) = inside(id) {
            logits[i] = f32::NEG_INFINITY;
        }
    }
    if let Some(i) = inside(row.target) {
        state.target_logit = logits[i];
    }
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max > state.max {
        let shrink = (state.max - max).exp();
        state.sum *= f64::from(shrink);
        state.weighted *= f64::from(shrink);
        *mean *= shrink;
        state.max = max;
    }
    if state.max > f32::NEG_INFINITY {
        let terms = logits.iter().map(|x| f64::from((x - state.max).exp()));
        state.sum += terms.sum::<f64>();
        if choice.wants_entropy != 0 {
            let possible = logits.iter().filter(|logit| **logit > f32::NEG_INFINITY);
            let terms = possible.map(|x| f64::from((x - state.max).exp()) * f64::from(*x));
            state.weighted += terms.sum::<f64>();
        }
    }
    let ends = &choice.ends[..choice.end_count as usize];
    for &id in [choice.mask]
        .iter()
        .chain(ends.iter().filter(|_| row.may_end == 0))
    {
        if let Some(i) = inside(id) {
            logits[i] = f32::NEG_INFINITY;
        }
    }
    for (i, &logit) in logits.iter().enumerate() {
        let token = first + i;
        if token >= choice.vocab_size as usize {
            break;
        }
        if choice.wants_top != 0 && logit > state.top_logit {
            (state.top, state.top_logit) = (token as u32, logit);
        }
        let mut score = f64::from(logit);
        if choice.temperature > 0.0 && logit > f32::NEG_INFINITY {
            score += choice.temperature
                * noise::gumbel(
                    choice.noise_key,
                    choice.pass,
                    row.position.into(),
                    token as u64,
                );
        }
        if score > state.best_score {
            state.best_score = score;
            state.best = token as u32;
            state.best_logit = logit;
        }
    }
    logits.iter_mut().for_each(|x| *x = (*x - state.max).exp());
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn the_head_is_reduced_as_the_engine_reduces_it() {
    on_gpu(|gpu| {
        const COLUMNS: usize = 3001;
        const ROWS: usize = 5;
        let mut random = Random::new(11);
        let tokens = |ids: &[u32]| {
            let mut all = [NO_TOKEN; LM_HEAD_TOKENS];
            all[..ids.len()].copy_from_slice(ids);
            all
        };
        /// Numbers of a row of means.
        const WIDTH: usize = 300;
        for (temperature, guidance, vocabulary, infinite, denoises) in [
            (0.0, None, 3001, false, false),
            (0.7, None, 2990, false, false),
            (0.0, Some(1.5), 1200, false, false),
            (1.3, Some(0.4), 3001, true, false),
            (1.0, None, 2990, false, true),
        ] {
            let choice = LmHeadSampling {
                temperature,
                noise_key: 0x1234_5678_9abc_def0,
                pass: 17,
                guidance: guidance.unwrap_or(0.0),
                has_guidance: guidance.is_some().into(),
                vocab_size: vocabulary,
                mask: 5,
                end_count: 2,
                suppressed_count: 3,
                ends: tokens(&[7, 1500]),
                suppressed: tokens(&[0, 999, 1000]),
                cap: if denoises { 30.0 } else { 0.0 },
                factor: if denoises { 1.25 } else { 1.0 },
                wants_entropy: denoises.into(),
                wants_top: denoises.into(),
            };
            let rows: Vec<LmHeadRow> = (0..ROWS as u32)
                .map(|row| LmHeadRow {
                    position: 31 * row,
                    may_end: row % 2,
                    target: [NO_TOKEN, 999, 2999, 7, 3000][row as usize],
                })
                .collect();
            let branches = if guidance.is_some() { 2 } else { 1 };
            // Few values, so that there are ties; the forbidden ones are among the largest.
            let mut logits: Vec<Vec<f32>> = (0..branches * ROWS)
                .map(|_| {
                    (0..COLUMNS)
                        .map(|_| random.below(40) as f32 * 0.25 - 5.0)
                        .collect()
                })
                .collect();
            for row in &mut logits {
                for id in [0, 5, 7, 999, 1500, 3000] {
                    row[id] = 6.0;
                }
                // The largest come last, so that what was summed before has to shrink.
                row[2920] = 6.5;
                row[2950] = 6.5;
            }
            if infinite {
                logits[1].fill(f32::NEG_INFINITY);
                logits[ROWS + 1].fill(1.0);
                logits[2][77] = f32::NAN;
            }
            let states = Buffer::of(gpu, &[LmHeadState::START; ROWS]);
            let rows_there = Buffer::of(gpu, &rows);
            let mut expected = [LmHeadState::START; ROWS];
            let sums = Buffer::of(gpu, &[1.0f32; ROWS * WIDTH]);
            let means = denoises.then(|| LmHeadMeans {
                rows: sums.span(),
                width: WIDTH,
            });
            let mut expected_means = [1.0f32; ROWS];
            for (from, to) in [(0, 1), (1, 1000), (1000, 2900), (2900, COLUMNS)] {
                let piece: Vec<f32> = logits
                    .iter()
                    .flat_map(|row| &row[from..to])
                    .copied()
                    .collect();
                let piece = Buffer::of(gpu, &piece);
                // Before, nothing was summed: nothing was possible.
                let has_means = denoises && from >= 1000;
                gpu.lm_head_reduce(
                    states.span(),
                    piece.span(),
                    rows_there.span(),
                    ROWS,
                    to - from,
                    from,
                    &choice,
                    means.filter(|_| has_means),
                )
                .unwrap();
                let weights = piece.read::<f32>(gpu);
                let states = expected.iter_mut().zip(&mut expected_means);
                for (index, state) in states.enumerate() {
                    let mut row = logits[index][from..to].to_vec();
                    if guidance.is_some() {
                        for (c, u) in row.iter_mut().zip(&logits[ROWS + index][from..to]) {
                            *c = u + (choice.guidance + 1.0) * (*c - u);
                        }
                    }
                    reduce(state, &mut row, from, &rows[index], &choice);
                    let weights = &weights[index * (to - from)..][..to - from];
                    let mut pairs = weights.iter().zip(&row);
                    assert!(!has_means || pairs.all(|(a, b)| (a - b).abs() <= 1e-4 * b));
                }
                if !has_means {
                    expected_means.fill(1.0);
                }
            }
            if let Some(means) = means {
                gpu.lm_head_means(means, states.span(), ROWS).unwrap();
                let found = sums.read::<f32>(gpu);
                let all = expected.iter().zip(&expected_means);
                for (row, (state, sum)) in found.chunks_exact(WIDTH).zip(all) {
                    let mean = sum / state.sum as f32;
                    assert!(row.iter().all(|x| (x - mean).abs() <= 1e-4 * mean));
                }
            }
            for (found, expected) in states.read::<LmHeadState>(gpu).iter().zip(&expected) {
                let same = |a: f64, b: f64, relative: f64| {
                    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= relative * b.abs()
                };
                // The hyperbolic tangent is not rounded alike.
                let close =
                    |a: f32, b: f32| same(a.into(), b.into(), if denoises { 1e-5 } else { 0.0 });
                assert!(
                    close(found.max, expected.max)
                        && found.best == expected.best
                        && close(found.best_logit, expected.best_logit)
                        && found.top == expected.top
                        && close(found.top_logit, expected.top_logit)
                        && same(found.weighted, expected.weighted, 1e-4)
                        && close(found.target_logit, expected.target_logit)
                        && same(found.sum, expected.sum, if denoises { 1e-4 } else { 1e-6 })
                        && same(
                            found.best_score,
                            expected.best_score,
                            if denoises { 1e-5 } else { 1e-12 }
                        ),
                    "{found:?} for {expected:?}"
                );
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn heads_are_compared_as_the_engine_compares_them() {
    on_gpu(|gpu| {
        const COLUMNS: usize = 1009;
        const ROWS: usize = 3;
        let mut random = Random::new(12);
        // Ties among the largest, which come last, so that what was summed before has to shrink.
        let logits: [Vec<f32>; 2] = [0, 1].map(|_| {
            (0..ROWS * COLUMNS)
                .map(|i| match i % COLUMNS {
                    700 | 900 => 5.0,
                    _ => random.below(64) as f32 * 0.125 - 4.0,
                })
                .collect()
        });
        let targets = [0u32, 1008, NO_TOKEN];
        let states = Buffer::of(gpu, &[CompareState::START; ROWS]);
        let targets_there = Buffer::of(gpu, &targets);
        for (from, to) in [(0, 500), (500, 501), (501, COLUMNS)] {
            let [one, other] = [0, 1].map(|side| {
                let rows = logits[side].chunks_exact(COLUMNS);
                let piece: Vec<f32> = rows.flat_map(|row| &row[from..to]).copied().collect();
                Buffer::of(gpu, &piece)
            });
            gpu.reduce_comparison(
                states.span(),
                one.span(),
                other.span(),
                targets_there.span(),
                ROWS,
                to - from,
                from,
            )
            .unwrap();
        }
        for (row, found) in states.read::<CompareState>(gpu).into_iter().enumerate() {
            let [one, other] = [0, 1].map(|side: usize| &logits[side][row * COLUMNS..][..COLUMNS]);
            for (side, logits) in [one, other].into_iter().enumerate() {
                let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let top = logits.iter().position(|&logit| logit == max).unwrap();
                let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
                assert_eq!((found.max[side], found.top[side]), (max, top as u32));
                assert!((found.sum[side] - sum).abs() <= 1e-12 * sum);
                let target = logits.get(targets[row] as usize);
                assert_eq!(
                    found.target[side],
                    target.copied().unwrap_or(f32::NEG_INFINITY)
                );
            }
            let terms = one
                .iter()
                .zip(other)
                .map(|(a, b)| f64::from(a - found.max[0]).exp() * (f64::from(*a) - f64::from(*b)));
            let difference: f64 = terms.sum();
            assert!((found.difference - difference).abs() <= 1e-10);
        }
    });
}
