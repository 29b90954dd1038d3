//! From the engine's events to the wire's: ids get their bytes, and the text that is certain
//! grows from the left. Runs on the engine's thread and never waits.

mod advice;
pub mod embedding;
pub mod figures;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use sluice_engine::{
    CanvasSlot, Engine, EngineError, Event, Generate, Outcome,
    decode::VisibleText,
    event::{
        CanvasPosition, EventSink, FinishReason, GenerationResult, PassCost, PassPhases,
        PassReport, PlacedText, ThoughtReport, ThoughtStep, TokenLogprobs, TokenState,
    },
    runtime::SwitchProgress,
    saved_state::SavedState,
};
use sluice_plan::{Plan, PlanError};
use sluice_proto::{
    model::{DecodingChoice, Preset},
    v1::{self, generation_event},
};
use sluice_shared::{decoding::Decoding, sampling::EosPolicy};
use sluice_weights::LayerKind;

use self::advice::RequestSize;
use crate::{
    failure::Failure,
    models::{Models, ServingModel},
    prepare::PreparedGeneration,
    requests::{RequestEnd, RequestRecord, Requests},
    translate::plan,
};

/// What happens to a request's states.
pub enum StateEvent {
    /// The engine has its copy of the state that the request goes on from.
    Begun,
    /// The state that the request ends with.
    Ended(SavedState),
}

/// Takes what happens to a request's states, on the engine's thread; must not block.
pub type StateSink = Box<dyn FnMut(StateEvent) + Send>;

/// Where a request's events go.
pub struct EventTarget {
    /// The request's record.
    pub record: Arc<RequestRecord>,
    /// The registry that lists it.
    pub requests: Arc<Requests>,
    /// The models, of which some may keep memory that the request lacks.
    pub models: Arc<Models>,
}

/// A sink that writes a generation's events into its record. `expected`, the plan for its canvas, predicts the time;
/// `states` gets the state in the end, if there is one, before the last event is told.
#[must_use]
pub fn generation(
    target: EventTarget,
    serving: ServingModel,
    prepared: &PreparedGeneration,
    expected: Option<Plan>,
    states: StateSink,
) -> EventSink {
    let work = &prepared.work;
    let pinned = work
        .canvas
        .iter()
        .filter(|slot| **slot != CanvasSlot::Masked);
    let pinned = pinned.count();
    let mut translator = Generation {
        advised: RequestSize::of(work, &serving.loaded.info),
        expected,
        engine: serving.engine.clone(),
        full: finish_of_full_canvas(&serving, work),
        saw_lossy: false,
        has_written: false,
        pass_totals: PassTotals::default(),
        committed: pinned,
        pinned,
        anywhere: Anywhere::of(&serving, prepared),
        writer: RecordWriter::new(target),
        stable_text: StableText::new(&serving, work),
        started: started(&serving, prepared),
        serving,
        states,
    };
    Box::new(move |event| translator.take(event))
}

/// A plan that fails for a request's size is the request's failure, not a wrong budget.
fn of_request(error: EngineError) -> Failure {
    match error {
        EngineError::Plan(error @ PlanError::BudgetTooSmall { .. }) => {
            Failure::TooLargeForBudget(error)
        }
        error => error.into(),
    }
}

/// The record that a request's events go to. Ends the request when dropped.
struct RecordWriter {
    requests: Arc<Requests>,
    models: Arc<Models>,
    record: Arc<RequestRecord>,
    /// Whether this sink writes nothing more to the record.
    ended: bool,
}

impl RecordWriter {
    fn new(target: EventTarget) -> Self {
        let EventTarget {
            record,
            requests,
            models,
        } = target;
        Self {
            requests,
            models,
            record,
            ended: false,
        }
    }

    fn id(&self) -> u64 {
        self.record.id()
    }

    /// Marks the request as running, with its first event if it is a generation.
    fn start(&self, first: Option<generation_event::Event>) {
        let operation = self.record.operation();
        let queued = operation.age();
        self.record.start(first);
        let prompt_tokens = operation.prompt_tokens();
        self.requests.totals().started(queued, prompt_tokens);
        self.requests.touched();
    }

