//! What is asked for is judged by what it leads to now, and one change doesn't stand for another.

use super::*;

/// A daemon where nothing was asked yet, and its commands.
fn bare() -> DashboardState {
    let mut state = idle();
    press(&mut state, KeyCode::Esc);
    state
}

fn command(state: &mut DashboardState, line: &str) -> Vec<Effect> {
    press(state, KeyCode::Char(':'));
    write(state, line);
    press(state, KeyCode::Enter)
}

fn asks_plan(serial: u64, level: Option<Level>, budget_bytes: Option<u64>) -> Effect {
    Effect::AskPlan {
        serial,
        options: PlanOptions {
            level,
            budget: budget_bytes.map(Budget::Bytes),
            ..PlanOptions::default()
        },
    }
}

fn foreseen(serial: u64, plan: Plan) -> Event {
    Event::Predicted {
        serial,
        answer: Ok(Box::new(plan)),
    }
}

fn switching(level: v1::Level) -> Event {
    after(|snapshot| {
        snapshot.weight_switch = Some(WeightSwitch {
            done_steps: 1,
            total_steps: 9,
        });
        snapshot.switch_target = Some(SwitchTarget {
            level: level.into(),
            budget_bytes: 4 << 30,
        });
    })
}

fn told(state: &DashboardState) -> &str {
    &state.message.as_ref().expect("told").text
}

#[test]
fn a_level_of_which_nothing_is_known_is_planned_first() {
    let mut state = bare();
    let effects = command(&mut state, "level moderate");
    assert_eq!(effects, [asks_plan(1, Some(Level::Moderate), None)]);
    let effects = feed(&mut state, foreseen(1, full_plan(Level::Moderate, 4 << 30)));
    assert_eq!(effects, []);
    assert!(asked(&state).contains("It is lossy"));
    let effects = press(&mut state, KeyCode::Char('y'));
    assert_eq!(effects, [apply(Level::Moderate, None)]);
    // Told once more, it is not an answer to anything.
    let effects = feed(&mut state, foreseen(1, full_plan(Level::Moderate, 4 << 30)));
    assert_eq!((effects, state.mode()), (vec![], Mode::Page));
}

#[test]
fn how_long_a_switch_takes_is_said_before_it() {
    let mut state = bare();
    command(&mut state, "level moderate");
    let plan = Plan {
        switch_estimate: Some(SwitchEstimate {
            idle_ms: 4_100.0,
            busy_ms: 24_600.0,
            converted_weights: 210_000_000,
            read_bytes: 1 << 30,
        }),
        ..full_plan(Level::Moderate, 4 << 30)
    };
    feed(&mut state, foreseen(1, plan));
    let text = asked(&state);
    let words = "takes about 4.1 s to convert 210.0 M weights, up to 24.6 s while requests run.";
    assert!(text.contains(words), "{text}");
}

#[test]
fn a_level_that_the_daemon_refuses_to_plan_is_not_asked_for() {
    let mut state = bare();
    command(&mut state, "level off");
    let answer = Err("a budget of 4.00 GiB is too small".to_owned());
    let effects = feed(&mut state, Event::Predicted { serial: 1, answer });
    assert_eq!((effects, state.mode()), (vec![], Mode::Page));
    assert!(told(&state).contains("too small"));
}

#[test]
fn a_level_whose_pass_cannot_be_predicted_is_asked_about() {
    let mut state = bare();
    command(&mut state, "level off");
    let plan = Plan {
        pass_ms: None,
        ..full_plan(Level::Off, 4 << 30)
    };
    feed(&mut state, foreseen(1, plan));
    assert!(asked(&state).contains("cannot be predicted"));
}

#[test]
fn only_the_latest_of_several_wishes_is_judged() {
    let mut state = bare();
    command(&mut state, "level moderate");
    let effects = command(&mut state, "budget 2GiB");
    assert_eq!(effects, [asks_plan(2, None, Some(2 << 30))]);
    let effects = feed(&mut state, foreseen(1, full_plan(Level::Moderate, 4 << 30)));
    assert_eq!((effects, state.mode()), (vec![], Mode::Page));
    let effects = feed(&mut state, foreseen(2, full_plan(Level::Standard, 2 << 30)));
    let options = PlanOptions {
        budget: Some(Budget::Bytes(2 << 30)),
        ..PlanOptions::default()
    };
    assert_eq!(effects, [Effect::Apply(options)]);
}

