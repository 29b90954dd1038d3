//! Mixtures of experts: which rows go through which expert, and what comes of it.

use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use sluice_formats::DType;
use sluice_weights::{Router, Weight};

use crate::{
    Activation, Backend, Ops, OpsError, Phase,
    gpu::{RouterWeights, router_task_words},
};

/// Which experts rows go through, sorted by expert and then by row.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Routing {
    /// Where each expert's rows begin, and the end.
    offsets: Vec<usize>,
    rows: Vec<u32>,
    /// What the expert counts for the row.
    weights: Vec<f32>,
}

impl Routing {
    /// From the experts of each row, in any order, and what each counts.
    fn sorted(experts: usize, per_row: usize, chosen: &[u32], weights: &[f32]) -> Self {
        let mut offsets = vec![0; experts + 1];
        for &expert in chosen {
            offsets[expert as usize + 1] += 1;
        }
        for expert in 0..experts {
            offsets[expert + 1] += offsets[expert];
        }
        let mut next = offsets.clone();
        let mut routing = Self {
            offsets,
            rows: vec![0; chosen.len()],
            weights: vec![0.0; chosen.len()],
        };
        for (index, (&expert, &weight)) in chosen.iter().zip(weights).enumerate() {
            let place = &mut next[expert as usize];
            routing.rows[*place] = (index / per_row) as u32;
            routing.weights[*place] = weight;
            *place += 1;
        }
        routing
    }

    /// A routing that adds rows as they are to these rows, which rise: as if all were of one expert.
    pub(crate) fn of_sums(rows: &[usize]) -> Self {
        Self {
            offsets: vec![0, rows.len()],
            rows: rows.iter().map(|&row| row as u32).collect(),
            weights: vec![1.0; rows.len()],
        }
    }

    /// Number of experts.
    #[must_use]
    pub fn experts(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The places of an expert's rows.
    #[must_use]
    pub fn places(&self, expert: usize) -> Range<usize> {
        self.offsets[expert]..self.offsets[expert + 1]
    }

    /// Rows that have experts at these places, and for a GPU's kernel: these rows, where the entries of each begin, and the
    /// end; then each entry's place, counted from the first, with the bits of what it counts.
    fn by_row(&self, places: Range<usize>) -> (usize, Vec<usize>) {
        let mut entries: Vec<_> = (places.clone().zip(self.rows(places.clone())))
            .map(|(place, row)| (row, place - places.start, self.weights[place].to_bits()))
            .collect();
        // A row's stay in the order of its experts.
        entries.sort_unstable();
        let (mut rows, mut starts) = (Vec::new(), Vec::new());
        for (index, &(row, ..)) in entries.iter().enumerate() {
            if rows.last() != Some(&row) {
                rows.push(row);
                starts.push(index);
            }
        }
        starts.push(entries.len());
        let count = rows.len();
        let entries = (entries.iter()).flat_map(|&(_, place, bits)| [place, bits as usize]);
        (
            count,
            rows.into_iter().chain(starts).chain(entries).collect(),
        )
    }

    /// The routing through these experts alone.
    #[must_use]
    pub fn only(&self, is_one: impl Fn(usize) -> bool) -> Self {
        let mut only = Self {
            offsets: vec![0],
            ..Self::default()
        };
        for expert in 0..self.experts() {
            if is_one(expert) {
                only.rows.extend(&self.rows[self.places(expert)]);
                only.weights.extend(&self.weights[self.places(expert)]);
            }
            only.offsets.push(only.rows.len());
        }
        only
    }

    /// The same among the rows alone that go through any expert, and which rows these are, rising.
    #[must_use]
    pub fn compact(&self) -> (Self, Vec<usize>) {
        let mut touched: Vec<u32> = self.rows.clone();
        touched.sort_unstable();
        touched.dedup();
        let places = self.rows.iter().map(|row| {
            let place = touched.binary_search(row);
            place.expect("all rows are there") as u32
        });
        let compact = Self {
            rows: places.collect(),
            ..self.clone()
        };
        let touched = touched.into_iter().map(|row| row as usize);
        (compact, touched.collect())
    }

    /// The rows at some places, in their order.
    pub fn rows(&self, places: Range<usize>) -> impl Iterator<Item = usize> {
        self.rows[places].iter().map(|&row| row as usize)
    }
}

/// What routers chose, in the order of the layers that were computed: for measuring how many experts passes go through. It grows
/// until it is taken.
#[derive(Debug, Clone, Default)]
pub struct RoutingLog(Arc<Mutex<Vec<Routing>>>);

impl RoutingLog {
    /// Takes what was logged since it was taken last.
    #[must_use]
    pub fn take(&self) -> Vec<Routing> {
        std::mem::take(&mut *self.routings())
    }

