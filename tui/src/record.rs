//! A recording of a request's passes, so that each picture can be shown again.

mod file;
mod heat;

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use prost::Message as _;
use sluice_proto::v1::{
    GenerationBlock, GenerationNotice, GenerationPass, generation_event::Event,
};

pub use file::{Runs, load, save};
pub use heat::HeatCell;
use heat::HeatRow;

use crate::{
    canvas::{Canvas, NOTICES_MAX},
    json,
};

/// Most bytes that the passes of a recording take; a pass of 32 positions takes 1 KiB.
pub const PASSES_BYTES_MAX: usize = 2 << 20;

/// The events of one request, taken in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Recording {
    canvas: Canvas,
    passes: Vec<RecordedPass>,
    /// Bytes that the passes take.
    bytes: usize,
    /// Number of times that every second pass was dropped: from then on only each `2^halvings`-th is kept.
    halvings: u32,
    /// Whether passes are missing from the file that it was read from.
    has_gaps: bool,
    /// Number of passes of each block that is done.
    block_passes: BTreeMap<u32, u32>,
    /// Notices, each with the number of the pass that it came after.
    notices: Vec<(u32, GenerationNotice)>,
    /// The recording before the request was joined again, until `Started` tells whether it is the same request.
    earlier: Option<Box<Recording>>,
}

/// A pass as it came, encoded to take less memory. It is a full picture of its block, so it needs none of the others.
#[derive(Debug, Clone, PartialEq)]
struct RecordedPass {
    pass_number: u32,
    block: u32,
    row: HeatRow,
    encoded: Box<[u8]>,
}

impl RecordedPass {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.row.bytes() + self.encoded.len()
    }

    fn pass(&self) -> Option<GenerationPass> {
        // It was encoded by `record_pass`, so decoding does not fail.
        GenerationPass::decode(&*self.encoded).ok()
    }
}

impl Recording {
    /// Adds the next event of the request.
    pub fn take(&mut self, kind: Event) {
        match &kind {
            // The stream of a request that is joined again repeats all events but past passes, so the passes recorded
            // before are kept until it is known that they belong to it.
            Event::Queued(_) => {
                let mut earlier = std::mem::take(self);
                // Joined a second time before it started: the recording in between is empty, the one before it has the passes.
                let oldest = earlier.earlier.take();
                self.earlier = match oldest {
                    Some(oldest) if earlier.canvas.started.is_none() => Some(oldest),
                    _ => Some(Box::new(earlier)),
                };
            }
            Event::Started(started) => {
                let earlier = self.earlier.take();
                if let Some(earlier) = earlier
                    && earlier.canvas.started.as_ref() == Some(started)
                {
                    self.passes = earlier.passes;
                    self.bytes = earlier.bytes;
                    self.halvings = earlier.halvings;
                    self.has_gaps = earlier.has_gaps;
                }
            }
            Event::PassDone(pass) => self.record_pass(pass),
            Event::BlockDone(done) => {
                self.block_passes.entry(done.block).or_insert(done.passes);
            }
            Event::Notice(notice) => {
                let after = self.canvas.pass.as_ref().map_or(0, |pass| pass.passes);
                self.notices.push((after, notice.clone()));
                let excess = self.notices.len().saturating_sub(NOTICES_MAX);
                self.notices.drain(..excess);
            }
            Event::Done(_) | Event::Loading(_) | Event::Placed(_) | Event::Thought(_) => {}
        }
        self.canvas.apply(kind);
    }

    /// The latest picture of the request.
    #[must_use]
    pub fn canvas(&self) -> &Canvas {
        &self.canvas
    }

    /// Marks the request as failed.
    pub fn fail(&mut self, message: String) {
        self.canvas.failure = Some(message);
    }

