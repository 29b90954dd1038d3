//! Figures of a row of `sluice bench`, from the answers that it measured.

use std::time::Duration;

use sluice_proto::v1::{GenerationPass, GenerationStarted, Tier};
use sluice_shared::{preset::Preset, units};

use crate::phases::{Bottleneck, PassTime};

/// An answer and its measurements.
#[derive(Debug, Clone)]
pub(super) struct BenchAnswer {
    pub(super) started: GenerationStarted,
    pub(super) exact: bool,
    /// Token ids of the text.
    pub(super) tokens: Vec<u32>,
    pub(super) passes: u32,
    /// The time of all passes.
    pub(super) time: PassTime,
    /// The passes that were seen: the daemon skips pictures for slow readers.
    pub(super) seen: Vec<PassFigures>,
    /// Time from the call until the first position was committed, in milliseconds.
    pub(super) first_ms: f64,
    pub(super) peak_device_bytes: u64,
}

/// Measurements of a pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct PassFigures {
    ms: f64,
    rows: u32,
    lm_head_rows: u32,
}

impl PassFigures {
    pub(super) fn of(pass: &GenerationPass) -> Self {
        Self {
            ms: pass.pass_ms,
            rows: pass.rows,
            lm_head_rows: pass.lm_head_rows,
        }
    }
}

/// A row. Figures that need a pass or a token are `None` without any.
#[derive(Debug, Clone, Default)]
pub struct BenchFigures {
    /// The resolved settings of the first request; all requests have the same options.
    pub started: GenerationStarted,
    /// Whether all answers have the tokens of the reference sampler.
    pub exact: bool,
    /// Number of answers.
    pub requests: usize,
    /// Number of tokens of all texts.
    pub tokens: u64,
    /// Time from the first call to the last answer.
    pub wall_ms: f64,
    /// Number of passes of all requests; a pass that several requests shared counts for each.
    pub passes: u64,
    /// Median time of a pass, in milliseconds.
    pub pass_ms_median: Option<f64>,
    /// Shortest time of a pass, in milliseconds.
    pub pass_ms_min: Option<f64>,
    /// Time of all passes; a pass that several requests shared counts for each.
    pub time: PassTime,
    /// The tier that weights are streamed from; `None` if nothing is streamed or it is not known.
    pub streamed_from: Option<Tier>,
    /// Mean number of rows that the layers computed for a request in a pass.
    pub rows: Option<f64>,
    /// Mean number of rows that the LM head computed for a request in a pass.
    pub lm_head_rows: Option<f64>,
    /// Peak of the device memory held, in bytes.
    pub peak_device_bytes: u64,
    /// Median time from the call until the first token of the text was committed, in milliseconds.
    pub first_ms: Option<f64>,
    /// Share of the tokens that equal the first row's, from 0 to 1; `None` in the first row.
    pub same_tokens: Option<f64>,
}

impl BenchFigures {
    /// The figures of these answers, compared with those of the first row.
    pub(super) fn of(
        answers: &[BenchAnswer],
        wall: Duration,
        first: Option<&[BenchAnswer]>,
    ) -> Self {
        let seen = || answers.iter().flat_map(|answer| &answer.seen);
        let count = seen().count() as f64;
        let mean = |figure: fn(&PassFigures) -> f64| {
            (count > 0.0).then(|| seen().map(figure).sum::<f64>() / count)
        };
        // An answer without passes must not make the phases of the other answers unknown.
        let times = answers.iter().map(|answer| answer.time);
        let times = times.filter(|time| time.ms > 0.0);
        Self {
            started: (answers.first())
                .map_or_else(GenerationStarted::default, |answer| answer.started.clone()),
            exact: answers.iter().all(|answer| answer.exact),
            requests: answers.len(),
            tokens: (answers.iter())
                .map(|answer| answer.tokens.len() as u64)
                .sum(),
            wall_ms: wall.as_secs_f64() * 1000.0,
            passes: answers.iter().map(|answer| u64::from(answer.passes)).sum(),
            pass_ms_median: median(seen().map(|pass| pass.ms)),
            pass_ms_min: seen().map(|pass| pass.ms).reduce(f64::min),
            time: times.reduce(PassTime::with).unwrap_or_default(),
            streamed_from: None,
            rows: mean(|pass| f64::from(pass.rows)),
            lm_head_rows: mean(|pass| f64::from(pass.lm_head_rows)),
            peak_device_bytes: (answers.iter())
                .map(|answer| answer.peak_device_bytes)
                .max()
                .unwrap_or(0),
            first_ms: median(answers.iter().map(|answer| answer.first_ms)),
            same_tokens: first.and_then(|first| agreement(first, answers)),
        }
    }

    /// Tokens per second of wall-clock time.
    #[must_use]
    pub fn tokens_per_second(&self) -> Option<f64> {
        (self.wall_ms > 0.0).then(|| self.tokens as f64 / self.wall_ms * 1000.0)
    }

    /// Mean tokens per pass.
    #[must_use]
    pub fn tokens_per_pass(&self) -> Option<f64> {
        (self.passes > 0).then(|| self.tokens as f64 / self.passes as f64)
    }

    /// Share of the passes' time spent waiting for streamed weights, from 0 to 1.
    #[must_use]
    pub fn waited_share(&self) -> Option<f64> {
        self.time.share(self.time.waited_ms)
    }

    /// The phase that takes the most time of a pass.
    #[must_use]
    pub fn bottleneck(&self) -> Option<Bottleneck> {
        self.time.bottleneck(self.streamed_from)
    }

