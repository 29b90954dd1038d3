//! Kernels over 16 rows of weights that lie beside each other, written once for all instruction sets and formats. Sums are
//! taken in the order of the tiles' (`quantized`, `microkernel`), so that a row's bits don't depend on how many rows of `x`
//! there are.

use sluice_formats::interleaved::ROWS as LANES;

use super::{
    PanelLanes, RoundedRows,
    formats::{Elements, Quants},
};
use crate::cpu::{
    lanes::Lanes,
    microkernel::{self, TileOutput},
};

/// Bytes ahead of what is multiplied that weights are prefetched: two pages, at whose ends the hardware's own prefetching
/// stops. One page is too few where four rows go through weights at 70 GB/s.
const AHEAD: usize = 8192;

impl TileOutput {
    /// The sums of blocks of the depth so far.
    ///
    /// # Safety
    /// As [`Lanes`]; the elements are the caller's.
    #[inline(always)]
    unsafe fn add_to<L: Lanes, const ROWS: usize>(
        self,
        totals: &mut Option<[L::Numbers; ROWS]>,
        sums: [L::Numbers; ROWS],
    ) {
        // SAFETY: as the caller says.
        unsafe {
            let mut totals_so_far = match *totals {
                Some(totals) => totals,
                None if self.adds => {
                    let mut held = sums;
                    for (row, held) in held.iter_mut().enumerate() {
                        *held = L::numbers(self.start.add(row * self.stride));
                    }
                    held
                }
                None => return *totals = Some(sums),
            };
            for (total, sum) in totals_so_far.iter_mut().zip(sums) {
                *total = L::add(*total, sum);
            }
            *totals = Some(totals_so_far);
        }
    }

    /// # Safety
    /// As [`TileOutput::add_to`].
    #[inline(always)]
    unsafe fn store<L: Lanes, const ROWS: usize>(self, totals: Option<[L::Numbers; ROWS]>) {
        for (row, total) in totals.into_iter().flatten().enumerate() {
            // SAFETY: as the caller says.
            unsafe { L::store(total, self.start.add(row * self.stride)) };
        }
    }
}

/// Multiplies `ROWS` rounded rows of `x` by 16 rows of weights.
///
/// # Safety
/// As [`Lanes`]; the output's elements are the caller's.
#[inline(always)]
pub(super) unsafe fn multiply_quants<L, Q, const STEPS: usize, const ROWS: usize>(
    x: RoundedRows<'_>,
    weights: &[u8],
    out: TileOutput,
) where
    L: Lanes,
    Q: Quants<STEPS>,
{
    let block_bytes = const { LANES * Q::FORMAT.block_bytes() };
    let block_groups = const { Q::FORMAT.block_len() / (4 * STEPS) };
    let blocks = weights.len() / block_bytes;
    let groups = blocks * block_groups;
    assert!(x.words.len() == ROWS * groups * STEPS && x.numbers.len() == ROWS * 2 * groups);
    let bits = const {
        match Q::FORMAT.groups() {
            Some(groups) => groups.bits,
            None => unreachable!(),
        }
    };
    let mut totals = None;
    let mut at = 0;
    for piece in
        weights.chunks(const { microkernel::QUANTS_DEPTH / Q::FORMAT.block_len() } * block_bytes)
    {
        // SAFETY: the lengths were compared, and all else is as the caller says.
        unsafe {
            let mut sums = [L::zero(); ROWS];
            for block in piece.chunks_exact(block_bytes) {
                for index in 0..block_groups {
                    prefetch_group::<L, Q, STEPS>(block, index, AHEAD);
                    let group = Q::group::<L>(block.as_ptr(), index);
                    for (row, sum) in sums.iter_mut().enumerate() {
                        let words = x.words.as_ptr().add((row * groups + at) * STEPS);
                        let products = L::products(&group.words, &*words.cast(), bits);
                        let numbers = x.numbers.as_ptr().add(2 * (row * groups + at));
                        let (x_scale, x_sum) = (L::splat(*numbers), L::splat(*numbers.add(1)));
                        let both = L::multiply(x_scale, group.scale);
                        let so_far = L::multiply_add(x_sum, group.minimum, *sum);
                        *sum = L::multiply_add(L::whole(products), both, so_far);
                    }
                    at += 1;
                }
            }
            out.add_to::<L, ROWS>(&mut totals, sums);
        }
    }
    // SAFETY: as the caller says.
    unsafe { out.store::<L, ROWS>(totals) };
}

