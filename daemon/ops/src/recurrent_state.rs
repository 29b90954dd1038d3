//! Recurrent states: what a model without attention remembers of a sequence, of one size however long that is.

use std::ops::Range;

use sluice_cuda::{GpuSpan, StateRun as GpuRun};
use sluice_machine::MemoryKind;
use sluice_weights::{LayerKind, RWKV7_HEAD_DIM, Shape};

use super::{Backend, Ops};
use crate::{OpsError, device::DeviceBuffer};

/// The sizes of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateShape {
    /// Layers of the model.
    pub layers: usize,
    /// Elements of a row between layers, a multiple of a head's.
    pub hidden_size: usize,
}

impl StateShape {
    /// The state of a model of this shape; `None` if it has attention.
    #[must_use]
    pub fn of(shape: &Shape) -> Option<Self> {
        match shape.layer_kind {
            LayerKind::Rwkv7(_) => Some(Self {
                layers: shape.layers,
                hidden_size: shape.hidden_size,
            }),
            LayerKind::Attention
            | LayerKind::Mixture(_)
            | LayerKind::LatentThought(_)
            | LayerKind::Gemma(_)
            | LayerKind::Encoder(_) => None,
        }
    }

    /// Elements of a layer: the last input of its time mix, that of its channel mix, and a square matrix for each head,
    /// with a row for each key channel.
    fn layer_len(self) -> usize {
        self.hidden_size * (2 + RWKV7_HEAD_DIM)
    }

    /// Elements of a whole state, which are `f32`.
    #[must_use]
    pub fn elements(self) -> usize {
        self.layers * self.layer_len()
    }

    /// Bytes of memory that a sequence takes: its state, and the one that a pass writes.
    #[must_use]
    pub fn bytes(self) -> usize {
        2 * self.elements() * size_of::<f32>()
    }

    /// Where a part of a layer begins and how long it is, in elements.
    fn place(self, layer: usize, part: StatePart) -> Range<usize> {
        let (before, len) = match part {
            StatePart::TimeMixInput => (0, self.hidden_size),
            StatePart::ChannelMixInput => (self.hidden_size, self.hidden_size),
            StatePart::Heads => (2 * self.hidden_size, self.hidden_size * RWKV7_HEAD_DIM),
        };
        let start = layer * self.layer_len() + before;
        start..start + len
    }
}

/// A part of a layer's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatePart {
    /// The normed row of the last token that went into the time mix.
    TimeMixInput,
    /// The same of the channel mix.
    ChannelMixInput,
    /// The matrices of all heads.
    Heads,
}

/// One state in memory.
struct StateMemory {
    memory: DeviceBuffer<f32>,
    shape: StateShape,
}

impl StateMemory {
    fn part(&self, layer: usize, part: StatePart) -> &[f32] {
        &self.memory.host()[self.shape.place(layer, part)]
    }

    fn part_mut(&mut self, layer: usize, part: StatePart) -> &mut [f32] {
        &mut self.memory.host_mut()[self.shape.place(layer, part)]
    }

    fn part_span(&self, layer: usize, part: StatePart) -> GpuSpan {
        let place = self.shape.place(layer, part);
        let bytes = size_of::<f32>();
        (self.memory.span()).part(place.start * bytes, place.len() * bytes)
    }
}

/// The state of a sequence. A pass reads it and writes the next one beside it, so that a pass that failed can be
/// repeated.
pub struct RecurrentState {
    now: StateMemory,
    /// What passes write; a state that is only kept has none.
    next: Option<StateMemory>,
    len: usize,
}

impl RecurrentState {
    /// Tokens that it has read.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has read no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its sizes.
    #[must_use]
    pub fn shape(&self) -> StateShape {
        self.now.shape
    }

    /// Bytes that it holds on the device.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let next = self.next.as_ref().map_or(0, |next| next.memory.bytes());
        self.now.memory.bytes() + next
    }

    /// Makes the state that a pass has written the present one, with `rows` tokens more. With none it was not written.
    ///
    /// # Panics
    /// When it is only kept.
    pub fn advance(&mut self, rows: usize) {
        if rows > 0 {
            self.swap();
            self.len += rows;
        }
    }

    /// Undoes [`RecurrentState::advance`], once: the state before is still there.
    ///
    /// # Panics
    /// When it is only kept.
    pub fn take_back(&mut self, rows: usize) {
        if rows > 0 {
            self.swap();
            self.len -= rows;
        }
    }

    fn swap(&mut self) {
        let next = self.next.as_mut().expect("passes write beside it");
        std::mem::swap(&mut self.now, next);
    }

    /// Counts in what a pass has written here as a fork: the state of `other` before the pass, with `rows` tokens more.
    pub fn forked_from(&mut self, other: &Self, rows: usize) {
        self.len = other.len + rows;
    }

    /// Gives back the memory that only passes need.
    pub fn settle(&mut self) {
        self.next = None;
    }
}

