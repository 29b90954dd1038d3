//! Memory for large buffers that come and go. One range of addresses is reserved, and only pieces in use have memory
//! mapped, so that parts of any size lie side by side and the driver's figure is the memory in use, up to a piece.
//!
//! Separate allocations would each be rounded up to a piece by the driver, and freed ones would leave holes that a
//! larger one doesn't fit. Here a part takes pieces from wherever memory is free.

mod layout;

use std::{
    ops::Range,
    sync::{Mutex, PoisonError},
};

use self::layout::Layout;
use crate::{
    context::Context,
    driver::{Access, DeviceHandle, Properties, RangeApi},
    error::{CudaError, code},
    span::GpuSpan,
};

/// Memory figures of a [`Gpu`](crate::Gpu)'s arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaUse {
    /// The driver's allocation granularity.
    pub piece_bytes: u64,
    /// Bytes of pieces that the driver has mapped.
    pub mapped_bytes: u64,
    /// Bytes of parts, at most `mapped_bytes`.
    pub used_bytes: u64,
}

/// A GPU's arena. All parts are given back before it is dropped.
pub(crate) struct Arena {
    context: Context,
    device: DeviceHandle,
    api: &'static RangeApi,
    range: GpuSpan,
    piece_bytes: usize,
    layout: Mutex<Layout>,
}