    /// Number of passes that are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.passes.len()
    }

    /// Whether no pass is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.passes.is_empty()
    }

    /// Whether passes between those that are kept were dropped for [`PASSES_BYTES_MAX`], here or before the run was saved.
    #[must_use]
    pub fn is_thinned(&self) -> bool {
        self.halvings > 0 || self.has_gaps
    }

    /// The number of the pass at an index; the request's first pass is 1.
    #[must_use]
    pub fn number(&self, index: usize) -> Option<u32> {
        Some(self.passes.get(index)?.pass_number)
    }

    /// The index of the pass with a number, or of the kept pass before it; `None` before the first.
    #[must_use]
    pub fn index_of(&self, number: u32) -> Option<usize> {
        let after = self
            .passes
            .partition_point(|kept| kept.pass_number <= number);
        after.checked_sub(1)
    }

    /// The picture after the pass at an index: the blocks before its own, and the pass itself.
    #[must_use]
    pub fn picture(&self, index: usize) -> Option<Canvas> {
        let kept = self.passes.get(index)?;
        let mut picture = self.canvas.before(kept.block);
        picture.notices = self.notices_before(kept.pass_number);
        picture.apply(Event::PassDone(kept.pass()?));
        Some(picture)
    }

    /// Writes the recording as `sluice generate --json` would have printed it.
    ///
    /// # Errors
    /// When writing to `to` fails.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut tell = |kind: Event| writeln!(to, "{}", json::event(&kind));
        if let Some(queued) = self.canvas.queued {
            tell(Event::Queued(queued))?;
        }
        if let Some(started) = &self.canvas.started {
            tell(Event::Started(started.clone()))?;
        }
        if let Some(placed) = &self.canvas.placed {
            tell(Event::Placed(placed.clone()))?;
        }
        for thought in self.canvas.samples.iter().chain(&self.canvas.thoughts) {
            tell(Event::Thought(thought.clone()))?;
        }
        let mut blocks = self.canvas.blocks.keys().copied().peekable();
        let mut notices = self.notices.iter().peekable();
        for kept in &self.passes {
            while let Some((_, notice)) = notices.next_if(|(after, _)| *after < kept.pass_number) {
                tell(Event::Notice(notice.clone()))?;
            }
            while let Some(block) = blocks.next_if(|block| *block < kept.block) {
                tell(self.block_done(block))?;
            }
            if let Some(pass) = kept.pass() {
                tell(Event::PassDone(pass))?;
            }
        }
        let latest = self.canvas.pass.as_ref();
        // The latest pass may have been skipped by the stride, but the last picture belongs to every run.
        if let Some(pass) = latest.filter(|pass| self.is_after_recorded(pass)) {
            while let Some(block) = blocks.next_if(|block| *block < pass.block) {
                tell(self.block_done(block))?;
            }
            tell(Event::PassDone(pass.clone()))?;
        }
        for (_, notice) in notices {
            tell(Event::Notice(notice.clone()))?;
        }
        for block in blocks {
            tell(self.block_done(block))?;
        }
        match &self.canvas.done {
            Some(done) => tell(Event::Done(done.clone())),
            None => Ok(()),
        }
    }

    /// Keeps a pass, unless it comes sooner than the stride after the last one.
    fn record_pass(&mut self, pass: &GenerationPass) {
        let last = self.passes.last();
        let stride = 1_u32.checked_shl(self.halvings).unwrap_or(u32::MAX);
        let next = last.map_or(Some(0), |last| last.pass_number.checked_add(stride));
        if next.is_none_or(|next| pass.passes < next) {
            return;
        }
        let kept = RecordedPass {
            pass_number: pass.passes,
            block: pass.block,
            row: HeatRow::of(&pass.tokens),
            encoded: pass.encode_to_vec().into(),
        };
        self.bytes += kept.bytes();
        self.passes.push(kept);
        while self.bytes > PASSES_BYTES_MAX && self.passes.len() > 1 {
            // Every second pass goes and the stride doubles, so the rest stays evenly spread over the request.
            self.halvings += 1;
            let mut index = 0;
            self.passes.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.bytes = self.passes.iter().map(RecordedPass::bytes).sum();
        }
    }

    fn is_after_recorded(&self, pass: &GenerationPass) -> bool {
        let last = self.passes.last();
        last.is_none_or(|last| pass.passes > last.pass_number)
    }

    fn notices_before(&self, number: u32) -> Vec<String> {
        let before = self.notices.iter().filter(|(after, _)| *after < number);
        before.map(|(_, notice)| notice.text.clone()).collect()
    }

    fn block_done(&self, block: u32) -> Event {
        let queued = self.canvas.queued.as_ref();
        Event::BlockDone(GenerationBlock {
            request_id: queued.map_or(0, |queued| queued.request_id),
            block,
            passes: self.block_passes.get(&block).copied().unwrap_or_default(),
            tokens: self.canvas.blocks.get(&block).cloned().unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests;
