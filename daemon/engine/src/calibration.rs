//! Calibration: the second moments of the inputs of a loaded model's matrices, over passes as the model really makes
//! them, written to a file. Its passes are requests like any other, a few to a turn; statistics that don't fit in memory
//! together are collected in several sweeps over the same passes.

mod decodes;
mod error;
mod passes;
mod sweeps;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool, mpsc},
};

use rayon::{ThreadPool, ThreadPoolBuilder};
use sluice_checkpoint::{
    calibration::{
        CalibrationError, CalibrationOrigin, CalibrationWriter, InputRows as RowCount,
        ModelIdentity, POSITIONS_MIN, PositionKind, text_marks,
    },
    features::Feature,
};
use sluice_optimize::moments::Moments;
use sluice_weights::MatrixInput;

pub use self::error::CalibrateError;
use self::{
    passes::{TextPasses, counts, masked_texts, positions},
    sweeps::{Memory, sweeps},
};
use crate::{
    command::LoadedModel,
    error::EngineError,
    event::Outcome,
    fair::ShareKey,
    request::{CollectInputs, InputPass, InputRows, InputSink, Work},
    runtime::Engine,
    turns::Turns,
};

/// Longest pass: as a sample of a fidelity measurement.
pub const PASS_TOKENS_MAX: usize = 256;
/// Positions of all passes when nobody says how many: four times the width of models of a few billion parameters.
pub const POSITIONS_DEFAULT: usize = 32_768;
/// Most positions that may be asked for.
pub const POSITIONS_MAX: usize = 1 << 20;
/// Passes of one turn: other requests wait for no more.
const TURN_PASSES: usize = 4;

/// What to measure, and where to write it.
#[derive(Debug, Clone)]
pub struct CalibrationOptions {
    /// Whose turns it takes.
    pub share: ShareKey,
    /// Name of the model, for people.
    pub model_name: String,
    /// Texts as ids, each of at most [`PASS_TOKENS_MAX`].
    pub samples: Vec<Vec<u32>>,
    /// Hash of the texts, for people.
    pub text_hash: u64,
    /// Seed of masks and decodes.
    pub seed: u64,
    /// Most positions of all passes.
    pub positions_max: usize,
    /// Whether whole matrices are collected, and not only their diagonals.
    pub is_full: bool,
    /// Bytes of host memory that statistics and rows may take at once.
    pub memory_bytes: u64,
    /// Threads that compute statistics, beside those of the passes.
    pub threads: usize,
    /// The file to write.
    pub target: PathBuf,
    /// Whether a file of that name may be replaced.
    pub may_replace: bool,
}

/// How far a calibration is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalibrationProgress {
    /// The model continues texts, whose intermediate canvases become passes.
    Decoding {
        /// Positions of such passes.
        done: usize,
        /// How many are wanted.
        total: usize,
    },
    /// Passes are computed.
    Computing {
        /// Passes of all sweeps that are done.
        done: usize,
        /// Passes of all sweeps.
        total: usize,
        /// The present sweep, from 1.
        sweep: usize,
        /// Number of sweeps.
        sweeps: usize,
    },
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalibrationSummary {
    /// What the file says of its making.
    pub origin: CalibrationOrigin,
    /// Positions of all passes that held a mask.
    pub masked_positions: u64,
    /// Sweeps over the passes.
    pub sweeps: usize,
    /// Bytes of the file.
    pub file_bytes: u64,
}

