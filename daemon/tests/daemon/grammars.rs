//! Answers that match a grammar, from the message to the text; and grammars that are after the daemon's memory and time.

use sluice_proto::v1::{self, grammar::Kind};
use sluice_tokenizer::Tokenizer;
use tempfile::TempDir;

use crate::support::{Daemon, RequestOptions, chat, checkpoints, generate, tokens};

/// A model that writes text at random, and ends it.
fn writer() -> TempDir {
    let folder = checkpoints::writer();
    let demo = std::fs::read(checkpoints::demo().join("tokenizer.json")).unwrap();
    let end = Tokenizer::new(&demo, None).unwrap().token_id("<|eot_id|>");
    let model = folder.path().join("writer");
    checkpoints::change_config(&model, "eos_token_id", end.unwrap().into());
    folder
}

async fn daemon(folder: &TempDir) -> Daemon {
    Daemon::with_model(&folder.path().join("writer"), &["--parallel", "4"]).await
}

fn ask(kind: Kind, seed: u64) -> v1::GenerateRequest {
    let mut request = v1::GenerateRequest {
        length: Some(120),
        ..chat("Tell me a story.")
    }
    .sampled(|sampling| {
        sampling.seed = Some(seed);
        sampling.temperature = Some(1.0);
    });
    request.autoregressive_mut().grammar = Some(v1::Grammar { kind: Some(kind) });
    request
}

async fn refusal(daemon: &Daemon, request: v1::GenerateRequest) -> (String, String) {
    let error = generate(daemon, request).await.unwrap_err();
    (error.reason.unwrap_or_default(), error.message)
}

/// With a request for a schema that there is nothing wrong with.
async fn check_refusals(daemon: &Daemon, schema: &str) {
    let with = |kind| {
        let mut request = ask(Kind::Regex("a".to_owned()), 1);
        request.autoregressive_mut().grammar = Some(v1::Grammar { kind });
        request
    };
    let (_, message) = refusal(daemon, with(None)).await;
    assert_eq!(message, "autoregressive.grammar: has no kind");
    let large = format!("{{\"description\": \"{}\"}}", "x".repeat(1 << 20));
    let (_, message) = refusal(daemon, with(Some(Kind::JsonSchema(large)))).await;
    assert!(message.contains("more than 524288"), "{message}");
    let masked = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let mut request = tokens(&[1], 4);
    let grammar = Kind::JsonSchema(schema.to_owned());
    request.autoregressive_mut().grammar = Some(v1::Grammar {
        kind: Some(grammar),
    });
    let (reason, message) = refusal(&masked, request.clone()).await;
    assert_eq!(reason, "ONLY_AUTOREGRESSIVE");
    assert!(message.starts_with("autoregressive.grammar"), "{message}");
    let without_text = Daemon::with_model(&checkpoints::fixture("llama-tiny"), &[]).await;
    assert_eq!(refusal(&without_text, request).await.0, "NO_TOKENIZER");
}

#[cfg(not(feature = "grammar"))]
#[tokio::test]
async fn a_daemon_without_grammars_says_so() {
    let folder = writer();
    let daemon = daemon(&folder).await;
    let (reason, message) = refusal(&daemon, ask(Kind::Regex("a".to_owned()), 1)).await;
    assert_eq!(reason, "WITHOUT_GRAMMARS");
    assert_eq!(
        message,
        "autoregressive.grammar: this sluiced was built without grammars"
    );
    check_refusals(&daemon, "{}").await;
}

#[cfg(feature = "grammar")]
mod with_grammars {
    use std::{
        path::Path,
        time::{Duration, Instant},
    };

    use futures_util::future::join_all;
    use serde_json::{Value, json};
    use sluice_proto::v1::generation_event::Event;
    use sluice_tokenizer::{
        LimitReached, Patience, TokenizerError, TokenizerFiles,
        grammar::{Grammar, GrammarKind},
        limits::{GRAMMAR_CPU_SECONDS_BASE, GRAMMAR_WAIT_MAX},
    };

    use super::*;
    use crate::support::done;

    fn person() -> String {
        json!({
            "type": "object",
            "properties": {
                "name": { "type": "string", "maxLength": 8 },
                "age": { "type": "integer", "minimum": 0, "maximum": 130 },
                "likes": { "type": "array", "items": { "enum": ["kites", "boats"] }, "maxItems": 2 },
            },
            "required": ["name", "age", "likes"],
            "additionalProperties": false,
            "x-guidance": { "whitespace_flexible": false },
        })
        .to_string()
    }

