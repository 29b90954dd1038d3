//! The recurrence of RWKV-7 (arXiv 2503.14456, equation 16): a state of `[values, keys]` for each head, whose keys decay,
//! forget what they held for the current key, and take up its value.
//!
//! A row of the state, what it keeps for one value channel, depends on no other row. So each pass takes one row through a
//! whole sequence, in registers, and the backward pass keeps the history of one row at a time: memory for length · 64
//! elements, where a state for each token would be 64 times that.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use super::{
    Pack, elementary, gradient,
    numeric::{exp, sigmoid},
    rwkv7::{FASTEST_DECAY, WIDTH},
    values, with_values,
};

/// Elements that are summed side by side.
const LANES: usize = 16;

type Row = [f32; WIDTH];

/// What the recurrence reads at each token.
const INPUTS: usize = 6;

/// The state's answer to each query: `[rows of the pack, width]`.
///
/// `inputs` is `[6, rows, width]`: query r, what decides the decay, key k, value v, the unit key κ that is forgotten, and
/// its rate a. The decay w is exp(−e^(−1/2) · σ(x)), computed here: factors near one have no room in BF16. With S the state, S ← S · diag(w) − (S κ) (κ ∘ a)ᵀ + v kᵀ and the answer is S r.
pub fn recurrence(inputs: &Tensor, pack: &Pack) -> Result<Tensor> {
    if !inputs.device().is_cpu() {
        return elementary::recurrence(inputs, pack);
    }
    inputs.apply_op1(Recurrence { pack: pack.clone() })
}

struct Recurrence {
    pack: Pack,
}

/// One token of one head.
#[derive(Clone, Copy)]
struct Token {
    query: Row,
    /// How fast each channel decays, from 0 to 1.
    openings: Row,
    decay: Row,
    key: Row,
    value: Row,
    forgotten: Row,
    rate: Row,
    /// forgotten ∘ rate
    replaced: Row,
}

/// The gradients of a token's inputs. That of `forgotten` is without what comes through `replaced`.
#[derive(Clone, Copy)]
struct TokenGradient {
    query: Row,
    decay: Row,
    key: Row,
    value: Row,
    forgotten: Row,
    replaced: Row,
}

impl Recurrence {
    /// The tokens of one head of one sequence.
    fn tokens(
        inputs: &[f32],
        width: usize,
        rows: std::ops::Range<usize>,
        head: usize,
    ) -> Vec<Token> {
        let all = inputs.len() / INPUTS;
        let tokens = rows.map(|row| {
            let at = |input: usize| -> Row {
                let start = input * all + row * width + head * WIDTH;
                std::array::from_fn(|channel| inputs[start + channel])
            };
            let (forgotten, rate) = (at(4), at(5));
            let openings = at(1).map(sigmoid);
            Token {
                query: at(0),
                openings,
                decay: openings.map(|opening| exp(-FASTEST_DECAY * opening)),
                key: at(2),
                value: at(3),
                forgotten,
                rate,
                replaced: std::array::from_fn(|channel| forgotten[channel] * rate[channel]),
            }
        });
        tokens.collect()
    }

    fn forward(&self, inputs: &[f32], width: usize) -> Vec<f32> {
        let mut out = vec![0.0; inputs.len() / INPUTS];
        for rows in self.pack.sequences() {
            for head in 0..width / WIDTH {
                let tokens = Self::tokens(inputs, width, rows.clone(), head);
                for (row, answer) in rows.clone().zip(run_forward(&tokens)) {
                    out[row * width + head * WIDTH..][..WIDTH].copy_from_slice(&answer);
                }
            }
        }
        out
    }

    fn backward(&self, inputs: &[f32], above: &[f32], width: usize) -> Vec<f32> {
        let mut out = vec![0.0; inputs.len()];
        let all = above.len();
        for rows in self.pack.sequences() {
            for head in 0..width / WIDTH {
                let tokens = Self::tokens(inputs, width, rows.clone(), head);
                let above: Vec<Row> = rows
                    .clone()
                    .map(|row| {
                        std::array::from_fn(|channel| above[row * width + head * WIDTH + channel])
                    })
                    .collect();
                let found = run_backward(&tokens, &above);
                for ((row, token), found) in rows.clone().zip(&tokens).zip(found) {
                    let mut put = |input: usize, gradient: &dyn Fn(usize) -> f32| {
                        let start = input * all + row * width + head * WIDTH;
                        for (channel, out) in out[start..][..WIDTH].iter_mut().enumerate() {
                            *out = gradient(channel);
                        }
                    };
                    put(0, &|channel| found.query[channel]);
                    put(1, &|channel| {
                        let (decay, opening) = (token.decay[channel], token.openings[channel]);
                        let slope = -FASTEST_DECAY * decay * opening * (1.0 - opening);
                        found.decay[channel] * slope
                    });
                    put(2, &|channel| found.key[channel]);
                    put(3, &|channel| found.value[channel]);
                    put(4, &|channel| {
                        found.forgotten[channel] + found.replaced[channel] * token.rate[channel]
                    });
                    put(5, &|channel| {
                        found.replaced[channel] * token.forgotten[channel]
                    });
                }
            }
        }
        out
    }
}

