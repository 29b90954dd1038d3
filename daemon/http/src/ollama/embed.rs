//! `POST /api/embed`: vectors of texts.

use hyper::StatusCode;
use serde::Serialize;

use super::{loading::KeepAlive, options::Options};
use crate::{
    body::HeldBody,
    embeddings::EmbeddingQuestion,
    failure::Failure,
    fields::{self, fields},
    services::Services,
    streaming::{self, Answer},
    values::Prompts,
};

fields! {
    /// A request of Ollama's embeddings.
    pub(crate) struct EmbedRequest {
        honoured model: String = "a sentence encoder of `GET /api/tags`; absent: the present model",
        honoured input: Prompts = "a text or a list of them, at most 2048",
        honoured truncate: bool = "whether a text that is too long is cut, which is the default, or refused",
        honoured dimensions: u32 = "refused unless it is what the model's vectors have",
        honoured options: Options = "read, and nothing in it changes a vector",
        honoured keep_alive: KeepAlive = "read; how long a model stays is the administrator's to say (`idle_unload`)",
    }
}

#[derive(Debug, Serialize)]
struct Embeddings {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: u64,
}

/// Answers a request for vectors.
///
/// # Errors
/// When the request is wrong or refused.
pub(crate) async fn answer(services: &Services, body: HeldBody) -> Result<Answer, Failure> {
    let request: EmbedRequest = fields::read(body.bytes())?;
    drop(body);
    let question = EmbeddingQuestion {
        model: request.model,
        input: request.input,
        truncate: request.truncate,
        dimensions: request.dimensions,
    };
    let answer = question.ask(services).await?;
    let embeddings = Embeddings {
        model: answer.model,
        prompt_eval_count: answer
            .vectors
            .iter()
            .map(|text| u64::from(text.tokens))
            .sum(),
        embeddings: answer.vectors.into_iter().map(|text| text.values).collect(),
        total_duration: (answer.elapsed_ms * 1e6) as u64,
        load_duration: 0,
    };
    Ok(streaming::json(StatusCode::OK, &embeddings))
}
