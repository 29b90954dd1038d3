//! Texts that are drawn at random from what grammars allow, and what there is to say of broken ones.

use serde_json::{Value, json};

use super::*;

/// A token for each byte, a few longer ones, and some that no grammar may use.
fn pieces() -> TokenPieces {
    let long = [
        "{\"", "\":", "\": ", ", \"", "true", "false", "null", "  ", "\n", "name", "red", "12",
        "é", "ab", "abab", "}]",
    ];
    let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
    let long = long.iter().map(|text| text.as_bytes().to_vec());
    // A control token, one that llguidance would take for one, and one that is too long.
    let odd = [Vec::new(), b"\xFF<|end|>".to_vec(), vec![b'a'; 600]];
    let (mut all, mut ends) = (Vec::new(), Vec::new());
    for piece in bytes.chain(long).chain(odd) {
        all.extend(piece);
        ends.push(all.len() as u32);
    }
    TokenPieces::from_parts(all, ends).unwrap()
}

struct World {
    pieces: TokenPieces,
    vocabulary: GrammarVocabulary,
}

impl World {
    fn new() -> Self {
        let pieces = pieces();
        let vocabulary = GrammarVocabulary::new(&pieces).unwrap();
        Self { pieces, vocabulary }
    }

    fn compile(
        &self,
        kind: GrammarKind,
        text: &str,
    ) -> Result<(GrammarMatcher, AllowedTokens), String> {
        let text = text.to_owned();
        GrammarMatcher::compile(&self.vocabulary, &Grammar { kind, text })
            .map_err(|error| error.to_string())
    }

    /// A text of the grammar, drawn at random; `None` where it does not end within `most` tokens.
    fn draw(&self, kind: GrammarKind, text: &str, seed: u64, most: usize) -> Option<String> {
        let (mut matcher, mut allowed) = self.compile(kind, text).unwrap();
        let mut random = Random(seed);
        let mut written = Vec::new();
        for _ in 0..most {
            let ids: Vec<u32> = (0..self.pieces.len() as u32)
                .filter(|&id| is_allowed(&allowed, id))
                .collect();
            if allowed.may_end && (ids.is_empty() || random.below(4) == 0) {
                return Some(String::from_utf8(written).expect("grammars are of text"));
            }
            let id = ids[random.below(ids.len())];
            let piece = self.pieces.get(id);
            assert!(!piece.is_empty() && piece[0] != 0xFF && piece.len() < 600);
            written.extend_from_slice(piece);
            allowed = matcher.accept(id).unwrap();
        }
        None
    }

    /// Texts of many seeds, all of which `check` must find right; most must end.
    fn check(&self, kind: GrammarKind, text: &str, check: impl Fn(&str)) {
        let mut ended = 0;
        for seed in 0..60 {
            if let Some(written) = self.draw(kind, text, seed, 300) {
                ended += 1;
                check(&written);
            }
        }
        assert!(ended > 30, "{ended} of 60 ended: {text}");
    }
}

fn is_allowed(allowed: &AllowedTokens, id: u32) -> bool {
    let word = allowed.mask.get(id as usize / 32);
    word.is_some_and(|word| word >> (id % 32) & 1 == 1)
}

struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % count
    }
}

/// What of JSON schema the tests use.
fn is_valid(value: &Value, schema: &Value) -> bool {
    let Some(schema) = schema.as_object() else {
        return true;
    };
    schema.iter().all(|(key, rule)| match key.as_str() {
        "type" => match rule.as_str().unwrap() {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "null" => value.is_null(),
            "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
            "number" => value.is_number(),
            other => panic!("{other}"),
        },
        "enum" => rule.as_array().unwrap().contains(value),
        "const" => value == rule,
        "anyOf" => rule
            .as_array()
            .unwrap()
            .iter()
            .any(|rule| is_valid(value, rule)),
        "required" => {
            let keys = rule.as_array().unwrap().iter();
            keys.map(|key| key.as_str().unwrap())
                .all(|key| value.get(key).is_some())
        }
        "properties" => {
            let properties = rule.as_object().unwrap().iter();
            properties
                .filter_map(|(key, rule)| Some((value.get(key)?, rule)))
                .all(|(value, rule)| is_valid(value, rule))
        }
        "additionalProperties" => {
            let known = schema["properties"].as_object().unwrap();
            value
                .as_object()
                .unwrap()
                .keys()
                .all(|key| known.contains_key(key))
        }
        "items" => value
            .as_array()
            .unwrap()
            .iter()
            .all(|item| is_valid(item, rule)),
        "minItems" => value.as_array().unwrap().len() >= rule.as_u64().unwrap() as usize,
        "maxItems" => value.as_array().unwrap().len() <= rule.as_u64().unwrap() as usize,
        "minimum" => value.as_f64().unwrap() >= rule.as_f64().unwrap(),
        "maximum" => value.as_f64().unwrap() <= rule.as_f64().unwrap(),
        "minLength" => value.as_str().unwrap().chars().count() >= rule.as_u64().unwrap() as usize,
        "maxLength" => value.as_str().unwrap().chars().count() <= rule.as_u64().unwrap() as usize,
        other => panic!("{other}"),
    })
}

