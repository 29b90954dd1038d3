//! The thread that does all device work, and the handle by which everybody else reaches it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

pub use crate::schedule::{QueueState, Ticket};
use crate::{
    checkpoint::{Checkpoint, Source},
    decode::{ModelDenoiser, Vocabulary, diffusion, score},
    device::Device,
    error::EngineError,
    event::{Event, Outcome, Sink},
    ledger::{self, Ledger},
    model::{
        ModelInfo,
        llada::{Config, Llada},
    },
    ops::Ops,
    request::{ModelId, Work},
    schedule::{Command, Job, Load, Queue},
    text::Text,
};

/// How to start an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Threads that compute; 0: one a core.
    pub threads: usize,
    /// Requests that may wait, beside the one that runs.
    pub queue_max: usize,
}

/// A model in memory, as everybody may see it.
#[derive(Debug)]
pub struct LoadedModel {
    /// Which loading this is.
    pub id: ModelId,
    /// What is known of it.
    pub info: ModelInfo,
    /// Its tokenizer and template, if the checkpoint has them.
    pub text: Option<Text>,
}

/// How a load goes.
#[derive(Debug)]
pub enum LoadEvent {
    /// So far.
    Progress {
        /// Bytes read.
        loaded_bytes: u64,
        /// Bytes in all.
        total_bytes: u64,
    },
    /// The last event of every load.
    Finished(Result<Arc<LoadedModel>, EngineError>),
}

/// Takes a load's events, on the engine's thread; must not block.
pub type LoadReport = Box<dyn FnMut(LoadEvent) + Send>;

/// The engine: a handle to its one thread.
pub struct Engine {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    threads: usize,
}

/// What the handle and the thread both see.
struct Shared {
    queue: Queue,
    ledger: Ledger,
    model: RwLock<Option<Arc<LoadedModel>>>,
    last_model_id: AtomicU64,
    alive: AtomicBool,
}

/// What the thread alone has.
struct Worker {
    shared: Arc<Shared>,
    ops: Ops,
    current: Option<Current>,
}

struct Current {
    model: Llada,
    vocabulary: Vocabulary,
    id: ModelId,
}