impl Arena {
    /// Opens the arena of a GPU; `None` where the GPU or its driver cannot map memory. The context must be current.
    pub(crate) fn open(context: Context, device: DeviceHandle) -> Option<Self> {
        const VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: i32 = 102;
        const MINIMUM: i32 = 0;
        let driver = context.driver;
        let api = driver.ranges.as_ref()?;
        let is_supported = driver.attribute(device, VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
        if is_supported.unwrap_or(0) == 0 {
            return None;
        }
        let mut piece_bytes = 0;
        let properties = Properties::on(device);
        // SAFETY: both outlive the call.
        let code =
            unsafe { (api.granularity)(&raw mut piece_bytes, &raw const properties, MINIMUM) };
        if code != 0 || piece_bytes == 0 {
            return None;
        }
        // Addresses cost nothing. Parts never exceed the GPU's memory, so half of the range is always free, and a new
        // part finds a gap unless fragmentation is extreme.
        let total_bytes = usize::try_from(context.memory().ok()?.total_bytes).ok()?;
        let bytes = (2 * total_bytes).next_multiple_of(piece_bytes);
        let mut address = 0;
        // SAFETY: `address` outlives the call; the driver chooses where.
        if unsafe { (api.reserve)(&raw mut address, bytes, 0, 0, 0) } != 0 {
            return None;
        }
        let arena = Self {
            context,
            device,
            api,
            range: GpuSpan::new(address, bytes),
            piece_bytes,
            layout: Mutex::new(Layout::new(bytes, piece_bytes)),
        };
        // Some machines, mostly virtual ones, have these functions and refuse them. Running out of memory proves
        // nothing: another program may hold it all.
        match arena.map(0..1) {
            Ok(()) => arena.unmap(0..1),
            Err(CudaError::OutOfMemory { .. }) => {}
            Err(_) => return None,
        }
        Some(arena)
    }

    /// Memory figures at this moment.
    pub(crate) fn in_use(&self) -> ArenaUse {
        let layout = self.layout.lock().unwrap_or_else(PoisonError::into_inner);
        ArenaUse {
            piece_bytes: self.piece_bytes as u64,
            mapped_bytes: layout.mapped_bytes() as u64,
            used_bytes: layout.used_bytes() as u64,
        }
    }

    /// Allocates a part with arbitrary contents. The context must be current.
    pub(crate) fn take(&self, bytes: usize) -> Result<GpuSpan, CudaError> {
        let refused = |free_bytes| CudaError::OutOfMemory {
            needed_bytes: bytes as u64,
            free_bytes,
        };
        // Held while mapping: another thread must not be given the same pieces in between.
        let mut layout = self.layout.lock().unwrap_or_else(PoisonError::into_inner);
        let free_bytes = self.context.memory()?.free_bytes;
        let (start, pieces) = layout
            .take(bytes)
            .ok_or_else(|| refused(Some(free_bytes)))?;
        // Checked first, because trying would take all free memory for a moment, and other programs' allocations could
        // fail.
        let has_room = (pieces.len() * self.piece_bytes) as u64 <= free_bytes;
        let mapped = match has_room {
            true => self.map(pieces),
            false => Err(refused(Some(free_bytes))),
        };
        if let Err(error) = mapped {
            layout.give_back(start);
            return Err(match error {
                CudaError::OutOfMemory { free_bytes, .. } => refused(free_bytes),
                error => error,
            });
        }
        Ok(self.range.part(start, bytes))
    }

    /// Gives a part back, and its memory to the driver at once, so that the driver's figure never lags behind the
    /// ledger. Waits for all work first, as freeing an allocation does: unmapping doesn't wait, nor would a new owner's
    /// copies.
    pub(crate) fn give_back(&self, part: GpuSpan) {
        let waited = self
            .context
            .make_current()
            .and_then(|()| self.context.wait());
        let mut layout = self.layout.lock().unwrap_or_else(PoisonError::into_inner);
        let start = (part.address() - self.range.address()) as usize;
        let pieces = layout.give_back(start);
        // If the wait failed, the context has failed, and the driver frees its memory with it.
        if waited.is_ok() {
            self.unmap(pieces);
        }
    }

    /// Maps memory to all of these pieces, or to none of them.
    fn map(&self, pieces: Range<usize>) -> Result<(), CudaError> {
        // One handle per piece, so that each can be given back by itself. Mapping one takes some 0.1 ms, little beside
        // filling it over the bus.
        for piece in pieces.clone() {
            if let Err(error) = self.map_piece(piece) {
                self.unmap(pieces.start..piece);
                return Err(error);
            }
        }
        if pieces.is_empty() {
            return Ok(());
        }
        // Mapped memory cannot be accessed until access is set, which one call can do for a whole range.
        let access = Access::to(self.device);
        let mapped = self.range.part(
            pieces.start * self.piece_bytes,
            pieces.len() * self.piece_bytes,
        );
        // SAFETY: `access` outlives the call, and all of it was mapped above.
        let code = unsafe {
            (self.api.set_access)(mapped.address(), mapped.bytes(), &raw const access, 1)
        };
        self.check(code).inspect_err(|_| self.unmap(pieces))
    }

    fn map_piece(&self, piece: usize) -> Result<(), CudaError> {
        let properties = Properties::on(self.device);
        let mut handle = 0;
        // SAFETY: both outlive the call.
        self.check(unsafe {
            (self.api.create)(&raw mut handle, self.piece_bytes, &raw const properties, 0)
        })?;
        let address = self.address(piece);
        // SAFETY: these addresses are ours, and nothing is mapped there: no part lies in this piece.
        let mapped = unsafe { (self.api.map)(address, self.piece_bytes, 0, handle, 0) };
        // SAFETY: created above. What is mapped stays until it is unmapped. Releasing the handle now leaves the mapping
        // as the only owner, so unmapping frees the memory.
        unsafe { (self.api.release)(handle) };
        self.check(mapped)
    }

    /// Unmaps pieces that nothing uses any more.
    fn unmap(&self, pieces: Range<usize>) {
        for piece in pieces {
            // SAFETY: mapped by itself, and what used it has ended. It fails only when the context has, which is remembered.
            self.context
                .note(unsafe { (self.api.unmap)(self.address(piece), self.piece_bytes) });
        }
    }

    fn address(&self, piece: usize) -> u64 {
        self.range.address() + (piece * self.piece_bytes) as u64
    }

    fn check(&self, code: i32) -> Result<(), CudaError> {
        match code {
            code::OUT_OF_MEMORY => Err(CudaError::OutOfMemory {
                needed_bytes: self.piece_bytes as u64,
                free_bytes: self.context.memory().ok().map(|memory| memory.free_bytes),
            }),
            code => self.context.check("map GPU memory", code),
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: reserved once, freed once, and nothing is mapped any more: parts go before the GPU they are on.
            unsafe { (self.api.free)(self.range.address(), self.range.bytes()) };
        }
    }
}
