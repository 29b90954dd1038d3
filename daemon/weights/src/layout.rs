//! Places a weight group's tensors in its memory.

use sluice_machine::page::PAGE_BYTES;

/// Alignment of tensors: a cache line.
pub(super) const ALIGNMENT: u64 = 64;
/// Least bytes of a direct read: for smaller tensors, the partial pages at both ends cost more than the page cache
/// does.
const DIRECT_BYTES_MIN: u64 = 64 << 10;

/// The places of a weight group's tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupLayout {
    /// One place for each of the group's tensors, in order.
    pub placements: Vec<TensorPlacement>,
    /// Bytes of the whole group, in whole pages.
    pub bytes: u64,
}

/// The memory of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorPlacement {
    /// Offset from the group's start.
    pub offset: u64,
    /// Bytes that are reserved, at least those of the tensor.
    pub bytes: u64,
    /// Whether it is page-aligned, with room for the partial pages of a direct read.
    pub is_direct: bool,
}

/// Lays out resident tensors of these sizes, one after another.
pub fn resident(sizes: impl Iterator<Item = u64>) -> GroupLayout {
    layout(sizes, false)
}

/// Lays out tensors in a staging buffer, large ones with room for the partial pages that a direct read brings along.
pub fn staging(sizes: impl Iterator<Item = u64>) -> GroupLayout {
    layout(sizes, true)
}

fn layout(sizes: impl Iterator<Item = u64>, direct: bool) -> GroupLayout {
    let page = PAGE_BYTES as u64;
    let mut end = 0u64;
    let places = sizes
        .map(|bytes| {
            // Decided by size and not by tier: a group has the same places whether it is read past the cache or through
            // it.
            let is_direct = direct && bytes >= DIRECT_BYTES_MIN;
            let (alignment, room) = if is_direct {
                // Direct I/O reads whole pages: the tensor's first byte may be anywhere in the first one, so one page
                // more than its size is needed.
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
