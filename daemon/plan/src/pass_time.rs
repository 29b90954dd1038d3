//! How long a pass is, by what it waits for.

/// The time of a pass by resource, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PassTime {
    /// Multiplying, widening and attention.
    pub compute_s: f64,
    /// Copies from the system's cache, and decoding of what is streamed; of a card, copies over the bus.
    pub copy_s: f64,
    /// Whether copies run beside computing, as a card's do.
    pub copies_overlap: bool,
    /// Reads past it.
    pub disk_s: f64,
    /// All that the thread does that reads what is streamed, and its pauses where it may only read so fast; no less than what
    /// runs beside computing.
    pub reader_s: f64,
    /// Reads of the first pass, when the system's cache has nothing of what later passes copy from it, as far as they take
    /// longer than those pauses; unknown where it has not been measured how long they take.
    pub cold_s: Option<f64>,
    /// How many times as long as the rates say it is, as passes have shown; 1 where none have.
    pub correction: f64,
    /// Share of the processors that other programs had while the rates were measured, from 0 to 1.
    pub others_share: f64,
}

impl PassTime {
    /// All in all, with what runs beside each other counted once.
    #[must_use]
    pub fn total_s(&self) -> f64 {
        self.busy_s().max(self.reader_s)
    }

    /// What the device that computes has to do.
    pub fn busy_s(&self) -> f64 {
        match self.copies_overlap {
            true => self.compute_s,
            false => self.compute_s + self.copy_s,
        }
    }

    /// Whether it waits for streamed weights longer than the cores have to do, so that more rows cost nothing.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.reader_s > self.busy_s()
    }

    /// The first pass, when the system's cache has nothing: reads run beside computing.
    #[must_use]
    pub fn first_s(&self) -> Option<f64> {
        Some(self.total_s().max(self.cold_s? + self.reader_s))
    }
}
