//! Tokenizers out of GGUF files.

use sluice_checkpoint::gguf::Gguf;
use sluice_tokenizer::Tokenizer;

use super::writer::{File, Value};

/// Keys of a byte-level tokenizer: all bytes, some words, and control tokens.
pub(crate) fn byte_level() -> Vec<(String, Value)> {
    let bytes = byte_characters();
    let mut tokens: Vec<String> = ["<|end|>", "<|start|>", "<|mask|>"]
        .map(str::to_owned)
        .into();
    tokens.extend(bytes);
    let mut merges = Vec::new();
    for (left, right) in [
        ("t", "h"),
        ("th", "e"),
        ("Ġ", "the"),
        ("c", "a"),
        ("1", "2"),
    ] {
        merges.push(format!("{left} {right}"));
        tokens.push(format!("{left}{right}"));
    }
    tokens.push("tag".to_owned());
    let kinds = (0..tokens.len()).map(|id| match id {
        0..3 => 3,
        id if id + 1 == tokens.len() => 4,
        _ => 1,
    });
    let kinds = kinds.collect();
    [
        ("model", "gpt2".into()),
        ("pre", "smollm".into()),
        ("tokens", Value::Texts(tokens)),
        ("token_type", Value::I32s(kinds)),
        ("merges", Value::Texts(merges)),
        ("bos_token_id", Value::U32(1)),
        ("eos_token_id", Value::U32(0)),
        ("mask_token_id", Value::U32(2)),
        ("add_bos_token", Value::Bool(true)),
    ]
    .map(|(key, value)| (format!("tokenizer.ggml.{key}"), value))
    .into()
}

/// The visible character of each byte, as GPT-2 has them.
fn byte_characters() -> Vec<String> {
    let mut next = 256;
    let character = |byte: u8| {
        let is_visible = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let code = match is_visible {
            true => u32::from(byte),
            false => {
                next += 1;
                next - 1
            }
        };
        char::from_u32(code).unwrap().to_string()
    };
    (0..=u8::MAX).map(character).collect()
}

/// Keys of a SentencePiece tokenizer: bytes, and pieces with scores.
fn sentence_piece() -> Vec<(String, Value)> {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).into();
    tokens.extend((0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")));
    let pieces = ["▁", "a", "b", "c", "ab", "bc", "▁a", "abc", "▁ab"];
    let scores = [-9.0, -9.0, -9.0, -9.0, -3.0, -2.0, -4.0, -5.0, -6.0];
    let kinds = (0..tokens.len() + pieces.len()).map(|id| match id {
        0 => 2,
        1 | 2 => 3,
        3..259 => 6,
        _ => 1,
    });
    let kinds = kinds.collect();
    let scores = vec![0.0; tokens.len()].into_iter().chain(scores).collect();
    tokens.extend(pieces.map(str::to_owned));
    [
        ("model", "llama".into()),
        ("tokens", Value::Texts(tokens)),
        ("token_type", Value::I32s(kinds)),
        ("scores", Value::F32s(scores)),
        ("bos_token_id", Value::U32(1)),
        ("eos_token_id", Value::U32(2)),
        ("unknown_token_id", Value::U32(0)),
    ]
    .map(|(key, value)| (format!("tokenizer.ggml.{key}"), value))
    .into()
}

/// Keys of a world tokenizer: bytes as the converter spells them, some words, and what fills the vocabulary up.
fn world() -> Vec<(String, Value)> {
    let mut tokens = vec!["<s>".to_owned()];
    tokens.extend((0..=u8::MAX).map(|byte| match byte {
        b'\t' => "\\t".to_owned(),
        b'\n' => "\\n".to_owned(),
        b'\r' => "\\r".to_owned(),
        b'\\' => "\\\\".to_owned(),
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    }));
    tokens.extend(["User", "\\n\\n", "caf\\xc3\\xa9", "[PAD260]"].map(str::to_owned));
    let kinds = (0..tokens.len()).map(|id| match id {
        0 => 3,
        260 => 5,
        _ => 1,
    });
    let kinds = kinds.collect();
    [
        ("model", "rwkv".into()),
        ("tokens", Value::Texts(tokens)),
        ("token_type", Value::I32s(kinds)),
        ("bos_token_id", Value::U32(0)),
        ("eos_token_id", Value::U32(0)),
    ]
    .map(|(key, value)| (format!("tokenizer.ggml.{key}"), value))
    .into()
}

fn file(keys: Vec<(String, Value)>) -> File {
    let mut file = File::new("llama");
    keys.into_iter()
        .for_each(|(key, value)| file.set(&key, value));
    file
}

fn tokenizer(file: &File) -> Tokenizer {
    let files = Gguf::parse(&file.bytes())
        .unwrap()
        .tokenizer()
        .unwrap()
        .unwrap();
    Tokenizer::new(&files.tokenizer, files.config.as_deref()).unwrap()
}

fn pieces(text: &Tokenizer, words: &str) -> Vec<String> {
    let ids = text.encode(words).unwrap();
    assert_eq!(text.decode(&ids), words.as_bytes(), "{words:?} comes back");
    let piece = |&id: &u32| String::from_utf8_lossy(text.piece(id)).into_owned();
    ids.iter().map(piece).collect()
}

#[test]
fn words_are_cut_as_the_file_says() {
    let mut file = file(byte_level());
    let digits = |file: &File| pieces(&tokenizer(file), "12 the cat")[..2].to_vec();
    assert_eq!(pieces(&tokenizer(&file), " the ca"), [" the", " ", "ca"]);
    assert_eq!(digits(&file), ["1", "2"]);
    for (name, first) in [
        ("gpt-2", "12"),
        ("llama-bpe", "12"),
        ("qwen2", "1"),
        ("smollm", "1"),
    ] {
        file.set("tokenizer.ggml.pre", name.into());
        assert_eq!(digits(&file)[0], first, "{name}");
    }
    // A word that is a token is not put together, where the tokenizer says so: no merge makes "tag".
    file.set("tokenizer.ggml.token_type", Value::I32s(vec![1; 265]));
    file.set("tokenizer.ggml.pre", "llama-bpe".into());
    assert_eq!(pieces(&tokenizer(&file), "tag"), ["tag"]);
    file.set("tokenizer.ggml.pre", "gpt-2".into());
    assert_eq!(pieces(&tokenizer(&file), "tag"), ["t", "a", "g"]);
}

#[test]
fn control_tokens_are_text_in_what_users_write_and_user_defined_ones_are_not() {
    let text = tokenizer(&file(byte_level()));
    assert!(!text.encode("<|mask|>").unwrap().contains(&2));
    assert_eq!(text.token_id("<|mask|>"), Some(2));
    assert_eq!(text.piece(2), b"");
    assert_eq!(pieces(&text, "atagb"), ["a", "tag", "b"]);
}

#[test]
fn the_template_writes_the_file_s_own_control_tokens() {
    let mut keys = byte_level();
    let template =
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}";
    keys.push(("tokenizer.chat_template".to_owned(), template.into()));
    let text = tokenizer(&file(keys));
    assert!(text.has_chat_template());
    let ids = text.encode_chat(&[("user", "the")]).unwrap();
    let the = text.token_id("the").unwrap();
    assert_eq!(ids, [1, the, 0]);
}