/// Prefetches as many bytes as a group of a block has, so far ahead of it: a core has few requests in flight, and waits when a whole block, up to
/// 53 lines, is asked for at once.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn prefetch_group<L: Lanes, Q: Quants<STEPS>, const STEPS: usize>(
    block: &[u8],
    index: usize,
    ahead: usize,
) {
    let bytes = const { LANES * Q::FORMAT.block_bytes() * 4 * STEPS / Q::FORMAT.block_len() };
    for line in (0..bytes).step_by(64) {
        // SAFETY: as the caller says.
        unsafe { L::prefetch(block.as_ptr().wrapping_add(ahead + index * bytes + line)) };
    }
}

/// Multiplies `ROWS` rows of `x` by 16 rows of weights whose elements are read as `f32`.
///
/// # Safety
/// As [`Lanes`]; the output's elements are the caller's.
#[inline(always)]
pub(super) unsafe fn multiply_elements<L, E, const COUNT: usize, const ROWS: usize>(
    x: &[f32],
    weights: &[u8],
    out: TileOutput,
) where
    L: Lanes,
    E: Elements<COUNT>,
{
    let width = x.len() / ROWS;
    assert!(x.len() == ROWS * width && weights.len() == LANES * E::FORMAT.bytes(width));
    let mut totals = None;
    for from in (0..width).step_by(microkernel::DEPTH) {
        let end = width.min(from + microkernel::DEPTH);
        // SAFETY: the lengths were compared, and all else is as the caller says.
        unsafe {
            let mut sums = [L::zero(); ROWS];
            for index in from / COUNT..end / COUNT {
                let piece = index
                    * const { COUNT * LANES * E::FORMAT.block_bytes() / E::FORMAT.block_len() };
                L::prefetch(weights.as_ptr().wrapping_add(AHEAD + piece));
                let elements = E::read::<L>(weights.as_ptr(), index);
                for (offset, element) in elements.into_iter().enumerate() {
                    for (row, sum) in sums.iter_mut().enumerate() {
                        let x = *x.as_ptr().add(row * width + COUNT * index + offset);
                        *sum = L::multiply_add(L::splat(x), element, *sum);
                    }
                }
            }
            out.add_to::<L, ROWS>(&mut totals, sums);
        }
    }
    // SAFETY: as the caller says.
    unsafe { out.store::<L, ROWS>(totals) };
}

/// Unpacks blocks of quants to bytes, with scales and minima.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(super) unsafe fn unpack<L, Q, const STEPS: usize>(weights: &[u8], panel: PanelLanes<'_>)
where
    L: Lanes,
    Q: Quants<STEPS>,
{
    let block_bytes = const { LANES * Q::FORMAT.block_bytes() };
    let block_groups = const { Q::FORMAT.block_len() / (4 * STEPS) };
    let groups = weights.len() / block_bytes * block_groups;
    let step = panel.step;
    let end = |pieces: usize| (pieces - 1) * step + LANES;
    assert!(groups > 0 && weights.len().is_multiple_of(block_bytes));
    assert!(end(groups * STEPS) <= panel.words.len());
    assert!(end(groups) <= panel.scales.len() && end(groups) <= panel.minima.len());
    let mut at = 0;
    for block in weights.chunks_exact(block_bytes) {
        for index in 0..block_groups {
            // SAFETY: the lengths were compared, and all else is as the caller says.
            unsafe {
                // A panel goes on with the piece behind this one.
                prefetch_group::<L, Q, STEPS>(block, index, weights.len());
                let group = Q::group::<L>(block.as_ptr(), index);
                let words = panel.words.as_mut_ptr().add(at * STEPS * step);
                for (number, word) in group.words.into_iter().enumerate() {
                    L::store_words(word, words.add(number * step));
                }
                L::store(group.scale, panel.scales.as_mut_ptr().add(at * step));
                L::store(group.minimum, panel.minima.as_mut_ptr().add(at * step));
            }
            at += 1;
        }
    }
}

/// Dequantizes elements to `out`, `step` numbers from one to the next.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(super) unsafe fn dequantize<L, E, const COUNT: usize>(
    weights: &[u8],
    out: &mut [f32],
    step: usize,
) where
    L: Lanes,
    E: Elements<COUNT>,
{
    let block_bytes = const { LANES * E::FORMAT.block_bytes() };
    let count = weights.len() / block_bytes * const { E::FORMAT.block_len() };
    assert!(count > 0 && (count - 1) * step + LANES <= out.len());
    for index in 0..count / COUNT {
        // SAFETY: the lengths were compared, and all else is as the caller says.
        unsafe {
            let piece =
                index * const { COUNT * LANES * E::FORMAT.block_bytes() / E::FORMAT.block_len() };
            L::prefetch(weights.as_ptr().wrapping_add(AHEAD + piece));
            let elements = E::read::<L>(weights.as_ptr(), index);
            for (offset, element) in elements.into_iter().enumerate() {
                L::store(
                    element,
                    out.as_mut_ptr().add((COUNT * index + offset) * step),
                );
            }
        }
    }
}
