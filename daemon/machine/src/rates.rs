//! How fast the machine is: plans predict times from these rates.

use sluice_codec::Scheme;
use sluice_formats::Format;

/// The measured rates of a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    /// Bytes a second from the page cache into the engine's memory, by one thread.
    pub copy_bytes_per_s: f64,
    /// Bytes a second from pinned memory to the GPU; `None` on the CPU.
    pub link_bytes_per_s: Option<f64>,
    /// The time of `Ops::linear`, by format.
    pub linear: Vec<LinearRate>,
    /// The same of the CPU beside a GPU, with weights as files have them; empty where the CPU is the device.
    pub host_linear: Vec<LinearRate>,
    /// Seconds to decompress an element, by scheme: of one thread, or of a whole GPU.
    pub decompress: Vec<(Scheme, f64)>,
    /// Share of the processors that other programs had during the measurement, from 0 to 1.
    pub others_share: f64,
    /// Seconds that one thread of the machine takes to convert a weight to a format that levels ask for.
    pub convert: Vec<(Format, f64)>,
    /// Seconds that one thread of the machine takes to compress a bf16 weight losslessly.
    pub compress_s: f64,
}

/// From this share on, a machine counts as busy.
pub const BUSY_SHARE: f64 = 0.15;

/// The time of `Ops::linear` in one format.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearRate {
    /// The format of the weights.
    pub format: Format,
    /// Row counts, rising, and the seconds that a weight costs with each of them, never falling. One line through all
    /// of them would be far off: single rows have a kernel of their own, which is bound by reading the weights.
    pub points: [(usize, f64); POINTS],
}

/// Points of a [`LinearRate`].
pub const POINTS: usize = 3;

/// How fast one thread reads from a disk.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DiskBandwidth {
    /// Bytes a second past the page cache; `None` where it was not measured.
    pub direct_bytes_per_s: Option<f64>,
    /// Bytes a second through the page cache, of what it does not hold: making room in it costs, too. `None` where it
    /// was not measured.
    pub cold_bytes_per_s: Option<f64>,
}

impl LinearRate {
    /// Seconds that `weights` weights take with so many rows: interpolated between the two nearest points, and
    /// extrapolated from the last two beyond them.
    #[must_use]
    pub fn seconds(&self, weights: u64, rows: usize) -> f64 {
        if rows == 0 {
            return 0.0;
        }
        // The first pair whose end is not passed: it also extrapolates below the first point, which no row count
        // reaches.
        let beside = |pair: &&[(usize, f64)]| rows <= pair[1].0;
        let mut pairs = self.points.windows(2);
        let pair = pairs.find(beside).unwrap_or(&self.points[POINTS - 2..]);
        let ((from, low), (to, high)) = (pair[0], pair[1]);
        let slope = (high - low) / (to - from) as f64;
        weights as f64 * (low + slope * (rows as f64 - from as f64))
    }

    /// Seconds that each further row costs a weight, where there are many rows.
    #[must_use]
    pub fn per_row_s(&self) -> f64 {
        let [.., (from, low), (to, high)] = self.points;
        (high - low) / (to - from) as f64
    }
}

impl Rates {
    /// The rate of a format; `None` where it was not measured.
    #[must_use]
    pub fn linear(&self, format: Format) -> Option<&LinearRate> {
        self.linear.iter().find(|rate| rate.format == format)
    }

    /// The rate of a format on the CPU beside a GPU; `None` where it was not measured.
    #[must_use]
    pub fn host_linear(&self, format: Format) -> Option<&LinearRate> {
        self.host_linear.iter().find(|rate| rate.format == format)
    }

    /// Seconds to decompress an element, by one thread or a whole GPU; `None` where it was not measured.
    #[must_use]
    pub fn decompress_s(&self, scheme: Scheme) -> Option<f64> {
        let mut known = self.decompress.iter();
        known.find_map(|(known, seconds)| (*known == scheme).then_some(*seconds))
    }

    /// Seconds that one thread takes to convert a weight to a format; `None` where it was not measured.
    #[must_use]
    pub fn convert_s(&self, format: Format) -> Option<f64> {
        let mut known = self.convert.iter();
        known.find_map(|(known, seconds)| (*known == format).then_some(*seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_lie_on_the_lines_through_the_points() {
        let rate = LinearRate {
            format: Format::Bf16,
            points: [(1, 10.0), (8, 17.0), (64, 129.0)],
        };
        for (rows, expected) in [
            (0, 0.0),
            (1, 10.0),
            (4, 13.0),
            (8, 17.0),
            (36, 73.0),
            (64, 129.0),
            (256, 513.0),
        ] {
            assert_eq!(rate.seconds(3, rows), 3.0 * expected, "{rows} rows");
        }
    }
}
