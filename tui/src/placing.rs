//! Where texts without a position came to stand, in words.

use sluice_proto::v1::{GenerationPlaced, PlacedText};

use crate::canvas::ids_text;

/// A line for each text, those without room last.
#[must_use]
pub fn lines(placed: &GenerationPlaced) -> Vec<String> {
    let texts = placed.texts.iter().map(line);
    let without_room =
        (placed.without_room.iter()).map(|text| format!("no room for \"{}\"", text.trim()));
    let lines: Vec<_> = texts.chain(without_room).collect();
    match lines.is_empty() {
        true => vec!["no name found room".to_owned()],
        false => lines,
    }
}

/// `pinned "Apollo 11" at 14 to 16, mean log-probability -1.20; a name out of memory`.
fn line(text: &PlacedText) -> String {
    let bytes: Vec<u8> = text
        .tokens
        .iter()
        .flat_map(|token| token.piece.clone())
        .collect();
    let words = match bytes.is_empty() {
        // Without a tokenizer.
        true => {
            let ids: Vec<u32> = text.tokens.iter().filter_map(|token| token.id).collect();
            ids_text(&ids)
        }
        false => format!("\"{}\"", String::from_utf8_lossy(&bytes).trim()),
    };
    let at = match &text.tokens[..] {
        [first, .., last] => format!("{} to {}", first.position, last.position),
        tokens => tokens.first().map_or(0, |token| token.position).to_string(),
    };
    let kind = if text.is_name {
        "; a name out of memory"
    } else {
        ""
    };
    format!(
        "pinned {words} at {at}, mean log-probability {:.2}{kind}",
        text.mean_logprob
    )
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::CanvasToken;

    use super::*;

    fn text(pieces: &[&str], is_name: bool) -> PlacedText {
        let token = |(offset, piece): (usize, &&str)| CanvasToken {
            position: 14 + offset as u32,
            id: Some(7),
            piece: piece.as_bytes().to_vec(),
            ..Default::default()
        };
        PlacedText {
            tokens: pieces.iter().enumerate().map(token).collect(),
            mean_logprob: -1.204,
            is_name,
        }
    }

    #[test]
    fn each_text_and_each_without_room_has_a_line() {
        let placed = GenerationPlaced {
            request_id: 1,
            texts: vec![
                text(&[" Apollo", " 11"], true),
                text(&["x"], false),
                text(&[""], false),
            ],
            without_room: vec![" the end".to_owned()],
        };
        assert_eq!(
            lines(&placed),
            [
                "pinned \"Apollo 11\" at 14 to 15, mean log-probability -1.20; a name out of memory",
                "pinned \"x\" at 14, mean log-probability -1.20",
                "pinned 7 at 14, mean log-probability -1.20",
                "no room for \"the end\"",
            ]
        );
        assert_eq!(lines(&GenerationPlaced::default()), ["no name found room"]);
    }
}
