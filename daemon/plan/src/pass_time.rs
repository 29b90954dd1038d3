//! The predicted time of a pass, by resource.

/// The time of a pass by resource, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PassTime {
    /// Matmuls, dequantization and attention.
    pub compute_s: f64,
    /// Copies from the system's cache, and decompression of streamed weights; on a GPU, copies over the bus.
    pub copy_s: f64,
    /// Whether copies run beside computing, as a GPU's do.
    pub copies_overlap: bool,
    /// Reads past the system's cache.
    pub disk_s: f64,
    /// The time of the thread that reads streamed weights, including its pauses under a disk read limit; on a GPU no
    /// less than the copies over the bus.
    pub reader_s: f64,
    /// Reads of the first pass, when the system's cache holds nothing of what later passes copy from it, as far as they
    /// take longer than the pauses of the read limit; `None` where the disk was not measured.
    pub cold_s: Option<f64>,
    /// The factor by which measured passes have corrected the rates' prediction; 1 where there were none.
    pub correction: f64,
    /// Share of the processors that other programs had while the rates were measured, from 0 to 1.
    pub others_share: f64,
}

impl PassTime {
    /// The whole pass, where work that overlaps counts once.
    #[must_use]
    pub fn total_s(&self) -> f64 {
        self.busy_s().max(self.reader_s)
    }

    /// The time for which the device that computes is busy.
    pub fn busy_s(&self) -> f64 {
        match self.copies_overlap {
            true => self.compute_s,
            false => self.compute_s + self.copy_s,
        }
    }

    /// Whether the pass waits for streamed weights longer than the cores are busy, so that more rows cost nothing.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.reader_s > self.busy_s()
    }

    /// The first pass, when the system's cache holds nothing: reads run beside computing. `None` where the disk was not
    /// measured.
    #[must_use]
    pub fn first_s(&self) -> Option<f64> {
        // The reads that fill the cache come on top of what the reader does in any pass.
        Some(self.total_s().max(self.cold_s? + self.reader_s))
    }
}