    /// Ends the request, with its last event if it is a generation.
    fn end(&mut self, last: Option<generation_event::Event>, ending: RequestEnd) {
        self.ended = true;
        let state = match &ending {
            RequestEnd::Done(_) => "done",
            RequestEnd::Cancelled => "cancelled",
            RequestEnd::Failed(status) => {
                let reason = status.message();
                tracing::warn!(request = self.id(), reason, "request failed");
                return self.requests.end(&self.record, last, ending);
            }
        };
        match self.record.is_step() {
            true => tracing::debug!(request = self.id(), state, "request ended"),
            false => tracing::info!(request = self.id(), state, "request ended"),
        }
        self.requests.end(&self.record, last, ending);
    }

    fn fail(&mut self, failure: &Failure) {
        self.end(None, RequestEnd::Failed(failure.into()));
    }

    /// The engine did not finish the request. If the model was unloaded before its turn, the request is given back and waits
    /// for the next model.
    fn refuse(&mut self, error: EngineError) {
        let is_gone = matches!(error, EngineError::NoModel | EngineError::ModelReplaced);
        if is_gone && !self.record.has_started() {
            self.ended = true;
            self.record.give_back();
            return self.requests.touched();
        }
        let unused = || self.models.unused_beside(self.record.operation());
        let failure = of_request(error).with_unused(unused);
        self.fail(&failure);
    }
}

impl Drop for RecordWriter {
    /// A sink that is dropped before its last event was refused by the engine, or else the
    /// engine is gone and readers must not wait for ever.
    fn drop(&mut self) {
        if !self.ended && self.record.is_admitted() {
            self.fail(&Failure::EngineLost);
        }
    }
}

struct Generation {
    writer: RecordWriter,
    serving: ServingModel,
    stable_text: StableText,
    /// What was resolved, with the number of blocks still to come from the engine.
    started: v1::GenerationStarted,
    /// What advice is given on.
    advised: RequestSize,
    /// A plan for a canvas like this one's, if there is one.
    expected: Option<Plan>,
    /// Asked for the plan in force when the request starts.
    engine: Weak<Engine>,
    /// Positions that were committed before the next pass, pinned ones included.
    committed: usize,
    /// Of those, the pinned ones.
    pinned: usize,
    /// What filling the canvas to its end means: how it ended, and whether the text is cut there.
    full: (v1::FinishReason, bool),
    /// Texts that have no position yet.
    anywhere: Anywhere,
    /// A pass met other weights than the checkpoint's own.
    saw_lossy: bool,
    /// A pass has committed something.
    has_written: bool,
    pass_totals: PassTotals,
    states: StateSink,
}

/// Sums over all passes of a request.
#[derive(Default)]
struct PassTotals {
    time: Duration,
    waited: Duration,
    /// `None` where that is not told.
    phases: Option<PassPhases>,
}

impl PassTotals {
    fn add(&mut self, cost: &PassCost) {
        self.time += cost.time;
        self.waited += cost.waited;
        if let Some(phases) = cost.phases {
            *self.phases.get_or_insert_default() += phases;
        }
    }
}

/// Texts without a position, as their groups come to the engine.
struct Anywhere {
    /// Those that the request pins, each of a group of its own; names out of memory follow them.
    pins: Vec<String>,
}

