//! The weight cache: converted copies of checkpoints, since what is streamed must lie on disk in the form in which it
//! is used.

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

use sluice_checkpoint::{
    Checkpoint, CheckpointError,
    weight_cache::{self, CompressedWeights, ConvertedWeights, EvictedWeights},
};
use sluice_machine::Workers;
use sluice_ops::{OpsError, device::Device};
use sluice_plan::{ConversionSource, Plan, SwitchEstimate, estimate_switch};
use sluice_shared::units;
use sluice_weights::{Storage, TensorPlan, Tier, WeightGroupPlan};

use super::{LoadEvent, LoadReport, current_model::Planner, worker::Worker};
use crate::{error::EngineError, residency::WeightReader};

/// Where converted weights are kept, and which.
pub(super) struct WeightCache {
    /// The folder; `None`: nowhere.
    pub(super) folder: Option<PathBuf>,
    /// Whether conversions are also kept where nothing is streamed, so that they are made once and read afterwards.
    pub(super) always: bool,
    /// Limit of the bytes of all files in the folder, those in use excepted; `None` without one.
    pub(super) bytes_max: Option<u64>,
    /// Whether somebody was told that conversions cannot be kept; once is enough until one can be.
    pub(super) has_told: AtomicBool,
}

impl WeightCache {
    /// Adds the converted copy for the plan to what `reader` reads from, if it exists; otherwise returns what to write,
    /// if there is a folder for it. `notice` is told of a file in its place that is not usable.
    fn look_up(
        &self,
        reader: WeightReader,
        planner: &Planner,
        plan: &Plan,
        notice: &mut dyn FnMut(String),
    ) -> Result<(WeightReader, Option<ConvertedWeights>), EngineError> {
        let Some(folder) = &self.folder else {
            return Ok((reader, None));
        };
        if plan.groups.iter().all(|unit| reader.has_stored(unit)) {
            return Ok((reader, None));
        }
        let checkpoint = reader.checkpoint();
        // Copies are found by the checkpoint's fingerprint, which must be that of the opened files.
        checkpoint.check_all_unchanged()?;
        let sources = planner.sources();
        let converted =
            ConvertedWeights::new(folder, checkpoint, &sources, plan.level, &plan.groups)?;
        let Some(converted) = converted else {
            return Ok((reader, None));
        };
        if !converted.is_there() {
            return Ok((reader, Some(converted)));
        }
        match converted.open() {
            Ok(Some(weights)) => Ok((reader.with_converted(Arc::new(weights), &sources), None)),
            Ok(None) => Ok((reader, Some(converted))),
            Err(error) => {
                notice(unusable(&error));
                Ok((reader, Some(converted)))
            }
        }
    }

    /// Makes plans use the compressed copy, if it exists; otherwise returns what to write, if there is a folder for it.
    /// `notice` is told of a file in its place that is not usable.
    pub(super) fn look_for_compressed(
        &self,
        checkpoint: &Arc<Checkpoint>,
        planner: &Planner,
        notice: &mut dyn FnMut(String),
    ) -> Result<Option<CompressedWeights>, EngineError> {
        let Some(folder) = &self.folder else {
            return Ok(None);
        };
        let is_sound = |copy: &Arc<Checkpoint>| copy.check_all_unchanged().is_ok();
        if planner.compressed_copy().as_ref().is_some_and(is_sound) {
            return Ok(None);
        }
        // A copy that has changed on disk must not be planned with.
        planner.set_compressed_copy(None);
        checkpoint.check_all_unchanged()?;
        let sources = planner.estimated_sources();
        let Some(weights) = CompressedWeights::new(folder, checkpoint, sources)? else {
            return Ok(None);
        };
        match weights.open() {
            Ok(Some(copy)) => {
                planner.set_compressed_copy(Some(copy.into()));
                Ok(None)
            }
            Ok(None) => Ok(Some(weights)),
            Err(error) => {
                notice(unusable(&error));
                Ok(Some(weights))
            }
        }
    }

