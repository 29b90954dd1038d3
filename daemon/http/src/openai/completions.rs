//! `POST /v1/completions`: text that goes on, and with `suffix` text that is put in between.

use sluice_proto::v1::{self, generate_request::Input};

use super::{
    delivery::{Delivery, StreamOptions},
    run::{self, Job, Shape},
};
use crate::{
    body::HeldBody,
    extension::Extension,
    failure::Failure,
    field_names::TextApi,
    fields::{self, fields},
    format,
    generation::{INFILL_TOKENS_DEFAULT, Infill},
    sampling::Sampling,
    services::Services,
    streaming::Answer,
    values::{Prompt, Prompts, Texts},
};

fields! {
    /// A request of OpenAI's completions.
    pub(crate) struct CompletionRequest {
        honoured prompt: Prompts = "a text, token ids, or a list of either; taken as it is, without a chat template",
        honoured model: String = "a name of `GET /v1/models`; absent: the present model",
        honoured suffix: String = "masked diffusion models: the answer is what goes between `prompt` and this, in as many tokens as `max_tokens` says",
        honoured echo: bool = "the prompt goes before each answer; of prompts that are texts",
        honoured max_tokens: u32 = "most tokens of an answer; of a masked diffusion model, the length of its canvas",
        honoured n: u32 = "answers to each prompt, at most 16 to all; each is a request of its own, with the seeds `seed`, `seed` + 1, …",
        honoured seed: i64 = "same seed, same text",
        honoured stop: Texts = "autoregressive models: a text or a list of at most 16",
        honoured stream: bool = "server-sent events; a piece is text that stays",
        honoured stream_options: StreamOptions = "with `stream`: `include_usage`, a last event with the tokens",
        honoured logprobs: u32 = "autoregressive models: log-probabilities of the answer's tokens, and of the so many most probable ones beside, at most 20",
        honoured temperature: f64 = "0: the most probable token each time; where the policy has temperatures of its own (`renoise`), it changes nothing, as a warning says",
        honoured top_p: f64 = "autoregressive models",
        honoured top_k: u32 = "autoregressive models; not OpenAI's",
        honoured min_p: f64 = "autoregressive models; not OpenAI's",
        honoured repetition_penalty: f64 = "autoregressive models; not OpenAI's",
        honoured sluice: Extension = "all that is Sluice's own, see below",
        accepted "user" = "who calls is known by token or connection",
        refused "best_of" unless Number(1.0), "all answers are given: there is `n`",
        refused "frequency_penalty" unless Number(0.0), "there is `repetition_penalty`",
        refused "logit_bias" unless Empty, "tokens are chosen by the model",
        refused "presence_penalty" unless Number(0.0), "there is `repetition_penalty`",
    }
}

/// Answers a request for a completion.
///
/// # Errors
/// When the request is wrong or refused.
pub(crate) async fn answer(services: &Services, body: HeldBody) -> Result<Answer, Failure> {
    let request: CompletionRequest = fields::read(body.bytes())?;
    let job = job(request)?;
    drop(body);
    run::run(services, job).await
}

/// The one prompt and what comes after it.
fn between(prompts: &[Prompt], after: String) -> Result<Infill, Failure> {
    match prompts {
        [Prompt::Text(before)] => Ok(Infill {
            before: before.clone(),
            after,
        }),
        _ => Err(Failure::field(
            "suffix",
            "goes with one prompt, which is a text",
        )),
    }
}

fn job(request: CompletionRequest) -> Result<Job, Failure> {
    let Prompts(prompts) = request
        .prompt
        .ok_or_else(|| Failure::field("prompt", "is missing"))?;
    let sampling = Sampling {
        api: TextApi::Completions,
        model: request.model,
        max_tokens: request.max_tokens,
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k,
        min_p: request.min_p,
        repetition_penalty: request.repetition_penalty,
        seed: request.seed,
        stop: request.stop,
        top_logprobs: request.logprobs,
        grammar: format::grammar(None, request.sluice.as_ref())?,
        n: request.n,
        sluice: request.sluice,
    };
    let choices = sampling.choices(prompts.len())?;
    let (mut requests, mut before) = (Vec::new(), Vec::new());
    let infill = match request.suffix.filter(|suffix| !suffix.is_empty()) {
        Some(after) => Some(between(&prompts, after)?),
        None => None,
    };
    for prompt in prompts {
        if request.echo.unwrap_or_default() {
            let Prompt::Text(text) = &prompt else {
                return Err(Failure::field("echo", "is for prompts that are texts"));
            };
            before.extend((0..choices).map(|_| text.clone()));
        }
        let input = match prompt {
            Prompt::Text(_) if let Some(infill) = &infill => {
                let masks = sampling.max_tokens.unwrap_or(INFILL_TOKENS_DEFAULT);
                Input::Edit(infill.edit(masks))
            }
            Prompt::Text(text) => Input::RawText(text),
            Prompt::Ids(ids) => Input::Tokens(v1::TokenIds { ids }),
        };
        requests.extend(sampling.requests(input, choices)?);
    }
    Ok(Job {
        requests,
        choices_of_prompt: choices,
        infill,
        shape: Shape::Text { before },
        calls: None,
        delivery: Delivery::new(request.stream, request.stream_options, &sampling)?,
        has_logprobs: sampling.top_logprobs.is_some(),
        terms: sampling.terms(),
    })
}
