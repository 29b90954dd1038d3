//! The form with the options of requests. Names, help, validation and conversion are those of the flags of `sluice generate`,
//! taken from its parser, so that form and command line cannot differ.

use std::{collections::BTreeMap, sync::LazyLock};

use clap::{CommandFactory, Parser};
use sluice_proto::v1::{GenerateRequest, ModelKind, ModelShape, Snapshot, generate_request::Input};
use sluice_shared::{
    decoding::{CanvasGrowth, DecodingError, KvCacheReuse, Speculation},
    level::Level,
    policy::POLICIES,
    preset::{PRESETS, Preset},
    prior::PriorSolver,
    renames, units,
};

use super::line::EditLine;
use crate::cli::{Cli, Command, Generate};

/// Flags that the form has, in its order.
pub const NAMES: [&str; 25] = [
    "length",
    "preset",
    "policy",
    "kv-cache",
    "suffix-window",
    "canvas-growth",
    "speculate",
    "block",
    "steps",
    "temperature",
    "guidance",
    "remasking",
    "eos",
    "seed",
    "top-k",
    "top-p",
    "min-p",
    "repetition-penalty",
    THINK,
    PRIOR,
    "memory",
    COLLECTIONS,
    "memory-names",
    "stop",
    "system",
];

/// Separates the values of a flag that may be repeated.
const BETWEEN: &str = " | ";
/// Fields that only one kind of model accepts.
const KINDS: [(&str, ModelKind); 15] = [
    ("preset", ModelKind::MaskedDiffusion),
    ("policy", ModelKind::MaskedDiffusion),
    ("kv-cache", ModelKind::MaskedDiffusion),
    ("suffix-window", ModelKind::MaskedDiffusion),
    ("canvas-growth", ModelKind::MaskedDiffusion),
    ("speculate", ModelKind::MaskedDiffusion),
    ("steps", ModelKind::MaskedDiffusion),
    ("guidance", ModelKind::MaskedDiffusion),
    ("remasking", ModelKind::MaskedDiffusion),
    ("memory-names", ModelKind::MaskedDiffusion),
    ("top-k", ModelKind::Autoregressive),
    ("top-p", ModelKind::Autoregressive),
    ("min-p", ModelKind::Autoregressive),
    ("repetition-penalty", ModelKind::Autoregressive),
    (STOP, ModelKind::Autoregressive),
];
/// The one field that a request cannot have beside those of masked diffusion models.
const STOP: &str = "stop";
/// The field with the collections of what the daemon remembers.
const COLLECTIONS: &str = "memory-collection";
/// The fields that only models with latents accept, and their family.
const THINK: &str = "think";
const PRIOR: &str = "prior";
const LATENT_FAMILY: &str = "ltm";

/// The kind of model that a field is limited to; `None` if every kind accepts it.
fn kind_of(name: &str) -> Option<ModelKind> {
    let mut kinds = KINDS.into_iter();
    let (_, kind) = kinds.find(|(known, _)| *known == name)?;
    Some(kind)
}

/// Options of requests. Those that are not set are left to the daemon.
#[derive(Debug, Default)]
pub struct RequestOptions {
    /// Index of the selected field in [`FIELDS`].
    pub field: usize,
    /// The text that is being written in the selected field.
    pub line: EditLine,
    /// Why that text is not accepted; `None` if it is.
    pub problem: Option<String>,
    values: BTreeMap<&'static str, String>,
}

/// A flag as the command line's parser knows it.
#[derive(Debug)]
pub struct OptionField {
    /// The flag's name, without dashes.
    pub name: &'static str,
    /// The flag's help, without its default.
    pub help: String,
    /// The default as the help tells it; `None` where it tells none.
    pub default: Option<String>,
    /// Values to choose from, each with its meaning; empty where any number or text is accepted.
    pub choices: Vec<(String, String)>,
}

