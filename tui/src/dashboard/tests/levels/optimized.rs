//! Level `optimized`, and the curve of loss against memory that an optimization found.

use sluice_proto::v1::{
    ListMixesResponse, LossPoint, LossPrediction, Mix, OptimizeResult, operation::Outcome,
};
use sluice_shared::mix::MixId;

use super::*;

/// An optimization of the loaded model that has ended.
fn optimized(operation_id: u64, mix: u32) -> Operation {
    let point = |step: u32| LossPoint {
        bits_per_weight: 1.5 + f64::from(step) / 4.0,
        bytes: (120 << 20) + (u64::from(step) * (8 << 20)),
        predicted_kl_nats: 2.0 * (-0.5 * f64::from(step)).exp2(),
    };
    Operation {
        operation_id,
        kind: OperationKind::Optimize.into(),
        state: OperationState::Done.into(),
        model: "sluice-demo".into(),
        outcome: Some(Outcome::Optimize(OptimizeResult {
            mix,
            bits_per_weight: 3.1,
            prediction: Some(LossPrediction {
                kl_nats: 0.21,
                gap_kl_nats: 0.001,
                uniform_kl_nats: 0.34,
                curve: (0..=20).map(point).collect(),
            }),
            measured_kl_nats: 0.12,
            measured_kl_standard_error: 0.012,
            ..Default::default()
        })),
        ..Default::default()
    }
}

/// The page after an optimization, with the mix and two fixed levels measured.
fn with_curve() -> DashboardState {
    let mut state = chooser();
    feed(&mut state, measured(v1::Level::Moderate, 0.0123));
    feed(&mut state, measured(v1::Level::Aggressive, 0.4));
    feed(
        &mut state,
        Event::Operations(vec![optimized(4, 0x3f2a_91c4)]),
    );
    let plan = full_plan(Level::Optimized, 4 << 30);
    let planned = Event::Planned {
        level: Level::Optimized,
        answer: Ok(Box::new(plan)),
    };
    feed(&mut state, planned);
    state.message = None;
    state
}

/// Level `optimized` with this mix, or the latest one, is in force.
fn mix_in_force(mix: u32) -> Event {
    let Event::Snapshot(mut snapshot) = in_force(Level::Optimized) else {
        unreachable!("it is a snapshot");
    };
    let settings = snapshot.settings.as_mut().expect("set");
    settings.options.as_mut().expect("set").mix = mix;
    Event::Snapshot(snapshot)
}

#[test]
fn the_curve_of_loss_stands_beside_the_levels() {
    let mut state = with_curve();
    select(&mut state, Level::Optimized);
    pictures("levels_curve", &state);
    state.paint.glyphs = Glyphs::Ascii;
    pictures("levels_curve_ascii", &state);
    state.paint.glyphs = Glyphs::Blocks;
    let screen = shown(&state, SIZES[0]);
    assert!(screen.contains('▀') || screen.contains('▄'), "{screen}");
}

#[test]
fn a_window_that_has_no_room_for_the_curve_drops_it() {
    let state = with_curve();
    for (size, has_room) in [
        ((100, 26), true),
        ((100, 25), false),
        ((80, 40), true),
        ((80, 39), false),
        ((100, 41), true),
        ((300, 100), true),
        ((40, 10), false),
    ] {
        let screen = shown(&state, size);
        let has_curve = screen.contains("KL in nats by device memory");
        assert_eq!(has_curve, has_room, "{size:?}: {screen}");
    }
}

#[test]
fn a_level_that_streams_is_not_on_the_curve() {
    let mut state = with_curve();
    let named = |state: &DashboardState| shown(state, SIZES[0]).contains("× aggressive");
    assert!(named(&state));
    let plan = Plan {
        streamed_bytes_per_pass: 1 << 30,
        ..full_plan(Level::Aggressive, 4 << 30)
    };
    let planned = Event::Planned {
        level: Level::Aggressive,
        answer: Ok(Box::new(plan)),
    };
    feed(&mut state, planned);
    assert!(!named(&state));
}

#[test]
fn the_words_tell_whether_the_mix_is_in_force() {
    let mut state = with_curve();
    let says = |state: &DashboardState, words: &str| {
        let screen = shown(state, SIZES[0]);
        assert!(screen.contains(words), "{words}: {screen}");
    };
    says(&state, "mix 3f2a91c4, not in force: 3.10 bits per weight");
    for (mix, words) in [
        (0x3f2a_91c4, "mix 3f2a91c4, in force"),
        (0, "mix 3f2a91c4, not in force"),
        (7, "mix 3f2a91c4, not in force"),
    ] {
        feed(&mut state, mix_in_force(mix));
        says(&state, words);
    }
}

