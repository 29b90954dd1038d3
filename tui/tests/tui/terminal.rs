//! Journeys on a real terminal, by way of a pseudo-terminal: what is drawn there, and that the
//! terminal is given back.

use std::process::Command;

use fake_daemon::{ChangeScript, FakeDaemon, ScriptStep, generation_events, switch_pictures};
use rustix::process::Signal;
use sluice_proto::v1::{Level, Operation, VerifyResult, model_ref::By, operation::Outcome};
use testkit::{eventually, terminal::Journey};

use crate::support::Client;

/// A shell with these arguments, then the dashboard's: its program is `$0`.
fn in_shell(arguments: &[&str], fake: &FakeDaemon) -> Command {
    let client = fake.sluice(&[]);
    let mut shell = Command::new("sh");
    shell.args(arguments);
    shell.arg(client.get_program()).args(client.get_args());
    // What it is not to know.
    for (name, _) in client.get_envs() {
        shell.env_remove(name);
    }
    shell
}

#[test]
fn a_canvas_resolves_in_place_and_leaves_the_text() {
    let fake = FakeDaemon::start(generation_events("once upon a \x1b[2Jtime"));
    let mut journey = Journey::start(fake.sluice(&["generate", "hi"]));
    journey.expect("demonstration model");
    assert!(journey.end().success());
    let screen = journey.written();
    assert!(screen.contains("\x1b[2;3m"), "guesses are dim: {screen:?}");
    assert!(screen.contains("\x1b[1;33m"), "0.5 is yellow: {screen:?}");
    assert!(
        screen.contains("once upon a \u{fffd}[2Jtime\r"),
        "{screen:?}"
    );
    assert!(
        !screen.contains("\x1b[2J"),
        "hostile text got through: {screen:?}"
    );
    assert!(
        screen.contains("4 passes · 4 tokens · 100 ms · 1.00 tokens a pass · 40.0 tokens/s"),
        "{screen:?}"
    );
}

#[test]
fn no_colour_keeps_attributes_only() {
    let fake = FakeDaemon::start(generation_events("once upon a time"));
    let mut command = fake.sluice(&["generate", "hi"]);
    command.env("NO_COLOR", "1");
    let mut journey = Journey::start(command);
    assert!(journey.end().success());
    assert!(!journey.written().contains("\x1b[1;33m"));
    journey.expect_written("\x1b[1m");
}

#[test]
fn the_dashboard_sends_a_prompt_and_gives_the_terminal_back() {
    let fake = FakeDaemon::start(generation_events("once"));
    let mut journey = Journey::start(fake.sluice(&[]));
    journey.expect("connected");
    journey.press("ihello\r");
    eventually("the request", || {
        !fake.seen.lock().unwrap().generate.is_empty()
    });
    journey.expect("once");
    journey.press("\tq");
    assert!(journey.end().success());
}

#[test]
fn what_was_said_is_there_again_unless_it_is_private() {
    let home = tempfile::tempdir().expect("a folder");
    let fake = FakeDaemon::start(generation_events("once"));
    let start = |arguments: &[&str]| {
        let mut command = fake.sluice(arguments);
        command.env("HOME", home.path());
        Journey::start(command)
    };
    let mut journey = start(&[]);
    journey.expect("connected");
    journey.press("ia first prompt\r");
    journey.expect("once");
    journey.press("\x03");
    assert!(journey.end().success());
    let kept = home.path().join(".local/state/sluice/dashboard.json");
    let before = std::fs::read(&kept).expect("written");

    let mut journey = start(&["--private"]);
    journey.expect("connected");
    journey.press("ia secret\r");
    journey.expect("once");
    journey.press("\x03");
    assert!(journey.end().success());
    assert!(!journey.screen().contains("a first prompt"));
    assert_eq!(std::fs::read(&kept).expect("still there"), before);

    let mut journey = start(&[]);
    journey.expect("connected");
    // A new start is a new conversation; what was said and asked is there.
    journey.expect("Prompt · new conversation");
    journey.press("i\x1b[A");
    journey.expect("a first prompt");
    journey.press("\x03");
    assert!(journey.end().success());
}

#[test]
fn settings_say_how_it_looks_and_flags_win() {
    let home = tempfile::tempdir().expect("a folder");
    let folder = home.path().join(".config/sluice");
    std::fs::create_dir_all(&folder).expect("a folder");
    let settings = folder.join("client.toml");
    std::fs::write(&settings, "glyphs = \"ascii\"\n").expect("written");
    let fake = FakeDaemon::start(vec![]);
    let start = |arguments: &[&str]| {
        let mut command = fake.sluice(arguments);
        command.env("HOME", home.path());
        Journey::start(command)
    };
    let mut journey = start(&[]);
    journey.expect("connected");
    journey.press("\x03");
    assert!(journey.end().success());
    let screen = journey.written();
    assert!(screen.contains('+') && !screen.contains('┌'), "{screen:?}");
    assert!(screen.contains("\x1b[38;5;"), "{screen:?}");
    let mut journey = start(&["--glyphs", "blocks", "--color", "never"]);
    journey.expect("┌");
    journey.expect("connected");
    journey.press("\x03");
    assert!(journey.end().success());
    assert!(!journey.written().contains("\x1b[38;5;"), "no colour");
    std::fs::write(&settings, "gliphs = 1\n").expect("written");
    let mut journey = start(&[]);
    journey.expect("client.toml: unknown key 'gliphs'; known are theme, glyphs, mouse, roles");
    assert!(!journey.end().success());
}

