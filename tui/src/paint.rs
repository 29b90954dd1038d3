//! Themes: roles of what is drawn, and the style of each role.
//!
//! Everything that is drawn names a [`Role`]; a theme gives each role a style. Colour supports and attributes decide: without
//! colour the same roles keep their bold, dim, italic, underlined and reversed. Likewise for shapes: everything is drawn with
//! Unicode, and [`Glyphs::translate`] turns a finished screen into what a plainer terminal can show.

use std::{fmt, str::FromStr};

use ratatui::{
    buffer::Buffer,
    style::{Color, Modifier, Style},
    symbols::Marker,
};

use crate::canvas::{Confidence, Look};

/// The meaning of a piece of the screen, which decides its style.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Titles of panes, and names of keys.
    Title,
    /// The title of the pane that has the keyboard.
    Focus,
    /// The selected one of several.
    Selected,
    /// Unimportant words, and frames.
    Dim,
    /// A state as it should be.
    Good,
    /// A state that the user should look at.
    Warning,
    /// An error.
    Bad,
    /// A token that was committed before the last pass.
    Committed,
    /// A token that the last pass committed with high confidence.
    Sure,
    /// A token that the last pass committed with medium confidence.
    Likely,
    /// A token that the last pass committed with low confidence.
    Unsure,
    /// A token that the last pass committed in the place of another one.
    Edited,
    /// A predicted token that is not committed.
    Provisional,
    /// A masked position without a prediction.
    Masked,
    /// A token that the user pinned.
    Pinned,
    /// Weights that stay on the device.
    Device,
    /// Weights in the host's memory.
    Host,
    /// Weights on disk.
    Disk,
    /// Weights that are being streamed.
    InFlight,
    /// The KV cache.
    KvCache,
    /// Activations and other buffers of a pass.
    Scratch,
    /// Buffers of the LM head.
    Logits,
    /// Memory that the GPU's driver takes.
    Context,
    /// Memory of other programs.
    Others,
}

/// All roles by the names that settings use, with the default theme's style.
const ROLES: [(Role, &str, Option<Color>, Modifier); 24] = {
    use Color::{Blue, Cyan, Green, Magenta, Red, Yellow};
    const NONE: Modifier = Modifier::empty();
    const BOLD: Modifier = Modifier::BOLD;
    [
        (Role::Title, "title", None, BOLD),
        (Role::Focus, "focus", None, BOLD.union(Modifier::REVERSED)),
        (
            Role::Selected,
            "selected",
            None,
            BOLD.union(Modifier::REVERSED),
        ),
        (Role::Dim, "dim", None, Modifier::DIM),
        (Role::Good, "good", Some(Green), NONE),
        (Role::Warning, "warning", Some(Yellow), BOLD),
        (Role::Bad, "bad", Some(Red), BOLD),
        (Role::Committed, "committed", None, NONE),
        (Role::Sure, "sure", Some(Green), BOLD),
        (
            Role::Likely,
            "likely",
            Some(Yellow),
            BOLD.union(Modifier::ITALIC),
        ),
        (
            Role::Unsure,
            "unsure",
            Some(Red),
            BOLD.union(Modifier::UNDERLINED),
        ),
        (Role::Edited, "edited", Some(Magenta), Modifier::REVERSED),
        (
            Role::Provisional,
            "provisional",
            None,
            Modifier::DIM.union(Modifier::ITALIC),
        ),
        (Role::Masked, "masked", None, Modifier::DIM),
        (Role::Pinned, "pinned", Some(Cyan), Modifier::UNDERLINED),
        (Role::Device, "device", Some(Green), NONE),
        (Role::Host, "host", Some(Blue), NONE),
        (Role::Disk, "disk", Some(Magenta), NONE),
        (Role::InFlight, "flight", Some(Yellow), BOLD),
        (Role::KvCache, "cache", Some(Cyan), NONE),
        (Role::Scratch, "scratch", Some(Magenta), NONE),
        (Role::Logits, "head", Some(Blue), NONE),
        (Role::Context, "context", Some(Yellow), NONE),
        (Role::Others, "others", None, Modifier::DIM),
    ]
};

/// A named set of colours. Roles that a theme does not name look as in [`Theme::Terminal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Theme {
    /// The terminal's own colours.
    #[default]
    Terminal,
    /// Colours for dark backgrounds.
    Dark,
    /// Colours for light backgrounds.
    Light,
    /// Blue and orange, which most people with colour blindness can tell apart.
    Safe,
}

