//! RWKV-7's operations on a device compared with the CPU's.

use std::ops::Range;

use sluice_engine::EngineError;
use sluice_formats::{DType, Format};
use sluice_ops::{
    Activation, ChannelFunction, Ops, OpsError, PassStates, StatePart, StateShape, TimeMixInputs,
};
use sluice_weights::RWKV7_HEAD_DIM;

use super::{DevicePair, StoredWeight, distance};

const SHAPE: StateShape = StateShape {
    layers: 2,
    hidden_size: 3 * RWKV7_HEAD_DIM,
};

/// Rows of the sequences of a pass; the third is forked after some of its own.
const LENGTHS: [usize; 5] = [1, 0, 37, 8, 2];
const FORK: (usize, usize) = (2, 9);

/// What a layer of a pass gives on one device.
struct Layer {
    mixed: Vec<Activation>,
    out: Activation,
    /// The states of the sequences and of the fork.
    states: Vec<Vec<f32>>,
}

impl DevicePair<'_> {
    /// A norm, and functions of single elements.
    pub(super) fn channels(&mut self) -> Result<(), EngineError> {
        for width in [1, 250, 4096] {
            let vectors = self.vectors(&[Format::F32, Format::F16, Format::Bf16], width)?;
            self.poison()?;
            let [a, b] = self.stream(39, width, 8.0)?;
            let tables = self.tables(&vectors)?;
            self.check(format!("vectors of {width} as rows"), tables.each_ref())?;
            let own = self.tried.dtype();
            for dtype in [DType::F32, own] {
                let norm = |ops: &Ops, x, table, dtype| {
                    ops.layer_norm(x, 1..38, (table, [2, 0]), 1e-5, dtype)
                };
                let expected = norm(&self.cpu, &a, &tables[0], DType::F32)?;
                let found = norm(&self.tried, &b, &tables[1], dtype)?;
                let name = format!("layer norm, 37 rows of {width}, {}", dtype.name());
                self.check(name, [&expected, &found])?;
            }
        }
        for function in [
            ChannelFunction::Tanh,
            ChannelFunction::Sigmoid,
            ChannelFunction::SquaredRelu,
            ChannelFunction::Gelu,
        ] {
            self.poison()?;
            let [mut a, mut b] = self.activations(33, 75, 20.0)?;
            self.cpu.channel_function(&mut a, function)?;
            self.tried.channel_function(&mut b, function)?;
            self.check(format!("{function:?} of elements"), [&a, &b])?;
        }
        Ok(())
    }

    /// Rows of several sequences through a layer's shift and its states.
    pub(super) fn states(&mut self) -> Result<(), EngineError> {
        let width = SHAPE.hidden_size;
        let rows: usize = LENGTHS.iter().sum();
        for has_first in [false, true] {
            let count = if has_first { 8 } else { 7 };
            let vectors = self.vectors(&vec![Format::Bf16; count], width)?;
            let states = self.elements(LENGTHS.len() * SHAPE.elements(), 2.0);
            self.poison()?;
            let tables = self.tables(&vectors)?;
            let [x, x_tried] = self.activations(rows, width, 4.0)?;
            let (mut inputs, mut inputs_tried) = (Vec::new(), Vec::new());
            for size in [2.0, 8.0, 4.0, 4.0, 8.0, 2.0, 4.0, 8.0] {
                let [a, b] = self.activations(rows, width, size)?;
                inputs.push(a);
                inputs_tried.push(b);
            }
            let states: Vec<_> = states.chunks_exact(SHAPE.elements()).collect();
            let layer =
                |ops, x, inputs, table| through_layer(ops, x, inputs, has_first, table, &states);
            let expected = layer(&self.cpu, &x, &inputs, &tables[0])?;
            let found = layer(&self.tried, &x_tried, &inputs_tried, &tables[1])?;
            let which = if has_first { "a later" } else { "the first" };
            for (index, (a, b)) in expected.mixed.iter().zip(&found.mixed).enumerate() {
                self.check(format!("shift, {which} layer, part {index}"), [a, b])?;
            }
            let name = format!("time mix, {which} layer");
            self.check(name.clone(), [&expected.out, &found.out])?;
            for (index, (a, b)) in expected.states.iter().zip(&found.states).enumerate() {
                // States are `f32` on every device.
                let error = distance(a, b);
                self.record(format!("{name}, state {index}"), error, 1e-5);
            }
        }
        Ok(())
    }

    fn vectors(
        &mut self,
        formats: &[Format],
        width: usize,
    ) -> Result<Vec<StoredWeight>, EngineError> {
        let stored = formats
            .iter()
            .map(|&format| self.stored(1, width, format, 2.0));
        stored.collect()
    }

    /// Vectors as rows on both devices.
    fn tables(&self, vectors: &[StoredWeight]) -> Result<[Activation; 2], EngineError> {
        let on_cpu: Vec<_> = vectors.iter().map(StoredWeight::on_cpu).collect();
        let on_tried: Vec<_> = vectors.iter().map(StoredWeight::on_tried).collect();
        Ok([self.cpu.vectors(&on_cpu)?, self.tried.vectors(&on_tried)?])
    }
}

