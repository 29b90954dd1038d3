//! Rust sources as words and punctuation, without comments, literals, and items that are compiled for tests only.

/// A word or a punctuation mark of a source file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'a> {
    /// `::` is one token; every other punctuation mark is a token of its own.
    pub(super) text: &'a str,
    pub(super) line: usize,
}

impl Token<'_> {
    pub(super) fn is_word(&self) -> bool {
        self.text.starts_with(is_of_word)
    }
}

/// The tokens of a file that are compiled into the crate when it is not tested.
pub(super) fn tokens(source: &str) -> Vec<Token<'_>> {
    without_tests(&all_tokens(source))
}

fn all_tokens(source: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let (mut rest, mut line) = (source, 1);
    while !rest.is_empty() {
        let (len, is_token) = first(rest);
        let (text, after) = rest.split_at(len);
        if is_token {
            tokens.push(Token { text, line });
        }
        line += text.matches('\n').count();
        rest = after;
    }
    tokens
}

/// How many bytes the first piece of a source has, and whether it is a token.
fn first(rest: &str) -> (usize, bool) {
    let (word, after) = rest.split_at(word_len(rest));
    let literal_len = match word {
        "r" | "br" | "cr" => raw_string_len(after),
        "" | "b" | "c" if after.starts_with('"') => Some(string_len(after)),
        "" | "b" if after.starts_with('\'') => Some(quote_len(after)),
        "" if after.starts_with("//") => Some(after.find('\n').unwrap_or(after.len())),
        "" if after.starts_with("/*") => Some(comment_len(after)),
        _ => None,
    };
    match (literal_len, after.chars().next()) {
        (Some(len), _) => (word.len() + len, false),
        (None, Some(mark)) if word.is_empty() => match after.starts_with("::") {
            true => (2, true),
            false => (mark.len_utf8(), !mark.is_whitespace()),
        },
        (None, _) => (word.len(), true),
    }
}

fn is_of_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn word_len(text: &str) -> usize {
    text.find(|character| !is_of_word(character))
        .unwrap_or(text.len())
}

/// What follows the `r` of a raw string. None where it is another `r`, such as that of `r#type`.
fn raw_string_len(after: &str) -> Option<usize> {
    let hashes = after.len() - after.trim_start_matches('#').len();
    let inside = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", &after[..hashes]);
    let len = inside.find(&end).unwrap_or(inside.len());
    Some((hashes + 1 + len + end.len()).min(after.len()))
}

fn string_len(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |inside| inside + 2)
}

/// A character such as `'a'` or `'\''`, or a lifetime such as `'a`.
fn quote_len(text: &str) -> usize {
    let inside = &text[1..];
    if let Some(escaped) = inside.strip_prefix('\\') {
        let escape = escaped.chars().next().map_or(0, char::len_utf8);
        let end = escaped[escape..].find('\'');
        return end.map_or(text.len(), |end| 2 + escape + end + 1);
    }
    let character = inside.chars().next().map_or(0, char::len_utf8);
    match inside[character..].starts_with('\'') {
        true => 1 + character + 1,
        false => 1 + word_len(inside),
    }
}

fn comment_len(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn without_tests<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match attribute(&tokens[at..]) {
            Some(attribute) if is_for_tests(attribute) => {
                at += 1 + attribute.len();
                at += item_len(&tokens[at..]);
            }
            _ => {
                kept.push(tokens[at]);
                at += 1;
            }
        }
    }
    kept
}

/// What follows the `#` of an attribute that the tokens begin with, brackets included.
fn attribute<'t, 'a>(tokens: &'t [Token<'a>]) -> Option<&'t [Token<'a>]> {
    match tokens {
        [hash, bracket, ..] if hash.text == "#" && bracket.text == "[" => {
            let mut depth = 0;
            let end = tokens[1..].iter().position(|token| {
                depth += i32::from(token.text == "[") - i32::from(token.text == "]");
                depth == 0
            })?;
            Some(&tokens[1..end + 2])
        }
        _ => None,
    }
}

