//! Which units are streamed: as few bytes as the budget forces, spread evenly through the pass, so that the reads behind
//! it never wait for each other (a resident set of a prefix leaves the reader idle there).

use sluice_weights::{WeightGroup, WeightGroupPlan};

/// Indices of the units to stream, in these forms with `slots` slots, such that `needed` bytes shrink to the budget; `None` when that
/// can't be done.
pub(super) fn streamed_set(
    groups: &[WeightGroupPlan],
    forms: &[WeightGroupPlan],
    staging_buffers: usize,
    needed: u64,
    budget: u64,
) -> Option<Vec<usize>> {
    let candidates = candidates(groups);
    let fits = |set: &[usize]| {
        // No more slots than there is to stream: such a plan would keep all of it and gain nothing.
        set.len() > staging_buffers
            && needed + staging_bytes(forms, set, staging_buffers) <= budget + freed(groups, set)
    };
    let mut set = (1..=candidates.len()).find_map(|count| {
        let set: Vec<usize> = (0..count)
            .map(|index| candidates[(2 * index + 1) * candidates.len() / (2 * count)])
            .collect();
        fits(&set).then_some(set)
    })?;
    // Units differ in size, so the even set may leave room for some of its own.
    let mut by_size = set.clone();
    by_size.sort_by_key(|&index| std::cmp::Reverse(groups[index].resident_bytes()));
    for unit in by_size {
        let without: Vec<usize> = set.iter().copied().filter(|&other| other != unit).collect();
        if fits(&without) {
            set = without;
        }
    }
    Some(set)
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

/// What may be streamed: weights that are worth a read.
fn candidates(groups: &[WeightGroupPlan]) -> Vec<usize> {
    let may_stream = |unit: &WeightGroupPlan| {
        !matches!(unit.group, WeightGroup::Embedding | WeightGroup::FinalNorm)
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