    fn check_person(text: &str) {
        let value: Value = serde_json::from_str(text).expect(text);
        let object = value.as_object().unwrap();
        assert_eq!(object.len(), 3);
        assert!(value["name"].as_str().unwrap().chars().count() <= 8);
        assert!((0.0..=130.0).contains(&value["age"].as_f64().unwrap()));
        let likes = value["likes"].as_array().unwrap();
        assert!(likes.len() <= 2 && likes.iter().all(|like| like == "kites" || like == "boats"));
    }

    fn ended(events: &[Event]) -> (&str, v1::FinishReason) {
        let done = done(events);
        (done.text.as_deref().unwrap(), done.finish_reason())
    }

    #[tokio::test]
    async fn answers_match_their_schema_whatever_the_seed() {
        let folder = writer();
        let daemon = daemon(&folder).await;
        let answer = async |seed| generate(&daemon, ask(Kind::JsonSchema(person()), seed)).await;
        // Some of them at once, beside each other.
        let mut whole = 0;
        for seeds in (0..40).collect::<Vec<u64>>().chunks(8) {
            for events in join_all(seeds.iter().map(|&seed| answer(seed))).await {
                let events = events.unwrap();
                match ended(&events) {
                    (text, v1::FinishReason::Eos) => {
                        whole += 1;
                        check_person(text);
                        assert!(!done(&events).is_truncated);
                    }
                    // Only the length ends a text before its grammar does.
                    (text, reason) => {
                        assert_eq!(reason, v1::FinishReason::Length, "{text}");
                        assert!(done(&events).is_truncated && text.starts_with('{'));
                    }
                }
            }
        }
        assert!(whole > 20, "{whole} of 40 are whole");
        // Alone and again, a seed's answer is the same.
        for seed in [3, 4] {
            let [first, second] = [answer(seed).await.unwrap(), answer(seed).await.unwrap()];
            assert_eq!(done(&first).token_ids, done(&second).token_ids);
        }
    }

    #[tokio::test]
    async fn answers_match_expressions_and_rules_and_stop_strings_still_end_them() {
        let folder = writer();
        let daemon = daemon(&folder).await;
        let regex = || Kind::Regex("(yes|no), [A-Z][a-z]{1,6}\\.".to_owned());
        for seed in 0..12 {
            let events = generate(&daemon, ask(regex(), seed)).await.unwrap();
            let (text, reason) = ended(&events);
            assert_eq!(reason, v1::FinishReason::Eos, "{text}");
            let (answer, name) = text.split_once(", ").expect(text);
            assert!(answer == "yes" || answer == "no");
            let letters = name.strip_suffix('.').expect(text);
            assert!((2..=7).contains(&letters.len()));
            assert!(letters.starts_with(|first: char| first.is_ascii_uppercase()));
        }
        let sum = "start: number (\"+\" number){1,3}\nnumber: /[1-9][0-9]?/\n";
        let events = generate(&daemon, ask(Kind::Lark(sum.to_owned()), 5))
            .await
            .unwrap();
        let (text, reason) = ended(&events);
        assert_eq!(reason, v1::FinishReason::Eos);
        assert!((2..=4).contains(&text.split('+').count()), "{text}");
        let mut stopped = ask(regex(), 1);
        stopped.autoregressive_mut().stop = vec![", ".to_owned()];
        let events = generate(&daemon, stopped).await.unwrap();
        let (text, reason) = ended(&events);
        assert_eq!(reason, v1::FinishReason::Stop);
        assert!(text == "yes" || text == "no", "{text}");
        // Log-probabilities are the model's own, whatever a grammar allows.
        let mut told = ask(regex(), 1);
        told.autoregressive_mut().top_logprobs = Some(1);
        let events = generate(&daemon, told).await.unwrap();
        let Some(Event::BlockDone(block)) = events
            .iter()
            .find(|event| matches!(event, Event::BlockDone(_)))
        else {
            panic!("a block");
        };
        let first = block.tokens[0].logprobs.as_ref().unwrap();
        assert!(first.top[0].logprob >= first.logprob && first.logprob < -1.0);
    }