/// All fields, as [`NAMES`] orders them.
pub static FIELDS: LazyLock<Vec<OptionField>> = LazyLock::new(|| {
    let command = Cli::command();
    let generate = command.find_subcommand("generate");
    let all: Vec<_> = generate
        .into_iter()
        .flat_map(|c| c.get_arguments())
        .collect();
    let field = |name: &'static str| {
        let argument = all
            .iter()
            .find(|argument| argument.get_long() == Some(name));
        let help = argument.and_then(|argument| argument.get_help());
        let help = help.map(ToString::to_string).unwrap_or_default();
        let possible = argument.map(|argument| argument.get_possible_values());
        let possible = possible.into_iter().flatten().map(|value| {
            let help = value.get_help().map(ToString::to_string);
            (value.get_name().to_owned(), help.unwrap_or_default())
        });
        let choices = match name {
            "preset" => (PRESETS.iter())
                .map(|row| (row.name.to_owned(), preset_words(row)))
                .collect(),
            "policy" => (POLICIES.iter())
                .map(|policy| (policy.name.to_owned(), policy.summary.to_owned()))
                .collect(),
            "kv-cache" => known(UNKNOWN.parse::<KvCacheReuse>().err()),
            "canvas-growth" => known(UNKNOWN.parse::<CanvasGrowth>().err()),
            "speculate" => known(UNKNOWN.parse::<Speculation>().err()),
            PRIOR => PriorSolver::ALL
                .map(|solver| (solver.name().to_owned(), String::new()))
                .into(),
            _ => possible.collect(),
        };
        let (help, default) = match help.rsplit_once(" [default: ") {
            Some((help, default)) => (
                help.to_owned(),
                Some(default.trim_end_matches(']').to_owned()),
            ),
            None => (help, None),
        };
        OptionField {
            name,
            help,
            default,
            choices,
        }
    };
    NAMES.map(field).into()
});

/// Not the name of any setting: the error about it lists the names that are known.
const UNKNOWN: &str = "?";

fn known(error: Option<DecodingError>) -> Vec<(String, String)> {
    let words = match error {
        Some(DecodingError::Unknown { known, .. }) => known,
        Some(DecodingError::InvalidValue { .. }) | None => "",
    };
    let words = words.split(", ").filter(|word| !word.is_empty());
    words.map(|word| (word.to_owned(), String::new())).collect()
}

fn preset_words(row: &sluice_shared::preset::PresetInfo) -> String {
    let window = row
        .suffix_window
        .map_or("none".to_owned(), |window| window.to_string());
    format!(
        "{} (policy {}, KV cache {}, suffix window {window}, canvas growth {})",
        row.summary, row.policy, row.kv_cache, row.canvas_growth
    )
}

impl RequestOptions {
    /// Restores saved values, without those that are no longer understood. Flags that were renamed since then are found by their
    /// old names.
    #[must_use]
    pub fn restored(values: &BTreeMap<String, String>) -> Self {
        let mut options = Self::default();
        for (name, value) in values {
            let is_field = |name: &str| NAMES.contains(&name);
            let new = renames::flag(name, is_field).unwrap_or(name);
            let Some(known) = NAMES.into_iter().find(|known| *known == new) else {
                continue;
            };
            // The keys of this value were renamed as well.
            let reuse = value.parse::<KvCacheReuse>().ok();
            let value = match reuse.filter(|_| new == "kv-cache" && name != new) {
                Some(reuse) => reuse.to_string(),
                None => value.clone(),
            };
            // A value that this version refuses is dropped: the daemon's default applies.
            let _ = options.set(known, &value);
        }
        options
    }

    /// The values that are set, by the flags' names.
    #[must_use]
    pub fn values(&self) -> BTreeMap<String, String> {
        let values = self.values.iter();
        values
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect()
    }

    /// The value of a field; `None` if it is not set.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// The preset; `None` if it is not set.
    #[must_use]
    pub fn preset(&self) -> Option<Preset> {
        self.value("preset")?.parse().ok()
    }

    /// Sets a field; an empty value unsets it, which leaves it to the daemon.
    ///
    /// # Errors
    /// The command line's message about the value.
    pub fn set(&mut self, name: &'static str, value: &str) -> Result<(), String> {
        let mut values = self.values.clone();
        match value.trim() {
            "" => values.remove(name),
            value => values.insert(name, value.to_owned()),
        };
        parse(&of_kind(&values, kind_of(name).unwrap_or_default()))?;
        self.values = values;
        Ok(())
    }

    /// Writes the options into a request to a model of this kind. Where options of both kinds are set, those of the other kind
    /// are left out.
    pub fn apply(&self, kind: ModelKind, request: &mut GenerateRequest) {
        // Every value was validated when it was set, so parsing cannot fail here.
        if let Ok(arguments) = parse(&of_kind(&self.values, kind)) {
            request.length = arguments.length;
            // Memory goes into conversations alone.
            if matches!(request.input, Some(Input::Chat(_))) {
                arguments.memory.apply(request);
            }
            arguments.decoding.apply(request);
        }
    }

    /// The system prompt; `None` if it is not set.
    #[must_use]
    pub fn system(&self) -> Option<String> {
        self.value("system").map(str::to_owned)
    }

