//! Which weight groups are streamed: as few bytes as the budget forces, spread evenly through the pass, so that reads
//! have time to catch up between them (if a prefix were resident, the reader would idle while it computes).

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
};

use sluice_weights::{WeightGroup, WeightGroupPlan};

/// Indices of the groups to stream, in these forms through `staging_buffers` buffers, such that `needed` bytes shrink
/// to the budget; `None` where that is not possible.
pub(super) fn streamed_set(
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
    freed(groups, &all).saturating_sub(staging_bytes(forms, &all, staging_buffers))
}

/// The groups that may be streamed: those worth a read in every pass.
fn candidates(groups: &[WeightGroupPlan]) -> Vec<usize> {
    let may_stream = |group: &WeightGroupPlan| {
        // Rows of the embedding are read where they lie, and the norm's few KiB are not worth a read in each pass.
        !matches!(group.group, WeightGroup::Embedding | WeightGroup::FinalNorm)
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
