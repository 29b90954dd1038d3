//! The log-probabilities of an answer's tokens as a table.

use sluice_proto::v1::{CanvasToken, TokenLogprobs};

use crate::text::sanitise;

/// A line for each token that has log-probabilities, below a headline; none where no token has.
pub(super) fn table<'a>(tokens: impl Iterator<Item = &'a CanvasToken>) -> Vec<String> {
    let rows: Vec<_> = tokens
        .filter_map(|token| Some((token, token.logprobs.as_ref()?)))
        .map(|(token, logprobs)| row(token, logprobs))
        .collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let heads = ["token", "logprob", "probability", "most probable"].map(str::to_owned);
    let width = |column: usize| {
        let cells = rows.iter().chain([&heads]);
        let widths = cells.map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let [token, logprob, probability] = [0, 1, 2].map(width);
    let line = |[name, own, part, top]: &[String; 4]| {
        let line = format!("{name:<token$}  {own:>logprob$}  {part:>probability$}  {top}");
        line.trim_end().to_owned()
    };
    // Apart from the text above.
    let first = [String::new(), line(&heads)];
    first.into_iter().chain(rows.iter().map(line)).collect()
}

fn row(token: &CanvasToken, logprobs: &TokenLogprobs) -> [String; 4] {
    let top = logprobs.top.iter().map(|top| {
        let name = name(&top.piece, top.id);
        format!("{name} {:.3}", top.logprob)
    });
    [
        name(&token.piece, token.id.unwrap_or_default()),
        format!("{:.3}", logprobs.logprob),
        format!("{:.1} %", f64::from(logprobs.logprob).exp() * 100.0),
        top.collect::<Vec<_>>().join(", "),
    ]
}

/// A token as people read it: its text, or its id where it has none.
fn name(piece: &[u8], id: u32) -> String {
    match piece.is_empty() {
        true => format!("#{id}"),
        false => sanitise(&format!("{:?}", String::from_utf8_lossy(piece))),
    }
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::TopLogprob;

    use super::*;

    #[test]
    fn a_line_tells_of_a_token() {
        let top = |id, piece: &[u8], logprob| TopLogprob {
            id,
            piece: piece.to_vec(),
            logprob,
        };
        let token = |id, piece: &[u8], logprob, top| CanvasToken {
            id: Some(id),
            piece: piece.to_vec(),
            logprobs: Some(TokenLogprobs { logprob, top }),
            ..Default::default()
        };
        let word = "caf\u{e9}\n".as_bytes();
        let others = vec![top(7, word, -0.5), top(2, b"", -3.25)];
        let tokens = [
            token(7, word, -0.5, others),
            token(2, b"", -12.0, Vec::new()),
        ];
        assert_eq!(
            table(tokens.iter()),
            [
                "",
                "token     logprob  probability  most probable",
                r#""café\n"   -0.500       60.7 %  "café\n" -0.500, #2 -3.250"#,
                "#2        -12.000        0.0 %",
            ]
        );
        assert!(table([CanvasToken::default()].iter()).is_empty());
    }
}
