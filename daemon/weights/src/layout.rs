//! Where a unit's tensors lie in its memory.

use sluice_machine::page::PAGE_BYTES;

/// Tensors start on cache lines.
pub(super) const ALIGNMENT: u64 = 64;
/// Smaller tensors are not worth a direct read with its two odd pages.
const DIRECT_BYTES_MIN: u64 = 64 << 10;

/// A place for each tensor of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupLayout {
    /// In the order of the unit's tensors.
    pub placements: Vec<TensorPlacement>,
    /// All of it, in whole pages.
    pub bytes: u64,
}

/// Memory for a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorPlacement {
    /// From the unit's start.
    pub offset: u64,
    /// What is set aside.
    pub bytes: u64,
    /// Whether it is whole pages with room for a direct read's odd ends.
    pub is_direct: bool,
}

/// Tensors of these bytes, one after another.
pub fn resident(sizes: impl Iterator<Item = u64>) -> GroupLayout {
    layout(sizes, false)
}

/// Large tensors with room for the odd pages around them that a direct read brings along.
pub fn staging(sizes: impl Iterator<Item = u64>) -> GroupLayout {
    layout(sizes, true)
}

fn layout(sizes: impl Iterator<Item = u64>, direct: bool) -> GroupLayout {
    let page = PAGE_BYTES as u64;
    let mut end = 0u64;
    let places = sizes
        .map(|bytes| {
            let is_direct = direct && bytes >= DIRECT_BYTES_MIN;
            let (alignment, room) = if is_direct {
                (page, bytes.next_multiple_of(page) + page)
            } else {
                (ALIGNMENT, bytes)
            };
            let offset = end.next_multiple_of(alignment);
            end = offset + room;
            TensorPlacement {
                offset,
                bytes: room,
                is_direct,
            }
        })
        .collect();
    GroupLayout {
        placements: places,
        bytes: end.next_multiple_of(page),
    }
}
