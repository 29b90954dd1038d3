//! The ledger of device memory: nothing that grows with model, canvas or vocabulary is allocated without an entry of
//! its kind here.

mod faults;
mod pinned;
mod shared_budget;

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use sluice_machine::{MemoryKind, mapped::MappedBuffer};

use self::{faults::Faults, shared_budget::BudgetShare};
pub use self::{pinned::PinnedEntry, shared_budget::SharedBudget};
use crate::OpsError;

/// Where the measurement of a peak begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeakMark {
    /// The last pass ended, or the first request of the present batch began.
    Pass,
    /// The present plan was put in force.
    Plan,
}

/// The ledger itself; clones share it.
#[derive(Clone, Default)]
pub struct Ledger {
    counters: Arc<Counters>,
}

struct Counters {
    total: Counter,
    kinds: [Counter; MemoryKind::ALL.len()],
    /// Largest totals since [`Ledger::mark`].
    marked_peaks: [AtomicU64; 2],
    /// The most bytes that may be held at once.
    limit: AtomicU64,
    /// Pinned bytes of the host's memory, which no other figure contains.
    pinned: AtomicU64,
    /// Bytes that the device itself takes, which other ledgers count as well.
    common: AtomicU64,
    /// The budget that it keeps with other ledgers; `None`: it has one for itself.
    share: Option<BudgetShare>,
    /// Buffers are counted, and hold nothing.
    is_dry_run: bool,
    /// It counts the host's memory beside a GPU, and no memory of the device's.
    is_beside_gpu: bool,
    faults: Faults,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            total: Counter::default(),
            kinds: Default::default(),
            marked_peaks: Default::default(),
            limit: AtomicU64::new(u64::MAX),
            pinned: AtomicU64::new(0),
            common: AtomicU64::new(0),
            share: None,
            is_dry_run: false,
            is_beside_gpu: false,
            faults: Faults::default(),
        }
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ledger({} bytes of {})", self.used_bytes(), self.limit())
    }
}

#[derive(Default)]
struct Counter {
    bytes: AtomicU64,
    peak: AtomicU64,
}