#[test]
fn the_latest_optimization_of_the_loaded_model_counts() {
    let mut state = chooser();
    let says = |state: &DashboardState| shown(state, SIZES[0]).contains("`sluice optimize`");
    assert!(says(&state));
    let mut other = optimized(9, 9);
    other.model = "another".into();
    let mut failed = optimized(8, 8);
    failed.state = OperationState::Failed.into();
    let all = vec![optimized(5, 5), optimized(4, 4), failed, other];
    let effects = feed(&mut state, Event::Operations(all.clone()));
    assert_eq!(state.optimization().expect("known").mix.number(), 5);
    // What level `optimized` leads to has changed, and nothing else.
    assert_eq!(effects, [asks_plan_with(5), Effect::ListMixes]);
    assert!(!says(&state));
    assert_eq!(feed(&mut state, Event::Operations(all)), []);
    // A daemon that could not be asked has not forgotten.
    feed(&mut state, Event::Operations(vec![]));
    assert!(state.optimization().is_some());
}

/// The question what level `optimized` leads to with a mix.
fn asks_plan_with(mix: u32) -> Effect {
    let options = PlanOptions {
        mix: MixId::from_number(mix),
        ..PlanOptions::default()
    };
    Effect::AskPlans(vec![Level::Optimized], options)
}

/// What the daemon keeps, with the curve of an optimization.
fn kept(mixes: &[u32]) -> Event {
    let Some(Outcome::Optimize(made)) = optimized(1, 1).outcome else {
        unreachable!("it is one");
    };
    let mix = |mix: &u32| Mix {
        mix: *mix,
        bits_per_weight: made.bits_per_weight,
        prediction: made.prediction.clone(),
        measured_kl_nats: Some(made.measured_kl_nats),
        ..Default::default()
    };
    Event::Mixes(ListMixesResponse {
        model: "sluice-demo".into(),
        mixes: mixes.iter().map(mix).collect(),
    })
}

#[test]
fn a_daemon_that_was_started_again_tells_of_its_mixes() {
    let mut state = chooser();
    let has_curve =
        |state: &DashboardState| shown(state, SIZES[0]).contains("KL in nats by device memory");
    assert!(!has_curve(&state));
    assert_eq!(feed(&mut state, kept(&[3, 7])), [asks_plan_with(7)]);
    assert!(has_curve(&state));
    assert_eq!(feed(&mut state, kept(&[3, 7])), []);
    // An operation that is listed late was before that.
    feed(&mut state, Event::Operations(vec![optimized(4, 3)]));
    feed(&mut state, kept(&[3, 7]));
    let known = |state: &DashboardState| state.optimization().map(|known| known.mix.number());
    assert_eq!(known(&state), Some(7));
    // Nothing is said where no model is loaded.
    feed(&mut state, Event::Mixes(ListMixesResponse::default()));
    assert_eq!(known(&state), Some(7));
    // They were removed.
    feed(&mut state, kept(&[]));
    assert_eq!(known(&state), None);
    assert!(!has_curve(&state));
}

#[test]
fn enter_applies_the_mix_on_the_page_by_its_name() {
    let mut state = with_curve();
    let apply = |mix| {
        Effect::Apply(PlanOptions {
            level: Some(Level::Optimized),
            mix: MixId::from_number(mix),
            ..PlanOptions::default()
        })
    };
    // Another one is in force.
    feed(&mut state, mix_in_force(7));
    let planned = || Event::Planned {
        level: Level::Optimized,
        answer: Ok(Box::new(full_plan(Level::Optimized, 4 << 30))),
    };
    feed(&mut state, planned());
    select(&mut state, Level::Optimized);
    assert_eq!(press(&mut state, KeyCode::Enter), [apply(0x3f2a_91c4)]);
    // Which one is not said: it may be another that was the latest before.
    feed(&mut state, mix_in_force(0));
    feed(&mut state, planned());
    assert_eq!(press(&mut state, KeyCode::Enter), [apply(0x3f2a_91c4)]);
    feed(&mut state, mix_in_force(0x3f2a_91c4));
    feed(&mut state, planned());
    assert_eq!(press(&mut state, KeyCode::Enter), []);
    let screen = shown(&state, SIZES[0]);
    assert!(
        screen.contains("level optimized with mix 3f2a91c4 is already in force"),
        "{screen}"
    );
}
