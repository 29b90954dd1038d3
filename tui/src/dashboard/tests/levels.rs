//! The chooser: when it asks, what it shows, what it did.

use ratatui::style::{Color, Modifier};
use sluice_proto::v1::{
    ApplyResult, FidelityResult, PlannedMemory, StagingBuffers, SwitchEstimate, SwitchTarget,
    WeightSwitch,
};
use sluice_shared::preset::Preset;

use super::*;

mod optimized;
mod questions;

/// A plan with all that a page can say of one.
fn full_plan(level: Level, budget_bytes: u64) -> Plan {
    let kind = |kind: MemoryKind, bytes| PlannedMemory {
        kind: kind.into(),
        bytes,
    };
    let peak_bytes = plan(level).peak_bytes;
    Plan {
        budget_bytes,
        compute_ms: Some(300.0),
        copy_ms: Some(plan(level).pass_ms.expect("set")),
        staging_buffers: Some(StagingBuffers {
            count: 2,
            bytes_each: peak_bytes / 8,
            decompress_bytes: 0,
            ..Default::default()
        }),
        memory: vec![
            kind(MemoryKind::Weights, peak_bytes / 2),
            kind(MemoryKind::StagingBuffers, peak_bytes / 4),
            kind(MemoryKind::Activations, peak_bytes / 8),
            kind(MemoryKind::Logits, peak_bytes / 16),
            kind(MemoryKind::KvCache, 0),
            kind(MemoryKind::Scratch, peak_bytes / 16),
        ],
        notes: match level {
            Level::Aggressive => vec!["model.norm stays in f32".into()],
            _ => Vec::new(),
        },
        ..plan(level)
    }
}

/// All answers for a budget: `off` doesn't fit, nothing was optimized, `auto` comes to `moderate`.
fn answer(state: &mut DashboardState, budget_bytes: u64) {
    let refusal =
        "a budget of 4.00 GiB is too small: level off needs at least 16GiB for a canvas of 256";
    for level in Level::ALL {
        let answer = match level {
            Level::Off => Err(refusal.to_owned()),
            Level::Optimized => Err(NO_MIX.to_owned()),
            Level::Auto => Ok(Box::new(full_plan(Level::Moderate, budget_bytes))),
            other => Ok(Box::new(full_plan(other, budget_bytes))),
        };
        feed(state, Event::Planned { level, answer });
    }
}

fn chooser() -> DashboardState {
    let mut state = idle();
    press(&mut state, KeyCode::F(2));
    answer(&mut state, 4 << 30);
    state
}

fn select(state: &mut DashboardState, level: Level) {
    while state.level() != level {
        let before = state.level();
        let key = if before > level { 'k' } else { 'j' };
        press(state, KeyCode::Char(key));
        assert_ne!(state.level(), before, "it moves");
    }
}

fn measured(level: v1::Level, mean_kl_nats: f64) -> Event {
    Event::Measured(Ok(Box::new(FidelityResult {
        level: level.into(),
        mean_kl_nats,
        top_agreement: 0.987,
        rows: 1_024,
        ..Default::default()
    })))
}

/// The snapshot of an idle daemon, changed.
fn after(change: impl FnOnce(&mut Snapshot)) -> Event {
    let Event::Snapshot(mut snapshot) = snapshot(vec![]) else {
        unreachable!("it is a snapshot");
    };
    change(&mut snapshot);
    Event::Snapshot(snapshot)
}

/// `level` is in force, as its plan says.
fn in_force(level: Level) -> Event {
    after(|snapshot| {
        snapshot.plan = Some(full_plan(level, 4 << 30));
        let settings = snapshot.settings.as_mut().expect("set");
        let options = settings.options.as_mut().expect("set");
        options.level = v1::Level::from(level).into();
        snapshot.passes = Some(PassStatistics {
            count: 3,
            mean_ms: Some(500.0),
            ..Default::default()
        });
    })
}

