//! `POST /v1/embeddings`: vectors of texts.

use hyper::StatusCode;
use serde::Serialize;

use crate::{
    body::HeldBody,
    embeddings::{EmbeddingQuestion, base64},
    failure::Failure,
    fields::{self, fields},
    services::Services,
    streaming::{self, Answer},
    values::Prompts,
};

fields! {
    /// A request of OpenAI's embeddings.
    pub(crate) struct EmbeddingRequest {
        honoured input: Prompts = "a text, token ids, or a list of either, at most 2048; ids are taken with those that a tokenizer puts around a text",
        honoured model: String = "a sentence encoder of `GET /v1/models`; absent: the present model",
        honoured encoding_format: String = "`float` (the default) or `base64`: the elements as little-endian 32-bit floats",
        honoured dimensions: u32 = "refused unless it is what the model's vectors have",
        honoured truncate: bool = "whether a text that is too long is cut, which is the default, or refused; not OpenAI's",
        accepted "user" = "who calls is known by token or connection",
    }
}

#[derive(Debug, Serialize)]
struct EmbeddingList {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: Usage,
    sluice: Told,
}

#[derive(Debug, Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Vector {
    Floats(Vec<f32>),
    Base64(String),
}

#[derive(Debug, Serialize)]
struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
}

/// What is Sluice's own.
#[derive(Debug, Serialize)]
struct Told {
    /// The places of texts that were cut.
    truncated: Vec<usize>,
    notices: Vec<String>,
}

/// Answers a request for vectors.
///
/// # Errors
/// When the request is wrong or refused.
pub(crate) async fn answer(services: &Services, body: HeldBody) -> Result<Answer, Failure> {
    let request: EmbeddingRequest = fields::read(body.bytes())?;
    let is_base64 = match request.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => {
            let problem = "is neither float nor base64";
            return Err(Failure::field("encoding_format", problem));
        }
    };
    drop(body);
    let question = EmbeddingQuestion {
        model: request.model,
        input: request.input,
        truncate: request.truncate,
        dimensions: request.dimensions,
    };
    let answer = question.ask(services).await?;
    let tokens = answer
        .vectors
        .iter()
        .map(|text| u64::from(text.tokens))
        .sum();
    let truncated = (answer.vectors.iter().enumerate())
        .filter(|(_, text)| text.is_truncated)
        .map(|(index, _)| index);
    let list = EmbeddingList {
        object: "list",
        model: answer.model,
        usage: Usage {
            prompt_tokens: tokens,
            total_tokens: tokens,
        },
        sluice: Told {
            truncated: truncated.collect(),
            notices: answer.notices,
        },
        data: (answer.vectors.into_iter().enumerate())
            .map(|(index, text)| Embedding {
                object: "embedding",
                index,
                embedding: match is_base64 {
                    true => Vector::Base64(base64(&text.values)),
                    false => Vector::Floats(text.values),
                },
            })
            .collect(),
    };
    Ok(streaming::json(StatusCode::OK, &list))
}