impl Theme {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Terminal, Self::Dark, Self::Light, Self::Safe];

    /// The name that people type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Terminal => "terminal",
            Self::Dark => "dark",
            Self::Light => "light",
            Self::Safe => "safe",
        }
    }

    /// The theme after this one.
    #[must_use]
    pub fn next(self) -> Self {
        let at = Self::ALL.iter().position(|theme| *theme == self);
        Self::ALL[(at.unwrap_or(0) + 1) % Self::ALL.len()]
    }

    /// The theme's own colour of a role; `None` leaves the default theme's.
    fn colour(self, role: Role) -> Option<Color> {
        let rgb = |value: u32| Some(Color::from_u32(value));
        let row: [u32; 6] = match self {
            Self::Terminal => return None,
            // Colours for good, middling and bad, and three that tell kinds apart.
            Self::Dark => [
                0x7f_d9_62, 0xff_c8_57, 0xff_6b_6b, 0x6c_b6_ff, 0xd2_a8_ff, 0x56_d4_dd,
            ],
            Self::Light => [
                0x1a_7f_37, 0x9a_67_00, 0xcf_22_2e, 0x09_69_da, 0x82_50_df, 0x0f_76_6e,
            ],
            Self::Safe => [
                0x00_72_b2, 0xe6_9f_00, 0xd5_5e_00, 0x56_b4_e9, 0xcc_79_a7, 0x00_9e_73,
            ],
        };
        let [good, middling, bad, blue, violet, cyan] = row;
        match role {
            Role::Good | Role::Sure | Role::Device => rgb(good),
            Role::Warning | Role::Likely | Role::InFlight | Role::Context => rgb(middling),
            Role::Bad | Role::Unsure => rgb(bad),
            Role::Host | Role::Logits => rgb(blue),
            Role::Disk | Role::Scratch | Role::Edited => rgb(violet),
            Role::Pinned | Role::KvCache => rgb(cyan),
            _ => None,
        }
    }
}

impl fmt::Display for Theme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Theme {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        by_name(&Self::ALL.map(|theme| (theme, theme.name())), "theme", text)
    }
}

/// A set of shapes that a terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Glyphs {
    /// Graphs of braille dots, eight a cell.
    #[default]
    Braille,
    /// Graphs of half blocks, for fonts without braille, such as the Linux console's.
    Blocks,
    /// Nothing but ASCII.
    Ascii,
}

impl Glyphs {
    /// All sets, the finest first.
    pub const ALL: [Self; 3] = [Self::Braille, Self::Blocks, Self::Ascii];

    /// The name that people type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Braille => "braille",
            Self::Blocks => "blocks",
            Self::Ascii => "ascii",
        }
    }

    /// The finest set that the terminal can show, by the locale (`$LC_ALL`, `$LC_CTYPE` or `$LANG`, the first that is set) and
    /// `$TERM`.
    #[must_use]
    pub fn of_terminal(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &&str| variable(name).is_some_and(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find(|name| set(name));
        let locale = locale.and_then(|name| variable(name)).unwrap_or_default();
        let is_unicode = locale.to_lowercase().replace('-', "").contains("utf8");
        // Without a locale nothing is known; most terminals of today show Unicode.
        if !locale.is_empty() && !is_unicode {
            return Self::Ascii;
        }
        match variable("TERM").as_deref() {
            Some("linux") => Self::Blocks,
            Some("dumb" | "vt100" | "vt220") => Self::Ascii,
            _ => Self::Braille,
        }
    }

    /// The marker that graphs are drawn with.
    #[must_use]
    pub fn marker(self) -> Marker {
        match self {
            Self::Braille => Marker::Braille,
            Self::Blocks => Marker::HalfBlock,
            Self::Ascii => Marker::Custom('#'),
        }
    }

    /// Translates a finished screen to characters that the terminal can show. Those without a likeness become `?`.
    pub fn translate(self, screen: &mut Buffer) {
        for cell in &mut screen.content {
            if self == Self::Braille {
                return;
            }
            if self == Self::Blocks {
                let character = cell.symbol().chars().next();
                if let Some(plainer) = character.and_then(block) {
                    cell.set_char(plainer);
                }
                continue;
            }
            let mut characters = cell.symbol().chars();
            match characters.next() {
                Some(character) if !character.is_ascii() => {
                    cell.set_char(ascii(character));
                }
                // A letter with combining marks: the letter stays.
                Some(character) if characters.next().is_some() => {
                    cell.set_char(character);
                }
                _ => {}
            }
        }
    }
}

/// The nearest character that consoles' fonts have; `None` if they have the character itself.
fn block(character: char) -> Option<char> {
    Some(match character {
        '▁' | '▂' => '░',
        '▃' | '▅' => '▒',
        '▆' | '▇' => '▓',
        '●' => '@',
        '◐' => 'O',
        '○' => 'o',
        '◆' => 'E',
        '▸' => '>',
        '▾' => 'v',
        '▕' | '▏' => '|',
        '…' => '~',
        _ => return None,
    })
}