    /// The collection that takes what is remembered from here; empty: the default.
    #[must_use]
    pub fn remembers_in(&self) -> String {
        let collections = self.value(COLLECTIONS).unwrap_or_default();
        let first = collections.split(BETWEEN).next();
        first.unwrap_or_default().to_owned()
    }

    /// The options as flags of `sluice generate`; `None` if none are set. The system prompt is left out: it is shown elsewhere.
    #[must_use]
    pub fn flags(&self) -> Option<String> {
        let names = NAMES.iter().filter(|name| **name != "system");
        let set = names.filter_map(|name| {
            let value = self.values.get(name)?;
            Some(format!("--{name} {value}"))
        });
        let words: Vec<_> = set.collect();
        (!words.is_empty()).then(|| words.join(" "))
    }
}

/// The values without those that conflict in a request to a model of this kind.
fn of_kind(
    values: &BTreeMap<&'static str, String>,
    kind: ModelKind,
) -> BTreeMap<&'static str, String> {
    let mut values = values.clone();
    if values.contains_key(STOP) {
        let is_diffusion = |name: &str| kind_of(name) == Some(ModelKind::MaskedDiffusion);
        match kind {
            ModelKind::Autoregressive => values.retain(|name, _| !is_diffusion(name)),
            _ if values.keys().any(|name| is_diffusion(name)) => drop(values.remove(STOP)),
            _ => {}
        }
    }
    values
}

/// Parses values by the command line's own parser.
fn parse(values: &BTreeMap<&'static str, String>) -> Result<Generate, String> {
    let mut arguments = vec!["sluice".to_owned(), "generate".to_owned()];
    for (name, value) in values {
        // `--name=value` in one word: a value that begins with a dash must not be read as a flag.
        let parts: Vec<&str> = match *name {
            STOP | COLLECTIONS => value.split(BETWEEN).collect(),
            _ => vec![value],
        };
        arguments.extend(parts.iter().map(|part| format!("--{name}={part}")));
    }
    arguments.push("prompt".to_owned());
    match Cli::try_parse_from(arguments).map(|cli| cli.command) {
        Ok(Some(Command::Generate(generate))) => Ok(generate),
        Ok(_) => Err("not understood".to_owned()),
        Err(error) => Err(in_a_line(&error.render().to_string())),
    }
}

/// The parser's message in one line, without the usage.
fn in_a_line(error: &str) -> String {
    let first = error.split("\n\n").next().unwrap_or_default();
    let words: Vec<_> = first.split_whitespace().collect();
    let line = words.join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

/// Why the loaded model does not accept a field; `None` if it does or the model is not known.
#[must_use]
pub fn unfit(field: &OptionField, shape: Option<&ModelShape>) -> Option<&'static str> {
    let shape = shape?;
    if [THINK, PRIOR].contains(&field.name) {
        let has_latents = shape.family.is_empty() || shape.family == LATENT_FAMILY;
        return (!has_latents).then_some("only latent thought models (ltm) support it");
    }
    match (shape.kind(), kind_of(field.name)?) {
        (ModelKind::Autoregressive, ModelKind::MaskedDiffusion) => {
            Some("the loaded model is autoregressive: it decodes one token per pass")
        }
        (ModelKind::MaskedDiffusion, ModelKind::Autoregressive) => Some(
            "only autoregressive models support it; the loaded model is a masked diffusion model",
        ),
        _ => None,
    }
}