/// The first change that was asked for is in force.
fn applied(level: Level) -> Event {
    Event::Applied {
        serial: 1,
        applied: Box::new(ApplyResult {
            plan: Some(full_plan(level, 4 << 30)),
            device_bytes: 290 << 20,
        }),
        elapsed_ms: 2_300.0,
    }
}

fn changing(level: Level) -> Event {
    Event::Changing {
        serial: 1,
        plan: Box::new(full_plan(level, 4 << 30)),
        before: Box::new(full_plan(Level::Standard, 4 << 30)),
    }
}

fn refused(serial: u64, message: &str) -> Event {
    Event::ApplyFailed {
        serial,
        message: message.into(),
    }
}

fn asked(state: &DashboardState) -> &str {
    assert_eq!(state.mode(), Mode::Confirm);
    &state.question.as_ref().expect("asked").text
}

fn apply(level: Level, budget_bytes: Option<u64>) -> Effect {
    Effect::Apply(PlanOptions {
        level: Some(level),
        budget: budget_bytes.map(Budget::Bytes),
        ..PlanOptions::default()
    })
}

#[test]
fn a_lossy_level_is_asked_about_with_what_was_measured() {
    let mut state = chooser();
    select(&mut state, Level::Moderate);
    assert_eq!(press(&mut state, KeyCode::Enter), []);
    assert!(asked(&state).contains("by how much was not measured"));
    press(&mut state, KeyCode::Char('n'));
    assert_eq!((state.mode(), &state.levels.change), (Mode::Page, &None));
    feed(&mut state, measured(v1::Level::Moderate, 0.0123));
    press(&mut state, KeyCode::Enter);
    let text = asked(&state);
    assert!(
        text.contains("KL 0.0123 nats, the same token in 98.7 %"),
        "{text}"
    );
    let effects = press(&mut state, KeyCode::Char('y'));
    assert_eq!(effects, [apply(Level::Moderate, None)]);
}

#[test]
fn a_slow_level_is_asked_about_and_a_harmless_one_is_not() {
    let mut state = chooser();
    feed(&mut state, in_force(Level::Aggressive));
    answer(&mut state, 4 << 30);
    // Lossy is what is in force already, and it is hardly slower.
    select(&mut state, Level::Moderate);
    let effects = press(&mut state, KeyCode::Enter);
    assert_eq!(effects, [apply(Level::Moderate, None)]);
    select(&mut state, Level::Standard);
    assert_eq!(press(&mut state, KeyCode::Enter), []);
    let text = asked(&state);
    assert!(
        text.contains("take 900 ms, 2.5 times as long") && !text.contains("lossy"),
        "{text}"
    );
}

#[test]
fn a_level_in_force_or_out_of_reach_is_told_and_not_asked_for() {
    let mut state = chooser();
    for (level, words) in [
        (Level::Standard, "already in force"),
        (Level::Off, "needs at least 16GiB"),
        (Level::Mild, "no lossless format"),
        (Level::Optimized, "has no optimized weights"),
    ] {
        select(&mut state, level);
        assert_eq!(press(&mut state, KeyCode::Enter), []);
        let message = state.message.as_ref().expect("told");
        assert!(message.text.contains(words), "{message:?}");
        assert_eq!(state.mode(), Mode::Page);
    }
}

#[test]
fn a_tried_budget_changes_nothing_until_enter_applies_it_with_the_level() {
    let mut state = chooser();
    press(&mut state, KeyCode::Char('b'));
    assert_eq!(state.command.value(), "try ");
    write(&mut state, "2GiB");
    let effects = press(&mut state, KeyCode::Enter);
    let options = PlanOptions {
        budget: Some(Budget::Bytes(2 << 30)),
        ..PlanOptions::default()
    };
    let asks = Effect::AskPlans(Level::ALL.to_vec(), options);
    assert_eq!(effects, [asks]);
    answer(&mut state, 2 << 30);
    pictures("levels_tried", &state);
    // The same level, but another budget.
    let effects = press(&mut state, KeyCode::Enter);
    assert_eq!(effects, [apply(Level::Standard, Some(2 << 30))]);
    feed(&mut state, changing(Level::Standard));
    let effects = feed(&mut state, applied(Level::Standard));
    let asks = Effect::AskPlans(Level::ALL.to_vec(), PlanOptions::default());
    assert_eq!((effects, state.levels.tried), (vec![asks], None));
}