    fn routings(&self) -> MutexGuard<'_, Vec<Routing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ops {
    /// Chooses `per_row` experts for each row. Logits are computed in `f32`, whatever the device rounds elsewhere, `rows_max`
    /// rows at a time. Experts may have a number of their `own` ([`Router::choose`]). A GPU chooses by the same rules and is
    /// waited for. A dry run, which has no logits, has all rows go through the first experts.
    ///
    /// # Errors
    /// When memory cannot be allocated, or the device fails.
    ///
    /// # Panics
    /// When there are fewer experts, or the widths differ.
    pub fn route(
        &self,
        x: &Activation,
        router: &Router,
        weight: &Weight<'_>,
        own: Option<&Weight<'_>>,
        per_row: usize,
        rows_max: usize,
    ) -> Result<Routing, OpsError> {
        let _timed = self.timed(Phase::Other);
        assert!(x.width() == weight.width && per_row <= weight.rows);
        let mut chosen: Vec<u32> = (0..x.len()).flat_map(|_| 0..per_row as u32).collect();
        let mut weights = vec![0.0; chosen.len()];
        for start in (0..x.len()).step_by(rows_max) {
            let rows = start..x.len().min(start + rows_max);
            let places = rows.start * per_row..rows.end * per_row;
            let (chosen, weights) = (&mut chosen[places.clone()], &mut weights[places]);
            let router = RouterWeights {
                router,
                matrix: weight,
                own,
                per_row,
            };
            match self.device.is_gpu() {
                true => self.route_on_gpu((x, rows), &router, chosen, weights)?,
                false => self.route_on_cpu((x, rows), &router, chosen, weights)?,
            }
        }
        let routing = Routing::sorted(weight.rows, per_row, &chosen, &weights);
        if let Some(log) = &self.routing_log {
            log.routings().push(routing.clone());
        }
        Ok(routing)
    }

    fn route_on_cpu(
        &self,
        (x, rows): (&Activation, Range<usize>),
        weights_of: &RouterWeights<'_>,
        chosen: &mut [u32],
        weights: &mut [f32],
    ) -> Result<(), OpsError> {
        let RouterWeights {
            router,
            matrix,
            own,
            per_row,
        } = *weights_of;
        let part = self.take_rows(x, &self.indices(rows.clone())?)?;
        let mut logits = self.pool.take(rows.len(), matrix.rows, DType::F32)?;
        let Backend::Cpu(cpu) = &self.backend else {
            return Ok(());
        };
        cpu.gemm_unrounded(&part, matrix, logits.values_mut());
        let own = own.map(|own| {
            let mut values = vec![0.0; matrix.rows];
            own.dequantize(&mut values);
            values
        });
        let chosen = chosen.chunks_exact_mut(per_row);
        let weights = weights.chunks_exact_mut(per_row);
        for ((logits, chosen), weights) in logits.rows_mut().zip(chosen).zip(weights) {
            router.choose(logits, own.as_deref(), chosen, weights);
        }
        Ok(())
    }

    fn route_on_gpu(
        &self,
        (x, rows): (&Activation, Range<usize>),
        weights_of: &RouterWeights<'_>,
        chosen: &mut [u32],
        weights: &mut [f32],
    ) -> Result<(), OpsError> {
        let (count, experts) = (rows.len(), weights_of.matrix.rows);
        // Rows that are `f32` already need no place to be converted to.
        let wide_rows = if x.dtype() == DType::F32 { 0 } else { count };
        let take = |rows, width| self.pool.take(rows, width, DType::F32);
        let wide = take(wide_rows, x.width())?;
        let logits = take(count, experts)?;
        let scratch = take(count, 2 * experts)?;
        let best = take(2 * count, weights_of.per_row)?;
        let tasks = self.indices_in(router_task_words(count), None)?;
        if let Backend::Gpu(gpu) = &self.backend {
            let memory = [&wide, &logits, &scratch, &best];
            gpu.choose_experts((x, rows), weights_of, memory, tasks.span())?;
            let values = gpu.read(&best)?;
            let (experts, counts) = values.split_at(chosen.len());
            for (chosen, expert) in chosen.iter_mut().zip(experts) {
                *chosen = expert.to_bits();
            }
            weights.copy_from_slice(counts);
        }
        Ok(())
    }

