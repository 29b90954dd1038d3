//! Continuous batching: waiting requests join between two passes where memory allows, and each leaves when it is done.
//! All take part in every pass; each attends to its own canvas alone, and gets the result that it would get alone.

mod grammars;
mod running_work;

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use sluice_ops::{KvCacheShape, LogitsRows, OpsError, ledger::PeakMark};
use sluice_plan::{Workload, resolve_canvas_kv_cache_format};

use self::running_work::{RunningWork, diffusion_request};
use super::{
    autoregressive::{self, AutoregressiveRequest, WeightsWatch},
    contain::contained,
    latent_score::LatentScore,
    pass_runner::PassRunner,
    prefix_cache::KeptPrefix,
    worker::Worker,
};
use crate::{
    decode::{
        Denoiser, DiffusionRequest, FinishedBlocks, PassRequest, RequestMemory, SoftPredictions,
        score::ScoreEstimate,
    },
    error::EngineError,
    event::{Event, Outcome, RequestListener},
    model::{
        network::{Interrupt, LatentText},
        sequence_memory::SequenceMemory,
    },
    request::{Generate, Score, Work},
    schedule::Job,
};

/// A running request.
struct BatchMember {
    id: u64,
    listener: RequestListener,
    cancel: Arc<AtomicBool>,
    workload: Workload,
    work: RunningWork,
    /// Peak device memory since it began, in bytes.
    peak_bytes: u64,
    /// Why it is over, if a pass of its own failed.
    failed: Option<EngineError>,
}

impl BatchMember {
    fn is_over(&self) -> bool {
        self.failed.is_some()
            || self.listener.is_gone()
            || self.cancel.load(Ordering::Relaxed)
            || self.work.is_done()
    }

    /// Whether it reads tokens in the next pass. One that failed is only dropped.
    fn is_reading(&self) -> bool {
        self.failed.is_none()
            && matches!(
                &self.work,
                RunningWork::Autoregressive(request) if !request.is_thinking() && !request.awaits_grammar()
            )
    }
}

/// The requests that share passes.
struct Batch<'a> {
    runner: PassRunner<'a>,
    members: Vec<BatchMember>,
    /// Memory for the logits of all requests, of autoregressive models.
    logits: Option<LogitsRows>,
    /// Whether guessed passes are included: only while rows cost nothing in the shared pass.
    guesses: bool,
    /// A shared pass has failed: each request has its own until one of them leaves.
    is_split: bool,
    /// The waiting request that did not fit, and the state that this depends on.
    refused: Option<(u64, (u64, u64))>,
}

impl Worker {
    /// Serves a request, and those that join it. `stop` is set when none of them is wanted any more.
    pub(super) fn serve(&mut self, mut job: Job, stop: &Arc<AtomicBool>) {
        // A long step of a switch on the way looks at the same flag as the passes.
        self.cancel = Arc::clone(stop);
        // The request's peak begins before its plan and caches, which are its own as well.
        self.shared.ledger.mark(PeakMark::Pass);
        let workload = job.work.workload();
        let prepared = self.prepare(&job.work, &workload);
        let mut served = PassRunner::new(self, workload, stop);
        match (prepared.and_then(|()| served.start()), &job.work) {
            // A measurement changes the weights on its way, so it shares no pass.
            (Ok(()), Work::MeasureFidelity(request)) => {
                let mut emit = |event| job.listener.tell(event);
                let result = served.worker.measure_fidelity(request, stop, &mut emit);
                served.rest();
                served.worker.end(job, result);
            }
            (Ok(()), Work::MeasureMix(request)) => {
                let mut emit = |event| job.listener.tell(event);
                let result = served.worker.measure_mix(request, stop, &mut emit);
                served.rest();
                served.worker.end(job, result);
            }
            (Ok(()), Work::CollectInputs(request)) => {
                let mut emit = |event| job.listener.tell(event);
                let result = served.collect_inputs(request, &mut emit);
                served.rest();
                served.worker.end(job, result);
            }
            (Ok(()), Work::Embed(request)) => {
                let mut emit = |event| job.listener.tell(event);
                let result = served.embed(request, &mut emit);
                served.rest();
                served.worker.end(job, result);
            }
            (Ok(()), Work::Generate(_) | Work::Score(_)) => Batch {
                runner: served,
                members: Vec::new(),
                logits: None,
                guesses: true,
                is_split: false,
                refused: None,
            }
            .run(job),
            (Err(error), _) => {
                served.rest();
                served.worker.end(job, Err(error));
            }
        }
        // A fresh flag: the next steps of a switch must not see that this request was cancelled.
        self.cancel = Arc::default();
    }

