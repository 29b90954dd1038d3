//! Conversations with `sluice chat`: on a real terminal by way of a pseudo-terminal, and in a pipe.

use std::{os::unix::fs::PermissionsExt, path::Path};

use fake_daemon::{FakeDaemon, ScriptStep, generation_events};
use rustix::process::Signal;
use sluice_proto::v1::{
    GenerationNotice, GenerationQueued, generate_request::Input, generation_event::Event,
    model_ref::By,
};
use testkit::{eventually, terminal::Journey};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::support::{Client, code, run_with_input, stderr, stdout};

/// `sluice chat` with a home of its own.
fn chat(fake: &FakeDaemon, home: &Path, arguments: &[&str]) -> Journey {
    let mut command = fake.sluice(&["chat"]);
    command.args(arguments).env("HOME", home);
    let journey = Journey::start(command);
    expect_prompt(&journey);
    journey
}

/// Waits until nothing is left but to type.
fn expect_prompt(journey: &Journey) {
    journey.wait_until("a prompt", |screen| {
        screen.contents().trim_end().ends_with("\n>")
    });
    journey.wait_until_drawn();
}

/// The messages of the last request, each as `role: content`.
fn asked(fake: &FakeDaemon) -> Vec<String> {
    let seen = fake.seen.lock().unwrap();
    let Some(Input::Chat(chat)) = seen.generate.last().and_then(|last| last.input.as_ref()) else {
        return Vec::new();
    };
    let messages = chat.messages.iter();
    messages
        .map(|message| format!("{}: {}", message.role(), message.content))
        .collect()
}

fn wait_for_last(fake: &FakeDaemon, words: &str) {
    eventually(words, || {
        asked(fake).last().is_some_and(|last| last == words)
    });
}

#[test]
fn lines_are_edited_remembered_and_answered_until_control_d() {
    let home = tempfile::tempdir().expect("a folder");
    let fake = FakeDaemon::start(generation_events("well"));
    let mut journey = chat(&fake, home.path(), &[]);
    // A letter forgotten, put in its place.
    journey.press("helo\x1b[Dl\r");
    wait_for_last(&fake, "user: hello");
    expect_prompt(&journey);
    // From the history, with a word more.
    journey.press("\x1b[A again\r");
    wait_for_last(&fake, "user: hello again");
    assert_eq!(asked(&fake)[..2], ["user: hello", "assistant: well"]);
    expect_prompt(&journey);
    journey.press("/he\t\r");
    journey.expect("/system TEXT");
    expect_prompt(&journey);
    journey.press("\x04");
    assert!(journey.end().success());

    let kept = home.path().join(".local/state/sluice/chat_history");
    let mode = std::fs::metadata(&kept).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // The next conversation begins anew, but knows what was typed.
    let mut journey = chat(&fake, home.path(), &[]);
    journey.press("\x1b[A\x1b[A\r");
    eventually("a third request", || {
        fake.seen.lock().unwrap().generate.len() == 3
    });
    assert_eq!(asked(&fake), ["user: hello again"]);
    expect_prompt(&journey);
    journey.press("/quit\r");
    assert!(journey.end().success());
}

#[test]
fn a_private_conversation_leaves_nothing() {
    let home = tempfile::tempdir().expect("a folder");
    let fake = FakeDaemon::start(generation_events("well"));
    let mut journey = chat(&fake, home.path(), &["--private"]);
    journey.press("a secret\r");
    wait_for_last(&fake, "user: a secret");
    expect_prompt(&journey);
    journey.press("\x04");
    assert!(journey.end().success());
    assert!(!home.path().join(".local").exists());
}

#[test]
fn a_text_takes_several_lines() {
    let home = tempfile::tempdir().expect("a folder");
    let fake = FakeDaemon::start(generation_events("well"));
    let mut journey = chat(&fake, home.path(), &[]);
    journey.press("one\\\r");
    journey.press("two\r");
    wait_for_last(&fake, "user: one\ntwo");
    expect_prompt(&journey);
    journey.press("\"\"\"three\r\rfour\"\"\"\r");
    wait_for_last(&fake, "user: three\n\nfour");
    expect_prompt(&journey);
    // What is pasted is sent by Enter alone.
    journey.press("\x1b[200~five\nsix\x1b[201~");
    journey.press("\r");
    wait_for_last(&fake, "user: five\nsix");
    expect_prompt(&journey);
    journey.press("\x04");
    assert!(journey.end().success());
}

#[test]
fn control_c_stops_the_answer_and_not_the_conversation() {
    let home = tempfile::tempdir().expect("a folder");
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
    let mut journey = chat(&fake, home.path(), &[]);
    journey.press("hello\r");
    // The first event has to arrive before its number is known.
    journey.expect("it begins");
    assert_eq!(asked(&fake), ["user: hello"]);
    journey.press("\x03");
    journey.expect("/retry asks it again");
    expect_prompt(&journey);
    assert_eq!(fake.seen.lock().unwrap().operations_cancelled, [7]);
    journey.press("/retry\r");
    journey.wait_until("the same prompt", |screen| {
        screen.contents().matches("it begins").count() == 2
    });
    assert_eq!(asked(&fake), ["user: hello"]);
    journey.press("\x03");
    eventually("the end of it", || {
        fake.seen.lock().unwrap().operations_cancelled.len() == 2
    });
    expect_prompt(&journey);
    // At the prompt it takes two.
    journey.press("a draft\x03");
    journey.expect("Ctrl-C again ends");
    journey.press("\x03");
    assert_eq!(journey.end().code(), Some(130));
}

