//! The distributions of rows in the pass before, to measure how far they have moved.

use half::bf16;
use sluice_machine::MemoryKind;

use super::super::Ops;
use crate::{OpsError, ledger::HostBuffer};

/// The last distributions of the positions of a block, one each, as bf16 logits: `f32` would take twice the memory to
/// tell whether a distribution has moved by a hundredth.
#[derive(Debug)]
pub struct Distributions {
    /// Rows of the LM head: logits of a distribution.
    lm_head_rows: usize,
    /// Logits: those of position p are in place p modulo the count of places.
    logits: Logits,
    /// Which position's distribution each place holds.
    stored: Vec<Option<StoredDistribution>>,
}

/// On the CPU in the ledger. Beside a GPU in plain host memory: rows that are compared are reduced here, wherever the
/// matmul runs.
#[derive(Debug)]
enum Logits {
    Device(HostBuffer<bf16>),
    Host(Vec<bf16>),
}

#[derive(Debug, Clone, Copy)]
struct StoredDistribution {
    position: usize,
    pass: usize,
    log_sum: f64,
}

impl Ops {
    /// Allocates memory for the distributions of `count` consecutive positions, over an LM head of `lm_head_rows` rows.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn distributions(
        &self,
        count: usize,
        lm_head_rows: usize,
    ) -> Result<Distributions, OpsError> {
        let len = count * lm_head_rows;
        Ok(Distributions {
            lm_head_rows,
            logits: match (self.device.is_gpu(), self.device.gpu()) {
                (false, _) => Logits::Device(self.ledger.buffer(MemoryKind::Logits, len)?),
                (true, Some(_)) => Logits::Host(vec![bf16::ZERO; len]),
                // A dry run.
                (true, None) => Logits::Host(Vec::new()),
            },
            stored: vec![None; count],
        })
    }
}

impl Distributions {
    /// The log-sum of a position's logits, if the pass before this one left them. Removes the entry: until
    /// [`Distributions::put`] it is not valid, since a pass may fail between.
    pub(super) fn take(&mut self, position: usize, pass: usize) -> Option<f64> {
        let place = position % self.stored.len();
        let held = self.stored[place].take();
        held.filter(|held| held.position == position && held.pass + 1 == pass)
            .map(|held| held.log_sum)
    }

    /// Records that this pass has written all logits of a position to its place.
    pub(super) fn put(&mut self, position: usize, pass: usize, log_sum: f64) {
        let place = position % self.stored.len();
        self.stored[place] = Some(StoredDistribution {
            position,
            pass,
            log_sum,
        });
    }

    /// Where each place has the logits of these tokens.
    pub(super) fn pieces(&mut self, first: usize, len: usize) -> DistributionPieces<'_> {
        let logits = match &mut self.logits {
            Logits::Device(buffer) => &mut buffer[..],
            Logits::Host(values) => &mut values[..],
        };
        let places = logits.chunks_exact_mut(self.lm_head_rows);
        DistributionPieces(
            places
                .map(|place| Some(&mut place[first..][..len]))
                .collect(),
        )
    }
}

/// A piece of each place, which can be taken once: rows of a piece are reduced in parallel.
pub(super) struct DistributionPieces<'a>(Vec<Option<&'a mut [bf16]>>);

impl<'a> DistributionPieces<'a> {
    pub(super) fn of(&mut self, position: usize) -> &'a mut [bf16] {
        let place = position % self.0.len();
        let piece = self.0[place].take();
        piece.expect("positions of a block have different places")
    }
}

/// The running sums by which a row's divergence is found.
#[derive(Debug, Clone)]
pub(crate) struct DistributionShift {
    /// The log-sum of the pass before, if there is one.
    before: Option<f64>,
    /// Sum of `exp(logit - max) * (logit - logit before)`.
    drift: f64,
    /// Sum of `exp(logit - max)` of the logits as they are stored. Rounded logits with the exact sum would not be a
    /// distribution, and would differ from the next one by rounding alone.
    sum: f64,
}

impl DistributionShift {
    pub(super) fn from(before: Option<f64>) -> Self {
        Self {
            before,
            drift: 0.0,
            sum: 0.0,
        }
    }

    /// Scales the sums to a larger maximum.
    pub(super) fn shrink(&mut self, factor: f64) {
        self.drift *= factor;
        self.sum *= factor;
    }

    /// Compares logits with those before, and stores them in their place.
    pub(super) fn take(&mut self, logits: &[f32], before: &mut [bf16], max: f32) {
        for (&logit, place) in logits.iter().zip(before) {
            let before = std::mem::replace(place, bf16::from_f32(logit)).to_f32();
            let weight = f64::from((logit - max).exp());
            // A token without probability adds nothing; −∞ − −∞ would make the sum NaN.
            if weight > 0.0 {
                self.drift += weight * f64::from(logit - before);
                self.sum += f64::from((place.to_f32() - max).exp());
            }
        }
    }

    /// KL(now ‖ before), of a row whose logits have this sum of `exp(logit - max)`; `None` if the pass before did not
    /// leave the row.
    pub(super) fn divergence(&self, max: f32, sum: f64) -> Option<f64> {
        let log_sum = f64::from(max) + sum.ln();
        let before = self.before?;
        Some(self.drift / sum - log_sum + before)
    }

    /// The log-sum of the logits as they are stored.
    pub(super) fn log_sum(&self, max: f32) -> f64 {
        f64::from(max) + self.sum.ln()
    }
}
