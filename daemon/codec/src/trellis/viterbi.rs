//! The Viterbi search for the symbols that minimize a tile's cost.
//!
//! It goes through all states. At 4 bits, on Gaussian values, 4 states gain 1.06 dB, 8 1.15, 16 1.21, 32 1.28, 64 1.32
//! and 256 1.40; 64 states take 38 ns per element, most of it for the states.

use super::{
    levels::{LINEAR_MAX, SYMBOLS, candidate},
    marks::{CHECK, FEED},
};
use crate::simd::SimdPath;

/// Parities that a state remembers.
const MEMORY: usize = 6;
const STATES: usize = 1 << MEMORY;
/// Symbols of the longest tile, as in [`TILES`](crate::layout::TILES).
const TILE_MAX: usize = 512;

/// What the search needs to know of symbols: levels in steps, and what each costs, in squared steps.
#[derive(Clone, Debug)]
pub(crate) struct SymbolCosts {
    pub(crate) levels: [f32; SYMBOLS],
    pub(crate) costs: [f32; SYMBOLS],
}

/// Candidates of an element: the nearest even and odd symbol of each quantizer.
const CANDIDATES: usize = 4;

/// Work space of the search, about 20 KiB. It is boxed and used again for all tiles of a thread.
pub(crate) struct ViterbiSearch {
    losses: [[f32; CANDIDATES]; TILE_MAX],
    symbols: [[i32; CANDIDATES]; TILE_MAX],
    /// One bit for each new state, by its lowest bit and then the rest: whether its best predecessor is in the upper
    /// half of states.
    upper: [[[u8; STATES / 16]; 2]; TILE_MAX],
}

impl ViterbiSearch {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self {
            losses: [[0.; CANDIDATES]; TILE_MAX],
            symbols: [[0; CANDIDATES]; TILE_MAX],
            upper: [[[0; STATES / 16]; 2]; TILE_MAX],
        })
    }

    /// Chooses the symbols of a tile whose elements are given in steps, so that squared errors and symbol costs are
    /// minimal in sum.
    pub(crate) fn choose(
        &mut self,
        path: SimdPath,
        values: &[f32],
        prices: &SymbolCosts,
        out: &mut [u8],
    ) {
        assert!(values.len() <= TILE_MAX && out.len() == values.len());
        let sums = match path {
            SimdPath::Portable => {
                for (at, value) in values.iter().enumerate() {
                    self.price(at, *value, prices);
                }
                self.walk(values.len())
            }
            #[cfg(target_arch = "x86_64")]
            // SAFETY: there is no such path on a processor without these features.
            SimdPath::Avx2(_) => unsafe {
                avx2::price(self, values, prices);
                avx2::walk(self, values.len())
            },
        };
        // Trace back from the cheapest final state: a state's predecessor is its bits shifted down, with the stored bit
        // on top.
        let best = |one: &usize, other: &usize| sums[*one].total_cmp(&sums[*other]);
        let mut state = (0..STATES).min_by(best).expect("there are states");
        for at in (0..values.len()).rev() {
            let half = state >> 1;
            let upper = self.upper[at][state & 1][half / 8] >> (half % 8) & 1;
            let from = half | usize::from(upper) << (MEMORY - 1);
            out[at] = self.symbols[at][candidate_of(from, state & 1)] as u8;
            state = from;
        }
    }

    /// Computes the candidates of one element and their costs.
    fn price(&mut self, at: usize, value: f32, prices: &SymbolCosts) {
        let symbols: [usize; CANDIDATES] = std::array::from_fn(|i| {
            let value = if i < 2 { value } else { -value };
            candidate(value, i % 2)
        });
        let losses = std::array::from_fn(|i| {
            let value = if i < 2 { value } else { -value };
            let off = value - prices.levels[symbols[i]];
            off * off + prices.costs[symbols[i]]
        });
        self.symbols[at] = symbols.map(|symbol| symbol as i32);
        self.losses[at] = losses;
        if value.abs() > LINEAR_MAX {
            // Far out, levels are wide apart and costs are large. Only differences matter, and the path sums must keep
            // `f32` precision for those of other elements.
            let least = losses.into_iter().fold(f32::INFINITY, f32::min);
            self.losses[at] = losses.map(|loss| loss - least);
        }
    }

    /// Forward pass: the least cost by which each state can be reached, element by element.
    fn walk(&mut self, count: usize) -> [f32; STATES] {
        let mut sums = [f32::INFINITY; STATES];
        // The search begins in state 0, as the decoder does.
        sums[0] = 0.;
        for (losses, upper) in self.losses.iter().zip(&mut self.upper).take(count) {
            let mut next = [0.; STATES];
            *upper = [[0; STATES / 16]; 2];
            for half in 0..STATES / 2 {
                // State `half + STATES / 2` has the same quantizer as `half`, and its other candidate leads to the same
                // new state.
                let [low, high] = [sums[half], sums[half + STATES / 2]];
                for bit in 0..2 {
                    let one = low + losses[candidate_of(half, bit)];
                    let other = high + losses[candidate_of(half, 1 - bit)];
                    next[2 * half + bit] = if other < one { other } else { one };
                    upper[bit][half / 8] |= u8::from(other < one) << (half % 8);
                }
            }
            sums = next;
        }
        sums
    }
}

