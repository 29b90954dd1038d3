//! Journeys through the update: keys, events, and what becomes of them.

use sluice_proto::v1::{GenerationLoading, SwitchTarget, WeightSwitch, generate_request::Input};

use super::{
    super::{
        hit_areas::HitTarget,
        requests::{ENDED_MAX, RECORDINGS_MAX},
        state::DaemonLink,
    },
    *,
};

#[test]
fn enter_sends_once_and_the_answer_is_followed() {
    let mut state = idle();
    assert_eq!(press(&mut state, KeyCode::Enter), []);
    write(&mut state, "hello");
    let effects = press(&mut state, KeyCode::Enter);
    let [Effect::Generate { request: sent, .. }] = &effects[..] else {
        panic!("{effects:?}");
    };
    let Some(Input::Chat(chat)) = &sent.input else {
        panic!("{sent:?}");
    };
    assert_eq!(chat.messages[0].content, "hello");
    assert_eq!(own_ids(&state), [None]);
    feed(&mut state, own(5, queued(5)));
    assert_eq!(
        (own_ids(&state), state.requests.selected),
        (vec![Some(5)], Some(5))
    );
    let done = WireEvent::Done(GenerationDone {
        request_id: 5,
        finish_reason: FinishReason::Eos.into(),
        text: Some("hi".into()),
        ..Default::default()
    });
    feed(&mut state, own(5, done));
    assert_eq!(
        (own_ids(&state), state.requests.selected),
        (vec![], Some(5))
    );
    assert_eq!(state.rows()[0].state(), OperationState::Done);
}

#[test]
fn escape_cancels_our_request_the_second_time() {
    let mut state = busy();
    assert_eq!(press(&mut state, KeyCode::Esc), []);
    assert_eq!(state.mode(), Mode::Page);
    assert_eq!(press(&mut state, KeyCode::Esc), [Effect::Cancel(3)]);
    // Too late a second press is a first one again.
    let mut state = busy();
    press(&mut state, KeyCode::Esc);
    update(&mut state, Event::Tick, 10_000);
    assert_eq!(press(&mut state, KeyCode::Esc), []);
}

#[test]
fn the_prompt_writes_letters_and_opens_levels_with_f2() {
    let mut state = idle();
    write(&mut state, "l5");
    assert_eq!((state.mode(), state.prompt.value()), (Mode::Prompt, "l5"));
    press(&mut state, KeyCode::F(2));
    assert_eq!((state.page, state.mode()), (Page::Levels, Mode::Page));
    press(&mut state, KeyCode::Char('1'));
    assert_eq!((state.page, state.prompt.value()), (Page::Overview, "l5"));
}

#[test]
fn every_page_has_its_number_and_its_tab() {
    for (page, number) in Page::ALL.into_iter().zip('1'..) {
        let mut state = busy();
        press(&mut state, KeyCode::Esc);
        press(&mut state, KeyCode::Char(number));
        assert_eq!(state.page, page);
        for size in SIZES {
            let screen = shown(&state, size);
            assert!(screen.contains(page.name()), "{screen}");
            let (_, targets) = draw_with_targets(&state, size);
            let tabs = if size.1 < 20 { 1 } else { 2 };
            let hit = (0..size.0).any(|x| targets.at(x, tabs) == Some(HitTarget::Page(page)));
            assert!(hit, "{page:?} can be pressed on");
        }
    }
}

#[test]
fn a_command_is_completed_run_and_recalled() {
    let mut state = idle();
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Char(':'));
    write(&mut state, "th");
    press(&mut state, KeyCode::Tab);
    assert_eq!(state.command.value(), "theme ");
    press(&mut state, KeyCode::Tab);
    assert_eq!(state.command.value(), "theme terminal");
    for _ in 0.."terminal".len() {
        press(&mut state, KeyCode::Backspace);
    }
    write(&mut state, "light");
    press(&mut state, KeyCode::Enter);
    assert_eq!(
        (state.paint.theme, state.mode()),
        (Theme::Light, Mode::Page)
    );
    press(&mut state, KeyCode::Char(':'));
    press(&mut state, KeyCode::Up);
    assert_eq!(state.command.value(), "theme light");
    press(&mut state, KeyCode::Esc);
    for (line, problem) in [
        ("fly", "unknown command 'fly'; known are level"),
        ("c", "'c' may be compress or cancel"),
        ("theme", "theme takes NAME"),
        ("quit now", "quit takes nothing"),
        ("theme pink", "unknown theme 'pink'"),
        ("budget much", "much"),
        ("cancel x", "'x' is not the number of a request"),
        ("compress m relative", "must be absolute"),
    ] {
        press(&mut state, KeyCode::Char(':'));
        write(&mut state, line);
        assert_eq!(press(&mut state, KeyCode::Enter), []);
        let message = state.message.clone().expect("told");
        assert!(
            message.is_error && message.text.contains(problem),
            "{message:?}"
        );
    }
}

