//! `POST /api/generate`: an answer to one prompt.

use sluice_proto::v1::{self, generate_request::Input};

use super::{
    answer::{self, Job, Shape},
    loading::{self, KeepAlive, LoadRequest},
    options::Options,
};
use crate::{
    body::HeldBody,
    extension::Extension,
    failure::Failure,
    field_names::TextApi,
    fields::{self, fields},
    format::Format,
    generation::{INFILL_TOKENS_DEFAULT, Infill},
    logprobs,
    services::Services,
    streaming::Answer,
};

fields! {
    /// A request of Ollama's completions.
    pub(crate) struct GenerateRequest {
        honoured model: String = "a name of `GET /api/tags`; absent: the present model",
        honoured prompt: String = "what the user says; with `raw`, text that goes on; without `raw` none: the model is loaded, and nothing is written",
        honoured suffix: String = "masked diffusion models, with `raw`: the answer is what goes between `prompt` and this",
        honoured system: String = "instructions before it",
        honoured raw: bool = "the prompt is taken as it is, without a chat template",
        honoured options: Options = "see below",
        honoured format: Format = "autoregressive models: `\"json\"`, or a JSON schema",
        honoured stream: bool = "lines of JSON, unless `false`",
        honoured logprobs: bool = "autoregressive models: log-probabilities of the answer's tokens",
        honoured top_logprobs: u32 = "with `logprobs`: those of the so many most probable tokens beside, at most 20",
        honoured sluice: Extension = "all that is Sluice's own",
        honoured keep_alive: KeepAlive = "0 in a request without a prompt: the model is unloaded; else how long it stays is the administrator's to say (`idle_unload`)",
        refused "template" unless Empty, "a model has its own",
        refused "context" unless Empty, "send the conversation to `/api/chat`",
        refused "images" unless Empty, "models here read text",
        refused "think" unless False, "latent thought models have `sluice.think_steps`",
        refused "width" unless Null, "models here write text",
        refused "height" unless Null, "models here write text",
        refused "steps" unless Null, "it is `sluice.steps`",
    }
}

/// Answers a prompt.
///
/// # Errors
/// When the request is wrong or refused.
pub(crate) async fn answer(services: &Services, body: HeldBody) -> Result<Answer, Failure> {
    let request: GenerateRequest = fields::read(body.bytes())?;
    if request.is_without_prompt() {
        let request = LoadRequest {
            shape: Shape::Generate,
            model: request.model,
            keep_alive: request.keep_alive,
            sluice: request.sluice,
        };
        drop(body);
        return loading::answer(services, request).await;
    }
    let job = job(request)?;
    drop(body);
    answer::run(services, job).await
}

impl GenerateRequest {
    /// Whether it is about the model alone. With `raw`, an empty prompt is one that some models go on from.
    fn is_without_prompt(&self) -> bool {
        self.prompt.as_ref().is_none_or(String::is_empty)
            && !self.raw.unwrap_or_default()
            && self.suffix.as_ref().is_none_or(String::is_empty)
    }
}

fn job(request: GenerateRequest) -> Result<Job, Failure> {
    let prompt = request.prompt.unwrap_or_default();
    let suffix = request.suffix.filter(|suffix| !suffix.is_empty());
    let options = request.options.unwrap_or_default();
    let top_logprobs = logprobs::asked(request.logprobs, request.top_logprobs)?;
    let sampling = options.sampling(
        TextApi::OllamaGenerate,
        request.model,
        request.sluice,
        top_logprobs,
        request.format,
    )?;
    let is_raw = request.raw.unwrap_or_default();
    if let (true, Some(_)) = (is_raw, &request.system) {
        let problem =
            "has no place in a prompt that is taken as it is; leave out `system` or `raw`";
        return Err(Failure::field("system", problem));
    }
    let (input, infill) = match suffix {
        Some(_) if !is_raw => {
            return Err(Failure::field("suffix", "goes with `raw`"));
        }
        Some(after) => {
            let infill = Infill {
                before: prompt,
                after,
            };
            let masks = sampling.max_tokens.unwrap_or(INFILL_TOKENS_DEFAULT);
            (Input::Edit(infill.edit(masks)), Some(infill))
        }
        None if is_raw => (Input::RawText(prompt), None),
        None => {
            let system = request.system.filter(|system| !system.is_empty());
            let turns = [
                (v1::ChatRole::System, system),
                (v1::ChatRole::User, Some(prompt)),
            ];
            let messages = turns.into_iter().filter_map(|(role, content)| {
                let role = role.into();
                content.map(|content| v1::ChatMessage {
                    role,
                    content,
                    ..Default::default()
                })
            });
            let messages = messages.collect();
            let chat = v1::Chat {
                messages,
                ..Default::default()
            };
            (Input::Chat(chat), None)
        }
    };
    Ok(Job {
        request: sampling.request(input)?,
        infill,
        terms: sampling.terms(),
        shape: Shape::Generate,
        calls: None,
        stream: request.stream.unwrap_or(true),
    })
}