/// The candidate whose choice leads from `state` to the next state with lowest bit `bit`.
const fn candidate_of(state: usize, bit: usize) -> usize {
    let past = state << 1;
    let parity = bit ^ past >> CHECK[0] & 1 ^ past >> CHECK[1] & 1;
    let second = (past >> FEED[0] ^ past >> FEED[1]) & 1;
    2 * second + (parity & 1)
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{CANDIDATES, LINEAR_MAX, STATES, SymbolCosts, ViterbiSearch, candidate_of};
    use crate::trellis::levels::ZERO;

    /// Computes the candidates of all elements, two elements at a time: four candidates each fill a vector.
    #[target_feature(enable = "avx2")]
    pub(super) fn price(search: &mut ViterbiSearch, values: &[f32], prices: &SymbolCosts) {
        let parity = _mm256_setr_ps(0., 1., 0., 1., 0., 1., 0., 1.);
        let sign = _mm256_setr_ps(0., 0., -0., -0., 0., 0., -0., -0.);
        let centre = _mm256_setr_ps(0.25, 1.25, 0.25, 1.25, 0.25, 1.25, 0.25, 1.25);
        let (half, two) = (_mm256_set1_ps(0.5), _mm256_set1_ps(2.));
        let (most, least) = (_mm256_set1_ps(LINEAR_MAX), _mm256_set1_ps(-LINEAR_MAX));
        let zero = _mm256_set1_epi32(ZERO as i32);
        for (at, pair) in values.chunks(2).enumerate() {
            // An odd last element is computed twice; `choose` reads no further than `count`.
            let [one, other] = [pair[0], *pair.last().expect("one at least")];
            let both = _mm256_set_m128(_mm_set1_ps(other), _mm_set1_ps(one));
            let value = _mm256_xor_ps(both, sign);
            // Clamped to the linear range, where symbols are integers. The rare elements outside are redone below.
            let within = _mm256_max_ps(_mm256_min_ps(value, most), least);
            let code = _mm256_mul_ps(_mm256_sub_ps(within, centre), half);
            let code = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(code);
            let code = _mm256_add_ps(_mm256_mul_ps(code, two), parity);
            let symbol = _mm256_add_epi32(_mm256_cvtps_epi32(code), zero);
            // SAFETY: within the linear range there are that many symbols, and as many levels and costs.
            let (level, cost) = unsafe {
                (
                    _mm256_i32gather_ps::<4>(prices.levels.as_ptr(), symbol),
                    _mm256_i32gather_ps::<4>(prices.costs.as_ptr(), symbol),
                )
            };
            let off = _mm256_sub_ps(value, level);
            let loss = _mm256_add_ps(_mm256_mul_ps(off, off), cost);
            // SAFETY: two elements' candidates each, at any address; places of tiles are even.
            unsafe {
                let losses = search.losses[2 * at..2 * at + 2].as_mut_ptr();
                _mm256_storeu_ps(losses.cast(), loss);
                let symbols = search.symbols[2 * at..2 * at + 2].as_mut_ptr();
                _mm256_storeu_si256(symbols.cast(), symbol);
            }
            for (at, value) in (2 * at..).zip(pair) {
                if value.abs() > LINEAR_MAX {
                    search.price(at, *value, prices);
                }
            }
        }
    }

    /// States that a vector holds; `half` of [`ViterbiSearch::walk`] goes through half of all states.
    const LANES: usize = 8;
    const VECTORS: usize = STATES / 2 / LANES;

    /// By vector and lane, the candidate that leads from a state to its even successor. The odd successor takes the
    /// other parity of the same quantizer, hence `xor 1`.
    const EVEN: [[i32; LANES]; VECTORS] = {
        let mut candidates = [[0; LANES]; VECTORS];
        let mut state = 0;
        while state < STATES / 2 {
            candidates[state / LANES][state % LANES] = candidate_of(state, 0) as i32;
            state += 1;
        }
        candidates
    };

    #[target_feature(enable = "avx2")]
    pub(super) fn walk(search: &mut ViterbiSearch, count: usize) -> [f32; STATES] {
        let infinite = _mm256_set1_ps(f32::INFINITY);
        let mut sums = [infinite; 2 * VECTORS];
        sums[0] = _mm256_blend_ps::<1>(infinite, _mm256_setzero_ps());
        let one = _mm256_set1_epi32(1);
        let each = search.losses.iter().zip(&mut search.upper).take(count);
        for (losses, upper) in each {
            let losses: &[f32; CANDIDATES] = losses;
            // SAFETY: as many elements as it reads, at any address.
            let losses = unsafe { _mm_loadu_ps(losses.as_ptr()) };
            let losses = _mm256_set_m128(losses, losses);
            let mut next = [infinite; 2 * VECTORS];
            for vector in 0..VECTORS {
                // SAFETY: eight elements.
                let even = unsafe { _mm256_loadu_si256(EVEN[vector].as_ptr().cast()) };
                let odd = _mm256_permutevar8x32_ps(losses, _mm256_xor_si256(even, one));
                let even = _mm256_permutevar8x32_ps(losses, even);
                // Same comparison and tie-breaking as in the portable path: tests hold both to the same symbols.
                let (low, high) = (sums[vector], sums[vector + VECTORS]);
                let best = |low, high| {
                    let upper = _mm256_cmp_ps::<_CMP_LT_OQ>(high, low);
                    // Of equal operands `min` returns the second, as the portable path keeps `low`.
                    (_mm256_min_ps(high, low), _mm256_movemask_ps(upper) as u8)
                };
                let (to_even, from) = best(_mm256_add_ps(low, even), _mm256_add_ps(high, odd));
                upper[0][vector] = from;
                let (to_odd, from) = best(_mm256_add_ps(low, odd), _mm256_add_ps(high, even));
                upper[1][vector] = from;
                // New states alternate between even and odd ones, so the two results are interleaved; `unpack` does
                // that within lanes only, and the permutes put lanes in order.
                let (first, second) = (
                    _mm256_unpacklo_ps(to_even, to_odd),
                    _mm256_unpackhi_ps(to_even, to_odd),
                );
                next[2 * vector] = _mm256_permute2f128_ps::<0x20>(first, second);
                next[2 * vector + 1] = _mm256_permute2f128_ps::<0x31>(first, second);
            }
            sums = next;
        }
        let mut out = [0.; STATES];
        for (out, sums) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(sums) {
            // SAFETY: as many elements as it writes, at any address.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), sums) };
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trellis::{
        levels::{MEANS, SECOND, TrellisLevels},
        marks::tests::mark_slowly,
    };

    fn points() -> [f32; SYMBOLS] {
        TrellisLevels::new([0; MEANS], 1.).in_steps()
    }

    proptest! {
        #[test]
        fn the_choice_is_the_same_in_both_ways(
            values in prop::collection::vec(
                prop_oneof![8 => -6_f32..6., 2 => -60_f32..60., 1 => prop::num::f32::NORMAL], 0..512,
            ),
        ) {
            let prices = SymbolCosts {
                levels: points(),
                costs: points().map(|point| 0.01 * point.abs().min(50.)),
            };
            let chosen = SimdPath::all().into_iter().map(|path| {
                let mut symbols = vec![0; values.len()];
                ViterbiSearch::new().choose(path, &values, &prices, &mut symbols);
                symbols
            });
            let chosen: Vec<_> = chosen.collect();
            prop_assert!(chosen.iter().all(|one| *one == chosen[0]));
            prop_assert!(chosen[0].iter().all(|symbol| symbol & SECOND == 0));
        }
    }

    /// Compares with all possible choices, for few elements.
    #[test]
    fn nothing_loses_less_than_what_is_chosen() {
        let prices = SymbolCosts {
            levels: points(),
            costs: points().map(|point| 0.02 * point.abs().min(9.)),
        };
        let loss = |values: &[f32], symbols: &[u8]| {
            let mut marked = symbols.to_vec();
            mark_slowly(&mut marked);
            let each = values.iter().zip(&marked).map(|(value, marked)| {
                let symbol = usize::from(marked & !SECOND);
                let level = prices.levels[symbol];
                let level = if marked & SECOND == 0 { level } else { -level };
                (value - level).powi(2) + prices.costs[symbol]
            });
            each.sum::<f32>()
        };
        let values = [0.3, -1.2, 2.7, 0.1, -0.4, 1.9, -2.2, 0.8, 1.1];
        let mut chosen = vec![0; values.len()];
        ViterbiSearch::new().choose(SimdPath::best(), &values, &prices, &mut chosen);
        let chosen = loss(&values, &chosen);
        // For each element both nearest symbols of its quantizer, by parity.
        for choice in 0..1 << values.len() {
            let mut symbols = vec![];
            for (at, value) in values.iter().enumerate() {
                symbols.push(0);
                let mut marked = symbols.clone();
                mark_slowly(&mut marked);
                let value = if marked[at] & SECOND == 0 {
                    *value
                } else {
                    -value
                };
                symbols[at] = candidate(value, choice >> at & 1) as u8;
            }
            assert!(loss(&values, &symbols) > chosen - 1e-4);
        }
    }
}