/// Consecutive rows of one sequence in a pass.
#[derive(Debug, Clone)]
struct StateRun {
    rows: Range<usize>,
    /// The run whose state it goes on from, if that is of this pass; else its own state as it was before.
    follows: Option<usize>,
}

/// The states of a pass's sequences.
#[derive(Default)]
pub struct PassStates<'a> {
    runs: Vec<StateRun>,
    /// For each run what it reads (unless it follows another), and what it writes.
    memories: Vec<(&'a StateMemory, &'a mut StateMemory)>,
}

impl<'a> PassStates<'a> {
    /// Adds a sequence of these rows, unless there are none. With a fork, the state after so many of its rows is written there, too.
    ///
    /// # Panics
    /// When the fork is not within the rows, or the state is only kept.
    pub fn add(
        &mut self,
        rows: Range<usize>,
        state: &'a mut RecurrentState,
        fork: Option<(usize, &'a mut RecurrentState)>,
    ) {
        let RecurrentState { now, next, .. } = state;
        let next = next.as_mut().expect("passes write beside it");
        if rows.is_empty() {
            return;
        }
        let Some((count, fork)) = fork else {
            self.runs.push(StateRun {
                rows,
                follows: None,
            });
            self.memories.push((now, next));
            return;
        };
        assert!((1..rows.len()).contains(&count));
        let middle = rows.start + count;
        self.runs.push(StateRun {
            rows: rows.start..middle,
            follows: None,
        });
        self.memories.push((now, &mut fork.now));
        self.runs.push(StateRun {
            rows: middle..rows.end,
            follows: Some(self.runs.len() - 1),
        });
        self.memories.push((now, next));
    }

    /// The rows of each run, in order.
    pub(super) fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        self.runs.iter().map(|run| run.rows.clone())
    }

    /// The row before a run's first, of an input of this layer: in the pass where the run follows another, else in the
    /// state.
    pub(super) fn before(&self, run: usize, layer: usize, part: StatePart) -> RowBefore<'_> {
        match self.runs[run].follows {
            Some(_) => RowBefore::InPass(self.runs[run].rows.start - 1),
            None => RowBefore::Kept(self.memories[run].0.part(layer, part)),
        }
    }

    /// What a run writes of a part.
    pub(super) fn after_mut(&mut self, run: usize, layer: usize, part: StatePart) -> &mut [f32] {
        self.memories[run].1.part_mut(layer, part)
    }

    /// The runs on a GPU, with what they read and write of an input. Those that follow another have it in the pass.
    pub(super) fn inputs_on_gpu(&self, layer: usize, part: StatePart) -> Vec<GpuRun> {
        let runs = self.runs.iter().zip(&self.memories);
        let on_gpu = runs.map(|(run, (before, after))| GpuRun {
            rows: run.rows.clone(),
            before: match run.follows {
                Some(_) => None,
                None => Some(before.part_span(layer, part)),
            },
            after: after.part_span(layer, part),
        });
        on_gpu.collect()
    }

    /// The runs on a GPU that follow another, or those that don't, with the heads that they read and write.
    pub(super) fn heads_on_gpu(&self, layer: usize, follows: bool) -> Vec<GpuRun> {
        let heads = |memory: &StateMemory| memory.part_span(layer, StatePart::Heads);
        let runs = (self.runs.iter().zip(&self.memories))
            .filter(|(run, _)| run.follows.is_some() == follows);
        let on_gpu = runs.map(|(run, (before, after))| GpuRun {
            rows: run.rows.clone(),
            before: Some(match run.follows {
                Some(other) => heads(self.memories[other].1),
                None => heads(before),
            }),
            after: heads(after),
        });
        on_gpu.collect()
    }

    /// Copies the heads of a layer to where the runs write them, and calls `work` with the runs and their heads: first
    /// with those that go on from kept states, then with those that follow them.
    pub(super) fn each_wave(
        &mut self,
        layer: usize,
        mut work: impl FnMut(Vec<(Range<usize>, &mut [f32])>),
    ) {
        for follows in [false, true] {
            for index in 0..self.runs.len() {
                match self.runs[index].follows {
                    Some(other) if follows => {
                        // `other` comes before `index`.
                        let (before, rest) = self.memories.split_at_mut(index);
                        let from = before[other].1.part(layer, StatePart::Heads);
                        (rest[0].1.part_mut(layer, StatePart::Heads)).copy_from_slice(from);
                    }
                    None if !follows => {
                        let (from, to) = &mut self.memories[index];
                        let from = from.part(layer, StatePart::Heads);
                        (to.part_mut(layer, StatePart::Heads)).copy_from_slice(from);
                    }
                    _ => {}
                }
            }
            let runs = (self.runs.iter().zip(&mut self.memories))
                .filter(|(run, _)| run.follows.is_some() == follows)
                .map(|(run, (_, to))| (run.rows.clone(), to.part_mut(layer, StatePart::Heads)));
            let runs: Vec<_> = runs.collect();
            if !runs.is_empty() {
                work(runs);
            }
        }
    }
}

