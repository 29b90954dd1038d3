//! Which units are streamed: as few bytes as the budget forces, spread evenly through the pass, so that the reads behind
//! it never wait for each other (a resident set of a prefix leaves the reader idle there).

use sluice_weights::{Unit, UnitPlan};

/// Indices of the units to stream, in these forms with `slots` slots, such that `needed` bytes shrink to the budget; `None` when that
/// can't be done.
pub(super) fn streamed_set(
    units: &[UnitPlan],
    forms: &[UnitPlan],
    slots: usize,
    needed: u64,
    budget: u64,
) -> Option<Vec<usize>> {
    let candidates = candidates(units);
    let fits = |set: &[usize]| {
        // No more slots than there is to stream: such a plan would keep all of it and gain nothing.
        set.len() > slots && needed + slot_bytes(forms, set, slots) <= budget + freed(units, set)
    };
    let mut set = (1..=candidates.len()).find_map(|count| {
        let set: Vec<usize> = (0..count)
            .map(|index| candidates[(2 * index + 1) * candidates.len() / (2 * count)])
            .collect();
        fits(&set).then_some(set)
    })?;
    // Units differ in size, so the even set may leave room for some of its own.
    let mut by_size = set.clone();
    by_size.sort_by_key(|&index| std::cmp::Reverse(units[index].resident_bytes()));
    for unit in by_size {
        let without: Vec<usize> = set.iter().copied().filter(|&other| other != unit).collect();
        if fits(&without) {
            set = without;
        }
    }
    Some(set)
}

/// Most bytes that streaming can save.
pub(super) fn most_saved(units: &[UnitPlan], forms: &[UnitPlan], slots: usize) -> u64 {
    let all = candidates(units);
    freed(units, &all).saturating_sub(slot_bytes(forms, &all, slots))
}

/// What may be streamed: weights that are worth a read.
fn candidates(units: &[UnitPlan]) -> Vec<usize> {
    let may_stream = |unit: &UnitPlan| !matches!(unit.unit, Unit::Embedding | Unit::FinalNorm);
    (0..units.len())
        .filter(|&index| may_stream(&units[index]))
        .collect()
}

fn freed(units: &[UnitPlan], set: &[usize]) -> u64 {
    set.iter().map(|&index| units[index].resident_bytes()).sum()
}

fn slot_bytes(forms: &[UnitPlan], set: &[usize], slots: usize) -> u64 {
    let largest = set.iter().map(|&index| forms[index].slot_bytes()).max();
    slots as u64 * largest.unwrap_or(0)
}
