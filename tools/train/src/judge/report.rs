//! Judgements as tables, for a terminal or a model card.

use super::{GapScores, Judgement, Scores, curve::Curve, ways::Ways};

/// Rows of cells under a heading. The first column holds names, the others numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table of this heading.
    #[must_use]
    pub fn new(heading: &[&str]) -> Self {
        Self {
            rows: vec![heading.iter().map(|cell| (*cell).to_owned()).collect()],
        }
    }

    /// Adds a row.
    pub fn add(&mut self, name: &str, cells: impl IntoIterator<Item = String>) {
        self.rows
            .push([name.to_owned()].into_iter().chain(cells).collect());
    }

    /// Aligned with spaces.
    #[must_use]
    pub fn plain(&self) -> String {
        self.lines(|row| row.join("  ").trim_end().to_owned())
    }

    /// The table in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut lines: Vec<String> = self
            .lines(|row| format!("| {} |", row.join(" | ")))
            .lines()
            .map(str::to_owned)
            .collect();
        let rule = self
            .widths()
            .into_iter()
            .enumerate()
            .map(|(column, width)| {
                let dashes = "-".repeat(width + 1);
                if column == 0 {
                    format!("{dashes}-")
                } else {
                    format!("{dashes}:")
                }
            });
        lines.insert(1, format!("|{}|", rule.collect::<Vec<_>>().join("|")));
        lines.join("\n") + "\n"
    }

    fn lines(&self, line: impl Fn(&[String]) -> String) -> String {
        let widths = self.widths();
        let aligned = |row: &Vec<String>| -> Vec<String> {
            let cells = row.iter().zip(&widths).enumerate();
            cells
                .map(|(column, (cell, &width))| {
                    if column == 0 {
                        format!("{cell:width$}")
                    } else {
                        format!("{cell:>width$}")
                    }
                })
                .collect()
        };
        self.rows
            .iter()
            .map(|row| line(&aligned(row)) + "\n")
            .collect()
    }

    fn widths(&self) -> Vec<usize> {
        (0..self.rows[0].len())
            .map(|column| {
                let cells = self.rows.iter().map(|row| row[column].chars().count());
                cells.max().unwrap_or(0)
            })
            .collect()
    }
}

/// The answers of a judgement: all of them, each task, and the right answers.
#[must_use]
pub fn answers(judgement: &Judgement) -> Table {
    let mut table = Table::new(&[
        "",
        "answers",
        "names kept",
        "words kept",
        "no stranger",
        "sentences whole",
        "all whole",
        "flawless",
        "stops",
        "right",
    ]);
    let quality = |scores: &Scores| {
        let rates = [
            scores.names_kept,
            scores.words_kept,
            scores.no_stranger,
            scores.sentences_whole,
            scores.answers_whole,
            scores.flawless,
            scores.stops,
            scores.right,
        ];
        [scores.answers.to_string()]
            .into_iter()
            .chain(rates.map(|rate| rate.to_string()))
            .collect::<Vec<_>>()
    };
    table.add("overall", quality(&judgement.overall));
    for task in &judgement.tasks {
        table.add(&task.task, quality(&task.scores));
    }
    table.add("(the right answers)", quality(&judgement.right_answers));
    table
}

/// The gaps of a judgement.
#[must_use]
pub fn gaps(judgement: &Judgement) -> Table {
    let mut table = Table::new(&["", "gaps", "text whole", "consistent", "the very words"]);
    let cells = |scores: &GapScores| {
        let rates = [scores.whole, scores.consistent, scores.right];
        [scores.effort.texts.to_string()]
            .into_iter()
            .chain(rates.map(|rate| rate.to_string()))
            .collect::<Vec<_>>()
    };
    table.add("one word", cells(&judgement.word_gaps));
    table.add("one sentence", cells(&judgement.sentence_gaps));
    table
}

/// The rows of a curve.
#[must_use]
pub fn curve(curve: &Curve) -> Table {
    let mut table = Table::new(&[
        "",
        "tokens a pass",
        "names kept",
        "no stranger",
        "sentences whole",
        "questions right",
        "passes",
        "seconds",
    ]);
    for row in &curve.rows {
        let effort = &row.scores.effort;
        table.add(
            &row.setting,
            [
                format!("{:.2}", effort.tokens_per_pass()),
                row.scores.names_kept.to_string(),
                row.scores.no_stranger.to_string(),
                row.scores.sentences_whole.to_string(),
                row.questions.right.to_string(),
                format!("{:.1}", effort.passes_per_text()),
                format!("{:.2}", effort.seconds_per_text()),
            ],
        );
    }
    table
}

/// The rows of other ways, and the right answers.
#[must_use]
pub fn ways(ways: &Ways) -> Table {
    let mut table = Table::new(&[
        "",
        "repeats in 100 tokens",
        "sentences whole",
        "all whole",
        "names kept",
        "no stranger",
        "flawless",
        "tokens a pass",
        "tokens/s",
    ]);
    let quality = |scores: &Scores| {
        [
            format!("{:.2}", scores.repeats_per_hundred()),
            scores.sentences_whole.to_string(),
            scores.answers_whole.to_string(),
            scores.names_kept.to_string(),
            scores.no_stranger.to_string(),
            scores.flawless.to_string(),
        ]
    };
    for row in &ways.rows {
        let effort = &row.scores.effort;
        let speed = [
            format!("{:.2}", effort.tokens_per_pass()),
            format!("{:.0}", effort.tokens as f64 / effort.seconds),
        ];
        table.add(&row.way, quality(&row.scores).into_iter().chain(speed));
    }
    let none = ["", ""].map(str::to_owned);
    let right = quality(&ways.right_answers);
    table.add("(the right answers)", right.into_iter().chain(none));
    table
}

/// What an answer takes.
#[must_use]
pub fn effort(judgement: &Judgement) -> String {
    let effort = &judgement.overall.effort;
    let words = judgement.settings.schedule_in_words();
    format!(
        "{words}: {:.2} tokens of text a pass, {:.1} passes and {:.2} s an answer on {} threads",
        effort.tokens_per_pass(),
        effort.passes_per_text(),
        effort.seconds_per_text(),
        judgement.threads,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["", "names", "–"]);
        table.add("question", ["1.0 %".to_owned(), "7".to_owned()]);
        assert_eq!(table.plain(), "          names  –\nquestion  1.0 %  7\n");
        assert_eq!(
            table.markdown(),
            "|          | names | – |\n|----------|------:|--:|\n| question | 1.0 % | 7 |\n"
        );
    }
}