/// Calibrates the present model. Blocks: not for the engine's own thread. Unless all goes well, no file is left.
///
/// # Errors
/// When the text or the memory is too little, `stop` is set, or a pass or the file fails.
pub fn calibrate(
    engine: &Engine,
    options: &CalibrationOptions,
    stop: &AtomicBool,
    report: &mut dyn FnMut(CalibrationProgress),
) -> Result<CalibrationSummary, CalibrateError> {
    let tokens: usize = options.samples.iter().map(Vec::len).sum();
    if (tokens as u64) < POSITIONS_MIN {
        let too_little = CalibrationError::TooLittle {
            what: "the text".to_owned(),
            positions: tokens as u64,
            needed: POSITIONS_MIN,
        };
        return Err(too_little.into());
    }
    let model = engine.model().ok_or(EngineError::NoModel)?;
    if let Some(reason) = model.info.features().refusal(Feature::Calibrate) {
        return Err(CalibrateError::Layers {
            family: model.info.family,
            reason,
        });
    }
    let identity = engine.model_identity(&options.model_name)?;
    // Before minutes of passes: memory and the file's name.
    let memory = Memory::of(&identity, options.is_full, options.memory_bytes);
    memory.check(&identity)?;
    let turns = Turns {
        engine,
        share: options.share,
        stop,
    };
    let TextPasses { passes, texts } = passes(&turns, options, &model, report)?;
    let mask = model.info.mask;
    let counts = counts(&passes, identity.layers, mask);
    let origin = CalibrationOrigin {
        model: identity.clone(),
        text_hash: options.text_hash,
        texts: text_marks(texts.into_iter().map(|text| &options.samples[text])),
        seed: options.seed,
        passes: passes.len() as u64,
        positions: positions(&passes) as u64,
        is_full: options.is_full,
        is_lossless: true,
    };
    let writer = CalibrationWriter::create(
        &options.target,
        origin.clone(),
        &counts,
        options.may_replace,
    )?;
    let sweeps = sweeps(&counts, &identity, &memory);
    let pool = ThreadPoolBuilder::new()
        .num_threads(options.threads)
        .thread_name(|index| format!("sluice-stats-{index}"))
        .build()
        .map_err(|error| CalibrateError::Threads(error.to_string()))?;
    let mut is_lossless = true;
    for (index, inputs) in sweeps.iter().enumerate() {
        let mut sweep = Sweep {
            moments: empty_moments(&counts, inputs, &identity, options.is_full),
            memory: &memory,
            pool: &pool,
        };
        for (turn, part) in passes.chunks(TURN_PASSES).enumerate() {
            is_lossless &= sweep.turn(&turns, &model, part, inputs)?;
            report(CalibrationProgress::Computing {
                done: index * passes.len() + turn * TURN_PASSES + part.len(),
                total: sweeps.len() * passes.len(),
                sweep: index + 1,
                sweeps: sweeps.len(),
            });
        }
        for ((input, kind), mut moments) in sweep.moments {
            turns.check()?;
            writer.put(input, kind, &mut moments)?;
        }
    }
    turns.check()?;
    let file_bytes = writer.finish(is_lossless)?;
    let masked =
        |of: &&RowCount| (of.input, of.kind) == (MatrixInput::Attention(0), PositionKind::Masked);
    Ok(CalibrationSummary {
        masked_positions: counts.iter().find(masked).map_or(0, |of| of.rows),
        sweeps: sweeps.len(),
        file_bytes,
        origin: CalibrationOrigin {
            is_lossless,
            ..origin
        },
    })
}

/// The passes: two thirds of the positions from what the model decodes itself, one third from masked text. An
/// autoregressive model reads the text.
fn passes(
    turns: &Turns<'_>,
    options: &CalibrationOptions,
    model: &LoadedModel,
    report: &mut dyn FnMut(CalibrationProgress),
) -> Result<TextPasses, CalibrateError> {
    let Some(mask) = model.info.mask else {
        return Ok(passes::read_texts(&options.samples, options.positions_max));
    };
    let own = options.positions_max * 2 / 3;
    let mut passes = decodes::own_decodes(turns, options, (model, mask), own, report)?;
    let left = options.positions_max.saturating_sub(passes.positions());
    passes.extend(masked_texts(&options.samples, mask, options.seed, left));
    Ok(passes)
}

type AllMoments = BTreeMap<(MatrixInput, PositionKind), Moments>;

fn empty_moments(
    counts: &[RowCount],
    inputs: &[MatrixInput],
    model: &ModelIdentity,
    is_full: bool,
) -> AllMoments {
    let wanted = counts.iter().filter(|of| inputs.contains(&of.input));
    let each = wanted.map(|of| {
        let moments = Moments::new(model.width(of.input), is_full);
        ((of.input, of.kind), moments)
    });
    each.collect()
}

/// Statistics of some inputs, over all passes.
struct Sweep<'a> {
    moments: AllMoments,
    memory: &'a Memory,
    pool: &'a ThreadPool,
}

impl Sweep<'_> {
    /// Runs some passes, and adds their rows while the next are computed. Returns whether the weights were the
    /// checkpoint's own.
    fn turn(
        &mut self,
        turns: &Turns<'_>,
        model: &LoadedModel,
        passes: &[InputPass],
        inputs: &[MatrixInput],
    ) -> Result<bool, CalibrateError> {
        let (send, rows) = mpsc::sync_channel::<InputRows>(self.memory.messages);
        let work = Work::CollectInputs(CollectInputs {
            model: model.id,
            passes: passes.to_vec(),
            inputs: inputs.to_vec(),
            sink: InputSink(Arc::new(move |rows| send.send(rows).is_ok())),
        });
        let turn = turns.submit(work, |_| {})?;
        // The sink is dropped with the request, which ends this loop. An error drops `rows`, and the pass ends.
        while let Some(rows) = turn.next(&rows)? {
            let InputRows {
                input,
                kind,
                values,
            } = rows;
            if let Some(moments) = self.moments.get_mut(&(input, kind)) {
                let added = self.pool.install(|| moments.add(&values));
                added.map_err(|error| CalibrateError::Rows { input, error })?;
            }
        }
        match turn.finish()? {
            Outcome::InputsCollected { is_lossless } => Ok(is_lossless),
            _ => Err(CalibrateError::Cancelled),
        }
    }
}

#[cfg(test)]
mod tests;