    #[tokio::test]
    async fn what_is_wrong_with_a_grammar_is_told_before_the_request_waits() {
        let folder = writer();
        let daemon = daemon(&folder).await;
        for (kind, words) in [
            (Kind::JsonSchema("{".into()), "the schema is no JSON"),
            (
                Kind::JsonSchema(r#"{"$ref": "http://127.0.0.1:1/a"}"#.into()),
                "http://127.0.0.1:1/a",
            ),
            (Kind::Regex("(a".into()), "regex"),
            (Kind::Lark("start: nothing".into()), "nothing"),
        ] {
            let (reason, message) = refusal(&daemon, ask(kind, 1)).await;
            assert_eq!(reason, "GRAMMAR");
            assert!(
                message.starts_with("the grammar: ") && message.contains(words),
                "{message}"
            );
        }
        let unending = ask(Kind::Regex("a".into()), 1)
            .sampled(|sampling| sampling.eos_policy = v1::EosPolicy::Keep.into());
        let (_, message) = refusal(&daemon, unending).await;
        assert!(message.starts_with("sampling.eos_policy: "), "{message}");
        check_refusals(&daemon, "{}").await;
    }

    /// A grammar that never comes to an answer in the middle of a text: for that request alone, and not for long.
    #[tokio::test]
    async fn a_grammar_that_takes_for_ever_harms_nobody_else() {
        let folder = writer();
        let daemon = daemon(&folder).await;
        let plain = || {
            v1::GenerateRequest {
                length: Some(40),
                ..chat("Tell me a story.")
            }
            .sampled(|sampling| sampling.seed = Some(9))
        };
        let alone = generate(&daemon, plain()).await.unwrap();
        let endless = "start: start \"a\" | start start | \"b\" | \"\"\n";
        let began = Instant::now();
        let beside = async {
            let mut answers = Vec::new();
            for _ in 0..3 {
                answers.push(generate(&daemon, plain()).await.unwrap());
            }
            answers
        };
        let slow = generate(&daemon, ask(Kind::Lark(endless.into()), 1));
        let (failed, answers) = tokio::join!(slow, beside);
        for answer in answers {
            assert_eq!(done(&answer).token_ids, done(&alone).token_ids);
        }
        if let Err(error) = failed {
            let reason = error.reason.unwrap();
            assert!(
                ["GRAMMAR", "GRAMMAR_LIMIT"].contains(&reason.as_str()),
                "{reason}"
            );
        }
        assert!(began.elapsed() < 3 * GRAMMAR_WAIT_MAX);
        daemon.snapshot().await;
    }

    const PROGRAM: &str = env!("CARGO_BIN_EXE_sluiced");
    const DEMO: &[u8] = include_bytes!("../../model/tokenizer.json");

    fn apart() -> Tokenizer {
        let files = TokenizerFiles {
            tokenizer: DEMO,
            config: None,
            template: None,
        };
        Tokenizer::apart(Path::new(PROGRAM), &files, &Patience::default()).unwrap()
    }

    /// Follows a grammar for some tokens, the first that is allowed each time; what it fails with, if it does.
    fn follow(tokenizer: &Tokenizer, kind: GrammarKind, text: String) -> Option<TokenizerError> {
        let grammar = Grammar { kind, text };
        let wait = || Patience::new(GRAMMAR_WAIT_MAX, Default::default());
        let followed = || {
            let (mut session, mut allowed) = tokenizer.compile(&grammar, &wait())?;
            for _ in 0..200 {
                let word = allowed.mask.iter().position(|word| *word != 0);
                let Some(word) = word else { break };
                let bit = allowed.mask[word].trailing_zeros();
                allowed = session.accept(word as u32 * 32 + bit, &wait())?;
            }
            Ok(())
        };
        followed().err()
    }

    #[test]
    fn hostile_grammars_end_within_their_bounds() {
        let tokenizer = apart();
        let rules = |count: usize| {
            let all = (0..count)
                .map(|rule| format!("r{rule}"))
                .collect::<Vec<_>>();
            let each = (0..count)
                .map(|rule| format!("r{rule}: \"a{rule}\" r{} | \"b\"\n", (rule + 1) % count));
            format!("start: {}\n{}", all.join(" | "), each.collect::<String>())
        };
        let nested = |open: &str, inner: &str, close: &str, depth: usize| {
            format!("{}{inner}{}", open.repeat(depth), close.repeat(depth))
        };
        let properties = |count: usize| {
            let each = (0..count).map(|number| (format!("p{number}"), json!({ "type": "string" })));
            let properties: serde_json::Map<String, Value> = each.collect();
            json!({ "type": "object", "properties": properties }).to_string()
        };
        let names = (0..20_000).map(|name| format!("value number {name}"));
        let product = |sides: usize| {
            let one = |key: String| json!({ "type": "object", "properties": { &key: {} }, "required": [key] });
            let any = |side| {
                (0..8)
                    .map(|number| one(format!("x{side}_{number}")))
                    .collect::<Vec<_>>()
            };
            let all = (0..sides).map(|side| json!({ "anyOf": any(side) }));
            json!({ "allOf": all.collect::<Vec<_>>() }).to_string()
        };
        let of_schema = GrammarKind::JsonSchema;
        for (kind, text) in [
            (of_schema, nested(r#"{"items":"#, "{}", "}", 5000)),
            (of_schema, nested(r#"{"items":"#, "{}", "}", 100)),
            (of_schema, properties(8000)),
            (
                of_schema,
                json!({ "enum": names.collect::<Vec<_>>() }).to_string(),
            ),
            (of_schema, product(12)),
            (of_schema, r##"{"$ref": "#"}"##.to_owned()),
            (
                of_schema,
                json!({
                    "$defs": {
                        "a": { "allOf": [{ "$ref": "#/$defs/b" }] },
                        "b": { "allOf": [{ "$ref": "#/$defs/a" }] },
                    },
                    "$ref": "#/$defs/a",
                })
                .to_string(),
            ),
            (
                of_schema,
                json!({ "type": "array", "items": {}, "minItems": 1_000_000 }).to_string(),
            ),
            (
                of_schema,
                json!({ "type": "string", "minLength": 100_000, "maxLength": 1_000_000 })
                    .to_string(),
            ),
            (
                of_schema,
                json!({ "pattern": "^(a{1000}){1000}$" }).to_string(),
            ),
            (
                GrammarKind::Regex,
                "((((a{100}){100}){100}){100})".to_owned(),
            ),
            (GrammarKind::Regex, "(?:a?){5000}a{5000}".to_owned()),
            (
                GrammarKind::Regex,
                "(.*a.{20}|.*b.{25}|[ab]*a[ab]{30})".to_owned(),
            ),
            (
                GrammarKind::Regex,
                "(a|aa|aaa)*b{0,1000}(x+x+)+y".to_owned(),
            ),
            (GrammarKind::Regex, nested("(", "a", ")", 20_000)),
            (GrammarKind::Lark, rules(20_000)),
            (GrammarKind::Lark, nested("start: (", "\"a\"", ")", 20_000)),
            (
                GrammarKind::Lark,
                "start: s\ns: s s | s s s | \"a\" |\n".to_owned(),
            ),
            (
                GrammarKind::Lark,
                "start: start \"a\" | start start | \"b\" | \"\"\n".to_owned(),
            ),
        ] {
            let shown = text.chars().take(60).collect::<String>();
            let began = Instant::now();
            let failed = follow(&tokenizer, kind, text);
            let took = began.elapsed();
            // CPU time is bounded; how long that takes is up to the machine.
            let most = GRAMMAR_WAIT_MAX + Duration::from_secs(4 * GRAMMAR_CPU_SECONDS_BASE);
            assert!(took < most, "{took:?} for {shown}");
            if let Some(error) = failed {
                let is_told = matches!(
                    error,
                    TokenizerError::Grammar { .. }
                        | TokenizerError::Limit(
                            LimitReached::GrammarMemory
                                | LimitReached::GrammarCpu
                                | LimitReached::GrammarWait
                        )
                );
                assert!(is_told, "{error:?} for {shown}");
            }
            // The next one, and texts, are as if nothing had been.
            let next = follow(&tokenizer, GrammarKind::Regex, "ab".to_owned());
            assert_eq!(next, None, "after {shown}");
            assert!(!tokenizer.encode("a story").unwrap().is_empty());
        }
    }

    #[test]
    fn a_stack_that_is_too_deep_is_the_grammars_own() {
        let tokenizer = apart();
        let count = 20_000;
        let all = (0..count)
            .map(|rule| format!("r{rule}"))
            .collect::<Vec<_>>();
        let each =
            (0..count).map(|rule| format!("r{rule}: \"a\" r{} | \"b\"\n", (rule + 1) % count));
        let text = format!("start: {}\n{}", all.join(" | "), each.collect::<String>());
        assert_eq!(
            follow(&tokenizer, GrammarKind::Lark, text),
            Some(LimitReached::GrammarMemory.into())
        );
    }
}