#[test]
fn scores_decide_what_is_put_together_and_bytes_stand_for_the_unknown() {
    let keys = sentence_piece();
    let mut file = file(keys);
    // "bc" has a better score than "ab"; of what is left then, "▁a" a better one than "abc".
    let ids = tokenizer(&file).encode("abc").unwrap();
    let tokens: Vec<&[u8]> = ids.iter().map(|&id| text_piece(id)).collect();
    assert_eq!(tokens, [b" a" as &[u8], b"bc"]);
    file.set("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    let text = tokenizer(&file);
    assert_eq!(pieces(&text, "abcab"), ["abc", "ab"]);
    assert_eq!(pieces(&text, "a b"), ["a", " ", "b"]);
    let bytes = text.encode("é").unwrap();
    assert_eq!(bytes, [3 + 0xC3, 3 + 0xA9]);
    assert_eq!(text.decode(&bytes), "é".as_bytes());
}

/// Of the pieces of [`sentence_piece`].
fn text_piece(id: u32) -> &'static [u8] {
    [
        b" " as &[u8],
        b"a",
        b"b",
        b"c",
        b"ab",
        b"bc",
        b" a",
        b"abc",
        b" ab",
    ][id as usize - 259]
}

#[test]
fn texts_begin_with_a_mark_where_the_file_or_its_kind_says_so() {
    const ADD: &str = "tokenizer.ggml.add_bos_token";
    let beginning = |file: &File| tokenizer(file).bos_tokens().to_vec();
    let mut words = file(byte_level());
    assert_eq!(beginning(&words), [1]);
    words.set(ADD, Value::Bool(false));
    assert!(beginning(&words).is_empty());
    words.unset(ADD);
    assert!(beginning(&words).is_empty());
    words.set("tokenizer.ggml.pre", "llama-bpe".into());
    assert_eq!(beginning(&words), [1]);
    let mut sentences = file(sentence_piece());
    assert_eq!(beginning(&sentences), [1]);
    sentences.set(ADD, Value::Bool(false));
    assert!(beginning(&sentences).is_empty());
}