/// The nearest ASCII character. Marks that are told apart by shape stay different.
fn ascii(character: char) -> char {
    match character {
        '─' | '–' | '—' | '−' => '-',
        '━' => '=',
        '═' => 'P',
        '│' | '┃' | '▕' | '▏' => '|',
        '●' => '@',
        '◐' => 'O',
        '○' => 'o',
        '◆' => 'E',
        '┌' | '┐' | '└' | '┘' | '├' | '┤' | '┬' | '┴' | '┼' => '+',
        '▸' | '»' | '→' | '▶' => '>',
        '◂' | '«' | '←' => '<',
        '▴' | '↑' => '^',
        '▾' | '↓' => 'v',
        '…' => '~',
        '·' | '•' | '⋯' => '-',
        '░' => '.',
        '▒' => '=',
        '▓' => '+',
        '▄' => 'o',
        '▀' => '"',
        '■' => '@',
        '█' => '#',
        '°' => ' ',
        '▁' => '_',
        '▂' => '.',
        '▃' => ':',
        '▅' => '+',
        '▆' => '*',
        '▇' => '%',
        '×' => 'x',
        '±' => '~',
        '≥' => '>',
        '≤' => '<',
        '✓' => 'y',
        '✗' => 'n',
        '“' | '”' => '"',
        '‘' | '’' => '\'',
        '\u{a0}' => ' ',
        _ => '?',
    }
}

impl fmt::Display for Glyphs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Glyphs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        by_name(
            &Self::ALL.map(|glyphs| (glyphs, glyphs.name())),
            "shapes",
            text,
        )
    }
}

fn by_name<T: Copy>(all: &[(T, &str)], what: &str, text: &str) -> Result<T, String> {
    let known = all.iter().find(|(_, name)| *name == text);
    known.map(|(value, _)| *value).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|(_, name)| *name).collect();
        format!("unknown {what} '{text}'; known are {}", names.join(", "))
    })
}

/// Styles and shapes to draw with: a theme, glyphs, and the user's own styles.
#[derive(Debug, Clone, PartialEq)]
pub struct Paint {
    /// The theme in use.
    pub theme: Theme,
    /// The glyphs in use.
    pub glyphs: Glyphs,
    colour: bool,
    /// Styles of roles that the user's settings replace.
    own: Vec<(Role, Style)>,
}

impl Paint {
    /// A theme with `colour`, or with attributes such as bold alone.
    #[must_use]
    pub fn new(theme: Theme, glyphs: Glyphs, colour: bool) -> Self {
        Self {
            theme,
            glyphs,
            colour,
            own: Vec::new(),
        }
    }

    /// Replaces the style of a role, such as by `yellow bold` or `#ff8800`.
    ///
    /// # Errors
    /// When there is no such role, colour or attribute.
    pub fn restyle(&mut self, role: &str, style: &str) -> Result<(), String> {
        let known = ROLES.iter().find(|(_, name, ..)| *name == role);
        let Some((role, ..)) = known else {
            let names: Vec<_> = ROLES.iter().map(|(_, name, ..)| *name).collect();
            return Err(format!(
                "unknown role '{role}'; known are {}",
                names.join(", ")
            ));
        };
        self.own.push((*role, parse_style(style)?));
        Ok(())
    }

    /// The style of a role.
    #[must_use]
    pub fn style(&self, role: Role) -> Style {
        let own = self.own.iter().rev().find(|(its, _)| *its == role);
        let style = match own {
            Some((_, style)) => *style,
            None => {
                let (_, _, named, modifier) = ROLES[role as usize];
                let colour = self.theme.colour(role).or(named);
                let style = Style::new().add_modifier(modifier);
                colour.map_or(style, |colour| style.fg(colour))
            }
        };
        match self.colour {
            true => style,
            false => Style {
                fg: None,
                bg: None,
                underline_color: None,
                ..style
            },
        }
    }

    /// The style of a token's look.
    #[must_use]
    pub fn look(&self, look: Look) -> Style {
        self.style(match look {
            Look::Committed => Role::Committed,
            Look::Fresh(confidence) => Role::from(confidence),
            Look::Edited => Role::Edited,
            Look::Provisional => Role::Provisional,
            Look::Masked => Role::Masked,
            Look::Pinned => Role::Pinned,
        })
    }
}

impl From<Confidence> for Role {
    fn from(confidence: Confidence) -> Self {
        match confidence {
            Confidence::Low => Self::Unsure,
            Confidence::Medium => Self::Likely,
            Confidence::High => Self::Sure,
        }
    }
}

