//! A terminal's screen as an SVG that every browser shows alike.
//!
//! Words are text with its length given, so that columns align whatever the font. Frames, bars and graphs are drawn as
//! shapes, since fonts rarely make them meet.

use std::{collections::BTreeMap, fmt::Write};

use vt100::{Cell, Screen};

use crate::{
    palette::{Ink, Palette},
    shapes::{self, CELL_HEIGHT, CELL_WIDTH, Shapes},
};

/// Margin around the screen, in pixels.
const PADDING: u32 = 16;
/// How far below the top of a cell its letters stand.
const BASELINE: u32 = 14;
const FONT_SIZE: u32 = 15;

/// Draws the screen. `words` describe it for those who cannot see it.
pub(crate) fn svg(screen: &Screen, palette: &Palette, words: &str) -> String {
    let mut drawing = Drawing::default();
    let (rows, columns) = screen.size();
    for row in 0..rows {
        let cells = (0..columns).filter_map(|column| Some((column, screen.cell(row, column)?)));
        for (column, cell) in cells.filter(|(_, cell)| !cell.is_wide_continuation()) {
            drawing.cell((row, column), cell, palette);
        }
    }
    if !screen.hide_cursor() {
        drawing.cursor(screen.cursor_position(), palette);
    }
    drawing.finish((rows, columns), palette, words)
}

/// What is drawn, by how it looks.
#[derive(Default)]
struct Drawing {
    shapes: Shapes,
    texts: BTreeMap<Ink, Vec<Text>>,
}

/// Letters that stand side by side.
struct Text {
    row: u16,
    column: u16,
    columns: u16,
    letters: String,
}

impl Drawing {
    fn cell(&mut self, (row, column): (u16, u16), cell: &Cell, palette: &Palette) {
        let (ink, ground) = palette.of(cell);
        let columns = if cell.is_wide() { 2 } else { 1 };
        if let Some(ground) = ground {
            self.shapes.ground(row, column, columns, ground);
        }
        let letters = cell.contents();
        if letters.is_empty() {
            return;
        }
        let mut characters = letters.chars();
        if let (Some(character), None) = (characters.next(), characters.next())
            && shapes::draw(&mut self.shapes, row, column, character, ink.colour)
        {
            return;
        }
        let texts = self.texts.entry(ink).or_default();
        match texts.last_mut() {
            Some(last)
                if last.goes_on(row, column) && is_common(letters) && !last.stands_alone() =>
            {
                last.letters += letters;
                last.columns += columns;
            }
            _ if letters == " " => {}
            _ => texts.push(Text {
                row,
                column,
                columns,
                letters: letters.to_owned(),
            }),
        }
    }

    fn cursor(&mut self, (row, column): (u16, u16), palette: &Palette) {
        self.shapes.cursor(row, column, palette.ink);
    }

    fn finish(self, (rows, columns): (u16, u16), palette: &Palette, words: &str) -> String {
        let width = u32::from(columns) * CELL_WIDTH + 2 * PADDING;
        let height = u32::from(rows) * CELL_HEIGHT + 2 * PADDING;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\">\n\
             <title>{}</title>\n\
             <rect width=\"{width}\" height=\"{height}\" rx=\"10\" fill=\"{}\"/>\n\
             <g transform=\"translate({PADDING} {PADDING})\" font-family=\"ui-monospace,'SFMono-Regular','DejaVu Sans \
             Mono',Menlo,Consolas,'Liberation Mono',monospace\" font-size=\"{FONT_SIZE}\" xml:space=\"preserve\">\n",
            escaped(words),
            palette.ground
        );
        out += &self.shapes.finish();
        for (ink, texts) in &self.texts {
            let _ = writeln!(out, "<g fill=\"{}\"{}>", ink.colour, ink.attributes());
            for text in texts {
                text.write(&mut out);
            }
            out += "</g>\n";
        }
        out + "</g>\n</svg>\n"
    }
}

impl Text {
    fn goes_on(&self, row: u16, column: u16) -> bool {
        self.row == row && self.column + self.columns == column
    }

    /// Whether a font may give it another width than it gives letters.
    fn stands_alone(&self) -> bool {
        !is_common(&self.letters)
    }

    fn write(&self, out: &mut String) {
        let letters = self.letters.trim_end();
        let spaces = self.letters.len() - letters.len();
        let columns = u32::from(self.columns) - u32::try_from(spaces).unwrap_or(0);
        let y = u32::from(self.row) * CELL_HEIGHT + BASELINE;
        let x = u32::from(self.column) * CELL_WIDTH;
        let letters = escaped(letters);
        let _ = match columns {
            1 => writeln!(out, "<text x=\"{x}\" y=\"{y}\">{letters}</text>"),
            _ => writeln!(
                out,
                "<text x=\"{x}\" y=\"{y}\" textLength=\"{}\">{letters}</text>",
                columns * CELL_WIDTH
            ),
        };
    }
}

/// Whether every font for terminals has it.
fn is_common(letters: &str) -> bool {
    letters
        .chars()
        .all(|letter| matches!(letter, ' '..='\u{17f}' | '–' | '—' | '…' | '‘'..='”'))
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;");
    text.replace('<', "&lt;").replace('>', "&gt;")
}
