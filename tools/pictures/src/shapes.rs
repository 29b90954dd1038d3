//! Frames, bars and graphs of a terminal as shapes.

use std::{collections::BTreeMap, fmt::Write};

use crate::palette::Rgb;

/// A cell in pixels. Odd, so that thin lines through its middle are sharp.
pub(crate) const CELL_WIDTH: u32 = 9;
pub(crate) const CELL_HEIGHT: u32 = 19;
/// Coordinates count in halves of a pixel.
const WIDTH: u32 = 2 * CELL_WIDTH;
const HEIGHT: u32 = 2 * CELL_HEIGHT;
/// Diameter of the dots of graphs, in pixels.
const DOT: &str = "2.6";

/// Shapes by kind and colour; those that touch are joined.
#[derive(Debug, Default)]
pub(crate) struct Shapes {
    grounds: BTreeMap<Rgb, Vec<Rect>>,
    bars: BTreeMap<(Rgb, Shade), Vec<Rect>>,
    lines: BTreeMap<(Rgb, Weight), Lines>,
    dots: BTreeMap<Rgb, Vec<(u32, u32)>>,
    marks: BTreeMap<Rgb, String>,
}

/// How much of a bar's colour is seen, in quarters.
type Shade = u8;
/// Width of a line in pixels.
type Weight = u8;

#[derive(Debug, Clone, Copy)]
struct Rect {
    x: u32,
    y: u32,
    width: u32,
    height: u32,
}

#[derive(Debug, Default)]
struct Lines {
    /// By y, then from and to x.
    across: BTreeMap<u32, Vec<(u32, u32)>>,
    /// By x, then from and to y.
    down: BTreeMap<u32, Vec<(u32, u32)>>,
    /// Rounded corners, as they are written.
    corners: String,
}

/// Draws a character, unless it is best left to a font.
pub(crate) fn draw(
    shapes: &mut Shapes,
    row: u16,
    column: u16,
    character: char,
    colour: Rgb,
) -> bool {
    let (x, y) = (u32::from(column) * WIDTH, u32::from(row) * HEIGHT);
    match character {
        '\u{2580}'..='\u{259f}' => shapes.block((x, y), character, colour),
        '\u{2800}'..='\u{28ff}' => shapes.braille((x, y), character, colour),
        '▸' | '▶' | '◂' | '◀' | '▴' | '▲' | '▾' | '▼' | '■' | '•' => {
            shapes.mark((x, y), character, colour);
        }
        _ => return shapes.frame((x, y), character, colour),
    }
    true
}

impl Shapes {
    /// What is behind letters.
    pub(crate) fn ground(&mut self, row: u16, column: u16, columns: u16, colour: Rgb) {
        let rect = Rect {
            x: u32::from(column) * WIDTH,
            y: u32::from(row) * HEIGHT,
            width: u32::from(columns) * WIDTH,
            height: HEIGHT,
        };
        push(self.grounds.entry(colour).or_default(), rect);
    }

    /// The cursor as a bar before a letter.
    pub(crate) fn cursor(&mut self, row: u16, column: u16, colour: Rgb) {
        let rect = Rect {
            x: u32::from(column) * WIDTH,
            y: u32::from(row) * HEIGHT + 2,
            width: 4,
            height: HEIGHT - 4,
        };
        push(self.bars.entry((colour, 4)).or_default(), rect);
    }

