//! The distributions of two LM heads beside each other, in pieces of the vocabulary: how far one is from the other,
//! without a matrix of rows × vocabulary.

mod gpu;

use rayon::prelude::*;
use sluice_machine::MemoryKind;
use sluice_weights::Weight;

use self::gpu::GpuComparison;
use super::{
    Activation, Backend, Ops,
    cpu::CpuBackend,
    lm_head::{PIECE_COLUMNS_MIN, whole_columns},
};
use crate::{OpsError, device::DeviceBuffer};

/// Logits of both LM heads that exist at once: 4 MiB, or the least number of columns where that is more.
const PIECE_LOGITS: usize = 1 << 19;

/// How far a row's second distribution is from its first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Divergence {
    /// KL(first ‖ second), in nats; 0 where they are equal.
    pub kl: f64,
    /// Whether both have the same most probable token.
    pub same_top: bool,
    /// Log-probabilities of the row's target by both, in nats.
    pub target: [f64; 2],
}

/// One LM head's side of a row between pieces.
#[derive(Debug, Clone, Copy)]
pub(super) struct ComparisonSide {
    /// Largest logit so far, its place, and the sum of `exp(logit - max)`.
    pub(super) max: f32,
    pub(super) top: usize,
    pub(super) sum: f64,
    pub(super) target: f32,
}

/// A row between pieces.
#[derive(Debug, Clone, Copy)]
pub(super) struct ComparisonRow {
    pub(super) target: u32,
    pub(super) sides: [ComparisonSide; 2],
    /// Sum of `exp(first - max of first) · (first - second)`.
    pub(super) difference: f64,
}

/// The state of a comparison of rows by both LM heads.
pub struct Comparison {
    rows: usize,
    logits: [DeviceBuffer<f32>; 2],
    columns: usize,
    state: ComparisonState,
}

/// Where the rows' states are.
enum ComparisonState {
    Cpu(Vec<ComparisonRow>),
    Gpu(GpuComparison),
}

impl Ops {
    /// Begins to compare the distributions of as many rows as there are targets, by LM heads whose largest part has
    /// `part_rows` of the vocabulary.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn start_comparison(
        &self,
        targets: &[u32],
        part_rows: usize,
    ) -> Result<Comparison, OpsError> {
        let columns = (PIECE_LOGITS / targets.len().max(1)).max(PIECE_COLUMNS_MIN);
        let columns = whole_columns(columns, part_rows);
        let (device, ledger) = (&self.device, &self.ledger);
        let piece =
            || DeviceBuffer::new(device, ledger, MemoryKind::Logits, columns * targets.len());
        Ok(Comparison {
            rows: targets.len(),
            logits: [piece()?, piece()?],
            columns,
            state: match &self.backend {
                Backend::Gpu(gpu) => {
                    ComparisonState::Gpu(gpu.start_comparison(targets, device, ledger)?)
                }
                Backend::Cpu(_) | Backend::DryRun => {
                    ComparisonState::Cpu(targets.iter().copied().map(ComparisonRow::new).collect())
                }
            },
        })
    }

    /// Takes the next part of both LM heads, whose first row is `first` of the vocabulary, for the rows of both.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When rows or parts don't match.
    pub fn compare_lm_heads(
        &self,
        comparison: &mut Comparison,
        x: [&Activation; 2],
        parts: [&Weight<'_>; 2],
        first: usize,
    ) -> Result<(), OpsError> {
        assert!(x.iter().all(|x| x.len() == comparison.rows));
        assert_eq!(parts[0].rows, parts[1].rows);
        // A head without rows has pieces of no columns, and `step_by(0)` would panic.
        for from in (0..parts[0].rows).step_by(comparison.columns.max(1)) {
            let to = parts[0].rows.min(from + comparison.columns);
            let pieces = parts.map(|part| part.rows(from, to));
            match &self.backend {
                Backend::Cpu(cpu) => comparison.take_on_cpu(cpu, x, &pieces, first + from),
                Backend::Gpu(gpu) => {
                    let ComparisonState::Gpu(state) = &comparison.state else {
                        unreachable!("began on the GPU")
                    };
                    let logits = comparison.logits.each_ref().map(DeviceBuffer::span);
                    gpu.compare_lm_heads(state, logits, x, &pieces, first + from)?;
                }
                Backend::DryRun => {}
            }
        }
        Ok(())
    }
}

