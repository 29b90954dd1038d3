//! Wide columns: their elements span more steps than there are symbols.
//!
//! Inputs that are thousands of times larger than others (massive activations, arXiv 2402.17762) want steps that are as
//! much smaller. The levels of a wide column are all integers and a quarter, up to a thousand steps. Up to four bits of an
//! integer, those above the lowest one, are stored as they are: at such rates their values are about equally frequent, and
//! a code would save nothing. The other bits are the symbol, which has a code. The lowest one is among them, since the
//! trellis looks at no other.
//!
//! The low bits stand between the column's header and its codes. Each element has as many, so that the codes are found
//! without reading them.

use std::sync::LazyLock;

use super::{
    classes::class,
    decode::ColumnSymbols,
    header::{RAW_BITS_MAX, WIDE_CLASSES},
};
use crate::{
    layout::COLUMN_ROWS_MAX,
    simd::SimdPath,
    trellis::{PARTS, SECOND, SYMBOLS, SymbolCosts, ZERO, mark, point},
};

/// Elements are within so many steps of zero.
pub(super) const STEPS_MAX: f32 = ((SYMBOLS / 2) << RAW_BITS_MAX) as f32 - 4.;
/// A quarter, in parts of a step.
const QUARTER: i32 = PARTS as i32 / 4;

/// The symbol of an integer of which `raw_bits` are stored as they are, and these; `None` where there is none.
fn split(integer: i32, raw_bits: u8) -> Option<(u8, u8)> {
    let pair = integer >> 1;
    let symbol = (pair >> raw_bits << 1 | integer & 1) + ZERO as i32;
    let raw = pair & ((1 << raw_bits) - 1);
    let symbol = u8::try_from(symbol).ok()?;
    (usize::from(symbol) < SYMBOLS).then_some((symbol, raw as u8))
}

/// The integer of a symbol and its low bits.
fn join(symbol: u8, raw: u8, raw_bits: u8) -> i32 {
    let symbol = i32::from(symbol) - ZERO as i32;
    ((symbol >> 1) << raw_bits | i32::from(raw)) << 1 | symbol & 1
}

/// Computes a column's elements.
pub(super) fn decode(
    path: SimdPath,
    of: ColumnSymbols<'_>,
    raw_bits: u8,
    part: f32,
    factors: &[f32],
    out: &mut [f32],
) {
    let mut marked = [0; COLUMN_ROWS_MAX];
    let marked = &mut marked[..of.symbols.len()];
    marked.copy_from_slice(of.symbols);
    mark(path, marked);
    match path {
        SimdPath::Portable => scale(marked, of.raw, raw_bits, part, factors, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: there is no such path on a processor without these features.
        SimdPath::Avx2(_) => unsafe { scale_avx2(marked, of.raw, raw_bits, part, factors, out) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
// Compiled a second time, eight elements at a time.
fn scale_avx2(
    marked: &[u8],
    raw: &[u8],
    raw_bits: u8,
    part: f32,
    factors: &[f32],
    out: &mut [f32],
) {
    scale(marked, raw, raw_bits, part, factors, out);
}

#[inline(always)]
fn scale(marked: &[u8], raw: &[u8], raw_bits: u8, part: f32, factors: &[f32], out: &mut [f32]) {
    let each = marked.iter().zip(raw).zip(factors);
    for (out, ((marked, raw), factor)) in out.iter_mut().zip(each) {
        let level = join(marked & !SECOND, *raw, raw_bits) * PARTS as i32 + QUARTER;
        // All ones where the element is of the second quantizer: the level's negative.
        let second = -i32::from(marked >> 7);
        *out = ((level ^ second) - second) as f32 * part * factor;
    }
}

/// Prices by which all levels are alike: at the rates of wide columns, bits hardly depend on the level.
pub(super) fn prices() -> &'static SymbolCosts {
    static PRICES: LazyLock<SymbolCosts> = LazyLock::new(|| SymbolCosts {
        levels: std::array::from_fn(point),
        costs: [0.; SYMBOLS],
    });
    &PRICES
}

/// The even integer that is nearest to an element: what is left of it is near symbol 0, where the search is at home.
/// Parities, and with them what the trellis allows, stay as they are.
pub(super) fn even(value: f32) -> i32 {
    // Beside this number only whole ones are left: to round by a function takes ten times as long.
    const WHOLE: f32 = 12_582_912.;
    let half = value.clamp(-STEPS_MAX, STEPS_MAX) * 0.5 + WHOLE - WHOLE;
    2 * half as i32
}

/// What the elements of a wide column are quantized to.
pub(super) struct WideChoice {
    pub(super) class: u8,
    pub(super) raw_bits: u8,
    pub(super) bits: usize,
    /// In squared steps.
    pub(super) squared_error: f32,
}

/// Chooses class and low bits for elements, by the marked symbols that were found for what [`even`] leaves of them.
/// Writes symbols, without marks, and low bits.
pub(super) fn choose(values: &[f32], symbols: &mut [u8], raw: &mut [u8]) -> Option<WideChoice> {
    let mut squared_error = 0.;
    let integers: Vec<i32> = (values.iter().zip(&*symbols))
        .map(|(value, marked)| {
            let near = i32::from(marked & !SECOND) - ZERO as i32;
            // The second quantizer's levels are negatives, so what was taken away has the other sign there.
            let (integer, sign) = match marked & SECOND {
                0 => (near + even(*value), 1.),
                _ => (near - even(*value), -1.),
            };
            squared_error += (value - sign * (integer as f32 + 0.25)).powi(2);
            integer
        })
        .collect();
    let (bits, raw_bits, class) = (1..=RAW_BITS_MAX)
        .filter_map(|raw_bits| {
            let mut counts = [0_u32; SYMBOLS];
            for integer in &integers {
                counts[usize::from(split(*integer, raw_bits)?.0)] += 1;
            }
            let bits = |index: u8| -> usize {
                let each = (0..).zip(counts).filter(|(_, count)| *count > 0);
                each.map(|(symbol, count)| count as usize * class(index).bits(symbol))
                    .sum()
            };
            let (bits, class) = WIDE_CLASSES.map(|index| (bits(index), index)).min()?;
            Some((bits + values.len() * usize::from(raw_bits), raw_bits, class))
        })
        .min()?;
    for ((integer, symbol), raw) in integers.iter().zip(symbols).zip(raw) {
        (*symbol, *raw) = split(*integer, raw_bits)?;
    }
    Some(WideChoice {
        class,
        raw_bits,
        bits,
        squared_error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_back() {
        for raw_bits in 1..=RAW_BITS_MAX {
            let end = 64 << raw_bits;
            for integer in -end..end {
                let (symbol, raw) = split(integer, raw_bits).unwrap();
                assert_eq!(join(symbol, raw, raw_bits), integer);
                assert_eq!(i32::from(symbol) & 1, integer & 1);
                assert!(raw >> raw_bits == 0);
            }
            assert!(split(end, raw_bits).is_none() && split(-end - 1, raw_bits).is_none());
        }
    }
}
