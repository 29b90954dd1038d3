//! Measures how fast bytes move to the GPU and on it.

use std::time::Duration;

use crate::{
    copies::{CopyStream, HostMemory},
    error::CudaError,
    gpu::Gpu,
    span::GpuSpan,
};

/// Bandwidths in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkBandwidth {
    /// From pinned memory to the GPU; from pageable memory where the system pins nothing.
    pub pinned_to_device: f64,
    /// From pageable memory to the GPU.
    pub pageable_to_device: f64,
    /// On the GPU, from one place to another. Each byte is read and written, and counted once.
    pub device_copy: f64,
}

/// Least memory that [`Gpu::measure_bandwidth`] takes on the GPU while it runs; it takes a quarter of it on the host.
pub const PROBE_BYTES: usize = 128 << 20;

/// Rounds of a probe, of which the fastest counts: others met other programs' work, or a GPU whose clocks were still
/// rising.
const PROBE_ROUNDS: usize = 6;

impl Gpu {
    /// A buffer size for timing memory: `least`, or four times the GPU's cache if that is more, so that little of the
    /// buffer is still cached when it is read again. At most an eighth of free memory.
    #[must_use]
    pub fn beyond_cache(&self, least: usize) -> usize {
        const CACHES: u64 = 4;
        const OF_FREE: u64 = 8;
        let cache = self.properties().l2_bytes.unwrap_or(0);
        let free = self.memory().map_or(0, |memory| memory.free_bytes);
        least.max((CACHES * cache).min(free / OF_FREE) as usize)
    }

    /// Measures bandwidths, in some tens of milliseconds, with [`PROBE_BYTES`] on the GPU or more than its cache holds.
    ///
    /// # Errors
    /// When the GPU has too little memory for the probe, or the driver fails.
    pub fn measure_bandwidth(&self) -> Result<LinkBandwidth, CudaError> {
        // Taken twice, pinned and pageable.
        const HOST_BYTES: usize = PROBE_BYTES / 8;
        let part = self.beyond_cache(PROBE_BYTES / 2);
        let memory = self.allocate(2 * part)?;
        let (one, other) = (memory.span().part(0, part), memory.span().part(part, part));
        let to = memory.span().part(0, HOST_BYTES);
        // Where the system pins nothing, weights are streamed from pageable memory, too.
        let pinned = match HostMemory::pinned(self, HOST_BYTES) {
            Err(CudaError::OutOfPinnedMemory { .. }) => HostMemory::pageable(self, HOST_BYTES)?,
            pinned => pinned?,
        };
        let copies = CopyStream::new(self)?;
        // Written once, so that page faults don't count.
        let pageable = vec![1_u8; HOST_BYTES];
        let rate = |bytes: usize, work: &dyn Fn() -> Result<(), CudaError>| {
            let mut fastest = Duration::MAX;
            for _ in 0..PROBE_ROUNDS {
                let timer = self.start_timer()?;
                work()?;
                fastest = fastest.min(timer.stop()?);
            }
            // Shorter times are noise.
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

/// Seconds of the fastest copy of all of `from`, measured between marks, so that the host's waiting doesn't count.
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
    // Shorter times are noise.
    Ok(fastest.max(Duration::from_micros(1)).as_secs_f64())
}
