//! One piece of memory that activations are cut from. The free list is kept apart from the memory, so that a dry run
//! finds by the very same rule how much a run will need.

use std::{
    cell::UnsafeCell,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use sluice_cuda::GpuSpan;
use sluice_machine::MemoryKind;

use crate::{
    OpsError,
    device::{Device, DeviceBuffer},
    ledger::Ledger,
};

/// The unit of allocation: a cache line, whose start suits every kernel's loads.
#[repr(C, align(64))]
pub(super) struct CacheLine(UnsafeCell<[f32; LINE_ELEMENTS]>);

const LINE_ELEMENTS: usize = 16;
const LINE_BYTES: usize = size_of::<CacheLine>();

// SAFETY: zero bits are an `f32`, and `UnsafeCell` has the representation of what it holds.
unsafe impl bytemuck::Zeroable for CacheLine {}
// SAFETY: lines are reached through parts alone. Those are disjoint, and give out references as a slice would.
unsafe impl Sync for CacheLine {}

/// The memory and what of it is taken.
pub(super) struct Arena {
    /// Empty in a dry run.
    memory: DeviceBuffer<CacheLine>,
    layout: Mutex<Layout>,
}

impl Arena {
    /// Memory of `bytes`, rounded up to whole lines. In a dry run it has no memory and never runs out.
    pub(super) fn new(device: &Device, ledger: &Ledger, bytes: usize) -> Result<Self, OpsError> {
        let lines = bytes.div_ceil(LINE_BYTES);
        Ok(Self {
            memory: DeviceBuffer::new(device, ledger, MemoryKind::Activations, lines)?,
            layout: Mutex::new(Layout::new(match ledger.is_dry_run() {
                true => usize::MAX,
                false => lines,
            })),
        })
    }

    /// A part of `bytes`, if there is room.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Option<ArenaPart> {
        let lines = self.layout().take(bytes.div_ceil(LINE_BYTES))?;
        Some(ArenaPart {
            arena: Arc::clone(self),
            lines,
            bytes,
        })
    }

    /// Where the furthest part ended so far, in bytes.
    pub(super) fn high_water(&self) -> usize {
        self.layout().high_water * LINE_BYTES
    }

    fn layout(&self) -> MutexGuard<'_, Layout> {
        self.layout.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of an arena that are one owner's until it is dropped. In a dry run they cannot be reached.
pub(super) struct ArenaPart {
    arena: Arc<Arena>,
    lines: Range<usize>,
    bytes: usize,
}

impl ArenaPart {
    /// The elements, of an arena in the process's memory.
    pub(super) fn values(&self) -> &[f32] {
        let lines = &self.arena.memory.host()[self.lines.clone()];
        let len = self.bytes / size_of::<f32>();
        // SAFETY: a `CacheLine` is `f32`s in an `UnsafeCell`; this part alone reaches these, and is borrowed.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), len) }
    }

    /// The same, to be written.
    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        let lines = &self.arena.memory.host()[self.lines.clone()];
        let len = self.bytes / size_of::<f32>();
        // SAFETY: as above, and borrowed for writing; the cells allow that through a shared reference.
        unsafe { std::slice::from_raw_parts_mut(lines.as_ptr().cast_mut().cast(), len) }
    }

    /// Where it lies on a GPU.
    pub(super) fn span(&self) -> GpuSpan {
        let memory = self.arena.memory.span();
        memory.part(self.lines.start * LINE_BYTES, self.bytes)
    }
}

impl Drop for ArenaPart {
    fn drop(&mut self) {
        self.arena.layout().give_back(self.lines.clone());
    }
}

/// Which lines are free. First fit: each take goes to the lowest place that is large enough.
struct Layout {
    /// Rising, with something taken between any two.
    free: Vec<Range<usize>>,
    high_water: usize,
}

impl Layout {
    fn new(len: usize) -> Self {
        let whole = 0..len;
        Self {
            free: vec![whole],
            high_water: 0,
        }
    }

    fn take(&mut self, len: usize) -> Option<Range<usize>> {
        // First fit, without regard to the size that is asked for: the dry run and the real run take and drop in the
        // same order, so the same rule gives the same high-water mark in both. Only a few activations live at once, so
        // the list is short.
        let index = self.free.iter().position(|range| range.len() >= len)?;
        let range = &mut self.free[index];
        let taken = range.start..range.start + len;
        range.start = taken.end;
        if range.start == range.end {
            self.free.remove(index);
        }
        self.high_water = self.high_water.max(taken.end);
        Some(taken)
    }
    fn give_back(&mut self, range: Range<usize>) {
        // An empty matrix takes no line; an empty range in the list would never be merged.
        if range.start == range.end {
            return;
        }
        // Merge with the neighbour behind first, then with the one in front: the first removal must not shift the
        // second index.
        let after = self.free.partition_point(|free| free.start < range.start);
        self.free.insert(after, range);
        for index in [after + 1, after] {
            if (1..self.free.len()).contains(&index)
                && self.free[index - 1].end == self.free[index].start
            {
                self.free[index - 1].end = self.free[index].end;
                self.free.remove(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sluice_machine::Profile;

    use super::*;

    proptest! {
        #[test]
        fn parts_are_disjoint_and_all_comes_back(steps in prop::collection::vec((0usize..300, any::<bool>()), 1..80)) {
            let mut layout = Layout::new(4096);
            let mut taken: Vec<Range<usize>> = Vec::new();
            for (number, takes) in steps {
                if takes {
                    if let Some(range) = layout.take(number) {
                        prop_assert!(range.len() >= number && range.end <= 4096);
                        for other in &taken {
                            prop_assert!(range.end <= other.start || other.end <= range.start || range.is_empty() || other.is_empty());
                        }
                        taken.push(range);
                    }
                } else if !taken.is_empty() {
                    let range = taken.swap_remove(number % taken.len());
                    layout.give_back(range);
                }
            }
            for range in taken {
                layout.give_back(range);
            }
            let whole = 0..4096;
            prop_assert_eq!(&layout.free, &vec![whole]);
        }
    }

    #[test]
    fn a_dry_run_tells_what_the_run_will_need() {
        let run = |device: &Device, ledger: &Ledger, bytes| {
            let arena = Arc::new(Arena::new(device, ledger, bytes).unwrap());
            let a = arena.take(400).unwrap();
            let b = arena.take(4000).unwrap();
            drop(a);
            let c = arena.take(800).unwrap();
            drop((b, c));
            arena.high_water()
        };
        let needed = run(&Device::dry_run(Profile::cpu(1)), &Ledger::dry_run(), 0);
        assert_eq!(needed, 448 + 4032 + 832);
        let device = Device::cpu(1).unwrap();
        assert_eq!(run(&device, &Ledger::default(), needed), needed);
    }

    #[test]
    fn parts_hold_what_is_written() {
        let device = Device::cpu(1).unwrap();
        let arena = Arc::new(Arena::new(&device, &Ledger::default(), 256).unwrap());
        let mut a = arena.take(80).unwrap();
        let mut b = arena.take(80).unwrap();
        a.values_mut().fill(1.0);
        b.values_mut().fill(2.0);
        assert_eq!(a.values(), [1.0; 20]);
        assert!(arena.take(1).is_none());
        drop(b);
        assert_eq!(arena.take(128).unwrap().values()[..20], [2.0; 20]);
    }
}
