//! Rows of `x` as matmuls read them: packed once for all threads, and for all matrices whose kernels take them alike.

use std::{mem::discriminant, ops::Range};

use rayon::prelude::*;
use sluice_machine::Instructions;

use super::{
    CpuBackend, FEW_ELEMENTS,
    byte_kernel::{self, RoundedPanels},
    factors::{Factors, round_to_bf16},
    microkernel::{self, MatrixRows, Microkernel, RowPanels, prefetch},
};
use crate::Activation;

/// Words that a panel's rows take before they are transposed.
pub(super) const LOOSE_LEN: usize = 1 << 11;

/// How rows of `x` are packed: in panels for the tiles of a kernel, and blocks of the depth.
#[derive(Clone, Copy)]
pub(super) struct Packing {
    instructions: Instructions,
    form: Form,
    /// Elements of a row in a block.
    depth: usize,
}

#[derive(Clone, Copy)]
enum Form {
    Bytes(RoundedPanels),
    Elements(Factors),
}

impl Packing {
    /// For matmuls in integers.
    pub(super) fn bytes(instructions: Instructions, panels: RoundedPanels) -> Self {
        Self {
            instructions,
            form: Form::Bytes(panels),
            depth: microkernel::QUANTS_DEPTH,
        }
    }

    /// For all others.
    pub(super) fn elements(instructions: Instructions, factors: Factors) -> Self {
        Self {
            instructions,
            form: Form::Elements(factors),
            depth: microkernel::DEPTH,
        }
    }

    /// The same with shorter blocks of the depth.
    pub(super) fn with_depth(self, depth: usize) -> Self {
        Self { depth, ..self }
    }

    /// Whether rows are packed alike, on the same device.
    pub(super) fn equals(self, other: Self) -> bool {
        match (self.form, other.form) {
            (Form::Bytes(own), Form::Bytes(other)) => {
                (own.group(), own.is_wide()) == (other.group(), other.is_wide())
            }
            (Form::Elements(own), Form::Elements(other)) => {
                discriminant(&own) == discriminant(&other)
            }
            _ => false,
        }
    }

    /// Most rows of a panel.
    fn panel_rows(self) -> usize {
        match self.form {
            Form::Bytes(_) => byte_kernel::ROWS,
            Form::Elements(Factors::Pairs(kernel)) => kernel.panel_rows(),
            Form::Elements(_) => Microkernel::of(self.instructions).rows,
        }
    }

    /// Words that so much of the depth of a panel takes.
    fn words(self, depth: usize) -> usize {
        match self.form {
            Form::Bytes(panels) => panels.words(depth),
            Form::Elements(Factors::Pairs(kernel)) => kernel.panel_words(depth),
            Form::Elements(_) => Microkernel::of(self.instructions).packed_lanes(1) * depth,
        }
    }

    /// Packs a block of the depth of a panel.
    fn pack(self, x: MatrixRows<'_>, loose: &mut [f32], packed: &mut [f32]) {
        // Short stretches that another core may have written, which the hardware doesn't foresee: waiting for them took three
        // quarters of the time.
        for row in 0..x.count() {
            prefetch(x.row(row).as_ptr().cast(), size_of_val(x.row(row)));
        }
        match self.form {
            Form::Bytes(panels) => panels.pack(x, loose, packed),
            Form::Elements(Factors::Pairs(kernel)) => {
                // SAFETY: `pair_kernel` made sure of the instructions.
                unsafe { kernel.pack_rows(x, packed, loose) };
            }
            Form::Elements(factors) => {
                Microkernel::of(self.instructions).pack_rows(x, packed);
                if matches!(factors, Factors::Rounded) {
                    round_to_bf16(self.instructions, packed);
                }
            }
        }
    }

    /// The pieces that rows of this width are packed in, each as much of the depth as there is space for: a row of weights is
    /// then read in long stretches.
    pub(super) fn pieces(
        self,
        rows: Range<usize>,
        width: usize,
        space: usize,
    ) -> impl Iterator<Item = Piece> {
        let panels = RowPanels::new(rows, self.panel_rows());
        let block = self.words(self.depth);
        // Equal parts instead of full ones and a rest: each part goes past all weights, whose dequantization it pays
        // anew.
        let parts = panels.len().div_ceil(space / block);
        (0..parts).flat_map(move |part| {
            let panels = panels.part(part, parts);
            let depth = space / (panels.len() * block) * self.depth;
            (0..width).step_by(depth).map(move |from| Piece {
                packing: self,
                panels: panels.clone(),
                span: from..width.min(from + depth),
            })
        })
    }
}

/// A part of the depth of rows of `x` that are packed together: block after block of the depth, panel after panel, the order
/// in which they are multiplied.
#[derive(Clone)]
pub(super) struct Piece {
    packing: Packing,
    pub(super) panels: RowPanels,
    pub(super) span: Range<usize>,
}