impl Anywhere {
    fn of(serving: &ServingModel, prepared: &PreparedGeneration) -> Self {
        let memory = prepared.memory.as_ref();
        let has_names = memory.is_some_and(|memory| !memory.names.is_empty());
        let groups = &prepared.work.anywhere;
        let pins = groups[..groups.len() - usize::from(has_names)].iter();
        let text = |ids: &[u32]| match &serving.loaded.tokenizer {
            Some(text) => {
                let bytes: Vec<u8> = ids.iter().flat_map(|id| text.piece(*id)).copied().collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            None => ids.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
        };
        Self {
            pins: pins.map(|pins| text(&pins.texts.concat())).collect(),
        }
    }

    /// Those of the request's pins that found no room.
    fn without_room(&self, placed: &[PlacedText]) -> Vec<String> {
        let pins = self.pins.iter().enumerate();
        let missing = pins.filter(|(group, _)| placed.iter().all(|text| text.group != *group));
        missing.map(|(_, text)| text.clone()).collect()
    }
}

impl Generation {
    fn take(&mut self, event: Event) {
        match event {
            Event::Started { blocks, is_exact } => {
                self.started.is_exact &= is_exact;
                (self.states)(StateEvent::Begun);
                self.start(blocks);
            }
            Event::Pass(report) => self.pass(&report),
            Event::Placed(texts) => self.placed(&texts),
            Event::Thought(report) => self.thought(&report),
            Event::BlockDone {
                block,
                passes,
                positions,
            } => self.block_done(block, passes, &positions),
            Event::Notice(text) => {
                tracing::info!(request = self.writer.id(), text, "notice");
                self.writer.record.notice(&text);
            }
            // Of estimates and comparisons only.
            Event::ScoreProgress { .. } => {}
            Event::Finished(Ok(Outcome::Generated(generated))) => self.done(generated),
            Event::Finished(Ok(Outcome::Cancelled)) => self.cancelled_waiting(),
            Event::Finished(Ok(other)) => self.writer.fail(&Failure::WrongOutcome(Box::new(other))),
            Event::Finished(Err(error)) => self.writer.refuse(error),
        }
    }

    fn start(&mut self, blocks: usize) {
        let mut started = self.started.clone();
        started.request_id = self.writer.id();
        started.blocks = blocks as u32;
        let engine = self.engine.upgrade();
        let in_force = engine.as_ref().and_then(|engine| engine.in_force());
        if let (Some(engine), Some(in_force)) = (engine, in_force) {
            let plan = &in_force.plan;
            started.level = v1::Level::from(plan.level).into();
            started.is_exact &= plan::is_lossless(plan) && engine.has_exact_matmul(plan);
            // Read now, not at admission: the level may have changed while the request waited.
            let expected = self.expected.as_ref();
            let expected = expected.filter(|expected| expected.level == plan.level);
            let pass = expected.and_then(|expected| expected.pass.as_ref());
            started.estimated_ms = pass.map(|pass| self.advised.estimated_ms(pass));
            let advice = self.advised.warnings(plan.level, started.estimated_ms);
            started.warnings.extend(advice);
        }
        self.writer
            .start(Some(generation_event::Event::Started(started)));
    }

    fn pass(&mut self, report: &PassReport) {
        self.saw_lossy |= !report.cost.weights.is_lossless;
        self.pass_totals.add(&report.cost);
        self.stable_text.take_open(&report.positions, &self.serving);
        // A pass may turn committed positions into masks again; they must not be counted twice.
        let committed = report.committed.saturating_sub(self.committed);
        self.committed = report.committed;
        let totals = self.writer.requests.totals();
        totals.pass(&report.cost, committed as u64);
        if committed > 0 && !std::mem::replace(&mut self.has_written, true) {
            totals.first_token(self.writer.record.operation().age());
        }
        let pass = v1::GenerationPass {
            request_id: self.writer.id(),
            passes: report.passes as u32,
            block: report.block as u32,
            passes_in_block: report.passes_in_block as u32,
            tokens: canvas_tokens(&report.positions, &self.serving),
            committed_positions: report.committed as u32,
            stable_text: self.stable_text.text.shown().to_vec(),
            rows: report.rows as u32,
            lm_head_rows: report.lm_head_rows as u32,
            pass_ms: ms(report.cost.time),
            elapsed_ms: ms(report.elapsed),
            device_bytes: report.cost.device_bytes,
            weights_version: report.cost.weights.weights_version,
            is_exact: self.started.is_exact && !self.saw_lossy,
            waited_ms: ms(report.cost.waited),
            streamed_bytes: report.cost.streamed_bytes,
            experts: plan::expert_counts(&report.cost.experts),
            batch_requests: report.cost.batch_requests as u32,
            phases: report.cost.phases.map(phases),
            level: self.level_in_force().into(),
            weight_switch: report.cost.weights.switch.map(|(done, steps)| {
                plan::weight_switch(SwitchProgress {
                    done_steps: done,
                    total_steps: steps,
                })
            }),
        };
        let picture = generation_event::Event::PassDone(pass);
        self.writer
            .record
            .picture(picture, report.passes, report.committed);
    }

