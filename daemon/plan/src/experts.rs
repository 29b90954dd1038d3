//! How many of a mixture's experts a pass touches, and how many of these are not in a cache of so many slots.

use std::cmp::Reverse;

use sluice_weights::ExpertShape;

/// What passes over one model touch of its experts.
///
/// If each row chose at random, `n` rows would touch `1 - (1 - k/E)^n` of `E` experts. Rows of one text choose alike, as if there were
/// fewer: `n` to the power of `spread`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertProfile {
    /// The exponent, from 0 (all rows choose the same) to 1 (each at random).
    pub spread: f64,
    /// Share of the experts that a pass touches and the pass before did not, from 0 to 1.
    pub turnover: f64,
    /// Whether passes over the model itself have told; otherwise these are another model's figures.
    pub is_measured: bool,
}

impl ExpertProfile {
    /// LLaDA2.0-mini's. Of its 256 experts, with 8 a row, passes of 8, 16, 24 and 32 rows touch 31.8, 48.8, 60.6 and 69.5 (dMoE,
    /// arXiv 2605.30876, table 4), which the exponent gives within 4 %; counts of adjacent passes have a cosine of 0.985 (TIDE,
    /// arXiv 2605.20179), which leaves room for some such turnover.
    pub const PUBLISHED: Self = Self {
        spread: 0.67,
        turnover: 0.1,
        is_measured: false,
    };

    /// Experts of a layer that so many rows touch, on average.
    #[must_use]
    pub fn touched(&self, experts: &ExpertShape, rows: usize) -> f64 {
        let [count, per_token] = [experts.count, experts.per_token].map(|number| number as f64);
        let missed = (1.0 - per_token / count).powf((rows as f64).powf(self.spread));
        count * (1.0 - missed)
    }

    /// Takes in a pass: an eighth of what it tells, all of it the first time.
    pub(super) fn see(&mut self, experts: &ExpertShape, rows: usize, touched: f64, turnover: f64) {
        let weight = if self.is_measured { 0.125 } else { 1.0 };
        let [count, per_token] = [experts.count, experts.per_token].map(|number| number as f64);
        // The number of rows that would touch as many if each chose at random.
        let random = (1.0 - touched / count).ln() / (1.0 - per_token / count).ln();
        let spread = random.ln() / (rows as f64).ln();
        // One row tells nothing of the exponent, and rows that touch all experts nothing exact.
        if spread.is_finite() {
            self.spread += weight * (spread.clamp(0.0, 1.0) - self.spread);
            self.is_measured = true;
        }
        if turnover.is_finite() {
            self.turnover += weight * (turnover.clamp(0.0, 1.0) - self.turnover);
        }
    }

    /// Experts of a layer that a pass over so many rows has to read, if a cache keeps `slots` of the layer's.
    #[must_use]
    pub fn read(&self, experts: &ExpertShape, rows: usize, slots: f64) -> f64 {
        self.read_of(experts, self.touched(experts, rows), slots)
    }

    /// The same, if passes touch so many of a layer's experts.
    fn read_of(&self, experts: &ExpertShape, touched: f64, slots: f64) -> f64 {
        let most = experts.count as f64;
        if slots >= most {
            return 0.0;
        }
        let new = self.turnover * touched;
        // What the cache holds beyond a pass's experts was touched by others before, and may be touched again.
        let beyond = ((slots - touched) / (most - touched).max(1.0)).clamp(0.0, 1.0);
        (touched - slots).max(0.0).max(new * (1.0 - beyond))
    }
}

/// What passes have told of the experts of models of one shape, as it outlives the process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearnedExperts {
    /// A hash of the models' shape.
    pub shape: u64,
    /// [`ExpertProfile::spread`].
    pub spread: f64,
    /// [`ExpertProfile::turnover`].
    pub turnover: f64,
}

impl LearnedExperts {
    /// The profile; `None` where passes cannot have told such figures.
    pub(super) fn profile(&self) -> Option<ExpertProfile> {
        let are_shares = [self.spread, self.turnover].map(|figure| (0.0..=1.0).contains(&figure));
        (are_shares == [true; 2]).then_some(ExpertProfile {
            spread: self.spread,
            turnover: self.turnover,
            is_measured: true,
        })
    }
}

/// What a usual pass is expected to touch of each layer's experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertFigures {
    /// Experts of a layer.
    pub count: usize,
    /// Those that the pass's rows go through.
    pub touched: f64,
    /// Of these, the ones that the CPU computes beside a GPU.
    pub of_cpu: f64,
    /// Of the others, the ones that it has to read.
    pub read: f64,
    /// Whether passes over the model have told.
    pub is_measured: bool,
}

/// What a plan knows of its model's experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlannedExperts {
    /// Their sizes.
    pub shape: ExpertShape,
    /// What passes touch of them.
    pub profile: ExpertProfile,
    /// Rows of a usual pass.
    pub rows: usize,
}

