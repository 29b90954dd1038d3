//! `sluice embed`.

use std::path::PathBuf;

use sluice_proto::{
    client::when_there_is_room,
    v1::{EmbedRequest, EmbedResponse},
};
use sluice_shared::units;

use super::{
    input::{self, STDIN},
    until_interrupted, usage,
};
use crate::{
    cli::Embed,
    connection::DaemonConnection,
    output::{Failure, StandardOutput, dim},
    text,
};

/// Columns of a text in the table of similarities.
const TEXT_COLUMNS: usize = 60;

/// Asks for the texts' vectors and prints them, or how similar they are.
pub(super) async fn run(
    socket: PathBuf,
    arguments: Embed,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let texts = texts(&arguments.texts)?;
    let request = EmbedRequest {
        texts: texts.clone(),
        truncate: Some(!arguments.no_truncate),
        model: arguments.asked.name(),
        ..Default::default()
    };
    until_interrupted(async {
        let daemon = DaemonConnection::connect(socket).await?;
        let call = when_there_is_room(|| {
            let (mut client, request) = (daemon.embedding(), request.clone());
            async move { client.embed(request).await }
        });
        let answer = call.await.map_err(|status| daemon.failure(status))?;
        let answer = answer.into_inner();
        if arguments.json {
            return out.json(&answer);
        }
        for note in notes(&answer) {
            dim(&note);
        }
        // A person compares texts; a program reads vectors.
        let compares = arguments.compare || (out.is_terminal() && texts.len() > 1);
        match compares {
            true => {
                for line in similarities(&texts, &answer) {
                    out.line(&line)?;
                }
            }
            false => {
                for vector in &answer.vectors {
                    out.json(&vector.values)?;
                }
            }
        }
        Ok(())
    })
    .await
}

/// The texts as they are, where `-` stands for the lines of standard input.
fn texts(arguments: &[String]) -> Result<Vec<String>, Failure> {
    if arguments.iter().filter(|text| *text == STDIN).count() > 1 {
        return Err(usage("standard input can be read once"));
    }
    let mut texts = Vec::new();
    for argument in arguments {
        match argument == STDIN {
            true => texts.extend(input::text(argument)?.lines().map(str::to_owned)),
            false => texts.push(argument.clone()),
        }
    }
    match texts.is_empty() {
        true => Err(usage("standard input has no line")),
        false => Ok(texts),
    }
}

/// What the user should know of the answer.
fn notes(answer: &EmbedResponse) -> Vec<String> {
    let cut = answer.vectors.iter().enumerate();
    let cut = cut.filter(|(_, text)| text.is_truncated);
    let cut = cut.map(|(index, text)| {
        let tokens = units::count(text.tokens.into());
        format!(
            "note: text {} is longer than the model reads; its first {tokens} tokens were read",
            index + 1
        )
    });
    let notices = answer
        .notices
        .iter()
        .map(|notice| format!("note: {notice}"));
    cut.chain(notices).collect()
}

/// How similar each text is to each: the cosine of the angle between their vectors.
fn similarities(texts: &[String], answer: &EmbedResponse) -> Vec<String> {
    let cell = |text: &str| format!("{text:>6}");
    let numbers = (1..=texts.len()).map(|number| cell(&number.to_string()));
    let mut lines = vec![format!("{}{}", cell(""), numbers.collect::<String>())];
    for (index, (row, said)) in answer.vectors.iter().zip(texts).enumerate() {
        let cosines = (answer.vectors.iter())
            .map(|other| cell(&format!("{:.2}", cosine(&row.values, &other.values))));
        let said = text::clip(&text::sanitise_line(said), TEXT_COLUMNS);
        lines.push(format!(
            "{}{}  {said}",
            cell(&(index + 1).to_string()),
            cosines.collect::<String>()
        ));
    }
    lines
}

/// The cosine of the angle between two vectors; 0 where one of them is 0.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
        products.sum()
    };
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    match lengths > 0.0 {
        true => dot(a, b) / lengths,
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::TextVector;

    use super::*;

    fn vector(values: &[f32], is_truncated: bool) -> TextVector {
        TextVector {
            values: values.to_vec(),
            tokens: 256,
            is_truncated,
        }
    }

    #[test]
    fn people_see_how_similar_texts_are() {
        let answer = EmbedResponse {
            vectors: vec![
                vector(&[1.0, 0.0], false),
                vector(&[1.0, 1.0], true),
                vector(&[0.0, 0.0], false),
            ],
            ..Default::default()
        };
        let texts = ["one", "two\nlines", ""].map(str::to_owned);
        let lines = similarities(&texts, &answer);
        assert_eq!(lines[0], "           1     2     3");
        assert_eq!(lines[1], "     1  1.00  0.71  0.00  one");
        assert!(lines[2].starts_with("     2  0.71  1.00  0.00  two"));
        assert_eq!(lines.len(), 4);
        let notes = notes(&answer);
        assert_eq!(
            notes,
            ["note: text 2 is longer than the model reads; its first 256 tokens were read"]
        );
    }

    #[test]
    fn standard_input_is_read_once() {
        let twice = ["-", "-"].map(str::to_owned);
        let failure = texts(&twice).unwrap_err();
        assert_eq!(failure.code(), sluice_shared::exit::USAGE);
        assert_eq!(texts(&["a".to_owned()]).unwrap(), ["a"]);
    }
}
