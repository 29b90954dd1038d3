//! The weight cache: converted copies of checkpoints, since what is streamed must lie on disk in the form in which it
//! is used.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use sluice_checkpoint::{
    Checkpoint, CheckpointError,
    weight_cache::{self, CompressedWeights, ConvertedWeights, EvictedWeights},
};
use sluice_machine::Workers;
use sluice_ops::device::Device;
use sluice_plan::{ConversionSource, Plan, SwitchEstimate, estimate_switch};
use sluice_shared::units;
use sluice_weights::{Storage, TensorPlan, WeightGroupPlan};

use super::{CommandStage, LoadEvent, LoadReport, planner::Planner};
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
    pub(super) fn look_up(
        &self,
        reader: WeightReader,
        planner: &Planner,
        plan: &Plan,
        notice: &mut dyn FnMut(String),
    ) -> Result<(WeightReader, Option<ConvertedWeights>), EngineError> {
        let Some(folder) = &self.folder else {
            return Ok((reader, None));
        };
        if plan.groups.iter().all(|group| reader.has_stored(group)) {
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
                // An unusable copy costs a conversion, not the load.
                notice(unusable(&error));
                Ok((reader, Some(converted)))
            }
        }
    }

    /// Makes plans use the compressed copy, if it exists and was compared with its checksums; otherwise returns what to
    /// write, if there is a folder for it. `notice` is told of a file in its place that is not usable.
    pub(super) fn look_for_compressed(
        &self,
        checkpoint: &Arc<Checkpoint>,
        planner: &Planner,
        notice: &mut dyn FnMut(String),
    ) -> Result<Option<CompressedWeights>, EngineError> {
        let open = &mut |weights: &CompressedWeights| weights.open_verified();
        self.look_for_compressed_by(open, checkpoint, planner, notice)
    }

    /// The same, and compares it where that was not done before, which takes as long as reading it.
    pub(super) fn compare_compressed(
        &self,
        checkpoint: &Arc<Checkpoint>,
        planner: &Planner,
        cancel: &AtomicBool,
        report: &mut LoadReport,
    ) -> Result<(), EngineError> {
        let mut notices = Vec::new();
        let open = &mut |weights: &CompressedWeights| {
            weights.open_and_verify(cancel, &mut |done, total| {
                report(LoadEvent::Progress {
                    stage: CommandStage::Verifying,
                    done,
                    total,
                });
            })
        };
        let notice = &mut |notice| notices.push(notice);
        let missing = self.look_for_compressed_by(open, checkpoint, planner, notice);
        for notice in notices {
            report(LoadEvent::Notice(notice));
        }
        missing.map(drop)
    }

    fn look_for_compressed_by(
        &self,
        open: OpenCompressed<'_>,
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
        match open(&weights) {
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
            report(LoadEvent::Progress {
                stage: CommandStage::Converting,
                done: done_bytes,
                total: total_bytes,
            });
        };
        let copy = missing.write(device.workers(), cancel, progress)?;
        // No copy and no error: the writer was cancelled.
        let copy = copy.ok_or(EngineError::LoadCancelled)?;
        planner.set_compressed_copy(Some(copy.into()));
        Ok(())
    }
}

/// Opens a compressed copy, if there is one that may be computed with.
type OpenCompressed<'a> =
    &'a mut dyn FnMut(&CompressedWeights) -> Result<Option<Checkpoint>, CheckpointError>;

fn unusable(error: &CheckpointError) -> String {
    format!("cannot use converted weights from the weight cache: {error}")
}

/// A reader that also reads the mix that the plan takes weights from, if there is one.
pub(super) fn with_mix_of(
    reader: WeightReader,
    planner: &Planner,
    plan: &Plan,
) -> Result<WeightReader, EngineError> {
    Ok(match planner.mixes.of_plan(plan)? {
        Some(mix) => reader.with_mix(mix.id.number(), mix.container, &planner.sources()),
        None => reader,
    })
}

/// Whether the plan keeps tensors compressed that no readable file holds so.
pub(super) fn lacks_compressed(reader: &WeightReader, plan: &Plan) -> bool {
    plan.is_estimate()
        || (plan.groups.iter()).any(|group| is_compressed(group) && !reader.has_stored(group))
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
    plan.streamed().any(|group| !reader.has_stored(group))
}

pub(super) fn no_weight_cache(plan: &Plan) -> EngineError {
    EngineError::NoWeightCache {
        level: plan.level,
        streamed_bytes: plan.streamed_bytes(),
    }
}

impl WeightCache {
    /// Keeps the folder within its limit; `notice` is told what was evicted.
    pub(super) fn evict(&self, notice: &mut dyn FnMut(String)) {
        let (Some(folder), Some(bytes_max)) = (&self.folder, self.bytes_max) else {
            return;
        };
        let (deleted, _) = weight_cache::evict(folder, bytes_max);
        tell_evicted(deleted, bytes_max, notice);
    }

    /// Whether a copy that nothing is streamed from is to be written. Files used longest ago are evicted for it; if it
    /// still does not fit, it is not written, and `notice` is told once.
    pub(super) fn can_keep(
        &self,
        missing: &ConvertedWeights,
        notice: &mut dyn FnMut(String),
    ) -> bool {
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
        // Otherwise each switch would say it again, until a copy can be kept.
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
            // Sizes are estimates only until the weights are compressed, which the switch has to do first.
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
        // Only now: the copies that this plan reads are open and locked, so eviction leaves them.
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
        let reader = with_mix_of(reader, planner, plan)?;
        let notice = &mut |notice| report(LoadEvent::Notice(notice));
        let (reader, missing) = self.look_up(reader, planner, plan, notice)?;
        let is_needed = lacks_converted_weights(&reader, plan);
        let missing = match missing {
            Some(missing) if is_needed || self.can_keep(&missing, notice) => missing,
            // Nothing is converted while it is streamed, so without a place for a copy the plan cannot be put in force.
            None if is_needed => return Err(no_weight_cache(plan)),
            _ => return Ok(Arc::new(reader)),
        };
        let total_bytes = missing.tensor_bytes();
        let progress = &mut |done_bytes| {
            report(LoadEvent::Progress {
                stage: CommandStage::Converting,
                done: done_bytes,
                total: total_bytes,
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
pub(super) fn write_converted(
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
