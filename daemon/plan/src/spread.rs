//! Which weight groups are streamed: as few bytes as the budget forces, spread evenly through the pass, so that reads
//! have time to catch up between them (if a prefix were resident, the reader would idle while it computes).

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
};

use sluice_weights::{WeightGroup, WeightGroupPlan};

use super::StagingBuffers;

/// Least slots of an expert cache: one that is multiplied with, one that is being filled, one that is ready.
const EXPERT_SLOTS_MIN: usize = 3;

/// Indices of the groups to stream, and what they go through: as few as the budget forces. Of a mixture's experts all are streamed
/// if any is, through a cache of as many slots as the budget has room for: passes touch some of them, which only they can tell.
pub(super) fn streamed(
    groups: &[WeightGroupPlan],
    forms: &[WeightGroupPlan],
    staging_buffers: usize,
    needed: u64,
    budget: u64,
) -> Option<(Vec<usize>, StagingBuffers)> {
    let (experts, slot_bytes) = experts(groups, forms);
    let needed = needed - freed(groups, &experts);
    let slots_min = EXPERT_SLOTS_MIN.min(experts.len());
    let least = slots_min as u64 * slot_bytes;
    let mut set = match needed + least <= budget && !experts.is_empty() {
        true => Vec::new(),
        false => streamed_set(groups, forms, staging_buffers, needed + least, budget)?,
    };
    let mut staging = StagingBuffers {
        count: if set.is_empty() { 0 } else { staging_buffers },
        bytes_each: (set.iter().map(|&index| forms[index].staging_bytes()))
            .max()
            .unwrap_or(0),
        ..StagingBuffers::default()
    };
    if slots_min > 0 {
        let room = (budget + freed(groups, &set)).saturating_sub(needed + staging.total_bytes());
        let slots = usize::try_from(room / slot_bytes).unwrap_or(usize::MAX);
        staging.expert_buffers = slots.clamp(slots_min, experts.len());
        staging.expert_buffer_bytes = slot_bytes;
        set.extend(experts);
        set.sort_unstable();
    }
    Some((set, staging))
}

/// The experts, and the bytes of a slot that has room for any of them.
fn experts(groups: &[WeightGroupPlan], forms: &[WeightGroupPlan]) -> (Vec<usize>, u64) {
    let experts: Vec<usize> = (0..groups.len())
        .filter(|&index| groups[index].group.is_expert())
        .collect();
    let slot = experts.iter().map(|&index| forms[index].staging_bytes());
    let slot_bytes = slot.max().unwrap_or(0);
    (experts, slot_bytes)
}

/// Indices of the groups to stream, in these forms through `staging_buffers` buffers, such that `needed` bytes shrink
/// to the budget; `None` where that is not possible.
fn streamed_set(
    groups: &[WeightGroupPlan],
    forms: &[WeightGroupPlan],
    staging_buffers: usize,
    needed: u64,
    budget: u64,
) -> Option<Vec<usize>> {
    let candidates = candidates(groups);
    // Once, and not in each of the tries below: a mixture of experts has thousands of groups.
    let freed: Vec<u64> = groups.iter().map(WeightGroupPlan::resident_bytes).collect();
    let staged: Vec<u64> = forms.iter().map(WeightGroupPlan::staging_bytes).collect();
    let fits = |count: usize, freed: u64, largest: u64| {
        // With no more groups than buffers, the buffers would hold all of them and nothing would be saved.
        count > staging_buffers && needed + staging_buffers as u64 * largest <= budget + freed
    };
    let mut set =
        (fewest(&candidates, &freed, needed, budget)?..=candidates.len()).find_map(|count| {
            // The middle of each of `count` equal stretches of the pass.
            let set: Vec<usize> = (0..count)
                .map(|index| candidates[(2 * index + 1) * candidates.len() / (2 * count)])
                .collect();
            let freed = set.iter().map(|&index| freed[index]).sum();
            let largest = set.iter().map(|&index| staged[index]).max();
            fits(count, freed, largest.unwrap_or(0)).then_some(set)
        })?;
    // Groups differ in size, so the even set may free more than is needed: the largest that can stay does.
    let mut by_size = set.clone();
    by_size.sort_by_key(|&index| Reverse(freed[index]));
    let mut left: u64 = set.iter().map(|&index| freed[index]).sum();
    let mut sizes: BTreeMap<u64, usize> = BTreeMap::new();
    for &index in &set {
        *sizes.entry(staged[index]).or_default() += 1;
    }
    let mut stays = HashSet::new();
    for group in by_size {
        let is_only = sizes[&staged[group]] == 1;
        let mut others = sizes.keys().rev().copied();
        let largest = others.find(|&bytes| bytes != staged[group] || !is_only);
        let count = set.len() - stays.len() - 1;
        if fits(count, left - freed[group], largest.unwrap_or(0)) {
            left -= freed[group];
            match is_only {
                true => sizes.remove(&staged[group]),
                false => sizes.insert(staged[group], sizes[&staged[group]] - 1),
            };
            stays.insert(group);
        }
    }
    set.retain(|index| !stays.contains(index));
    Some(set)
}

/// A number of groups that no smaller number frees enough without, whichever they are.
fn fewest(candidates: &[usize], freed: &[u64], needed: u64, budget: u64) -> Option<usize> {
    let mut sizes: Vec<u64> = candidates.iter().map(|&index| freed[index]).collect();
    sizes.sort_unstable_by_key(|&bytes| Reverse(bytes));
    let mut sum = 0;
    let enough = sizes.into_iter().position(|bytes| {
        sum += bytes;
        needed <= budget + sum
    });
    enough.map(|last| last + 1)
}

/// Most bytes that streaming can save.
pub(super) fn most_saved(
    groups: &[WeightGroupPlan],
    forms: &[WeightGroupPlan],
    staging_buffers: usize,
) -> u64 {
    let all = candidates(groups);
    let (experts, slot_bytes) = experts(groups, forms);
    let slots = EXPERT_SLOTS_MIN.min(experts.len()) as u64;
    freed(groups, &all).saturating_sub(staging_bytes(forms, &all, staging_buffers))
        + freed(groups, &experts).saturating_sub(slots * slot_bytes)
}

/// The groups that may be streamed one after another: those worth a read in every pass.
fn candidates(groups: &[WeightGroupPlan]) -> Vec<usize> {
    let may_stream = |group: &WeightGroupPlan| {
        // Rows of the embedding are read where they lie, and the norm's few KiB are not worth a read in each pass.
        !matches!(
            group.group,
            WeightGroup::Embedding | WeightGroup::FinalNorm | WeightGroup::Expert(..)
        )
    };
    (0..groups.len())
        .filter(|&index| may_stream(&groups[index]))
        .collect()
}

fn freed(groups: &[WeightGroupPlan], set: &[usize]) -> u64 {
    set.iter()
        .map(|&index| groups[index].resident_bytes())
        .sum()
}

fn staging_bytes(forms: &[WeightGroupPlan], set: &[usize], staging_buffers: usize) -> u64 {
    let largest = set.iter().map(|&index| forms[index].staging_bytes()).max();
    staging_buffers as u64 * largest.unwrap_or(0)
}
