//! Level `optimized`, and the curve of loss against memory that an optimization found.

use sluice_proto::v1::{LossPoint, LossPrediction, OptimizeResult, operation::Outcome};

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
        (0, "mix 3f2a91c4, in force"),
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
    let asks = Effect::AskPlans(vec![Level::Optimized], PlanOptions::default());
    assert_eq!(effects, [asks]);
    assert!(!says(&state));
    assert_eq!(feed(&mut state, Event::Operations(all)), []);
    // A daemon that could not be asked has not forgotten.
    feed(&mut state, Event::Operations(vec![]));
    assert!(state.optimization().is_some());
}
