//! Whether docs/http.md and docs/limits.md say what the tables here say.

use std::{fs, path::Path};

use crate::{
    extension::{Extension, Memory, Pin},
    fields::{FieldRow, Fields, documented},
    format::{NamedSchema, ResponseFormat},
    limits::*,
    ollama, openai,
    tools::{Function, Tool},
};

/// The rows of an object's fields, behind what leads to them.
type Group = (&'static str, &'static [FieldRow]);

/// The tables, by the headings that they stand under.
const TABLES: [(&str, &[Group]); 12] = [
    (
        "`/v1/chat/completions`",
        &[("", openai::chat::ChatRequest::ROWS)],
    ),
    ("Messages", &[("", openai::messages::Message::ROWS)]),
    (
        "`/v1/completions`",
        &[("", openai::completions::CompletionRequest::ROWS)],
    ),
    (
        "`/v1/embeddings`",
        &[("", openai::embeddings::EmbeddingRequest::ROWS)],
    ),
    ("Inside the fields of OpenAI's API", INSIDE_OPENAI),
    (
        "The key `sluice`",
        &[
            ("", Extension::ROWS),
            ("pins[].", Pin::ROWS),
            ("memory.", Memory::ROWS),
        ],
    ),
    ("`/api/chat`", &[("", ollama::chat::ChatRequest::ROWS)]),
    (
        "`/api/generate`",
        &[("", ollama::generate::GenerateRequest::ROWS)],
    ),
    ("`/api/embed`", &[("", ollama::embed::EmbedRequest::ROWS)]),
    (
        "Ollama's `options`",
        &[("", ollama::options::Options::ROWS)],
    ),
    ("Inside the fields of Ollama's API", INSIDE_OLLAMA),
    ("`/api/show`", &[("", ollama::models::ShowRequest::ROWS)]),
];

const INSIDE_OPENAI: &[Group] = &[
    ("messages[].content[].", openai::messages::Part::ROWS),
    (
        "messages[].tool_calls[].",
        openai::messages::EarlierCall::ROWS,
    ),
    (
        "messages[].tool_calls[].function.",
        openai::messages::EarlierFunction::ROWS,
    ),
    ("tools[].", Tool::ROWS),
    ("tools[].function.", Function::ROWS),
    ("response_format.", ResponseFormat::ROWS),
    ("response_format.json_schema.", NamedSchema::ROWS),
    ("stream_options.", openai::delivery::StreamOptions::ROWS),
];

const INSIDE_OLLAMA: &[Group] = &[
    ("messages[].", ollama::chat::Message::ROWS),
    ("messages[].tool_calls[].", ollama::chat::EarlierCall::ROWS),
    (
        "messages[].tool_calls[].function.",
        ollama::chat::EarlierFunction::ROWS,
    ),
];

const HEAD: &str = "| field | | |\n|---|---|---|\n";

/// The page with each table as it is here.
fn updated(mut page: String) -> String {
    for (heading, groups) in TABLES {
        let heading = format!("\n### {heading}\n");
        let at = page.find(&heading).unwrap_or_else(|| panic!("no{heading}"));
        let begin = at + page[at..].find(HEAD).expect("a table under each heading") + HEAD.len();
        let lines = page[begin..].lines();
        let old: usize = lines
            .take_while(|line| line.starts_with('|'))
            .map(|line| line.len() + 1)
            .sum();
        let rows = groups.iter().map(|(prefix, rows)| documented(prefix, rows));
        page.replace_range(begin..begin + old, &rows.collect::<String>());
    }
    page
}

/// `SLUICE_WRITE_SAMPLE=1` writes them into the page.
#[test]
fn every_field_is_written_down_with_what_becomes_of_it() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/http.md");
    let page = fs::read_to_string(&path).unwrap();
    let updated = updated(page.clone());
    if std::env::var_os("SLUICE_WRITE_SAMPLE").is_some() {
        fs::write(&path, &updated).unwrap();
        return;
    }
    for (line, expected) in page.lines().zip(updated.lines()) {
        assert_eq!(line, expected, "SLUICE_WRITE_SAMPLE=1 writes the tables");
    }
    assert_eq!(page, updated);
}

#[test]
fn every_limit_is_written_down_with_its_value() {
    let page = include_str!("../../../docs/limits.md");
    let mib = |bytes: usize| format!("{} MiB", bytes >> 20);
    let kib = |bytes: usize| format!("{} KiB", bytes >> 10);
    let rows = [
        ("BODY_BYTES_MAX", mib(BODY_BYTES_MAX)),
        ("BUFFER_BYTES_MAX", kib(BUFFER_BYTES_MAX)),
        ("HEADERS_MAX", HEADERS_MAX.to_string()),
        ("TEXTS_MAX", TEXTS_MAX.to_string()),
        ("TOKEN_IDS_MAX", TOKEN_IDS_MAX.to_string()),
        ("CHOICES_MAX", CHOICES_MAX.to_string()),
        ("LABELLED_MODELS_MAX", LABELLED_MODELS_MAX.to_string()),
        ("HEADER_TIMEOUT", format!("{} s", HEADER_TIMEOUT.as_secs())),
        ("BODY_TIMEOUT", format!("{} s", BODY_TIMEOUT.as_secs())),
        (
            "KEEP_ALIVE_TIMEOUT",
            format!("{} s", KEEP_ALIVE_TIMEOUT.as_secs()),
        ),
        (
            "REQUEST_TIMEOUT_MAX",
            format!("{} h", REQUEST_TIMEOUT_MAX.as_secs() / 3600),
        ),
        (
            "WRITE_TIMEOUT",
            format!("{} min", WRITE_TIMEOUT.as_secs() / 60),
        ),
        (
            "HEARTBEAT_INTERVAL",
            format!("{} s", HEARTBEAT_INTERVAL.as_secs()),
        ),
    ];
    for (name, value) in &rows {
        let row = format!("| `{name}` | {value} |");
        assert!(page.contains(&row), "docs/limits.md lacks {row}");
    }
    let constants = include_str!("limits.rs").matches("\npub const ").count();
    assert_eq!(rows.len(), constants, "a limit is not in this test");
}
