//! Compiles the schema with protox, so that no `protoc` is needed, and keeps the
//! descriptor set for the reflection service.
//!
//! What the daemon sends can be written as JSON: the attributes for serde follow from the
//! descriptors by a few rules, so that a new field needs no line of code. `src/json.rs` has
//! the helpers that the attributes name, and says what the JSON looks like.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    error::Error,
    fs,
    path::PathBuf,
};

use prost::Message;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};
use tonic_prost_build::Builder;

/// The message whose choices saved runs consist of; what they contain is read back.
const SAVED: &str = ".sluice.v1.GenerationEvent";

/// The message of which a daemon keeps a list for its next start.
const KEPT: &str = ".sluice.v1.Operation";

/// What `sluice` reads of `sluiced doctor`.
const EXAMINED: &str = ".sluice.v1.ExamineResponse";

/// Names that fields had in runs saved by earlier versions.
const FORMER_NAMES: [(&str, &str); 22] = [
    ("GenerationDone.elapsed_ms", "ms"),
    ("GenerationDone.is_exact", "exact"),
    ("GenerationDone.is_truncated", "cut"),
    ("GenerationDone.token_ids", "tokens"),
    ("GenerationPass.batch_requests", "requests"),
    ("GenerationPass.committed_positions", "committed"),
    ("GenerationPass.is_exact", "exact"),
    ("GenerationPass.lm_head_rows", "head_rows"),
    ("GenerationPass.passes", "pass"),
    ("GenerationPass.passes_in_block", "pass_in_block"),
    ("GenerationPass.weight_switch", "switch"),
    ("GenerationPass.weight_switch", "switching"),
    ("GenerationPass.weights_version", "epoch"),
    ("GenerationStarted.is_exact", "exact"),
    ("GenerationStarted.is_seed_drawn", "seed_drawn"),
    ("GenerationStarted.settings", "sampling"),
    ("CanvasToken.is_fresh", "fresh"),
    ("PassPhases.decompress_ms", "decode_ms"),
    ("PassPhases.lm_head_ms", "head_ms"),
    ("PassPhases.matmul_ms", "multiply_ms"),
    ("WeightSwitch.done_steps", "done"),
    ("WeightSwitch.total_steps", "steps"),
];

/// Fields of bytes that may hold a part of a character.
const PIECES: [&str; 2] = ["sluice.v1.CanvasToken.piece", "sluice.v1.TopLogprob.piece"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=sluice");
    let mut protos = Vec::new();
    for file in fs::read_dir("sluice/v1")? {
        protos.push(file?.path());
    }
    // The same files give the same code, whatever order the folder has.
    protos.sort();
    let descriptors = protox::compile(protos, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(
        out.join("sluice_descriptors.bin"),
        descriptors.encode_to_vec(),
    )?;
    // Sorted, so that the same message is always the same JSON.
    let config = tonic_prost_build::configure().btree_map(".");
    let schema = Schema::of(&descriptors);
    let config = schema.with_json(config, &descriptors);
    fs::write(out.join("words.rs"), schema.words())?;
    config.compile_fds(descriptors)?;
    Ok(())
}

/// Messages and enums by their full names, such as `.sluice.v1.Plan`.
struct Schema<'a> {
    messages: BTreeMap<String, &'a DescriptorProto>,
    enums: BTreeMap<String, &'a EnumDescriptorProto>,
}

impl<'a> Schema<'a> {
    fn of(set: &'a FileDescriptorSet) -> Self {
        let mut schema = Self {
            messages: BTreeMap::new(),
            enums: BTreeMap::new(),
        };
        for file in &set.file {
            let full = |name: &str| format!(".{}.{name}", file.package());
            let messages = file.message_type.iter();
            let messages = messages.map(|message| (full(message.name()), message));
            schema.messages.extend(messages);
            let enums = file.enum_type.iter();
            schema
                .enums
                .extend(enums.map(|values| (full(values.name()), values)));
        }
        schema
    }

    /// Adds serde's attributes to all that a daemon sends.
    fn with_json(&self, mut config: Builder, set: &FileDescriptorSet) -> Builder {
        let services = set.file.iter().flat_map(|file| &file.service);
        let methods = services.flat_map(|service| &service.method);
        let sent = self.reachable(methods.map(|method| method.output_type()));
        let mut saved = self.reachable([SAVED]);
        saved.remove(SAVED);
        saved.extend(self.reachable([KEPT, EXAMINED]));
        for name in &sent {
            let is_saved = saved.contains(name);
            config = match (self.messages.get(name), self.enums.get(name)) {
                (Some(message), _) => with_message(config, name, message, is_saved),
                (None, Some(values)) => with_enum(config, name, values, is_saved),
                (None, None) => panic!("{name} is defined nowhere"),
            };
        }
        for (field, former) in FORMER_NAMES {
            config = config.field_attribute(
                format!("sluice.v1.{field}"),
                format!("#[serde(alias = \"{former}\")]"),
            );
        }
        config
    }

