//! A pass whose matrices' inputs are given to somebody, as a calibration needs them.

use std::{collections::BTreeMap, ops::Range, sync::atomic::AtomicBool};

use sluice_checkpoint::{calibration::PositionKind, family::MaskToken};
use sluice_ops::{Activation, Ops};
use sluice_weights::MatrixInput;

use super::fidelity::SampleReading;
use crate::{
    error::EngineError,
    model::{
        network::{InputObserver, Interrupt, Network, Sequence, VisibleKeys},
        sequence_memory::SequenceMemory,
    },
    request::{CollectInputs, InputPass, InputRows, InputSink},
    residency::Residency,
};

/// Gives the rows of some inputs of a pass to a sink, masked and clean ones apart.
pub struct InputReader<'a> {
    request: &'a CollectInputs,
    pass: &'a InputPass,
    layers: usize,
    mask: Option<MaskToken>,
    /// Rows of each input that the sink has.
    given: BTreeMap<MatrixInput, usize>,
    /// Rows of each input that the present try had.
    seen: BTreeMap<MatrixInput, usize>,
    /// Whether the sink wants no more.
    is_refused: bool,
}

impl<'a> InputReader<'a> {
    /// The reader of one pass of a request.
    #[must_use]
    pub fn new(
        request: &'a CollectInputs,
        pass: &'a InputPass,
        layers: usize,
        mask: Option<MaskToken>,
    ) -> Self {
        Self {
            request,
            pass,
            layers,
            mask,
            given: BTreeMap::new(),
            seen: BTreeMap::new(),
            is_refused: false,
        }
    }

    /// Whether the sink wants no more rows.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Runs the pass, again if memory ran short before: rows that the sink has are not given twice.
    ///
    /// # Errors
    /// When the pass fails or is cancelled.
    pub fn run(
        &mut self,
        ops: &Ops,
        (model, weights): (&Network, &Residency),
        reading: Option<SampleReading>,
        cancel: &AtomicBool,
    ) -> Result<(), Interrupt> {
        self.seen.clear();
        let InputPass { tokens, rows } = self.pass;
        let positions: Vec<usize> = (0..tokens.len()).collect();
        let Some(reading) = reading else {
            let sequence = Sequence {
                tokens,
                positions: &positions,
                wanted: rows,
                sees: VisibleKeys::Each { checks: 0 },
            };
            return self.part(ops, (model, weights), sequence, cancel);
        };
        let mut memory = SequenceMemory::new(ops, reading.memory, tokens.len())?;
        // In chunks, as requests read their prompts: the plan has activations for no more rows at once.
        for start in (0..tokens.len()).step_by(reading.rows) {
            let part = start..tokens.len().min(start + reading.rows);
            let wanted: Vec<usize> = (rows.iter())
                .filter(|row| part.contains(row))
                .map(|row| row - start)
                .collect();
            let next = Sequence {
                tokens: &tokens[part.clone()],
                positions: &positions[part],
                wanted: &wanted,
                sees: memory.sees(),
            };
            self.part(ops, (model, weights), next, cancel)?;
        }
        Ok(())
    }

    fn part(
        &mut self,
        ops: &Ops,
        (model, weights): (&Network, &Residency),
        sequence: Sequence<'_>,
        cancel: &AtomicBool,
    ) -> Result<(), Interrupt> {
        let hidden = model.forward_observed(ops, weights, &mut [sequence], cancel, Some(self))?;
        if !hidden.is_empty() {
            let x = model.final_norm(ops, weights, &hidden)?;
            self.see(MatrixInput::LmHead, &x, ops)?;
        }
        Ok(())
    }

    /// Whether a mask stands at the position of a row of an input.
    fn kind(&self, input: MatrixInput, row: usize) -> PositionKind {
        let position = match input.has_all_rows(self.layers) {
            true => row,
            false => self.pass.rows[row],
        };
        let token = self.pass.tokens[position];
        match self.mask {
            Some(mask) if mask.token_id == Some(token) => PositionKind::Masked,
            _ => PositionKind::Clean,
        }
    }

    fn give(&mut self, input: MatrixInput, first: usize, values: &[f32], width: usize) {
        let InputSink(sink) = &self.request.sink;
        let rows: Range<usize> = first..first + values.len() / width;
        for kind in PositionKind::ALL {
            let of_kind = rows.clone().filter(|row| self.kind(input, *row) == kind);
            let values: Vec<f32> = of_kind
                .flat_map(|row| &values[(row - first) * width..][..width])
                .copied()
                .collect();
            if !values.is_empty() && !self.is_refused {
                let rows = InputRows {
                    input,
                    kind,
                    values,
                };
                self.is_refused = !sink(rows);
            }
        }
    }
}

impl InputObserver for InputReader<'_> {
    fn see(&mut self, input: MatrixInput, rows: &Activation, ops: &Ops) -> Result<(), EngineError> {
        if !self.request.inputs.contains(&input) || self.is_refused {
            return Ok(());
        }
        let seen = self.seen.entry(input).or_default();
        let first = *seen;
        *seen += rows.len();
        let given = self.given.entry(input).or_default();
        // A pass is repeated from its first layer when memory ran short, and computes the same rows again.
        let known = given.saturating_sub(first).min(rows.len());
        *given = (*given).max(first + rows.len());
        if known < rows.len() {
            let values = ops.read(rows)?;
            let width = rows.width();
            self.give(input, first + known, &values[known * width..], width);
        }
        Ok(())
    }
}