#[test]
fn the_dashboard_waits_for_a_daemon_and_leaves_on_control_c() {
    let absent = ["--socket", "/nonexistent/sluice.sock"];
    let mut journey = Journey::start(crate::support::sluice(&absent));
    journey.expect("looking again in");
    journey.press("\x03");
    assert!(journey.end().success());
}

#[test]
fn the_dashboard_says_when_the_daemon_is_lost() {
    let fake = FakeDaemon::start(vec![ScriptStep::Die]);
    let mut journey = Journey::start(fake.sluice(&[]));
    journey.expect("connected");
    journey.press("ihello\r");
    journey.expect("lost:");
    journey.press("\x03");
    assert!(journey.end().success());
}

#[test]
fn a_termination_gives_the_terminal_back() {
    let fake = FakeDaemon::start(vec![]);
    let mut journey = Journey::start(fake.sluice(&[]));
    journey.expect("connected");
    journey.signal(Signal::TERM);
    assert!(journey.end().success());
}

#[test]
fn a_suspension_gives_the_terminal_back_and_takes_it_again() {
    let fake = FakeDaemon::start(vec![]);
    // Only what a shell watches over can be stopped.
    let script = "\"$0\" \"$@\"; echo stopped; read go; fg; echo stopped again; read go; fg";
    let mut journey = Journey::start(in_shell(&["-mc", script], &fake));
    journey.expect("connected");
    journey.press("idraft\x1a");
    journey.expect("stopped");
    journey.expect_given_back();
    journey.press("\r");
    journey.expect("draft");
    assert!(journey.is_alternate());
    // From outside, too, where the terminal has no part in it.
    journey.signal_foreground(Signal::TSTP);
    journey.expect("stopped again");
    journey.expect_given_back();
    journey.press("\r");
    journey.expect("draft");
    journey.press("\x03");
    assert!(journey.end().success());
}

#[test]
fn what_was_started_together_is_stopped_together() {
    let fake = FakeDaemon::start(vec![]);
    // The inner shell has no jobs of its own: it stands in one group with the dashboard.
    let inner = "\"$0\" \"$@\"; echo after";
    let outer = "sh -c \"$0\" \"$@\"; echo stopped; read go; fg";
    let mut journey = Journey::start(in_shell(&["-mc", outer, inner], &fake));
    journey.expect("connected");
    journey.press("idraft\x1a");
    journey.expect("stopped");
    journey.expect_given_back();
    assert!(!journey.screen().contains("after"));
    journey.press("\r");
    journey.expect("draft");
    journey.press("\x03");
    assert!(journey.end().success());
    journey.expect("after");
}

#[test]
fn control_z_is_nothing_where_nobody_could_continue() {
    let fake = FakeDaemon::start(vec![]);
    let mut journey = Journey::start(fake.sluice(&[]));
    journey.expect("connected");
    journey.press("idraft\x1a, and more");
    journey.expect("draft, and more");
    journey.press("\x03");
    assert!(journey.end().success());
}

#[test]
fn a_terminal_that_is_closed_ends_it_and_what_was_said_is_kept() {
    let fake = FakeDaemon::start(generation_events("once"));
    // The second is in a session that the terminal tells nothing.
    let unheard = ["-c", "trap '' HUP; setsid -w \"$0\" \"$@\""];
    for shell in [["-c", "exec \"$0\" \"$@\""], unheard] {
        let home = tempfile::tempdir().expect("a folder");
        let mut command = in_shell(&shell, &fake);
        command.env("HOME", home.path());
        let mut journey = Journey::start(command);
        journey.expect("connected");
        journey.press("ia last prompt\r");
        journey.expect("once");
        assert!(journey.hang_up().success());
        let kept = home.path().join(".local/state/sluice/dashboard.json");
        let kept = std::fs::read_to_string(kept).expect("written");
        assert!(kept.contains("a last prompt"), "{kept}");
    }
}

#[test]
fn only_one_dashboard_keeps_what_is_said() {
    let home = tempfile::tempdir().expect("a folder");
    let fake = FakeDaemon::start(vec![]);
    let start = || {
        let mut command = fake.sluice(&[]);
        command.env("HOME", home.path());
        Journey::start(command)
    };
    let mut first = start();
    first.expect("connected");
    let mut second = start();
    second.expect("another dashboard saves its conversations; this one's are not saved");
    for journey in [&mut second, &mut first] {
        journey.press("\x03");
        assert!(journey.end().success());
    }
}

