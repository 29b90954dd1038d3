//! How fast the machine is: what a plan's times are made of.

use sluice_codec::Scheme;
use sluice_formats::Format;

/// How fast the machine is.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    /// Bytes a second from the page cache into the engine's memory, by one thread.
    pub copy_bytes_per_s: f64,
    /// Bytes a second from pinned memory to the card, where one computes.
    pub link_bytes_per_s: Option<f64>,
    /// The time of `Ops::linear`, by format.
    pub linear: Vec<LinearRate>,
    /// Seconds that one thread takes to decode a number, by how it is coded; of a card, all of it.
    pub decompress: Vec<(Scheme, f64)>,
    /// Share of the processors that other programs had meanwhile, from 0 to 1.
    pub others_share: f64,
    /// Seconds that one thread of the machine takes to convert a weight to a format that levels ask for.
    pub convert: Vec<(Format, f64)>,
    /// Seconds that one thread of the machine takes to code a weight of bf16 without loss.
    pub compress_s: f64,
}

/// From this share on, a machine is called busy.
pub const BUSY_SHARE: f64 = 0.15;

/// The time of `Ops::linear` in one format.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearRate {
    /// How the weights are stored.
    pub format: Format,
    /// Numbers of rows, rising, and the seconds that a weight costs with each of them,
    /// never falling. One line through all of them would be far off: single rows have a
    /// kernel of their own, which reading the weights bounds.
    pub points: [(usize, f64); POINTS],
}

/// Points of the line that [`LinearRate`] has.
pub const POINTS: usize = 3;

/// How fast a disk is, read by one thread.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DiskBandwidth {
    /// Bytes a second past the page cache.
    pub direct_bytes_per_s: Option<f64>,
    /// Bytes a second through the page cache, of what it doesn't have: making room in it costs, too.
    pub cold_bytes_per_s: Option<f64>,
}

impl LinearRate {
    /// Seconds that `weights` weights take with so many rows: on the line between the
    /// points beside, and on the last one's beyond them.
    #[must_use]
    pub fn seconds(&self, weights: u64, rows: usize) -> f64 {
        if rows == 0 {
            return 0.0;
        }
        let beside = |pair: &&[(usize, f64)]| rows <= pair[1].0;
        let mut pairs = self.points.windows(2);
        let pair = pairs.find(beside).unwrap_or(&self.points[POINTS - 2..]);
        let ((from, low), (to, high)) = (pair[0], pair[1]);
        let slope = (high - low) / (to - from) as f64;
        weights as f64 * (low + slope * (rows as f64 - from as f64))
    }

    /// Seconds that each further row costs a weight, once there are many.
    #[must_use]
    pub fn per_row_s(&self) -> f64 {
        let [.., (from, low), (to, high)] = self.points;
        (high - low) / (to - from) as f64
    }
}

impl Rates {
    /// The rate of a format.
    #[must_use]
    pub fn linear(&self, format: Format) -> Option<&LinearRate> {
        self.linear.iter().find(|rate| rate.format == format)
    }

    /// Seconds that one thread takes to decode a number, or all of a card.
    #[must_use]
    pub fn decompress_s(&self, scheme: Scheme) -> Option<f64> {
        let mut known = self.decompress.iter();
        known.find_map(|(known, seconds)| (*known == scheme).then_some(*seconds))
    }

    /// Seconds that one thread takes to convert a weight, where that was measured.
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