    fn block(&mut self, (x, y): (u32, u32), character: char, colour: Rgb) {
        let (left, middle) = (WIDTH / 2, HEIGHT / 2);
        let eighths = u32::from(character) - 0x2580;
        let mut bar = |shade: Shade, left: u32, top: u32, width: u32, height: u32| {
            let rect = Rect {
                x: x + left,
                y: y + top,
                width,
                height,
            };
            push(self.bars.entry((colour, shade)).or_default(), rect);
        };
        match character {
            '▀' => bar(4, 0, 0, WIDTH, middle),
            '▁'..='█' => {
                let height = HEIGHT * eighths / 8;
                bar(4, 0, HEIGHT - height, WIDTH, height);
            }
            '▉'..='▏' => bar(4, 0, 0, WIDTH * (16 - eighths) / 8, HEIGHT),
            '▐' => bar(4, left, 0, WIDTH - left, HEIGHT),
            '░' => bar(1, 0, 0, WIDTH, HEIGHT),
            '▒' => bar(2, 0, 0, WIDTH, HEIGHT),
            '▓' => bar(3, 0, 0, WIDTH, HEIGHT),
            '▔' => bar(4, 0, 0, WIDTH, HEIGHT / 8),
            '▕' => bar(4, WIDTH - WIDTH / 8, 0, WIDTH / 8, HEIGHT),
            _ => {
                // Quarters: above left, above right, below left, below right.
                let quarters: [u8; 4] = match character {
                    '▖' => [0, 0, 1, 0],
                    '▗' => [0, 0, 0, 1],
                    '▘' => [1, 0, 0, 0],
                    '▙' => [1, 0, 1, 1],
                    '▚' => [1, 0, 0, 1],
                    '▛' => [1, 1, 1, 0],
                    '▜' => [1, 1, 0, 1],
                    '▝' => [0, 1, 0, 0],
                    '▞' => [0, 1, 1, 0],
                    _ => [0, 1, 1, 1],
                };
                for (index, _) in quarters.iter().enumerate().filter(|(_, full)| **full == 1) {
                    let (right, below) = (index % 2 == 1, index > 1);
                    let (from, width) = if right {
                        (left, WIDTH - left)
                    } else {
                        (0, left)
                    };
                    bar(4, from, if below { middle } else { 0 }, width, middle);
                }
            }
        }
    }

    fn braille(&mut self, (x, y): (u32, u32), character: char, colour: Rgb) {
        // Bits count down the left column, then down the right one; the lowest row came later.
        const PLACES: [(u32, u32); 8] = [
            (0, 0),
            (0, 1),
            (0, 2),
            (1, 0),
            (1, 1),
            (1, 2),
            (0, 3),
            (1, 3),
        ];
        let bits = u32::from(character) - 0x2800;
        let places = PLACES.iter().enumerate();
        let set = places.filter(|(bit, _)| bits & (1 << bit) != 0);
        let dots = set.map(|(_, (right, down))| {
            let across = x + WIDTH / 4 + right * WIDTH / 2;
            (across, y + HEIGHT / 8 + down * HEIGHT / 4)
        });
        self.dots.entry(colour).or_default().extend(dots);
    }

    fn mark(&mut self, (x, y): (u32, u32), character: char, colour: Rgb) {
        let (x, y) = (x + WIDTH / 2, y + HEIGHT / 2);
        let path = self.marks.entry(colour).or_default();
        let _ = match character {
            '▸' | '▶' => write!(path, "M{} {}v10l7 -5z", Half(x - 6), Half(y - 10)),
            '◂' | '◀' => write!(path, "M{} {}v10l-7 -5z", Half(x + 6), Half(y - 10)),
            '▴' | '▲' => write!(path, "M{} {}h8l-4 -7z", Half(x - 8), Half(y + 7)),
            '▾' | '▼' => write!(path, "M{} {}h8l-4 7z", Half(x - 8), Half(y - 7)),
            '■' => write!(path, "M{} {}h7v7h-7z", Half(x - 7), Half(y - 7)),
            _ => write!(path, "M{} {}h4v4h-4z", Half(x - 4), Half(y - 4)),
        };
    }

    fn frame(&mut self, (x, y): (u32, u32), character: char, colour: Rgb) -> bool {
        // Where its arms lead: left, right, up, down.
        let (weight, arms): (Weight, [u8; 4]) = match character {
            '─' => (1, [1, 1, 0, 0]),
            '│' => (1, [0, 0, 1, 1]),
            '┌' => (1, [0, 1, 0, 1]),
            '┐' => (1, [1, 0, 0, 1]),
            '└' => (1, [0, 1, 1, 0]),
            '┘' => (1, [1, 0, 1, 0]),
            '├' => (1, [0, 1, 1, 1]),
            '┤' => (1, [1, 0, 1, 1]),
            '┬' => (1, [1, 1, 0, 1]),
            '┴' => (1, [1, 1, 1, 0]),
            '┼' => (1, [1, 1, 1, 1]),
            '━' => (3, [1, 1, 0, 0]),
            '┃' => (3, [0, 0, 1, 1]),
            '┏' => (3, [0, 1, 0, 1]),
            '┓' => (3, [1, 0, 0, 1]),
            '┗' => (3, [0, 1, 1, 0]),
            '┛' => (3, [1, 0, 1, 0]),
            '╭' | '╮' | '╰' | '╯' => {
                self.corner((x, y), character, colour);
                return true;
            }
            _ => return false,
        };
        let lines = self.lines.entry((colour, weight)).or_default();
        let (middle_x, middle_y) = (x + WIDTH / 2, y + HEIGHT / 2);
        // A corner is closed only where one line reaches into the other.
        let reach = u32::from(weight);
        let [left, right, up, down] = arms.map(|arm| arm == 1);
        if left || right {
            let from = if left { x } else { middle_x - reach };
            let to = if right { x + WIDTH } else { middle_x + reach };
            join(lines.across.entry(middle_y).or_default(), from, to);
        }
        if up || down {
            let from = if up { y } else { middle_y };
            let to = if down { y + HEIGHT } else { middle_y };
            join(lines.down.entry(middle_x).or_default(), from, to);
        }
        true
    }

