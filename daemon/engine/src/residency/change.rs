//! Changes of where weights live, made between passes: the steps of a transition.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
};

use sluice_machine::{MemoryKind, page::PAGE_BYTES};
use sluice_ops::{Ops, OpsError, device::DeviceBuffer};
use sluice_plan::{Plan, StagingBuffers};
use sluice_weights::{Tier, WeightGroupPlan, layout};

use super::{GroupEntry, GroupPlacement, LoadOutcome, Residency, reader::LoadedGroup};
use crate::error::EngineError;

/// A weight group that is being prepared while passes run.
#[derive(Debug)]
pub(crate) struct GroupPreparation {
    result: mpsc::Receiver<Result<Option<LoadedGroup>, EngineError>>,
    /// Set to cancel the preparation.
    cancel: Arc<AtomicBool>,
    /// `None` once it was joined.
    thread: Option<JoinHandle<()>>,
}

impl GroupPreparation {
    /// The result, if the preparation is over.
    pub(crate) fn poll(&self) -> Option<Result<LoadedGroup, EngineError>> {
        match self.result.try_recv() {
            Ok(Ok(Some(loaded))) => Some(Ok(loaded)),
            Ok(Ok(None)) => unreachable!("whoever cancels doesn't ask"),
            Ok(Err(error)) => Some(Err(error)),
            Err(mpsc::TryRecvError::Empty) => None,
            // The thread has ended without a result, which only a panic explains.
            Err(mpsc::TryRecvError::Disconnected) => Some(Err(EngineError::Panicked)),
        }
    }

    /// Waits for the result.
    pub(crate) fn wait(&self) -> Result<LoadedGroup, EngineError> {
        match self.result.recv() {
            Ok(Ok(loaded)) => Ok(loaded.expect("whoever cancels doesn't ask")),
            Ok(Err(error)) => Err(error),
            Err(mpsc::RecvError) => Err(EngineError::Panicked),
        }
    }
}

impl Drop for GroupPreparation {
    /// Joins the thread, so that its memory is free when this returns: the caller plans with it.
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic was reported to whoever asked for the result.
            drop(thread.join());
        }
    }
}

impl Residency {
    /// Begins to prepare a weight group in memory of its own.
    pub(crate) fn prepare(
        &self,
        group: &WeightGroupPlan,
        ops: &Arc<Ops>,
    ) -> Result<GroupPreparation, EngineError> {
        let pages = layout::resident(group.sizes()).bytes as usize / PAGE_BYTES;
        // Allocated here and not on the thread, so that a refusal fails this step before any thread starts.
        let memory = DeviceBuffer::new(ops.device(), &self.ledger, MemoryKind::Weights, pages)?;
        let (sender, result) = mpsc::channel();
        let cancel = Arc::new(AtomicBool::new(false));
        let reader = Arc::clone(self.reader());
        let (unit, ops, flag) = (group.clone(), Arc::clone(ops), Arc::clone(&cancel));
        let thread = thread::Builder::new()
            .name("sluice-prepare".to_owned())
            .spawn(move || {
                let loaded = reader.load(&unit, memory, ops.device(), &flag);
                // If the transition was given up, nobody waits for the result.
                let _ = sender.send(loaded);
            })
            .map_err(|error| EngineError::Ops(OpsError::Threads(error.to_string())))?;
        Ok(GroupPreparation {
            result,
            cancel,
            thread: Some(thread),
        })
    }

    /// Replaces the groups' present forms by the prepared ones.
    pub(crate) fn swap(
        &mut self,
        ready: Vec<(usize, LoadedGroup)>,
        groups: &[WeightGroupPlan],
    ) -> Result<(), EngineError> {
        let mut were_streamed = false;
        for (index, loaded) in ready {
            let before = &self.groups[index].plan;
            // The expert cache goes on without those that are on the device: nobody asks it for them.
            were_streamed |= before.is_streamed() && !before.group.is_expert();
            self.groups[index] = GroupEntry {
                plan: groups[index].clone(),
                placement: GroupPlacement::Resident(loaded),
            };
            // Requests compare versions to learn that their KV cache was computed with other weights.
            self.weights_version += 1;
        }
        // The stream's cycle lists the streamed groups, so it starts anew when one of them becomes resident.
        if were_streamed {
            self.start_stream()?;
        }
        Ok(())
    }

    /// Drops a group's present form and reads the new one. When that fails the old form is read again.
    pub(crate) fn replace(
        &mut self,
        index: usize,
        group: &WeightGroupPlan,
        ops: &Ops,
    ) -> Result<(), EngineError> {
        let before = self.groups[index].plan.clone();
        self.bring_anew(index, group, ops).or_else(|error| {
            if before.tier == Tier::Device {
                self.bring_anew(index, &before, ops)?;
            }
            Err(error)
        })?;
        if before.is_streamed() && !before.group.is_expert() {
            self.start_stream()?;
        }
        Ok(())
    }

    fn bring_anew(
        &mut self,
        index: usize,
        group: &WeightGroupPlan,
        ops: &Ops,
    ) -> Result<(), EngineError> {
        // The old memory is freed first: both do not fit.
        // Marks the group as missing until it is read: `is_whole` sees it if reading fails.
        self.groups[index].placement = GroupPlacement::DryRun;
        let brought = self.bring(group, ops.device(), &AtomicBool::new(false))?;
        let LoadOutcome::Done(loaded) = brought else {
            unreachable!("nobody cancels a change")
        };
        self.groups[index] = GroupEntry {
            plan: group.clone(),
            placement: GroupPlacement::Resident(loaded),
        };
        self.weights_version += 1;
        Ok(())
    }

