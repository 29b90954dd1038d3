//! The chat template: a conversation as the one text the model was trained on.
//!
//! Templates come with checkpoints and are written for Hugging Face's Jinja set-up, which
//! this follows: block trimming, Python's string methods, `raise_exception`,
//! `strftime_now` and an unescaped `tojson`. They are not trusted: the source's size, the
//! length of an expression, the instructions, the depth and the output of one rendering are
//! bounded. What a few instructions may allocate by doubling a string is bounded by the
//! process that renders.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use serde::Serialize;

use super::config::{TEMPLATE_FILE, TokenizerConfig};
use super::conversation::TemplateInput;
use super::error::{TokenizerError, bounded};
use super::expression_size;
use super::limits::{RENDERED_BYTES_MAX, TEMPLATE_BYTES_MAX, TEMPLATE_STACK_BYTES};

/// LLaDA's own, from GSAI-ML/LLaDA-8B-Instruct as published in February 2025 (MIT).
const LLADA: &str = include_str!("llada_chat_template.jinja");

/// That of RWKV's models with the world tokenizer, after llama.cpp's `rwkv-world`.
const RWKV: &str = include_str!("rwkv_chat_template.jinja");

/// The file names that errors give for them.
const BUILT_IN: &str = "sluice (built in)";
const BUILT_IN_RWKV: &str = "sluice (built in, for RWKV)";
const CONFIG_FILE: &str = "tokenizer_config.json";

/// What errors call the places that a template may come from.
pub(super) const SOURCES: [&str; 4] = [BUILT_IN, CONFIG_FILE, TEMPLATE_FILE, BUILT_IN_RWKV];

// Instructions grow with the conversation, since a template loops over its turns.
const INSTRUCTIONS_MAX: u64 = 200_000;
const INSTRUCTIONS_PER_TURN_MAX: u64 = 1_000;
const DEPTH_MAX: usize = 100;

pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    tokens: Vec<(&'static str, String)>,
    file: &'static str,
    takes_tools: bool,
}

/// What a chat template can be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TemplateUses {
    /// Whether it is the checkpoint's, or its family's.
    pub(super) is_own: bool,
    /// Whether it has a place for functions that the model may call.
    pub(super) takes_tools: bool,
}

impl ChatTemplate {
    /// The checkpoint's template; LLaDA's where it has none.
    pub(super) fn new(
        config: &TokenizerConfig,
        has_token: impl Fn(&str) -> bool,
    ) -> Result<Self, TokenizerError> {
        Self::parse(config, (BUILT_IN, LLADA), has_token)
    }

    /// The same of a world vocabulary: RWKV's where the checkpoint has none.
    pub(super) fn of_world(config: &TokenizerConfig) -> Result<Self, TokenizerError> {
        Self::parse(config, (BUILT_IN_RWKV, RWKV), |_| false)
    }