/// The row before a run's first.
pub(super) enum RowBefore<'a> {
    /// This row of the pass.
    InPass(usize),
    /// A row of the state.
    Kept(&'a [f32]),
}

impl Ops {
    /// The state of a sequence that has read nothing.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn recurrent_state(&self, shape: StateShape) -> Result<RecurrentState, OpsError> {
        Ok(RecurrentState {
            next: Some(self.state_memory(shape)?),
            ..self.kept_state(shape)?
        })
    }

    /// The same without what passes need: a state to be kept, which a fork or a copy fills.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn kept_state(&self, shape: StateShape) -> Result<RecurrentState, OpsError> {
        Ok(RecurrentState {
            now: self.state_memory(shape)?,
            next: None,
            len: 0,
        })
    }

    fn state_memory(&self, shape: StateShape) -> Result<StateMemory, OpsError> {
        let len = shape.elements();
        // The ledger's buffers are all zero.
        let memory = DeviceBuffer::new(&self.device, &self.ledger, MemoryKind::State, len)?;
        if let Backend::Gpu(gpu) = &self.backend {
            gpu.zero(memory.span())?;
        }
        Ok(StateMemory { memory, shape })
    }

    /// Makes a state of the same shape what another is.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When the shapes differ.
    pub fn copy_state(
        &self,
        to: &mut RecurrentState,
        from: &RecurrentState,
    ) -> Result<(), OpsError> {
        assert_eq!(to.shape(), from.shape());
        match &self.backend {
            Backend::Cpu(_) => (to.now.memory.host_mut()).copy_from_slice(from.now.memory.host()),
            Backend::Gpu(gpu) => gpu.copy(to.now.memory.span(), from.now.memory.span())?,
            Backend::DryRun => {}
        }
        to.len = from.len;
        Ok(())
    }

    /// The elements of a state, layer after layer: the last inputs of time mix and channel mix, then the matrix of each
    /// head, a row for each key channel.
    ///
    /// # Errors
    /// When the device fails.
    pub fn read_state(&self, state: &RecurrentState) -> Result<Vec<f32>, OpsError> {
        let mut out = vec![0.0; state.shape().elements()];
        match &self.backend {
            Backend::Cpu(_) => out.copy_from_slice(state.now.memory.host()),
            Backend::Gpu(gpu) => gpu.download(state.now.memory.span(), &mut out)?,
            Backend::DryRun => {}
        }
        Ok(out)
    }

    /// Makes a state what [`Ops::read_state`] has given of one that had read `len` tokens.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When there are not as many elements as the state has.
    pub fn write_state(
        &self,
        state: &mut RecurrentState,
        values: &[f32],
        len: usize,
    ) -> Result<(), OpsError> {
        assert_eq!(values.len(), state.shape().elements());
        match &self.backend {
            Backend::Cpu(_) => state.now.memory.host_mut().copy_from_slice(values),
            Backend::Gpu(gpu) => gpu.upload(state.now.memory.span(), values)?,
            Backend::DryRun => {}
        }
        state.len = len;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sluice_formats::DType;

    use super::*;
    use crate::{device::Device, ledger::Ledger};

    #[test]
    fn a_pass_without_rows_of_a_sequence_leaves_its_state() {
        let ops = Ops::new(Device::cpu(1).unwrap(), Ledger::default()).unwrap();
        let shape = StateShape {
            layers: 1,
            hidden_size: RWKV7_HEAD_DIM,
        };
        let values: Vec<f32> = (0..shape.elements()).map(|i| i as f32).collect();
        let mut states = [(); 2].map(|()| ops.recurrent_state(shape).unwrap());
        for state in &mut states {
            ops.write_state(state, &values, 3).unwrap();
        }
        let [idle, other] = &mut states;
        let mut pass = PassStates::default();
        pass.add(0..0, idle, None);
        pass.add(0..2, other, None);
        assert_eq!(pass.runs().count(), 1);
        let rows = ops
            .matrix(2, RWKV7_HEAD_DIM, &[7.0; 2 * RWKV7_HEAD_DIM], DType::F32)
            .unwrap();
        let place = (0, StatePart::TimeMixInput);
        ops.keep_inputs(&rows, &mut pass, place).unwrap();
        drop(pass);
        idle.advance(0);
        other.advance(2);
        assert_eq!((idle.len(), other.len()), (3, 5));
        assert_eq!(ops.read_state(idle).unwrap(), values);
        assert_eq!(ops.read_state(other).unwrap()[0], 7.0);
        idle.take_back(0);
        other.take_back(2);
        for state in &states {
            assert_eq!(state.len(), 3);
            assert_eq!(ops.read_state(state).unwrap(), values);
        }
    }
}
