//! Journeys through the dashboard on a real terminal: what stands on the screen after keys, clicks, and troubles.

use fake_daemon::{ChangeScript, FakeDaemon, ScriptStep, generation_events, switch_pictures};
use sluice_proto::v1::Level;
use testkit::{eventually, terminal::Journey};

use crate::support::Client;

const PAGES: [&str; 6] = [
    "1 Overview",
    "2 Memory",
    "3 Canvas",
    "4 Chat",
    "5 Levels",
    "6 Jobs",
];

/// A daemon whose text never comes to its end.
fn endless(text: &str, change: ChangeScript) -> FakeDaemon {
    let mut script = generation_events(text);
    script.truncate(4);
    script.push(ScriptStep::Hang);
    FakeDaemon::with_changes(script, change)
}

fn dashboard(fake: &FakeDaemon) -> Journey {
    let journey = Journey::start(fake.sluice(&[]));
    journey.expect("connected");
    journey
}

/// Waits until a page is the one that is marked among the names.
fn expect_open(journey: &Journey, page: &str) {
    journey.expect(page);
    eventually(&format!("{page} open"), || {
        let place = journey.find(page);
        place.is_some_and(|(row, column)| journey.cell(row, column).inverse())
    });
}

fn quit(mut journey: Journey) {
    journey.press("\x03");
    assert!(journey.end().success());
    assert!(!journey.is_alternate());
}

#[test]
fn a_daemon_that_comes_later_is_found() {
    let mut fake = FakeDaemon::start(vec![]);
    fake.die();
    let journey = Journey::start(fake.sluice(&[]));
    journey.expect("looking again in");
    fake.come_back();
    journey.expect("connected");
    journey.expect("demonstration model");
    quit(journey);
}

#[test]
fn what_was_written_and_seen_outlives_the_daemon() {
    let mut fake = FakeDaemon::start(generation_events("once upon a time"));
    let mut journey = dashboard(&fake);
    journey.press("ihello\r");
    journey.expect("once upon a time");
    journey.press("a draft");
    journey.expect("a draft");
    fake.die();
    journey.expect("lost:");
    journey.expect("once upon a time");
    fake.come_back();
    journey.expect("connected");
    journey.expect("a draft");
    quit(journey);
}

#[test]
fn a_second_escape_cancels_the_own_request() {
    let fake = endless("once upon a time", ChangeScript::default());
    let mut journey = dashboard(&fake);
    journey.press("ihello\r");
    journey.expect("once");
    journey.press("\x1b");
    journey.expect("Esc again cancels");
    assert!(fake.seen.lock().unwrap().operations_cancelled.is_empty());
    journey.press("\x1b");
    eventually("the cancellation", || {
        fake.seen.lock().unwrap().operations_cancelled == [7]
    });
    quit(journey);
}

#[test]
fn the_level_changes_while_a_text_is_written() {
    let change = ChangeScript {
        apply: switch_pictures(Level::Moderate),
        ..Default::default()
    };
    let fake = endless("once upon a time", change);
    let mut journey = dashboard(&fake);
    journey.press("ihello\r");
    journey.expect("once");
    journey.press("\t5");
    journey.expect("moderate");
    journey.press("jj\r");
    journey.expect("Put level moderate in force?");
    journey.press("y");
    eventually("the change", || {
        let seen = fake.seen.lock().unwrap();
        let levels = seen.applied.iter();
        let levels = levels.map(|applied| applied.options.unwrap_or_default().level());
        levels.collect::<Vec<_>>() == [Level::Moderate]
    });
    journey.press("1");
    expect_open(&journey, PAGES[0]);
    journey.expect("once");
    quit(journey);
}

#[test]
fn every_page_opens_by_key_and_by_mouse() {
    let fake = FakeDaemon::start(vec![]);
    let mut journey = dashboard(&fake);
    for page in PAGES.iter().rev() {
        journey.press(&page[..1]);
        expect_open(&journey, page);
    }
    for page in PAGES.iter().rev() {
        let (row, column) = journey.find(page).expect("its name is always there");
        journey.click(row, column + 2);
        expect_open(&journey, page);
    }
    quit(journey);
}

#[test]
fn a_screen_that_shrinks_and_grows_is_drawn_anew() {
    let fake = FakeDaemon::start(generation_events("once upon a time"));
    let mut journey = dashboard(&fake);
    journey.press("ihello\r");
    journey.expect("once upon a time");
    journey.resize(30, 6);
    journey.expect("sluice needs 40x10");
    journey.resize(40, 12);
    journey.expect_gone("sluice needs");
    journey.expect("once upon a time");
    journey.resize(160, 50);
    journey.expect("6 Jobs");
    journey.expect("once upon a time");
    quit(journey);
}

#[test]
fn lists_have_what_ended_before_the_dashboard_was_opened() {
    let fake = FakeDaemon::start(vec![]);
    let mut journey = dashboard(&fake);
    journey.press("6");
    journey.expect("job 2: /models/m");
    journey.expect("failed");
    // Why, for the selected one.
    journey.press("j");
    journey.expect("it is gone");
    quit(journey);
}

#[test]
fn a_prompt_of_several_lines_is_typed_pasted_sent_and_its_answer_copied() {
    let fake = FakeDaemon::start(generation_events("once upon a time"));
    let mut journey = dashboard(&fake);
    // Ctrl-J, Alt-Enter and a paste in brackets.
    journey.press("ione\ntwo\x1b\rthree");
    journey.press("\x1b[200~ and\rfour\x1b[201~");
    journey.expect("four");
    journey.press("\r");
    eventually("the request", || {
        let seen = fake.seen.lock().unwrap();
        seen.generate.iter().any(|request| {
            let wanted = "one\ntwo\nthree and\nfour";
            format!("{request:?}").contains(&format!("{wanted:?}"))
        })
    });
    journey.expect("once upon a time");
    // An answer that is still being written cannot be copied.
    journey.expect("1 answer");
    journey.press("\ty");
    journey.expect("16 characters went to the terminal's clipboard");
    // "once upon a time" in base 64.
    journey.expect_written("\x1b]52;c;b25jZSB1cG9uIGEgdGltZQ==");
    quit(journey);
}