impl PlannedExperts {
    /// The share of a layer's experts that a pass over so many rows touches.
    pub(super) fn touched_share(&self, rows: usize) -> f64 {
        self.profile.touched(&self.shape, rows) / self.shape.count as f64
    }

    /// How many of a layer's experts the CPU computes of those that a pass over so many rows touches.
    pub(super) fn of_cpu(&self, rows: usize, split: Option<ExpertSplit>) -> f64 {
        let touched = self.profile.touched(&self.shape, rows);
        let rows_each = (rows * self.shape.per_token) as f64 / touched;
        // As if all had as many rows: those that have fewest have less than that.
        let split = split.filter(|split| rows_each <= split.rows_max as f64);
        split.map_or(0.0, |split| (touched - split.on_gpu as f64).max(0.0))
    }

    /// The share of a layer's experts that a pass over so many rows reads, where this share of all experts has a slot.
    pub(super) fn read_share(&self, rows: usize, slots: f64, split: Option<ExpertSplit>) -> f64 {
        let count = self.shape.count as f64;
        let on_gpu = self.profile.touched(&self.shape, rows) - self.of_cpu(rows, split);
        (self.profile).read_of(&self.shape, on_gpu, slots * count) / count
    }
}

/// Which experts of a layer go to the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertSplit {
    /// So many of a layer's experts, those with most rows, go to the GPU.
    pub on_gpu: usize,
    /// And all that have more rows than this, for which the CPU would take longer than the bus.
    pub rows_max: usize,
}

impl ExpertSplit {
    /// Which experts the CPU computes, if a layer's have so many rows. Of experts with as many rows the first go to the GPU.
    pub fn of_cpu(&self, rows: &[usize]) -> Vec<bool> {
        let mut touched: Vec<usize> = (0..rows.len()).filter(|&expert| rows[expert] > 0).collect();
        touched.sort_by_key(|&expert| Reverse(rows[expert]));
        let mut of_cpu = vec![false; rows.len()];
        for &expert in touched.iter().skip(self.on_gpu) {
            of_cpu[expert] = rows[expert] <= self.rows_max;
        }
        of_cpu
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLADA2_MINI: ExpertShape = ExpertShape {
        count: 256,
        per_token: 8,
        intermediate_size: 512,
        shared_intermediate_size: 512,
        has_choice_bias: true,
        dense_layers: 1,
        layer_step: 1,
    };

    #[test]
    fn the_published_profile_gives_the_published_figures() {
        let profile = ExpertProfile::PUBLISHED;
        for (rows, measured) in [(1, 8.0), (8, 31.8), (16, 48.8), (24, 60.6), (32, 69.5)] {
            let touched = profile.touched(&LLADA2_MINI, rows);
            assert!((touched / measured - 1.0).abs() < 0.04, "{rows}: {touched}");
        }
    }

    #[test]
    fn passes_tell_what_they_touch() {
        let mut profile = ExpertProfile::PUBLISHED;
        let other = ExpertProfile {
            spread: 0.4,
            turnover: 0.3,
            is_measured: true,
        };
        for rows in [32, 1, 16, 32] {
            let touched = other.touched(&LLADA2_MINI, rows);
            profile.see(&LLADA2_MINI, rows, touched, 0.3);
        }
        assert!((profile.spread - 0.4).abs() < 1e-9 && profile.is_measured);
        assert!((profile.turnover - 0.3).abs() < 1e-9);
    }

    #[test]
    fn a_larger_cache_reads_less_and_one_of_all_experts_nothing() {
        let profile = ExpertProfile::PUBLISHED;
        for rows in [1, 8, 32, 512] {
            let read = |slots| profile.read(&LLADA2_MINI, rows, f64::from(slots));
            let all: Vec<f64> = (0..=256).map(read).collect();
            assert!((all[0] - profile.touched(&LLADA2_MINI, rows)).abs() < 1e-9);
            assert!(
                all.is_sorted_by(|one, other| one >= other),
                "{rows}: {all:?}"
            );
            assert!(all[256] == 0.0);
        }
    }

    #[test]
    fn the_gpu_gets_those_with_most_rows_and_all_with_many() {
        let split = |on_gpu, rows_max, rows: &[usize]| {
            let of_cpu = ExpertSplit { on_gpu, rows_max }.of_cpu(rows);
            (0..rows.len())
                .filter(|&expert| of_cpu[expert])
                .collect::<Vec<_>>()
        };
        let rows = [3, 0, 1, 3, 9, 1, 3];
        assert_eq!(split(2, 4, &rows), [2, 3, 5, 6]);
        assert_eq!(split(1, 2, &rows), [2, 5]);
        assert_eq!(split(0, 9, &rows), [0, 2, 3, 4, 5, 6]);
        assert_eq!(split(6, 9, &rows), [0; 0]);
        assert_eq!(split(0, 0, &rows), [0; 0]);
    }
}