impl ComparisonRow {
    pub(super) fn new(target: u32) -> Self {
        let side = ComparisonSide {
            max: f32::NEG_INFINITY,
            top: 0,
            sum: 0.0,
            target: f32::NEG_INFINITY,
        };
        Self {
            target,
            sides: [side; 2],
            difference: 0.0,
        }
    }

    fn take(&mut self, one: &[f32], other: &[f32], from: usize) {
        let before = self.sides[0].max;
        for (side, logits) in self.sides.iter_mut().zip([one, other]) {
            side.take(logits, from, self.target);
        }
        let max = self.sides[0].max;
        // As in a running softmax: the sum so far was taken relative to a smaller maximum.
        self.difference *= f64::from(before - max).exp();
        let terms = one.iter().zip(other).map(|(one, other)| {
            // Differences in `f64`: near-equal distributions differ by less than `f32` keeps beside logits of this
            // size.
            let difference = f64::from(*one) - f64::from(*other);
            f64::from(one - max).exp() * difference
        });
        self.difference += terms.sum::<f64>();
    }
}

impl ComparisonSide {
    fn take(&mut self, logits: &[f32], from: usize, target: u32) {
        let before = self.max;
        for (index, &logit) in logits.iter().enumerate() {
            // Strictly larger, so that of equal logits the lower id is the top one, as in the choice of tokens.
            if logit > self.max {
                self.max = logit;
                self.top = from + index;
            }
        }
        let max = self.max;
        self.sum *= f64::from(before - max).exp();
        let terms = logits.iter().map(|logit| f64::from(logit - max).exp());
        self.sum += terms.sum::<f64>();
        let place = (target as usize).checked_sub(from);
        if let Some(&logit) = place.and_then(|place| logits.get(place)) {
            self.target = logit;
        }
    }

    fn log_sum(&self) -> f64 {
        f64::from(self.max) + self.sum.ln()
    }
}

impl Comparison {
    fn take_on_cpu(
        &mut self,
        cpu: &CpuBackend,
        x: [&Activation; 2],
        pieces: &[Weight<'_>; 2],
        first: usize,
    ) {
        let ComparisonState::Cpu(rows) = &mut self.state else {
            unreachable!("began on the CPU")
        };
        let width = pieces[0].rows;
        let [one, other] = self.logits.each_mut();
        let one = &mut one.host_mut()[..rows.len() * width];
        let other = &mut other.host_mut()[..rows.len() * width];
        cpu.run(|| {
            // Both logits must exist at once: KL needs their difference token by token.
            cpu.gemm_one(x[0], &pieces[0], one, false);
            cpu.gemm_one(x[1], &pieces[1], other, false);
            // Each row's sums are one thread's, in the order of tokens: the number of threads changes nothing.
            rows.par_iter_mut()
                .zip(one.par_chunks_exact(width))
                .zip(other.par_chunks_exact(width))
                .for_each(|((row, one), other)| row.take(one, other, first));
        });
    }

    /// The divergence of each row, once both LM heads were taken.
    ///
    /// # Errors
    /// When a row's logits are NaN (its index then stands for the position), or the device fails.
    pub fn divergences(self) -> Result<Vec<Divergence>, OpsError> {
        let divergence = |(position, row): (usize, &ComparisonRow)| {
            let [one, other] = row.sides;
            // KL(p ‖ q) = Σ p (a − b) − log Σ e^a + log Σ e^b, for logits a and b of p and q.
            let kl = row.difference / one.sum - one.log_sum() + other.log_sum();
            if !kl.is_finite() {
                return Err(OpsError::NotANumber { position });
            }
            Ok(Divergence {
                // Rounding leaves equal distributions slightly above or below 0.
                kl: kl.max(0.0),
                same_top: one.top == other.top,
                target: row
                    .sides
                    .map(|side| f64::from(side.target) - side.log_sum()),
            })
        };
        let rows = match self.state {
            ComparisonState::Cpu(rows) => rows,
            ComparisonState::Gpu(state) => state.read()?,
        };
        rows.iter().enumerate().map(divergence).collect()
    }
}

#[cfg(test)]
mod tests {