#[test]
fn a_frozen_screen_holds_its_figures_and_says_so() {
    let mut state = busy();
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Char('f'));
    feed(&mut state, snapshot(vec![]));
    update(&mut state, Event::Tick, 3_000);
    let screen = shown(&state, SIZES[0]);
    assert!(screen.contains("frozen, data from 3 s ago"), "{screen}");
    assert!(screen.contains("1 running, 1 of 16 waiting"), "{screen}");
    press(&mut state, KeyCode::Char('f'));
    let screen = shown(&state, SIZES[0]);
    assert!(screen.contains("0 running, 0 of 16 waiting"), "{screen}");
}

#[test]
fn the_mouse_selects_a_request_and_writes_where_it_points() {
    let mut state = busy();
    let (_, targets) = draw_with_targets(&state, SIZES[0]);
    let place = |target| {
        let all = (0..SIZES[0].1).flat_map(|y| (0..SIZES[0].0).map(move |x| (x, y)));
        let mut hits = all.filter(|(x, y)| targets.at(*x, *y) == Some(target));
        hits.next()
    };
    assert!(place(HitTarget::Request(4)).is_some() && place(HitTarget::Prompt).is_some());
    feed(&mut state, Event::Click(HitTarget::Request(4)));
    assert_eq!(state.requests.selected, Some(4));
    feed(&mut state, Event::Wheel(Some(HitTarget::Request(4)), -1));
    assert_eq!(state.requests.selected, Some(3));
    feed(&mut state, Event::Click(HitTarget::Prompt));
    assert_eq!(state.mode(), Mode::Prompt);
}

#[test]
fn the_filter_keeps_the_requests_that_it_names() {
    let mut state = busy();
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Char('/'));
    write(&mut state, "queued");
    let ids: Vec<u64> = state.rows().iter().map(|row| row.operation_id).collect();
    assert_eq!(ids, [4]);
    press(&mut state, KeyCode::Esc);
    assert_eq!(state.rows().len(), 2);
}

#[test]
fn a_switch_shows_how_far_it_is() {
    let mut state = idle();
    let shows = |state: &DashboardState, words: &str| {
        for size in &SIZES[..2] {
            let screen = shown(state, *size);
            assert!(screen.contains(words), "{screen}");
        }
    };
    feed(&mut state, Event::Converting(Some((1 << 20, 4 << 20))));
    shows(&state, "1.00 MiB of 4.00 MiB");
    let Event::Snapshot(mut next) = snapshot(vec![]) else {
        unreachable!("it is a snapshot");
    };
    let mut converting = next.clone();
    converting.weight_switch = Some(WeightSwitch {
        done_steps: 0,
        total_steps: 0,
    });
    feed(&mut state, Event::Snapshot(converting));
    shows(&state, "1.00 MiB of 4.00 MiB");
    next.weight_switch = Some(WeightSwitch {
        done_steps: 3,
        total_steps: 9,
    });
    next.switch_target = Some(SwitchTarget {
        level: v1::Level::Aggressive.into(),
        budget_bytes: 4 << 30,
    });
    feed(&mut state, Event::Snapshot(next));
    shows(&state, "switching to aggressive, step 4 of 9");
    feed(&mut state, Event::Converting(None));
    feed(&mut state, snapshot(vec![]));
    let screen = shown(&state, SIZES[0]);
    assert!(!screen.contains("switching"), "{screen}");
}

#[test]
fn warnings_of_a_request_are_told() {
    let mut state = idle();
    let started = GenerationStarted {
        request_id: 3,
        warnings: vec!["this will take about 3 min".into()],
        ..Default::default()
    };
    feed(&mut state, request(3, WireEvent::Started(started)));
    let screen = shown(&state, (80, 24));
    assert!(screen.contains("about 3 min"), "{screen}");
}