/// Whether an attribute leaves its item out where nothing is tested: `cfg(test)`, or `cfg(all(test, ...))`.
fn is_for_tests(attribute: &[Token<'_>]) -> bool {
    let has = |word| attribute.iter().any(|token| token.text == word);
    attribute[1].text == "cfg" && has("test") && !has("not") && !has("any")
}

/// How many tokens the item, statement, field or match arm has that the tokens begin with.
fn item_len(tokens: &[Token<'_>]) -> usize {
    const WITH_BODY: [&str; 9] = [
        "fn", "mod", "impl", "struct", "enum", "trait", "union", "unsafe", "extern",
    ];
    const WITHOUT_BODY: [&str; 5] = ["use", "const", "static", "let", "type"];
    let mut start = 0;
    while let Some(attribute) = attribute(&tokens[start..]) {
        start += 1 + attribute.len();
    }
    let kind = tokens[start..]
        .iter()
        .take_while(|token| token.is_word() || matches!(token.text, "(" | ")"))
        .find(|token| WITH_BODY.contains(&token.text) || WITHOUT_BODY.contains(&token.text));
    // `const fn` has a body; its braces are the first, since constants have none before the `=`.
    let is_function = tokens[start..]
        .iter()
        .take(6)
        .any(|token| token.text == "fn");
    let ends_with_brace =
        is_function || !kind.is_some_and(|kind| WITHOUT_BODY.contains(&kind.text));
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(start) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            // The end of what surrounds it.
            ")" | "]" | "}" if depth == 0 => return at,
            ")" | "]" | "}" => {
                depth -= 1;
                if depth == 0 && token.text == "}" && ends_with_brace {
                    return at + 1;
                }
            }
            ";" if depth == 0 => return at + 1,
            "," if depth == 0 && kind.is_none() => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        tokens(source).iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_and_literals_are_no_tokens() {
        let source = r##"
            //! crate::a
            /* crate::b /* nested */ crate::c */
            let text = "crate::d \" crate::e";
            let raw = r#"crate::f " crate::g"#;
            let bytes = [b"crate::h", br"crate::i"];
            let quotes = ['"', '\'', '\\', b'"', '\u{22}', 'é'];
            fn f<'a>(x: &'a str) -> r#type { crate::j }
        "##;
        let texts = texts(source);
        let paths: Vec<_> = texts.windows(3).filter(|three| three[1] == "::").collect();
        assert_eq!(paths, [["crate", "::", "j"]]);
    }

    #[test]
    fn lines_are_counted_through_comments_and_strings() {
        let tokens = tokens("/* 1\n2 */\n\"3\n4\" here");
        assert_eq!(
            tokens,
            [Token {
                text: "here",
                line: 4
            }]
        );
    }

    #[test]
    fn what_is_compiled_for_tests_only_is_left_out() {
        for source in [
            "#[cfg(test)] mod tests;",
            "#[cfg(test)] mod tests { use super::*; fn f() {} }",
            "#[cfg(test)] use crate::a::{b, c};",
            "#[cfg(test)] #[allow(dead_code)] pub(crate) fn f<A, B>(x: [u8; 3]) -> B { x; }",
            "#[cfg(test)] pub(crate) const fn f() { a(); }",
            "#[cfg(all(test, target_os = \"linux\"))] const X: A = A { b: 3 };",
            "#[cfg(test)] impl<A, B> C<A> for B { fn f() {} }",
            "#[cfg(test)] field: Cell<usize>,",
        ] {
            assert_eq!(texts(&format!("{source} after")), ["after"], "{source}");
        }
        assert_eq!(texts("{ #[cfg(test)] last: A }"), ["{", "}"]);
        assert!(texts("#[cfg(not(test))] use a;").contains(&"use"));
        assert!(texts("#[cfg(any(test, unix))] use a;").contains(&"use"));
        assert!(texts("#[derive(Debug)] struct test;").contains(&"struct"));
    }
}