#[test]
fn a_budget_that_makes_the_level_lossy_or_slow_is_asked_about() {
    let slow = Plan {
        pass_ms: Some(9_000.0),
        ..full_plan(Level::Standard, 2 << 30)
    };
    for (plan, words) in [
        (full_plan(Level::Moderate, 2 << 30), "It is lossy"),
        (slow, "10.0 times as long as now"),
    ] {
        let mut state = bare();
        command(&mut state, "budget 2GiB");
        assert_eq!(feed(&mut state, foreseen(1, plan)), []);
        let text = asked(&state);
        assert!(
            text.contains("Put a budget of 2.00 GiB in force?"),
            "{text}"
        );
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn the_daemons_own_budget_is_asked_about_unless_it_is_in_force() {
    let mut state = bare();
    assert_eq!(command(&mut state, "budget auto"), []);
    assert!(told(&state).contains("already in force"));
    let event = after(|snapshot| {
        let settings = snapshot.settings.as_mut().expect("set");
        let options = PlanOptions {
            level: Some(Level::Standard),
            budget: Some(Budget::Bytes(settings.budget_bytes)),
            ..PlanOptions::default()
        };
        settings.options = Some(options.into());
    });
    feed(&mut state, event);
    assert_eq!(command(&mut state, "budget auto"), []);
    asked(&state);
    let effects = press(&mut state, KeyCode::Char('y'));
    let options = PlanOptions {
        budget: Some(Budget::Default),
        ..PlanOptions::default()
    };
    assert_eq!(effects, [Effect::Apply(options)]);
}

#[test]
fn who_began_to_write_does_not_answer_by_that() {
    let mut state = bare();
    command(&mut state, "level moderate");
    press(&mut state, KeyCode::Char('i'));
    let effects = feed(&mut state, foreseen(1, full_plan(Level::Moderate, 4 << 30)));
    assert_eq!((effects, state.mode()), (vec![], Mode::Prompt));
    assert!(told(&state).contains("level moderate was not asked for. It is lossy"));
}

#[test]
fn answers_for_what_was_before_are_not_compared_with_what_is() {
    for change in [
        after(|snapshot| snapshot.model.as_mut().expect("set").name = "another".into()),
        in_force(Level::Moderate),
        applied(Level::Moderate),
    ] {
        let mut state = chooser();
        press(&mut state, KeyCode::Char('1'));
        feed(&mut state, change);
        assert!(state.levels.answers.is_empty());
        press(&mut state, KeyCode::Esc);
        let effects = command(&mut state, "level aggressive");
        assert_eq!(effects, [asks_plan(1, Some(Level::Aggressive), None)]);
        command(&mut state, "restore");
        assert!(asked(&state).contains("are unknown"));
    }
}

#[test]
fn what_changed_meanwhile_takes_the_wish_with_it() {
    let mut state = bare();
    command(&mut state, "level mild");
    feed(&mut state, in_force(Level::Aggressive));
    assert!(told(&state).contains("level mild was not asked for"));
    let plan = full_plan(Level::Moderate, 4 << 30);
    assert_eq!(feed(&mut state, foreseen(1, plan)), []);
}

#[test]
fn one_can_go_back_while_a_switch_runs() {
    let mut state = chooser();
    feed(&mut state, changing(Level::Aggressive));
    feed(&mut state, switching(v1::Level::Aggressive));
    select(&mut state, Level::Standard);
    let effects = press(&mut state, KeyCode::Enter);
    assert_eq!(effects, [apply(Level::Standard, None)]);
}

#[test]
fn more_loss_is_asked_about_unless_it_was_measured_to_be_none() {
    let mut state = chooser();
    feed(&mut state, in_force(Level::Moderate));
    answer(&mut state, 4 << 30);
    select(&mut state, Level::Aggressive);
    for (known, words) in [
        (
            vec![],
            "Level aggressive loses more than moderate; by how much",
        ),
        (
            vec![(v1::Level::Moderate, 0.01), (v1::Level::Aggressive, 0.2)],
            "KL 0.2000 nats",
        ),
    ] {
        for (level, mean_kl_nats) in known {
            feed(&mut state, measured(level, mean_kl_nats));
        }
        assert_eq!(press(&mut state, KeyCode::Enter), []);
        assert!(asked(&state).contains(words), "{:?}", state.question);
        press(&mut state, KeyCode::Char('n'));
    }
    feed(&mut state, measured(v1::Level::Aggressive, 0.01));
    let effects = press(&mut state, KeyCode::Enter);
    assert_eq!(effects, [apply(Level::Aggressive, None)]);
}

#[test]
fn a_second_change_that_is_refused_leaves_the_first_on_its_way() {
    let mut state = chooser();
    feed(&mut state, changing(Level::Moderate));
    feed(&mut state, refused(2, "a budget of 1 MiB is too small"));
    assert!(told(&state).contains("too small"));
    let words = |state: &DashboardState| state.levels.change.as_ref().expect("kept").words();
    assert_eq!(words(&state), "standard → moderate: under way");
    feed(&mut state, applied(Level::Moderate));
    assert!(words(&state).starts_with("standard → moderate in 2.3 s"));
    // Then nothing else is on its way that it could be mistaken for.
    feed(&mut state, refused(3, "no"));
    assert_eq!(words(&state), "the change failed: no");
}

#[test]
fn a_change_that_was_taken_over_says_no_more() {
    let mut state = chooser();
    feed(&mut state, changing(Level::Moderate));
    let second = Event::Changing {
        serial: 2,
        plan: Box::new(full_plan(Level::Aggressive, 4 << 30)),
        before: Box::new(full_plan(Level::Standard, 4 << 30)),
    };
    feed(&mut state, second);
    feed(&mut state, refused(1, "another change took over"));
    let change = state.levels.change.as_ref().expect("kept");
    assert_eq!(change.words(), "standard → aggressive: under way");
    assert!(!told(&state).contains("superseded"));
}

#[test]
fn any_policy_is_chosen_in_the_options_from_below_the_preset() {
    let mut state = chooser();
    press(&mut state, KeyCode::Tab);
    for _ in 0..9 {
        press(&mut state, KeyCode::Char('j'));
    }
    let screen = shown(&state, SIZES[1]);
    assert!(
        screen.contains("the preset's; Enter chooses any other"),
        "{screen}"
    );
    press(&mut state, KeyCode::Enter);
    assert_eq!(state.mode(), Mode::Options);
    press(&mut state, KeyCode::Enter);
    write(&mut state, "threshold:t=0.7");
    press(&mut state, KeyCode::Enter);
    press(&mut state, KeyCode::Esc);
    assert_eq!(state.options.value("policy"), Some("threshold:t=0.7"));
    pictures("preset_policy", &state);
}

#[test]
fn figures_that_no_daemon_would_send_are_survived() {
    let mut state = chooser();
    let mut plan = full_plan(Level::Standard, 4 << 30);
    plan.memory
        .iter_mut()
        .for_each(|kind| kind.bytes = u64::MAX);
    (plan.workload, plan.resident_bytes) = (None, 0);
    let answer = Ok(Box::new(plan));
    let level = Level::Standard;
    feed(&mut state, Event::Planned { level, answer });
    let event = after(|snapshot| {
        let most = u32::MAX;
        snapshot.weight_switch = Some(WeightSwitch {
            done_steps: most,
            total_steps: most,
        });
        snapshot.queue = Some(QueueStatus {
            running: most,
            waiting: most,
            capacity: most,
        });
    });
    feed(&mut state, event);
    let screen = shown(&state, SIZES[0]);
    for words in ["a canvas of unknown", "stays on the device is unknown"] {
        assert!(screen.contains(words), "{screen}");
    }
    command(&mut state, "load another");
    assert!(asked(&state).contains("4294967295 requests run or wait"));
}

#[test]
fn a_mix_is_not_said_to_lose_more_than_a_level_it_was_not_compared_with() {
    let mut state = chooser();
    feed(&mut state, in_force(Level::Aggressive));
    answer(&mut state, 4 << 30);
    let found = Event::Planned {
        level: Level::Optimized,
        answer: Ok(Box::new(full_plan(Level::Optimized, 4 << 30))),
    };
    feed(&mut state, found);
    select(&mut state, Level::Optimized);
    assert_eq!(press(&mut state, KeyCode::Enter), []);
    let words = "Level optimized may lose more than aggressive; by how much was not measured.";
    assert!(asked(&state).contains(words), "{}", asked(&state));
    let effects = press(&mut state, KeyCode::Char('y'));
    assert_eq!(effects, [apply(Level::Optimized, None)]);
}