    /// Checks that a request is for the present model, and evicts prefix-cache entries where it needs the memory.
    fn prepare(&mut self, work: &Work, workload: &Workload) -> Result<(), EngineError> {
        let kv = self.shared.state.settings().kv_cache_format;
        let current = self.current_mut()?;
        if current.id != work.model() {
            return Err(EngineError::ModelReplaced);
        }
        match work {
            Work::Generate(request)
                if current.vocabulary.mask.is_none() || request.diffusion_block().is_some() =>
            {
                self.evict_prefixes(request, workload, kv)
            }
            _ => Ok(()),
        }
    }

    /// Allocates what a request keeps from pass to pass, as planned.
    fn memory(&mut self, workload: &Workload) -> Result<RequestMemory, EngineError> {
        let (places, count) = workload.cached_rows();
        let profile = self.ops.device().profile();
        let current = self.current_mut()?;
        // The batch's format and not that of the settings, which may have changed since the batch began.
        let kv = current.serving_kv_cache_format.unwrap_or_default();
        let shape = &current.planner.config.shape;
        let (head_rows, width) = (shape.padded_vocab_size, shape.hidden_size);
        let format = resolve_canvas_kv_cache_format(kv, &profile)?;
        let reads_text_apart = current.model.reads_text_apart();
        let shapes = KvCacheShape::each(shape, format);
        // All canvases of a request have one length, so they share the places evenly.
        let caches = (0..count).flat_map(|_| &shapes);
        let caches = caches.map(|shape| self.ops.kv_cache(*shape, places / count));
        let soft = || self.ops.soft_embeddings(workload.lm_head_rows(), width);
        let soft = match reads_text_apart {
            true => Some(Box::new(SoftPredictions {
                last: soft()?,
                next: soft()?,
            })),
            false => None,
        };
        let distributions = match workload.compared_rows() {
            0 => None,
            rows => Some(self.ops.distributions(rows, head_rows)?),
        };
        Ok(RequestMemory {
            kv_caches: caches.collect::<Result<_, _>>()?,
            distributions,
            soft,
        })
    }

    /// Copies the blocks that the prefix cache has of a prompt, with block diffusion.
    fn go_on_from_prefix(
        &mut self,
        request: &Generate,
        memory: &mut RequestMemory,
        filling: &mut dyn DiffusionRequest,
    ) -> Result<(), EngineError> {
        // Under guidance there is a second one, of a masked prompt.
        if request.diffusion_block().is_none() || memory.kv_caches.len() != 1 {
            return Ok(());
        }
        let Some(cache) = memory.kv_caches.pop() else {
            return Ok(());
        };
        let mut kept = SequenceMemory::KvCache(cache);
        let copied = self.reuse_prefix(request, &mut kept);
        filling.go_on_after(kept.len());
        if let SequenceMemory::KvCache(cache) = kept {
            memory.kv_caches.push(cache);
        }
        copied
    }

    /// Keeps the finished blocks of a request in the prefix cache.
    fn keep_blocks(
        &mut self,
        finished: FinishedBlocks<'_>,
        mut memory: RequestMemory,
        mut watch: WeightsWatch,
    ) {
        if let Some(current) = &self.current {
            watch.look(&current.weights, true);
        }
        let (Some(cache), 0) = (memory.kv_caches.pop(), memory.kv_caches.len()) else {
            return;
        };
        if watch.storages.is_empty() || cache.is_empty() {
            return;
        }
        self.keep_prefix(KeptPrefix {
            tokens: finished.tokens[..cache.len()].to_vec(),
            memory: SequenceMemory::KvCache(cache),
            block_length: Some(finished.block_length),
            storages: watch.storages,
        });
    }

    /// Begins an estimate of a latent thought model, the only ones without masks that are asked for any.
    fn latent_score(&mut self, request: &Score) -> Result<LatentScore, EngineError> {
        let config = &self.current_mut()?.planner.config;
        let elements = config.shape.latent_elements();
        Ok(LatentScore::new(
            request,
            &config.inference.unwrap_or_default(),
            elements,
        ))
    }

    /// Ends a request that did not join the batch.
    fn end(&self, job: Job, result: Result<Outcome, EngineError>) {
        self.shared.queue.end(job.id);
        job.listener.finish(match result {
            Err(_) if job.cancel.load(Ordering::Relaxed) => Ok(Outcome::Cancelled),
            result => result,
        });
    }
}

