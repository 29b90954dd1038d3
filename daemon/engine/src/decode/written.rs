//! A text that is written from its beginning on, each token final when it is written, and what stands behind it open: what
//! drafting and denoising of canvases have in common.

use std::{ops::Range, sync::Arc, time::Instant};

use sluice_formats::noise::Noise;
use sluice_ops::{LmHeadRow, RankingScore};

use super::{BlockSight, Pass, PassReach, Vocabulary, diffusion::suppressed};
use crate::{
    event::{
        CanvasPosition, Event, FinishReason, GenerationResult, PassCost, PassReport, TokenState,
    },
    request::Generate,
};

/// The text, its next pass, and what is told of both.
pub(super) struct WrittenText {
    pub(super) request: Generate,
    pub(super) vocabulary: Arc<Vocabulary>,
    /// Prompt and answer, and behind them what is open.
    pub(super) sequence: Vec<u32>,
    /// How many of them are final.
    pub(super) written: usize,
    /// How many of those the KV cache holds.
    pub(super) cached: usize,
    /// The positions of the part to fill.
    pub(super) positions: Vec<CanvasPosition>,
    pub(super) passes: usize,
    pub(super) finish: Option<FinishReason>,
    reach: PassReach,
    rows: Vec<LmHeadRow>,
    suppressed: Vec<u32>,
    /// The first block of positions that is not full.
    block: usize,
    passes_in_block: usize,
    started: Instant,
    is_lossless: bool,
}

impl WrittenText {
    /// The text of a request before its first pass.
    pub(super) fn new(request: &Generate, vocabulary: &Arc<Vocabulary>) -> Self {
        let positions = 0..request.canvas.len();
        Self {
            sequence: request.prompt.clone(),
            written: request.prompt.len(),
            cached: 0,
            positions: positions
                .map(|at| CanvasPosition::unpredicted(at, None, TokenState::Masked))
                .collect(),
            passes: 0,
            finish: None,
            reach: PassReach::default(),
            rows: Vec::new(),
            suppressed: suppressed(request, vocabulary),
            block: 0,
            passes_in_block: 0,
            started: Instant::now(),
            is_lossless: true,
            request: request.clone(),
            vocabulary: Arc::clone(vocabulary),
        }
    }

    /// Tokens of the answer that are final.
    pub(super) fn answered(&self) -> usize {
        self.written - self.request.prompt.len()
    }

    /// Whether nothing is left to write.
    pub(super) fn is_done(&self) -> bool {
        self.finish.is_some()
    }

    /// Tells that it begins.
    pub(super) fn start(&mut self, emit: &mut dyn FnMut(Event)) {
        let length = self.request.canvas.len();
        emit(Event::Started {
            blocks: length.div_ceil(self.request.block_length),
            is_exact: self.request.decoding.is_exact(),
        });
        self.started = Instant::now();
    }

    /// Has the next pass compute these positions, which see each other so, and read these.
    pub(super) fn prepare(
        &mut self,
        computed: Range<usize>,
        read: Range<usize>,
        sight: BlockSight,
    ) {
        let row = |position| LmHeadRow {
            position,
            may_end: true,
            target: None,
            watched: Vec::new(),
            is_check: false,
        };
        self.rows = read.map(row).collect();
        self.reach = PassReach {
            computed: vec![computed],
            sight: Some(sight),
            ..PassReach::default()
        };
    }

    /// The next pass: of candidates by their confidence, with the noise of a position whatever the pass.
    pub(super) fn pass(&self) -> Pass<'_> {
        Pass {
            number: 0,
            canvas: &self.sequence,
            guidance: None,
            reach: &self.reach,
            rows: &self.rows,
            temperature: self.request.temperature,
            noise: Noise::new(self.request.seed),
            suppressed: &self.suppressed,
            ranking: RankingScore::Confidence,
            top: false,
            renoised: None,
        }
    }

    /// Takes in that the pass was run, before what it found; returns how many rows it computed and how many it read.
    pub(super) fn begin(&mut self, cost: &PassCost) -> (usize, usize) {
        self.is_lossless &= cost.weights.is_lossless;
        for position in &mut self.positions {
            position.is_fresh = false;
        }
        (self.reach.rows(), self.rows.len())
    }

    /// Tells of that pass, and of blocks that it has finished.
    pub(super) fn report(
        &mut self,
        cost: &PassCost,
        (rows, lm_head_rows): (usize, usize),
        emit: &mut dyn FnMut(Event),
    ) {
        self.passes += 1;
        self.passes_in_block += 1;
        emit(Event::Pass(Box::new(PassReport {
            passes: self.passes,
            block: self.block,
            passes_in_block: self.passes_in_block,
            positions: self.shown(self.block).to_vec(),
            committed: self.answered(),
            rows,
            lm_head_rows,
            elapsed: self.started.elapsed(),
            cost: *cost,
        })));
        while self.is_over(self.block) {
            emit(Event::BlockDone {
                block: self.block,
                passes: self.passes_in_block,
                positions: self.shown(self.block).to_vec(),
            });
            self.block += 1;
            self.passes_in_block = 0;
        }
    }

    /// Whether nothing of a block is left to write, and something was.
    fn is_over(&self, block: usize) -> bool {
        let length = self.request.block_length;
        match self.finish {
            Some(_) => !self.shown(block).is_empty(),
            None => (block + 1) * length <= self.answered(),
        }
    }

    /// The positions of a block, up to the end of the text.
    fn shown(&self, block: usize) -> &[CanvasPosition] {
        let length = self.request.block_length;
        let end = match self.finish {
            Some(_) => self.answered(),
            None => self.positions.len(),
        };
        &self.positions[(block * length).min(end)..((block + 1) * length).min(end)]
    }

    /// The result so far or in the end. `peak_device_bytes` is 0: the caller keeps the ledger.
    pub(super) fn generated(mut self) -> GenerationResult {
        self.sequence.truncate(self.written);
        GenerationResult {
            tokens: self.sequence.split_off(self.request.prompt.len()),
            finish_reason: self.finish.unwrap_or(FinishReason::Cancelled),
            passes: self.passes,
            edits: 0,
            elapsed: self.started.elapsed(),
            peak_device_bytes: 0,
            is_lossless: self.is_lossless,
            state: None,
        }
    }
}
