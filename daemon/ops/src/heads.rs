//! Rows of a pruned layer: some of the model's KV heads, each with what belongs to it.

use rayon::prelude::*;
use sluice_weights::KeptKvHeads;

use super::{Activation, Backend, Ops, OpsError, Phase};

impl Ops {
    /// Rows of `kv_heads` heads from rows of the kept ones, with zeros in the place of the others. What belongs to a
    /// head, such as its query heads, lies together.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    ///
    /// # Panics
    /// When a row is no whole number of the kept heads.
    pub fn spread_heads(
        &self,
        x: Activation,
        kept: &KeptKvHeads,
        kv_heads: usize,
    ) -> Result<Activation, OpsError> {
        let _timed = self.timed(Phase::Attention);
        let (rows, dtype) = (x.len(), x.dtype());
        let width = head_width(&x, kept.len());
        if !self.device.is_gpu() {
            let mut out = self.pool.take(rows, kv_heads * width, dtype)?;
            if let Backend::Cpu(cpu) = &self.backend {
                cpu.run(|| {
                    let rows = out.par_rows_mut().enumerate();
                    rows.for_each(|(row, out)| {
                        out.fill(0.0);
                        for (head, values) in kept.iter().zip(x.row(row).chunks_exact(width)) {
                            out[head * width..][..width].copy_from_slice(values);
                        }
                    });
                });
            }
            return Ok(out);
        }
        // The kernel only gathers: a head of zeros behind all others is gathered for each that is missing.
        let heads = rows * kept.len();
        let padded = self.pool.take(heads + 1, width, dtype)?;
        if let Backend::Gpu(gpu) = &self.backend {
            gpu.copy(padded.rows_span(0, heads), x.span())?;
            gpu.zero(padded.rows_span(heads, 1))?;
        }
        // Before the output is taken: a pass never holds three forms of the same rows.
        drop(x);
        let mut places = vec![None; kv_heads];
        for (place, head) in kept.iter().enumerate() {
            places[head] = Some(place);
        }
        let place = |row: usize, place: Option<usize>| match place {
            Some(place) => row * kept.len() + place,
            None => heads,
        };
        let places = &places;
        let places =
            (0..rows).flat_map(|row| places.iter().map(move |&of_head| place(row, of_head)));
        let places = self.indices(places)?;
        let out = self.pool.take(rows, kv_heads * width, dtype)?;
        if let Backend::Gpu(gpu) = &self.backend {
            gpu.take_heads(&out, &padded, &places, width)?;
        }
        Ok(out)
    }

    /// Rows of the kept heads, in their order, from rows of all `kv_heads`.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    ///
    /// # Panics
    /// When a row is no whole number of heads.
    pub fn gather_heads(
        &self,
        x: Activation,
        kept: &KeptKvHeads,
        kv_heads: usize,
    ) -> Result<Activation, OpsError> {
        let _timed = self.timed(Phase::Attention);
        let width = head_width(&x, kv_heads);
        let of_row = |row: usize| kept.iter().map(move |head| row * kv_heads + head);
        let places = match self.device.is_gpu() {
            true => Some(self.indices((0..x.len()).flat_map(of_row))?),
            false => None,
        };
        let mut out = self.pool.take(x.len(), kept.len() * width, x.dtype())?;
        match (&self.backend, &places) {
            (Backend::Cpu(cpu), _) => cpu.run(|| {
                let rows = out.par_rows_mut().enumerate();
                rows.for_each(|(row, out)| {
                    for (head, out) in kept.iter().zip(out.chunks_exact_mut(width)) {
                        out.copy_from_slice(&x.row(row)[head * width..][..width]);
                    }
                });
            }),
            (Backend::Gpu(gpu), Some(places)) => gpu.take_heads(&out, &x, places, width)?,
            _ => {}
        }
        Ok(out)
    }
}

/// Elements of a row that belong to each of so many heads.
fn head_width(x: &Activation, heads: usize) -> usize {
    assert!(
        x.width().is_multiple_of(heads),
        "rows of {} elements are not {heads} heads",
        x.width()
    );
    x.width() / heads
}

#[cfg(test)]
mod tests {
    use sluice_formats::DType;

    use super::*;
    use crate::{device::Device, ledger::Ledger};

    #[test]
    fn heads_are_put_in_their_places_and_taken_out_again() {
        let ops = Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap();
        let kept = KeptKvHeads::new(&[1, 2], 4).unwrap();
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let compact = |values| ops.matrix(2, 4, values, DType::F32).unwrap();
        let spread = ops.spread_heads(compact(&values), &kept, 4).unwrap();
        let expected = [
            [0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 0.0, 0.0],
            [0.0, 0.0, 5.0, 6.0, 7.0, 8.0, 0.0, 0.0],
        ];
        assert_eq!(ops.read(&spread).unwrap(), expected.concat());
        let gathered = ops.gather_heads(spread, &kept, 4).unwrap();
        assert_eq!((gathered.len(), gathered.width()), (2, 4));
        assert_eq!(ops.read(&gathered).unwrap(), values);
    }
}
