//! The looks of a token's states, the same in commands and dashboard.

use ratatui::style::{Color, Modifier, Style};
use sluice_proto::v1::{CanvasToken, TokenState};

/// The look of a piece of the canvas. Marks and attributes tell looks apart; colour only supports that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Committed before the last pass.
    Committed,
    /// Committed by the last pass.
    Fresh(Confidence),
    /// Committed by the last pass in the place of another token.
    Edited,
    /// Predicted, but not committed.
    Provisional,
    /// Masked, without a prediction.
    Masked,
    /// Pinned by the user from the start.
    Pinned,
}

/// Class of the model's confidence, with the thresholds of the LLaDA authors' demonstration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confidence {
    /// A probability below 0.3.
    Low,
    /// A probability from 0.3 to 0.7.
    Medium,
    /// A probability from 0.7 on, or one that is not known.
    High,
}

impl Confidence {
    /// The class of a probability; an unknown one counts as sure.
    #[must_use]
    pub fn of(probability: Option<f32>) -> Self {
        match probability {
            Some(p) if p < 0.3 => Self::Low,
            Some(p) if p < 0.7 => Self::Medium,
            _ => Self::High,
        }
    }
}

impl Look {
    /// The look of a token.
    #[must_use]
    pub fn of(token: &CanvasToken) -> Self {
        match token.state() {
            TokenState::Committed if token.is_edited => Self::Edited,
            TokenState::Committed if token.is_fresh => {
                Self::Fresh(Confidence::of(token.confidence))
            }
            TokenState::Committed => Self::Committed,
            TokenState::Provisional if token.id.is_some() => Self::Provisional,
            TokenState::Pinned => Self::Pinned,
            TokenState::Provisional | TokenState::Masked | TokenState::Unspecified => Self::Masked,
        }
    }

    /// The look as a style, with named colours only, and without colour where `colour` is false.
    #[must_use]
    pub fn style(self, colour: bool) -> Style {
        let (foreground, modifier) = match self {
            Self::Committed => (None, Modifier::empty()),
            Self::Fresh(Confidence::Low) => (Some(Color::Red), Modifier::BOLD),
            Self::Fresh(Confidence::Medium) => (Some(Color::Yellow), Modifier::BOLD),
            Self::Fresh(Confidence::High) => (Some(Color::Green), Modifier::BOLD),
            Self::Edited => (Some(Color::Magenta), Modifier::REVERSED),
            Self::Provisional => (None, Modifier::DIM.union(Modifier::ITALIC)),
            Self::Masked => (None, Modifier::DIM),
            Self::Pinned => (Some(Color::Cyan), Modifier::UNDERLINED),
        };
        let style = Style::new().add_modifier(modifier);
        match foreground {
            Some(foreground) if colour => style.fg(foreground),
            _ => style,
        }
    }

    /// The look as a control sequence, to be written after a reset.
    #[must_use]
    pub fn sequence(self, colour: bool) -> &'static str {
        match (self, colour) {
            (Self::Committed, _) => "",
            (Self::Fresh(Confidence::Low), true) => "\x1b[1;31m",
            (Self::Fresh(Confidence::Medium), true) => "\x1b[1;33m",
            (Self::Fresh(Confidence::High), true) => "\x1b[1;32m",
            (Self::Fresh(_), false) => "\x1b[1m",
            (Self::Edited, true) => "\x1b[7;35m",
            (Self::Edited, false) => "\x1b[7m",
            (Self::Provisional, _) => "\x1b[2;3m",
            (Self::Masked, _) => "\x1b[2m",
            (Self::Pinned, true) => "\x1b[4;36m",
            (Self::Pinned, false) => "\x1b[4m",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confidence_has_the_thresholds_of_the_demonstration() {
        assert_eq!(Confidence::of(Some(0.29)), Confidence::Low);
        assert_eq!(Confidence::of(Some(0.3)), Confidence::Medium);
        assert_eq!(Confidence::of(Some(0.7)), Confidence::High);
        assert_eq!(Confidence::of(None), Confidence::High);
    }

    #[test]
    fn without_colour_states_still_differ() {
        let looks = [
            Look::Committed,
            Look::Fresh(Confidence::Low),
            Look::Edited,
            Look::Provisional,
            Look::Masked,
            Look::Pinned,
        ];
        for (index, a) in looks.iter().enumerate() {
            assert_eq!(a.style(false).fg, None);
            for b in &looks[index + 1..] {
                assert_ne!(a.style(false), b.style(false));
                assert_ne!(a.sequence(false), b.sequence(false));
            }
        }
    }
}
