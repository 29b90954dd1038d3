//! Journeys on a real terminal, by way of a pseudo-terminal: what is drawn there, and that the
//! terminal is given back.

mod support;

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::OwnedFd,
    process::{Child, Command, ExitStatus},
    sync::{Arc, Mutex},
};

use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use sluice_proto::v1::{JobResult, Verified, job_event, job_result};
use support::{Change, Fake, Step, eventually, story, switch};

/// Leaves the alternate screen.
const GIVEN_BACK: &str = "\x1b[?1049l";

/// A program on a terminal of 100 by 30.
struct Journey {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
}

impl Journey {
    fn start(mut command: Command) -> Self {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&keyboard).expect("grant");
        unlockpt(&keyboard).expect("unlock");
        let name = ptsname(&keyboard, Vec::new()).expect("a name");
        let terminal = File::options()
            .read(true)
            .write(true)
            .open(name.to_str().expect("UTF-8"))
            .expect("open the terminal");
        let size = Winsize {
            ws_row: 30,
            ws_col: 100,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&terminal, size).expect("resize");
        let end = || OwnedFd::from(terminal.try_clone().expect("clone"));
        let child = command
            .env("TERM", "xterm-256color")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("start sluice");
        let screen = Arc::new(Mutex::new(Vec::new()));
        let mut reader = File::from(keyboard.try_clone().expect("clone"));
        let shown = screen.clone();
        let thread = std::thread::Builder::new().name("screen".into());
        let started = thread.spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                shown
                    .lock()
                    .expect("no panic")
                    .extend_from_slice(&bytes[..count]);
            }
        });
        started.expect("start a thread");
        Self {
            child,
            keyboard: keyboard.into(),
            screen,
        }
    }

    fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().expect("no panic")).into_owned()
    }

    fn expect(&self, words: &str) {
        let found = || self.screen().contains(words);
        eventually(&format!("'{words}' in {:?}", self.screen()), found);
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("type");
    }

    fn end(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the program to end", || {
            status = self.child.try_wait().expect("wait");
            status.is_some()
        });
        status.expect("it ended")
    }
}