impl Engine {
    /// Starts the thread `sluice-engine`, without a model.
    ///
    /// # Errors
    /// When threads or their memory can't be had.
    pub fn start(options: Options) -> Result<Self, EngineError> {
        let ledger = Ledger::default();
        let ops = Ops::new(Device::cpu(options.threads)?, ledger.clone())?;
        let threads = ops.device().threads();
        let shared = Arc::new(Shared {
            queue: Queue::new(options.queue_max),
            ledger,
            model: RwLock::default(),
            last_model_id: AtomicU64::new(0),
            alive: AtomicBool::new(true),
        });
        let worker = Worker {
            shared: Arc::clone(&shared),
            ops,
            current: None,
        };
        let thread = thread::Builder::new()
            .name("sluice-engine".to_owned())
            .spawn(move || worker.run())
            .map_err(|error| EngineError::Threads(error.to_string()))?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
            threads,
        })
    }

    /// Loads a model between two requests, ahead of those that wait. The present model stays
    /// in place until the new one is whole, so both are in memory for a moment; a failure
    /// leaves it there. Requests that wait were made for the old model's ids and are refused.
    pub fn load(&self, source: Source, report: LoadReport) {
        if let Err(mut refused) = self.shared.queue.load(Load { source, report }) {
            (refused.report)(LoadEvent::Finished(Err(EngineError::Stopped)));
        }
    }

    /// The present model.
    #[must_use]
    pub fn model(&self) -> Option<Arc<LoadedModel>> {
        self.shared.model()
    }

    /// Checks a request and puts it in the queue.
    ///
    /// # Errors
    /// At once, when it breaks a rule, was made for another model, or there is no room.
    pub fn submit(&self, work: Work, sink: Sink) -> Result<Ticket, EngineError> {
        let model = self.model().ok_or(EngineError::NoModel)?;
        if model.id != work.model() {
            return Err(EngineError::ModelReplaced);
        }
        work.check(&model.info)?;
        self.shared.queue.submit(work, sink)
    }

    /// Stops a request: within a pass when it runs, at once when it waits (its sink is then
    /// called on this thread). Does nothing when it has ended.
    pub fn cancel(&self, ticket: Ticket) {
        self.shared.queue.cancel(ticket.id);
    }

    /// How full the queue is.
    #[must_use]
    pub fn queue(&self) -> QueueState {
        self.shared.queue.snapshot()
    }

    /// Device memory by kind.
    #[must_use]
    pub fn memory(&self) -> ledger::Report {
        self.shared.ledger.report()
    }

    /// Threads that compute.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Whether the thread runs. It ends by [`Engine::stop`], or by a panic.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.shared.alive.load(Ordering::Acquire)
    }

    /// Cancels everything and waits for the thread to end.
    pub fn stop(&self) {
        self.shared.queue.stop();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            // A panic was told to the request it met, and shows in `is_alive`.
            drop(thread.join());
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn model(&self) -> Option<Arc<LoadedModel>> {
        self.model
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Tells the others that the thread has ended, however it did.
struct AliveGuard(Arc<Shared>);

impl Drop for AliveGuard {
    fn drop(&mut self) {
        self.0.alive.store(false, Ordering::Release);
        self.0.queue.stop();
    }
}

impl Worker {
    fn run(mut self) {
        let _guard = AliveGuard(Arc::clone(&self.shared));
        loop {
            match self.shared.queue.next() {
                Command::Stop => return,
                Command::Load(load) => self.load(load),
                Command::Run(job) => self.serve(job),
            }
        }
    }

    fn load(&mut self, load: Load) {
        let Load { source, mut report } = load;
        let result = catch_unwind(AssertUnwindSafe(|| {
            self.read(&source, &mut |loaded_bytes, total_bytes| {
                report(LoadEvent::Progress {
                    loaded_bytes,
                    total_bytes,
                });
            })
        }));
        // Unlike a pass, a load changes nothing before its end: the present model goes on.
        let result = result.unwrap_or(Err(EngineError::Panicked));
        report(LoadEvent::Finished(result));
    }

    fn read(
        &mut self,
        source: &Source,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Arc<LoadedModel>, EngineError> {
        let checkpoint = Checkpoint::open(source)?;
        let config = Config::read(
            &checkpoint.config()?,
            checkpoint.generation_config()?.as_ref(),
        )?;
        // The tokenizer first: it is small, and a broken one should not cost a long read.
        let text = checkpoint
            .tokenizer()?
            .map(|files| Text::new(&files.tokenizer, files.config.as_deref()))
            .transpose()
            .map_err(crate::checkpoint::CheckpointError::from)?;
        let model = Llada::load(config, &checkpoint, &self.shared.ledger, progress)?;
        let mut info = model.info();
        add_end_of_turn(&mut info, text.as_ref());
        let id = ModelId(self.shared.last_model_id.fetch_add(1, Ordering::Relaxed) + 1);
        self.current = Some(Current {
            vocabulary: Vocabulary {
                size: info.vocabulary,
                mask: info.mask_token_id,
                ends: info.eos_token_ids.clone(),
            },
            model,
            id,
        });
        let loaded = Arc::new(LoadedModel { id, info, text });
        *self
            .shared
            .model
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&loaded));
        Ok(loaded)
    }

    fn serve(&mut self, job: Job) {
        let Job {
            work,
            mut sink,
            cancel,
            ..
        } = job;
        let result = catch_unwind(AssertUnwindSafe(|| self.compute(&work, &mut sink, &cancel)));
        self.ops.release();
        match result {
            Ok(result) => sink(Event::Finished(result)),
            Err(panic) => {
                sink(Event::Finished(Err(EngineError::Panicked)));
                // Half-finished state is not reused: the thread ends, and the daemon with it.
                resume_unwind(panic);
            }
        }
    }

    fn compute(
        &self,
        work: &Work,
        sink: &mut Sink,
        cancel: &AtomicBool,
    ) -> Result<Outcome, EngineError> {
        let current = self.current.as_ref().ok_or(EngineError::NoModel)?;
        if current.id != work.model() {
            return Err(EngineError::ModelReplaced);
        }
        let mut denoiser = ModelDenoiser {
            ops: &self.ops,
            model: &current.model,
            vocabulary: &current.vocabulary,
            cancel,
        };
        self.shared.ledger.mark();
        match work {
            Work::Generate(request) => {
                let mut generated = diffusion::generate(request, &mut denoiser, sink)?;
                generated.peak_device_bytes = self.shared.ledger.peak_since_mark();
                Ok(Outcome::Generated(generated))
            }
            Work::Score(request) => score::score(request, &mut denoiser, sink),
        }
    }
}

/// A chat model ends its turn with `<|eot_id|>` before it fills the canvas with EOS; both end
/// the visible answer.
fn add_end_of_turn(info: &mut ModelInfo, text: Option<&Text>) {
    let end_of_turn = text.and_then(|text| text.token_id("<|eot_id|>"));
    if let Some(id) = end_of_turn.filter(|&id| (id as usize) < info.vocabulary)
        && !info.eos_token_ids.contains(&id)
    {
        info.eos_token_ids.push(id);
    }
}