impl Batch<'_> {
    fn run(mut self, first: Job) {
        loop {
            match self.begin(&first.work) {
                Ok(work) => {
                    self.add(first, work);
                    break;
                }
                // Each round gives way one step further, until the request fits or no step is left.
                Err(error) => {
                    if let Err(error) = self.runner.free_memory(error) {
                        self.runner.rest();
                        return self.runner.worker.end(first, Err(error));
                    }
                }
            }
        }
        loop {
            self.let_go();
            // A joining request may be done at once.
            while self.let_join() {
                self.let_go();
            }
            if self.members.is_empty() {
                return;
            }
            self.pass();
        }
    }

    /// Prepares a request's work, with the memory that is its own.
    fn begin(&mut self, work: &Work) -> Result<RunningWork, EngineError> {
        let worker = &mut *self.runner.worker;
        let vocabulary = Arc::clone(&worker.current_mut()?.vocabulary);
        Ok(match work {
            Work::Generate(request) if vocabulary.mask.is_none() => {
                let continuing =
                    AutoregressiveRequest::start(worker, request, work.workload().canvas_length)?;
                RunningWork::Autoregressive(Box::new(continuing))
            }
            Work::Generate(request) => {
                let mut memory = worker.memory(&work.workload())?;
                let mut filling = contained(|| diffusion_request(request, vocabulary))?;
                worker.go_on_from_prefix(request, &mut memory, &mut *filling)?;
                RunningWork::Diffusion {
                    memory,
                    request: filling,
                    watch: None,
                }
            }
            Work::Score(request) if vocabulary.mask.is_none() => {
                RunningWork::LatentScore(Box::new(worker.latent_score(request)?))
            }
            Work::Score(request) => RunningWork::Diffusion {
                // Each draw is a canvas of its own, so nothing is kept from pass to pass.
                memory: RequestMemory::default(),
                request: contained(|| Box::new(ScoreEstimate::new(request.clone(), vocabulary)))?,
                watch: None,
            },
            Work::MeasureFidelity(_)
            | Work::MeasureMix(_)
            | Work::CollectInputs(_)
            | Work::Embed(_) => {
                unreachable!("they share no passes")
            }
        })
    }

    fn add(&mut self, job: Job, mut work: RunningWork) {
        let Job {
            id,
            work: asked,
            mut listener,
            cancel,
            ..
        } = job;
        let workload = asked.workload();
        // Before the start is told: whoever sent a state with it counts that no longer, since the sequence's memory has it.
        drop(asked);
        let mut emit = |event| listener.tell(event);
        let profile = self.runner.worker.ops.device().profile();
        let started = contained(|| match &mut work {
            RunningWork::Diffusion {
                request: filling, ..
            } => filling.start(&mut emit),
            RunningWork::Autoregressive(continuing) => {
                continuing.tell_start(&profile, &mut emit);
            }
            RunningWork::LatentScore(_) => emit(Event::Started {
                blocks: 1,
                is_exact: true,
            }),
        });
        self.members.push(BatchMember {
            id,
            listener,
            cancel,
            workload,
            work,
            peak_bytes: 0,
            failed: started.err(),
        });
        // With one request more, rows may cost time.
        self.allow_guesses();
    }

    /// Guessed passes are for passes that wait for weights anyway. A request that is alone has chosen for itself.
    fn allow_guesses(&mut self) {
        let shared = self.workload().filter(|_| self.members.len() > 1);
        self.guesses = shared.is_none_or(|all| self.runner.has_free_rows(&all));
    }

    /// The combined workload of all members.
    fn workload(&self) -> Option<Workload> {
        let workloads = self.members.iter().map(|member| member.workload);
        workloads.reduce(|all, one| all.with(&one))
    }

    /// Lets the first waiting request join, if it fits; false if none has joined.
    fn let_join(&mut self) -> bool {
        // A change of the weights goes first, and after a failed shared pass everyone is served alone.
        let is_open = !self.is_split
            && !self.runner.is_switching()
            && self.members.len() < self.runner.worker.parallel;
        let queue = &self.runner.worker.shared.queue;
        // Only the first in the queue is asked: nobody overtakes, or a large request might never fit.
        let (true, Some(all), Some(waiting)) = (is_open, self.workload(), queue.front()) else {
            return false;
        };
        // Asked again only when something has changed: a plan for both is not free, and this runs before every pass.
        let asked = (waiting.id, self.runner.join_state());
        if self.refused.replace(asked) == Some(asked) {
            return false;
        }
        let now = self.members.len();
        if !self.runner.may_join(now, all, waiting.workload) {
            return false;
        }
        let all = all.with(&waiting.workload);
        // It may have been cancelled meanwhile.
        let Some(job) = queue.join(&waiting) else {
            return false;
        };
        match self.join(&job.work, all) {
            Ok(work) => self.add(job, work),
            // Alone it may fit, or is told why it does not.
            Err(_) => {
                self.refused = Some((job.id, self.runner.join_state()));
                self.runner.worker.shared.queue.put_back(job);
                return false;
            }
        }
        true
    }

    /// Makes room for one more request, or leaves everything as it was.
    fn join(&mut self, work: &Work, all: Workload) -> Result<RunningWork, EngineError> {
        let before = self.runner.workload();
        self.runner.worker.prepare(work, &all)?;
        let joined = self.runner.grow(all).and_then(|()| self.begin(work));
        if joined.is_err() {
            self.runner.shrink(before)?;
        }
        joined
    }

    /// Ends the members that are over, with their results.
    fn let_go(&mut self) {
        while let Some(index) = self.members.iter().position(BatchMember::is_over) {
            let BatchMember {
                id,
                listener,
                cancel,
                work,
                peak_bytes,
                failed,
                ..
            } = self.members.remove(index);
            // Read before the memory below is rearranged: what is taken from here on is not this request's.
            let held_bytes = self.runner.worker.shared.ledger.peak_since(PeakMark::Pass);
            // Sized for the members that were: a smaller batch allocates anew.
            self.logits = None;
            self.is_split = false;
            self.refused = None;
            match self.workload() {
                // The rest needs less than before; if it still cannot be planned, the next pass gives way.
                Some(rest) => drop(self.runner.shrink(rest)),
                None => self.runner.rest(),
            }
            self.allow_guesses();
            let worker = &mut *self.runner.worker;
            let mut outcome = match work {
                RunningWork::Diffusion {
                    request: filling,
                    memory,
                    watch,
                } => {
                    // Freed before the outcome is made, so that whoever hears of the end finds the memory free.
                    match (filling.finished(), watch) {
                        (Some(finished), Some(watch)) if failed.is_none() => {
                            worker.keep_blocks(finished, memory, watch);
                        }
                        _ => drop(memory),
                    }
                    contained(|| filling.outcome())
                }
                RunningWork::LatentScore(estimate) => contained(|| estimate.outcome()),
                RunningWork::Autoregressive(continuing) => {
                    let keeper = failed.is_none().then_some(&mut *worker);
                    let finished = contained(|| continuing.finish(keeper)).flatten();
                    finished.map(Outcome::Generated)
                }
            };
            if let Ok(Outcome::Generated(generated)) = &mut outcome {
                generated.peak_device_bytes = peak_bytes.max(held_bytes);
            }
            // Before the listener is told: whoever hears of the end finds the request out of the queue.
            worker.shared.queue.end(id);
            // A failure after a cancel is no failure: the caller asked for the end.
            let failed = failed.filter(|_| !cancel.load(Ordering::Relaxed));
            listener.finish(failed.map_or(outcome, Err));
        }
    }

    /// A pass for all members; where that fails, one for each, so that none fails because of another.
    fn pass(&mut self) {
        let all = 0..self.members.len();
        if !self.is_split {
            match self.pass_of(all.clone()) {
                // A shared pass does not tell whose failure it is, so each request runs alone until one leaves.
                Err(Interrupt::Failed(_)) if all.len() > 1 => self.is_split = true,
                // Alone, the failure is certainly its own.
                Err(Interrupt::Failed(error)) => return self.members[0].failed = Some(error),
                Ok(()) | Err(Interrupt::Cancelled) => return,
            }
        }
        for index in all {
            if self.members[index].is_over() {
                continue;
            }
            if let Err(Interrupt::Failed(error)) = self.pass_of(index..index + 1) {
                self.members[index].failed = Some(error);
            }
        }
    }

    fn pass_of(&mut self, range: Range<usize>) -> Result<(), Interrupt> {
        let is_causal =
            |member: &BatchMember| !matches!(member.work, RunningWork::Diffusion { .. });
        let result = match self.members[range.clone()].iter().all(is_causal) {
            true => (self.sample(range.clone()))
                .and_then(|()| self.think(range.clone()))
                .and_then(|()| self.read(range)),
            false => self.fill(range),
        };
        let ledger = &self.runner.worker.shared.ledger;
        let peak_bytes = ledger.peak_since(PeakMark::Pass);
        ledger.mark(PeakMark::Pass);
        for member in &mut self.members {
            member.peak_bytes = member.peak_bytes.max(peak_bytes);
        }
        result
    }

    /// A pass of masked diffusion requests.
    fn fill(&mut self, range: Range<usize>) -> Result<(), Interrupt> {
        let Self {
            runner: served,
            members,
            guesses,
            ..
        } = self;
        let members = &mut members[range];
        let stop = served.cancel;
        let count = members.len();
        let mut canvases = Vec::with_capacity(count);
        let mut asked = Vec::with_capacity(count);
        for member in members.iter_mut() {
            if let RunningWork::Diffusion {
                request: filling,
                memory,
                ..
            } = &mut member.work
            {
                let mut passes = match contained(|| filling.passes()) {
                    Ok(passes) => passes,
                    // The pass is for those that are left.
                    Err(error) => {
                        member.failed = Some(error);
                        return Ok(());
                    }
                };
                if filling.guesses() && !*guesses {
                    passes.truncate(1);
                }
                canvases.push(passes.len());
                let mut memory = (!filling.is_apart()).then_some(memory);
                // Only the first of a request's passes may use what it keeps: guessed ones have no cache.
                asked.extend(passes.into_iter().map(|pass| PassRequest {
                    pass,
                    memory: memory.take(),
                }));
            }
        }
        let rows = asked.iter().map(|asked| asked.pass.layer_rows()).sum();
        let result = served.run(count, &mut |ops, current| {
            let denoiser = Denoiser {
                ops,
                model: &current.model,
                weights: &current.weights,
                vocabulary: &current.vocabulary,
            };
            Ok((denoiser.candidates(&mut asked, stop)?, rows))
        });
        // Ends the borrow of the members.
        drop(asked);
        tell(members, &served.take_notices());
        // Only after the notices were told: they may say what gave way before the pass failed.
        let (mut candidates, cost) = result?;
        let current = served.worker.current.as_ref();
        for member in members.iter_mut() {
            if let (
                RunningWork::Diffusion {
                    request: filling,
                    memory,
                    watch,
                },
                Some(current),
            ) = (&mut member.work, current)
                && !memory.kv_caches.is_empty()
                && !filling.is_apart()
            {
                // Created after the first pass: that pass has filled the cache with these weights.
                let watch = watch.get_or_insert_with(|| WeightsWatch::new(&current.weights));
                if watch.look(&current.weights, true) {
                    let notice = "the weights changed: cached keys and values of other positions stay until the next recompute";
                    member.listener.tell(Event::Notice(notice.to_owned()));
                }
            }
        }
        // Candidates come in the order of the canvases, so each request takes its own off the front.
        for (member, canvases) in members.iter_mut().zip(canvases) {
            let rest = candidates.split_off(canvases);
            let its = std::mem::replace(&mut candidates, rest);
            let mut emit = |event| member.listener.tell(event);
            if let RunningWork::Diffusion {
                request: filling,
                memory,
                ..
            } = &mut member.work
            {
                let taken = contained(|| filling.take(&its, &cost, &mut emit));
                member.failed = taken.err();
                if let Some(finished) = filling.finished() {
                    for cache in &mut memory.kv_caches {
                        cache.advance(finished.tokens.len().saturating_sub(cache.len()));
                    }
                }
            }
        }
        Ok(())
    }

    /// A step of each request that draws a sample of the learned prior. It takes a pass's place, so that requests that
    /// write go on between two of them.
    fn sample(&mut self, range: Range<usize>) -> Result<(), Interrupt> {
        let Self {
            runner: served,
            members,
            ..
        } = self;
        for member in &mut members[range] {
            let RunningWork::Autoregressive(request) = &mut member.work else {
                continue;
            };
            let Some(sample) = request.sample_mut() else {
                continue;
            };
            let result = served.run(1, &mut |ops, current| {
                let prior = current.prior.as_ref().ok_or(EngineError::NoModel)?;
                match contained(|| sample.step(ops, prior)) {
                    // What found no memory is tried again.
                    Ok(stepped) => Ok((Ok(stepped.map_err(EngineError::from)?), 0)),
                    Err(panicked) => Ok((Err(panicked), 0)),
                }
            });
            let notices = served.take_notices();
            (notices.into_iter()).for_each(|notice| member.listener.tell(Event::Notice(notice)));
            let (stepped, cost) = result?;
            let prior = served.worker.current.as_ref();
            let Some(prior) = prior.and_then(|current| current.prior.as_ref()) else {
                continue;
            };
            let taken =
                stepped.and_then(|()| contained(|| request.take_sample(prior, &cost)).flatten());
            match taken {
                Ok(report) => {
                    let event = report.map(|report| Event::Thought(Box::new(report)));
                    (event.into_iter()).for_each(|event| member.listener.tell(event));
                }
                Err(error) => member.failed = Some(error),
            }
        }
        Ok(())
    }

    /// A pass for the latents of requests that infer them.
    fn think(&mut self, range: Range<usize>) -> Result<(), Interrupt> {
        let Self {
            runner: served,
            members,
            ..
        } = self;
        let members = &mut members[range];
        let stop = served.cancel;
        let asked = members.iter().enumerate();
        // One whose sample failed is only dropped.
        let asked = asked.filter(|(_, member)| member.failed.is_none());
        let asked = asked.filter_map(|(index, member)| Some((index, member.work.latent_text()?)));
        let (indices, texts): (Vec<usize>, Vec<LatentText<'_>>) = asked.unzip();
        if texts.is_empty() {
            return Ok(());
        }
        let rows = texts.iter().map(|text| text.tokens.len()).sum();
        let result = served.run(texts.len(), &mut |ops, current| {
            let found = (current.model).latent_gradients(ops, &current.weights, &texts, stop)?;
            Ok((found, rows))
        });
        tell(members, &served.take_notices());
        let (found, cost) = result?;
        for (index, found) in indices.into_iter().zip(found) {
            let member = &mut members[index];
            if !found.nll.is_finite() {
                let error = OpsError::NotANumber { position: 0 };
                member.failed = Some(error.into());
                continue;
            }
            let mut emit = |event| member.listener.tell(event);
            let taken = match &mut member.work {
                RunningWork::Diffusion { .. } => Ok(()),
                RunningWork::Autoregressive(request) => contained(|| {
                    let report = request.take_thought(&found, &cost);
                    (report.into_iter()).for_each(|report| emit(Event::Thought(Box::new(report))));
                }),
                RunningWork::LatentScore(estimate) => {
                    contained(|| estimate.take(&found, &mut emit))
                }
            };
            member.failed = taken.err();
        }
        Ok(())
    }

    /// A pass of autoregressive requests, if any of them has something to read.
    fn read(&mut self, range: Range<usize>) -> Result<(), Interrupt> {
        self.await_grammars(range.clone());
        let Self {
            runner: served,
            members,
            logits,
            ..
        } = self;
        let members = &mut members[range];
        let stop = served.cancel;
        let reading = members.iter_mut().filter(|member| member.is_reading());
        let mut requests: Vec<&mut AutoregressiveRequest> = reading
            .filter_map(|member| match &mut member.work {
                RunningWork::Autoregressive(continuing) => Some(&mut **continuing),
                RunningWork::Diffusion { .. } | RunningWork::LatentScore(_) => None,
            })
            .collect();
        if requests.is_empty() {
            return Ok(());
        }
        let result = served.run(requests.len(), &mut |ops, current| {
            autoregressive::pass(&mut requests, logits, (ops, current), stop)
        });
        tell(members, &served.take_notices());
        for member in members.iter_mut() {
            if let RunningWork::Autoregressive(continuing) = &mut member.work {
                let notices = continuing.take_notices();
                tell(std::slice::from_mut(member), &notices);
            }
        }
        let (reads, cost) = result?;
        let reading = members.iter_mut().filter(|member| member.is_reading());
        for (member, read) in reading.zip(reads) {
            let RunningWork::Autoregressive(continuing) = &mut member.work else {
                continue;
            };
            if let Some(fork) = continuing.take_fork() {
                served.worker.keep_prefix(fork);
            }
            let mut emit = |event| member.listener.tell(event);
            let taken = contained(|| continuing.take(read, &cost, &mut emit));
            member.failed = taken.err();
        }
        Ok(())
    }
}

fn tell(members: &mut [BatchMember], notices: &[String]) {
    for member in members {
        for notice in notices {
            member.listener.tell(Event::Notice(notice.clone()));
        }
    }
}