#[test]
fn a_budget_can_be_tried_from_any_page_and_left_again() {
    let mut state = idle();
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Char(':'));
    write(&mut state, "try 3GiB");
    press(&mut state, KeyCode::Enter);
    assert_eq!(
        (state.page, state.levels.tried),
        (Page::Levels, Some(3 << 30))
    );
    press(&mut state, KeyCode::Char(':'));
    write(&mut state, "try now");
    let effects = press(&mut state, KeyCode::Enter);
    let asks = Effect::AskPlans(Level::ALL.to_vec(), PlanOptions::default());
    assert_eq!((effects, state.levels.tried), (vec![asks], None));
}

#[test]
fn what_a_change_did_stays_on_the_page() {
    let mut state = chooser();
    feed(&mut state, changing(Level::Moderate));
    feed(&mut state, Event::Converting(Some((1 << 20, 4 << 20))));
    feed(
        &mut state,
        after(|snapshot| {
            snapshot.weight_switch = Some(WeightSwitch {
                done_steps: 0,
                total_steps: 0,
            });
            snapshot.switch_target = Some(SwitchTarget {
                level: v1::Level::Moderate.into(),
                budget_bytes: 4 << 30,
            });
        }),
    );
    pictures("levels_switching", &state);
    feed(&mut state, Event::Converting(None));
    feed(&mut state, applied(Level::Moderate));
    feed(&mut state, in_force(Level::Moderate));
    answer(&mut state, 4 << 30);
    update(&mut state, Event::Tick, 60_000);
    feed(&mut state, in_force(Level::Moderate));
    let words = state.levels.change.as_ref().expect("kept").words();
    assert_eq!(
        words,
        "standard → moderate in 2.3 s: memory 0.98 GiB → 290 MiB held (at most 300 MiB predicted), \
         pass 1.9 s measured → 500 ms measured (450 ms predicted)"
    );
    pictures("levels_applied", &state);
    // Somebody else's change makes it history.
    feed(&mut state, in_force(Level::Aggressive));
    assert_eq!(state.levels.change, None);
}

#[test]
fn a_change_that_others_asked_for_shows_how_far_it_is() {
    let mut state = chooser();
    feed(
        &mut state,
        after(|snapshot| {
            snapshot.weight_switch = Some(WeightSwitch {
                done_steps: 3,
                total_steps: 9,
            });
            snapshot.switch_target = Some(SwitchTarget {
                level: v1::Level::Aggressive.into(),
                budget_bytes: 4 << 30,
            });
        }),
    );
    for size in SIZES {
        let screen = shown(&state, size);
        let words = ["━━━━━━━─", "switching to"];
        assert!(words.iter().all(|words| screen.contains(words)), "{screen}");
    }
}

#[test]
fn a_change_that_failed_keeps_the_daemons_words() {
    let mut state = chooser();
    feed(&mut state, changing(Level::Aggressive));
    feed(&mut state, refused(1, "memory ran short"));
    update(&mut state, Event::Tick, 60_000);
    let screen = shown(&state, SIZES[0]);
    let words = "standard → aggressive failed: memory ran short";
    assert!(screen.contains(words), "{screen}");
}

