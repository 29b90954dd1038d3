//! Which weight groups are streamed: as few bytes as the budget forces, spread evenly through the pass, so that reads
//! have time to catch up between them (if a prefix were resident, the reader would idle while it computes).

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
    let fits = |set: &[usize]| {
        // With no more groups than buffers, the buffers would hold all of them and nothing would be saved.
        set.len() > staging_buffers
            && needed + staging_bytes(forms, set, staging_buffers) <= budget + freed(groups, set)
    };
    let mut set = (1..=candidates.len()).find_map(|count| {
        // The middle of each of `count` equal stretches of the pass. Trying each count is quadratic in the number of
        // groups, a few hundred at most.
        let set: Vec<usize> = (0..count)
            .map(|index| candidates[(2 * index + 1) * candidates.len() / (2 * count)])
            .collect();
        fits(&set).then_some(set)
    })?;
    // Groups differ in size, so the even set may free more than is needed: the largest that can stay does.
    let mut by_size = set.clone();
    by_size.sort_by_key(|&index| std::cmp::Reverse(groups[index].resident_bytes()));
    for group in by_size {
        let without: Vec<usize> = set
            .iter()
            .copied()
            .filter(|&other| other != group)
            .collect();
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
