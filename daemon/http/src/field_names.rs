//! What the fields of the daemon's schema are called in each API: the daemon's refusals name them.

/// A path that takes requests for text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextApi {
    /// OpenAI's `/v1/chat/completions`.
    Chat,
    /// OpenAI's `/v1/completions`.
    Completions,
    /// Ollama's `/api/chat`.
    OllamaChat,
    /// Ollama's `/api/generate`.
    OllamaGenerate,
}

/// Fields that each API calls otherwise: the schema's name, and those of the APIs in their order; empty where an API has none.
#[rustfmt::skip]
const NAMES: [(&str, [&str; 4]); 16] = [
    ("length", ["max_tokens", "max_tokens", "options.num_predict", "options.num_predict"]),
    ("chat", ["messages", "", "messages", "prompt"]),
    ("chat.tools_json", ["tools", "", "tools", ""]),
    ("raw_text", ["", "prompt", "", "prompt"]),
    ("tokens", ["", "prompt", "", ""]),
    ("edit", ["", "suffix", "", "suffix"]),
    ("edit.span_tokens", ["", "max_tokens", "", "options.num_predict"]),
    ("autoregressive.stop", ["stop", "stop", "options.stop", "options.stop"]),
    ("autoregressive.top_logprobs", ["top_logprobs", "logprobs", "top_logprobs", "top_logprobs"]),
    ("autoregressive.grammar", ["response_format", "", "format", "format"]),
    ("sampling.temperature", ["temperature", "temperature", "options.temperature", "options.temperature"]),
    ("sampling.top_k", ["top_k", "top_k", "options.top_k", "options.top_k"]),
    ("sampling.top_p", ["top_p", "top_p", "options.top_p", "options.top_p"]),
    ("sampling.min_p", ["min_p", "min_p", "options.min_p", "options.min_p"]),
    ("sampling.repetition_penalty", ["repetition_penalty", "repetition_penalty", "options.repeat_penalty", "options.repeat_penalty"]),
    ("sampling.seed", ["seed", "seed", "options.seed", "options.seed"]),
];

/// Fields that all APIs have under the key `sluice`, beside the options of masked diffusion, whose names are the same there.
const OWN_NAMES: [(&str, &str); 9] = [
    ("block_length", "sluice.block_length"),
    ("memory", "sluice.memory"),
    ("memory.collections", "sluice.memory.collections"),
    ("memory.pinned_names", "sluice.memory.pinned_names"),
    ("sampling.greedy", "sluice.greedy"),
    ("sampling.eos_policy", "sluice.eos_policy"),
    ("thinking", "sluice"),
    ("thinking.steps", "sluice.think_steps"),
    ("thinking.prior", "sluice.prior"),
];

impl TextApi {
    /// The name that a field of the schema has here; `None`: requests have no such field, or it is called the same.
    pub(crate) fn name(self, field: &str) -> Option<String> {
        let field = match field.split_once('.') {
            Some(("diffusion", option)) => return Some(format!("sluice.{option}")),
            Some(("edit", of_text)) if of_text != "span_tokens" => "edit",
            _ => field,
        };
        let own = OWN_NAMES.iter().find(|(schema, _)| *schema == field);
        let differing = || NAMES.iter().find(|(schema, _)| *schema == field);
        let name = match own {
            Some((_, name)) => name,
            None => differing()?.1[self as usize],
        };
        (!name.is_empty()).then(|| name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost_types::FileDescriptorSet;

    use super::*;
    use crate::{
        extension::{Extension, Memory},
        fields::{FieldRow, Fields},
        ollama, openai,
    };

    const APIS: [(TextApi, &[FieldRow]); 4] = [
        (TextApi::Chat, openai::chat::ChatRequest::ROWS),
        (
            TextApi::Completions,
            openai::completions::CompletionRequest::ROWS,
        ),
        (TextApi::OllamaChat, ollama::chat::ChatRequest::ROWS),
        (
            TextApi::OllamaGenerate,
            ollama::generate::GenerateRequest::ROWS,
        ),
    ];

    /// Whether an API's requests have a field of this name.
    fn has(rows: &[FieldRow], name: &str) -> bool {
        let (object, key) = name.rsplit_once('.').unwrap_or(("", name));
        let inner = match object {
            "" => rows,
            "sluice" => Extension::ROWS,
            "sluice.memory" => Memory::ROWS,
            "options" => ollama::options::Options::ROWS,
            _ => return false,
        };
        inner.iter().any(|row| row.name == key) && (object.is_empty() || has(rows, object))
    }

    /// The fields of a message of the schema.
    fn schema_fields(message: &str) -> Vec<String> {
        let set = FileDescriptorSet::decode(sluice_proto::FILE_DESCRIPTOR_SET).unwrap();
        let mut messages = set.file.iter().flat_map(|file| &file.message_type);
        let message = messages.find(|found| found.name() == message).unwrap();
        (message.field.iter())
            .map(|field| field.name().to_owned())
            .collect()
    }

    #[test]
    fn each_name_is_one_of_the_apis_fields() {
        let diffusion = schema_fields("DiffusionOptions").into_iter();
        let diffusion = diffusion.map(|option| format!("diffusion.{option}"));
        let tables = NAMES.iter().map(|(field, _)| *field);
        let tables = tables.chain(["edit.text", "edit.span_end_bytes"]);
        let tables = tables.chain(OWN_NAMES.iter().map(|(field, _)| *field));
        let fields: Vec<_> = tables.map(str::to_owned).chain(diffusion).collect();
        for (api, rows) in APIS {
            for field in &fields {
                if let Some(name) = api.name(field) {
                    assert!(has(rows, &name), "{api:?}: {field} is no {name}");
                }
            }
        }
    }

    #[test]
    fn a_field_has_the_name_that_its_caller_gave_it() {
        for (api, field, name) in [
            (TextApi::Completions, "edit.text", "suffix"),
            (
                TextApi::Completions,
                "autoregressive.top_logprobs",
                "logprobs",
            ),
            (
                TextApi::OllamaChat,
                "sampling.eos_policy",
                "sluice.eos_policy",
            ),
            (TextApi::OllamaChat, "thinking.steps", "sluice.think_steps"),
            (
                TextApi::OllamaGenerate,
                "autoregressive.stop",
                "options.stop",
            ),
            (
                TextApi::OllamaGenerate,
                "block_length",
                "sluice.block_length",
            ),
        ] {
            assert_eq!(api.name(field).as_deref(), Some(name));
        }
        assert_eq!(TextApi::Chat.name("model"), None);
    }

    #[test]
    fn each_way_to_choose_tokens_has_a_name_in_each_api() {
        // These APIs say that for every request.
        let options = schema_fields("SamplingOptions").into_iter();
        for option in options.filter(|option| option != "skip_unused_temperature") {
            for (api, _) in APIS {
                assert!(
                    api.name(&format!("sampling.{option}")).is_some(),
                    "{option}"
                );
            }
        }
    }
}