impl Counter {
    fn add(&self, bytes: u64) {
        // Relaxed: counters for reports; they order no other memory.
        let now = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    fn subtract(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Ledger {
    /// A ledger whose buffers are counted but hold nothing: a dry run finds with it what a run would need.
    #[must_use]
    pub fn dry_run() -> Self {
        Self {
            counters: Arc::new(Counters {
                is_dry_run: true,
                ..Counters::default()
            }),
        }
    }

    /// A ledger of the host's memory beside a GPU.
    #[must_use]
    pub fn beside_gpu() -> Self {
        Self {
            counters: Arc::new(Counters {
                is_beside_gpu: true,
                ..Counters::default()
            }),
        }
    }

    fn of_budget(share: BudgetShare) -> Self {
        Self {
            counters: Arc::new(Counters {
                share: Some(share),
                ..Counters::default()
            }),
        }
    }

    /// Whether buffers are counted only.
    #[must_use]
    pub fn is_dry_run(&self) -> bool {
        self.counters.is_dry_run
    }

    /// A zeroed buffer of `len` elements, entered under `kind` until it is dropped.
    ///
    /// # Errors
    /// [`OpsError::OutOfMemory`] when the limit or the system refuses; [`OpsError::OutOfHostMemory`] beside a GPU.
    pub fn buffer<T: bytemuck::Zeroable>(
        &self,
        kind: MemoryKind,
        len: usize,
    ) -> Result<HostBuffer<T>, OpsError> {
        // Saturating: a length from a hostile file is refused as too large instead of wrapping to a small one.
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        let entry = self.reserve(kind, bytes)?;
        // A dry run counts the full length, and allocates nothing.
        let held = if self.is_dry_run() { 0 } else { len };
        match MappedBuffer::zeroed(held) {
            Some(data) => Ok(HostBuffer { data, entry }),
            None => {
                drop(entry);
                Err(self.refusal(kind, bytes))
            }
        }
    }

    /// Enters `bytes` under `kind` until the entry is dropped.
    ///
    /// # Errors
    /// [`OpsError::OutOfMemory`] when the limit refuses.
    pub fn reserve(&self, kind: MemoryKind, bytes: u64) -> Result<LedgerEntry, OpsError> {
        self.enter(kind, bytes, false)
    }

    /// The same for memory that the device itself takes, however many ledgers count it.
    ///
    /// # Errors
    /// As [`Ledger::reserve`].
    pub fn reserve_common(&self, kind: MemoryKind, bytes: u64) -> Result<LedgerEntry, OpsError> {
        self.enter(kind, bytes, true)
    }

    fn enter(
        &self,
        kind: MemoryKind,
        bytes: u64,
        is_common: bool,
    ) -> Result<LedgerEntry, OpsError> {
        if self.counters.faults.strikes() {
            return Err(self.refusal(kind, bytes));
        }
        let limit = self.limit();
        let total = &self.counters.total;
        // Checked and added in one step: loads and passes reserve from different threads, and must not pass the limit
        // together.
        let before = total
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
                held.checked_add(bytes).filter(|&now| now <= limit)
            })
            .map_err(|_| self.refusal(kind, bytes))?;
        match (is_common, &self.counters.share) {
            (false, Some(share)) => share.take(kind, bytes).map_err(|LimitExceeded| {
                total.subtract(bytes);
                self.refusal(kind, bytes)
            })?,
            (true, _) => {
                self.counters.common.fetch_add(bytes, Ordering::Relaxed);
            }
            (false, None) => {}
        }
        total.peak.fetch_max(before + bytes, Ordering::Relaxed);
        for peak in &self.counters.marked_peaks {
            peak.fetch_max(before + bytes, Ordering::Relaxed);
        }
        self.counters.kinds[kind as usize].add(bytes);
        Ok(LedgerEntry {
            kind,
            bytes,
            is_common,
            ledger: self.clone(),
        })
    }

    /// The error for `bytes` that cannot be allocated.
    pub fn refusal(&self, kind: MemoryKind, bytes: u64) -> OpsError {
        if self.counters.is_beside_gpu {
            return OpsError::OutOfHostMemory {
                purpose: kind.name(),
                needed_bytes: bytes,
                used_bytes: self.used_bytes(),
            };
        }
        let limit = self.room_bytes(self.limit());
        OpsError::OutOfMemory {
            purpose: kind.name(),
            needed_bytes: bytes,
            used_bytes: self.used_bytes(),
            limit_bytes: Some(limit).filter(|&limit| limit != u64::MAX),
            free_bytes: None,
        }
    }

    /// Limit of the bytes held at once; `u64::MAX` without a limit.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.counters.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit of the bytes held at once. What is already held beyond it stays.
    pub fn set_limit(&self, bytes: u64) {
        self.counters.limit.store(bytes, Ordering::Relaxed);
        if let Some(share) = &self.counters.share {
            share.set_limit(bytes);
        }
    }

    /// The budget that it keeps with other ledgers.
    #[must_use]
    pub fn shared_budget(&self) -> Option<&SharedBudget> {
        self.counters.share.as_ref().map(BudgetShare::budget)
    }

    /// Most bytes that can be held here beside what other ledgers hold or have claimed, of those that are asked for.
    #[must_use]
    pub fn room_bytes(&self, asked_bytes: u64) -> u64 {
        // Without a limit of its own a ledger may have what the common budget leaves, and raises nothing.
        let Some(share) = &self.counters.share else {
            return asked_bytes;
        };
        let room = share.room_bytes(match asked_bytes {
            u64::MAX => 0,
            asked => asked,
        });
        asked_bytes.min(room.saturating_add(self.common_bytes()))
    }

    /// Claims memory: so much in all will be there for this ledger, whatever others take. The claim before it goes.
    ///
    /// # Errors
    /// [`OpsError::OutOfMemory`] when others leave too little; the claim before it then stays.
    pub fn claim(&self, bytes: u64) -> Result<(), OpsError> {
        let Some(share) = &self.counters.share else {
            return Ok(());
        };
        let claimed = share.claim(bytes.saturating_sub(self.common_bytes()));
        claimed.map_err(|LimitExceeded| {
            let more = bytes.saturating_sub(self.used_bytes());
            self.refusal(MemoryKind::Weights, more)
        })
    }

    /// Claims so much, or as much as others leave.
    pub fn settle_claim(&self, bytes: u64) {
        if let Some(share) = &self.counters.share {
            share.settle(bytes.saturating_sub(self.common_bytes()));
        }
    }

    /// Bytes that no other ledger can have: what is held, or claimed where that is more; without what is common to all.
    #[must_use]
    pub fn taken_bytes(&self) -> u64 {
        match &self.counters.share {
            Some(share) => share.taken_bytes(),
            None => self.used_bytes().saturating_sub(self.common_bytes()),
        }
    }

    /// Bytes of them that are claimed and not held yet: the device still counts them as free.
    #[must_use]
    pub fn unheld_bytes(&self) -> u64 {
        let share = self.counters.share.as_ref();
        share.map_or(0, BudgetShare::unheld_bytes)
    }

    /// The same of all other ledgers of the common budget.
    #[must_use]
    pub fn others_unheld_bytes(&self) -> u64 {
        let share = self.counters.share.as_ref();
        share.map_or(0, BudgetShare::others_unheld_bytes)
    }

    fn common_bytes(&self) -> u64 {
        self.counters.common.load(Ordering::Relaxed)
    }

    /// Bytes that are held at present.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.counters.total.bytes.load(Ordering::Relaxed)
    }