#[test]
fn cancelling_the_selected_request_asks_first() {
    let mut state = busy();
    press(&mut state, KeyCode::Tab);
    press(&mut state, KeyCode::Char('j'));
    assert_eq!(state.requests.selected, Some(4));
    assert_eq!(press(&mut state, KeyCode::Char('x')), []);
    assert_eq!(state.mode(), Mode::Confirm);
    assert_eq!(press(&mut state, KeyCode::Char('n')), []);
    assert_eq!(state.mode(), Mode::Page);
    press(&mut state, KeyCode::Char('x'));
    assert_eq!(press(&mut state, KeyCode::Char('y')), [Effect::Cancel(4)]);
}

#[test]
fn somebody_elses_request_is_watched_and_watched_anew_after_a_loss() {
    let mut state = idle();
    let effects = feed(
        &mut state,
        snapshot(vec![summary(9, OperationState::Running)]),
    );
    assert_eq!(effects, [Effect::Watch(Some(9))]);
    let again = feed(
        &mut state,
        snapshot(vec![summary(9, OperationState::Running)]),
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
    fresh.daemon.as_mut().expect("given").process_id = 200;
    feed(&mut state, own_failed("lost"));
    feed(&mut state, Event::Snapshot(fresh));
    // What was seen of the one before can still be looked at, under a name of its own.
    let rows = state.rows();
    assert_eq!((rows.len(), rows[0].state()), (1, OperationState::Failed));
    assert_eq!(state.requests.selected, Some(rows[0].operation_id));
    assert_eq!(state.recording().expect("kept").len(), 1);
    assert_eq!(press(&mut state, KeyCode::Esc), []);
    let screen = shown(&state, SIZES[0]);
    assert!(screen.contains("Request earlier 3"), "{screen}");
    feed(&mut state, request(3, queued(3)));
    assert_eq!(state.recording().expect("kept").len(), 1);
}

#[test]
fn a_draft_and_the_selection_survive_a_loss() {
    let mut state = lost();
    assert_eq!(state.prompt.value(), "a draft");
    assert_eq!(press(&mut state, KeyCode::Enter), []);
    assert_eq!(state.prompt.value(), "a draft");
    assert!(matches!(state.link, DaemonLink::Lost { .. }));
    assert_eq!(state.requests.selected, Some(3));
}

#[test]
fn earlier_prompts_are_recalled() {
    let mut state = idle();
    for (prompt, id) in [("one", 1), ("two", 2)] {
        write(&mut state, prompt);
        press(&mut state, KeyCode::Enter);
        feed(&mut state, own(id, queued(id)));
        feed(&mut state, own(id, done(id, "well")));
    }
    press(&mut state, KeyCode::Up);
    assert_eq!(state.prompt.value(), "two");
    press(&mut state, KeyCode::Up);
    assert_eq!(state.prompt.value(), "one");
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Down);
    assert_eq!(state.prompt.value(), "");
}

#[test]
fn a_refused_prompt_comes_back_to_be_changed() {
    let mut state = idle();
    write(&mut state, "exceeded the context");
    press(&mut state, KeyCode::Enter);
    feed(&mut state, own_failed("refused"));
    assert_eq!(state.prompt.value(), "exceeded the context");
    assert!(state.message.is_some());
}

#[test]
fn a_scoring_is_not_watched() {
    let mut state = idle();
    let mut row = summary(9, OperationState::Running);
    row.kind = OperationKind::Score.into();
    assert_eq!(feed(&mut state, snapshot(vec![row])), []);
    assert_eq!(state.requests.selected, Some(9));
}

#[test]
fn time_redraws_only_what_counts_it() {
    let mut state = idle();
    assert!(!update(&mut state, Event::Tick, 250).changed);
    assert!(update(&mut state, Event::Tick, 4_000).changed);
    assert!(!update(&mut state, Event::Tick, 4_250).changed);
    assert!(update(&mut state, Event::Tick, 5_000).changed);
}

/// The next snapshot, of a daemon that has been up for so long.
fn snapshot_at(uptime_ms: u64, requests: Vec<Operation>) -> Event {
    let Event::Snapshot(mut next) = snapshot(requests) else {
        unreachable!("it is a snapshot");
    };
    next.daemon.as_mut().expect("given").uptime_ms = uptime_ms;
    Event::Snapshot(next)
}

