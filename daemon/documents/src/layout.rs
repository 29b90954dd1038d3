//! Glyphs with places to text: words, lines and paragraphs.
//!
//! Glyphs are taken in the order in which the page shows them. That is nearly always the order to read them in, in columns
//! as well, where places alone would tell less.

use hayro_font::kurbo::{Point, Vec2};

/// Where the gap between two glyphs is more than so much of an em, there is a space between them. Spaces that are squeezed to
/// fill a line have a fifth; kerning takes less than a tenth.
const SPACE_EMS: f64 = 0.15;
/// A line of so many letters may be spaced out: then gaps are between words that are larger than the usual one by this factor.
const SPACED_LETTERS_MIN: usize = 4;
const SPACED_GAPS: f64 = 1.5;
/// Glyphs whose baselines differ by less stand on the same line, as indices and powers do.
const BASELINE_EMS: f64 = 0.5;
/// A line may go back by so much, for kerning and accents.
const BACK_EMS: f64 = 0.5;
/// A step between lines that is larger than the page's usual one by this factor is between paragraphs.
const PARAGRAPH_STEPS: f64 = 1.25;
/// Steps of more ems than this are between parts of a page, and don't tell what is usual.
const STEP_EMS_MAX: f64 = 3.0;
/// A line that begins so much further in begins a paragraph.
const INDENT_EMS: f64 = 0.8;
/// Lines whose sizes differ by this factor are a heading and its text, or a text and its notes.
const SIZES: f64 = 1.15;

/// A glyph that is shown.
pub(crate) struct Glyph<'a> {
    /// What it stands for.
    pub(crate) text: &'a str,
    /// Its origin, on the page.
    pub(crate) start: Point,
    /// The next one's, unless that is placed elsewhere.
    pub(crate) end: Point,
    /// The direction in which text goes on. Not of a certain length.
    pub(crate) along: Vec2,
    /// Length of an em.
    pub(crate) size: f64,
}

/// The lines of a page.
#[derive(Default)]
pub(crate) struct Layout {
    lines: Vec<Line>,
}

/// Glyphs beside each other.
struct Line {
    text: String,
    /// Where in the text glyphs stand apart, and by how many ems.
    gaps: Vec<(usize, f64)>,
    /// Of length 1.
    along: Vec2,
    /// Places in this direction.
    start: f64,
    end: f64,
    /// How far down the baseline is, at a right angle to that.
    down: f64,
    size: f64,
}

impl Layout {
    pub(crate) fn push(&mut self, glyph: &Glyph<'_>) {
        let along = glyph.along.normalize();
        let down = Vec2::new(along.y, -along.x);
        let start = glyph.start.to_vec2().dot(along);
        let end = glyph.end.to_vec2().dot(along).max(start);
        let down = glyph.start.to_vec2().dot(down);
        if !(start.is_finite() && end.is_finite() && down.is_finite() && glyph.size > 0.0) {
            return;
        }
        let is_space = glyph.text.chars().all(char::is_whitespace);
        if let Some(line) = self.lines.last_mut()
            && line.along.dot(along) > 0.99
            && (line.down - down).abs() < BASELINE_EMS * line.size.max(glyph.size)
            && start > line.end - BACK_EMS * glyph.size.max(line.size)
        {
            let gap = (start - line.end) / glyph.size.min(line.size);
            if !is_space && gap > SPACE_EMS {
                line.gaps.push((line.text.len(), gap));
            }
            line.push(glyph.text);
            line.end = line.end.max(end);
            if glyph.size > line.size {
                (line.size, line.down) = (glyph.size, down);
            }
            return;
        }
        if !is_space {
            let mut line = Line {
                text: String::new(),
                gaps: Vec::new(),
                along,
                start,
                end,
                down,
                size: glyph.size,
            };
            line.push(glyph.text);
            self.lines.push(line);
        }
    }

    /// The page's text: lines, with empty ones between paragraphs.
    pub(crate) fn text(mut self) -> String {
        // Some programs make text bold by showing it twice.
        self.lines
            .dedup_by(|line, before| line.is_shadow_of(before));
        self.lines.retain_mut(|line| {
            line.put_spaces();
            !line.text.trim().is_empty()
        });
        let usual_step = self.usual_step();
        let mut text = String::new();
        // Of the paragraph: how many lines it has, and where the leftmost begins.
        let (mut count, mut left) = (0, f64::INFINITY);
        for (index, line) in self.lines.iter().enumerate() {
            let before = index.checked_sub(1).map(|before| &self.lines[before]);
            let goes_on = joins(&text, &line.text);
            let begins = before.is_none_or(|before| {
                let is_indented = count > 1
                    && before.start < left + INDENT_EMS * line.size
                    && line.start > before.start + INDENT_EMS * line.size;
                line.is_apart(before, usual_step) || is_indented
            });
            if goes_on && !before.is_some_and(|before| line.has_other_size(before)) {
                text.pop();
            } else if begins && before.is_some() {
                text.push_str("\n\n");
            } else if before.is_some() {
                text.push('\n');
            }
            (count, left) = match begins {
                true => (1, line.start),
                false => (count + 1, left.min(line.start)),
            };
            text.push_str(line.text.trim());
        }
        text
    }