#[test]
fn texts_of_schemas_are_valid() {
    let world = World::new();
    let string = json!({ "type": "string", "maxLength": 6 });
    for schema in [
        json!({
            "type": "object",
            "properties": {
                "name": string,
                "age": { "type": "integer", "minimum": 3, "maximum": 120 },
                "tags": { "type": "array", "items": string, "minItems": 1, "maxItems": 3 },
                "kind": { "enum": ["a", "b", 7, null, { "x": [1] }] },
            },
            "required": ["name", "kind"],
            "additionalProperties": false,
        }),
        json!({ "type": "array", "items": { "type": "boolean" }, "maxItems": 5 }),
        json!({ "anyOf": [{ "type": "null" }, { "type": "number", "minimum": -5, "maximum": 5 }] }),
        json!({ "const": { "é": "ü\n" } }),
        json!({ "type": "string", "minLength": 2, "maxLength": 9 }),
    ] {
        world.check(GrammarKind::JsonSchema, &schema.to_string(), |text| {
            let value: Value = serde_json::from_str(text).expect(text);
            assert!(is_valid(&value, &schema), "{text} by {schema}");
        });
    }
}

#[test]
fn any_json_is_json_and_white_space_is_bounded() {
    let world = World::new();
    for schema in ["{}", "true", r#"{"type": "object"}"#] {
        for seed in 0..60 {
            if let Some(text) = world.draw(GrammarKind::JsonSchema, schema, seed, 300) {
                let value: Value = match serde_json::from_str(&text) {
                    Ok(value) => value,
                    // JSON has numbers of any size.
                    Err(error) if error.to_string().contains("out of range") => continue,
                    Err(error) => panic!("{error}: {text}"),
                };
                assert!(schema != r#"{"type": "object"}"# || value.is_object());
            }
        }
    }
    // After a brace, white space ends where a line's indentation does.
    let (mut matcher, _) = world
        .compile(GrammarKind::JsonSchema, r#"{"type": "object"}"#)
        .unwrap();
    let mut take = |byte: u8| matcher.accept(byte.into()).unwrap();
    take(b'{');
    let mut allowed = take(b'\n');
    for _ in 0..20 {
        assert!(is_allowed(&allowed, b' '.into()));
        allowed = take(b' ');
    }
    assert!(!is_allowed(&allowed, b' '.into()) && is_allowed(&allowed, b'"'.into()));
}

#[test]
fn references_within_a_schema_are_followed() {
    let world = World::new();
    let tree = json!({
        "$defs": { "node": {
            "type": "object",
            "properties": {
                "left": { "anyOf": [{ "type": "null" }, { "$ref": "#/$defs/node" }] },
            },
            "required": ["left"],
            "additionalProperties": false,
        } },
        "$ref": "#/$defs/node",
    });
    world.check(GrammarKind::JsonSchema, &tree.to_string(), |text| {
        let mut value: Value = serde_json::from_str(text).expect(text);
        while !value.is_null() {
            value = value["left"].take();
        }
    });
}

#[test]
fn texts_of_expressions_match() {
    let world = World::new();
    world.check(GrammarKind::Regex, "(ab){1,4}(é|red)?", |text| {
        let rest = text.trim_end_matches("red").trim_end_matches('é');
        assert!((1..=4).contains(&rest.matches("ab").count()), "{text}");
        assert_eq!(rest.replace("ab", ""), "");
    });
    world.check(GrammarKind::Regex, r"[a-f]{2}/\d{3}\n", |text| {
        let bytes = text.as_bytes();
        assert_eq!(text.chars().count(), 7);
        assert!(bytes[..2].iter().all(|byte| (b'a'..=b'f').contains(byte)));
        assert_eq!(bytes[2], b'/');
        let digits = text.chars().skip(3).take(3);
        assert!(digits.into_iter().all(char::is_numeric) && text.ends_with('\n'));
    });
}

#[test]
fn texts_of_rules_follow_them() {
    let world = World::new();
    let sum = "start: term (\" + \" term)*\nterm: /[1-9][0-9]?/ | \"(\" start \")\"\n";
    world.check(GrammarKind::Lark, sum, |text| {
        let mut open = 0i32;
        for character in text.chars() {
            open += i32::from(character == '(') - i32::from(character == ')');
            assert!(open >= 0 && "0123456789 +()".contains(character), "{text}");
        }
        assert_eq!(open, 0, "{text}");
    });
}

#[test]
fn a_text_that_is_whole_can_only_end() {
    let world = World::new();
    let (mut matcher, allowed) = world.compile(GrammarKind::Regex, "ab").unwrap();
    assert!(!allowed.may_end);
    // Every way to write it.
    let ids: Vec<u32> = (0..world.pieces.len() as u32)
        .filter(|&id| is_allowed(&allowed, id))
        .collect();
    let texts: Vec<_> = ids.iter().map(|&id| world.pieces.get(id)).collect();
    assert_eq!(texts, [&b"a"[..], b"ab"]);
    let end = matcher.accept(ids[1]).unwrap();
    assert!(end.may_end && end.mask.iter().all(|word| *word == 0));
}

#[test]
fn what_the_vocabulary_lacks_is_told() {
    let no_digits = {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for byte in b'a'..=b'z' {
            bytes.push(byte);
            ends.push(bytes.len() as u32);
        }
        TokenPieces::from_parts(bytes, ends).unwrap()
    };
    let vocabulary = GrammarVocabulary::new(&no_digits).unwrap();
    let compile = |text: &str| {
        let grammar = Grammar {
            kind: GrammarKind::Regex,
            text: text.to_owned(),
        };
        GrammarMatcher::compile(&vocabulary, &grammar)
    };
    let refused = |result: Result<AllowedTokens, TokenizerError>| result.unwrap_err().to_string();
    assert_eq!(
        refused(compile("1+").map(|(_, allowed)| allowed)),
        "the grammar: after 0 tokens no token of the model's vocabulary continues it"
    );
    let (mut matcher, _) = compile("a1").unwrap();
    assert_eq!(
        refused(matcher.accept(0)),
        "the grammar: after 1 tokens no token of the model's vocabulary continues it"
    );
    // What may end need not go on.
    let (mut matcher, _) = compile("a1?").unwrap();
    let end = matcher.accept(0).unwrap();
    assert!(end.may_end && end.mask.is_empty());
}

#[test]
fn a_vocabulary_too_large_is_refused() {
    let bytes = vec![b'a'; GRAMMAR_VOCABULARY_BYTES_MAX + 1];
    let ends = (1..=bytes.len() as u32).step_by(100);
    let ends = ends.chain([bytes.len() as u32]).collect();
    let pieces = TokenPieces::from_parts(bytes, ends).unwrap();
    let refused = GrammarVocabulary::new(&pieces).err().unwrap().to_string();
    assert!(refused.contains("more than the 4194302"), "{refused}");
}

#[test]
fn each_broken_grammar_is_told_what_is_wrong_with_it() {
    let world = World::new();
    let problem = |kind, text: &str| world.compile(kind, text).err().expect(text);
    let schema = |text: &str| problem(GrammarKind::JsonSchema, text);
    for (text, words) in [
        ("{", "the schema is no JSON"),
        ("7", "schema"),
        (r#"{"type": "strange"}"#, "strange"),
        (
            r#"{"$ref": "http://127.0.0.1:1/x.json"}"#,
            "http://127.0.0.1:1/x.json",
        ),
        (r#"{"$ref": "file:///etc/passwd"}"#, "file:///etc/passwd"),
        (r##"{"$ref": "#/nowhere"}"##, "nowhere"),
        ("false", "nsatisfiable"),
        (r#"{"not": {"type": "string"}}"#, "not"),
        (r#"{"type": "string", "pattern": "(?<=a)b"}"#, "look-around"),
    ] {
        let problem = schema(text);
        assert!(problem.starts_with("the grammar: "), "{problem}");
        assert!(problem.contains(words), "{text}: {problem}");
        assert!(problem.len() < 400 && !problem.contains('\n'), "{problem}");
    }
    let deep = format!(
        "{}{}",
        r#"{"items":"#.repeat(5000),
        "{}".to_owned() + &"}".repeat(5000)
    );
    assert!(schema(&deep).contains("recursion limit"));
    let regex = |text: &str| problem(GrammarKind::Regex, text);
    assert!(regex("(").contains("regex"), "{}", regex("("));
    assert!(regex("a(?=b)").contains("regex"));
    assert!(regex(&format!("{}a{}", "(".repeat(9999), ")".repeat(9999))).contains("regex"));
    let lark = |text: &str| problem(GrammarKind::Lark, text);
    assert!(lark("start: x").contains('x'));
    assert!(lark("begin: \"a\"").contains("start"));
    // A panic of the library's.
    let named = lark("start: <|end|>");
    assert!(
        named.contains("special token") && !named.contains("backtrace"),
        "{named}"
    );
    assert!(
        lark(&format!(
            "start: {}\"a\"{}",
            "(".repeat(9999),
            ")".repeat(9999)
        ))
        .contains("nested")
    );
    // A rule that is nothing but itself has no text.
    let endless = lark("start: a\na: a\n");
    assert!(
        endless.contains("no token of the model's vocabulary"),
        "{endless}"
    );
}

#[test]
fn what_grows_beyond_llguidances_limits_is_told() {
    let world = World::new();
    // Its automaton remembers where the last twenty letters were.
    let large = "(.*a.{20}|.*b.{25}|[ab]*a[ab]{30})";
    let (mut matcher, mut allowed) = world.compile(GrammarKind::Regex, large).unwrap();
    let mut random = Random(1);
    let failed = (0..4000).find_map(|_| {
        let byte = b"ab"[random.below(2)];
        if !is_allowed(&allowed, byte.into()) {
            return Some("it ended".to_owned());
        }
        match matcher.accept(byte.into()) {
            Ok(next) => {
                allowed = next;
                None
            }
            Err(error) => Some(error.to_string()),
        }
    });
    let failed = failed.expect("it has an end");
    assert!(failed.contains("too complex"), "{failed}");
}
