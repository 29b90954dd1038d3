//! Memory that the system gives and gets back: what is large is a mapping of its own, so that all of it is the system's again
//! when it is dropped, whatever the program's allocator does with what it is given back.

use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    slice,
};

use bytemuck::Zeroable;
use memmap2::{Advice, MmapMut, UncheckedAdvice};

use crate::page::PAGE_BYTES;

/// From here on huge pages are asked for: a shorter mapping has no room for one.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed numbers in a mapping of their own, which begins with a page. Pages that nobody has written to take no memory.
pub struct MappedBuffer<T> {
    /// None of no bytes.
    memory: Option<MmapMut>,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Zeroable> MappedBuffer<T> {
    /// Memory for `len` numbers, all zero; `None` when the system has none to give.
    #[must_use]
    pub fn zeroed(len: usize) -> Option<Self> {
        const {
            assert!(size_of::<T>() > 0 && align_of::<T>() <= PAGE_BYTES);
            assert!(!std::mem::needs_drop::<T>(), "nothing in it is dropped");
        }
        let bytes = len.checked_mul(size_of::<T>())?;
        let memory = match bytes {
            0 => None,
            _ => Some(MmapMut::map_anon(bytes).ok()?),
        };
        if let Some(memory) = memory.as_ref().filter(|_| bytes >= HUGE_PAGE_BYTES) {
            // Advice: a system without huge pages loses time, nothing else.
            let _ = memory.advise(Advice::HugePage);
        }
        Some(Self {
            memory,
            len,
            elements: PhantomData,
        })
    }

    /// Gives its pages back and keeps the place: all is zero again, and takes memory once it is written to.
    pub fn forget(&mut self) {
        if let Some(memory) = &mut self.memory {
            // SAFETY: nobody holds a slice of it, and the zeroes that are read from now on are numbers as well.
            let given = unsafe { memory.unchecked_advise(UncheckedAdvice::DontNeed) };
            // A system that doesn't take it back leaves what stood there.
            if given.is_err() {
                memory.fill(0);
            }
        }
    }
}

impl<T> Deref for MappedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let Some(memory) = &self.memory else {
            return &[];
        };
        // SAFETY: the mapping has room for `len` of them and begins with a page, as they may; zeroed memory is numbers, and
        // whoever wrote to it had them as such.
        unsafe { slice::from_raw_parts(memory.as_ptr().cast(), self.len) }
    }
}

impl<T> DerefMut for MappedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let Some(memory) = &mut self.memory else {
            return &mut [];
        };
        // SAFETY: as above, and nobody else holds a slice of them.
        unsafe { slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), self.len) }
    }
}

impl<T> fmt::Debug for MappedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapped({} × {} bytes)", self.len, size_of::<T>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Page;

    #[test]
    fn it_is_zeroed_begins_with_a_page_and_holds_what_is_written() {
        let mut memory = MappedBuffer::<u64>::zeroed(3 << 20).unwrap();
        assert!(memory.iter().all(|number| *number == 0));
        assert_eq!(memory.as_ptr().addr() % PAGE_BYTES, 0);
        memory[(3 << 20) - 1] = 7;
        assert_eq!(memory.iter().sum::<u64>(), 7);
        memory.forget();
        assert_eq!((memory.len(), memory.iter().sum::<u64>()), (3 << 20, 0));
        assert!(MappedBuffer::<Page>::zeroed(0).unwrap().is_empty());
    }

    #[test]
    fn what_the_system_does_not_have_is_refused() {
        assert!(MappedBuffer::<u64>::zeroed(1 << 50).is_none());
        assert!(MappedBuffer::<u64>::zeroed(usize::MAX).is_none());
    }
}
