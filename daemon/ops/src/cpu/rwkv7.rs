//! RWKV-7's operations on the CPU.
//!
//! A head's recurrence goes through its tokens one by one, for some of its value channels at a time: their part of the
//! state, a row for each key channel, stays in the first cache while a run of tokens passes.
//! Most of a layer's arithmetic is in its projections, which are matmuls over all tokens of a pass.

use std::ops::Range;

use rayon::prelude::*;
use sluice_machine::Instructions;
use sluice_weights::RWKV7_HEAD_DIM;

use super::{CpuBackend, exp, heads_output::HeadsOutput, rows};
use crate::{
    Activation,
    recurrent_state::{PassStates, RowBefore, StatePart},
    rwkv7::{ChannelFunction, TimeMixInputs, TimeMixVector},
};

/// Elements of a head.
const DIM: usize = RWKV7_HEAD_DIM;
/// Tokens whose inputs are made ready together: as many as fit in the first cache beside a part of the state.
const BLOCK: usize = 8;
/// `e^-0.5`: the decay of a channel is `exp(-e^-0.5 · sigmoid(x))`.
const DECAY_SCALE: f32 = -0.606_530_66;
/// The least length that a removal key is divided by.
const LENGTH_MIN: f32 = 1e-12;

type Head = [f32; DIM];

/// What the recurrence reads of a block of tokens.
struct Block {
    /// Factors of the state's rows.
    decay: [Head; BLOCK],
    /// The key whose value is removed, negative.
    removal: [Head; BLOCK],
    /// The key at which that value is removed, by the learning rate.
    replacement: [Head; BLOCK],
    key: [Head; BLOCK],
    value: [Head; BLOCK],
    receptance: [Head; BLOCK],
    out: [Head; BLOCK],
}

impl CpuBackend {
    /// Each row mixed with the row before it, by these shares.
    pub(crate) fn shift_mix(
        &self,
        out: &mut Activation,
        x: &Activation,
        start: usize,
        states: &PassStates<'_>,
        (layer, part): (usize, StatePart),
        shares: &[f32],
    ) {
        let runs: Vec<_> = states.runs().collect();
        self.each_row(out, |index, out| {
            let row = start + index;
            let run = runs.partition_point(|run| run.end <= row);
            let before = match row == runs[run].start {
                false => x.row(row - 1),
                true => match states.before(run, layer, part) {
                    RowBefore::InPass(row) => x.row(row),
                    RowBefore::Kept(kept) => kept,
                },
            };
            let inputs = x.row(row).iter().zip(before).zip(shares);
            for (out, ((x, before), share)) in out.iter_mut().zip(inputs) {
                *out = x + (before - x) * share;
            }
        });
    }

    /// Each row normed to mean 0 and variance 1, times the first vector, plus the second.
    pub(crate) fn layer_norm(
        &self,
        out: &mut Activation,
        x: &Activation,
        start: usize,
        scales: [&[f32]; 2],
        epsilon: f32,
    ) {
        let instructions = self.instructions();
        self.each_row(out, |index, out| {
            let x = x.row(start + index);
            rows::layer_norm(instructions, out, x, scales[0], scales[1], epsilon);
        });
    }

    /// The time mix of a layer, between its projections.
    pub(crate) fn time_mix(
        &self,
        out: &mut Activation,
        inputs: &TimeMixInputs<'_>,
        states: &mut PassStates<'_>,
        layer: usize,
    ) {
        let (target, instructions) = (HeadsOutput::new(out), self.instructions());
        states.each_wave(layer, |runs| {
            let mut tasks: Vec<_> = (runs.into_iter())
                .flat_map(|(rows, heads)| {
                    let heads = heads.chunks_exact_mut(DIM * DIM).enumerate();
                    heads.map(move |(head, state)| (rows.clone(), head, state))
                })
                .collect();
            self.run(|| {
                tasks.par_iter_mut().for_each(|(rows, head, state)| {
                    head_over(inputs, *head, rows.clone(), state, &target, instructions);
                });
            });
        });
    }

