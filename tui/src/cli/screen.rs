//! Arguments of the dashboard itself.

use clap::{Args, ValueEnum};

use crate::paint::{Glyphs, Theme};

/// How the dashboard looks, and whether it remembers anything.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Dashboard")]
pub struct Screen {
    /// Colours: terminal, dark, light or safe [default: as set or last chosen, else terminal]
    #[arg(long, value_name = "NAME")]
    pub theme: Option<Theme>,
    /// Shapes: braille, blocks or ascii [default: as set or last chosen, else what the terminal can show]
    #[arg(long, value_name = "NAME")]
    pub glyphs: Option<Glyphs>,
    /// Leave the mouse to the terminal
    #[arg(long)]
    pub no_mouse: bool,
    /// Don't load or save state between runs: conversations, prompts, commands, options
    #[arg(long)]
    pub private: bool,
}

impl Screen {
    /// These choices, completed by those of `other`.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self {
            theme: self.theme.or(other.theme),
            glyphs: self.glyphs.or(other.glyphs),
            no_mouse: self.no_mouse || other.no_mouse,
            private: self.private || other.private,
        }
    }
}

/// When to use colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Colour {
    /// Unless NO_COLOR is set and not empty
    #[default]
    Auto,
    /// In any case
    Always,
    /// Not at all
    Never,
}

impl Colour {
    /// Whether to use colour; `auto` follows `$NO_COLOR`.
    #[must_use]
    pub fn is_allowed(self, variable: impl Fn(&str) -> Option<String>) -> bool {
        match self {
            Self::Auto => variable("NO_COLOR").is_none_or(|value| value.is_empty()),
            Self::Always => true,
            Self::Never => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn what_looks_are_not_said_after_a_command_may_be_said_before_it() {
        let parse = |line: &str| {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            let Some(Command::Replay(replay)) = cli.command else {
                panic!("a replay");
            };
            let screen = replay.screen.or(&cli.screen);
            (screen.theme, screen.glyphs, screen.private)
        };
        let after = parse("sluice --theme dark --private replay --theme light run --glyphs ascii");
        let (light, ascii) = (Some(Theme::Light), Some(Glyphs::Ascii));
        assert_eq!(after, (light, ascii, true));
        let before = parse("sluice --theme light replay run");
        assert_eq!(before, (light, None, false));
    }

    #[test]
    fn a_flag_has_the_last_word_on_colour() {
        let set = |value: &'static str| move |_: &str| Some(value.to_owned());
        assert!(!Colour::Auto.is_allowed(set("1")));
        assert!(Colour::Auto.is_allowed(set("")) && Colour::Auto.is_allowed(|_| None));
        assert!(Colour::Always.is_allowed(set("1")));
        assert!(!Colour::Never.is_allowed(|_| None));
    }
}