#[test]
fn a_replay_looks_as_flags_ask_and_needs_settings_only_for_a_screen() {
    let fake = FakeDaemon::start(generation_events("once upon a time"));
    let run = fake.output(&["generate", "hi", "--json"]).stdout;
    drop(fake);
    let home = tempfile::tempdir().expect("a folder");
    let file = home.path().join("run.jsonl");
    std::fs::write(&file, run).expect("written");
    let file = file.to_str().expect("a plain name");
    let sluice = |arguments: &[&str]| {
        let mut command = crate::support::sluice(arguments);
        command.env("HOME", home.path()).env("NO_COLOR", "1");
        command
    };
    let mut journey = Journey::start(sluice(&[
        "replay", "--glyphs", "ascii", "--color", "always", file,
    ]));
    journey.expect("replay of ");
    journey.press("q");
    assert!(journey.end().success());
    let screen = journey.written();
    assert!(screen.contains('+') && !screen.contains('┌'), "{screen:?}");
    assert!(screen.contains("\x1b[38;5;"), "{screen:?}");

    let folder = home.path().join(".config/sluice");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("client.toml"), "gliphs = 1\n").expect("written");
    let mut journey = Journey::start(sluice(&["replay", file]));
    journey.expect("unknown key 'gliphs'");
    assert!(!journey.end().success());
    let output = sluice(&["replay", file, "--json"]).output().expect("run");
    assert!(output.status.success());
}

#[test]
fn the_dashboard_switches_the_level() {
    let change = ChangeScript {
        apply: switch_pictures(Level::Moderate),
        ..Default::default()
    };
    let fake = FakeDaemon::with_changes(vec![], change);
    let mut journey = Journey::start(fake.sluice(&[]));
    journey.expect("budget");
    journey.press("l");
    journey.expect("STREAMED");
    eventually("a plan for each level", || {
        fake.seen.lock().unwrap().planned.len() == 6
    });
    journey.press("jj\r");
    // Eight bits lose something, which is asked about first.
    journey.expect("Sure?");
    journey.press("y");
    journey.expect("held");
    let applied = fake.seen.lock().unwrap().applied.clone();
    assert_eq!(applied[0].options.unwrap().level(), Level::Moderate);
    journey.press("\x03");
    assert!(journey.end().success());
}

#[test]
fn the_dashboard_downloads_verifies_and_measures() {
    let damaged = Operation {
        outcome: Some(Outcome::Verify(VerifyResult {
            damaged_places: 2,
            ..Default::default()
        })),
        elapsed_ms: 5.0,
        ..Default::default()
    };
    let change = ChangeScript {
        job: vec![damaged],
        ..Default::default()
    };
    let fake = FakeDaemon::with_changes(vec![], change);
    let mut journey = Journey::start(fake.sluice(&[]));
    journey.expect("budget");
    journey.press("6");
    journey.expect("PARAMETERS");
    journey.press("pa/b\r");
    eventually("a download", || {
        let seen = fake.seen.lock().unwrap();
        let model = By::Name("a/b".into()).into();
        seen.pulled.first().is_some_and(|pull| pull.model == model)
    });
    journey.press(":verify /a.sluice\r");
    journey.expect("damaged");
    journey.press("5jjm");
    eventually("a measurement", || {
        fake.seen.lock().unwrap().measured.len() == 1
    });
    journey.expect("nats");
    journey.press("\x03");
    assert!(journey.end().success());
}

#[test]
fn a_switch_shows_its_progress_and_takes_it_away() {
    let change = ChangeScript {
        apply: switch_pictures(Level::Moderate),
        ..Default::default()
    };
    let fake = FakeDaemon::with_changes(vec![], change);
    let mut journey = Journey::start(fake.sluice(&["level", "moderate"]));
    journey.expect("in force  after 2.3 s");
    assert!(journey.end().success());
    let screen = journey.written();
    assert!(screen.contains("1.00 MiB of 4.00 MiB"), "{screen:?}");
    let (_, after) = screen
        .split_once("1 of 2 steps")
        .expect("the progress line");
    assert!(after.starts_with("\x1b[K\r\x1b[K"), "{screen:?}");
}

#[test]
fn a_saved_run_is_replayed_without_a_daemon() {
    let fake = FakeDaemon::start(generation_events("once upon a time"));
    let run = fake.output(&["generate", "hi", "--json"]).stdout;
    drop(fake);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.jsonl");
    std::fs::write(&file, run).unwrap();
    let file = file.to_str().expect("a plain name");
    let mut command = crate::support::sluice(&["replay", file, "--socket", "/nowhere"]);
    command.env("XDG_STATE_HOME", folder.path());
    let mut journey = Journey::start(command);
    journey.expect("replay of ");
    journey.expect("ended");
    // The name that is offered is taken.
    journey.press("s\r");
    journey.expect("saved ");
    journey.press("q");
    assert!(journey.end().success());
    let saved = std::fs::read_dir(folder.path().join("sluice/runs")).unwrap();
    assert_eq!(saved.count(), 1);
}