#[test]
fn fidelity_is_measured_shown_and_kept() {
    let mut state = chooser();
    assert_eq!(press(&mut state, KeyCode::Char('m')), []);
    let message = state.message.as_ref().expect("told");
    assert!(message.text.contains("0 by definition"), "{message:?}");
    select(&mut state, Level::Auto);
    let effects = press(&mut state, KeyCode::Char('m'));
    assert_eq!(effects, [Effect::Measure(Level::Moderate)]);
    assert_eq!(press(&mut state, KeyCode::Char('m')), []);
    let progress = Event::Measuring {
        request_id: 9,
        done: 12,
        total: 48,
    };
    feed(&mut state, progress);
    let screen = shown(&state, SIZES[0]);
    assert!(
        screen.contains("━━━━━─────────────── measuring moderate: pass 12 of 48"),
        "{screen}"
    );
    feed(&mut state, measured(v1::Level::Moderate, 0.0123));
    assert_eq!(state.levels.measuring, None);
    // Measured once more, it takes the place of the first.
    feed(&mut state, measured(v1::Level::Moderate, 0.0321));
    feed(&mut state, measured(v1::Level::Aggressive, 0.21));
    assert_eq!(state.fidelity.len(), 2);
    let fidelity = state.fidelity_of(Level::Auto).expect("of moderate");
    assert_eq!((fidelity.mean_kl_nats, fidelity.rows), (0.0321, 1_024));
    state.message = None;
    pictures("levels_measured", &state);
}

#[test]
fn a_measurement_is_cancelled_before_and_after_it_has_a_number() {
    let mut state = chooser();
    press(&mut state, KeyCode::Char('x'));
    assert!(state.message.as_ref().is_some_and(|told| told.is_error));
    select(&mut state, Level::Moderate);
    press(&mut state, KeyCode::Char('m'));
    assert_eq!(press(&mut state, KeyCode::Char('x')), []);
    let effects = press(&mut state, KeyCode::Char('y'));
    assert_eq!(effects, [Effect::StopMeasuring]);
    let progress = Event::Measuring {
        request_id: 9,
        done: 1,
        total: 48,
    };
    feed(&mut state, progress);
    press(&mut state, KeyCode::Char('x'));
    assert_eq!(asked(&state), "Cancel the measurement of moderate?");
    assert_eq!(press(&mut state, KeyCode::Char('y')), [Effect::Cancel(9)]);
    feed(&mut state, Event::MeasuringStopped);
    assert_eq!(state.levels.measuring, None);
    assert!(!state.message.as_ref().expect("told").is_error);
}

#[test]
fn restoring_asks_where_it_takes_more() {
    let mut state = chooser();
    // What is in force takes twice as much as the standard plan.
    assert_eq!(
        press(&mut state, KeyCode::Char('R')),
        [Effect::Restore],
        "{:?}",
        state.question
    );
    feed(&mut state, in_force(Level::Aggressive));
    answer(&mut state, 4 << 30);
    assert_eq!(press(&mut state, KeyCode::Char('R')), []);
    let text = asked(&state);
    assert!(
        text.contains("Memory 240 MiB → 600 MiB, a pass 360 ms → 900 ms"),
        "{text}"
    );
    assert_eq!(press(&mut state, KeyCode::Char('y')), [Effect::Restore]);
}

#[test]
fn the_preset_asks_before_answers_differ_and_is_sent_from_then_on() {
    let mut state = chooser();
    press(&mut state, KeyCode::Tab);
    press(&mut state, KeyCode::Enter);
    assert_eq!(state.options.preset(), Some(Preset::Exact));
    press(&mut state, KeyCode::Char('j'));
    press(&mut state, KeyCode::Char('j'));
    press(&mut state, KeyCode::Enter);
    assert!(asked(&state).contains("will differ from the reference"));
    press(&mut state, KeyCode::Char('n'));
    assert_eq!(state.options.preset(), Some(Preset::Exact));
    press(&mut state, KeyCode::Enter);
    press(&mut state, KeyCode::Char('y'));
    assert_eq!(state.options.preset(), Some(Preset::Balanced));
    // One approximation in the place of another gives up nothing new.
    press(&mut state, KeyCode::Char('j'));
    press(&mut state, KeyCode::Enter);
    assert_eq!(state.options.preset(), Some(Preset::Fast));
    press(&mut state, KeyCode::Char('i'));
    write(&mut state, "hello");
    let effects = press(&mut state, KeyCode::Enter);
    let [Effect::Generate { request: sent, .. }, ..] = &effects[..] else {
        panic!("{effects:?}");
    };
    assert_eq!(
        sent.diffusion().expect("set").preset(),
        v1::DecodingPreset::Fast
    );
}

