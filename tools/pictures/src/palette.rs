//! The colours of a terminal.

use std::fmt;

use vt100::{Cell, Color};

/// A colour of the picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rgb(pub(crate) u8, pub(crate) u8, pub(crate) u8);

/// Style of a cell's letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ink {
    pub(crate) colour: Rgb,
    bold: bool,
    italic: bool,
    underlined: bool,
}

/// The colours of a terminal.
#[derive(Debug)]
pub(crate) struct Palette {
    pub(crate) ground: Rgb,
    pub(crate) ink: Rgb,
    /// The sixteen that programs name.
    named: [Rgb; 16],
}

/// GitHub's dark theme for code.
pub(crate) const DARK: Palette = Palette {
    ground: rgb(0x0d1117),
    ink: rgb(0xd7dee6),
    named: [
        rgb(0x484f58),
        rgb(0xff7b72),
        rgb(0x56d364),
        rgb(0xe3b341),
        rgb(0x79c0ff),
        rgb(0xd2a8ff),
        rgb(0x56d4dd),
        rgb(0xb1bac4),
        rgb(0x6e7681),
        rgb(0xffa198),
        rgb(0x7ee787),
        rgb(0xf2cc60),
        rgb(0xa5d6ff),
        rgb(0xe2c5ff),
        rgb(0x9fe8ee),
        rgb(0xffffff),
    ],
};

/// GitHub's light theme for code.
pub(crate) const LIGHT: Palette = Palette {
    ground: rgb(0xfbfcfd),
    ink: rgb(0x1f2328),
    named: [
        rgb(0x24292f),
        rgb(0xcf222e),
        rgb(0x116329),
        rgb(0x7d4e00),
        rgb(0x0969da),
        rgb(0x8250df),
        rgb(0x1b7c83),
        rgb(0x6e7781),
        rgb(0x57606a),
        rgb(0xa40e26),
        rgb(0x1a7f37),
        rgb(0x9a6700),
        rgb(0x218bff),
        rgb(0xa475f9),
        rgb(0x3192aa),
        rgb(0x8c959f),
    ],
};

impl Palette {
    /// Style of a cell's letters, and the colour behind them; `None` for the screen's own background.
    pub(crate) fn of(&self, cell: &Cell) -> (Ink, Option<Rgb>) {
        let mut colour = self.colour(cell.fgcolor()).unwrap_or(self.ink);
        let mut ground = self.colour(cell.bgcolor());
        if cell.inverse() {
            let front = ground.unwrap_or(self.ground);
            ground = Some(colour);
            colour = front;
        }
        if cell.dim() {
            colour = colour.towards(ground.unwrap_or(self.ground));
        }
        let ink = Ink {
            colour,
            bold: cell.bold(),
            italic: cell.italic(),
            underlined: cell.underline(),
        };
        (ink, ground)
    }

    fn colour(&self, colour: Color) -> Option<Rgb> {
        match colour {
            Color::Default => None,
            Color::Rgb(red, green, blue) => Some(Rgb(red, green, blue)),
            Color::Idx(index @ 0..16) => Some(self.named[usize::from(index)]),
            Color::Idx(index @ 16..232) => {
                let step = |digit: u8| if digit == 0 { 0 } else { 55 + 40 * digit };
                let index = index - 16;
                Some(Rgb(step(index / 36), step(index / 6 % 6), step(index % 6)))
            }
            Color::Idx(index) => {
                let grey = 8 + 10 * (index - 232);
                Some(Rgb(grey, grey, grey))
            }
        }
    }
}

impl Rgb {
    /// A colour on the way to another one, as terminals show dim text.
    fn towards(self, other: Self) -> Self {
        let mix = |a: u8, b: u8| {
            let mixed = (u16::from(a) * 60 + u16::from(b) * 40) / 100;
            u8::try_from(mixed).expect("between the two")
        };
        Self(
            mix(self.0, other.0),
            mix(self.1, other.1),
            mix(self.2, other.2),
        )
    }
}

impl fmt::Display for Rgb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }
}

impl Ink {
    /// All but the colour, as attributes of a group.
    pub(crate) fn attributes(&self) -> String {
        let mut all = String::new();
        if self.bold {
            all += " font-weight=\"700\"";
        }
        if self.italic {
            all += " font-style=\"italic\"";
        }
        if self.underlined {
            all += " text-decoration=\"underline\"";
        }
        all
    }
}

const fn rgb(number: u32) -> Rgb {
    let [_, red, green, blue] = number.to_be_bytes();
    Rgb(red, green, blue)
}