#[inline(always)]
fn dot(left: &Row, right: &Row) -> f32 {
    let mut lanes = [0.0; LANES];
    for (left, right) in left.chunks_exact(LANES).zip(right.chunks_exact(LANES)) {
        for lane in 0..LANES {
            lanes[lane] += left[lane] * right[lane];
        }
    }
    // Halves are added to each other, so that the compiler can do it within a register.
    let mut count = LANES / 2;
    while count > 0 {
        for lane in 0..count {
            lanes[lane] += lanes[lane + count];
        }
        count /= 2;
    }
    lanes[0]
}

/// Takes a row of the state one token further; returns what was forgotten.
#[inline(always)]
fn advance(state: &mut Row, token: &Token, channel: usize) -> f32 {
    let forgotten = -dot(state, &token.forgotten);
    let value = token.value[channel];
    for (index, state) in state.iter_mut().enumerate() {
        *state = *state * token.decay[index]
            + (forgotten * token.replaced[index] + value * token.key[index]);
    }
    forgotten
}

#[inline(always)]
fn forward(tokens: &[Token]) -> Vec<Row> {
    let mut out = vec![[0.0; WIDTH]; tokens.len()];
    for channel in 0..WIDTH {
        let mut state = [0.0; WIDTH];
        for (token, out) in tokens.iter().zip(&mut out) {
            advance(&mut state, token, channel);
            out[channel] = dot(&state, &token.query);
        }
    }
    out
}

#[inline(always)]
fn backward(tokens: &[Token], above: &[Row]) -> Vec<TokenGradient> {
    const NONE: Row = [0.0; WIDTH];
    let empty = TokenGradient {
        query: NONE,
        decay: NONE,
        key: NONE,
        value: NONE,
        forgotten: NONE,
        replaced: NONE,
    };
    let mut found = vec![empty; tokens.len()];
    // Of one row: the state before each token and after the last, and what each token forgets.
    let mut states = vec![NONE; tokens.len() + 1];
    let mut forgotten = vec![0.0; tokens.len()];
    for channel in 0..WIDTH {
        for (index, token) in tokens.iter().enumerate() {
            let mut state = states[index];
            forgotten[index] = advance(&mut state, token, channel);
            states[index + 1] = state;
        }
        let mut gradient = NONE;
        for (index, token) in tokens.iter().enumerate().rev() {
            let (before, after) = (&states[index], &states[index + 1]);
            let (above, forgotten) = (above[index][channel], forgotten[index]);
            let value = token.value[channel];
            let found = &mut found[index];
            for lane in 0..WIDTH {
                found.query[lane] += above * after[lane];
                gradient[lane] += above * token.query[lane];
                found.key[lane] += gradient[lane] * value;
                found.replaced[lane] += gradient[lane] * forgotten;
                found.decay[lane] += gradient[lane] * before[lane];
            }
            found.value[channel] = dot(&gradient, &token.key);
            let pull = -dot(&gradient, &token.replaced);
            for lane in 0..WIDTH {
                found.forgotten[lane] += pull * before[lane];
                gradient[lane] = gradient[lane] * token.decay[lane] + pull * token.forgotten[lane];
            }
        }
    }
    found
}

/// The same two passes compiled for wider vectors, where the processor has them.
macro_rules! widest {
    ($name:ident, $wide:ident, $body:ident, ($($argument:ident: $type:ty),*) -> $result:ty) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn $wide($($argument: $type),*) -> $result {
            $body($($argument),*)
        }

        fn $name($($argument: $type),*) -> $result {
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                // SAFETY: the processor has what the function is compiled for.
                return unsafe { $wide($($argument),*) };
            }
            $body($($argument),*)
        }
    };
}

widest!(run_forward, forward_wide, forward, (tokens: &[Token]) -> Vec<Row>);
widest!(run_backward, backward_wide, backward, (tokens: &[Token], above: &[Row]) -> Vec<TokenGradient>);

impl CustomOp1 for Recurrence {
    fn name(&self) -> &'static str {
        "recurrence"
    }

    fn cpu_fwd(&self, inputs: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, rows, width) = layout.shape().dims3()?;
        let inputs = values(inputs, layout)?;
        let out = self.forward(&inputs, width);
        Ok((inputs.store(out), (rows, width).into()))
    }

    fn bwd(&self, inputs: &Tensor, _out: &Tensor, out_gradient: &Tensor) -> Result<Option<Tensor>> {
        let (_, _, width) = inputs.dims3()?;
        let found = with_values(inputs, |inputs| {
            with_values(out_gradient, |above| self.backward(inputs, above, width))
        })??;
        gradient(found, inputs).map(Some)
    }
}
