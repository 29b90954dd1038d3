//! Tokenizers and chat templates from strangers, in the process that bounds them.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sluice_tokenizer::{
    Conversation, LimitReached, Patience, Tokenizer, TokenizerError, TokenizerFiles,
    limits::TEMPLATE_EXPRESSION_TOKENS_MAX,
};
use testkit::PATIENCE;

const PROGRAM: &str = env!("CARGO_BIN_EXE_sluiced");
const DEMO: &[u8] = include_bytes!("../../model/tokenizer.json");
const DEMO_CONFIG: &[u8] = include_bytes!("../../model/tokenizer_config.json");

fn files<'a>(tokenizer: &'a [u8], config: &'a [u8]) -> TokenizerFiles<'a> {
    TokenizerFiles {
        tokenizer,
        config: Some(config),
        template: None,
    }
}

fn apart(tokenizer: &[u8], config: &[u8]) -> Result<Tokenizer, TokenizerError> {
    let (program, files) = (Path::new(PROGRAM), files(tokenizer, config));
    Tokenizer::apart(program, &files, &Patience::default())
}

/// The demonstration model's tokenizer with another chat template.
fn templated(source: &str) -> Result<Tokenizer, TokenizerError> {
    apart(
        DEMO,
        json!({ "chat_template": source }).to_string().as_bytes(),
    )
}

fn tokenizer_json(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut json = serde_json::from_slice(DEMO).unwrap();
    change(&mut json);
    serde_json::to_vec(&json).unwrap()
}

#[test]
fn another_process_gives_the_same_ids() {
    let here = Tokenizer::here(&files(DEMO, DEMO_CONFIG)).unwrap();
    let there = apart(DEMO, DEMO_CONFIG).unwrap();
    assert_eq!(there.vocab_size(), here.vocab_size());
    assert_eq!(there.has_chat_template(), here.has_chat_template());
    assert_eq!(there.bos_tokens(), here.bos_tokens());
    for id in 0..here.vocab_size() as u32 + 1 {
        assert_eq!(there.piece(id), here.piece(id), "{id}");
        let shown = [id];
        assert_eq!(
            there.decode_with_specials(&shown),
            here.decode_with_specials(&shown)
        );
    }
    let long = "Mia found a kite. ".repeat(3000);
    let texts = [
        "",
        "Tell me a story.",
        "é\u{FDD0}<|eot_id|>\n\n",
        "🦊 日本",
        &long,
    ];
    let patience = Patience::default();
    let mut session = there.session(&patience).unwrap();
    for text in texts {
        assert_eq!(session.encode(text).unwrap(), here.encode(text).unwrap());
        let spans = session.encode_with_spans(text).unwrap();
        assert_eq!(spans, here.encode_with_spans(text).unwrap());
        let turns = [("system", "Be kind."), ("user", text)];
        assert_eq!(
            session.encode_chat(Conversation::of(&turns)).unwrap(),
            here.encode_chat(&turns).unwrap()
        );
    }
}