/// Parses a style such as `yellow bold`, `#ff8800` or `none`.
fn parse_style(text: &str) -> Result<Style, String> {
    let mut style = Style::new();
    for word in text.split_whitespace() {
        style = match word {
            "none" => style,
            "bold" => style.add_modifier(Modifier::BOLD),
            "dim" => style.add_modifier(Modifier::DIM),
            "italic" => style.add_modifier(Modifier::ITALIC),
            "underlined" => style.add_modifier(Modifier::UNDERLINED),
            "reversed" => style.add_modifier(Modifier::REVERSED),
            colour => style.fg(colour.parse().map_err(|_| {
                format!(
                    "'{colour}' is neither a colour (red, lightblue, #rrggbb …) nor one of bold, dim, italic, underlined, \
                     reversed, none"
                )
            })?),
        };
    }
    Ok(style)
}

#[cfg(test)]
mod tests {
    use ratatui::layout::Rect;

    use super::*;

    #[test]
    fn every_role_has_its_row() {
        for (index, (role, ..)) in ROLES.iter().enumerate() {
            assert_eq!(*role as usize, index);
        }
    }

    #[test]
    fn without_colour_attributes_are_left() {
        for theme in Theme::ALL {
            let paint = Paint::new(theme, Glyphs::Braille, false);
            for (role, _, _, modifier) in ROLES {
                let style = paint.style(role);
                assert_eq!((style.fg, style.bg), (None, None));
                assert_eq!(style.add_modifier, modifier);
            }
        }
    }

    #[test]
    fn looks_of_tokens_differ_without_colour() {
        let paint = Paint::new(Theme::Terminal, Glyphs::Braille, false);
        let looks = [
            Look::Committed,
            Look::Fresh(Confidence::Low),
            Look::Edited,
            Look::Provisional,
            Look::Masked,
            Look::Pinned,
        ];
        for (index, a) in looks.iter().enumerate() {
            for b in &looks[index + 1..] {
                assert_ne!(paint.look(*a), paint.look(*b));
            }
        }
    }

    #[test]
    fn a_role_takes_the_users_own_style() {
        let mut paint = Paint::new(Theme::Dark, Glyphs::Braille, true);
        paint.restyle("warning", "#ff8800 underlined").unwrap();
        let style = paint.style(Role::Warning);
        assert_eq!(style.fg, Some(Color::Rgb(0xff, 0x88, 0)));
        assert_eq!(style.add_modifier, Modifier::UNDERLINED);
        assert!(
            paint
                .restyle("sky", "blue")
                .unwrap_err()
                .contains("known are title")
        );
        assert!(
            paint
                .restyle("dim", "blueish")
                .unwrap_err()
                .contains("neither a colour")
        );
    }

    #[test]
    fn the_locale_and_the_terminal_decide_on_shapes() {
        let of = |pairs: &[(&str, &str)]| {
            Glyphs::of_terminal(|name| {
                let found = pairs.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(of(&[]), Glyphs::Braille);
        assert_eq!(
            of(&[("LANG", "de_DE.UTF-8"), ("TERM", "xterm")]),
            Glyphs::Braille
        );
        assert_eq!(of(&[("LANG", "C.utf8"), ("TERM", "linux")]), Glyphs::Blocks);
        assert_eq!(of(&[("LC_ALL", "C"), ("LANG", "C.UTF-8")]), Glyphs::Ascii);
        assert_eq!(of(&[("LC_ALL", ""), ("LANG", "C.UTF-8")]), Glyphs::Braille);
        assert_eq!(of(&[("TERM", "vt100")]), Glyphs::Ascii);
    }

    #[test]
    fn a_translated_screen_is_ascii_alone() {
        let mut screen = Buffer::empty(Rect::new(0, 0, 12, 1));
        screen.set_string(0, 0, "┌─▸░…█日e\u{301}", Style::new());
        Glyphs::Blocks.translate(&mut screen);
        assert_eq!(screen[(0, 0)].symbol(), "┌");
        Glyphs::Ascii.translate(&mut screen);
        let words: String = screen.content.iter().map(|cell| cell.symbol()).collect();
        assert!(words.is_ascii(), "{words}");
        assert!(words.starts_with("+->.~#?"), "{words}");
    }

    #[test]
    fn marks_of_different_things_stay_different_in_ascii() {
        let kinds = "█▓▒░▄▀■";
        let phases = "░▓█▒▄·";
        let places = "█▒░»?";
        let passes = "●◐○◆─═";
        for marks in [kinds, phases, places, passes] {
            let mut plain: Vec<char> = marks.chars().map(ascii).collect();
            plain.sort_unstable();
            plain.dedup();
            assert_eq!(plain.len(), marks.chars().count(), "{marks} as {plain:?}");
        }
    }
}