/// Sends rows through the second layer of states.
fn through_layer(
    ops: &Ops,
    x: &Activation,
    inputs: &[Activation],
    has_first: bool,
    table: &Activation,
    before: &[&[f32]],
) -> Result<Layer, OpsError> {
    const LAYER: usize = 1;
    let mut states = Vec::new();
    for values in before {
        let mut state = ops.recurrent_state(SHAPE)?;
        ops.write_state(&mut state, values, 5)?;
        states.push(state);
    }
    let mut fork = ops.kept_state(SHAPE)?;
    let mut pass = PassStates::default();
    let mut end = 0;
    let mut forks = Some(&mut fork);
    for (index, (state, len)) in states.iter_mut().zip(LENGTHS).enumerate() {
        let rows: Range<usize> = end..end + len;
        end = rows.end;
        let fork = match index == FORK.0 {
            true => forks.take().map(|fork| (FORK.1, fork)),
            false => None,
        };
        pass.add(rows, state, fork);
    }
    let mut mixed = Vec::new();
    for (part, share) in [
        (StatePart::TimeMixInput, 3),
        (StatePart::ChannelMixInput, 6),
    ] {
        // In parts, as long prompts go through a channel mix; one begins within a sequence.
        for rows in [0..13, 13..end] {
            mixed.push(ops.shift_mix(x, rows, &pass, (LAYER, part), (table, share))?);
        }
        ops.keep_inputs(x, &mut pass, (LAYER, part))?;
    }
    let mix = TimeMixInputs {
        receptance: &inputs[0],
        decay: &inputs[1],
        key: &inputs[2],
        value: &inputs[3],
        learning_rate: &inputs[4],
        gate: &inputs[5],
        first_value: has_first.then(|| (&inputs[6], &inputs[7])),
        vectors: table,
        epsilon: 64e-5,
    };
    let out = ops.time_mix(&mix, &mut pass, LAYER)?;
    drop(pass);
    let mut after = Vec::new();
    for (state, len) in states.iter_mut().zip(LENGTHS) {
        state.advance(len);
        after.push(of_layer(&ops.read_state(state)?, LAYER));
    }
    after.push(of_layer(&ops.read_state(&fork)?, LAYER));
    Ok(Layer {
        mixed,
        out,
        states: after,
    })
}

/// The part of a state that a layer has: a pass that goes through one layer alone leaves the others' unwritten.
fn of_layer(state: &[f32], layer: usize) -> Vec<f32> {
    let len = state.len() / SHAPE.layers;
    state[layer * len..(layer + 1) * len].to_vec()
}