#[test]
fn errors_of_files_and_texts_come_back_whole() {
    for (tokenizer, config) in [
        (&b"{"[..], &b"{}"[..]),
        (DEMO, b"["),
        (DEMO, br#"{"chat_template": "{{"}"#),
    ] {
        let here = Tokenizer::here(&files(tokenizer, config)).unwrap_err();
        assert_eq!(apart(tokenizer, config).unwrap_err(), here);
    }
    let refusing = "{{ raise_exception('no such role') }}";
    let config = json!({ "chat_template": refusing }).to_string();
    let here = Tokenizer::here(&files(DEMO, config.as_bytes())).unwrap();
    let turns = [("user", "a")];
    let error = templated(refusing)
        .unwrap()
        .encode_chat(&turns)
        .unwrap_err();
    assert_eq!(error, here.encode_chat(&turns).unwrap_err());
}

/// Templates that were seen to end a daemon at load, and others like them.
#[test]
fn templates_that_nest_too_deeply_are_refused() {
    let times = 100_000;
    for source in [
        format!("{{{{ {} 1 }}}}", "not ".repeat(times)),
        format!("{{{{ {}1 }}}}", "-".repeat(times)),
        format!("{{{{ a{} }}}}", ".b".repeat(times / 2)),
        format!("{{{{ a{} }}}}", "|b".repeat(times / 2)),
        format!("{{{{ a{} }}}}", "[0]".repeat(times / 2)),
        format!("{{{{ a{} }}}}", " ~ a".repeat(times / 2)),
        format!("{{{{ a{} }}}}", " if a else a".repeat(times / 10)),
        format!("{{{{ {} }}}}", "[".repeat(times)),
        format!("{{% set a = {} %}}", "(".repeat(times)),
        "{% if a %}".repeat(times / 5),
        "{% if a %}{% elif b %}".repeat(times / 10),
    ] {
        let error = templated(&source).unwrap_err();
        let shown = &source[..24];
        assert!(
            matches!(error, TokenizerError::Template { .. }),
            "{shown}: {error}"
        );
    }
    // Chains just below the bound are parsed, so the bound is what holds.
    let chain = TEMPLATE_EXPRESSION_TOKENS_MAX / 2 - 8;
    for (begin, link) in [
        ("not ", "not "),
        ("-", "-"),
        ("a", ".b"),
        ("a", "|e"),
        ("a", " ~ a"),
    ] {
        let links = link.repeat(chain);
        let end = if begin == link { "1" } else { "" };
        templated(&format!("{{{{ {begin}{links}{end} }}}}")).unwrap();
    }
}

#[test]
#[ignore = "seconds of both cores: cargo ci"]
fn a_template_takes_no_more_memory_than_a_session_may() {
    let doubled = "{% set ns = namespace(s='aaaaaaaa') %}{% for _ in range(40) %}";
    for body in [
        format!("{doubled}{{% set ns.s = ns.s ~ ns.s %}}{{% endfor %}}{{{{ ns.s|length }}}}"),
        format!("{doubled}{{% set ns.s = ns.s|replace('a', 'aa') %}}{{% endfor %}}{{{{ ns.s|length }}}}"),
        format!("{doubled}{{% set ns.s = [ns.s, ns.s]|join %}}{{% endfor %}}{{{{ ns.s|length }}}}"),
        "{{ '%10000000000d'|format(1) }}".to_owned(),
        "{{ 'a'|indent(10000000000, true) }}".to_owned(),
        "{{ ('a' * 10000000000)|length }}".to_owned(),
        "{{ ('a' * 400000000).split('a')|length }}".to_owned(),
        "{% set ns = namespace(x=[]) %}{% for _ in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}".to_owned(),
    ] {
        let tokenizer = templated(&body).unwrap();
        let ended = tokenizer.encode_chat(&[("user", "12345678")]);
        let error = ended.expect_err(&body);
        assert!(
            matches!(
                error,
                TokenizerError::Limit(LimitReached::SessionMemory | LimitReached::SessionCpu)
                    | TokenizerError::Template { .. }
            ),
            "{body}: {error}"
        );
        // The next one finds everything as it was.
        assert!(tokenizer.encode("a story").is_ok());
    }
}

#[test]
#[ignore = "seconds of both cores: cargo ci"]
fn a_tokenizer_takes_no_more_memory_or_time_than_a_session_may() {
    let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
    let growing = replace(json!({"String": "a"}), &"a".repeat(1000));
    let quadratic = replace(json!({"Regex": "(?!x)(?:a|a)*b"}), "");
    let doubling = replace(json!({"String": "a"}), "aa");
    let normalizers = [
        json!({"type": "Sequence", "normalizers": [growing, growing, growing]}),
        json!({"type": "Sequence", "normalizers": vec![doubling; 40]}),
        quadratic,
    ];
    for normalizer in normalizers {
        let json = tokenizer_json(|json| json["normalizer"] = normalizer.clone());
        // Some take so much that a single letter is too long, which shows while they are parsed.
        let tokenizer = apart(&json, b"{}");
        let ended = tokenizer.as_ref().map_err(Clone::clone);
        let ended = ended.and_then(|tokenizer| tokenizer.encode(&"a".repeat(1 << 20)));
        assert!(ended.is_err(), "{normalizer}");
        assert!(tokenizer.is_err() || tokenizer.unwrap().encode("b").is_ok());
    }
}

#[test]
fn many_special_tokens_are_found_in_no_time() {
    let many = tokenizer_json(|json| {
        let size = json["model"]["vocab"].as_object().unwrap().len();
        let added = json["added_tokens"].as_array_mut().unwrap();
        let first = added
            .iter()
            .map(|token| token["id"].as_u64().unwrap() + 1)
            .max()
            .unwrap();
        for index in 0..50_000 {
            let mut token = added[0].clone();
            token["id"] = json!(first.max(size as u64) + index);
            token["content"] = json!(format!("<|special {index}|>"));
            added.push(token);
        }
    });
    let tokenizer = apart(&many, b"{}").unwrap();
    let text = "<|spec".repeat(20_000);
    assert!(tokenizer.encode_chat(&[("user", &text)]).is_ok());
}

/// The processes that this thread started.
fn children(task: &str) -> Vec<Pid> {
    let listed = fs::read_to_string(format!("/proc/{task}/children")).unwrap();
    let pids = listed.split_whitespace().map(|pid| pid.parse().unwrap());
    pids.map(|pid| Pid::from_raw(pid).unwrap()).collect()
}

fn is_over(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|stat| stat.contains(") Z "))
}

