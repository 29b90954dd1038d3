//! Journeys through the update: keys, events, and what becomes of them.

use sluice_proto::v1::{Switch, SwitchTarget};

use super::{
    super::{
        keys::Mode,
        state::{Link, Own},
    },
    *,
};

#[test]
fn enter_sends_once_and_the_answer_is_followed() {
    let mut state = idle();
    assert_eq!(press(&mut state, KeyCode::Enter), []);
    write(&mut state, "hello");
    let effects = press(&mut state, KeyCode::Enter);
    assert_eq!(effects, [Effect::Generate("hello".into())]);
    assert_eq!(state.own, Own::Sent);
    write(&mut state, "again");
    assert_eq!(press(&mut state, KeyCode::Enter), []);
    assert_eq!(state.input.value(), "again");
    feed(&mut state, request(5, queued(5)));
    assert_eq!((state.own, state.selected), (Own::Active(5), Some(5)));
    let done = Kind::Done(Done {
        request_id: 5,
        finish_reason: FinishReason::Eos.into(),
        text: Some("hi".into()),
        ..Default::default()
    });
    feed(&mut state, request(5, done));
    assert_eq!((state.own, state.selected), (Own::Idle, Some(5)));
    assert_eq!(state.rows()[0].state(), RequestState::Done);
}

#[test]
fn escape_cancels_our_request_the_second_time() {
    let mut state = busy();
    assert_eq!(press(&mut state, KeyCode::Esc), []);
    assert_eq!(state.mode, Mode::Requests);
    assert_eq!(press(&mut state, KeyCode::Esc), [Effect::Cancel(3)]);
    // Too late a second press is a first one again.
    let mut state = busy();
    press(&mut state, KeyCode::Esc);
    update(&mut state, Event::Tick, 10_000);
    assert_eq!(press(&mut state, KeyCode::Esc), []);
}

#[test]
fn a_level_is_chosen_with_enter_and_the_list_closes() {
    let mut state = choosing();
    assert_eq!(state.levels.level(), Level::Standard, "the one in force");
    press(&mut state, KeyCode::Char('j'));
    press(&mut state, KeyCode::Down);
    let effects = press(&mut state, KeyCode::Enter);
    assert_eq!(effects, [Effect::Apply(Level::Moderate)]);
    assert_eq!(state.mode, Mode::Requests);
    for close in ['L', 'q'] {
        press(&mut state, KeyCode::Char('l'));
        assert_eq!(state.mode, Mode::Levels);
        assert_eq!(press(&mut state, KeyCode::Char(close)), []);
        assert_eq!(state.mode, Mode::Requests);
    }
}

#[test]
fn the_prompt_writes_an_l_and_opens_levels_with_f2() {
    let mut state = idle();
    write(&mut state, "l");
    assert_eq!((state.mode, state.input.value()), (Mode::Prompt, "l"));
    assert_eq!(press(&mut state, KeyCode::F(2)), [Effect::AskPlans]);
    press(&mut state, KeyCode::Esc);
    assert_eq!((state.mode, state.input.value()), (Mode::Prompt, "l"));
}

#[test]
fn levels_of_a_lost_daemon_are_not_asked_for() {
    let mut state = lost();
    assert_eq!(press(&mut state, KeyCode::F(2)), []);
    assert_eq!(state.mode, Mode::Prompt);
    let mut state = choosing();
    let gone = Event::Lost {
        cause: "gone".into(),
        retry_ms: 1_000,
    };
    feed(&mut state, gone);
    assert_eq!(press(&mut state, KeyCode::Enter), []);
}

#[test]
fn a_switch_shows_how_far_it_is() {
    let mut state = idle();
    let shows = |state: &State, words: &str| {
        for size in &SIZES[..2] {
            let screen = draw(state, *size, true).backend().to_string();
            assert!(screen.contains(words), "{screen}");
        }
    };
    feed(
        &mut state,
        Event::Converting(Some("1.00 MiB of 4.00 MiB".into())),
    );
    shows(&state, "1.00 MiB of 4.00 MiB");
    let Event::Snapshot(mut next) = snapshot(vec![]) else {
        unreachable!("it is a snapshot");
    };
    let mut converting = next.clone();
    converting.switch = Some(Switch { done: 0, steps: 0 });
    feed(&mut state, Event::Snapshot(converting));
    shows(&state, "1.00 MiB of 4.00 MiB");
    next.switch = Some(Switch { done: 3, steps: 9 });
    next.switch_target = Some(SwitchTarget {
        level: "aggressive".into(),
        budget_bytes: 4 << 30,
    });
    feed(&mut state, Event::Snapshot(next));
    shows(&state, "switching to aggressive, step 4 of 9");
    feed(&mut state, Event::Converting(None));
    feed(&mut state, snapshot(vec![]));
    let screen = draw(&state, SIZES[0], true).backend().to_string();
    assert!(!screen.contains("switching"), "{screen}");
}