    /// Writes the compressed copy, unless it exists, and makes plans use it.
    pub(super) fn compress(
        &self,
        checkpoint: &Arc<Checkpoint>,
        planner: &Planner,
        device: &Device,
        cancel: &AtomicBool,
        report: &mut LoadReport,
    ) -> Result<(), EngineError> {
        let notice = &mut |notice| report(LoadEvent::Notice(notice));
        let Some(missing) = self.look_for_compressed(checkpoint, planner, notice)? else {
            return Ok(());
        };
        let total_bytes = missing.plain_bytes();
        let progress = &mut |done_bytes| {
            report(LoadEvent::Converting {
                done_bytes,
                total_bytes,
            });
        };
        let copy = missing.write(device.workers(), cancel, progress)?;
        let copy = copy.ok_or(EngineError::LoadCancelled)?;
        planner.set_compressed_copy(Some(copy.into()));
        Ok(())
    }
}

fn unusable(error: &CheckpointError) -> String {
    format!("cannot use converted weights from the weight cache: {error}")
}

/// Whether the plan keeps tensors compressed that no readable file holds so.
fn lacks_compressed(reader: &WeightReader, plan: &Plan) -> bool {
    plan.is_estimate()
        || (plan.groups.iter()).any(|unit| is_compressed(unit) && !reader.has_stored(unit))
}

fn has_compressed(plan: &Plan) -> bool {
    plan.groups.iter().any(is_compressed)
}

fn is_compressed(group: &WeightGroupPlan) -> bool {
    let mut tensors = group.tensors.iter();
    tensors.any(|tensor| matches!(tensor.storage, Storage::Compressed(_)))
}

/// Whether the plan streams groups that no file holds in the form in which they are used.
pub(super) fn lacks_converted_weights(reader: &WeightReader, plan: &Plan) -> bool {
    plan.streamed().any(|unit| !reader.has_stored(unit))
}

/// Whether a group comes to the device that has to be converted on the way.
fn converts(reader: &WeightReader, from: &[WeightGroupPlan], plan: &Plan) -> bool {
    let mut pairs = from.iter().zip(&plan.groups);
    pairs.any(|(from, to)| from != to && to.tier == Tier::Device && !reader.has_stored(to))
}

fn no_weight_cache(plan: &Plan) -> EngineError {
    EngineError::NoWeightCache {
        level: plan.level,
        streamed_bytes: plan.streamed_bytes(),
    }
}

impl WeightCache {
    /// Keeps the folder within its limit; `notice` is told what was evicted.
    fn evict(&self, notice: &mut dyn FnMut(String)) {
        let (Some(folder), Some(bytes_max)) = (&self.folder, self.bytes_max) else {
            return;
        };
        let (deleted, _) = weight_cache::evict(folder, bytes_max);
        tell_evicted(deleted, bytes_max, notice);
    }

    /// Whether a copy that nothing is streamed from is to be written. Files used longest ago are evicted for it; if it
    /// still does not fit, it is not written, and `notice` is told once.
    fn can_keep(&self, missing: &ConvertedWeights, notice: &mut dyn FnMut(String)) -> bool {
        let (Some(folder), true) = (&self.folder, self.always) else {
            return false;
        };
        let Some(bytes_max) = self.bytes_max else {
            return true;
        };
        let needed = missing.file_bytes();
        // Evicted before writing, so that the folder never exceeds its limit.
        let has_room = needed <= bytes_max && {
            let (deleted, held_bytes) = weight_cache::evict(folder, bytes_max - needed);
            tell_evicted(deleted, bytes_max, notice);
            held_bytes <= bytes_max - needed
        };
        if !has_room {
            let (needed, limit) = (units::bytes(needed), units::bytes(bytes_max));
            let words = format!(
                "converted weights take {needed} and are not kept: the weight cache is limited to {limit}, and files in use leave less than that"
            );
            self.tell_once(words, notice);
        }
        has_room
    }

    /// Continues without a copy that cannot be kept; `notice` is told once.
    pub(super) fn do_without(&self, error: &CheckpointError, notice: &mut dyn FnMut(String)) {
        let words = format!(
            "{error}; the converted weights are not kept, so the next switch has to convert them again"
        );
        self.tell_once(words, notice);
    }