    fn corner(&mut self, (x, y): (u32, u32), character: char, colour: Rgb) {
        let lines = self.lines.entry((colour, 1)).or_default();
        let (middle_x, middle_y) = (x + WIDTH / 2, y + HEIGHT / 2);
        let end_x = if matches!(character, '╭' | '╰') {
            x + WIDTH
        } else {
            x
        };
        let end_y = if matches!(character, '╭' | '╮') {
            y + HEIGHT
        } else {
            y
        };
        let _ = write!(
            lines.corners,
            "M{} {}Q{} {} {} {}",
            Half(middle_x),
            Half(end_y),
            Half(middle_x),
            Half(middle_y),
            Half(end_x),
            Half(middle_y)
        );
    }

    /// All as elements, what is behind first.
    pub(crate) fn finish(&self) -> String {
        let mut out = String::new();
        for (colour, rects) in &self.grounds {
            let _ = writeln!(out, "<path fill=\"{colour}\" d=\"{}\"/>", path(rects));
        }
        for ((colour, shade), rects) in &self.bars {
            let opacity = match shade {
                4 => "",
                3 => " fill-opacity=\".75\"",
                2 => " fill-opacity=\".5\"",
                _ => " fill-opacity=\".25\"",
            };
            let _ = writeln!(
                out,
                "<path fill=\"{colour}\"{opacity} d=\"{}\"/>",
                path(rects)
            );
        }
        for ((colour, weight), lines) in &self.lines {
            let _ = writeln!(
                out,
                "<path fill=\"none\" stroke=\"{colour}\" stroke-width=\"{weight}\" d=\"{}\"/>",
                lines.path()
            );
        }
        for (colour, dots) in &self.dots {
            // A line without length has round ends, which make a dot.
            let mut path = String::new();
            for (x, y) in dots {
                let _ = write!(path, "M{} {}h0", Half(*x), Half(*y));
            }
            let _ = writeln!(
                out,
                "<path fill=\"none\" stroke=\"{colour}\" stroke-width=\"{DOT}\" stroke-linecap=\"round\" d=\"{path}\"/>"
            );
        }
        for (colour, path) in &self.marks {
            let _ = writeln!(out, "<path fill=\"{colour}\" d=\"{path}\"/>");
        }
        out
    }
}

impl Lines {
    fn path(&self) -> String {
        let mut path = self.corners.clone();
        for (y, spans) in &self.across {
            for (from, to) in spans {
                let _ = write!(path, "M{} {}H{}", Half(*from), Half(*y), Half(*to));
            }
        }
        for (x, spans) in &self.down {
            for (from, to) in spans {
                let _ = write!(path, "M{} {}V{}", Half(*x), Half(*from), Half(*to));
            }
        }
        path
    }
}

/// Adds a rectangle, or widens the one that it touches.
fn push(rects: &mut Vec<Rect>, rect: Rect) {
    match rects.last_mut() {
        Some(last)
            if last.y == rect.y && last.height == rect.height && last.x + last.width == rect.x =>
        {
            last.width += rect.width;
        }
        _ => rects.push(rect),
    }
}

/// Adds a span, or lengthens the one that it touches.
fn join(spans: &mut Vec<(u32, u32)>, from: u32, to: u32) {
    match spans.last_mut() {
        Some((_, end)) if *end >= from => *end = to.max(*end),
        _ => spans.push((from, to)),
    }
}

fn path(rects: &[Rect]) -> String {
    let mut path = String::new();
    for rect in rects {
        let _ = write!(
            path,
            "M{} {}h{}v{}h-{}z",
            Half(rect.x),
            Half(rect.y),
            Half(rect.width),
            Half(rect.height),
            Half(rect.width)
        );
    }
    path
}

/// Halves of a pixel, written as pixels.
struct Half(u32);

impl std::fmt::Display for Half {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 % 2 {
            0 => write!(f, "{}", self.0 / 2),
            _ => write!(f, "{}.5", self.0 / 2),
        }
    }
}
