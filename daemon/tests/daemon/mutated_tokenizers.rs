//! Tokenizers and chat templates with random changes, in the process that bounds them. However it ends, its supervisor tells.

use std::{env, path::Path};

use serde_json::{Value, json};
use sluice_tokenizer::{Patience, Tokenizer, TokenizerError, TokenizerFiles};

use crate::support::checkpoints::Random;

const DEMO: &[u8] = include_bytes!("../../model/tokenizer.json");
const CONFIG: &[u8] = include_bytes!("../../model/tokenizer_config.json");

/// Statements of templates, some of which take a lot.
const STATEMENTS: [&str; 20] = [
    "{{ m.role }}",
    "{{ m['content'] }}",
    "{% set ns.s = ns.s ~ ns.s %}",
    "{% set ns.s = ns.s|replace('a', 'aa') %}",
    "{% set ns.s = [ns.s] %}",
    "{{ ns.s }}",
    "{{ ns.s|length }}",
    "{{ bos_token }}",
    "{{ '%1000d'|format(1) }}",
    "{{ messages|tojson(indent=4) }}",
    "{{ raise_exception('no') }}",
    "{{ f(f) }}",
    "{{ 'a'|indent(1000000) }}",
    "{{ ns.s.split('a')|join('b') }}",
    "{% set x = [messages] * 1000 %}",
    "{{ x|string|length }}",
    "{{ 9223372036854775807 + 1 }}",
    "{{ strftime_now('%Y') }}",
    "{{ messages[-1:0:-1] }}",
    "{{ -(not(1 / 0)) }}",
];

/// Blocks of templates: what begins and what ends each.
const BLOCKS: [(&str, &str); 6] = [
    ("{% for m in messages %}", "{% endfor %}"),
    ("{% for i in range(30) %}", "{% endfor %}"),
    ("{% if m.role == 'user' %}", "{% else %}no{% endif %}"),
    ("{% macro f(x) %}", "{% endmacro %}"),
    ("{% raw %}", "{% endraw %}"),
    ("{#", "#}"),
];

/// Values that somebody might put in the place of any.
fn other(random: &mut Random) -> Value {
    match random.below(12) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(u64::MAX),
        3 => json!(-1),
        4 => json!(1e300),
        5 => json!([]),
        6 => json!({}),
        7 => json!("a".repeat(random.below(100_000))),
        8 => json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaaaaaaaa"}),
        9 => {
            json!({"type": "Split", "pattern": {"Regex": "(?!x)(a|a)*b"}, "behavior": "Isolated", "invert": false})
        }
        10 => json!({"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "Lowercase"}]}),
        _ => json!((0..random.below(100)).fold(json!("a"), |inner, _| json!([inner]))),
    }
}

/// Changes values anywhere in `json`.
fn change(json: &mut Value, random: &mut Random) {
    for _ in 0..1 + random.below(3) {
        let mut value = &mut *json;
        loop {
            let count = match value {
                Value::Object(map) => map.len(),
                Value::Array(list) => list.len(),
                _ => 0,
            };
            if count == 0 || random.below(6) == 0 {
                break *value = other(random);
            }
            let index = random.below(count);
            value = match value {
                Value::Object(map) => map.values_mut().nth(index).expect("counted"),
                Value::Array(list) => &mut list[index],
                _ => unreachable!("it has others within"),
            };
        }
    }
}

/// A template, most of the time one without errors of syntax.
fn template(random: &mut Random) -> String {
    let mut template = "{% set ns = namespace(s='abcd') %}".to_owned();
    let mut open = Vec::new();
    for _ in 0..random.below(24) {
        match random.below(4) {
            0 => {
                let (begin, end) = BLOCKS[random.below(BLOCKS.len())];
                template.push_str(begin);
                open.push(end);
            }
            1 => template.push_str(open.pop().unwrap_or_default()),
            _ => template.push_str(STATEMENTS[random.below(STATEMENTS.len())]),
        }
    }
    template.extend(open.into_iter().rev());
    if random.below(4) == 0 {
        let at = random.below(template.len());
        template.insert(at, char::from(b"{}%#'|.([-"[random.below(10)]));
    }
    template
}

/// Parses the files and has a conversation tokenized; true if both worked.
fn use_all(tokenizer: &[u8], config: &[u8]) -> bool {
    let program = Path::new(env!("CARGO_BIN_EXE_sluiced"));
    let files = TokenizerFiles {
        tokenizer,
        config: Some(config),
        template: None,
    };
    let used = Tokenizer::apart(program, &files, &Patience::default()).and_then(|tokenizer| {
        tokenizer.encode_chat(&[("system", "Be kind."), ("user", "aaaa a story, please")])
    });
    // Every other end was foreseen: a limit that was reached, or files that are refused.
    assert!(
        !matches!(used, Err(TokenizerError::Process { .. })),
        "{used:?}: {} {}",
        String::from_utf8_lossy(config),
        String::from_utf8_lossy(tokenizer)
    );
    used.is_ok()
}

/// A hundred files in `cargo test`, a million in `cargo soak`.
#[test]
fn mutated_tokenizers_and_templates_end_as_foreseen() {
    let count = env::var("SLUICE_MUTATIONS").map_or(100, |count| count.parse().unwrap());
    let base: Value = serde_json::from_slice(DEMO).unwrap();
    let mut random = Random(22);
    let mut taken = 0;
    for index in 0..count {
        taken += usize::from(match index % 4 {
            0 => {
                let mut json = base.clone();
                change(&mut json, &mut random);
                use_all(&serde_json::to_vec(&json).unwrap(), CONFIG)
            }
            1 => {
                let mut bytes = DEMO.to_vec();
                let at = random.below(bytes.len());
                bytes[at] = random.next() as u8;
                use_all(&bytes, CONFIG)
            }
            _ => {
                let config = json!({ "chat_template": template(&mut random) });
                use_all(DEMO, config.to_string().as_bytes())
            }
        });
    }
    println!("{taken} of {count} were of use");
    assert!(taken > 0 && taken < count, "{taken} of {count}");
}