    fn tell_once(&self, words: String, notice: &mut dyn FnMut(String)) {
        if !self.has_told.swap(true, Ordering::Relaxed) {
            notice(words);
        }
    }

    /// How long a switch from one plan to another takes.
    pub(super) fn estimate_switch(
        &self,
        planner: &Planner,
        from: &Plan,
        to: &Plan,
    ) -> Option<SwitchEstimate> {
        let converted = match to.is_estimate() {
            true => ConversionSource::CompressedToCache,
            false => self.conversion_source(planner, to),
        };
        estimate_switch(&from.groups, to, &planner.machine, converted)
    }

    /// Where a switch to a plan would get its converted weights from.
    fn conversion_source(&self, planner: &Planner, plan: &Plan) -> ConversionSource {
        let (Some(folder), Some(checkpoint)) = (&self.folder, &planner.checkpoint) else {
            return ConversionSource::Checkpoint;
        };
        match ConvertedWeights::new(
            folder,
            checkpoint,
            &planner.sources(),
            plan.level,
            &plan.groups,
        ) {
            Ok(Some(copy)) if copy.is_there() => ConversionSource::WeightCache,
            // Copies that are streamed from are written whatever the setting.
            Ok(Some(_)) if self.always || plan.streamed().next().is_some() => {
                ConversionSource::WrittenToCache
            }
            _ => ConversionSource::Checkpoint,
        }
    }

