//! One piece of memory that activations are cut from. Which parts are free is kept apart from the memory, so that a
//! rehearsal finds by the very same rule how much a run will need.

use std::{
    cell::UnsafeCell,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    error::EngineError,
    ledger::{Buffer, Kind, Ledger},
};

/// Numbers: parts start at multiples of 64 bytes from the beginning of the memory, which itself may lie anywhere that a
/// number may.
const ALIGNMENT: usize = 16;

/// A number that the owner of its part may write.
#[repr(transparent)]
struct Number(UnsafeCell<f32>);

// SAFETY: zero bits are an `f32`, and `UnsafeCell` has the representation of what it holds.
unsafe impl bytemuck::Zeroable for Number {}
// SAFETY: numbers are reached through parts alone. Those are disjoint, and give out references as a slice would.
unsafe impl Sync for Number {}

/// The memory and what of it is taken.
pub(super) struct Arena {
    /// Empty in a rehearsal.
    memory: Buffer<Number>,
    layout: Mutex<Layout>,
}

impl Arena {
    /// Memory for `len` numbers. In a rehearsal there is none, and no end to it.
    pub(super) fn new(ledger: &Ledger, len: usize) -> Result<Self, EngineError> {
        Ok(Self {
            memory: ledger.buffer(Kind::Activations, len)?,
            layout: Mutex::new(Layout::new(match ledger.is_rehearsal() {
                true => usize::MAX,
                false => len,
            })),
        })
    }

    /// A part of `len` numbers, if there is room.
    pub(super) fn take(self: &Arc<Self>, len: usize) -> Option<Part> {
        let range = self.layout().take(len)?;
        Some(Part {
            arena: Arc::clone(self),
            start: range.start,
            len,
            end: range.end,
        })
    }

    /// Where the furthest part ended so far.
    pub(super) fn high_water(&self) -> usize {
        self.layout().high_water
    }

    fn layout(&self) -> MutexGuard<'_, Layout> {
        self.layout.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Numbers of an arena that are one owner's until it is dropped. In a rehearsal it can't be read.
pub(super) struct Part {
    arena: Arc<Arena>,
    start: usize,
    len: usize,
    /// Of what was taken; not before `start + len`.
    end: usize,
}

impl Part {
    pub(super) fn values(&self) -> &[f32] {
        let numbers = &self.arena.memory[self.start..self.start + self.len];
        // SAFETY: `Number` is an `f32` in an `UnsafeCell`; this part alone reaches these, and is borrowed.
        unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), self.len) }
    }

    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        let numbers = &self.arena.memory[self.start..self.start + self.len];
        // SAFETY: as above, and borrowed for writing; the cells allow that through a shared reference.
        unsafe { std::slice::from_raw_parts_mut(numbers.as_ptr().cast_mut().cast(), self.len) }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.arena.layout().give_back(self.start..self.end);
    }
}

/// Which parts are free: each take goes to the lowest place it fits.
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
        let len = len.next_multiple_of(ALIGNMENT);
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
        if range.start == range.end {
            return;
        }
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
    fn a_rehearsal_tells_what_the_run_will_need() {
        let run = |ledger: &Ledger, len| {
            let arena = Arc::new(Arena::new(ledger, len).unwrap());
            let a = arena.take(100).unwrap();
            let b = arena.take(1000).unwrap();
            drop(a);
            let c = arena.take(200).unwrap();
            drop((b, c));
            arena.high_water()
        };
        let needed = run(&Ledger::rehearsal(), 0);
        assert_eq!(needed, 112 + 1008 + 208);
        assert_eq!(run(&Ledger::default(), needed), needed);
    }

    #[test]
    fn parts_hold_what_is_written() {
        let arena = Arc::new(Arena::new(&Ledger::default(), 64).unwrap());
        let mut a = arena.take(20).unwrap();
        let mut b = arena.take(20).unwrap();
        a.values_mut().fill(1.0);
        b.values_mut().fill(2.0);
        assert_eq!(a.values(), [1.0; 20]);
        assert!(arena.take(1).is_none());
        drop(b);
        assert_eq!(arena.take(32).unwrap().values()[..20], [2.0; 20]);
    }
}