fn sent() -> DashboardState {
    let mut state = idle();
    write(&mut state, "hello");
    press(&mut state, KeyCode::Enter);
    assert_eq!(own_ids(&state), [None]);
    state
}

fn told(state: &DashboardState) -> &str {
    state.message.as_ref().map_or("", |message| &message.text)
}

fn done(request_id: u64, text: &str) -> WireEvent {
    WireEvent::Done(GenerationDone {
        request_id,
        text: Some(text.into()),
        finish_reason: FinishReason::Eos.into(),
        ..Default::default()
    })
}

#[test]
fn a_request_of_somebody_else_never_becomes_ours() {
    let mut state = sent();
    feed(
        &mut state,
        snapshot(vec![summary(9, OperationState::Running)]),
    );
    feed(&mut state, request(9, queued(9)));
    assert_eq!(own_ids(&state), [None]);
    feed(&mut state, own(10, queued(10)));
    assert_eq!(own_ids(&state), [Some(10)]);
    feed(&mut state, request(9, done(9, "somebody's")));
    assert!(state.chat.conversation().turns.is_empty());
    feed(&mut state, own(10, done(10, "ours")));
    assert_eq!(state.chat.conversation().turns[1].text, "ours");
}

#[test]
fn a_request_without_a_number_is_taken_back() {
    let mut state = sent();
    let loading = GenerationLoading {
        model: "sluice-demo".into(),
        ..Default::default()
    };
    feed(&mut state, own(0, WireEvent::Loading(loading)));
    assert_eq!(press(&mut state, KeyCode::Esc), []);
    assert_eq!(press(&mut state, KeyCode::Esc), [Effect::DropOwn(1)]);
    assert_eq!((own_ids(&state), state.prompt.value()), (vec![], "hello"));
    // What was on its way comes too late.
    feed(&mut state, own(5, queued(5)));
    assert_eq!(own_ids(&state), []);
    assert!(state.requests.recordings.is_empty());
    let mut state = sent();
    press(&mut state, KeyCode::Tab);
    assert_eq!(press(&mut state, KeyCode::Char('x')), []);
    assert_eq!(press(&mut state, KeyCode::Char('y')), [Effect::DropOwn(1)]);
    // By the time of the answer it may have its number.
    let mut state = sent();
    press(&mut state, KeyCode::Tab);
    press(&mut state, KeyCode::Char('x'));
    feed(&mut state, own(5, queued(5)));
    assert_eq!(press(&mut state, KeyCode::Char('y')), [Effect::Cancel(5)]);
}

#[test]
fn an_answer_that_broke_off_keeps_what_stood() {
    let mut state = busy();
    let mut pass = GenerationPass {
        request_id: 3,
        passes: 11,
        stable_text: "Once upon a time".into(),
        ..Default::default()
    };
    feed(&mut state, own(3, WireEvent::PassDone(pass.clone())));
    feed(&mut state, own_failed("the daemon is gone"));
    let turns = &state.chat.conversation().turns;
    assert_eq!(turns[1].text, "Once upon a time");
    let origin = turns[1].origin.as_ref().expect("known");
    assert!(origin.is_cut && origin.seed == 42 && origin.passes == 11);
    assert_eq!(state.prompt.value(), "");
    // Where nothing stood, the prompt comes back.
    let mut state = busy();
    pass.stable_text.clear();
    feed(&mut state, own(3, WireEvent::PassDone(pass)));
    feed(&mut state, own_failed("the daemon is gone"));
    assert!(state.chat.conversation().turns.is_empty());
    assert_eq!(state.prompt.value(), "Tell me a story.");
}

#[test]
fn what_is_done_while_frozen_is_done_to_what_is_there_now() {
    let mut state = idle();
    let rows = vec![summary(9, OperationState::Running)];
    feed(&mut state, snapshot(rows));
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Char('f'));
    feed(&mut state, request(9, queued(9)));
    feed(&mut state, request(9, done(9, "well")));
    feed(&mut state, snapshot(vec![]));
    press(&mut state, KeyCode::Char('x'));
    assert_eq!(state.mode(), Mode::Page);
    let rows = vec![summary(10, OperationState::Running)];
    let effects = feed(&mut state, snapshot(rows));
    assert_eq!(effects, [Effect::Watch(Some(10))]);
    let event = Event::Lost {
        cause: "gone".into(),
        retry_ms: 1_000,
    };
    feed(&mut state, event);
    let screen = shown(&state, SIZES[0]);
    assert!(screen.contains("frozen, data from"), "{screen}");
    feed(&mut state, snapshot_at(10, vec![]));
    assert!(state.frozen.is_none());
}

