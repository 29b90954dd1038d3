//! Small vocabularies, beside the rule as it is told: of all tokens that fit, the longest.

use proptest::prelude::*;

use super::*;
use crate::{Tokenizer, TokenizerFiles};

fn vocabulary(lines: &str) -> Result<WorldVocabulary, String> {
    WorldVocabulary::parse(lines.as_bytes()).map_err(|error| error.to_string())
}

/// A vocabulary of these tokens, from id 1 on.
fn file(tokens: &[Vec<u8>]) -> String {
    let line = |(index, token): (usize, &Vec<u8>)| {
        let escaped: String = token.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        format!("{} b'{escaped}' {}\n", index + 1, token.len())
    };
    tokens.iter().enumerate().map(line).collect()
}

/// All bytes, and some words.
fn words() -> String {
    let words = [
        "User",
        ": ",
        "\n\n",
        "Assistant",
        ":",
        "hi",
        " é",
        "世界",
        "<|",
    ];
    let bytes = (0..=u8::MAX)
        .map(|byte| vec![byte])
        .filter(|byte| byte != b":");
    let words = words.iter().map(|word| word.as_bytes().to_vec());
    file(&bytes.chain(words).collect::<Vec<_>>())
}

fn tokenizer(config: Option<&str>) -> Tokenizer {
    Tokenizer::new(words().as_bytes(), config.map(str::as_bytes)).unwrap()
}

fn spelled(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    let piece = |&id: &u32| match id {
        END_OF_TEXT => "END".to_owned(),
        id => String::from_utf8_lossy(tokenizer.piece(id)).into_owned(),
    };
    ids.iter().map(piece).collect()
}

#[test]
fn literals_are_those_of_python() {
    let lines = r#"1 '\x00' 1
2 b'\xff' 1
3 "'" 1
4 '"' 1
5 b'\\' 1
6 '\xe9\t' 3
7 '  ' 2
8 'é世' 5
9 '\u200b\U0001f600' 7
10 b"\"\'\n\r" 4
"#;
    let found = vocabulary(lines).unwrap();
    let mut tokens: Vec<(u32, &[u8])> = found.tokens().collect();
    tokens.sort_unstable();
    let expected: [&[u8]; 10] = [
        b"\0",
        b"\xff",
        b"'",
        b"\"",
        b"\\",
        "é\t".as_bytes(),
        b"  ",
        "é世".as_bytes(),
        "\u{200b}😀".as_bytes(),
        b"\"'\n\r",
    ];
    assert!(tokens.into_iter().eq((1..).zip(expected)));
}

#[test]
fn lines_that_are_no_tokens_are_refused_by_their_number() {
    for (line, cause) in [
        ("", "it is no id, token and length"),
        ("2 'a'", "it is no id, token and length"),
        ("-2 'a' 1", "it is no id, token and length"),
        ("2 'a' 1.0", "it is no id, token and length"),
        ("0 'a' 1", "the id 0 is not from 1 to 4194303"),
        ("4194304 'a' 1", "the id 4194304 is not from 1 to 4194303"),
        ("2 'a' 2", "the token has 1 bytes, not 2"),
        ("2 '' 0", "the token has 0 bytes, not 0"),
        ("2 a 1", "the token is in no quotes"),
        ("2 ' 1", "the token is in no quotes"),
        ("2 'a\" 1", "the token is in no quotes"),
        ("2 f'a' 1", "the token is in no quotes"),
        ("2 'a'b' 3", "the token has a quote in quotes"),
        (r"2 '\' 1", "the token ends in a backslash"),
        (r"2 '\q' 1", r"the token has the escape \q"),
        (r"2 '\x1' 1", "the token has a wrong escape"),
        (r"2 '\ud800' 1", "the token has a wrong escape"),
        (r"2 b'\u0041' 1", r"the bytes have the escape \u"),
        ("2 b'é' 2", "the bytes have the character 'é'"),
    ] {
        let error = vocabulary(&format!("1 'x' 1\n{line}\n")).err().unwrap();
        assert_eq!(error, format!("rwkv_vocab_v20230424.txt: line 2: {cause}"));
    }
    let long = format!("1 '{}' 1025", "a".repeat(1025));
    let error = vocabulary(&long).err().unwrap();
    assert!(error.ends_with("more than the limit of 1024"), "{error}");
    let error = vocabulary("1 'x' 1\n2 b'x' 1").err().unwrap();
    assert!(
        error.ends_with("the ids 1 and 2 are the same token"),
        "{error}"
    );
    let error = vocabulary("1 'x' 1\n1 'y' 1").err().unwrap();
    assert!(error.ends_with("the id 1 is two tokens"), "{error}");
    let error = vocabulary("1 'x' 1\n").unwrap().encode(b"xy").unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("no token begins with byte 0x79"),
        "{error}"
    );
}

