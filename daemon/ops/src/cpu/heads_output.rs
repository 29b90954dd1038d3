//! A matrix whose rows consist of heads, written by several threads at once.

use std::{marker::PhantomData, ops::Range, slice};

use crate::Activation;

/// The output matrix, of which each task gets its own rows and columns.
pub(super) struct HeadsOutput<'a> {
    start: *mut f32,
    rows: usize,
    width: usize,
    borrowed: PhantomData<&'a mut [f32]>,
}

// SAFETY: only its parts are written through, and whoever takes one vouches for its being disjoint from the others.
unsafe impl Sync for HeadsOutput<'_> {}

impl<'a> HeadsOutput<'a> {
    pub(super) fn new(out: &'a mut Activation) -> Self {
        let (rows, width) = (out.len(), out.width());
        Self {
            start: out.values_mut().as_mut_ptr(),
            rows,
            width,
            borrowed: PhantomData,
        }
    }

    /// The part with these heads of these rows.
    ///
    /// # Safety
    /// No other part that lives at the same time has any of these heads of any of these rows.
    pub(super) unsafe fn part(&self, rows: Range<usize>, heads: Range<usize>) -> OutputPart<'_> {
        OutputPart {
            whole: self,
            rows,
            heads,
        }
    }
}

/// Heads of rows in the output matrix that nobody else reads or writes.
pub(super) struct OutputPart<'a> {
    whole: &'a HeadsOutput<'a>,
    rows: Range<usize>,
    heads: Range<usize>,
}

impl OutputPart<'_> {
    /// Writes one head of one row.
    ///
    /// # Panics
    /// When it lies outside of the part or of the matrix.
    pub(super) fn write(
        &mut self,
        (row, head): (usize, usize),
        dim: usize,
        values: impl Iterator<Item = f32>,
    ) {
        for (out, value) in self.head((row, head), dim).iter_mut().zip(values) {
            *out = value;
        }
    }

    /// Adds to one head of one row.
    ///
    /// # Panics
    /// When it lies outside of the part or of the matrix.
    pub(super) fn add(&mut self, place: (usize, usize), dim: usize, values: &[f32]) {
        for (out, value) in self.head(place, dim).iter_mut().zip(values) {
            *out += value;
        }
    }

    fn head(&mut self, (row, head): (usize, usize), dim: usize) -> &mut [f32] {
        let whole = self.whole;
        assert!(self.rows.contains(&row) && self.heads.contains(&head));
        assert!(row < whole.rows && (head + 1) * dim <= whole.width);
        // SAFETY: the place is inside the matrix, whose borrow the whole holds, and this part's alone.
        unsafe { slice::from_raw_parts_mut(whole.start.add(row * whole.width + head * dim), dim) }
    }
}