    fn parse(
        config: &TokenizerConfig,
        built_in: (&'static str, &str),
        has_token: impl Fn(&str) -> bool,
    ) -> Result<Self, TokenizerError> {
        let (file, source) = match &config.chat_template {
            Some(source) if config.has_template_file => (TEMPLATE_FILE, source.as_str()),
            Some(source) => (CONFIG_FILE, source.as_str()),
            None => built_in,
        };
        let fail = |cause: String| TokenizerError::Template { file, cause };
        if source.len() > TEMPLATE_BYTES_MAX {
            return Err(fail(format!(
                "{} bytes exceed the limit of {TEMPLATE_BYTES_MAX}",
                source.len()
            )));
        }
        let (environment, takes_tools) = parse(source).map_err(fail)?;

        // A special token that the configuration does not name is LLaDA's if the vocabulary has it: the built-in
        // template needs both.
        let mut tokens = config.tokens.clone();
        for (key, llada) in [
            ("bos_token", "<|startoftext|>"),
            ("eos_token", "<|endoftext|>"),
        ] {
            if tokens.iter().all(|(present, _)| *present != key) {
                let token = if has_token(llada) { llada } else { "" };
                tokens.push((key, token.to_owned()));
            }
        }
        Ok(Self {
            environment,
            tokens,
            file,
            takes_tools,
        })
    }

    pub(super) fn uses(&self) -> TemplateUses {
        TemplateUses {
            is_own: self.file != BUILT_IN,
            takes_tools: self.takes_tools,
        }
    }

    /// A conversation as text, ready for the model's answer.
    pub(super) fn render(&self, input: TemplateInput) -> Result<String, TokenizerError> {
        let TemplateInput { messages, tools } = input;
        // A template loops over its messages, and over the functions.
        let loops = messages.len() + tools.len().unwrap_or(0);
        let fuel = INSTRUCTIONS_MAX + INSTRUCTIONS_PER_TURN_MAX * loops as u64;

        let mut variables = vec![
            ("messages", Value::from(messages)),
            ("add_generation_prompt", Value::from(true)),
            // Hugging Face always passes these two, and templates test them for `none`.
            ("tools", tools),
            ("documents", Value::from(())),
        ];
        for (key, token) in &self.tokens {
            variables.push((key, Value::from(token.as_str())));
        }

        // A clone for each rendering: fuel is set on the environment, which all renderings share.
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let mut output = BoundedOutput(Vec::new());
        environment
            .get_template(NAME)
            .and_then(|template| {
                template
                    .render_captured_to(Value::from_pairs(variables), &mut output)
                    .map(drop)
            })
            .map_err(|error| TokenizerError::Template {
                file: self.file,
                cause: bounded(error),
            })?;
        Ok(String::from_utf8(output.0).expect("a template writes strings"))
    }
}

const NAME: &str = "chat";

/// The template's environment, and whether it has a place for functions; parsed on a stack that is deep enough for [`TEMPLATE_EXPRESSION_TOKENS_MAX`].
///
/// [`TEMPLATE_EXPRESSION_TOKENS_MAX`]: super::limits::TEMPLATE_EXPRESSION_TOKENS_MAX
fn parse(source: &str) -> Result<(Environment<'static>, bool), String> {
    let source = source.to_owned();
    let thread = std::thread::Builder::new().stack_size(TEMPLATE_STACK_BYTES);
    let parsing = thread.spawn(|| environment(source)).map_err(bounded)?;
    let parsed = parsing.join();
    parsed
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::SyntaxError, "the parser panicked")))
        .map_err(bounded)
}

fn environment(source: String) -> Result<(Environment<'static>, bool), Error> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()?;
    expression_size::check(&source, &syntax)?;
    environment.set_syntax(syntax);
    environment.set_recursion_limit(DEPTH_MAX);
    // Templates write plain text: HTML's escapes would become tokens.
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function(
        "raise_exception",
        |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        },
    );
    environment.add_function("strftime_now", |format: String| -> String {
        super::clock::strftime(&format, super::clock::seconds_now())
    });
    // In the place of minijinja's own, which escapes for HTML.
    environment.add_filter("tojson", tojson);
    environment.add_template_owned(NAME, source)?;
    let variables = environment.get_template(NAME)?.undeclared_variables(false);
    Ok((environment, variables.contains("tools")))
}

/// `json.dumps` as Hugging Face calls it: nothing escaped for HTML, a space after `,` and `:`.
fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // The template chooses the indentation, so it is bounded.
    let mut json = Vec::new();
    let written = match indent {
        Some(width) => {
            let indent = " ".repeat(width.min(16));
            let formatter = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(
                &mut json, formatter,
            ))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(
            &mut json, PythonJson,
        )),
    };
    written.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(String::from_utf8(json).expect("JSON is UTF-8"))
}

struct PythonJson;

impl serde_json::ser::Formatter for PythonJson {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first {
            Ok(())
        } else {
            writer.write_all(b", ")
        }
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first {
            Ok(())
        } else {
            writer.write_all(b", ")
        }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

struct BoundedOutput(Vec<u8>);

impl io::Write for BoundedOutput {
    // Checked before the copy: a template that writes one huge string is stopped before its memory is doubled.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > RENDERED_BYTES_MAX {
            return Err(io::Error::other(format!(
                "the output exceeds {RENDERED_BYTES_MAX} bytes"
            )));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
