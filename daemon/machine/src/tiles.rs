//! Products of bf16 in tiles, as AMX has them: up to 32 rows of `x` by 32 rows of weights. This kernel lies beneath all others,
//! since it is what is tried before AMX counts as one of the instructions that work.

#[cfg(target_arch = "x86_64")]
mod amx;
mod model;

#[cfg(target_arch = "x86_64")]
pub use self::amx::Amx;
pub use self::model::Model;

/// Rows that a tile has at most.
pub const ROWS: usize = 16;
/// Words in a row of a tile: pairs of inputs of a row of `x`, or one pair of each of 16 rows of weights.
pub const WORDS: usize = 16;
/// Rows of weights that are multiplied at once.
pub const COLUMNS: usize = 2 * WORDS;

/// A row of a tile: 16 words, each a pair of bf16.
pub type Line = [u8; 4 * WORDS];
/// What a tile is loaded from.
pub type Lines = [Line; ROWS];
/// Sums of the rows of a panel of `x` with 32 rows of weights.
pub type Sums = [[f32; COLUMNS]; ROWS];

/// Bytes ahead of what is multiplied that weights are prefetched: a page, at whose end the hardware's own prefetching stops.
const AHEAD: usize = 4096;

// Two tiles of `x` by two of weights, whose four products are summed apart: eight tiles, which is all there are.
const SUMS: [usize; 4] = [0, 1, 2, 3];
const X: [usize; 2] = [4, 5];
const WEIGHTS: [usize; 2] = [6, 7];
const TILES: usize = 8;

/// What AMX does with the tiles of the thread that calls, which keeps them from one call to the next.
pub trait Tiles {
    /// Gives all tiles their shapes, and clears them.
    ///
    /// # Safety
    /// The tiles work, as for all that follow.
    unsafe fn configure(shapes: &Shapes);

    /// Clears a tile.
    ///
    /// # Safety
    /// Tiles are configured, as for all that follow.
    unsafe fn zero<const TILE: usize>();

    /// Loads as many lines as the tile has rows.
    ///
    /// # Safety
    /// See above.
    unsafe fn load<const TILE: usize>(lines: &Lines);

    /// Adds to each of `SUM` the products of a row of `X` and a column of `WEIGHT`.
    ///
    /// # Safety
    /// The tiles' shapes fit.
    unsafe fn add_products<const SUM: usize, const X: usize, const WEIGHT: usize>();

    /// Stores what is in a tile, as many rows as it has, to columns from this one on.
    ///
    /// # Safety
    /// There are as many columns as the tile has.
    unsafe fn store<const TILE: usize>(sums: &mut Sums, column: usize);

    /// Gives the tiles back: the system doesn't have to keep them any more when it switches threads.
    ///
    /// # Safety
    /// The tiles work.
    unsafe fn release();

    /// Prefetches lines, which may lie beyond any allocation.
    fn prefetch(_start: *const Line, _count: usize) {}
}

/// Shapes of the tiles, as `ldtilecfg` reads them.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Shapes {
    /// 1 where tiles are configured: the only way to divide the registers that there is.
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// Those for panels of `x` with so many rows at most.
    ///
    /// # Panics
    /// When those are none, or more than a tile has.
    #[must_use]
    pub fn new(rows: usize) -> Self {
        assert!((1..=ROWS).contains(&rows), "a tile has 1 to 16 rows");
        let mut shapes = Self {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        shapes.row_bytes[..TILES].fill(size_of::<Line>() as u16);
        shapes.rows[..TILES].fill(rows as u8);
        for tile in WEIGHTS {
            shapes.rows[tile] = WORDS as u8;
        }
        shapes
    }
}

/// Multiplies one or two panels of `x` by 32 rows of weights. A panel has lines for each 16 pairs of the depth, one of each row;
/// where the depth ends before 16, zeros follow. Weights have a line for each pair. Lines of rows that a panel doesn't have are
/// multiplied, too, as far as tiles have them: their sums mean nothing.
///
/// A sum depends on its own row and column alone, and is made in the same order whatever the number of rows.
///
/// # Safety
/// The tiles work, and are configured with [`Shapes::new`].
///
/// # Panics
/// When panels and weights differ in depth.
pub unsafe fn gemm_panels<T: Tiles, const PANELS: usize>(
    x: [&[Lines]; PANELS],
    weights: [&[Line]; 2],
    prefetches: bool,
    sums: &mut [Sums; PANELS],
) {
    const { assert!(PANELS == 1 || PANELS == 2) };
    let pairs = weights[0].len();
    assert_eq!(weights[1].len(), pairs);
    assert!(x.iter().all(|panel| panel.len() == pairs.div_ceil(WORDS)));
    // SAFETY: the tiles are configured; those of sums have 16 columns.
    unsafe {
        T::zero::<{ SUMS[0] }>();
        T::zero::<{ SUMS[1] }>();
        if PANELS == 2 {
            T::zero::<{ SUMS[2] }>();
            T::zero::<{ SUMS[3] }>();
        }
        let [(low, low_rest), (high, high_rest)] = weights.map(|weights| weights.as_chunks());
        for (step, (low, high)) in low.iter().zip(high).enumerate() {
            let weights = [low, high];
            if prefetches {
                for weights in weights {
                    T::prefetch(weights.as_ptr().wrapping_byte_add(AHEAD), WORDS);
                }
            }
            add_step::<T, PANELS>(x.map(|panel| &panel[step]), weights);
        }
        if !low_rest.is_empty() {
            // What comes after may be no number: its product with zero would be none either.
            let padded = [low_rest, high_rest].map(|rest| {
                let mut lines = [[0; size_of::<Line>()]; WORDS];
                lines[..rest.len()].copy_from_slice(rest);
                lines
            });
            add_step::<T, PANELS>(x.map(|panel| &panel[low.len()]), padded.each_ref());
        }
        T::store::<{ SUMS[0] }>(&mut sums[0], 0);
        T::store::<{ SUMS[1] }>(&mut sums[0], WORDS);
        if PANELS == 2 {
            T::store::<{ SUMS[2] }>(&mut sums[1], 0);
            T::store::<{ SUMS[3] }>(&mut sums[1], WORDS);
        }
    }
}

/// Adds the products of 16 pairs of the depth.
///
/// # Safety
/// As [`gemm_panels`].
#[inline]
unsafe fn add_step<T: Tiles, const PANELS: usize>(x: [&Lines; PANELS], weights: [&Lines; 2]) {
    // SAFETY: as the caller says.
    unsafe {
        T::load::<{ X[0] }>(x[0]);
        T::load::<{ WEIGHTS[0] }>(weights[0]);
        T::add_products::<{ SUMS[0] }, { X[0] }, { WEIGHTS[0] }>();
        T::load::<{ WEIGHTS[1] }>(weights[1]);
        T::add_products::<{ SUMS[1] }, { X[0] }, { WEIGHTS[1] }>();
        if PANELS == 2 {
            T::load::<{ X[1] }>(x[1]);
            T::add_products::<{ SUMS[2] }, { X[1] }, { WEIGHTS[0] }>();
            T::add_products::<{ SUMS[3] }, { X[1] }, { WEIGHTS[1] }>();
        }
    }
}

#[cfg(test)]
mod tests;