#[test]
fn the_longest_token_of_a_world_vocabulary_comes_first() {
    let mut file = file(world());
    let text = tokenizer(&file);
    assert_eq!(
        pieces(&text, "User\n\ncafé\\\0'"),
        ["User", "\n\n", "café", "\\", "\0", "'"]
    );
    let control = text.encode("<s>[PAD260]").unwrap();
    assert!(!control.contains(&0) && !control.contains(&260));
    assert_eq!(text.encode("ü").unwrap(), [1 + 0xC3, 1 + 0xBC]);

    // The template by llama.cpp's name for it is its own; another is the file's.
    file.set("tokenizer.chat_template", "rwkv-world".into());
    let spelled = |text: &Tokenizer, turns: &[_]| {
        let ids = text.encode_chat(turns).unwrap();
        String::from_utf8(text.decode_with_specials(&ids)).unwrap()
    };
    let turns = [("user", "hi")];
    let expected = "User: hi\n\nAssistant:";
    assert_eq!(spelled(&text, &turns), expected);
    assert_eq!(spelled(&tokenizer(&file), &turns), expected);
    file.set(
        "tokenizer.chat_template",
        "{{ bos_token }}[{{ messages[0].content }}]".into(),
    );
    let text = tokenizer(&file);
    assert_eq!(spelled(&text, &turns), "<s>[hi]");
    assert_eq!(text.encode_chat(&turns).unwrap()[0], 0);

    let mut keys = world();
    keys[1].1 = Value::Texts(vec!["<s>".to_owned(), "\\q".to_owned()]);
    keys.remove(2);
    let error = Gguf::parse(&self::file(keys).bytes()).unwrap().tokenizer();
    let error = error.unwrap_err().to_string();
    assert!(
        error.ends_with(r#"has an escape that is none in token 1: "\\q""#),
        "{error}"
    );
}

#[test]
fn a_file_without_a_tokenizer_has_none() {
    let file = File::new("llama");
    assert!(
        Gguf::parse(&file.bytes())
            .unwrap()
            .tokenizer()
            .unwrap()
            .is_none()
    );
}

/// Every way in which a tokenizer is unfit is said of its key.
#[test]
fn an_unfit_tokenizer_is_refused_by_its_key() {
    type Spoil = fn(&mut File);
    let refusal = |keys: Vec<(String, Value)>, spoil: Spoil| {
        let mut file = file(keys);
        spoil(&mut file);
        let error = Gguf::parse(&file.bytes()).unwrap().tokenizer().unwrap_err();
        error
            .to_string()
            .replace("these bytes: tokenizer.ggml.", "")
    };
    let cases: [(Spoil, &str); 9] = [
        (
            |file| file.unset("tokenizer.ggml.merges"),
            "merges is missing; convert the model",
        ),
        (
            |file| file.unset("tokenizer.ggml.tokens"),
            "tokens is missing",
        ),
        (
            |file| file.unset("tokenizer.ggml.pre"),
            "pre is missing; convert the model",
        ),
        (
            |file| file.set("tokenizer.ggml.pre", "tekken".into()),
            "pre is \"tekken\"; known are gpt-2, smollm, llama-bpe and qwen2",
        ),
        (
            |file| file.set("tokenizer.ggml.model", "bert".into()),
            "model is \"bert\"; known are gpt2, llama and rwkv",
        ),
        (
            |file| {
                let merges = vec!["t x".to_owned()];
                file.set("tokenizer.ggml.merges", Value::Texts(merges));
            },
            "merges entry 0 does not merge two tokens into one: \"t x\"",
        ),
        (
            |file| file.set("tokenizer.ggml.token_type", Value::I32s(vec![1, 2])),
            "token_type has 2 types for 265 tokens",
        ),
        (
            |file| file.set("tokenizer.ggml.eos_token_id", Value::U32(999)),
            "eos_token_id is 999; there are 265 tokens",
        ),
        (
            |file| file.set("tokenizer.ggml.tokens", Value::F32s(vec![1.0])),
            "tokens is a list of numbers, not a list of texts",
        ),
    ];
    for (spoil, expected) in cases {
        let found = refusal(byte_level(), spoil);
        assert!(found.starts_with(expected), "{found}");
    }
    let found = refusal(sentence_piece(), |file| file.unset("tokenizer.ggml.scores"));
    assert_eq!(found, "scores is missing");
    // Each of them can be put together of all shorter ones.
    let nested = refusal(sentence_piece(), |file| {
        let tokens = (1..=200).map(|len| "a".repeat(len)).collect();
        file.set("tokenizer.ggml.tokens", Value::Texts(tokens));
        file.set("tokenizer.ggml.token_type", Value::I32s(vec![1; 200]));
        file.set("tokenizer.ggml.scores", Value::F32s(vec![0.0; 200]));
    });
    assert_eq!(
        nested,
        "tokens has tokens with more than 3200 possible merges"
    );
    let twice = refusal(sentence_piece(), |file| {
        file.set(
            "tokenizer.ggml.tokens",
            Value::Texts(vec!["a".to_owned(); 2]),
        );
    });
    assert_eq!(twice, "tokens has the same token under 0 and 1: \"a\"");
}
