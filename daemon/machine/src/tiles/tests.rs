//! The kernel by a model of the instructions, against plain sums, and their encodings.

use super::*;

/// Inputs of rows from `seed` on, of no more than so many pairs of the depth: bf16 with all their bits.
fn words(rows: usize, pairs: usize, seed: u32) -> Vec<Vec<[f32; 2]>> {
    let number = |at: usize| {
        let bits = (at as u32 + 1).wrapping_mul(2_654_435_761) ^ seed.wrapping_mul(40_503);
        // Between 1 and 4, with either sign.
        f32::from_bits((bits & 0x80ff_0000) | 0x3f80_0000)
    };
    let row = |row: usize| {
        let pair = |k: usize| [0, 1].map(|half| number((row * pairs + k) * 2 + half));
        (0..pairs).map(pair).collect()
    };
    (0..rows).map(row).collect()
}

fn line(pairs: impl Iterator<Item = [f32; 2]>) -> Line {
    let mut line = [0; size_of::<Line>()];
    for (word, pair) in line.as_chunks_mut::<4>().0.iter_mut().zip(pairs) {
        let [[_, _, a, b], [_, _, c, d]] = pair.map(f32::to_le_bytes);
        *word = [a, b, c, d];
    }
    line
}

/// A panel of rows, padded with zeros.
fn panel(rows: &[Vec<[f32; 2]>]) -> Vec<Lines> {
    // Of rows that there aren't, what is no number.
    let mut panel = vec![[[0xff; size_of::<Line>()]; ROWS]; rows[0].len().div_ceil(WORDS)];
    for (at, row) in rows.iter().enumerate() {
        for (lines, pairs) in panel.iter_mut().zip(row.chunks(WORDS)) {
            lines[at] = line(pairs.iter().copied());
        }
    }
    panel
}

/// Lines of 16 rows of weights, one for each pair.
fn lines(weights: &[Vec<[f32; 2]>]) -> Vec<Line> {
    let pairs = 0..weights[0].len();
    pairs
        .map(|pair| line(weights.iter().map(|row| row[pair])))
        .collect()
}

/// The sums of each row with 32 rows of weights.
fn products<const PANELS: usize>(
    x: &[Vec<[f32; 2]>],
    weights: &[Vec<[f32; 2]>],
) -> Vec<[f32; COLUMNS]> {
    let rows = x.len() / PANELS;
    let panels: [_; PANELS] = std::array::from_fn(|index| panel(&x[index * rows..][..rows]));
    let weights = [lines(&weights[..WORDS]), lines(&weights[WORDS..])];
    let mut sums = [[[f32::NAN; COLUMNS]; ROWS]; PANELS];
    // SAFETY: the model works everywhere, and is configured.
    unsafe {
        Model::configure(&Shapes::new(rows));
        let (x, weights) = (
            panels.each_ref().map(Vec::as_slice),
            weights.each_ref().map(Vec::as_slice),
        );
        gemm_panels::<Model, PANELS>(x, weights, true, &mut sums);
        Model::release();
    }
    assert!(!Model::is_configured());
    sums.iter()
        .flat_map(|sums| &sums[..rows])
        .copied()
        .collect()
}

#[test]
fn products_equal_plain_sums_whatever_the_shape() {
    for pairs in [1, 15, 16, 17, 32, 128] {
        for rows in [1, 2, 13, 16] {
            let x = words(2 * rows, pairs, 1);
            let weights = words(COLUMNS, pairs, 2);
            let sums = products::<2>(&x, &weights);
            for (x, sums) in x.iter().zip(&sums) {
                for (weights, sum) in weights.iter().zip(sums) {
                    let both = x.iter().flatten().zip(weights.iter().flatten());
                    let expected: f64 = both.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                    let difference = (f64::from(*sum) - expected).abs();
                    assert!(difference < 1e-6 * (64 * pairs) as f64, "{sum} {expected}");
                }
            }
            // The same bits in one panel, and for a row alone.
            for (row, sums) in sums.iter().enumerate().take(rows) {
                assert_eq!(products::<1>(&x[..rows], &weights)[row], *sums);
                assert_eq!(products::<1>(&x[row..=row], &weights)[0], *sums);
            }
        }
    }
}

/// What the manual says of numbers that are too small, and of the order of sums.
#[test]
fn the_model_flushes_and_adds_even_and_odd_apart() {
    let sum = |x: &[[f32; 2]], weights: &[[f32; 2]]| {
        let weights = vec![weights.to_vec(); COLUMNS];
        products::<1>(&[x.to_vec()], &weights)[0][0]
    };
    // Numbers that aren't normal, and products that wouldn't be.
    let small = f32::from_bits(0x0040_0000);
    assert_eq!(sum(&[[small, 1.0]], &[[1e30, 1.0]]), 1.0);
    let least = f32::from_bits(0x0080_0000);
    assert_eq!(sum(&[[least, 0.0]], &[[0.5, 0.0]]), 0.0);
    // Added in the order of the depth, 2^24 would swallow both ones.
    let large = f32::from_bits(0x4b80_0000);
    let ones = [[1.0, 1.0]; 3];
    assert_eq!(
        sum(&[[large, 0.0], [0.0, 1.0], [0.0, 1.0]], &ones),
        large + 2.0
    );
    // What is no number stays in its row and column.
    assert!(sum(&[[f32::INFINITY, 0.0]], &[[0.0, 1.0]]).is_nan());
}

/// Instructions as assembled, beside their bytes in Intel's manual. Nothing executes them.
#[cfg(target_arch = "x86_64")]
#[test]
fn instructions_are_encoded_as_the_manual_has_them() {
    const ENCODINGS: [&[u8]; 6] = [
        &[0xc4, 0xe2, 0x78, 0x49, 0x00],
        &[0xc4, 0xe2, 0x7b, 0x49, 0xd8],
        // The second register is the stride: what the address has as its index.
        &[0xc4, 0xe2, 0x7b, 0x4b, 0x34, 0x08],
        &[0xc4, 0xe2, 0x62, 0x5c, 0xca],
        &[0xc4, 0xe2, 0x7a, 0x4b, 0x0c, 0x08],
        &[0xc4, 0xe2, 0x78, 0x49, 0xc0],
    ];
    let start: *const u8;
    // SAFETY: it takes an address, and jumps over the instructions.
    unsafe {
        std::arch::asm!(
            "lea {start}, [rip + 2f]",
            "jmp 3f",
            "2:",
            "ldtilecfg [rax]",
            "tilezero tmm3",
            "tileloadd tmm6, [rax + rcx*1]",
            "tdpbf16ps tmm1, tmm2, tmm3",
            "tilestored [rax + rcx*1], tmm1",
            "tilerelease",
            "3:",
            start = out(reg) start,
            options(nomem, nostack, preserves_flags),
        );
    }
    let expected = ENCODINGS.concat();
    // SAFETY: code can be read, and this much of it follows the label.
    let found = unsafe { std::slice::from_raw_parts(start, expected.len()) };
    assert_eq!(found, expected);
}