    /// What was placed counts as fixed from the start from here on.
    fn placed(&mut self, placed: &[PlacedText]) {
        let serving = &self.serving;
        let texts = placed.iter().map(|text| {
            let tokens = text.tokens.iter().enumerate();
            v1::PlacedText {
                tokens: tokens
                    .map(|(offset, id)| pinned_token(text.position + offset, *id, serving))
                    .collect(),
                mean_logprob: text.log_probability,
                is_name: text.group >= self.anywhere.pins.len(),
            }
        });
        let texts: Vec<v1::PlacedText> = texts.collect();
        let tokens = texts.iter().flat_map(|text| &text.tokens);
        let before = self.started.pinned.len();
        self.started.pinned.extend(tokens.cloned());
        let more = self.started.pinned.len() - before;
        self.pinned += more;
        self.committed += more;
        for text in placed {
            self.stable_text.pin(text.position, &text.tokens);
        }
        self.stable_text.grow(&self.serving);
        self.writer.record.placed(v1::GenerationPlaced {
            request_id: self.writer.id(),
            texts,
            without_room: self.anywhere.without_room(placed),
        });
        self.writer.requests.touched();
    }

    fn thought(&mut self, report: &ThoughtReport) {
        self.saw_lossy |= !report.cost.weights.is_lossless;
        self.pass_totals.add(&report.cost);
        let info = &self.serving.loaded.info;
        let latents = match info.layer_kind {
            LayerKind::LatentThought(sizes) => sizes.latents,
            _ => 0,
        };
        let thoughts = report.posterior.as_ref().map(|posterior| v1::Thoughts {
            layers: info.layers as u32,
            latents: latents as u32,
            hidden_size: info.hidden_size as u32,
            means: posterior.mu.clone(),
            log_variances: posterior.log_var.clone(),
        });
        let (noise_level, (nll, kl, tokens)) = match report.found {
            ThoughtStep::Sampled { noise_level } => (Some(noise_level), (0.0, 0.0, 0)),
            ThoughtStep::Inferred { nll, kl, tokens } => (None, (nll, kl, tokens)),
        };
        self.writer.record.thought(v1::GenerationThought {
            request_id: self.writer.id(),
            step: report.step as u32,
            steps_max: report.steps_max as u32,
            nll,
            kl,
            tokens: tokens as u32,
            noise_level,
            pass_ms: ms(report.cost.time),
            elapsed_ms: ms(report.elapsed),
            is_last: report.is_last,
            thoughts,
        });
        self.writer.requests.touched();
    }

    fn level_in_force(&self) -> v1::Level {
        let engine = self.engine.upgrade();
        let level = engine.and_then(|engine| engine.level_in_force());
        level.map_or(v1::Level::Unspecified, v1::Level::from)
    }

    fn block_done(&mut self, block: usize, passes: usize, positions: &[CanvasPosition]) {
        self.stable_text.take(positions, &self.serving);
        let done = v1::GenerationBlock {
            request_id: self.writer.id(),
            block: block as u32,
            passes: passes as u32,
            tokens: canvas_tokens(positions, &self.serving),
        };
        self.writer.record.block_done(done);
        self.writer.requests.touched();
    }