#[test]
fn warnings_of_a_request_are_told() {
    let mut state = idle();
    let started = Started {
        request_id: 3,
        warnings: vec!["this will take about 3 min".into()],
        ..Default::default()
    };
    feed(&mut state, request(3, Kind::Started(started)));
    let screen = draw(&state, (80, 24), true).backend().to_string();
    assert!(screen.contains("about 3 min"), "{screen}");
}

#[test]
fn cancelling_the_selected_request_asks_first() {
    let mut state = busy();
    press(&mut state, KeyCode::Tab);
    press(&mut state, KeyCode::Char('j'));
    assert_eq!(state.selected, Some(4));
    assert_eq!(press(&mut state, KeyCode::Char('x')), []);
    assert_eq!(state.mode, Mode::Confirm);
    assert_eq!(press(&mut state, KeyCode::Char('n')), []);
    assert_eq!(state.mode, Mode::Requests);
    press(&mut state, KeyCode::Char('x'));
    assert_eq!(press(&mut state, KeyCode::Char('y')), [Effect::Cancel(4)]);
}

#[test]
fn somebody_elses_request_is_watched_and_watched_anew_after_a_loss() {
    let mut state = idle();
    let effects = feed(
        &mut state,
        snapshot(vec![summary(9, RequestState::Running)]),
    );
    assert_eq!(effects, [Effect::Watch(Some(9))]);
    let again = feed(
        &mut state,
        snapshot(vec![summary(9, RequestState::Running)]),
    );
    assert_eq!(again, []);
    let event = Event::Lost {
        cause: "gone".into(),
        retry_ms: 1_000,
    };
    feed(&mut state, event);
    assert_eq!(feed(&mut state, Event::Connected), [Effect::Watch(Some(9))]);
}

#[test]
fn a_daemon_started_anew_has_new_requests() {
    let mut state = busy();
    let Event::Snapshot(mut fresh) = snapshot(vec![]) else {
        unreachable!("it is a snapshot");
    };
    fresh.server.as_mut().expect("given").pid = 200;
    feed(&mut state, Event::OwnFailed("lost".into()));
    feed(&mut state, Event::Snapshot(fresh));
    assert!(state.rows().is_empty());
    assert_eq!(state.selected, None);
}

#[test]
fn a_draft_and_the_selection_survive_a_loss() {
    let mut state = lost();
    assert_eq!(state.input.value(), "a draft");
    assert_eq!(press(&mut state, KeyCode::Enter), []);
    assert_eq!(state.input.value(), "a draft");
    assert!(matches!(state.link, Link::Lost { .. }));
    assert_eq!(state.selected, Some(3));
}

#[test]
fn earlier_prompts_are_recalled() {
    let mut state = idle();
    for (prompt, id) in [("one", 1), ("two", 2)] {
        write(&mut state, prompt);
        press(&mut state, KeyCode::Enter);
        feed(&mut state, request(id, queued(id)));
        feed(&mut state, Event::OwnFailed("failed".into()));
    }
    press(&mut state, KeyCode::Up);
    assert_eq!(state.input.value(), "two");
    press(&mut state, KeyCode::Up);
    assert_eq!(state.input.value(), "one");
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Down);
    assert_eq!(state.input.value(), "");
}

#[test]
fn a_refused_prompt_comes_back_to_be_changed() {
    let mut state = idle();
    write(&mut state, "too long");
    press(&mut state, KeyCode::Enter);
    feed(&mut state, Event::OwnFailed("refused".into()));
    assert_eq!(state.input.value(), "too long");
    assert!(state.message.is_some());
}

#[test]
fn a_scoring_is_not_watched() {
    let mut state = idle();
    let mut row = summary(9, RequestState::Running);
    row.kind = RequestKind::Score.into();
    assert_eq!(feed(&mut state, snapshot(vec![row])), []);
    assert_eq!(state.selected, Some(9));
}

#[test]
fn time_redraws_only_what_counts_it() {
    let mut state = idle();
    assert!(!update(&mut state, Event::Tick, 250).changed);
    assert!(update(&mut state, Event::Tick, 4_000).changed);
    assert!(!update(&mut state, Event::Tick, 4_250).changed);
    assert!(update(&mut state, Event::Tick, 5_000).changed);
}
