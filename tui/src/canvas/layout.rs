//! Tokens as styled text, and styled text wrapped into lines.

use sluice_proto::v1::CanvasToken;

use super::look::Look;
use crate::text::{char_width, safe_char, sanitise};

/// Shown for a masked position.
pub const MASK_MARK: &str = "░";
/// Shown for a token without text, such as the end of sequence.
pub const SPECIAL_MARK: &str = "·";
/// Tabs are shown as this many columns.
const TAB_COLUMNS: usize = 4;

/// A run of characters with the same look, safe to show on a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextRun {
    /// The characters; without newlines once it is wrapped.
    pub text: String,
    /// The look of all of them.
    pub look: Look,
}

/// Tokens as runs of text. Pieces may hold part of a character, so bytes are joined before
/// they are decoded; a character has the look of the token in which it begins. `ids` shows
/// token ids, for models without a tokenizer.
#[must_use]
pub fn runs<'a>(tokens: impl IntoIterator<Item = &'a CanvasToken>, ids: bool) -> Vec<TextRun> {
    let mut bytes = Vec::new();
    let mut looks = Vec::new();
    for token in tokens {
        let look = Look::of(token);
        let shown = match (look, token.id) {
            (Look::Masked, _) | (_, None) => MASK_MARK.as_bytes(),
            (_, Some(id)) if ids => {
                let number = format!("{id} ");
                bytes.extend_from_slice(number.as_bytes());
                looks.resize(bytes.len(), look);
                continue;
            }
            _ if token.piece.is_empty() => SPECIAL_MARK.as_bytes(),
            _ => &token.piece,
        };
        bytes.extend_from_slice(shown);
        looks.resize(bytes.len(), look);
    }

    let mut runs: Vec<TextRun> = Vec::new();
    let mut at = 0;
    for chunk in bytes.utf8_chunks() {
        for (offset, character) in chunk.valid().char_indices() {
            // A CR before LF is part of the line break; a CR alone could overwrite the line.
            let before_newline = bytes.get(at + offset + 1) == Some(&b'\n');
            if character != '\r' || !before_newline {
                push(&mut runs, safe_char(character), looks[at + offset]);
            }
        }
        at += chunk.valid().len();
        if !chunk.invalid().is_empty() {
            push(&mut runs, char::REPLACEMENT_CHARACTER, looks[at]);
        }
        at += chunk.invalid().len();
    }
    runs
}

/// Untrusted text, made safe to show and wrapped to `columns`.
#[must_use]
pub fn wrap_text(text: &str, columns: usize) -> Vec<String> {
    let run = TextRun {
        text: sanitise(text),
        look: Look::Committed,
    };
    let lines = wrap(&[run], columns).into_iter();
    lines
        .map(|line| line.into_iter().map(|run| run.text).collect())
        .collect()
}

/// Wraps runs into lines of at most `columns`: at newlines, else at the last space that fits,
/// else between any two characters.
#[must_use]
pub fn wrap(runs: &[TextRun], columns: usize) -> Vec<Vec<TextRun>> {
    wrap_marked(runs, columns, 0).0
}

/// The same, and the number of lines that the first `mark` characters take.
#[must_use]
pub fn wrap_marked(runs: &[TextRun], columns: usize, mark: usize) -> (Vec<Vec<TextRun>>, usize) {
    let columns = columns.max(1);
    let mut marked = 1;
    let mut lines: Vec<Vec<(char, Look)>> = vec![Vec::new()];
    let mut used = 0;
    // A space fell off the end of the line, so the next word starts another.
    let mut is_full = false;
    let characters = runs
        .iter()
        .flat_map(|run| run.text.chars().map(|character| (character, run.look)));
    for (at, (character, look)) in characters.enumerate() {
        if at == mark {
            marked = lines.len();
        }
        let (character, repeat) = match character {
            '\n' => {
                lines.push(Vec::new());
                used = 0;
                is_full = false;
                continue;
            }
            '\t' => (' ', TAB_COLUMNS),
            other => (other, 1),
        };
        for _ in 0..repeat {
            let wide = char_width(character);
            if is_full && character != ' ' {
                lines.push(Vec::new());
                used = 0;
                is_full = false;
            }
            if used + wide > columns {
                let line = lines.last_mut().expect("there is always a line");
                // A space at the edge stays behind, where it does not show.
                if character == ' ' {
                    is_full = true;
                    continue;
                }
                let word = line
                    .iter()
                    .rposition(|(c, _)| *c == ' ')
                    .map_or(0, |i| i + 1);
                let carried = if word == 0 {
                    Vec::new()
                } else {
                    line.split_off(word)
                };
                used = carried.iter().map(|(c, _)| char_width(*c)).sum();
                lines.push(carried);
            }
            used += wide;
            let line = lines.last_mut().expect("there is always a line");
            line.push((character, look));
        }
    }
    let length: usize = runs.iter().map(|run| run.text.chars().count()).sum();
    if mark >= length {
        marked = lines.len();
    }
    (lines.into_iter().map(join).collect(), marked)
}

