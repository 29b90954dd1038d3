//! What the instructions do, in plain Rust, as Intel's manual has it in pseudo-code: for tests of kernels on processors without
//! AMX.

use std::cell::RefCell;

use super::{Line, Lines, ROWS, Shapes, Sums, TILES, Tiles, WORDS};

/// A model of AMX's tiles, of which each thread has its own. It panics where the processor would end the process, and where
/// tiles are configured that were not released.
#[derive(Debug)]
pub struct Model;

struct State {
    /// The tiles' shapes; none while they are released.
    shapes: Option<Shapes>,
    tiles: [Lines; TILES],
}

const EMPTY: Lines = [[0; size_of::<Line>()]; ROWS];

thread_local! {
    static STATE: RefCell<State> = const {
        RefCell::new(State { shapes: None, tiles: [EMPTY; TILES] })
    };
}

impl State {
    fn rows(&self, tile: usize) -> usize {
        self.shapes(tile).0
    }

    /// Rows of a tile, and bytes of each.
    fn shapes(&self, tile: usize) -> (usize, usize) {
        let shapes = self.shapes.as_ref().expect("tiles are configured first");
        (
            shapes.rows[tile].into(),
            usize::from(shapes.row_bytes[tile]),
        )
    }
}

impl Model {
    /// Whether this thread has tiles configured.
    #[must_use]
    pub fn is_configured() -> bool {
        STATE.with_borrow(|state| state.shapes.is_some())
    }
}

impl Tiles for Model {
    unsafe fn configure(shapes: &Shapes) {
        STATE.with_borrow_mut(|state| {
            assert!(state.shapes.is_none(), "tiles were not released");
            state.shapes = Some(*shapes);
            state.tiles = [EMPTY; TILES];
        });
    }

    unsafe fn zero<const TILE: usize>() {
        STATE.with_borrow_mut(|state| {
            assert!(state.rows(TILE) > 0);
            state.tiles[TILE] = EMPTY;
        });
    }

    unsafe fn load<const TILE: usize>(lines: &Lines) {
        STATE.with_borrow_mut(|state| {
            let (rows, row_bytes) = state.shapes(TILE);
            state.tiles[TILE] = EMPTY;
            for (row, line) in state.tiles[TILE].iter_mut().zip(&lines[..rows]) {
                row[..row_bytes].copy_from_slice(&line[..row_bytes]);
            }
        });
    }

    unsafe fn add_products<const SUM: usize, const X: usize, const WEIGHT: usize>() {
        STATE.with_borrow_mut(|state| {
            let (rows, row_bytes) = state.shapes(SUM);
            let (depth, columns) = (state.shapes(X).1 / 4, row_bytes / 4);
            assert_eq!(state.shapes(X).0, rows);
            assert_eq!(state.shapes(WEIGHT), (depth, row_bytes));
            assert!(SUM != X && X != WEIGHT && SUM != WEIGHT);
            for row in 0..rows {
                let mut products = [[0.0; 2]; WORDS];
                for k in 0..depth {
                    let x = pair(&state.tiles[X][row], k);
                    for (column, sums) in products[..columns].iter_mut().enumerate() {
                        let weight = pair(&state.tiles[WEIGHT][k], column);
                        for (half, sum) in sums.iter_mut().enumerate() {
                            *sum = flushed(flushed(x[half]).mul_add(flushed(weight[half]), *sum));
                        }
                    }
                }
                let (sums, _) = state.tiles[SUM][row].as_chunks_mut::<4>();
                for (sum, [even, odd]) in sums[..columns].iter_mut().zip(products) {
                    let before = flushed(f32::from_le_bytes(*sum));
                    *sum = flushed(before + flushed(even + odd)).to_le_bytes();
                }
            }
        });
    }

    unsafe fn store<const TILE: usize>(sums: &mut Sums, column: usize) {
        STATE.with_borrow(|state| {
            let (rows, row_bytes) = state.shapes(TILE);
            for (sums, row) in sums[..rows].iter_mut().zip(&state.tiles[TILE]) {
                let (words, _) = row[..row_bytes].as_chunks::<4>();
                for (sum, word) in sums[column..][..words.len()].iter_mut().zip(words) {
                    *sum = f32::from_le_bytes(*word);
                }
            }
        });
    }

    unsafe fn release() {
        STATE.with_borrow_mut(|state| state.shapes = None);
    }
}

/// The two bf16 of a word.
fn pair(line: &Line, word: usize) -> [f32; 2] {
    let [a, b, c, d] = line.as_chunks::<4>().0[word];
    [[a, b], [c, d]].map(|[low, high]| f32::from_le_bytes([0, 0, low, high]))
}

/// Zero for what is too small for a normal number.
fn flushed(value: f32) -> f32 {
    match value.is_subnormal() {
        true => 0.0_f32.copysign(value),
        false => value,
    }
}
