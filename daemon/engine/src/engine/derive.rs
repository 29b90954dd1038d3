//! Converted copies of checkpoints: what is streamed must lie on disk as it is computed with.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use sluice_shared::units;

use super::{LoadEvent, LoadReport, current::Planner, worker::Worker};
use crate::{
    checkpoint::{
        Checkpoint,
        derivative::{self, Deleted, Derivative},
    },
    device::Device,
    error::EngineError,
    ops::Ops,
    plan::Plan,
    residency::Reader,
};

/// Where copies are kept, and which.
pub(super) struct Keeping {
    /// None: nowhere.
    pub(super) folder: Option<PathBuf>,
    /// Whether also where nothing is streamed.
    pub(super) always: bool,
    /// Most bytes that all copies in the folder take, but for those in use; `None`: any.
    pub(super) bytes_max: Option<u64>,
}

impl Keeping {
    /// Adds the copy for the plan to what `reader` reads from, if it is there; otherwise tells what it would be, if
    /// there is a folder for it. `notice` hears of a file in its place that isn't it.
    fn look_up(
        &self,
        reader: Reader,
        planner: &Planner,
        plan: &Plan,
        notice: &mut dyn FnMut(String),
    ) -> Result<(Reader, Option<Derivative>), EngineError> {
        let Some(folder) = &self.folder else {
            return Ok((reader, None));
        };
        if plan.units.iter().all(|unit| reader.has_stored(unit)) {
            return Ok((reader, None));
        }
        let checkpoint = reader.checkpoint();
        // What it was when it was opened is what its copy is found by.
        checkpoint.check_all_unchanged()?;
        let derivative = Derivative::new(folder, checkpoint, &planner.sources, plan)?;
        let Some(derivative) = derivative else {
            return Ok((reader, None));
        };
        match derivative.open() {
            Ok(Some(copy)) => Ok((
                reader.with_derivative(Arc::new(copy), &planner.sources),
                None,
            )),
            Ok(None) => Ok((reader, Some(derivative))),
            Err(error) => {
                notice(format!(
                    "a converted copy of the weights can't be used: {error}"
                ));
                Ok((reader, Some(derivative)))
            }
        }
    }
}

/// Whether the plan streams what can't be read as it is computed with.
pub(super) fn lacks_copy(reader: &Reader, plan: &Plan) -> bool {
    plan.streamed().any(|unit| !reader.has_stored(unit))
}

fn no_derivatives(plan: &Plan) -> EngineError {
    EngineError::NoDerivatives {
        level: plan.level,
        streamed_bytes: plan.streamed_bytes(),
    }
}

impl Keeping {
    /// Keeps the folder within its limit; `notice` hears what was deleted.
    fn tidy(&self, notice: &mut dyn FnMut(String)) {
        let (Some(folder), Some(bytes_max)) = (&self.folder, self.bytes_max) else {
            return;
        };
        for Deleted { name, bytes } in derivative::tidy(folder, bytes_max) {
            let (bytes, limit) = (units::bytes(bytes), units::bytes(bytes_max));
            notice(format!(
                "deleted {name} ({bytes}): converted copies may take {limit}"
            ));
        }
    }

    /// A reader that can do what the plan asks for. Writes the copy that it needs first, or that is to be kept anyway.
    /// What there is too much of in the folder goes.
    pub(super) fn reader(
        &self,
        checkpoint: &Arc<Checkpoint>,
        planner: &Planner,
        plan: &Plan,
        device: &Device,
        cancel: &AtomicBool,
        report: &mut LoadReport,
    ) -> Result<Arc<Reader>, EngineError> {
        let reader = self.find_reader(checkpoint, planner, plan, device, cancel, report)?;
        self.tidy(&mut |notice| report(LoadEvent::Notice(notice)));
        Ok(reader)
    }

    fn find_reader(
        &self,
        checkpoint: &Arc<Checkpoint>,
        planner: &Planner,
        plan: &Plan,
        device: &Device,
        cancel: &AtomicBool,
        report: &mut LoadReport,
    ) -> Result<Arc<Reader>, EngineError> {
        let reader = Reader::new(Arc::clone(checkpoint), &planner.sources)
            .with_limit(planner.machine.read_limit_bytes_per_s)
            .with_pin_limit(planner.machine.pin_limit_bytes);
        let notice = &mut |notice| report(LoadEvent::Notice(notice));
        let (reader, missing) = self.look_up(reader, planner, plan, notice)?;
        let is_needed = lacks_copy(&reader, plan);
        let missing = match missing {
            Some(missing) if is_needed || self.always => missing,
            None if is_needed => return Err(no_derivatives(plan)),
            _ => return Ok(Arc::new(reader)),
        };
        let total_bytes = missing.tensor_bytes();
        let progress = &mut |done_bytes| {
            report(LoadEvent::Converting {
                done_bytes,
                total_bytes,
            });
        };
        match missing.write(&reader, device, cancel, progress) {
            Ok(Some(copy)) => Ok(Arc::new(
                reader.with_derivative(Arc::new(copy), &planner.sources),
            )),
            Ok(None) => Err(EngineError::LoadCancelled),
            // The next load will have to convert again; this one can do without.
            Err(error @ EngineError::Derivative { .. }) if !is_needed => {
                report(LoadEvent::Notice(error.to_string()));
                Ok(Arc::new(reader))
            }
            Err(error) => Err(error),
        }
    }
}