#[test]
fn a_question_does_not_outlive_its_daemon() {
    let mut state = idle();
    let rows = || vec![summary(7, OperationState::Running)];
    feed(&mut state, snapshot(rows()));
    press(&mut state, KeyCode::Tab);
    press(&mut state, KeyCode::Char('x'));
    assert_eq!(state.mode(), Mode::Confirm);
    // In a container it has the same process id.
    feed(&mut state, snapshot_at(10, rows()));
    assert_eq!(state.mode(), Mode::Page);
    assert_eq!(press(&mut state, KeyCode::Char('y')), []);
}

#[test]
fn requests_that_left_the_list_are_asked_about_and_kept() {
    let mut state = busy();
    let effects = feed(
        &mut state,
        snapshot(vec![summary(3, OperationState::Running)]),
    );
    assert_eq!(effects, [Effect::ListOperations]);
    let states = |state: &DashboardState| -> Vec<_> {
        let rows = state.rows().into_iter();
        rows.map(|row| (row.operation_id, row.state())).collect()
    };
    let running = (3, OperationState::Running);
    assert_eq!(states(&state), [running, (4, OperationState::Unspecified)]);
    let failed = Operation {
        error: Some("out of memory".to_owned().into()),
        ..summary(4, OperationState::Failed)
    };
    feed(&mut state, Event::Operations(vec![failed]));
    assert_eq!(states(&state), [running, (4, OperationState::Failed)]);
    let screen = shown(&state, SIZES[0]);
    assert!(screen.contains("out of memory"), "{screen}");
    for id in 10..100 {
        feed(
            &mut state,
            snapshot(vec![summary(id, OperationState::Queued)]),
        );
    }
    assert_eq!(state.requests.ended.len(), ENDED_MAX);
}

#[test]
fn an_error_stays_until_somebody_was_there() {
    let mut state = idle();
    feed(&mut state, Event::Failed("no room on the disk".into()));
    feed(&mut state, Event::Succeeded("cancelled request 4".into()));
    assert_eq!(told(&state), "no room on the disk");
    press(&mut state, KeyCode::Char('a'));
    feed(&mut state, Event::Succeeded("cancelled request 4".into()));
    assert_eq!(told(&state), "cancelled request 4");
}

#[test]
fn a_key_between_two_escapes_makes_the_second_a_first_one() {
    let mut state = busy();
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Char('j'));
    assert_eq!(told(&state), "");
    assert_eq!(press(&mut state, KeyCode::Esc), []);
    assert_eq!(press(&mut state, KeyCode::Esc), [Effect::Cancel(3)]);
}

#[test]
fn a_filter_hides_a_request_and_lets_go_of_none() {
    let mut state = busy();
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Char('j'));
    assert_eq!(state.requests.selected, Some(4));
    let watched = state.requests.watched;
    press(&mut state, KeyCode::Char('/'));
    write(&mut state, "running");
    press(&mut state, KeyCode::Enter);
    assert_eq!((state.rows().len(), state.requests.selected), (1, Some(4)));
    assert_eq!(state.requests.watched, watched);
    // To look for a key is something else.
    press(&mut state, KeyCode::Char('?'));
    press(&mut state, KeyCode::Char('/'));
    write(&mut state, "freeze");
    let screen = shown(&state, SIZES[0]);
    assert!(screen.contains("freeze the figures"), "{screen}");
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Esc);
    assert_eq!(state.filter.value(), "running");
}

#[test]
fn our_running_request_is_never_let_go_for_want_of_room() {
    let mut state = busy();
    for id in 20..60 {
        feed(&mut state, request(id, queued(id)));
        feed(&mut state, Event::Click(HitTarget::Request(id)));
        feed(&mut state, request(id, done(id, "x")));
    }
    assert_eq!(state.requests.recordings.len(), RECORDINGS_MAX);
    assert!(state.requests.canvas(3).is_some());
}
