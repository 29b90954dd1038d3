//! The account of device memory: nothing that grows with model, canvas or vocabulary is
//! allocated without an entry of its kind here.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::error::EngineError;

/// What a reservation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The model's tensors.
    Weights,
    /// Rows on their way through the layers, keys and values among them.
    Activations,
    /// Logits of one piece of the vocabulary.
    Head,
    /// Tiles that threads widen weights into, and scores of one tile of queries.
    Scratch,
}

impl Kind {
    /// All kinds, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Weights, Self::Activations, Self::Head, Self::Scratch];

    /// The name that logs and screens use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Activations => "activations",
            Self::Head => "head",
            Self::Scratch => "scratch",
        }
    }
}

/// The account itself; clones share it.
#[derive(Clone, Default)]
pub struct Ledger {
    accounts: Arc<Accounts>,
}

#[derive(Default)]
struct Accounts {
    total: Account,
    kinds: [Account; Kind::ALL.len()],
    /// Largest total since [`Ledger::mark`].
    marked_peak: AtomicU64,
}

#[derive(Default)]
struct Account {
    bytes: AtomicU64,
    peak: AtomicU64,
}

impl Account {
    fn add(&self, bytes: u64) -> u64 {
        // Relaxed: figures for people; no other memory is ordered by them.
        let now = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(now, Ordering::Relaxed);
        now
    }

    fn subtract(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Ledger {
    /// A zeroed buffer of `len` elements, entered under `kind` until it is dropped.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] when the system refuses.
    pub fn buffer<T: bytemuck::Zeroable + Copy>(
        &self,
        kind: Kind,
        len: usize,
    ) -> Result<Buffer<T>, EngineError> {
        let refused = || EngineError::OutOfMemory {
            purpose: kind.name(),
            needed_bytes: (len as u64).saturating_mul(size_of::<T>() as u64),
            used_bytes: self.used_bytes(),
        };
        let data = bytemuck::allocation::try_zeroed_slice_box(len).map_err(|()| refused())?;
        let bytes = size_of_val::<[T]>(&data) as u64;
        self.accounts.kinds[kind as usize].add(bytes);
        let now = self.accounts.total.add(bytes);
        self.accounts.marked_peak.fetch_max(now, Ordering::Relaxed);
        Ok(Buffer {
            data,
            kind,
            ledger: self.clone(),
        })
    }

    /// Bytes held now.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.accounts.total.bytes.load(Ordering::Relaxed)
    }

    /// Starts a new measurement of the peak.
    pub fn mark(&self) {
        let now = self.used_bytes();
        self.accounts.marked_peak.store(now, Ordering::Relaxed);
    }

    /// Most bytes held since [`Ledger::mark`].
    #[must_use]
    pub fn peak_since_mark(&self) -> u64 {
        self.accounts.marked_peak.load(Ordering::Relaxed)
    }

    /// All figures.
    #[must_use]
    pub fn report(&self) -> Report {
        let kinds = Kind::ALL.map(|kind| {
            let account = &self.accounts.kinds[kind as usize];
            KindReport {
                kind,
                bytes: account.bytes.load(Ordering::Relaxed),
                peak_bytes: account.peak.load(Ordering::Relaxed),
            }
        });
        Report {
            used_bytes: self.used_bytes(),
            peak_bytes: self.accounts.total.peak.load(Ordering::Relaxed),
            kinds: kinds.to_vec(),
        }
    }
}

/// Device memory by kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Held now.
    pub used_bytes: u64,
    /// Most held at once since the start.
    pub peak_bytes: u64,
    /// The same by kind.
    pub kinds: Vec<KindReport>,
}

/// One kind's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KindReport {
    /// Which kind.
    pub kind: Kind,
    /// Held now.
    pub bytes: u64,
    /// Most held at once since the start.
    pub peak_bytes: u64,
}

/// Memory that stands in the ledger for as long as it lives.
pub struct Buffer<T> {
    data: Box<[T]>,
    kind: Kind,
    ledger: Ledger,
}

impl<T> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.data
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.data
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        let bytes = size_of_val::<[T]>(&self.data) as u64;
        self.ledger.accounts.kinds[self.kind as usize].subtract(bytes);
        self.ledger.accounts.total.subtract(bytes);
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({:?}, {} elements)", self.kind, self.data.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_leaves_the_account() {
        let ledger = Ledger::default();
        let kept = ledger.buffer::<f32>(Kind::Weights, 100).unwrap();
        ledger.mark();
        drop(ledger.buffer::<u8>(Kind::Head, 50).unwrap());
        assert_eq!(ledger.used_bytes(), 400);
        assert_eq!(ledger.peak_since_mark(), 450);
        drop(kept);
        let report = ledger.report();
        assert_eq!((report.used_bytes, report.peak_bytes), (0, 450));
        assert_eq!(report.kinds[Kind::Head as usize].peak_bytes, 50);
    }

    #[test]
    fn what_cannot_be_had_is_refused_with_figures() {
        let error = Ledger::default()
            .buffer::<f32>(Kind::Activations, 1 << 50)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "4503599627370496 bytes for activations can't be had; 0 are in use"
        );
    }
}
