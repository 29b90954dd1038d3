//! Requests without a prompt: by them, Ollama's clients have models loaded, and unloaded.

use hyper::StatusCode;
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use serde_json::value::RawValue;
use sluice_proto::v1::{self, generate_request::Input};

use super::{
    answer::{Content, Shape},
    time,
};
use crate::{
    extension::Extension,
    failure::Failure,
    generation::{Generation, Progress},
    models,
    services::Services,
    streaming::{self, Answer},
    terms::CallTerms,
};

/// How long a model is to stay, of which only "no longer" does anything.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum KeepAlive {
    Zero,
    SomeTime,
}

impl<'de> Deserialize<'de> for KeepAlive {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(from)?;
        let time = json.get().trim_matches('"');
        let mut digits = time.chars().filter(char::is_ascii_digit).peekable();
        match digits.peek() {
            Some(_) if !json.get().starts_with(['[', '{']) => {}
            _ => return Err(D::Error::custom("is a time such as \"5m\", or seconds")),
        }
        Ok(match digits.all(|digit| digit == '0') {
            true => Self::Zero,
            false => Self::SomeTime,
        })
    }
}

/// A request without a prompt.
#[derive(Debug)]
pub(super) struct LoadRequest {
    pub(super) shape: Shape,
    pub(super) model: Option<String>,
    pub(super) keep_alive: Option<KeepAlive>,
    pub(super) sluice: Option<Extension>,
}

/// The one line of an answer without text.
#[derive(Debug, Serialize)]
struct Line {
    model: String,
    created_at: String,
    #[serde(flatten)]
    content: Content,
    done: bool,
    done_reason: &'static str,
}

/// Has a model loaded as any request that names it would, or unloaded, and answers once it is.
///
/// # Errors
/// When there is no such model, it fails to load, or the caller may not do that.
pub(super) async fn answer(services: &Services, request: LoadRequest) -> Result<Answer, Failure> {
    let model = match &request.model {
        Some(name) => models::find(services, name).await?,
        None => present(services).await?,
    };
    let done_reason = match request.keep_alive {
        Some(KeepAlive::Zero) => {
            let request = v1::UnloadModelRequest {
                model: model.name.clone(),
            };
            services.models().unload_model(request).await?;
            "unload"
        }
        Some(KeepAlive::SomeTime) | None => {
            if model.state() != v1::ModelState::Ready {
                let api = request.shape.api();
                load(
                    services,
                    &model,
                    CallTerms::new(api, request.sluice.as_ref()),
                )
                .await?;
            }
            "load"
        }
    };
    let line = Line {
        model: model.name,
        created_at: time::now(),
        content: request.shape.content(String::new(), Vec::new()),
        done: true,
        done_reason,
    };
    Ok(streaming::json(StatusCode::OK, &line))
}

async fn present(services: &Services) -> Result<v1::Model, Failure> {
    let model = models::snapshot(services).await?.model;
    model.ok_or_else(|| Failure::field("model", "is missing, and no model is loaded"))
}

/// Waits for a model as a request does, and is gone before its first pass.
async fn load(services: &Services, model: &v1::Model, terms: CallTerms) -> Result<(), Failure> {
    let request = v1::GenerateRequest {
        model: model.name.clone(),
        length: Some(1),
        // Models without a tokenizer take them, too.
        input: Some(Input::Tokens(v1::TokenIds { ids: vec![0] })),
        ..Default::default()
    };
    let mut generation = Generation::begin(services, request, terms, None).await?;
    loop {
        match generation.next().await? {
            Progress::Started(_) | Progress::Done(..) => return Ok(()),
            Progress::Picture(..) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_from_no_time() {
        let read = |json: &str| serde_json::from_str::<KeepAlive>(json);
        for zero in ["0", "\"0\"", "\"0s\"", "\"0h0m\"", "0.0"] {
            assert_eq!(read(zero).unwrap(), KeepAlive::Zero, "{zero}");
        }
        for some in ["-1", "\"5m\"", "300", "\"-1s\"", "\"1h0m\"", "0.5"] {
            assert_eq!(read(some).unwrap(), KeepAlive::SomeTime, "{some}");
        }
        for wrong in ["\"\"", "\"soon\"", "[0]", "{\"a\": 0}", "true"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
