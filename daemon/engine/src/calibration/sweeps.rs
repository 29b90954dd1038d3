//! Which statistics are in memory together.

use sluice_checkpoint::calibration::{InputRows, ModelIdentity, PositionKind};
use sluice_optimize::moments::Moments;
use sluice_weights::MatrixInput;

use super::{CalibrateError, PASS_TOKENS_MAX};

/// Bytes of rows that may wait for their statistics, at least one message: enough that a pass of a small model never
/// waits.
const WAITING_BYTES_MAX: u64 = 64 << 20;
/// Most messages of rows that may wait.
const MESSAGES_MAX: usize = 64;

/// How the memory of a calibration is divided.
#[derive(Debug)]
pub(super) struct Memory {
    is_full: bool,
    limit_bytes: u64,
    /// Messages of rows that may wait.
    pub(super) messages: usize,
    /// Bytes of those, and of the one that is being added or sent.
    waiting_bytes: u64,
}

impl Memory {
    pub(super) fn of(model: &ModelIdentity, is_full: bool, limit_bytes: u64) -> Self {
        let widest = MatrixInput::all(1).map(|input| model.width(input)).max();
        let message = (PASS_TOKENS_MAX * widest.unwrap_or(1) * size_of::<f32>()) as u64;
        let messages = ((WAITING_BYTES_MAX / message) as usize).clamp(1, MESSAGES_MAX);
        Self {
            is_full,
            limit_bytes,
            messages,
            waiting_bytes: (messages as u64 + 2) * message,
        }
    }

    /// Bytes of the statistics of an input at both kinds of positions.
    fn bytes(&self, model: &ModelIdentity, input: MatrixInput) -> u64 {
        let one = Moments::bytes_of(model.width(input), self.is_full);
        PositionKind::ALL.len() as u64 * one
    }

    /// Checks that the largest input fits.
    ///
    /// # Errors
    /// [`CalibrateError::Memory`] with the figures.
    pub(super) fn check(&self, model: &ModelIdentity) -> Result<(), CalibrateError> {
        let largest = MatrixInput::all(1).max_by_key(|input| self.bytes(model, *input));
        let input = largest.unwrap_or(MatrixInput::LmHead);
        let needed_bytes = self.bytes(model, input) + self.waiting_bytes;
        match needed_bytes > self.limit_bytes {
            true => Err(CalibrateError::Memory {
                input,
                needed_bytes,
                limit_bytes: self.limit_bytes,
            }),
            false => Ok(()),
        }
    }
}

/// The inputs of each sweep, in the order of a pass, as many together as fit.
pub(super) fn sweeps(
    counts: &[InputRows],
    model: &ModelIdentity,
    memory: &Memory,
) -> Vec<Vec<MatrixInput>> {
    let most = memory.limit_bytes.saturating_sub(memory.waiting_bytes);
    let (mut sweeps, mut present, mut used) = (Vec::new(), Vec::new(), 0);
    let mut inputs: Vec<_> = counts.iter().map(|of| of.input).collect();
    inputs.dedup();
    for input in inputs {
        let bytes = memory.bytes(model, input);
        if used + bytes > most && !present.is_empty() {
            sweeps.push(std::mem::take(&mut present));
            used = 0;
        }
        used += bytes;
        present.push(input);
    }
    sweeps.push(present);
    sweeps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llada_8b() -> ModelIdentity {
        ModelIdentity {
            name: "llada".to_owned(),
            family: "llada".to_owned(),
            fingerprint: String::new(),
            layers: 32,
            hidden_size: 4096,
            attention_size: 4096,
            intermediate_size: 12_288,
            pruned: std::collections::BTreeMap::new(),
        }
    }

    #[test]
    fn sweeps_have_all_inputs_once_and_stay_below_the_limit() {
        let model = llada_8b();
        let counts: Vec<InputRows> = MatrixInput::all(model.layers)
            .flat_map(|input| {
                PositionKind::ALL.map(|kind| InputRows {
                    input,
                    kind,
                    rows: 1,
                })
            })
            .collect();
        let all: Vec<_> = MatrixInput::all(model.layers).collect();
        for (is_full, limit, expected) in
            [(true, 1 << 30, 33), (true, 8 << 30, 4), (false, 1 << 30, 1)]
        {
            let memory = Memory::of(&model, is_full, limit);
            memory.check(&model).unwrap();
            let sweeps = sweeps(&counts, &model, &memory);
            assert_eq!(sweeps.len(), expected, "{is_full} {limit}");
            for sweep in &sweeps {
                let bytes: u64 = sweep.iter().map(|input| memory.bytes(&model, *input)).sum();
                assert!(bytes + memory.waiting_bytes <= limit);
            }
            assert_eq!(sweeps.concat(), all);
        }
    }

    #[test]
    fn one_input_that_does_not_fit_is_refused_with_the_figures() {
        let model = llada_8b();
        let refused = Memory::of(&model, true, 512 << 20).check(&model);
        let Err(CalibrateError::Memory {
            input,
            needed_bytes,
            limit_bytes,
        }) = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!((input, limit_bytes), (MatrixInput::Down(0), 512 << 20));
        // Two triangles of 12,288 in f32, and rows.
        assert!(needed_bytes > 640 << 20 && needed_bytes < 1 << 30);
        Memory::of(&model, true, needed_bytes)
            .check(&model)
            .unwrap();
    }
}
