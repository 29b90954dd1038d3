//! Vectors of texts, which both APIs ask for.

use sluice_proto::v1;

use crate::{
    failure::Failure,
    services::Services,
    values::{Prompt, Prompts},
};

/// What a request of either API comes to.
#[derive(Debug)]
pub(crate) struct EmbeddingQuestion {
    pub(crate) model: Option<String>,
    pub(crate) input: Option<Prompts>,
    pub(crate) truncate: Option<bool>,
    /// Elements that vectors are to have.
    pub(crate) dimensions: Option<u32>,
}

impl EmbeddingQuestion {
    /// Asks the daemon.
    ///
    /// # Errors
    /// When the request is wrong, refused or fails.
    pub(crate) async fn ask(self, services: &Services) -> Result<v1::EmbedResponse, Failure> {
        let dimensions = self.dimensions;
        let message = self.message()?;
        let answer = services.embedding().embed(message).await;
        let answer = answer.map_err(|refused| Failure::from(refused).renamed(name))?;
        let answer = answer.into_inner();
        match dimensions {
            Some(asked) if asked != answer.dimensions => {
                let problem = format!("vectors of this model have {}", answer.dimensions);
                Err(Failure::field("dimensions", problem))
            }
            _ => Ok(answer),
        }
    }

    fn message(self) -> Result<v1::EmbedRequest, Failure> {
        let Prompts(input) = self
            .input
            .ok_or_else(|| Failure::field("input", "is missing"))?;
        let count = input.len();
        let (mut texts, mut tokens) = (Vec::new(), Vec::new());
        for part in input {
            match part {
                Prompt::Text(text) => texts.push(text),
                Prompt::Ids(ids) => tokens.push(v1::TokenIds { ids }),
            }
        }
        if texts.len() != count && tokens.len() != count {
            return Err(Failure::field("input", "has token ids beside texts"));
        }
        Ok(v1::EmbedRequest {
            texts,
            tokens,
            truncate: self.truncate,
            model: self.model.unwrap_or_default(),
        })
    }
}

/// What both APIs call a field of the schema.
fn name(field: &str) -> Option<String> {
    matches!(field, "texts" | "tokens").then(|| "input".to_owned())
}

/// The elements of a vector, little-endian, as base64 (RFC 4648).
pub(crate) fn base64(values: &[f32]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let of = |index: usize| u32::from(part.get(index).copied().unwrap_or(0));
        let bits = of(0) << 16 | of(1) << 8 | of(2);
        for digit in 0..4 {
            match digit <= part.len() {
                true => text.push(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize].into()),
                false => text.push('='),
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_little_endian_base64() {
        // 0000803f 00000040 000000bf
        assert_eq!(base64(&[1.0, 2.0, -0.5]), "AACAPwAAAEAAAAC/");
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[1.0, 2.0]), "AACAPwAAAEA=");
        assert_eq!(base64(&[]), "");
    }

    #[test]
    fn texts_and_ids_are_not_mixed() {
        let question = |json: &str| EmbeddingQuestion {
            model: None,
            input: serde_json::from_str(json).unwrap(),
            truncate: None,
            dimensions: None,
        };
        let message = question(r#""a""#).message().unwrap();
        assert_eq!(
            (&message.texts[..], message.tokens.len()),
            (&["a".to_owned()][..], 0)
        );
        let message = question("[[1, 2], [3]]").message().unwrap();
        assert_eq!(
            (message.texts.len(), &message.tokens[1].ids[..]),
            (0, &[3][..])
        );
        for wrong in [r#"["a", [1]]"#, "null"] {
            let failure = question(wrong).message().unwrap_err();
            assert_eq!(failure.field.as_deref(), Some("input"), "{wrong}");
        }
    }
}
