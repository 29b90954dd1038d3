//! The commands against a daemon that plays a script: cases that cannot be arranged with a real one.

use std::io::Read;

use fake_daemon::{FakeDaemon, ScriptStep, generation_events};
use sluice_proto::v1::{
    CanvasToken, ChatRole, DecodingPreset, DiffusionOptions, GenerationDone, GenerationNotice,
    GenerationPass, GenerationQueued, GenerationStarted, PassPhases, PlanOptions, TokenState,
    generate_request::Input, generation_event::Event, model_ref::By,
};
use testkit::eventually;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::support::{Client, code, interrupt, run_with_input, said, sluice, stderr, stdout};

#[test]
fn a_pipe_gets_the_final_text_alone() {
    let fake = FakeDaemon::start(generation_events("once upon a time"));
    let output = fake.output(&["generate", "hi"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(stdout(&output), "once upon a time\n");
    assert_eq!(stderr(&output), "");
}

/// A pass after which so much of the text is final.
fn pass(stable_text: &str) -> ScriptStep {
    ScriptStep::Send(Event::PassDone(GenerationPass {
        stable_text: stable_text.into(),
        ..Default::default()
    }))
}

#[test]
fn a_pipe_gets_the_text_as_far_as_it_is_final() {
    let fake = FakeDaemon::start(vec![pass("once "), pass("once upon"), ScriptStep::Hang]);
    let mut child = fake.sluice(&["generate", "hi"]).spawn().unwrap();
    let mut written = [0; 9];
    let pipe = child.stdout.as_mut().expect("a pipe");
    pipe.read_exact(&mut written).unwrap();
    assert_eq!(&written, b"once upon");
    let output = interrupt(child);
    assert_eq!((code(&output), &*stdout(&output)), (130, "\n"));

    let done = |text: &str| {
        let text = Some(text.to_owned());
        ScriptStep::Send(Event::Done(GenerationDone {
            text,
            ..Default::default()
        }))
    };
    // A pass may be missed, and a text may grow at its end; one that turns out another is given whole.
    for (end, expected) in [
        ("once upon a time", "once upon a time\n"),
        ("twice", "once upon\ntwice\n"),
    ] {
        let fake = FakeDaemon::start(vec![pass("on"), pass("once upon"), done(end)]);
        assert_eq!(stdout(&fake.output(&["generate", "hi"])), expected);
    }
}

#[test]
fn the_prompt_and_its_system_message_arrive_as_a_conversation() {
    let fake = FakeDaemon::start(generation_events("x"));
    let mut command = fake.sluice(&["generate", "-", "--system", "be brief"]);
    command.arg("--seed=3");
    assert_eq!(code(&run_with_input(command, "héllo\n".as_bytes())), 0);
    let seen = fake.seen.lock().unwrap();
    let Some(Input::Chat(chat)) = &seen.generate[0].input else {
        panic!("{seen:?}");
    };
    let turns: Vec<_> = chat
        .messages
        .iter()
        .map(|m| (m.role(), &*m.content))
        .collect();
    assert_eq!(
        turns,
        [(ChatRole::System, "be brief"), (ChatRole::User, "héllo")]
    );
    assert_eq!(seen.generate[0].sampling.unwrap().seed, Some(3));
}

#[test]
fn json_gives_one_object_a_line_for_each_event() {
    let fake = FakeDaemon::start(generation_events("once upon a time"));
    let output = fake.output(&["generate", "hi", "--json"]);
    let text = stdout(&output);
    let events: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    let names: Vec<_> = events
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    let passes = ["pass_done"; 4];
    assert_eq!(names[..2], ["queued", "started"]);
    assert_eq!(names[2..6], passes);
    assert_eq!(names[6..], ["block_done", "done"]);
    assert_eq!(events[7]["text"], "once upon a time");
    assert_eq!(events[7]["finish_reason"], "length");
}

#[test]
fn without_a_tokenizer_the_ids_are_printed() {
    let done = Event::Done(GenerationDone {
        token_ids: vec![5, 6, 7],
        ..Default::default()
    });
    let fake = FakeDaemon::start(vec![ScriptStep::Send(done)]);
    assert_eq!(
        stdout(&fake.output(&["generate", "--tokens", "1,2"])),
        "5,6,7\n"
    );
}

#[test]
fn hostile_text_stays_as_it_is_in_a_pipe_and_harmless_on_standard_error() {
    let mut script = generation_events("a\x1b[2Jb");
    script.insert(
        2,
        ScriptStep::Send(Event::Notice(GenerationNotice {
            request_id: 7,
            text: "beware\x1b]0;title\x07".into(),
        })),
    );
    let output = FakeDaemon::start(script).output(&["generate", "hi"]);
    assert_eq!(stdout(&output), "a\x1b[2Jb\n");
    assert_eq!(stderr(&output), "note: beware\u{fffd}]0;title\u{fffd}\n");
}

#[test]
fn an_error_is_told_with_its_hint() {
    let hint = [("hint".to_owned(), "try later".to_owned())];
    let details = ErrorDetails::with_error_info("QUEUE_FULL", "sluice", hint);
    let status = Status::with_error_details(Code::ResourceExhausted, "the queue is full", details);
    for script in [
        vec![ScriptStep::Fail(status.clone())],
        vec![
            ScriptStep::Send(Event::Queued(GenerationQueued::default())),
            ScriptStep::Fail(status),
        ],
    ] {
        let output = FakeDaemon::start(script).output(&["generate", "hi"]);
        assert_eq!(code(&output), 1);
        assert_eq!(stdout(&output), "");
        assert_eq!(
            stderr(&output),
            "error: the queue is full\nhint: try later\n"
        );
    }
}

/// An answer of two tokens, the second of which is sure a pass later.
fn measured() -> Vec<ScriptStep> {
    let token = |position, state: TokenState| CanvasToken {
        position,
        state: state.into(),
        ..Default::default()
    };
    let pass = |second| {
        ScriptStep::Send(Event::PassDone(GenerationPass {
            tokens: vec![token(0, TokenState::Committed), token(1, second)],
            rows: 40,
            lm_head_rows: 2,
            pass_ms: 20.0,
            waited_ms: 5.0,
            ..Default::default()
        }))
    };
    vec![
        ScriptStep::Send(Event::Started(GenerationStarted {
            diffusion: Some(DiffusionOptions {
                preset: DecodingPreset::Fast.into(),
                ..Default::default()
            }),
            ..Default::default()
        })),
        pass(TokenState::Masked),
        pass(TokenState::Committed),
        ScriptStep::Send(Event::Done(GenerationDone {
            token_ids: vec![5, 6, 1],
            text_tokens: 2,
            passes: 2,
            peak_device_bytes: 64 << 20,
            pass_ms: 40.0,
            waited_ms: 10.0,
            phases: Some(PassPhases {
                attention_ms: 4.0,
                matmul_ms: 20.0,
                lm_head_ms: 4.0,
                other_ms: 2.0,
                copy_ms: 30.0,
                ..Default::default()
            }),
            ..Default::default()
        })),
    ]
}

#[test]
fn a_bench_has_a_row_for_each_preset() {
    let fake = FakeDaemon::start(measured());
    let output = fake.output(&["bench", "--preset", "exact,fast", "--repeat", "2"]);
    assert_eq!((code(&output), &*stderr(&output)), (0, ""));
    let table = stdout(&output);
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines.len(), 7, "{table}");
    for (line, same) in [(&lines[1], &["-"][..]), (&lines[4], &["100.0", "%"])] {
        assert_eq!(line[0], "fast");
        let passes = [
            "16", "1.00", "20.0", "20.0", "25", "%", "40", "2", "64.0", "MiB",
        ];
        assert_eq!(line[2..12], passes, "{table}");
        assert!(line.ends_with(same), "{table}");
    }
    let below = "wait 25 %, decompress 0 %, matmul 50 %, attention 10 %, lm_head 10 %, other 5 %";
    let sentence = "compute-bound: 60 % of a pass is matmul and attention";
    for row in [1, 4] {
        let words = [&lines[row + 1], &lines[row + 2]].map(|words| words.join(" "));
        assert_eq!(words, [below, sentence]);
    }
    // One that doesn't count, and four prompts twice.
    let seen = fake.seen.lock().unwrap();
    let presets = seen.generate.iter();
    let presets = presets.map(|request| request.diffusion().unwrap().preset());
    let chosen: Vec<DecodingPreset> = presets.collect();
    assert_eq!(chosen[..9], [DecodingPreset::Exact; 9]);
    assert_eq!(chosen[9..], [DecodingPreset::Fast; 9]);
}

#[test]
fn a_bench_has_a_json_form_and_tells_what_went_wrong() {
    let fake = FakeDaemon::start(measured());
    let arguments = ["bench", "--tokens", "1,2", "--warmup", "0", "--json"];
    let output = fake.output(&arguments);
    let row: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("one object");
    assert_eq!(row["tokens"], 2);
    assert_eq!(row["waited_share"], 0.25);
    let each = &row["phases_ms_per_pass"];
    assert_eq!(
        (&each["matmul"], &each["copy"]),
        (&10.0.into(), &15.0.into())
    );
    assert_eq!(row["bottleneck"]["bound"], "compute");
    assert_eq!(row["same_tokens"], serde_json::Value::Null);
    assert_eq!(fake.seen.lock().unwrap().generate.len(), 1);

    let refused = ScriptStep::Fail(Status::resource_exhausted("the queue is full"));
    let output = FakeDaemon::start(vec![refused]).output(&arguments);
    assert_eq!((code(&output), &*stdout(&output)), (1, ""));
    let told = stderr(&output);
    assert!(
        told.starts_with("{\"error\":\"the queue is full\","),
        "{told}"
    );
    let output = sluice(&["--socket", "/nonexistent/s", "bench"]).output();
    assert_eq!(code(&output.unwrap()), 69);
    let output = run_with_input(fake.sluice(&["bench", "-"]), b"\n \n");
    assert!(stderr(&output).contains("standard input holds no prompt"));
}

#[test]
fn an_older_daemon_is_named_as_such() {
    let output = FakeDaemon::start(vec![]).output(&["score", "a", "b"]);
    assert_eq!(code(&output), 1);
    assert!(
        stderr(&output).contains("older than the client"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_daemon_that_dies_midway_is_unreachable() {
    let script = vec![
        ScriptStep::Send(Event::Queued(GenerationQueued::default())),
        ScriptStep::Die,
    ];
    let output = FakeDaemon::start(script).output(&["generate", "hi"]);
    assert_eq!(code(&output), 69, "{}", stderr(&output));
    assert!(
        stderr(&output).starts_with("error: lost sluiced at "),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_stream_without_a_result_is_a_failure() {
    let output = FakeDaemon::start(vec![]).output(&["generate", "hi"]);
    assert_eq!(code(&output), 1);
    assert!(
        stderr(&output).contains("without a result"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn an_interrupt_cancels_the_request() {
    let queued = Event::Queued(GenerationQueued {
        request_id: 7,
        ahead: 0,
    });
    let notice = Event::Notice(GenerationNotice {
        request_id: 7,
        text: "it begins".into(),
    });
    let fake = FakeDaemon::start(vec![
        ScriptStep::Send(queued),
        ScriptStep::Send(notice),
        ScriptStep::Hang,
    ]);
    let mut child = fake.sluice(&["generate", "hi"]).spawn().unwrap();
    // The first event has to arrive before its number is known.
    said(child.stderr.as_mut().expect("a pipe"), "it begins");
    let output = interrupt(child);
    assert_eq!(code(&output), 130);
    assert!(stderr(&output).contains("cancelled"), "{}", stderr(&output));
    assert_eq!(fake.seen.lock().unwrap().operations_cancelled, [7]);
}

#[test]
fn an_interrupt_of_what_only_waits_has_its_exit_code_and_its_object() {
    let fake = FakeDaemon::start(vec![ScriptStep::Hang]);
    let child = fake.sluice(&["bench", "--json"]).spawn().unwrap();
    eventually("the first request", || {
        !fake.seen.lock().unwrap().generate.is_empty()
    });
    let output = interrupt(child);
    assert_eq!((code(&output), &*stdout(&output)), (130, ""));
    let told: serde_json::Value = serde_json::from_str(&stderr(&output)).expect("an object");
    assert_eq!(told["exit_code"], 130);
}

#[test]
fn a_reader_that_goes_is_a_clean_end() {
    let fake = FakeDaemon::start(generation_events("once upon a time"));
    let mut child = fake.sluice(&["generate", "hi", "--json"]).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
}

#[test]
fn standard_input_must_be_text_of_bounded_size() {
    let fake = FakeDaemon::start(generation_events("x"));
    let output = run_with_input(fake.sluice(&["generate", "-"]), b"ab\xff");
    assert_eq!(code(&output), 1);
    assert!(
        stderr(&output).contains("not UTF-8 at byte 2"),
        "{}",
        stderr(&output)
    );
    let output = run_with_input(fake.sluice(&["generate", "-"]), &vec![b'a'; (1 << 20) + 1]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("1 MiB"), "{}", stderr(&output));
    assert!(fake.seen.lock().unwrap().generate.is_empty());
}

#[test]
fn a_piped_conversation_sends_all_of_it_each_turn() {
    let fake = FakeDaemon::start(generation_events("well"));
    let output = run_with_input(fake.sluice(&["chat"]), b"one\n\n/reset\ntwo\nthree\n");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(stdout(&output), "well\nwell\nwell\n");
    let seen = fake.seen.lock().unwrap();
    let lengths: Vec<_> = seen
        .generate
        .iter()
        .map(|request| match &request.input {
            Some(Input::Chat(chat)) => chat.messages.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(lengths, [1, 1, 3]);
}

#[test]
fn an_edit_sends_the_bytes_of_its_span() {
    let fake = FakeDaemon::start(generation_events("the dog sat"));
    let output = fake.output(&["edit", "né cat sat", "--replace", "cat", "--tokens", "2"]);
    assert_eq!(stdout(&output), "the dog sat\n");
    let seen = fake.seen.lock().unwrap();
    let Some(Input::Edit(edit)) = &seen.generate[0].input else {
        panic!("{seen:?}");
    };
    assert_eq!((edit.span_start_bytes, edit.span_end_bytes), (4, 7));
    assert_eq!(edit.span_tokens, Some(2));
}

#[test]
fn a_folder_to_load_is_made_absolute_and_a_name_is_left_to_the_daemon() {
    let fake = FakeDaemon::start(vec![]);
    let output = fake.output(&["load", "./some/model"]);
    assert!(
        stdout(&output).starts_with("loaded fake (ready)"),
        "{}",
        stderr(&output)
    );
    assert_eq!(code(&fake.output(&["load"])), 0);
    assert_eq!(code(&fake.output(&["load", "some/model"])), 0);
    let loaded = &fake.seen.lock().unwrap().loaded;
    let Some(By::Path(path)) = loaded[0].model.clone().and_then(|model| model.by) else {
        panic!("{loaded:?}");
    };
    assert!(path.starts_with('/') && path.ends_with("some/model"));
    assert_eq!(loaded[1].model, By::Name("sluice-demo".into()).into());
    assert_eq!(loaded[1].options, Some(PlanOptions::default()));
    assert_eq!(loaded[2].model, By::Name("some/model".into()).into());
}

#[test]
fn warnings_come_before_the_text_and_in_json_with_it() {
    let mut script = generation_events("once");
    let ScriptStep::Send(Event::Started(started)) = &mut script[1] else {
        panic!("started");
    };
    started.warnings = vec!["this will take about 3 min\x1b[2J".into()];
    let fake = FakeDaemon::start(script);
    let output = fake.output(&["generate", "hi"]);
    assert_eq!(stdout(&output), "once\n");
    assert_eq!(
        stderr(&output),
        "warning: this will take about 3 min\u{fffd}[2J\n"
    );
    let output = fake.output(&["generate", "hi", "--json"]);
    assert_eq!(stderr(&output), "");
    assert!(stdout(&output).contains(r#""warnings":["this will take about 3 min"#));
}

#[test]
fn watching_and_cancelling_take_a_number() {
    let fake = FakeDaemon::start(generation_events("once"));
    assert_eq!(stdout(&fake.output(&["watch", "7"])), "once\n");
    assert_eq!(
        stdout(&fake.output(&["cancel", "7"])),
        "cancelled request 7\n"
    );
    // An id may be any operation's, and what is said is about that.
    assert_eq!(
        stdout(&fake.output(&["cancel", "5"])),
        "cancelled the load of on-its-way\n"
    );
    assert_eq!(fake.seen.lock().unwrap().watched, [7, 5], "to their ends");
    assert_eq!(code(&fake.output(&["cancel", "seven"])), 64);
}

#[test]
fn answers_have_a_plain_and_a_json_form() {
    let fake = FakeDaemon::start(vec![]);
    for command in ["status", "models", "requests"] {
        let plain = fake.output(&[command]);
        assert_eq!(code(&plain), 0);
        assert!(!plain.stdout.is_empty());
        let json = fake.output(&[command, "--json"]);
        let value: serde_json::Value = serde_json::from_slice(&json.stdout).expect("an object");
        assert!(value.is_object());
    }
    let status = stdout(&fake.output(&["status"]));
    assert!(status.contains("unknown available of unknown"), "{status}");
}

#[test]
fn an_old_flag_is_answered_with_the_new_one() {
    for (arguments, tip) in [
        (
            ["generate", "x", "--window=64"],
            "tip: '--window' is now '--suffix-window'",
        ),
        (
            ["plan", "--preset", "llada-8b"],
            "tip: '--preset' is now '--shape'",
        ),
        (
            ["bench", "--json", "--all-dials"],
            "tip: '--all-dials' is now '--all-presets'",
        ),
    ] {
        let output = sluice(&arguments).output().unwrap();
        assert_eq!(code(&output), 64);
        let error = stderr(&output);
        assert!(error.contains(tip), "{error}");
    }
}

#[test]
fn exit_codes_tell_wrong_usage_from_an_absent_daemon() {
    let run = |arguments: &[&str]| sluice(arguments).output().unwrap();
    for arguments in [
        &["generate"][..],
        &["generate", "x", "--length", "many"],
        &["generate", "x", "--policy", "threshold:t=2"],
        &["generate", "x", "--pin", "nowhere"],
        &["generate", "--tokens", "1,x"],
        &["edit", "x", "--span", "3"],
        &["score", "alone"],
        &["level", "fast"],
        &["budget", "much"],
        &["plan", "--model", "x", "--shape", "y"],
        &["frobnicate"],
    ] {
        assert_eq!(code(&run(arguments)), 64, "{arguments:?}");
    }
    let absent = ["--socket", "/nonexistent/sluice.sock"];
    for command in ["status", "models", "requests", "plan", "restore"] {
        let output = run(&[&absent[..], &[command]].concat());
        assert_eq!(code(&output), 69);
        let error = stderr(&output);
        assert!(
            error.starts_with(
                "error: cannot reach sluiced at /nonexistent/sluice.sock: no such socket\nhint: "
            ),
            "{error}"
        );
    }
    for fine in [
        &["--help"][..],
        &["--version"],
        &["generate", "--help"],
        &["plan", "--help"],
        &["level", "--help"],
        &["bench", "--help"],
        &["man"],
    ] {
        let output = run(fine);
        assert_eq!(
            (code(&output), stderr(&output).as_str()),
            (0, ""),
            "{fine:?}"
        );
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(stdout(&run(&["completions", shell])).contains("sluice"));
    }
}

#[test]
fn without_a_terminal_the_dashboard_is_the_status() {
    let fake = FakeDaemon::start(vec![]);
    let bare = fake.output(&[]);
    assert_eq!(code(&bare), 0, "{}", stderr(&bare));
    assert_eq!(stdout(&bare), stdout(&fake.output(&["status"])));
    let absent = ["--socket", "/nonexistent/sluice.sock"];
    let output = sluice(&absent).output().unwrap();
    assert_eq!(code(&output), 69);
}

#[test]
fn scripts_get_an_error_as_one_object() {
    let hint = [("hint".to_owned(), "try later".to_owned())];
    let details = ErrorDetails::with_error_info("QUEUE_FULL", "sluice", hint);
    let status = Status::with_error_details(Code::ResourceExhausted, "the queue is full", details);
    let fake = FakeDaemon::start(vec![ScriptStep::Fail(status)]);
    let told = |output: &std::process::Output| -> serde_json::Value {
        assert_eq!(stdout(output), "");
        serde_json::from_str(&stderr(output)).expect("one object")
    };
    let output = fake.output(&["generate", "hi", "--json"]);
    assert_eq!(
        told(&output),
        serde_json::json!({
            "error": "the queue is full", "hint": "try later", "reason": "QUEUE_FULL", "exit_code": 1,
        })
    );
    let output = fake.output(&["cancel", "--json", "abc"]);
    let wrong = told(&output);
    assert_eq!((code(&output), &wrong["exit_code"]), (64, &64.into()));
    let words = wrong["error"].as_str().expect("words");
    assert!(
        words.contains("'abc'") && words.contains("`sluice requests`"),
        "{words}"
    );
    let output = sluice(&["--socket", "/nonexistent/s", "load", "--json"]).output();
    assert_eq!(told(&output.unwrap())["exit_code"], 69);
}

#[test]
fn scripts_learn_whether_there_was_something_to_cancel() {
    let fake = FakeDaemon::start(Vec::new());
    let output = fake.output(&["cancel", "7", "--json"]);
    assert_eq!(
        stdout(&output),
        "{\"operation_id\":7,\"kind\":\"generate\",\"was_active\":true,\"state\":\"cancelled\"}\n"
    );
}