proptest! {
    #[test]
    fn the_longest_token_comes_first(
        words in prop::collection::btree_set(prop::collection::vec(b'a'..b'd', 2..6), 0..40),
        text in prop::collection::vec(b'a'..b'd', 0..60),
    ) {
        let bytes = (b'a'..b'd').map(|byte| vec![byte]);
        let tokens: Vec<Vec<u8>> = bytes.chain(words).collect();
        let vocabulary = vocabulary(&file(&tokens)).unwrap();
        let mut expected = Vec::new();
        let mut rest = &text[..];
        while !rest.is_empty() {
            let fitting = tokens.iter().enumerate().filter(|(_, token)| rest.starts_with(token));
            let (index, token) = fitting.max_by_key(|(_, token)| token.len()).unwrap();
            expected.push((index as u32 + 1, token.len()));
            rest = &rest[token.len()..];
        }
        prop_assert_eq!(vocabulary.encode(&text).unwrap(), expected);
    }

    #[test]
    fn any_text_comes_back_whole(text in any::<String>()) {
        let tokenizer = tokenizer(None);
        let found = tokenizer.encode_with_spans(&text).unwrap();
        let ids: Vec<u32> = found.iter().map(|(id, _)| *id).collect();
        prop_assert_eq!(tokenizer.decode(&ids), text.as_bytes());
        let spans = found.iter().map(|(_, span)| &text.as_bytes()[span.clone()]);
        prop_assert_eq!(spans.collect::<Vec<_>>().concat(), text.as_bytes());
    }

    #[test]
    fn any_line_is_taken_or_refused(line in "[0-9]{0,3} b?['\"](\\\\?[a-z0-9'\"]){0,6}['\"] [0-9]{0,2}") {
        if let Ok(found) = vocabulary(&line) {
            prop_assert_eq!(found.tokens().count(), 1);
        }
    }
}

#[test]
fn a_conversation_is_written_as_rwkv_s_is() {
    let tokenizer = tokenizer(None);
    assert!(tokenizer.has_chat_template());
    let turns = [
        ("system", " hi"),
        ("user", "世界\n"),
        ("assistant", "hi"),
        ("user", "hi"),
    ];
    let ids = tokenizer.encode_chat(&turns).unwrap();
    let text = String::from_utf8(tokenizer.decode(&ids)).unwrap();
    assert_eq!(
        text,
        "System: hi\n\nUser: 世界\n\nAssistant: hi\n\nUser: hi\n\nAssistant:"
    );
    let pieces = spelled(&tokenizer, &ids);
    assert_eq!(
        pieces[pieces.len() - 6..],
        ["User", ": ", "hi", "\n\n", "Assistant", ":"]
    );
    let error = tokenizer.encode_chat(&[("tool", "hi")]).unwrap_err();
    assert!(error.to_string().contains("not tool"), "{error}");
}

#[test]
fn the_end_of_text_is_what_templates_write_and_not_what_users_do() {
    for (config, name) in [
        (r#"{"chat_template": "T"}"#, END_OF_TEXT_STRING),
        (
            r#"{"chat_template": "T", "bos_token": "<s>", "eos_token": "<s>"}"#,
            "<s>",
        ),
        // Some name a token of the vocabulary, which ends an answer, and not a text.
        (
            r#"{"chat_template": "T", "eos_token": "\n\n"}"#,
            END_OF_TEXT_STRING,
        ),
        (
            r#"{"chat_template": "T", "bos_token": "\n\n", "eos_token": "</s>"}"#,
            "</s>",
        ),
    ] {
        let template = format!("{name}{{{{ messages[0].content }}}}{name}");
        let tokenizer = tokenizer(Some(&config.replace('T', &template)));
        let ids = tokenizer
            .encode_chat(&[("user", &format!("hi{name}"))])
            .unwrap();
        let pieces = spelled(&tokenizer, &ids);
        assert_eq!(pieces.concat(), format!("ENDhi{name}END"), "{config}");
        assert_eq!(tokenizer.token_id(name), Some(END_OF_TEXT));
        let ids = tokenizer.encode(name).unwrap();
        assert_eq!(tokenizer.decode(&ids), name.as_bytes());
    }
}

#[test]
fn a_world_vocabulary_has_no_beginning_of_text() {
    let tokenizer = tokenizer(None);
    assert!(tokenizer.bos_tokens().is_empty());
    assert_eq!(tokenizer.vocab_size(), 265);
    assert_eq!(tokenizer.longest_piece(), 9);
    assert_eq!(tokenizer.piece(END_OF_TEXT), b"");
    assert_eq!(tokenizer.token_id("世界"), Some(263));
    let files = TokenizerFiles {
        tokenizer: words().leak().as_bytes(),
        config: None,
        template: Some(b"{{ messages[0].content }}"),
    };
    let ids = Tokenizer::here(&files)
        .unwrap()
        .encode_chat(&[("user", "hi")]);
    assert_eq!(ids.unwrap(), [261]);
}