    /// Applies a function to each element.
    pub(crate) fn channel_function(&self, x: &mut Activation, function: ChannelFunction) {
        let instructions = self.instructions();
        self.each_row(x, |_, row| match function {
            ChannelFunction::Tanh => exp::tanh(instructions, row),
            ChannelFunction::Sigmoid => exp::sigmoid(instructions, row),
            ChannelFunction::Gelu => exp::gelu(instructions, row),
            ChannelFunction::SquaredRelu => {
                for value in row {
                    let positive = value.max(0.0);
                    *value = positive * positive;
                }
            }
        });
    }
}

/// One head of one run of rows, whose state is read and written.
fn head_over(
    inputs: &TimeMixInputs<'_>,
    head: usize,
    rows: Range<usize>,
    state: &mut [f32],
    target: &HeadsOutput<'_>,
    instructions: Instructions,
) {
    let channels = head * DIM..(head + 1) * DIM;
    let of = |x: &'_ Activation, row: usize| -> Head {
        *x.row(row)[channels.clone()].first_chunk().expect("a head")
    };
    let vector = |which: TimeMixVector| of(inputs.vectors, which as usize);
    let [
        decay_bias,
        rate_bias,
        key_scale,
        key_rate,
        bonus,
        norm,
        norm_bias,
    ] = [
        TimeMixVector::DecayBias,
        TimeMixVector::LearningRateBias,
        TimeMixVector::KeyScale,
        TimeMixVector::KeyLearningRate,
        TimeMixVector::Bonus,
        TimeMixVector::HeadNorm,
        TimeMixVector::HeadNormBias,
    ]
    .map(vector);
    let mut block = Block {
        decay: [[0.0; DIM]; BLOCK],
        removal: [[0.0; DIM]; BLOCK],
        replacement: [[0.0; DIM]; BLOCK],
        key: [[0.0; DIM]; BLOCK],
        value: [[0.0; DIM]; BLOCK],
        receptance: [[0.0; DIM]; BLOCK],
        out: [[0.0; DIM]; BLOCK],
    };
    // SAFETY: tasks differ in their rows or in their head.
    let mut part = unsafe { target.part(rows.clone(), head..head + 1) };
    for from in rows.clone().step_by(BLOCK) {
        let tokens = from..rows.end.min(from + BLOCK);
        for (index, row) in tokens.clone().enumerate() {
            let mut rate = of(inputs.learning_rate, row);
            add(&mut rate, &rate_bias);
            exp::sigmoid(instructions, &mut rate);
            let mut decay = of(inputs.decay, row);
            add(&mut decay, &decay_bias);
            exp::sigmoid(instructions, &mut decay);
            decay.iter_mut().for_each(|value| *value *= DECAY_SCALE);
            exp::exp_sum(instructions, &mut decay, 0.0);
            let key = of(inputs.key, row);
            let mut removal = key;
            for (value, scale) in removal.iter_mut().zip(&key_scale) {
                *value *= scale;
            }
            let length = dot(&removal, &removal).sqrt().max(LENGTH_MIN);
            for lane in 0..DIM {
                let unit = removal[lane] / length;
                block.removal[index][lane] = -unit;
                block.replacement[index][lane] = unit * rate[lane];
                block.key[index][lane] = key[lane] * (1.0 + (rate[lane] - 1.0) * key_rate[lane]);
            }
            block.decay[index] = decay;
            block.receptance[index] = of(inputs.receptance, row);
            block.value[index] = of(inputs.value, row);
            if let Some((first, taken)) = inputs.first_value {
                let mut share = of(taken, row);
                add(&mut share, &vector(TimeMixVector::ValueBias));
                exp::sigmoid(instructions, &mut share);
                let first = of(first, row);
                let values = block.value[index].iter_mut().zip(&first).zip(&share);
                for ((value, first), share) in values {
                    *value += (first - *value) * share;
                }
            }
        }
        recur(instructions, state, &mut block, tokens.len());
        for (index, row) in tokens.enumerate() {
            let y = &block.out[index];
            let mean = sum(y) / DIM as f32;
            let centered = y.map(|value| value - mean);
            let inverse = (dot(&centered, &centered) / DIM as f32 + inputs.epsilon)
                .sqrt()
                .recip();
            let mut weighted = block.key[index];
            for (value, bonus) in weighted.iter_mut().zip(&bonus) {
                *value *= bonus;
            }
            let present = dot(&block.receptance[index], &weighted);
            let gate = of(inputs.gate, row);
            let values = (0..DIM).map(|lane| {
                let normed = centered[lane] * inverse * norm[lane] + norm_bias[lane];
                (normed + present * block.value[index][lane]) * gate[lane]
            });
            part.write((row, head), DIM, values);
        }
    }
}