#[test]
fn a_termination_gives_the_terminal_back() {
    let home = tempfile::tempdir().expect("a folder");
    let fake = FakeDaemon::start(vec![]);
    let mut journey = chat(&fake, home.path(), &[]);
    journey.press("a draft");
    journey.expect("a draft");
    journey.signal(Signal::TERM);
    assert!(journey.end().success());
}

#[test]
fn commands_change_what_the_next_answer_is_asked_for() {
    let home = tempfile::tempdir().expect("a folder");
    let fake = FakeDaemon::start(generation_events("well"));
    let mut journey = chat(&fake, home.path(), &["--length", "64"]);
    journey.press("/system be brief\r");
    journey.expect("these instructions");
    expect_prompt(&journey);
    journey.press("/set temperature 0.5\r");
    journey.expect("set: temperature 0.5");
    expect_prompt(&journey);
    journey.press("/set temperature hot\r");
    journey.expect("'hot'");
    expect_prompt(&journey);
    journey.press("hi\r");
    wait_for_last(&fake, "user: hi");
    assert_eq!(asked(&fake)[0], "system: be brief");
    let request = fake.seen.lock().unwrap().generate[0].clone();
    let sampling = request.sampling.unwrap();
    assert_eq!(
        (request.length, sampling.temperature),
        (Some(64), Some(0.5))
    );
    expect_prompt(&journey);
    journey.press("/set seed 5\r");
    journey.expect("seed 5");
    expect_prompt(&journey);
    journey.press("/retry\r");
    eventually("a retry", || fake.seen.lock().unwrap().generate.len() == 2);
    assert_eq!(asked(&fake), ["system: be brief", "user: hi"]);
    let again = fake.seen.lock().unwrap().generate[1].clone();
    let again = again.sampling.unwrap();
    assert_eq!((again.temperature, again.seed), (Some(0.5), None));
    expect_prompt(&journey);
    let file = home.path().join("talk.md");
    journey.press("/save ~/talk.md\r");
    journey.expect("saved in ");
    expect_prompt(&journey);
    let saved = std::fs::read_to_string(&file).expect("written");
    assert!(
        saved.ends_with("## user\n\nhi\n\n## assistant\n\nwell\n"),
        "{saved}"
    );
    journey.press("/model o/m\r");
    journey.expect("the model is fake");
    expect_prompt(&journey);
    assert_eq!(
        fake.seen.lock().unwrap().loaded[0].model,
        By::Name("o/m".into()).into()
    );
    journey.press("/model o/mm\x15/model story-modle\r");
    journey.expect("there is no model story-modle");
    expect_prompt(&journey);
    journey.press("/nonsense\r");
    journey.expect("unknown command /nonsense");
    expect_prompt(&journey);
    journey.press("\x04");
    assert!(journey.end().success());
}

#[test]
fn an_answer_that_was_cut_says_what_to_do() {
    let home = tempfile::tempdir().expect("a folder");
    let mut script = generation_events("well");
    for step in &mut script {
        if let ScriptStep::Send(Event::Done(done)) = step {
            done.is_truncated = true;
        }
    }
    let fake = FakeDaemon::start(script);
    let mut journey = chat(&fake, home.path(), &[]);
    journey.press("hi\r");
    journey.expect("/set length N allows more");
    expect_prompt(&journey);
    journey.press("\x04");
    assert!(journey.end().success());
}

#[test]
fn a_full_context_says_what_to_do() {
    let home = tempfile::tempdir().expect("a folder");
    let details = ErrorDetails::with_error_info("CONTEXT_EXCEEDED", "sluice", []);
    let status = Status::with_error_details(Code::InvalidArgument, "length: too long", details);
    let fake = FakeDaemon::start(vec![ScriptStep::Fail(status)]);
    let mut journey = chat(&fake, home.path(), &[]);
    journey.press("hi\r");
    journey.expect("error: length: too long");
    journey.expect("/reset starts over");
    expect_prompt(&journey);
    journey.press("\x04");
    assert!(journey.end().success());
    // In a pipe nobody could do it.
    let output = run_with_input(fake.sluice(&["chat"]), b"hi\nagain\n");
    assert_eq!(code(&output), 1);
    assert_eq!(fake.seen.lock().unwrap().generate.len(), 2);
}

#[test]
fn a_pipe_is_plain_and_a_turn_a_line() {
    let fake = FakeDaemon::start(generation_events("well"));
    let command = fake.sluice(&["chat", "--system", "be brief"]);
    let output = run_with_input(
        command,
        b"one\n\n/set length 9\n\"\"\"two\nlines\"\"\"\nthree\\\n",
    );
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(stdout(&output), "well\nwell\nwell\n");
    assert_eq!(stderr(&output), "set: length 9\n");
    let seen = fake.seen.lock().unwrap().generate.clone();
    let lengths: Vec<_> = seen.iter().map(|request| request.length).collect();
    assert_eq!(lengths, [None, Some(9), Some(9)]);
    assert_eq!(
        asked(&fake),
        [
            "system: be brief",
            "user: one",
            "assistant: well",
            "user: two\nlines",
            "assistant: well",
            "user: three\\",
        ]
    );
}
