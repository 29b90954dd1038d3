//! Names of the schema that generated code of some language could not use as they are.

use prost::Message;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet};

/// Reserved words of the languages whose generators keep a name's case or begin it with a small letter. Go and C# begin
/// every name with a capital, and none of their words does.
const RESERVED: [(&str, &str); 5] = [
    (
        "Python",
        "False None True and as assert async await break class continue def del elif else except finally for from global if \
         import in is lambda nonlocal not or pass raise return self try while with yield",
    ),
    (
        "Java",
        "abstract assert boolean break byte case catch char class const continue default do double else enum extends false \
         final finally float for goto if implements import instanceof int interface long native new null package private \
         protected public return short static strictfp super switch synchronized this throw throws transient true try void \
         volatile while",
    ),
    (
        "Kotlin",
        "as break class continue do else false for fun if in interface is null object package return super this throw true \
         try typealias typeof val var when while",
    ),
    (
        "Swift",
        "Any Protocol Self Type as associatedtype await break case catch class continue default defer deinit do else enum \
         extension fallthrough false fileprivate for func guard if import in init inout internal is let nil open operator \
         precedencegroup private protocol public repeat rethrows return self static struct subscript super switch throw \
         throws true try typealias var where while",
    ),
    (
        "JavaScript",
        "arguments await break case catch class const continue debugger default delete do else enum eval export extends false \
         finally for function if implements import in instanceof interface let new null package private protected public \
         return static super switch this throw true try typeof var void while with yield",
    ),
];

#[test]
fn no_name_is_a_reserved_word_of_a_client_language() {
    let set = FileDescriptorSet::decode(sluice_proto::FILE_DESCRIPTOR_SET).unwrap();
    let mut names = Names::default();
    for file in &set.file {
        names.file(file);
    }
    assert!(names.seen > 300, "only {} names were found", names.seen);
    assert!(names.refused.is_empty(), "{:#?}", names.refused);
}

#[test]
fn a_reserved_word_is_found_wherever_it_stands() {
    let field = |name: &str| prost_types::FieldDescriptorProto {
        name: Some(name.into()),
        ..Default::default()
    };
    let inner = DescriptorProto {
        name: Some("Inner".into()),
        field: vec![field("import")],
        oneof_decl: vec![prost_types::OneofDescriptorProto {
            name: Some("from".into()),
            options: None,
        }],
        ..Default::default()
    };
    let level = EnumDescriptorProto {
        name: Some("SomeLevel".into()),
        value: vec![prost_types::EnumValueDescriptorProto {
            name: Some("SOME_LEVEL_DEFAULT".into()),
            ..Default::default()
        }],
        ..Default::default()
    };
    let file = FileDescriptorProto {
        message_type: vec![DescriptorProto {
            name: Some("None".into()),
            field: vec![field("pass"), field("passes")],
            nested_type: vec![inner],
            enum_type: vec![level],
            ..Default::default()
        }],
        service: vec![prost_types::ServiceDescriptorProto {
            name: Some("Things".into()),
            method: vec![prost_types::MethodDescriptorProto {
                name: Some("Delete".into()),
                ..Default::default()
            }],
            options: None,
        }],
        ..Default::default()
    };
    let mut names = Names::default();
    names.file(&file);
    let refused = names.refused.join("\n");
    for word in ["None", "pass", "import", "from", "default", "delete"] {
        assert!(refused.contains(&format!("`{word}`")), "{word}: {refused}");
    }
    assert!(!refused.contains("passes"), "{refused}");
}

/// Walks descriptors and keeps what it refuses.
#[derive(Default)]
struct Names {
    seen: usize,
    refused: Vec<String>,
}

impl Names {
    fn file(&mut self, file: &FileDescriptorProto) {
        for message in &file.message_type {
            self.message(message);
        }
        for values in &file.enum_type {
            self.values(values);
        }
        for service in &file.service {
            self.name(service.name());
            for method in &service.method {
                self.name(method.name());
                self.name(&lower_camel(method.name()));
            }
        }
    }

    fn message(&mut self, message: &DescriptorProto) {
        self.name(message.name());
        let oneofs = message.oneof_decl.iter().map(|oneof| oneof.name());
        // The compiler makes a group of one, with an underscore before its name, for every `optional` field.
        let oneofs = oneofs.filter(|name| !name.starts_with('_'));
        for name in message.field.iter().map(|field| field.name()).chain(oneofs) {
            self.name(name);
            self.name(&lower_camel(name));
        }
        for nested in &message.nested_type {
            self.message(nested);
        }
        for values in &message.enum_type {
            self.values(values);
        }
    }

    fn values(&mut self, values: &EnumDescriptorProto) {
        self.name(values.name());
        let prefix = format!("{}_", upper_snake(values.name()));
        for value in &values.value {
            self.name(value.name());
            // Swift drops the prefix that every value repeats.
            let short = value.name().strip_prefix(&prefix);
            self.name(&lower_camel(
                &short.unwrap_or(value.name()).to_ascii_lowercase(),
            ));
        }
    }

    fn name(&mut self, name: &str) {
        self.seen += 1;
        for (language, words) in RESERVED {
            if words.split_whitespace().any(|word| word == name) {
                self.refused
                    .push(format!("`{name}` is a reserved word of {language}"));
            }
        }
    }
}

fn lower_camel(name: &str) -> String {
    let mut made = String::new();
    let mut is_next_upper = false;
    for (index, letter) in name.chars().enumerate() {
        match letter {
            '_' => is_next_upper = true,
            _ if is_next_upper => {
                made.push(letter.to_ascii_uppercase());
                is_next_upper = false;
            }
            _ if index == 0 => made.push(letter.to_ascii_lowercase()),
            _ => made.push(letter),
        }
    }
    made
}

fn upper_snake(name: &str) -> String {
    let mut made = String::new();
    for (index, letter) in name.chars().enumerate() {
        if letter.is_ascii_uppercase() && index > 0 {
            made.push('_');
        }
        made.push(letter.to_ascii_uppercase());
    }
    made
}