fn add(x: &mut Head, bias: &Head) {
    x.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
}

/// Sixteen running sums, as the widest vectors have lanes: the compiler doesn't reorder sums.
fn dot(a: &Head, b: &Head) -> f32 {
    let mut sums = [0.0; 16];
    for (a, b) in a.as_chunks::<16>().0.iter().zip(b.as_chunks::<16>().0) {
        for lane in 0..16 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum()
}

fn sum(x: &Head) -> f32 {
    dot(x, &[1.0; DIM])
}

/// Sends the first tokens of a block through the state. Compiled once for each kind of vectors.
fn recur(instructions: Instructions, state: &mut [f32], block: &mut Block, tokens: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f")]
        fn widest(state: &mut [f32], block: &mut Block, tokens: usize) {
            recur_by::<32, true>(state, block, tokens);
        }
        #[target_feature(enable = "avx2,fma")]
        fn wide(state: &mut [f32], block: &mut Block, tokens: usize) {
            recur_by::<16, true>(state, block, tokens);
        }
        use sluice_machine::InstructionSet;
        if instructions.has(InstructionSet::Avx512) {
            // SAFETY: the function is compiled for these instructions.
            return unsafe { widest(state, block, tokens) };
        }
        if instructions.has(InstructionSet::Avx2) {
            // SAFETY: as above.
            return unsafe { wide(state, block, tokens) };
        }
    }
    let _ = instructions;
    recur_by::<16, false>(state, block, tokens);
}

/// The recurrence, for `LANES` value channels at a time: two vectors of the processor, so that a sum need not wait for
/// the one before it.
#[inline(always)]
fn recur_by<const LANES: usize, const FUSED: bool>(
    state: &mut [f32],
    block: &mut Block,
    tokens: usize,
) {
    let multiply_add = |a: f32, b: f32, c: f32| match FUSED {
        true => a.mul_add(b, c),
        // Without the instruction, a fused operation would be a call.
        false => a * b + c,
    };
    for from in (0..DIM).step_by(LANES) {
        for token in 0..tokens {
            let mut removed = [0.0; LANES];
            for (row, &key) in state.chunks_exact(DIM).zip(&block.removal[token]) {
                let row: &[f32; LANES] = row[from..].first_chunk().expect("within a head");
                for lane in 0..LANES {
                    removed[lane] = multiply_add(row[lane], key, removed[lane]);
                }
            }
            let value: [f32; LANES] = *block.value[token][from..].first_chunk().expect("within");
            let mut out = [0.0; LANES];
            for (channel, row) in state.chunks_exact_mut(DIM).enumerate() {
                let row: &mut [f32; LANES] = row[from..].first_chunk_mut().expect("within a head");
                let decay = block.decay[token][channel];
                let replacement = block.replacement[token][channel];
                let key = block.key[token][channel];
                let receptance = block.receptance[token][channel];
                for lane in 0..LANES {
                    let kept = multiply_add(row[lane], decay, value[lane] * key);
                    row[lane] = multiply_add(removed[lane], replacement, kept);
                    out[lane] = multiply_add(row[lane], receptance, out[lane]);
                }
            }
            block.out[token][from..from + LANES].copy_from_slice(&out);
        }
    }
}