    /// Code that writes each enum's value as the word that people read and JSON has.
    fn words(&self) -> String {
        let mut code = String::new();
        for values in self.enums.values() {
            let name = values.name();
            let mut arms = String::new();
            for value in &values.value {
                let full = value.name();
                arms += &format!("{full:?} => {:?},", word(values, full));
            }
            code += &format!(
                "impl std::fmt::Display for {name} {{ \
                 fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {{ \
                 f.pad(match self.as_str_name() {{ {arms} other => other }}) }} }}\n"
            );
        }
        code
    }

    /// The names of these messages and of all that they contain.
    fn reachable<'n>(&self, roots: impl IntoIterator<Item = &'n str>) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut left: Vec<String> = roots.into_iter().map(str::to_owned).collect();
        while let Some(name) = left.pop() {
            let fields = self.messages.get(&name).map(|message| &message.field);
            if found.insert(name) {
                let types = fields.into_iter().flatten().map(|field| field.type_name());
                // Messages that maps are made of are nested; the values of ours are numbers.
                let types = types.filter(|name| {
                    self.messages.contains_key(*name) || self.enums.contains_key(*name)
                });
                left.extend(types.map(str::to_owned));
            }
        }
        found
    }
}

fn derives(is_saved: bool) -> &'static str {
    match is_saved {
        true => "#[derive(serde::Serialize, serde::Deserialize)]",
        false => "#[derive(serde::Serialize)]",
    }
}

fn with_message(
    mut config: Builder,
    name: &str,
    message: &DescriptorProto,
    is_saved: bool,
) -> Builder {
    config = config.message_attribute(name, derives(is_saved));
    if is_saved {
        // Runs of earlier versions lack what was added since.
        config = config.message_attribute(name, "#[serde(default)]");
    }
    // Without the dot, a path means the thing itself and not also what lies below it.
    let path = name.trim_start_matches('.');
    let oneof_of = |field: &FieldDescriptorProto| match field.proto3_optional() {
        true => None,
        false => field
            .oneof_index
            .map(|index| &message.oneof_decl[index as usize]),
    };
    // Whether the choices of each are keys of their own.
    let mut oneofs = BTreeMap::new();
    for field in &message.field {
        match oneof_of(field) {
            None => {
                let path = format!("{path}.{}", field.name());
                if let Some(attribute) = field_attribute(&path, field, is_saved) {
                    config = config.field_attribute(path, attribute);
                }
            }
            Some(oneof) => {
                let is_message = field.r#type() == Type::Message;
                *oneofs.entry(oneof.name()).or_insert(true) &= is_message;
            }
        }
    }
    let has_fields = message.field.iter().any(|field| oneof_of(field).is_none());
    for (oneof, has_messages_alone) in oneofs {
        let path = format!("{path}.{oneof}");
        // A message that is one of several messages and nothing else is an event; any other choice is under its own name, as
        // a field is.
        let is_event = has_messages_alone && !has_fields && !is_saved;
        let tag = if is_event { "tag = \"event\", " } else { "" };
        config = config
            .field_attribute(&path, "#[serde(flatten)]")
            .enum_attribute(&path, derives(is_saved))
            .enum_attribute(&path, format!("#[serde({tag}rename_all = \"snake_case\")]"));
    }
    config
}

fn field_attribute(path: &str, field: &FieldDescriptorProto, is_saved: bool) -> Option<String> {
    let is_time = field.r#type() == Type::Double && field.name().ends_with("_ms");
    let is_probability = field.r#type() == Type::Float && field.proto3_optional();
    let attribute = match field.r#type() {
        Type::Enum => {
            let of = field.type_name().rsplit('.').next().unwrap_or_default();
            format!("with = \"crate::json::Named::<crate::v1::{of}>\"")
        }
        Type::Bytes if PIECES.contains(&path) => {
            "flatten, with = \"crate::json::piece\"".to_owned()
        }
        Type::Bytes if field.label() != Label::Repeated => {
            "with = \"crate::json::text\"".to_owned()
        }
        Type::Bytes => panic!("{path}: JSON of many bytes is not provided for"),
        Type::Fixed64 => "with = \"crate::json::hash\"".to_owned(),
        _ if is_time && is_saved => "deserialize_with = \"crate::json::milliseconds\"".to_owned(),
        _ if is_probability && is_saved => {
            "deserialize_with = \"crate::json::probability\"".to_owned()
        }
        _ => return None,
    };
    Some(format!("#[serde({attribute})]"))
}

/// Values have their names without what all of them begin with, in lower case.
fn with_enum(
    mut config: Builder,
    name: &str,
    values: &EnumDescriptorProto,
    is_saved: bool,
) -> Builder {
    config = config.enum_attribute(name, derives(is_saved));
    for value in &values.value {
        config = config.field_attribute(
            format!("{}.{}", name.trim_start_matches('.'), value.name()),
            format!("#[serde(rename = {:?})]", word(values, value.name())),
        );
    }
    config
}

/// A value's name without what all of them begin with, in lower case.
fn word(values: &EnumDescriptorProto, value: &str) -> String {
    let first = values.value.first().map_or("", |value| value.name());
    let Some(prefix) = first.strip_suffix("UNSPECIFIED") else {
        panic!("{first} is no unspecified value, which every enum begins with");
    };
    value.strip_prefix(prefix).unwrap_or(value).to_lowercase()
}