impl Worker {
    /// Sees to it that what the plan streams lies on disk as it is computed with. What must be converted is, beside the
    /// passes; until that is done the plan can't be put in force.
    pub(super) fn prepare_streaming(
        &mut self,
        plan: &Plan,
        notice: &mut dyn FnMut(String),
    ) -> Result<Option<Conversion>, EngineError> {
        let Some(current) = &mut self.current else {
            return Err(EngineError::NoModel);
        };
        let reader = Reader::clone(&current.reader);
        let (reader, missing) = self
            .keeping
            .look_up(reader, &current.planner, plan, notice)?;
        let is_needed = lacks_copy(&reader, plan);
        let reader = Arc::new(reader);
        let conversion = match missing {
            Some(missing) if is_needed => {
                Some(Conversion::start(missing, Arc::clone(&reader), &self.ops)?)
            }
            None if is_needed => return Err(no_derivatives(plan)),
            _ => None,
        };
        if let Err(error) = current.set_reader(reader) {
            self.lose_stream(error);
            return Err(EngineError::NoModel);
        }
        Ok(conversion)
    }

    /// Reads from a copy, too, from now on; `notice` hears which older ones had to go for it.
    pub(super) fn use_derivative(&mut self, copy: Checkpoint, notice: &mut dyn FnMut(String)) {
        let Some(current) = &mut self.current else {
            return;
        };
        let reader = Reader::clone(&current.reader);
        let reader = reader.with_derivative(Arc::new(copy), &current.planner.sources);
        if let Err(error) = current.set_reader(Arc::new(reader)) {
            self.lose_stream(error);
        }
        self.keeping.tidy(notice);
    }

    /// The model goes: it can't compute without what it streams. Whoever asked for a change is told why.
    fn lose_stream(&mut self, error: EngineError) {
        self.abandon_switch(error);
        self.current = None;
        self.shared.state.clear();
    }
}

impl super::current::Current {
    /// Reads with another one from now on. When it has a sound copy in the place of one that has changed, so does what is
    /// streamed already.
    fn set_reader(&mut self, reader: Arc<Reader>) -> Result<(), EngineError> {
        let is_sounder = reader.changed_derivatives() < self.reader.changed_derivatives();
        self.weights.set_reader(Reader::clone(&reader));
        self.reader = reader;
        match is_sounder {
            true => self.weights.stream(&[], &[], self.weights.slots()),
            false => Ok(()),
        }
    }
}

/// A copy that is being written while passes run. Dropped, it is given up, and nothing is left of it.
pub(super) struct Conversion {
    result: mpsc::Receiver<Result<Option<Checkpoint>, EngineError>>,
    done_bytes: Arc<AtomicU64>,
    total_bytes: u64,
    cancel: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Conversion {
    fn start(
        derivative: Derivative,
        reader: Arc<Reader>,
        ops: &Arc<Ops>,
    ) -> Result<Self, EngineError> {
        let (sender, result) = mpsc::channel();
        let total_bytes = derivative.tensor_bytes();
        let done_bytes = Arc::new(AtomicU64::new(0));
        let cancel = Arc::new(AtomicBool::new(false));
        let thread = thread::Builder::new()
            .name("sluice-convert".to_owned())
            .spawn({
                let (ops, done_bytes) = (Arc::clone(ops), Arc::clone(&done_bytes));
                let cancel = Arc::clone(&cancel);
                move || {
                    let progress = &mut |done| done_bytes.store(done, Ordering::Relaxed);
                    let written = derivative.write(&reader, ops.device(), &cancel, progress);
                    // Nobody asks any more when it was given up.
                    let _ = sender.send(written);
                }
            })
            .map_err(|error| EngineError::Threads(error.to_string()))?;
        Ok(Self {
            result,
            done_bytes,
            total_bytes,
            cancel,
            thread: Some(thread),
        })
    }

    /// Bytes done, and in all.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.done_bytes.load(Ordering::Relaxed), self.total_bytes)
    }

    /// What came of it, if it is over within this time.
    pub(super) fn poll(&self, patience: Duration) -> Option<Result<Checkpoint, EngineError>> {
        match self.result.recv_timeout(patience) {
            Ok(Ok(Some(copy))) => Some(Ok(copy)),
            Ok(Ok(None)) => unreachable!("whoever cancels doesn't ask"),
            Ok(Err(error)) => Some(Err(error)),
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            Err(mpsc::RecvTimeoutError::Disconnected) => Some(Err(EngineError::Panicked)),
        }
    }
}

impl Drop for Conversion {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The unfinished file is gone before the program may end. A panic has shown itself as a missing result.
            drop(thread.join());
        }
    }
}