    /// Starts a new measurement of a peak.
    pub fn mark(&self, mark: PeakMark) {
        // Down to what is held now: a peak since the mark is at least that.
        let now = self.used_bytes();
        self.counters.marked_peaks[mark as usize].store(now, Ordering::Relaxed);
    }

    /// Most bytes held since [`Ledger::mark`] was called with this mark.
    #[must_use]
    pub fn peak_since(&self, mark: PeakMark) -> u64 {
        self.counters.marked_peaks[mark as usize].load(Ordering::Relaxed)
    }

    /// The figures of all kinds, and their totals.
    #[must_use]
    pub fn report(&self) -> LedgerReport {
        let kinds = MemoryKind::ALL.map(|kind| {
            let account = &self.counters.kinds[kind as usize];
            LedgerKindReport {
                kind,
                bytes: account.bytes.load(Ordering::Relaxed),
                peak_bytes: account.peak.load(Ordering::Relaxed),
            }
        });
        LedgerReport {
            used_bytes: self.used_bytes(),
            peak_bytes: self.counters.total.peak.load(Ordering::Relaxed),
            kinds: kinds.to_vec(),
        }
    }
}

/// Device memory by kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerReport {
    /// Bytes of all kinds that are held at present.
    pub used_bytes: u64,
    /// Most held at once since the start.
    pub peak_bytes: u64,
    /// The figures of each kind of memory.
    pub kinds: Vec<LedgerKindReport>,
}

/// The figures of one kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerKindReport {
    /// The kind of memory.
    pub kind: MemoryKind,
    /// Bytes of this kind that are held at present.
    pub bytes: u64,
    /// Most bytes of this kind held at once since the start.
    pub peak_bytes: u64,
}

/// A limit would be exceeded.
struct LimitExceeded;

/// A reservation in the ledger; dropping it gives the bytes back.
pub struct LedgerEntry {
    kind: MemoryKind,
    bytes: u64,
    is_common: bool,
    ledger: Ledger,
}

impl LedgerEntry {
    /// Bytes that are reserved.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Debug for LedgerEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({:?}, {} bytes)", self.kind, self.bytes)
    }
}

impl Drop for LedgerEntry {
    fn drop(&mut self) {
        let counters = &self.ledger.counters;
        counters.kinds[self.kind as usize].subtract(self.bytes);
        counters.total.subtract(self.bytes);
        match (self.is_common, &counters.share) {
            (false, Some(share)) => share.give_back(self.kind, self.bytes),
            (true, _) => {
                counters.common.fetch_sub(self.bytes, Ordering::Relaxed);
            }
            (false, None) => {}
        }
    }
}