    fn done(&mut self, mut generated: GenerationResult) {
        if let Some(state) = generated.state.take() {
            (self.states)(StateEvent::Ended(*state));
        }
        let (finish, ending) = match generated.finish_reason {
            FinishReason::Length => (self.full.0, RequestEnd::Done(None)),
            FinishReason::Eos => (v1::FinishReason::Eos, RequestEnd::Done(None)),
            FinishReason::Stop => (v1::FinishReason::Stop, RequestEnd::Done(None)),
            FinishReason::Cancelled => (v1::FinishReason::Cancelled, RequestEnd::Cancelled),
        };
        self.stable_text.take_all(&generated.tokens, &self.serving);
        let done = v1::GenerationDone {
            finish_reason: finish.into(),
            is_truncated: generated.finish_reason == FinishReason::Length && self.full.1,
            token_ids: generated.tokens,
            passes: generated.passes as u32,
            edits: generated.edits as u32,
            elapsed_ms: ms(generated.elapsed),
            peak_device_bytes: generated.peak_device_bytes,
            is_exact: self.started.is_exact && generated.is_lossless,
            ..self.done_so_far(generated.finish_reason)
        };
        self.writer
            .end(Some(generation_event::Event::Done(done)), ending);
    }

    fn cancelled_waiting(&mut self) {
        let slots = self.stable_text.fixed.iter();
        // A model without masks has written nothing.
        let mask = self.serving.loaded.info.mask;
        let mask = mask.and_then(|mask| mask.token_id);
        let tokens = mask.map(|mask| slots.map(|fixed| fixed.unwrap_or(mask)).collect());
        let done = v1::GenerationDone {
            finish_reason: v1::FinishReason::Cancelled.into(),
            token_ids: tokens.unwrap_or_default(),
            ..self.done_so_far(FinishReason::Cancelled)
        };
        let done = generation_event::Event::Done(done);
        self.writer.end(Some(done), RequestEnd::Cancelled);
    }

    /// Tokens of the text that were fixed from the start.
    fn pinned_in_text(&self) -> usize {
        let pinned = self.started.pinned.iter();
        let is_in_text =
            |token: &&v1::CanvasToken| (token.position as usize) < self.stable_text.tokens;
        pinned.filter(is_in_text).count()
    }