impl Piece {
    pub(super) fn words(&self) -> usize {
        let blocks = self.blocks().map(|block| self.packing.words(block.len()));
        self.panels.len() * blocks.sum::<usize>()
    }

    fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (span, depth) = (self.span.clone(), self.packing.depth);
        (span.clone().step_by(depth)).map(move |from| from..span.end.min(from + depth))
    }

    /// Its parts, each with the place where it is packed: disjoint ones, one after another from the beginning of `packed`,
    /// which begins after them then.
    fn parts<'a>(
        &self,
        x: &'a Activation,
        packed: &mut &'a mut [f32],
        mut take: impl FnMut(MatrixRows<'a>, &'a mut [f32]),
    ) {
        let (width, first) = (x.width(), self.panels.rows().start);
        for block in self.blocks() {
            let words = self.packing.words(block.len());
            for (row, count) in self.panels.iter() {
                let values = &x.values()[(first + row) * width + block.start..];
                let place = packed.split_off_mut(..words);
                let place = place.expect("pieces have as many words as they take");
                take(MatrixRows::new(values, width, count, block.len()), place);
            }
        }
    }

    /// Packs it on this thread.
    pub(super) fn pack<'a>(
        &self,
        x: &Activation,
        packed: &'a mut [f32],
        loose: &mut [f32],
    ) -> PackedRows<'a> {
        let place = &mut packed[..self.words()];
        self.parts(x, &mut { place }, |x, packed| {
            self.packing.pack(x, loose, packed);
        });
        self.packed(&mut &*packed)
    }

    /// What was packed at the beginning of `packed`, which begins after it then.
    fn packed<'a>(&self, packed: &mut &'a [f32]) -> PackedRows<'a> {
        let words = packed.split_off(..self.words());
        PackedRows {
            piece: self.clone(),
            panels: self.panels.clone(),
            words: words.expect("as many words were packed"),
        }
    }
}

impl CpuBackend {
    /// Packs pieces of `x`, whose words the buffer holds, on all threads.
    pub(super) fn pack<'a>(
        &self,
        x: &Activation,
        pieces: impl Iterator<Item = &'a Piece> + Clone,
        buffer: &'a mut [f32],
    ) -> Vec<PackedRows<'a>> {
        let mut parts = Vec::new();
        let mut rest = &mut *buffer;
        for piece in pieces.clone() {
            piece.parts(x, &mut rest, |x, packed| {
                parts.push((piece.packing, x, packed));
            });
        }
        let elements = parts.first().map_or(1, |(_, x, _)| x.count() * x.depth());
        let few = FEW_ELEMENTS.div_ceil(elements);
        let parts = parts.into_par_iter().with_min_len(few);
        parts.for_each(|(packing, x, packed)| {
            (self.scratch).with(|scratch| packing.pack(x, &mut scratch[..LOOSE_LEN], packed));
        });
        let mut rest = &*buffer;
        let packed = pieces.map(|piece| piece.packed(&mut rest));
        packed.collect()
    }
}

/// Packed rows of `x`, or some of their panels.
#[derive(Clone)]
pub(super) struct PackedRows<'a> {
    piece: Piece,
    pub(super) panels: RowPanels,
    words: &'a [f32],
}

impl<'a> PackedRows<'a> {
    /// Of these panels.
    pub(super) fn of(&self, panels: RowPanels) -> Self {
        Self {
            panels,
            ..self.clone()
        }
    }

    /// The part of the depth that they are packed for.
    pub(super) fn span(&self) -> &Range<usize> {
        &self.piece.span
    }

    /// Its blocks.
    pub(super) fn blocks(&self) -> impl Iterator<Item = PackedBlock<'_>> {
        let all = &self.piece.panels;
        let mut rest = self.words;
        self.piece.blocks().map(move |part| {
            let words = self.piece.packing.words(part.len());
            let (block, after) = rest.split_at(all.len() * words);
            rest = after;
            let before = self.panels.behind(all) * words;
            PackedBlock {
                part,
                panels: &self.panels,
                words: &block[before..][..self.panels.len() * words],
            }
        })
    }
}

/// A block of the depth of packed rows.
pub(super) struct PackedBlock<'a> {
    /// The elements of a row.
    pub(super) part: Range<usize>,
    pub(super) panels: &'a RowPanels,
    pub(super) words: &'a [f32],
}

impl PackedBlock<'_> {
    /// Each panel's first row, number of rows, and words.
    pub(super) fn each_panel(&self) -> impl Iterator<Item = ((usize, usize), &[f32])> {
        let words = self.words.len() / self.panels.len();
        self.panels.iter().zip(self.words.chunks_exact(words))
    }
}
