//! How fast bytes move to the GPU and on it, by short probes.

use std::time::Duration;

use crate::{
    copies::{CopyStream, HostMemory},
    error::CudaError,
    gpu::Gpu,
    span::GpuSpan,
};

/// How fast bytes move, in bytes a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkBandwidth {
    /// From pinned memory to the card; from any other where the system pins nothing.
    pub pinned_to_device: f64,
    /// From any other memory to the card.
    pub pageable_to_device: f64,
    /// On the card, from one place to another: each byte is read and written, and counted once.
    pub device_copy: f64,
}

/// What [`Gpu::measure_bandwidth`] takes on the card while it runs, at least, and a quarter of it on the host.
pub const PROBE_BYTES: usize = 128 << 20;

/// The fastest of these counts: others met somebody else's work, or a card that was still waking up.
const PROBE_ROUNDS: usize = 6;

impl Gpu {
    /// So many bytes or, where that is more, so many that the card's cache holds little of them when their turn comes again:
    /// what takes its time from memory is timed with these. No more than a part of what is free.
    #[must_use]
    pub fn beyond_cache(&self, least: usize) -> usize {
        const CACHES: u64 = 4;
        const OF_FREE: u64 = 8;
        let cache = self.properties().l2_bytes.unwrap_or(0);
        let free = self.memory().map_or(0, |memory| memory.free_bytes);
        least.max((CACHES * cache).min(free / OF_FREE) as usize)
    }

    /// Measures how fast bytes move, in some tens of milliseconds, with [`PROBE_BYTES`] on the card or more than its cache holds.
    ///
    /// # Errors
    /// When there is no room for the probe, or the driver fails.
    pub fn measure_bandwidth(&self) -> Result<LinkBandwidth, CudaError> {
        const HOST_BYTES: usize = PROBE_BYTES / 8;
        let part = self.beyond_cache(PROBE_BYTES / 2);
        let memory = self.allocate(2 * part)?;
        let (one, other) = (memory.span().part(0, part), memory.span().part(part, part));
        let to = memory.span().part(0, HOST_BYTES);
        // Where the system pins nothing, weights are copied from memory as any other.
        let pinned = match HostMemory::pinned(self, HOST_BYTES) {
            Err(CudaError::OutOfPinnedMemory { .. }) => HostMemory::pageable(self, HOST_BYTES)?,
            pinned => pinned?,
        };
        let copies = CopyStream::new(self)?;
        // Written, so that the system has given it pages.
        let pageable = vec![1_u8; HOST_BYTES];
        let rate = |bytes: usize, work: &dyn Fn() -> Result<(), CudaError>| {
            let mut fastest = Duration::MAX;
            for _ in 0..PROBE_ROUNDS {
                let timer = self.start_timer()?;
                work()?;
                fastest = fastest.min(timer.stop()?);
            }
            // Less than this is noise.
            let seconds = fastest.max(Duration::from_micros(1)).as_secs_f64();
            Ok::<_, CudaError>(bytes as f64 / seconds)
        };
        Ok(LinkBandwidth {
            pinned_to_device: HOST_BYTES as f64 / fastest_copy(&copies, &pinned, to)?,
            pageable_to_device: rate(HOST_BYTES, &|| self.upload(to, &pageable))?,
            device_copy: rate(part, &|| self.copy(other, one))?,
        })
    }
}

/// Seconds that the fastest copy of all that memory took, between marks: the host's waiting is no part of it.
fn fastest_copy(copies: &CopyStream, from: &HostMemory, to: GpuSpan) -> Result<f64, CudaError> {
    let mut fastest = Duration::MAX;
    for _ in 0..PROBE_ROUNDS {
        let begin = copies.mark()?;
        copies.copy(from, [(to, 0..from.len())])?;
        let end = copies.mark()?;
        end.wait()?;
        let time = end.since(&begin)?;
        fastest = fastest.min(time.expect("it was waited for"));
    }
    // Less than this is noise.
    Ok(fastest.max(Duration::from_micros(1)).as_secs_f64())
}