#[test]
fn the_preset_shows_what_requests_came_to() {
    let mut state = chooser();
    for id in [7, 8] {
        let started = WireEvent::Started(GenerationStarted {
            request_id: id,
            diffusion: Some(DiffusionOptions {
                preset: v1::DecodingPreset::Balanced.into(),
                ..Default::default()
            }),
            ..Default::default()
        });
        feed(&mut state, request(id, started));
        let done = WireEvent::Done(GenerationDone {
            request_id: id,
            finish_reason: FinishReason::Eos.into(),
            passes: 10,
            text_tokens: 36,
            generated_tokens: 36,
            filled_positions: 36,
            elapsed_ms: 900.0,
            ..Default::default()
        });
        feed(&mut state, request(id, done));
    }
    press(&mut state, KeyCode::Tab);
    state.options.set("preset", "balanced").expect("known");
    state.levels.preset = 2;
    pictures("preset", &state);
}

#[test]
fn the_question_and_the_selected_row_stand_out() {
    let mut state = chooser();
    select(&mut state, Level::Aggressive);
    let selected = |state: &DashboardState| {
        let terminal = draw(state, (120, 40));
        let buffer = terminal.backend().buffer().clone();
        let at = buffer
            .content()
            .iter()
            .position(|cell| cell.symbol() == "▸");
        (buffer.content()[at.expect("a selection")].modifier, buffer)
    };
    let (modifier, buffer) = selected(&state);
    assert!(modifier.contains(Modifier::BOLD | Modifier::REVERSED));
    // What a level loses is in the colour of a warning, and in words.
    let at = buffer
        .content()
        .windows(5)
        .position(|cells| cells.iter().map(|cell| cell.symbol()).collect::<String>() == "lossy");
    assert_eq!(
        buffer.content()[at.expect("moderate is lossy")].fg,
        Color::Yellow
    );
    press(&mut state, KeyCode::Enter);
    pictures("levels_question", &state);
}

#[test]
fn the_mouse_selects_in_both_lists() {
    use super::super::{hit_areas::HitTarget, levels::LevelsPane};

    let mut state = chooser();
    let (_, targets) = draw_with_targets(&state, SIZES[0]);
    let all = || (0..SIZES[0].1).flat_map(|y| (0..SIZES[0].0).map(move |x| (x, y)));
    for target in [HitTarget::Row(4), HitTarget::OtherRow(3)] {
        let hit = all().any(|(x, y)| targets.at(x, y) == Some(target));
        assert!(hit, "{target:?} can be pressed on");
        feed(&mut state, Event::Click(target));
    }
    assert_eq!(state.level(), Level::Aggressive);
    assert_eq!(
        (state.levels.list, state.levels.preset),
        (LevelsPane::Presets, 3)
    );
}

#[test]
fn another_model_is_asked_about_anew() {
    let mut state = chooser();
    let effects = feed(
        &mut state,
        after(|snapshot| snapshot.model.as_mut().expect("set").name = "another".into()),
    );
    let asks = Effect::AskPlans(Level::ALL.to_vec(), PlanOptions::default());
    assert_eq!(effects, [Effect::ListMixes, asks]);
    assert!(state.levels.answers.is_empty());
}

/// The checkpoint's own weights, but rows that are rounded.
#[test]
fn nothing_is_exact_on_a_cpu_that_computes_in_bf16() {
    let mut state = chooser();
    select(&mut state, Level::Standard);
    assert!(shown(&state, (160, 50)).contains("fidelity: exact"));
    feed(
        &mut state,
        after(|snapshot| {
            let device = snapshot.device.as_mut().expect("set");
            device.compute_dtype = Some(Dtype::Bf16.into());
        }),
    );
    let screen = shown(&state, (160, 50));
    assert!(screen.contains("multiplied in bf16"), "{screen}");
    assert!(screen.contains("the checkpoint's, in bf16"), "{screen}");
    assert!(!screen.contains("fidelity: exact"), "{screen}");
}