    /// Takes groups off the device and streams from now on through these staging buffers.
    pub(crate) fn stream(
        &mut self,
        evicted: &[usize],
        groups: &[WeightGroupPlan],
        staging: StagingBuffers,
    ) -> Result<(), EngineError> {
        for &index in evicted {
            self.groups[index] = GroupEntry {
                plan: groups[index].clone(),
                // Streamed groups get their index in the cycle when the stream starts.
                placement: GroupPlacement::Rows,
            };
            self.weights_version += 1;
        }
        self.staging = staging;
        self.start_stream()
    }

    /// Makes the rest of a transition at once: the present staging buffers go first, then groups that leave, then
    /// others come, then the new buffers. Returns false when `cancel` was set between two groups: the model is whole
    /// then, and the same call continues from there.
    pub(crate) fn settle(
        &mut self,
        evicted: &[usize],
        brought: &[usize],
        target: &Plan,
        ops: &Ops,
        cancel: &AtomicBool,
    ) -> Result<bool, EngineError> {
        let groups = &target.groups;
        // Frees the staging buffers: the steps before have found that groups do not fit beside them.
        drop(self.end_stream());
        self.end_expert_cache();
        self.decompressed = None;
        for &index in evicted {
            // This may continue a cancelled call, which has evicted some of them already.
            if self.groups[index].plan != groups[index] {
                self.groups[index] = GroupEntry {
                    plan: groups[index].clone(),
                    placement: GroupPlacement::Rows,
                };
                self.weights_version += 1;
            }
        }
        for &index in brought {
            if self.groups[index].plan == groups[index] {
                continue;
            }
            // Only between two groups: in the middle of one the model would lack it.
            if cancel.load(Ordering::Relaxed) {
                self.staging = self.staging.of_both(&target.staging, &self.group_plans());
                // If the buffers cannot be allocated now, the next pass tries again and reports it.
                drop(self.start_stream());
                return Ok(false);
            }
            self.bring_anew(index, &groups[index], ops)?;
        }
        self.staging = target.staging;
        self.start_stream()?;
        Ok(true)
    }

    /// Replaces the reader by one that knows of a converted-weight cache.
    pub(crate) fn set_reader(&mut self, reader: super::WeightReader) {
        self.reader = Some(Arc::new(reader));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sluice_checkpoint::{Checkpoint, Source, family::ModelConfig};
    use sluice_machine::Profile;
    use sluice_ops::{device::Device, ledger::Ledger};
    use sluice_plan::{Machine, PlanInput, WorkingMemory, Workload};
    use sluice_shared::level::Level;

    use super::*;
    use crate::residency::WeightReader;

    #[test]
    fn a_settling_that_is_cancelled_leaves_the_model_whole_and_goes_on_later() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model");
        let checkpoint = Arc::new(Checkpoint::open(&Source::Folder(folder)).unwrap());
        let config = ModelConfig::read(&checkpoint.config().unwrap(), None).unwrap();
        let shape = config.shape;
        let sources = checkpoint.sources(shape.tensors()).unwrap();
        let machine = Machine::unmeasured(Profile::cpu(1), u64::MAX);
        let planned = |budget_bytes| {
            Plan::new(&PlanInput {
                shape: &shape,
                sources: &sources,
                choices: Level::Standard.into(),
                budget_bytes,
                workload: Workload::default(),
                working: WorkingMemory::default(),
                machine: &machine,
            })
            .unwrap()
        };
        let target = planned(u64::MAX);
        let from = planned(target.peak_bytes() / 2);
        let ledger = Ledger::default();
        let ops = Ops::new(Device::cpu(1).unwrap(), ledger.clone()).unwrap();
        let before = ledger.used_bytes();
        let reader = Arc::new(WeightReader::new(checkpoint, &sources));
        let never = AtomicBool::new(false);
        let device = ops.device();
        let loaded = Residency::load(&from, reader, device, &ledger, &never, &mut |_| {});
        let LoadOutcome::Done(mut weights) = loaded.unwrap() else {
            unreachable!("nobody cancels")
        };
        let brought: Vec<usize> = (0..target.groups.len())
            .filter(|&group| from.groups[group] != target.groups[group])
            .collect();
        assert!(brought.len() > 3);

        let set = AtomicBool::new(true);
        let mut settle = |cancel| weights.settle(&[], &brought, &target, &ops, cancel);
        assert!(!settle(&set).unwrap());
        assert!(!settle(&set).unwrap(), "again, and nothing is lost");
        assert!(weights.is_whole());
        assert_eq!(weights.group_plans(), from.groups);
        for group in &from.groups {
            assert!(weights.acquire(group.group).is_ok());
        }

        let mut settle = |cancel| weights.settle(&[], &brought, &target, &ops, cancel);
        assert!(settle(&never).unwrap());
        assert_eq!(weights.group_plans(), target.groups);
        assert_eq!(ledger.used_bytes() - before, target.peak_bytes());
    }
}