    /// A reader that has all that the plan needs. First writes the copy that is needed or to be kept, then keeps the
    /// folder within its limit.
    pub(super) fn reader(
        &self,
        checkpoint: &Arc<Checkpoint>,
        planner: &Planner,
        plan: &Plan,
        device: &Device,
        cancel: &AtomicBool,
        report: &mut LoadReport,
    ) -> Result<Arc<WeightReader>, EngineError> {
        let reader = self.find_reader(checkpoint, planner, plan, device, cancel, report)?;
        self.evict(&mut |notice| report(LoadEvent::Notice(notice)));
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
    ) -> Result<Arc<WeightReader>, EngineError> {
        let sources = planner.sources();
        let mut reader = WeightReader::new(Arc::clone(checkpoint), &sources)
            .with_limit(planner.machine.disk_read_limit_bytes_per_s)
            .with_pinned_memory_limit(planner.machine.pinned_memory_limit_bytes);
        if let Some(copy) = planner.compressed_copy()
            && has_compressed(plan)
        {
            reader = reader.with_compressed(copy, &sources);
        }
        let notice = &mut |notice| report(LoadEvent::Notice(notice));
        let (reader, missing) = self.look_up(reader, planner, plan, notice)?;
        let is_needed = lacks_converted_weights(&reader, plan);
        let missing = match missing {
            Some(missing) if is_needed || self.can_keep(&missing, notice) => missing,
            None if is_needed => return Err(no_weight_cache(plan)),
            _ => return Ok(Arc::new(reader)),
        };
        let total_bytes = missing.tensor_bytes();
        let progress = &mut |done_bytes| {
            report(LoadEvent::Converting {
                done_bytes,
                total_bytes,
            });
        };
        let written = write_converted(&missing, &reader, device.workers(), cancel, progress);
        match written {
            Ok(Some(copy)) => {
                // A later failure is news again.
                self.has_told.store(false, Ordering::Relaxed);
                Ok(Arc::new(reader.with_converted(Arc::new(copy), &sources)))
            }
            Ok(None) => Err(EngineError::LoadCancelled),
            // The next load will have to convert again; this one does not need the file.
            Err(error @ CheckpointError::WeightCache { .. }) if !is_needed => {
                self.do_without(&error, &mut |notice| report(LoadEvent::Notice(notice)));
                Ok(Arc::new(reader))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Writes the converted copy from what `reader` reads.
fn write_converted(
    weights: &ConvertedWeights,
    reader: &WeightReader,
    workers: &Workers,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(u64),
) -> Result<Option<Checkpoint>, CheckpointError> {
    let convert =
        &mut |piece: &TensorPlan, out: &mut [u8]| reader.convert(piece, workers, out, cancel);
    weights.write(workers.threads(), convert, cancel, progress)
}

fn tell_evicted(deleted: Vec<EvictedWeights>, bytes_max: u64, notice: &mut dyn FnMut(String)) {
    for EvictedWeights { name, bytes } in deleted {
        let (bytes, limit) = (units::bytes(bytes), units::bytes(bytes_max));
        notice(format!(
            "evicted {name} ({bytes}) from the weight cache, whose limit is {limit}"
        ));
    }
}

impl Worker {
    /// Ensures that what the plan streams, keeps compressed or converts (if that is to be kept) lies on disk. What is
    /// missing is written beside the passes; until then the plan cannot be put in force.
    pub(super) fn prepare_weights(
        &mut self,
        plan: &Plan,
        is_asked: bool,
        notice: &mut dyn FnMut(String),
    ) -> Result<Option<WeightConversion>, EngineError> {
        let Some(current) = &mut self.current else {
            return Err(EngineError::NoModel);
        };
        let reader = WeightReader::clone(&current.reader);
        let conversion;
        // A plan needs compressed or converted weights, never both: levels use the one or the other.
        let reader = if lacks_compressed(&reader, plan) {
            let (checkpoint, planner) = (reader.checkpoint(), &current.planner);
            let missing = self
                .weight_cache
                .look_for_compressed(checkpoint, planner, notice)?;
            let ops = Arc::clone(&self.ops);
            conversion = missing.map(|missing| {
                let total_bytes = missing.plain_bytes();
                WeightConversion::start(total_bytes, true, move |cancel, progress| {
                    missing.write(ops.device().workers(), cancel, progress)
                })
            });
            match planner.compressed_copy() {
                Some(copy) => Arc::new(reader.with_compressed(copy, &planner.sources())),
                None => Arc::new(reader),
            }
        } else {
            let (reader, missing) =
                (self.weight_cache).look_up(reader, &current.planner, plan, notice)?;
            let is_needed = lacks_converted_weights(&reader, plan);
            let reader = Arc::new(reader);
            conversion = match missing {
                // A request that needs memory does not wait for a copy that is only kept for the next time.
                Some(missing)
                    if is_needed
                        || (is_asked
                            && converts(&reader, &current.weights.group_plans(), plan)
                            && self.weight_cache.can_keep(&missing, notice)) =>
                {
                    let (reader, ops) = (Arc::clone(&reader), Arc::clone(&self.ops));
                    let total_bytes = missing.tensor_bytes();
                    Some(WeightConversion::start(
                        total_bytes,
                        is_needed,
                        move |cancel, progress| {
                            let workers = ops.device().workers();
                            write_converted(&missing, &reader, workers, cancel, progress)
                        },
                    ))
                }
                None if is_needed => return Err(no_weight_cache(plan)),
                _ => None,
            };
            reader
        };
        let conversion = conversion.transpose()?;
        if let Err(error) = current.set_reader(reader) {
            self.lose_stream(error);
            return Err(EngineError::NoModel);
        }
        Ok(conversion)
    }

    /// Also reads from this copy from now on; `notice` is told which older ones were evicted for it.
    pub(super) fn use_converted_weights(
        &mut self,
        copy: Checkpoint,
        notice: &mut dyn FnMut(String),
    ) {
        let Some(current) = &mut self.current else {
            return;
        };
        // A container is a compressed copy, anything else a converted one.
        let (reader, copy) = (WeightReader::clone(&current.reader), Arc::new(copy));
        let reader = match copy.is_container() {
            true => {
                current.planner.set_compressed_copy(Some(Arc::clone(&copy)));
                reader.with_compressed(copy, &current.planner.sources())
            }
            false => reader.with_converted(copy, &current.planner.sources()),
        };
        self.weight_cache.has_told.store(false, Ordering::Relaxed);
        if let Err(error) = current.set_reader(Arc::new(reader)) {
            self.lose_stream(error);
        }
        self.weight_cache.evict(notice);
    }

    /// Unloads the model: it cannot compute without its streamed weights. Whoever asked for a change is told why.
    fn lose_stream(&mut self, error: EngineError) {
        self.abandon_switch(error);
        self.current = None;
        self.shared.state.clear();
    }
}

impl super::current_model::CurrentModel {
    /// Replaces the reader. When it has a sound copy in place of one that has changed, the stream restarts with it.
    fn set_reader(&mut self, reader: Arc<WeightReader>) -> Result<(), EngineError> {
        let is_sounder = reader.changed_converted() < self.reader.changed_converted();
        self.weights.set_reader(WeightReader::clone(&reader));
        self.reader = reader;
        match is_sounder {
            true => self.weights.stream(&[], &[], self.weights.staging()),
            false => Ok(()),
        }
    }

    /// Closes copies that the plan in force does not use.
    pub(super) fn release_converted_weights(&mut self) {
        let reader = WeightReader::clone(&self.reader).only_for(&self.plan);
        self.weights.set_reader(WeightReader::clone(&reader));
        self.reader = Arc::new(reader);
    }
}

/// A copy that is being written while passes run. Dropping it cancels that, and leaves no file.
pub(super) struct WeightConversion {
    /// Whether something will be streamed from it; otherwise it is only kept for the next time.
    is_needed: bool,
    result: mpsc::Receiver<Result<Option<Checkpoint>, CheckpointError>>,
    done_bytes: Arc<AtomicU64>,
    total_bytes: u64,
    cancel: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl WeightConversion {
    /// Starts a thread that writes a copy by `write`, which reports how many of the bytes are done.
    fn start(
        total_bytes: u64,
        is_needed: bool,
        write: impl FnOnce(
            &AtomicBool,
            &mut dyn FnMut(u64),
        ) -> Result<Option<Checkpoint>, CheckpointError>
        + Send
        + 'static,
    ) -> Result<Self, EngineError> {
        let (sender, result) = mpsc::channel();
        let done_bytes = Arc::new(AtomicU64::new(0));
        let cancel = Arc::new(AtomicBool::new(false));
        let thread = thread::Builder::new()
            .name("sluice-convert".to_owned())
            .spawn({
                let (done_bytes, cancel) = (Arc::clone(&done_bytes), Arc::clone(&cancel));
                move || {
                    let progress = &mut |done| done_bytes.store(done, Ordering::Relaxed);
                    let written = write(&cancel, progress);
                    // If it was cancelled, nobody waits for the result.
                    let _ = sender.send(written);
                }
            })
            .map_err(|error| EngineError::Ops(OpsError::Threads(error.to_string())))?;
        Ok(Self {
            is_needed,
            result,
            done_bytes,
            total_bytes,
            cancel,
            thread: Some(thread),
        })
    }

    /// Whether something will be streamed from it.
    pub(super) fn is_needed(&self) -> bool {
        self.is_needed
    }

    /// Bytes done, and in all.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.done_bytes.load(Ordering::Relaxed), self.total_bytes)
    }

    /// The result, if it is there within this time.
    pub(super) fn poll(&self, patience: Duration) -> Option<Result<Checkpoint, EngineError>> {
        match self.result.recv_timeout(patience) {
            Ok(Ok(Some(copy))) => Some(Ok(copy)),
            Ok(Ok(None)) => unreachable!("whoever cancels doesn't ask"),
            Ok(Err(error)) => Some(Err(error.into())),
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            Err(mpsc::RecvTimeoutError::Disconnected) => Some(Err(EngineError::Panicked)),
        }
    }
}

impl Drop for WeightConversion {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Joined, so that the unfinished file is gone before the program may end. A panic has shown itself as a
            // missing result.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, hint};

    use super::*;

    #[test]
    fn nothing_is_left_of_a_conversion_that_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy.partial");
        let (begun, has_begun) = mpsc::channel();
        let written = path.clone();
        let conversion = WeightConversion::start(100, true, move |cancel, progress| {
            fs::write(&written, "half").unwrap();
            progress(50);
            begun.send(()).unwrap();
            while !cancel.load(Ordering::Relaxed) {
                hint::spin_loop();
            }
            fs::remove_file(&written).unwrap();
            Ok(None)
        });
        let conversion = conversion.unwrap();
        has_begun.recv().unwrap();
        assert_eq!(conversion.progress(), (50, 100));
        assert!(conversion.poll(Duration::ZERO).is_none() && path.exists());
        drop(conversion);
        assert!(!path.exists());
    }
}