/// Help for a field and for the value that is written in it, the most important line first.
#[must_use]
pub fn advice(field: &OptionField, value: &str, snapshot: Option<&Snapshot>) -> Vec<String> {
    let mut lines = vec![field.help.clone()];
    let word = value.split(':').next().unwrap_or_default();
    match field.choices.iter().find(|(name, _)| name == word) {
        Some((name, about)) if !about.is_empty() => lines.push(format!("{name}: {about}")),
        _ if !field.choices.is_empty() => {
            let names: Vec<_> = field
                .choices
                .iter()
                .map(|(name, _)| name.as_str())
                .collect();
            lines.push(format!("one of {}", names.join(", ")));
        }
        _ => {}
    }
    if field.name == "policy" {
        let policy = POLICIES.iter().find(|policy| policy.name == word);
        let parameters = policy.into_iter().flat_map(|policy| policy.parameters);
        lines.extend(parameters.map(|parameter| {
            format!(
                "{}: {}, from {} to {}, else {}",
                parameter.name, parameter.summary, parameter.min, parameter.max, parameter.default
            )
        }));
    }
    if [STOP, COLLECTIONS].contains(&field.name) {
        lines.push(format!("separate several with \"{BETWEEN}\""));
    }
    let plan = snapshot.and_then(|snapshot| snapshot.plan.as_ref());
    let level = plan.and_then(|plan| plan.level().checked());
    let limits = level.and_then(Level::advised_limits);
    let limit = limits.and_then(|limits| match field.name {
        "length" => Some(limits.length),
        "block" => Some(limits.block_length),
        "steps" => Some(limits.steps),
        _ => None,
    });
    if let (Some(level), Some(limit)) = (level, limit) {
        lines.push(format!("level {level} recommends at most {limit}"));
    }
    let model = snapshot.and_then(|snapshot| snapshot.model.as_ref());
    let context = model.and_then(|model| Some(model.shape.as_ref()?.context_length));
    if let (Some(context @ 1..), "length") = (context, field.name) {
        lines.push(format!(
            "the model's context has {} positions, the prompt's included",
            units::count(context.into())
        ));
    }
    let pass_ms = plan.and_then(|plan| plan.pass_ms);
    if let (Some(pass_ms), Ok(passes), "length" | "steps") =
        (pass_ms, value.trim().parse::<u32>(), field.name)
    {
        lines.push(format!(
            "{} passes of {}: about {}, predicted",
            units::count(passes.into()),
            units::duration_ms(pass_ms),
            units::duration_ms(pass_ms * f64::from(passes))
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::{
        AutoregressiveOptions, Chat, DecodingPreset as WirePreset, Plan, generate_request::Decoding,
    };

    use super::*;

    /// Flags of `sluice generate` that say what goes in and comes out, not how; and one that is a temperature of 0 and a penalty
    /// of 1 in the form.
    const LEFT_OUT: [&str; 15] = [
        "tokens",
        "raw",
        "pin",
        "thoughts",
        "save-thoughts",
        "state",
        "save-state",
        // It shows the present model.
        "model",
        "logprobs",
        "json-schema",
        "regex",
        "grammar",
        "json",
        "help",
        "greedy",
    ];

    fn field(name: &str) -> &'static OptionField {
        let field = FIELDS.iter().find(|field| field.name == name);
        field.expect("a field")
    }

    #[test]
    fn the_form_has_every_flag_of_a_request() {
        let command = Cli::command();
        let generate = command.find_subcommand("generate").expect("is there");
        for flag in generate.get_arguments().filter_map(|a| a.get_long()) {
            assert!(NAMES.contains(&flag) || LEFT_OUT.contains(&flag), "{flag}");
        }
        for field in FIELDS.iter() {
            assert!(!field.help.is_empty(), "{}", field.name);
        }
    }

    #[test]
    fn memory_goes_into_conversations_alone() {
        let mut options = RequestOptions::default();
        options.set("memory", "64").unwrap();
        options.set(COLLECTIONS, "notes | papers").unwrap();
        let memory = |input| {
            let mut request = GenerateRequest {
                input: Some(input),
                ..Default::default()
            };
            options.apply(ModelKind::Autoregressive, &mut request);
            request.memory
        };
        let chat = memory(Input::Chat(Chat::default())).expect("asked for");
        assert_eq!(chat.max_tokens, Some(64));
        assert_eq!(chat.collections, ["notes", "papers"]);
        assert_eq!(memory(Input::RawText("x".into())), None);
    }

    #[test]
    fn every_choice_is_understood() {
        let mut count = 0;
        for field in FIELDS.iter() {
            for (choice, _) in &field.choices {
                assert_eq!(RequestOptions::default().set(field.name, choice), Ok(()));
                count += 1;
            }
        }
        assert!(count > 25, "{count}");
    }

    #[test]
    fn what_is_set_is_in_the_request_and_in_the_flags() {
        let mut options = RequestOptions::default();
        for (name, value) in [
            ("length", " 64 "),
            ("preset", "balanced"),
            ("temperature", "0.5"),
            ("stop", "a | -b"),
            ("system", "--be brief"),
        ] {
            options.set(name, value).unwrap();
        }
        let request = |kind: ModelKind| {
            let mut request = GenerateRequest::default();
            options.apply(kind, &mut request);
            assert_eq!(request.length, Some(64));
            assert_eq!(request.sampling.unwrap().temperature, Some(0.5));
            request
        };
        // Each kind of model gets its own.
        let masked = request(ModelKind::MaskedDiffusion);
        assert_eq!(
            masked.diffusion().expect("set").preset(),
            WirePreset::Balanced
        );
        let stop = vec!["a".to_owned(), "-b".to_owned()];
        let causal = Decoding::Autoregressive(AutoregressiveOptions {
            stop,
            ..Default::default()
        });
        assert_eq!(request(ModelKind::Autoregressive).decoding, Some(causal));
        assert_eq!(options.system().as_deref(), Some("--be brief"));
        let flags = options.flags().expect("some are set");
        assert!(flags.starts_with("--length 64 --preset balanced --temperature 0.5"));
        let again = RequestOptions::restored(&options.values());
        assert_eq!(again.values(), options.values());
        options.set("length", "").unwrap();
        assert_eq!(options.value("length"), None);
    }

    #[test]
    fn steps_of_thinking_are_in_the_request() {
        let mut options = RequestOptions::default();
        options.set("think", "0").unwrap();
        let mut request = GenerateRequest::default();
        options.apply(ModelKind::Autoregressive, &mut request);
        assert_eq!(request.thinking.as_ref().expect("set").steps, Some(0));
        assert!(options.set("think", "-1").is_err());
        options.set("prior", "heun:30").unwrap();
        options.apply(ModelKind::Autoregressive, &mut request);
        let prior = request.thinking.unwrap().prior.expect("set");
        assert_eq!(prior.steps, Some(30));
        assert!(options.set("prior", "euler").is_err());
        assert_eq!(
            options.flags().as_deref(),
            Some("--think 0 --prior heun:30")
        );
    }

    #[test]
    fn wrong_values_are_explained_in_one_line_and_not_taken() {
        let mut options = RequestOptions::default();
        for (name, value, words) in [
            ("length", "many", "invalid digit"),
            ("preset", "slow", "known are exact"),
            ("eos", "never", "possible values: stop, suppress, keep"),
            ("policy", "threshold:t=7", "t"),
            ("length", "-3", "invalid"),
        ] {
            let problem = options.set(name, value).unwrap_err();
            assert!(problem.contains(words), "{problem}");
            assert!(
                !problem.contains('\n') && !problem.contains("--help"),
                "{problem}"
            );
        }
        assert_eq!(options.flags(), None);
    }

    #[test]
    fn each_field_of_one_kind_is_in_the_form() {
        for (name, kind) in KINDS {
            let help = &field(name).help;
            let is_autoregressive = kind == ModelKind::Autoregressive;
            let begins = help.starts_with("Autoregressive models:");
            assert_eq!(begins, is_autoregressive, "{name}");
        }
    }

    #[test]
    fn fields_that_the_model_refuses_say_why() {
        let causal = ModelShape {
            kind: ModelKind::Autoregressive.into(),
            ..Default::default()
        };
        let masked = ModelShape {
            kind: ModelKind::MaskedDiffusion.into(),
            ..Default::default()
        };
        assert!(unfit(field("policy"), Some(&causal)).is_some());
        assert!(unfit(field("top-k"), Some(&causal)).is_none());
        assert!(unfit(field("top-k"), Some(&masked)).is_some());
        assert!(unfit(field("policy"), Some(&masked)).is_none());
        assert!(unfit(field("policy"), None).is_none());
        let unknown = ModelShape::default();
        for name in ["policy", "top-k", "think"] {
            assert!(unfit(field(name), Some(&unknown)).is_none(), "{name}");
        }
        let of_family = |family: &str| ModelShape {
            family: family.into(),
            ..causal.clone()
        };
        assert!(unfit(field("think"), Some(&of_family("llama"))).is_some());
        assert!(unfit(field("think"), Some(&of_family("ltm"))).is_none());
        assert!(unfit(field("policy"), Some(&of_family("ltm"))).is_some());
    }

    #[test]
    fn advice_knows_the_level_the_context_and_the_pass() {
        let snapshot = Snapshot {
            plan: Some(Plan {
                level: sluice_proto::v1::Level::Aggressive.into(),
                pass_ms: Some(500.0),
                ..Default::default()
            }),
            ..Default::default()
        };
        let words = advice(field("length"), "128", Some(&snapshot)).join("\n");
        assert!(
            words.contains("level aggressive recommends at most 64"),
            "{words}"
        );
        assert!(words.contains("128 passes of 500 ms"), "{words}");
        let words = advice(field("preset"), "fast", None).join("\n");
        assert!(words.contains("policy factor:f=1"), "{words}");
        let words = advice(field("kv-cache"), "", None).join("\n");
        assert!(
            words.contains("one of none, prefix, dual, vicinity"),
            "{words}"
        );
    }
}
