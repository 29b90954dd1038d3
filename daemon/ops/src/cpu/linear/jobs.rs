//! Which rows of `x` are packed together, and how the products with them are shared out among threads.

use std::ops::Range;

use rayon::prelude::*;
use sluice_machine::Instructions;
use sluice_weights::{Weight, WeightData};

use super::{Columns, Factors, Grid, OWN_PACKED_LEN, OutputTile, Tile, few};
use crate::{
    Activation,
    clock::PhaseClock,
    cpu::{
        CpuBackend,
        microkernel::{Microkernel, RowPanels},
        packed::{LOOSE_LEN, PackedRows, Packing, Piece},
        quantized::QuantizedGemm,
    },
};

impl CpuBackend {
    /// Some rows of `x` and a matrix.
    pub(super) fn job<'a>(&self, rows: Range<usize>, weight: &Weight<'a>, out: Columns) -> Job<'a> {
        let factors = Factors::of(&self.device, weight.format);
        self.job_of(rows, weight, out, factors)
    }

    /// The same with these factors.
    pub(super) fn job_of<'a>(
        &self,
        rows: Range<usize>,
        weight: &Weight<'a>,
        out: Columns,
        factors: Factors,
    ) -> Job<'a> {
        let instructions = self.instructions();
        let products = QuantizedGemm::of(instructions, weight);
        let packing = match &products {
            Some(products) => Packing::bytes(instructions, products.rounded_panels()),
            None => Packing::elements(instructions, factors),
        };
        Job {
            instructions,
            rows,
            factors,
            products,
            packing,
            weight: *weight,
            out,
        }
    }

    /// Does all jobs; their products are disjoint.
    pub(super) fn work(&self, x: &Activation, jobs: &[Job<'_>]) {
        // On the device's threads from here on: scratch is found by the index of the thread.
        self.run(|| {
            let all = jobs.iter().map(|job| job.rows.len() * job.weight.rows);
            let all = all.sum();
            let (mut alone, mut others) = (Vec::new(), Vec::new());
            for jobs in jobs.chunk_by(|a, b| a.rows == b.rows) {
                for job in jobs {
                    match job.is_alone() || jobs.len() == 1 && self.is_one_tile(job, all) {
                        true => alone.push(job),
                        false => others.push(job),
                    }
                }
            }
            if !alone.is_empty() {
                self.work_alone(x, &alone, all);
            }
            if others.is_empty() {
                return;
            }
            self.scratch.with_packed(|buffer| {
                while let [first, ..] = others[..] {
                    let alike;
                    (alike, others) = (others.into_iter())
                        .partition(|job: &&Job<'_>| job.packing.equals(first.packing));
                    self.work_packed(x, &alike, buffer);
                }
            });
        });
    }

    /// Whether a job, some of `all` products, is a single tile, for which its thread can pack all rows: they then stay in the
    /// core's cache. Most experts are.
    fn is_one_tile(&self, job: &Job<'_>, all: usize) -> bool {
        let mut pieces = (job.packing).pieces(job.rows.clone(), job.weight.width, OWN_PACKED_LEN);
        !matches!(job.weight.data, WeightData::Compressed(_))
            && self.grid(&job.panels(), &job.weight, all).len() <= 1
            && pieces.nth(1).is_none()
    }

    /// Does jobs, some of `all` products, whose tiles share nothing but their inputs.
    fn work_alone(&self, x: &Activation, jobs: &[&Job<'_>], all: usize) {
        let grids = (jobs.iter()).map(|job| self.grid(&job.panels(), &job.weight, all));
        let grids: Vec<_> = grids.collect();
        self.each_thread(|scratch| {
            for (job, grid) in jobs.iter().zip(&grids) {
                job.work_alone(x, grid, &self.clock, scratch);
            }
        });
    }

    /// Does jobs whose rows are packed alike, once for all threads and for all matrices of the same rows.
    fn work_packed(&self, x: &Activation, jobs: &[&Job<'_>], buffer: &mut [f32]) {
        // As many pieces at a time as there is space for: those of few rows each, of many experts, go together.
        let (mut batch, mut words) = (Vec::new(), 0);
        for jobs in jobs.chunk_by(|a, b| a.rows == b.rows) {
            let job = jobs[0];
            for piece in (job.packing).pieces(job.rows.clone(), x.width(), buffer.len()) {
                // More of the depth is added to products that are there by then.
                if words + piece.words() > buffer.len() || piece.span.start > 0 {
                    self.work_batch(x, &batch, buffer);
                    batch.clear();
                    words = 0;
                }
                words += piece.words();
                batch.push((piece, jobs));
            }
        }
        self.work_batch(x, &batch, buffer);
    }

    /// Packs pieces, and multiplies each by its matrices.
    fn work_batch(&self, x: &Activation, batch: &[(Piece, &[&Job<'_>])], buffer: &mut [f32]) {
        let packed = self.pack(x, batch.iter().map(|(piece, _)| piece), buffer);
        let all = batch.iter().map(|(piece, jobs)| {
            let columns = jobs.iter().map(|job| job.weight.rows);
            piece.panels.rows().len() * columns.sum::<usize>()
        });
        let all = all.sum();
        let shares = batch.iter().zip(&packed).flat_map(|((_, jobs), x)| {
            jobs.iter()
                .map(move |job| (*job, x, self.grid(&x.panels, &job.weight, all)))
        });
        let shares: Vec<_> = shares.collect();
        // No thread waits for another: each takes one tile after another.
        self.each_thread(|scratch| {
            for (job, x, grid) in &shares {
                while let Some((panels, columns)) = grid.take() {
                    job.multiply(&x.of(panels), columns, &self.clock, scratch);
                }
            }
        });
    }

    fn grid(&self, panels: &RowPanels, weight: &Weight<'_>, all: usize) -> Grid {
        let kernel = Microkernel::of(self.instructions());
        Grid::new(panels, weight, all, self.device.threads(), kernel)
    }

    /// Does `work` on every thread, with its scratch.
    fn each_thread(&self, work: impl Fn(&mut [f32]) + Sync) {
        let threads = (0..self.device.threads()).into_par_iter().with_max_len(1);
        threads.for_each(|_| self.scratch.with(&work));
    }
}

/// Some rows of `x`, and the matrix that they are multiplied with.
pub(super) struct Job<'a> {
    instructions: Instructions,
    rows: Range<usize>,
    factors: Factors,
    /// What multiplies them in integers.
    products: Option<QuantizedGemm>,
    packing: Packing,
    weight: Weight<'a>,
    out: Columns,
}

impl Job<'_> {
    /// All of its rows, which threads that pack for themselves have together.
    fn panels(&self) -> RowPanels {
        RowPanels::new(self.rows.clone(), self.rows.len())
    }

    /// Whether its threads pack what they need for themselves, if anything: few rows aren't packed, but for the last weights
    /// of some matrices, and weights that are decompressed in whole rows meet all of `x` at once.
    fn is_alone(&self) -> bool {
        let weight = &self.weight;
        match (&self.products, weight.data) {
            (Some(products), _) => products.few(self.rows.len(), weight).is_some(),
            (None, WeightData::Compressed(_)) => !weight.has_columns(),
            (None, _) => few(self.instructions, self.factors, self.rows.len(), weight).is_some(),
        }
    }

    /// Multiplies tiles for as long as there are any; of rows that aren't few, in integers, the only one.
    fn work_alone(&self, x: &Activation, grid: &Grid, clock: &PhaseClock, scratch: &mut [f32]) {
        let (weight, rows) = (&self.weight, &self.rows);
        let Some(products) = &self.products else {
            while let Some((_, columns)) = grid.take() {
                let part = weight.rows(columns.start, columns.end);
                // SAFETY: tiles are disjoint and taken once, and the products' outputs are, too.
                let own = unsafe { self.out.tile(rows.clone(), columns) };
                let mut tile = self.tile(own, scratch);
                match weight.data {
                    WeightData::Compressed(_) => tile.gemm_compressed(&part, x, clock),
                    _ => tile.gemm_dequantized(&part, 0, x),
                }
            }
            return;
        };
        // SAFETY: tiles are disjoint and taken once, and the products' outputs are, too.
        let own = unsafe { self.out.tile(rows.clone(), 0..weight.rows) };
        let out = own.part(rows, 0, weight.rows);
        let mut tiles = || grid.take().map(|(_, columns)| columns);
        let rest = match products.few(rows.len(), weight) {
            Some(kernels) => {
                let x = &x.values()[rows.start * weight.width..rows.end * weight.width];
                // SAFETY: rows and columns are inside the output and of these tiles alone.
                unsafe { products.gemm_few(kernels, x, weight, out, &mut tiles, scratch) }
            }
            None => tiles(),
        };
        let Some(rest) = rest else {
            return;
        };
        let (loose, scratch) = scratch.split_at_mut(LOOSE_LEN);
        let (packed, scratch) = scratch.split_at_mut(OWN_PACKED_LEN);
        for piece in (self.packing).pieces(rows.clone(), weight.width, packed.len()) {
            let x = piece.pack(x, packed, loose);
            let out = own.part(&x.panels.rows(), 0, weight.rows);
            // SAFETY: as above.
            unsafe { products.gemm(&x, weight, rest.clone(), out, scratch) };
        }
    }

    /// Multiplies packed rows by the weight rows of a tile.
    fn multiply(
        &self,
        x: &PackedRows<'_>,
        columns: Range<usize>,
        clock: &PhaseClock,
        scratch: &mut [f32],
    ) {
        let (weight, rows) = (&self.weight, x.panels.rows());
        if let Some(products) = &self.products {
            // SAFETY: tiles are disjoint and taken once, and the products' outputs are, too; all of the columns are named,
            // and those of the tile are written.
            let own = unsafe { self.out.tile(rows.clone(), 0..weight.rows) };
            let out = own.part(&rows, 0, weight.rows);
            // SAFETY: as above.
            unsafe { products.gemm(x, weight, columns, out, scratch) };
            return;
        }
        let part = weight.rows(columns.start, columns.end);
        // SAFETY: tiles are disjoint and taken once, and the products' outputs are, too.
        let own = unsafe { self.out.tile(rows, columns) };
        let mut tile = self.tile(own, scratch);
        match weight.has_columns() {
            true => tile.gemm_columns(&part, x, clock),
            false => tile.gemm_panels(&part, 0, x),
        }
    }

    fn tile<'a>(&self, out: OutputTile<'a>, scratch: &'a mut [f32]) -> Tile<'a> {
        Tile::new(self.instructions, self.factors, out, scratch)
    }
}