#[test]
fn who_leaves_is_not_waited_for_and_leaves_no_process() {
    let slow = "{% set ns = namespace(s='a') %}{% for _ in range(40) %}\
                {% set ns.s = ns.s|replace('a', 'aa') %}{% endfor %}";
    let tokenizer = templated(slow).unwrap();
    let process = children("thread-self")[0].as_raw_nonzero();
    let gone = Arc::new(AtomicBool::new(false));
    let patience = Patience::new(Duration::from_secs(60), gone.clone());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            tokenizer
                .session(&patience)
                .unwrap()
                .encode_chat(Conversation::default())
        });
        thread::sleep(Duration::from_millis(100));
        gone.store(true, Ordering::Relaxed);
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error, TokenizerError::Limit(LimitReached::Gone));
    });
    let began = Instant::now();
    while !children(&format!("{process}/task/{process}"))
        .into_iter()
        .all(is_over)
    {
        assert!(began.elapsed() < PATIENCE, "its supervisor is still there");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_process_that_was_killed_is_started_again() {
    let tokenizer = apart(DEMO, DEMO_CONFIG).unwrap();
    let ids = tokenizer.encode("a story").unwrap();
    kill_process(children("thread-self")[0], Signal::KILL).unwrap();
    // A session that was sent at that very moment may still be lost.
    let answer = tokenizer
        .encode("a story")
        .or_else(|_| tokenizer.encode("a story"));
    assert_eq!(answer.unwrap(), ids);
}

#[test]
fn nobody_waits_longer_than_they_would_for_another_process() {
    // A program that says nothing stands for one that takes long to parse the files.
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("sluiced");
    symlink(PROGRAM, &program).unwrap();
    let started = Tokenizer::apart(&program, &files(DEMO, DEMO_CONFIG), &Patience::default());
    let tokenizer = started.unwrap();
    fs::remove_file(&program).unwrap();
    fs::write(&program, "#!/bin/sh\nexec sleep 600\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let process = children("thread-self")[0];
    kill_process(process, Signal::KILL).unwrap();
    let began = Instant::now();
    while !is_over(process) {
        assert!(began.elapsed() < PATIENCE, "it is still there");
        thread::sleep(Duration::from_millis(10));
    }
    let gone = Arc::new(AtomicBool::new(false));
    let session = |patience: Patience| tokenizer.session(&patience).map(drop).unwrap_err();
    thread::scope(|scope| {
        let impatient =
            scope.spawn(|| session(Patience::new(Duration::from_millis(300), Arc::default())));
        let leaving = scope.spawn(|| session(Patience::new(Duration::from_secs(60), gone.clone())));
        thread::sleep(Duration::from_millis(500));
        gone.store(true, Ordering::Relaxed);
        let began = Instant::now();
        let is = TokenizerError::Limit;
        assert_eq!(impatient.join().unwrap(), is(LimitReached::Wait));
        assert_eq!(leaving.join().unwrap(), is(LimitReached::Gone));
        // The start itself would be given up after a minute.
        assert!(began.elapsed() < Duration::from_secs(20));
    });
}