    /// The lines to print: the row, the phases of its passes, and the bottleneck as a sentence.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        let sentence = self.bottleneck().map(|bottleneck| bottleneck.to_string());
        let below = [self.time.shares()].into_iter().chain(sentence);
        let below = below.map(|words| format!("{:9}{words}", ""));
        [self.row()].into_iter().chain(below)
    }

    fn row(&self) -> String {
        let preset = self.started.decoding().preset.map_or("none", Preset::name);
        let number = |value: Option<f64>, digits: usize| {
            value.map_or_else(unknown, |value| format!("{value:.digits$}"))
        };
        let share = |value: Option<f64>, digits: usize| {
            value.map_or_else(unknown, |value| format!("{:.digits$} %", value * 100.0))
        };
        line([
            preset,
            &number(self.tokens_per_second(), 1),
            &units::count(self.passes),
            &number(self.tokens_per_pass(), 2),
            &number(self.pass_ms_median, 1),
            &number(self.pass_ms_min, 1),
            &share(self.waited_share(), 0),
            &number(self.rows, 0),
            &number(self.lm_head_rows, 0),
            &units::bytes(self.peak_device_bytes),
            &self.first_ms.map_or_else(unknown, units::duration_ms),
            &share(self.same_tokens, 1),
        ])
    }
}

/// The heading of the table.
pub(super) fn header() -> String {
    line([
        "preset", "tokens/s", "passes", "a pass", "ms", "least", "waited", "rows", "lm head",
        "peak", "first", "same",
    ])
}

fn line(cells: [&str; 12]) -> String {
    let [
        preset,
        rate,
        passes,
        each,
        ms,
        least,
        waited,
        rows,
        head,
        peak,
        first,
        same,
    ] = cells;
    format!(
        "{preset:<8} {rate:>8} {passes:>7} {each:>6} {ms:>8} {least:>8} {waited:>6} {rows:>5} {head:>7} {peak:>9} \
         {first:>7} {same:>7}"
    )
}

fn unknown() -> String {
    "-".to_owned()
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// Share of the places at which two rows' texts have the same token. Where one text has ended and the other has not, they
/// differ.
fn agreement(first: &[BenchAnswer], others: &[BenchAnswer]) -> Option<f64> {
    let (mut same, mut all) = (0, 0);
    for (first, other) in first.iter().zip(others) {
        let pairs = first.tokens.iter().zip(&other.tokens);
        same += pairs.filter(|(first, other)| first == other).count();
        all += first.tokens.len().max(other.tokens.len());
    }
    (all > 0).then(|| same as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::{DecodingPreset, DiffusionOptions, PassPhases};

    use super::*;

    fn answer(tokens: &[u32], passes: &[f64]) -> BenchAnswer {
        let all = passes.iter().sum::<f64>();
        let seen = passes.iter().map(|ms| PassFigures {
            ms: *ms,
            rows: 64,
            lm_head_rows: 16,
        });
        BenchAnswer {
            started: GenerationStarted {
                diffusion: Some(DiffusionOptions {
                    preset: DecodingPreset::Balanced.into(),
                    ..Default::default()
                }),
                ..Default::default()
            },
            exact: true,
            tokens: tokens.to_vec(),
            passes: passes.len() as u32,
            time: PassTime {
                ms: all,
                waited_ms: all / 4.0,
                phases: Some(PassPhases {
                    matmul_ms: all / 2.0,
                    attention_ms: all / 8.0,
                    other_ms: all / 8.0,
                    copy_ms: all,
                    ..Default::default()
                }),
            },
            seen: seen.collect(),
            first_ms: passes.first().copied().unwrap_or_default(),
            peak_device_bytes: 640 << 20,
        }
    }

    #[test]
    fn a_row_has_figures_that_fit() {
        let first = [answer(&[1, 2, 3, 4], &[10.0; 4]), answer(&[5, 6], &[10.0])];
        let answers = [
            answer(&[1, 9, 3], &[10.0, 30.0]),
            answer(&[5, 6], &[20.0, 20.0]),
        ];
        let figures = BenchFigures::of(&answers, Duration::from_millis(100), Some(&first));
        assert_eq!(
            figures.row(),
            "balanced     50.0       4   1.25     20.0     10.0   25 %    64      16   640 MiB   15 ms  66.7 %"
        );
        assert_eq!(header().len(), figures.row().len());
        let lines: Vec<String> = figures.lines().collect();
        assert_eq!(
            lines[1..],
            [
                "         wait 25 %, decompress 0 %, matmul 50 %, attention 12 %, lm_head 0 %, other 12 %",
                "         compute-bound: 62 % of a pass is matmul and attention",
            ]
        );
        assert!(lines.iter().all(|line| line.len() <= 120));
    }

    #[test]
    fn what_is_not_known_is_not_zero() {
        let figures = BenchFigures::of(&[answer(&[], &[])], Duration::ZERO, Some(&[]));
        assert_eq!(figures.tokens_per_second(), None);
        assert_eq!(figures.tokens_per_pass(), None);
        assert_eq!(
            (figures.pass_ms_median, figures.waited_share()),
            (None, None)
        );
        assert_eq!(figures.lines().count(), 2, "nothing is said to hold it up");
        assert_eq!(figures.same_tokens, None);
        let alone = BenchFigures::of(&[answer(&[1], &[1.0])], Duration::ZERO, None);
        assert_eq!(alone.same_tokens, None, "there is nothing to compare with");
    }
}
