//! `POST /api/chat`.

use serde_json::value::RawValue;
use sluice_proto::{
    model::{MESSAGES_MAX, TOOLS_MAX},
    v1::{self, generate_request::Input},
};

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
    logprobs,
    services::Services,
    streaming::Answer,
    tools::{self, Tools},
    values::Few,
};

fields! {
    /// A request of Ollama's chats.
    pub(crate) struct ChatRequest {
        honoured model: String = "a name of `GET /api/tags`; absent: the present model",
        honoured messages: Few<Message, MESSAGES_MAX> = "roles `system`, `user`, `assistant`, `tool`; none: the model is loaded, and nothing is written",
        honoured tools: Tools = "functions, as in OpenAI's API",
        honoured options: Options = "see below",
        honoured format: Format = "autoregressive models: `\"json\"`, or a JSON schema",
        honoured stream: bool = "lines of JSON, unless `false`",
        honoured logprobs: bool = "autoregressive models: log-probabilities of the answer's tokens",
        honoured top_logprobs: u32 = "with `logprobs`: those of the so many most probable tokens beside, at most 20",
        honoured sluice: Extension = "all that is Sluice's own",
        honoured keep_alive: KeepAlive = "0 in a request without messages: the model is unloaded; else how long it stays is the administrator's to say (`idle_unload`)",
        refused "think" unless False, "latent thought models have `sluice.think_steps`",
    }
}

fields! {
    /// A message of a conversation.
    pub(crate) struct Message {
        honoured role: String = "`system`, `user`, `assistant`, `tool`",
        honoured content: String = "the text",
        honoured tool_calls: Few<EarlierCall, TOOLS_MAX> = "the calls of an earlier answer",
        honoured tool_name: String = "which function a message of a tool is from",
        honoured tool_call_id: String = "which call it answers",
        accepted "thinking" = "templates have no place for it",
        refused "images" unless Empty, "models here read text",
    }
}

fields! {
    /// A call of an earlier answer.
    pub(crate) struct EarlierCall {
        honoured id: String = "which call it is",
        honoured function: EarlierFunction = "what was called",
        accepted "type" = "it is a function",
    }
}

fields! {
    /// What was called.
    pub(crate) struct EarlierFunction {
        honoured name: String = "the function",
        honoured arguments: Box<RawValue> = "an object",
        accepted "index" = "a list has an order",
        accepted "description" = "the template has it from the functions",
    }
}

/// Answers a chat.
///
/// # Errors
/// When the request is wrong or refused.
pub(crate) async fn answer(services: &Services, body: HeldBody) -> Result<Answer, Failure> {
    let request: ChatRequest = fields::read(body.bytes())?;
    if request
        .messages
        .as_ref()
        .is_none_or(|list| list.0.is_empty())
    {
        let request = LoadRequest {
            shape: Shape::Chat,
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

fn job(request: ChatRequest) -> Result<Job, Failure> {
    let messages = request.messages.unwrap_or_default();
    let messages = messages.0.into_iter().map(Message::into_chat);
    let (tools_json, calls) = request.tools.and_then(Tools::into_parts).unzip();
    let chat = v1::Chat {
        messages: messages.collect::<Result<_, _>>()?,
        tools_json: tools_json.unwrap_or_default(),
    };
    let options = request.options.unwrap_or_default();
    let top_logprobs = logprobs::asked(request.logprobs, request.top_logprobs)?;
    let sampling = options.sampling(
        TextApi::OllamaChat,
        request.model,
        request.sluice,
        top_logprobs,
        request.format,
    )?;
    Ok(Job {
        request: sampling.request(Input::Chat(chat))?,
        infill: None,
        terms: sampling.terms(),
        shape: Shape::Chat,
        calls,
        stream: request.stream.unwrap_or(true),
    })
}

impl Message {
    fn into_chat(self) -> Result<v1::ChatMessage, Failure> {
        let role = match self.role.as_deref() {
            Some("system") => v1::ChatRole::System,
            Some("user") => v1::ChatRole::User,
            Some("assistant") => v1::ChatRole::Assistant,
            Some("tool") => v1::ChatRole::Tool,
            other => {
                let role = other.unwrap_or("none");
                let problem =
                    format!("`{role}` is no role; there are system, user, assistant and tool");
                return Err(Failure::field("messages", problem));
            }
        };
        let calls = self.tool_calls.unwrap_or_default().0.into_iter();
        Ok(v1::ChatMessage {
            role: role.into(),
            content: self.content.unwrap_or_default(),
            tool_calls: calls
                .map(EarlierCall::into_call)
                .collect::<Result<_, _>>()?,
            tool_call_id: self.tool_call_id.unwrap_or_default(),
            name: self.tool_name.unwrap_or_default(),
        })
    }
}

impl EarlierCall {
    fn into_call(self) -> Result<v1::ToolCall, Failure> {
        let function = self.function.unwrap_or_default();
        let arguments = function.arguments.as_deref().map_or("", RawValue::get);
        tools::earlier_call(
            self.id.unwrap_or_default(),
            function.name,
            arguments.to_owned(),
        )
    }
}