    /// Adds all routings to this log from now on.
    pub fn log_routings(&mut self, log: RoutingLog) {
        self.routing_log = Some(log);
    }

    /// Adds rows of `x`, the outputs at these places, to the rows of `out` that they are of, times what they count. A row's
    /// experts are added in their order, whatever other rows go through.
    ///
    /// # Errors
    /// When memory cannot be allocated, or the device fails.
    ///
    /// # Panics
    /// When there are more or fewer places than rows of `x`, or the widths differ.
    pub fn add_routed(
        &self,
        out: &mut Activation,
        x: &Activation,
        routing: &Routing,
        places: Range<usize>,
    ) -> Result<(), OpsError> {
        assert_eq!((x.len(), x.width()), (places.len(), out.width()));
        let _timed = self.timed(Phase::Other);
        match &self.backend {
            Backend::Cpu(_) => {
                let weights = &routing.weights[places.clone()];
                for (place, (row, weight)) in routing.rows(places).zip(weights).enumerate() {
                    for (sum, value) in out.row_mut(row).iter_mut().zip(x.row(place)) {
                        *sum += weight * value;
                    }
                }
            }
            Backend::Gpu(gpu) => {
                let (row_count, lists) = routing.by_row(places.clone());
                let lists = self.indices_in(list_words(places.len()), lists)?;
                gpu.add_routed(out, x, row_count, lists.span())?;
            }
            Backend::DryRun if self.device.is_gpu() => {
                drop(self.indices_in(list_words(places.len()), None)?);
            }
            Backend::DryRun => {}
        }
        Ok(())
    }
}

/// Most words of the lists of `places` places ([`Routing::by_row`]).
fn list_words(places: usize) -> usize {
    4 * places + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_by_expert_and_keep_their_order() {
        // Two experts of each of three rows.
        let routing = Routing::sorted(4, 2, &[3, 0, 1, 3, 3, 1], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let of = |expert: usize| {
            let places = routing.places(expert);
            let weights = routing.weights[places.clone()].to_vec();
            (routing.rows(places).collect::<Vec<_>>(), weights)
        };
        assert_eq!(of(0), (vec![0], vec![2.0]));
        assert_eq!(of(1), (vec![1, 2], vec![3.0, 6.0]));
        assert_eq!(of(2), (vec![], vec![]));
        assert_eq!(of(3), (vec![0, 1, 2], vec![1.0, 4.0, 5.0]));
        // Of some experts alone, and among the rows that go through these.
        let some = routing.only(|expert| expert == 1 || expert == 2);
        assert_eq!(
            (some.experts(), some.places(0), some.places(1)),
            (4, 0..0, 0..2)
        );
        assert_eq!(some.rows(0..2).collect::<Vec<_>>(), [1, 2]);
        assert_eq!((&some.weights[..], some.places(3)), (&[3.0, 6.0][..], 2..2));
        let (compact, rows) = some.compact();
        assert_eq!(compact.rows(0..2).collect::<Vec<_>>(), [0, 1]);
        assert_eq!((&compact.weights, rows), (&some.weights, vec![1, 2]));
        let bits = |weight: f32| weight.to_bits() as usize;
        let (rows, lists) = routing.by_row(1..6);
        assert_eq!(rows, 3);
        assert_eq!(lists[..7], [0, 1, 2, 0, 1, 3, 5]);
        let entries = [(2, 1.0), (0, 3.0), (3, 4.0), (1, 6.0), (4, 5.0)];
        let entries = entries.map(|(place, weight)| [place, bits(weight)]);
        assert_eq!(lists[7..], entries.concat());
    }
}