fn join(line: Vec<(char, Look)>) -> Vec<TextRun> {
    let mut runs = Vec::new();
    for (character, look) in line {
        push(&mut runs, character, look);
    }
    runs
}

/// Adds a character to the last run if it looks the same, else as a new run.
fn push(runs: &mut Vec<TextRun>, character: char, look: Look) {
    match runs.last_mut() {
        Some(run) if run.look == look => run.text.push(character),
        _ => runs.push(TextRun {
            text: character.into(),
            look,
        }),
    }
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::TokenState;

    use super::*;

    fn token(state: TokenState, piece: &[u8]) -> CanvasToken {
        CanvasToken {
            id: Some(7),
            piece: piece.to_vec(),
            state: state.into(),
            ..Default::default()
        }
    }

    fn plain(text: &str) -> Vec<TextRun> {
        vec![TextRun {
            text: text.into(),
            look: Look::Committed,
        }]
    }

    fn wrapped(text: &str, columns: usize) -> Vec<String> {
        let line = |runs: Vec<TextRun>| runs.into_iter().map(|run| run.text).collect();
        wrap(&plain(text), columns).into_iter().map(line).collect()
    }

    #[test]
    fn a_character_spread_over_tokens_is_one_character() {
        let tokens = [
            token(TokenState::Committed, b"caf\xc3"),
            token(TokenState::Provisional, b"\xa9!"),
        ];
        let runs = runs(&tokens, false);
        assert_eq!(runs[0].text, "café");
        assert_eq!(runs[0].look, Look::Committed);
        assert_eq!(
            (runs[1].text.as_str(), runs[1].look),
            ("!", Look::Provisional)
        );
    }

    #[test]
    fn half_a_character_before_a_mask_is_shown_as_unknown() {
        let masked = CanvasToken {
            state: TokenState::Masked.into(),
            ..Default::default()
        };
        let runs = runs(&[token(TokenState::Committed, b"a\xc3"), masked], false);
        assert_eq!(runs[0].text, "a\u{fffd}");
        assert_eq!(
            (runs[1].text.as_str(), runs[1].look),
            (MASK_MARK, Look::Masked)
        );
    }

    #[test]
    fn hostile_pieces_are_made_harmless_even_when_split() {
        let tokens = [
            token(TokenState::Committed, b"\x1b"),
            token(TokenState::Committed, b"[2J\xc2"),
            token(TokenState::Committed, b"\x9bx\r\ny\rz"),
        ];
        let runs = runs(&tokens, false);
        assert_eq!(runs[0].text, "\u{fffd}[2J\u{fffd}x\ny\u{fffd}z");
    }

    #[test]
    fn tokens_without_text_show_a_mark_or_their_number() {
        let special = token(TokenState::Committed, b"");
        assert_eq!(
            runs(std::slice::from_ref(&special), false)[0].text,
            SPECIAL_MARK
        );
        assert_eq!(runs(&[special], true)[0].text, "7 ");
    }

    #[test]
    fn lines_break_at_spaces_and_count_columns() {
        assert_eq!(wrapped("one two three", 8), ["one two ", "three"]);
        assert_eq!(wrapped("abcdefghij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(wrapped("日本語日本", 5), ["日本", "語日", "本"]);
        assert_eq!(wrapped("x wanted it", 8), ["x wanted", "it"]);
        assert_eq!(wrapped("ab  cd \nef", 2), ["ab", "cd", "ef"]);
        assert_eq!(wrapped("a\n\nb", 5), ["a", "", "b"]);
        assert_eq!(wrapped("\tx", 10), ["    x"]);
        assert_eq!(wrapped("", 10), [""]);
        assert_eq!(wrapped("日", 1), ["", "日"]);
    }
}