impl Drop for Journey {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_canvas_resolves_in_place_and_leaves_the_text() {
    let fake = Fake::start(story("once upon a \x1b[2Jtime"));
    let mut journey = Journey::start(fake.sluice(&["generate", "hi"]));
    journey.expect("demonstration model");
    assert!(journey.end().success());
    let screen = journey.screen();
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
    let fake = Fake::start(story("once upon a time"));
    let mut command = fake.sluice(&["generate", "hi"]);
    command.env("NO_COLOR", "1");
    let mut journey = Journey::start(command);
    assert!(journey.end().success());
    assert!(!journey.screen().contains("\x1b[1;33m"));
    journey.expect("\x1b[1m");
}

#[test]
fn the_dashboard_sends_a_prompt_and_gives_the_terminal_back() {
    let fake = Fake::start(story("once"));
    let mut journey = Journey::start(fake.sluice(&[]));
    journey.expect("connected");
    journey.press("hello\r");
    eventually("the request", || {
        !fake.seen.lock().unwrap().generate.is_empty()
    });
    journey.expect("once");
    journey.press("\tq");
    assert!(journey.end().success());
    journey.expect(GIVEN_BACK);
}

#[test]
fn the_dashboard_waits_for_a_daemon_and_leaves_on_control_c() {
    let absent = ["--socket", "/nonexistent/sluice.sock"];
    let mut journey = Journey::start(support::sluice(&absent));
    journey.expect("retrying in");
    journey.press("\x03");
    assert!(journey.end().success());
    journey.expect(GIVEN_BACK);
}

#[test]
fn the_dashboard_says_when_the_daemon_is_lost() {
    let fake = Fake::start(vec![Step::Die]);
    let mut journey = Journey::start(fake.sluice(&[]));
    journey.expect("connected");
    journey.press("hello\r");
    journey.expect("lost:");
    journey.press("\x03");
    assert!(journey.end().success());
}

#[test]
fn a_termination_gives_the_terminal_back() {
    let fake = Fake::start(vec![]);
    let mut journey = Journey::start(fake.sluice(&[]));
    journey.expect("connected");
    let pid = Pid::from_child(&journey.child);
    kill_process(pid, Signal::TERM).expect("signal");
    assert!(journey.end().success());
    journey.expect(GIVEN_BACK);
}

#[test]
fn a_suspension_gives_the_terminal_back_and_takes_it_again() {
    let fake = Fake::start(vec![]);
    let mut journey = Journey::start(fake.sluice(&[]));
    journey.expect("connected");
    journey.press("draft\x1a");
    journey.expect(GIVEN_BACK);
    let pid = Pid::from_child(&journey.child);
    eventually("the screen drawn anew, with the draft", || {
        // Continuing a process that was not stopped does nothing.
        kill_process(pid, Signal::CONT).expect("signal");
        let screen = journey.screen();
        let (_, after) = screen.rsplit_once(GIVEN_BACK).expect("seen above");
        after.contains("draft")
    });
    journey.press("\x03");
    assert!(journey.end().success());
}

#[test]
fn a_conversation_draws_its_answers_and_ends_with_control_d() {
    let fake = Fake::start(story("well"));
    let mut journey = Journey::start(fake.sluice(&["chat"]));
    journey.expect("> ");
    journey.press("hello\r");
    journey.expect("1 passes · 1 tokens");
    journey.press("/?\r");
    journey.expect("/reset");
    journey.press("\x04");
    assert!(journey.end().success());
}

#[test]
fn the_dashboard_switches_the_level() {
    let change = Change {
        apply: switch("moderate"),
        ..Default::default()
    };
    let fake = Fake::with_changes(vec![], change);
    let mut journey = Journey::start(fake.sluice(&[]));
    // What was on the screen already is not drawn again, so single words are looked for.
    journey.expect("budget");
    journey.press("\tl");
    journey.expect("STREAMED");
    eventually("a plan for each level", || {
        fake.seen.lock().unwrap().planned.len() == 6
    });
    journey.press("jj\r");
    journey.expect("held");
    let applied = fake.seen.lock().unwrap().applied.clone();
    assert_eq!(applied[0].level.as_deref(), Some("moderate"));
    journey.press("\x03");
    assert!(journey.end().success());
}

#[test]
fn the_dashboard_downloads_verifies_and_measures() {
    let damaged = JobResult {
        kind: Some(job_result::Kind::Verified(Verified {
            damaged_places: 2,
            ..Default::default()
        })),
        elapsed_ms: 5.0,
    };
    let change = Change {
        job: vec![job_event::Kind::Result(damaged)],
        ..Default::default()
    };
    let fake = Fake::with_changes(vec![], change);
    let mut journey = Journey::start(fake.sluice(&[]));
    journey.expect("budget");
    journey.press("\t6");
    journey.expect("PARAMETERS");
    journey.press("pa/b\r");
    eventually("a download", || {
        let seen = fake.seen.lock().unwrap();
        seen.pulled.first().is_some_and(|pull| pull.name == "a/b")
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
    let change = Change {
        apply: switch("moderate"),
        ..Default::default()
    };
    let fake = Fake::with_changes(vec![], change);
    let mut journey = Journey::start(fake.sluice(&["level", "moderate"]));
    journey.expect("in force  after 2.3 s");
    assert!(journey.end().success());
    let screen = journey.screen();
    assert!(screen.contains("1.00 MiB of 4.00 MiB"), "{screen:?}");
    let (_, after) = screen
        .split_once("1 of 2 steps")
        .expect("the progress line");
    assert!(after.starts_with("\x1b[K\r\x1b[K"), "{screen:?}");
}