/// Memory that stands in the ledger for as long as it lives. In a dry run it is counted, and empty.
pub struct HostBuffer<T> {
    // Dropped in this order: the system has the memory back before its ledger entry goes.
    data: MappedBuffer<T>,
    entry: LedgerEntry,
}

impl<T> HostBuffer<T> {
    /// Bytes it stands for in the ledger.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.entry.bytes
    }
}

impl<T: bytemuck::Zeroable> HostBuffer<T> {
    /// Returns its pages to the system until it is written to again: all is zero then. Its ledger entry stays.
    pub fn forget(&mut self) {
        self.data.forget();
    }
}

impl<T> Deref for HostBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.data
    }
}

impl<T> DerefMut for HostBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.data
    }
}

impl<T> fmt::Debug for HostBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Buffer({:?}, {} bytes)",
            self.entry.kind, self.entry.bytes
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_leaves_the_account() {
        let ledger = Ledger::default();
        let kept = ledger.buffer::<f32>(MemoryKind::Weights, 100).unwrap();
        ledger.mark(PeakMark::Pass);
        drop(ledger.buffer::<u8>(MemoryKind::Logits, 50).unwrap());
        assert_eq!(ledger.used_bytes(), 400);
        assert_eq!(ledger.peak_since(PeakMark::Pass), 450);
        drop(kept);
        let report = ledger.report();
        assert_eq!((report.used_bytes, report.peak_bytes), (0, 450));
        assert_eq!(report.kinds[MemoryKind::Logits as usize].peak_bytes, 50);
    }

    #[test]
    fn what_cannot_be_had_is_refused_with_figures() {
        let error = Ledger::default()
            .buffer::<f32>(MemoryKind::Activations, 1 << 50)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot allocate 4503599627370496 bytes for activations; 0 are in use"
        );
    }

    #[test]
    fn beside_a_gpu_the_host_has_refused() {
        let ledger = Ledger::beside_gpu();
        let _held = ledger.buffer::<u8>(MemoryKind::Scratch, 3).unwrap();
        let error = ledger
            .buffer::<f32>(MemoryKind::Activations, 1 << 50)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot allocate 4503599627370496 bytes of host memory for activations; 3 are in use beside the GPU"
        );
    }

    #[test]
    fn nothing_goes_over_the_limit() {
        let ledger = Ledger::default();
        ledger.set_limit(1000);
        let kept = ledger.buffer::<u8>(MemoryKind::Weights, 900).unwrap();
        let error = ledger
            .buffer::<u8>(MemoryKind::StagingBuffers, 101)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot allocate 101 bytes for staging_buffers; 900 of 1000 are in use"
        );
        assert_eq!(ledger.used_bytes(), 900);
        drop(
            ledger
                .buffer::<u8>(MemoryKind::StagingBuffers, 100)
                .unwrap(),
        );
        drop(kept);
        assert_eq!(ledger.used_bytes(), 0);
    }

    #[test]
    fn a_dry_run_counts_what_it_does_not_hold() {
        let ledger = Ledger::dry_run();
        let buffer = ledger.buffer::<f32>(MemoryKind::Weights, 1 << 45).unwrap();
        assert_eq!((buffer.len(), buffer.bytes()), (0, 1 << 47));
        assert_eq!(ledger.used_bytes(), 1 << 47);
    }

    #[test]
    fn a_fault_strikes_once() {
        let ledger = Ledger::default();
        ledger.fail_at(2);
        drop(ledger.buffer::<u8>(MemoryKind::Logits, 1).unwrap());
        assert!(!ledger.has_failed());
        ledger.buffer::<u8>(MemoryKind::Logits, 1).unwrap_err();
        assert!(ledger.has_failed());
        ledger.buffer::<u8>(MemoryKind::Logits, 1).unwrap();
    }
}
