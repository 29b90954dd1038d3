//! `POST /v1/chat/completions`.

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::value::RawValue;
use sluice_proto::{
    model::MESSAGES_MAX,
    v1::{self, generate_request::Input},
};

use super::{
    delivery::{Delivery, StreamOptions},
    messages::{self, Message},
    run::{self, Calls, Job, Shape},
};
use crate::{
    body::HeldBody,
    extension::Extension,
    failure::Failure,
    field_names::TextApi,
    fields::{self, fields},
    format::{self, ResponseFormat},
    limits::TEXTS_MAX,
    logprobs,
    sampling::Sampling,
    services::Services,
    streaming::Answer,
    tools::Tools,
    values::{Few, Texts},
};

fields! {
    /// A request of OpenAI's chat completions.
    pub(crate) struct ChatRequest {
        honoured messages: Few<Message, MESSAGES_MAX> = "roles `system`, `developer` (the same), `user`, `assistant`, `tool`; content as text or text parts",
        honoured model: String = "a name of `GET /v1/models`; absent: the present model",
        honoured max_completion_tokens: u32 = "most tokens of an answer; of a masked diffusion model, the length of its canvas",
        honoured max_tokens: u32 = "the same by its older name",
        honoured n: u32 = "answers, at most 16; each is a request of its own, with the seeds `seed`, `seed` + 1, …",
        honoured seed: i64 = "same seed, same text",
        honoured stop: Texts = "autoregressive models: a text or a list of at most 16",
        honoured stream: bool = "server-sent events; a delta is text that stays",
        honoured stream_options: StreamOptions = "with `stream`: `include_usage`, a last event with the tokens",
        honoured logprobs: bool = "autoregressive models: log-probabilities of the answer's tokens",
        honoured top_logprobs: u32 = "with `logprobs`: those of the so many most probable tokens beside, at most 20",
        honoured temperature: f64 = "0: the most probable token each time; where the policy has temperatures of its own (`renoise`), it changes nothing, as a warning says",
        honoured top_p: f64 = "autoregressive models",
        honoured top_k: u32 = "autoregressive models; not OpenAI's",
        honoured min_p: f64 = "autoregressive models; not OpenAI's",
        honoured repetition_penalty: f64 = "autoregressive models; not OpenAI's",
        honoured tools: Tools = "functions, where the model's chat template has a place for them; calls are read in the forms of Hermes, Qwen, Llama 3 and Mistral",
        honoured tool_choice: ToolChoice = "`auto` or `none`; `required` and named functions are refused",
        honoured parallel_tool_calls: bool = "`false`: an answer has the first of its calls alone",
        honoured sluice: Extension = "all that is Sluice's own, see below",
        honoured modalities: Few<String, TEXTS_MAX> = "`[\"text\"]`",
        honoured response_format: ResponseFormat = "autoregressive models: `json_schema`, `json_object`; `text`",
        accepted "metadata" = "nothing is stored that it could be found by",
        accepted "prompt_cache_key" = "prefixes are kept without",
        accepted "prompt_cache_options" = "prefixes are kept without",
        accepted "prompt_cache_retention" = "prefixes are kept without",
        accepted "safety_identifier" = "who calls is known by token or connection",
        accepted "user" = "who calls is known by token or connection",
        refused "audio" unless Null, "models here write text",
        refused "frequency_penalty" unless Number(0.0), "there is `repetition_penalty`",
        refused "function_call" unless Text("none"), "it is `tool_choice` since",
        refused "functions" unless Empty, "it is `tools` since",
        refused "logit_bias" unless Empty, "tokens are chosen by the model",
        refused "moderation" unless Null, "nothing here judges texts",
        refused "prediction" unless Null, "no text is predicted beforehand",
        refused "presence_penalty" unless Number(0.0), "there is `repetition_penalty`",
        refused "reasoning_effort" unless Text("none"), "latent thought models have `sluice.think_steps`",
        refused "service_tier" unless Text("auto"), "there is one tier",
        refused "store" unless False, "no text is kept",
        refused "verbosity" unless Text("medium"), "say it in the conversation",
        refused "web_search_options" unless Null, "nothing here searches",
    }
}

/// Whether the model may call functions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ToolChoice {
    Auto,
    None,
}

impl<'de> Deserialize<'de> for ToolChoice {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // A named function is an object.
        let json = Box::<RawValue>::deserialize(from)?;
        match json.get() {
            r#""auto""# => Ok(Self::Auto),
            r#""none""# => Ok(Self::None),
            _ => Err(D::Error::custom(
                "not supported: nothing makes a model call, or call this one; there are `auto` and `none`",
            )),
        }
    }
}

/// Answers a chat.
///
/// # Errors
/// When the request is wrong or refused.
pub(crate) async fn answer(services: &Services, body: HeldBody) -> Result<Answer, Failure> {
    let request: ChatRequest = fields::read(body.bytes())?;
    let job = job(request)?;
    drop(body);
    run::run(services, job).await
}

fn job(request: ChatRequest) -> Result<Job, Failure> {
    let messages = request
        .messages
        .ok_or_else(|| Failure::field("messages", "is missing"))?;
    if let Some(kinds) = &request.modalities
        && kinds.0.iter().any(|kind| kind != "text")
    {
        return Err(Failure::field("modalities", "models here write text alone"));
    }
    let format = request.response_format.map(ResponseFormat::into_grammar);
    let grammar = format::grammar(format.transpose()?.flatten(), request.sluice.as_ref())?;
    let sampling = Sampling {
        api: TextApi::Chat,
        model: request.model,
        max_tokens: most_tokens(request.max_completion_tokens, request.max_tokens)?,
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k,
        min_p: request.min_p,
        repetition_penalty: request.repetition_penalty,
        seed: request.seed,
        stop: request.stop,
        top_logprobs: logprobs::asked(request.logprobs, request.top_logprobs)?,
        grammar,
        n: request.n,
        sluice: request.sluice,
    };
    let choices = sampling.choices(1)?;
    let may_call = request.tool_choice != Some(ToolChoice::None);
    let tools = request
        .tools
        .filter(|_| may_call)
        .and_then(Tools::into_parts);
    let (tools_json, calls) = tools.unzip();
    let chat = v1::Chat {
        messages: messages::messages(messages.0)?,
        tools_json: tools_json.unwrap_or_default(),
    };
    Ok(Job {
        requests: sampling.requests(Input::Chat(chat), choices)?.collect(),
        choices_of_prompt: choices,
        infill: None,
        shape: Shape::Chat,
        calls: calls.map(|reader| Calls {
            reader,
            first_alone: request.parallel_tool_calls == Some(false),
        }),
        delivery: Delivery::new(request.stream, request.stream_options, &sampling)?,
        has_logprobs: sampling.top_logprobs.is_some(),
        terms: sampling.terms(),
    })
}

fn most_tokens(most: Option<u32>, older: Option<u32>) -> Result<Option<u32>, Failure> {
    match (most, older) {
        (Some(most), Some(older)) if most != older => {
            let problem = format!("is {older}, and max_completion_tokens {most}; leave one out");
            Err(Failure::field("max_tokens", problem))
        }
        (most, older) => Ok(most.or(older)),
    }
}