    /// The step between lines that half of all lines don't exceed, in ems.
    fn usual_step(&self) -> f64 {
        let pairs = self.lines.windows(2);
        let mut steps: Vec<f64> = pairs
            .map(|pair| pair[1].step_from(&pair[0]))
            .filter(|step| (BASELINE_EMS..STEP_EMS_MAX).contains(step))
            .collect();
        steps.sort_by(f64::total_cmp);
        steps.get(steps.len() / 2).copied().unwrap_or(1.2)
    }
}

impl Line {
    /// Adds a glyph's text: letters for ligatures, and nothing for what is no text.
    fn push(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                '\u{FB00}' => self.text.push_str("ff"),
                '\u{FB01}' => self.text.push_str("fi"),
                '\u{FB02}' => self.text.push_str("fl"),
                '\u{FB03}' => self.text.push_str("ffi"),
                '\u{FB04}' => self.text.push_str("ffl"),
                '\u{FB05}' | '\u{FB06}' => self.text.push_str("st"),
                _ if character.is_whitespace() => self.push_space(),
                // Pictures in fonts' own places, and what shows nothing.
                '\u{E000}'..='\u{F8FF}' | '\u{FFF0}'..='\u{FFFF}' | '\u{FEFF}' => {}
                _ if character.is_control() => {}
                _ => self.text.push(character),
            }
        }
    }

    fn push_space(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with(' ') {
            self.text.push(' ');
        }
    }

    /// How far down this is from another, in ems of the larger one.
    fn step_from(&self, before: &Self) -> f64 {
        match self.along.dot(before.along) > 0.99 {
            true => (self.down - before.down) / self.size.max(before.size),
            false => f64::NEG_INFINITY,
        }
    }

    fn is_shadow_of(&self, before: &Self) -> bool {
        self.text == before.text
            && self.step_from(before).abs() < 0.2
            && (self.start - before.start).abs() < 0.3 * self.size
    }

    /// Whether this is too far from the line before it, or too different, to be of the same paragraph.
    fn is_apart(&self, before: &Self, usual_step: f64) -> bool {
        let step = self.step_from(before);
        let is_same_row = step.abs() < BASELINE_EMS;
        !is_same_row
            && (step < 0.0 || step > usual_step * PARAGRAPH_STEPS || self.has_other_size(before))
    }

    fn has_other_size(&self, before: &Self) -> bool {
        !(1.0 / SIZES..SIZES).contains(&(self.size / before.size))
    }

    /// Puts spaces where glyphs stand apart. Where most letters do, the line is spaced out, and only larger gaps are between
    /// words. Dots that lead to a page's number become three.
    fn put_spaces(&mut self) {
        let between_letters = |(place, gap): &(usize, f64)| {
            let (before, behind) = self.text.split_at(*place);
            let is_between =
                before.ends_with(char::is_alphabetic) && behind.starts_with(char::is_alphabetic);
            is_between.then_some(*gap)
        };
        let mut gaps: Vec<f64> = self.gaps.iter().filter_map(between_letters).collect();
        let letters = self
            .text
            .chars()
            .filter(|letter| letter.is_alphabetic())
            .count();
        let mut least = SPACE_EMS;
        if letters >= SPACED_LETTERS_MIN && gaps.len() > letters / 2 {
            gaps.sort_by(f64::total_cmp);
            least = SPACED_GAPS * gaps[gaps.len() / 2];
        }
        let mut text = String::with_capacity(self.text.len() + self.gaps.len());
        let mut from = 0;
        for (to, _) in self.gaps.iter().filter(|(_, gap)| *gap > least) {
            text.push_str(&self.text[from..*to]);
            if !text.ends_with(' ') {
                text.push(' ');
            }
            from = *to;
        }
        text.push_str(&self.text[from..]);
        self.text = with_short_leaders(&text);
    }
}

/// Writes three dots for more of them, as they lead from a heading to its page's number.
fn with_short_leaders(text: &str) -> String {
    let mut short = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dots) = rest.find('.') {
        let (before, from_dots) = rest.split_at(dots);
        let (run, behind) = match from_dots.find(|character| !matches!(character, '.' | ' ')) {
            Some(end) => from_dots.split_at(end),
            None => (from_dots, ""),
        };
        short.push_str(before);
        match run.bytes().filter(|byte| *byte == b'.').count() > 3 {
            true => short.push_str("... "),
            false => short.push_str(run),
        }
        rest = behind;
    }
    short.push_str(rest);
    short
}

/// Whether a word goes on in the next line, behind a hyphen that is there for the line's end alone.
fn joins(text: &str, next: &str) -> bool {
    let mut behind = text.chars().rev();
    match behind.next() {
        Some('\u{AD}') => true,
        Some('-' | '\u{2010}') => {
            behind.next().is_some_and(char::is_alphabetic)
                && next.trim_start().starts_with(char::is_lowercase)
        }
        _ => false,
    }
}