    use sluice_formats::{DType, Format, noise::Noise};
    use sluice_weights::WeightData;

    use super::*;
    use crate::{device::Device, ledger::Ledger};

    const WIDTH: usize = 8;
    const VOCABULARY: usize = 3000;
    const ROWS: usize = 300;

    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let noise = Noise::new(seed);
        (0..count as u64)
            .map(|place| noise.uniform(0, place, 0) as f32 * 3.0 - 1.5)
            .collect()
    }

    fn weight(elements: &[f32]) -> Weight<'_> {
        Weight {
            format: Format::F32,
            rows: VOCABULARY,
            width: WIDTH,
            data: WeightData::Host(bytemuck::cast_slice(elements)),
            weights_version: 0,
        }
    }

    fn compare(x: [&[f32]; 2], heads: [&[f32]; 2]) -> Vec<Divergence> {
        let ops = Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap();
        let x = x.map(|values| {
            let mut rows = ops.pool.take(ROWS, WIDTH, DType::F32).unwrap();
            rows.values_mut().copy_from_slice(values);
            rows
        });
        let heads = heads.map(weight);
        let targets: Vec<u32> = (0..ROWS as u32).map(|row| row * 7).collect();
        let half = VOCABULARY / 2 + 1;
        let mut comparison = ops.start_comparison(&targets, half).unwrap();
        for (from, to) in [(0, half), (half, VOCABULARY)] {
            let parts = heads.map(|head| head.rows(from, to));
            ops.compare_lm_heads(
                &mut comparison,
                [&x[0], &x[1]],
                [&parts[0], &parts[1]],
                from,
            )
            .unwrap();
        }
        comparison.divergences().unwrap()
    }

    fn log_softmax(x: &[f32], head: &[f32]) -> Vec<f64> {
        let logits: Vec<f64> = head
            .chunks_exact(WIDTH)
            .map(|weights| {
                let products = weights.iter().zip(x);
                products.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
            })
            .collect();
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits.iter().map(|logit| (logit - max).exp()).sum();
        logits.iter().map(|logit| logit - max - sum.ln()).collect()
    }

    #[test]
    fn pieces_add_up_to_the_whole_distributions() {
        let x = [numbers(ROWS * WIDTH, 1), numbers(ROWS * WIDTH, 2)];
        let heads = [
            numbers(VOCABULARY * WIDTH, 3),
            numbers(VOCABULARY * WIDTH, 4),
        ];
        let found = compare([&x[0], &x[1]], [&heads[0], &heads[1]]);
        for (row, found) in found.iter().enumerate() {
            let logs =
                [0, 1].map(|side| log_softmax(&x[side][row * WIDTH..][..WIDTH], &heads[side]));
            let pairs = logs[0].iter().zip(&logs[1]);
            let kl: f64 = pairs.map(|(p, q)| p.exp() * (p - q)).sum();
            assert!(
                (found.kl - kl).abs() < 1e-4 * kl.max(1.0),
                "{} for {kl}",
                found.kl
            );
            for (target, logs) in found.target.iter().zip(&logs) {
                assert!((target - logs[row * 7]).abs() < 1e-4);
            }
        }
        assert!(found.iter().any(|found| !found.same_top));
    }

    #[test]
    fn a_distribution_is_no_distance_from_itself() {
        let x = numbers(ROWS * WIDTH, 1);
        let head = numbers(VOCABULARY * WIDTH, 3);
        for found in compare([&x, &x], [&head, &head]) {
            assert!(found.kl < 1e-9 && found.same_top);
            assert_eq!(found.target[0], found.target[1]);
        }
    }
}
