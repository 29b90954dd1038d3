//! Memory for what is large and comes and goes: one range of addresses of which only those pieces have memory that are
//! in use, so that parts of any size lie side by side, and what the driver counts is what is in use, to a piece.
//!
//! Beside allocations of their own: the driver rounds each up to a piece, and those that were freed leave holes that a larger
//! one doesn't fit. Here it takes pieces from wherever it has them.

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

/// What a [`Gpu`](crate::Gpu)'s arena has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaUse {
    /// What memory comes in.
    pub piece_bytes: u64,
    /// Taken from the driver.
    pub mapped_bytes: u64,
    /// Of it, in use.
    pub used_bytes: u64,
}

/// A card's arena. Its parts are given back before it goes.
pub(crate) struct Arena {
    context: Context,
    device: DeviceHandle,
    api: &'static RangeApi,
    range: GpuSpan,
    piece_bytes: usize,
    layout: Mutex<Layout>,
}

impl Arena {
    /// The arena of a card; none where the card or its driver can't map memory. The context must be the current one.
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
        // Addresses cost nothing. Parts are as much as the card has at most, and in twice the room there is a gap for the
        // next one unless they lie very badly.
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
        // Some machines, virtual ones above all, have the functions and refuse them.
        match arena.map(0..1) {
            Ok(()) => arena.unmap(0..1),
            Err(CudaError::OutOfMemory { .. }) => {}
            Err(_) => return None,
        }
        Some(arena)
    }

    /// What it has now.
    pub(crate) fn in_use(&self) -> ArenaUse {
        let layout = self.layout.lock().unwrap_or_else(PoisonError::into_inner);
        ArenaUse {
            piece_bytes: self.piece_bytes as u64,
            mapped_bytes: layout.mapped_bytes() as u64,
            used_bytes: layout.used_bytes() as u64,
        }
    }

    /// A part, which begins as whatever lay there. The context must be the current one.
    pub(crate) fn take(&self, bytes: usize) -> Result<GpuSpan, CudaError> {
        let refused = |free_bytes| CudaError::OutOfMemory {
            needed_bytes: bytes as u64,
            free_bytes,
        };
        let mut layout = self.layout.lock().unwrap_or_else(PoisonError::into_inner);
        let free_bytes = self.context.memory()?.free_bytes;
        let (start, pieces) = layout
            .take(bytes)
            .ok_or_else(|| refused(Some(free_bytes)))?;
        // Asked before, since trying would take all that is free for a moment, also from others.
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

    /// Gives a part back, at once, so that the driver's figures are never behind the account's. What was sent is waited for
    /// first: neither unmapping nor another owner's copies would. Freeing an allocation of one's own waits as well.
    pub(crate) fn give_back(&self, part: GpuSpan) {
        let waited = self
            .context
            .make_current()
            .and_then(|()| self.context.wait());
        let mut layout = self.layout.lock().unwrap_or_else(PoisonError::into_inner);
        let start = (part.address() - self.range.address()) as usize;
        let pieces = layout.give_back(start);
        // The context has failed otherwise, and takes the memory along.
        if waited.is_ok() {
            self.unmap(pieces);
        }
    }

    /// Gives memory to pieces that have none, or to none of them.
    fn map(&self, pieces: Range<usize>) -> Result<(), CudaError> {
        for piece in pieces.clone() {
            if let Err(error) = self.map_piece(piece) {
                self.unmap(pieces.start..piece);
                return Err(error);
            }
        }
        if pieces.is_empty() {
            return Ok(());
        }
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
        // SAFETY: created above. What is mapped stays until it is unmapped.
        unsafe { (self.api.release)(handle) };
        self.check(mapped)
    }

    /// Nothing uses these pieces any more, which are mapped.
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
            // SAFETY: reserved once, freed once, and nothing is mapped any more: parts go before the card they are on.
            unsafe { (self.api.free)(self.range.address(), self.range.bytes()) };
        }
    }
}