    fn done_so_far(&self, finish: FinishReason) -> v1::GenerationDone {
        let has_text = self.serving.loaded.tokenizer.is_some();
        let bytes = match finish {
            FinishReason::Length | FinishReason::Cancelled => self.stable_text.text.whole(),
            FinishReason::Eos | FinishReason::Stop => self.stable_text.text.all(),
        };
        v1::GenerationDone {
            request_id: self.writer.id(),
            text: has_text.then(|| String::from_utf8_lossy(bytes).into_owned()),
            text_tokens: self.stable_text.tokens as u32,
            generated_tokens: (self.stable_text.tokens - self.pinned_in_text()) as u32,
            filled_positions: self.committed.saturating_sub(self.pinned) as u32,
            seed: self.started.seed,
            is_exact: self.started.is_exact,
            pass_ms: ms(self.pass_totals.time),
            waited_ms: ms(self.pass_totals.waited),
            phases: self.pass_totals.phases.map(phases),
            ..Default::default()
        }
    }
}

fn phases(phases: PassPhases) -> v1::PassPhases {
    v1::PassPhases {
        attention_ms: ms(phases.attention),
        matmul_ms: ms(phases.matmul),
        decompress_ms: ms(phases.decompress),
        lm_head_ms: ms(phases.lm_head),
        other_ms: ms(phases.other),
        copy_ms: ms(phases.copy),
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The text up to the first position still masked. It only grows, so that clients never have to take text back.
struct StableText {
    /// Ids that no later pass changes.
    fixed: Vec<Option<u32>>,
    /// Ids that end the text; none where the user wants to see past them.
    ends: Vec<u32>,
    /// The text does not end before this position.
    may_end_from: usize,
    /// Tokens of the open block may become masks again.
    takes_back: bool,
    /// Tokens in `text`.
    tokens: usize,
    text: VisibleText,
}

impl StableText {
    fn new(serving: &ServingModel, work: &Generate) -> Self {
        let pinned = |slot: &CanvasSlot| match slot {
            CanvasSlot::Masked => None,
            CanvasSlot::Pinned(id) => Some(*id),
        };
        let mut stable = Self {
            may_end_from: work.may_end_from(),
            takes_back: work.policy.info().takes_back,
            fixed: work.canvas.iter().map(pinned).collect(),
            ends: match work.eos {
                EosPolicy::Stop => serving.loaded.info.eos_token_ids.clone(),
                EosPolicy::Suppress | EosPolicy::Keep => Vec::new(),
            },
            tokens: 0,
            text: VisibleText::new(&work.stops),
        };
        stable.grow(serving);
        stable
    }

    /// Tokens that are fixed from here on: the text doesn't end before them.
    fn pin(&mut self, position: usize, ids: &[u32]) {
        let end = position + ids.len();
        for (fixed, id) in self.fixed[position..end].iter_mut().zip(ids) {
            *fixed = Some(*id);
        }
        self.may_end_from = self.may_end_from.max(end);
    }

    /// A block that is not done: none of it is certain if any of it may be taken back.
    fn take_open(&mut self, positions: &[CanvasPosition], serving: &ServingModel) {
        if !self.takes_back {
            self.take(positions, serving);
        }
    }

    fn take(&mut self, positions: &[CanvasPosition], serving: &ServingModel) {
        for position in positions {
            if let Some(fixed) = self.fixed.get_mut(position.position) {
                // What was fixed may have moved on, where masks were inserted before it.
                let is_fixed = matches!(position.state, TokenState::Committed | TokenState::Pinned);
                *fixed = position.token.filter(|_| is_fixed);
            }
        }
        self.grow(serving);
    }

    /// The whole canvas; after a cancel some of it is masks.
    fn take_all(&mut self, tokens: &[u32], serving: &ServingModel) {
        let mask = serving.loaded.info.mask.and_then(|mask| mask.token_id);
        for (fixed, id) in self.fixed.iter_mut().zip(tokens) {
            *fixed = Some(*id).filter(|id| Some(*id) != mask);
        }
        self.grow(serving);
    }

    fn grow(&mut self, serving: &ServingModel) {
        while let Some(&Some(id)) = self.fixed.get(self.tokens) {
            if self.tokens >= self.may_end_from && self.ends.contains(&id) {
                break;
            }
            self.text.push(piece(serving, id));
            self.tokens += 1;
        }
    }
}

/// How a text ends that fills the canvas, and whether it is cut: where an end token would have ended it, it had more to say.
fn finish_of_full_canvas(serving: &ServingModel, work: &Generate) -> (v1::FinishReason, bool) {
    let positions = work.prompt.len() + work.canvas.len();
    let reason = match positions >= serving.loaded.info.context_length {
        true => v1::FinishReason::Context,
        false => v1::FinishReason::Length,
    };
    (reason, work.eos == EosPolicy::Stop)
}

fn started(serving: &ServingModel, prepared: &PreparedGeneration) -> v1::GenerationStarted {
    let work = &prepared.work;
    let pinned = work.canvas.iter().enumerate().filter_map(|(index, slot)| {
        let CanvasSlot::Pinned(id) = *slot else {
            return None;
        };
        Some(pinned_token(index, id, serving))
    });
    let text = serving.loaded.tokenizer.as_ref();
    let mut started = v1::GenerationStarted {
        prompt_tokens: work.prompt.len() as u32,
        length: work.canvas.len() as u32,
        block_length: work.block_length as u32,
        seed: work.seed,
        model: serving.name.name.clone(),
        pinned: pinned.collect(),
        is_exact: work.policy.info().exact
            && (work.state.start.as_ref()).is_none_or(|state| state.is_lossless),
        settings: prepared.settings.clone(),
        warnings: prepared.warnings.clone(),
        memory: prepared.memory.clone(),
        is_seed_drawn: prepared.seed_drawn,
        prompt_text: text.map_or_else(Vec::new, |text| text.decode_with_specials(&work.prompt)),
        ..Default::default()
    };
    started.diffusion = prepared.preset.map(|preset| diffusion(work, preset));
    started
}

/// What a request comes to, whatever was said of it.
fn diffusion(work: &Generate, preset: Preset) -> v1::DiffusionOptions {
    let Decoding {
        kv_cache,
        suffix_window,
        canvas_growth,
        speculation,
    } = work.decoding;
    let mut options = v1::DiffusionOptions {
        steps: Some(work.steps as u32),
        guidance: Some(work.guidance),
        remasking: v1::Remasking::from(work.remasking).into(),
        ..Default::default()
    };
    let choice = DecodingChoice {
        preset: Some(preset),
        policy: Some(work.policy),
        kv_cache: Some(kv_cache),
        suffix_window,
        canvas_growth: Some(canvas_growth),
        speculation: Some(speculation),
    };
    choice.write(&mut options);
    options
}

fn canvas_tokens(positions: &[CanvasPosition], serving: &ServingModel) -> Vec<v1::CanvasToken> {
    let to_wire = |position: &CanvasPosition| v1::CanvasToken {
        position: position.position as u32,
        id: position.token,
        piece: position
            .token
            .map_or_else(Vec::new, |id| piece(serving, id).to_vec()),
        confidence: position.confidence,
        state: match position.state {
            TokenState::Masked => v1::TokenState::Masked,
            TokenState::Provisional => v1::TokenState::Provisional,
            TokenState::Committed => v1::TokenState::Committed,
            TokenState::Pinned => v1::TokenState::Pinned,
        }
        .into(),
        is_fresh: position.is_fresh,
        is_edited: position.is_edited,
        logprobs: (position.logprobs.as_deref()).map(|logprobs| token_logprobs(logprobs, serving)),
    };
    positions.iter().map(to_wire).collect()
}

fn pinned_token(position: usize, id: u32, serving: &ServingModel) -> v1::CanvasToken {
    v1::CanvasToken {
        position: position as u32,
        id: Some(id),
        piece: piece(serving, id).to_vec(),
        state: v1::TokenState::Pinned.into(),
        ..Default::default()
    }
}

fn token_logprobs(logprobs: &TokenLogprobs, serving: &ServingModel) -> v1::TokenLogprobs {
    let top = |&(id, logprob): &(u32, f32)| v1::TopLogprob {
        id,
        piece: piece(serving, id).to_vec(),
        logprob,
    };
    v1::TokenLogprobs {
        logprob: logprobs.chosen,
        top: logprobs.top.iter().map(top).collect(),
    }
}

fn piece(serving: &ServingModel, id: u32) -> &[u8] {
    let text = serving.loaded.tokenizer.as_ref();
    text.map_or(&[], |text| text.piece(id))
}

#[cfg(test)]
mod tests {
    use sluice_engine::ModelId;

    use super::*;
    use crate::prepare::tests::serving;

    #[test]
    fn the_text_of_a_block_waits_where_tokens_may_be_taken_back() {
        let serving = serving(true);
        let token = |position: usize, state: TokenState| CanvasPosition {
            position,
            token: Some(100 + position as u32),
            confidence: None,
            state,
            is_fresh: false,
            is_edited: false,
            logprobs: None,
        };
        use TokenState::{Committed, Provisional};
        for (policy, certain) in [("threshold", [1, 2, 2, 2]), ("revoke", [0, 0, 0, 2])] {
            let mut work = Generate::greedy(ModelId(1), vec![5], 4);
            work.policy = policy.parse().unwrap();
            let mut stable = StableText::new(&serving, &work);
            let mut counts = Vec::new();
            let mut shown = Vec::new();
            for states in [
                [Committed, Provisional],
                [Committed, Committed],
                // Only `revoke` would do this.
                [Provisional, Committed],
            ] {
                let block = [token(0, states[0]), token(1, states[1])];
                stable.take_open(&block, &serving);
                counts.push(stable.tokens);
                assert!(stable.text.shown().starts_with(&shown));
                shown = stable.text.shown().to_vec();
            }
            stable.take(&[token(0, Committed), token(1, Committed)], &serving);
            counts.push(stable.tokens);
            assert_eq!(counts, certain, "{policy}");
            assert!(stable.text.shown().starts_with(&shown));
        }
    }
}
