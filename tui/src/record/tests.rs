use proptest::{collection::vec, option, prelude::*};
use sluice_proto::v1::{
    CanvasToken, GenerationDone, GenerationQueued, GenerationStarted, TokenState,
};

use super::*;

const MASKED: TokenState = TokenState::Masked;
const GUESS: TokenState = TokenState::Provisional;
const COMMITTED: TokenState = TokenState::Committed;

fn token(position: u32, state: TokenState, confidence: f32) -> CanvasToken {
    let is_known = state != MASKED;
    CanvasToken {
        position,
        id: is_known.then_some(position),
        piece: if is_known { b"ab".to_vec() } else { Vec::new() },
        confidence: is_known.then_some(confidence),
        state: state.into(),
        is_fresh: false,
        is_edited: false,
        logprobs: None,
    }
}

fn fresh(position: u32, confidence: f32) -> CanvasToken {
    CanvasToken {
        is_fresh: true,
        ..token(position, COMMITTED, confidence)
    }
}

fn pass(number: u32, block: u32, tokens: Vec<CanvasToken>) -> Event {
    Event::PassDone(GenerationPass {
        request_id: 7,
        passes: number,
        block,
        tokens,
        ..Default::default()
    })
}

fn block_done(block: u32, tokens: Vec<CanvasToken>) -> Event {
    Event::BlockDone(GenerationBlock {
        request_id: 7,
        block,
        passes: 2,
        tokens,
    })
}

fn queued() -> Event {
    Event::Queued(GenerationQueued {
        request_id: 7,
        ahead: 0,
    })
}

fn started(seed: u64) -> Event {
    Event::Started(GenerationStarted {
        request_id: 7,
        length: 4,
        block_length: 2,
        blocks: 2,
        seed,
        pinned: vec![CanvasToken {
            confidence: None,
            ..token(3, TokenState::Pinned, 0.0)
        }],
        ..Default::default()
    })
}

fn recorded(events: impl IntoIterator<Item = Event>) -> Recording {
    let mut recording = Recording::default();
    for kind in events {
        recording.take(kind);
    }
    recording
}

/// Two blocks of two positions; the last position is pinned.
fn story() -> Vec<Event> {
    let notice = GenerationNotice {
        request_id: 7,
        text: "half".into(),
    };
    vec![
        queued(),
        started(1),
        pass(1, 0, vec![fresh(0, 0.5), token(1, GUESS, 0.25)]),
        Event::Notice(notice),
        pass(2, 0, vec![token(0, COMMITTED, 0.5), fresh(1, 0.75)]),
        block_done(0, vec![token(0, COMMITTED, 0.5), token(1, COMMITTED, 0.75)]),
        pass(3, 1, vec![fresh(2, 1.0), token(3, TokenState::Pinned, 0.0)]),
        block_done(
            1,
            vec![token(2, COMMITTED, 1.0), token(3, TokenState::Pinned, 0.0)],
        ),
        Event::Done(GenerationDone {
            request_id: 7,
            text: Some("abababab".into()),
            ..Default::default()
        }),
    ]
}

fn states(canvas: &Canvas) -> Vec<TokenState> {
    canvas.all_tokens().iter().map(CanvasToken::state).collect()
}

fn pictures(recording: &Recording) -> String {
    let all = (0..recording.len()).map(|index| recording.picture(index));
    format!("{:?}\n{:?}", all.collect::<Vec<_>>(), recording.canvas())
}

fn written(recording: &Recording) -> Vec<u8> {
    let mut file = Vec::new();
    recording.write(&mut file).unwrap();
    file
}

#[test]
fn every_pass_can_be_seen_again() {
    let recording = recorded(story());
    assert_eq!((recording.len(), recording.is_thinned()), (3, false));
    let pinned = TokenState::Pinned;
    let first = recording.picture(0).unwrap();
    assert_eq!(states(&first), [COMMITTED, GUESS, MASKED, pinned]);
    assert_eq!(first.notices, [""; 0]);
    let second = recording.picture(1).unwrap();
    assert_eq!(states(&second), [COMMITTED, COMMITTED, MASKED, pinned]);
    assert_eq!(second.notices, ["half"]);
    assert!(second.blocks.is_empty() && second.done.is_none());
    let third = recording.picture(2).unwrap();
    assert_eq!((third.blocks.len(), third.pass.unwrap().passes), (1, 3));
    assert!(recording.picture(3).is_none());
    assert!(recording.canvas().has_ended());
    assert_eq!(recording.number(2), Some(3));
    assert_eq!(recording.index_of(2), Some(1));
    assert_eq!(recording.index_of(0), None);
    assert_eq!(recording.index_of(99), Some(2));
}

#[test]
fn the_heat_map_tells_when_each_token_was_settled() {
    let recording = recorded(story());
    let heat = recording.heat(0..4, &recording.columns(10));
    let expected = [
        [
            HeatCell::Fresh(Some(0.5)),
            HeatCell::Provisional(Some(0.25)),
            HeatCell::Masked,
            HeatCell::Pinned,
        ],
        [
            HeatCell::Committed,
            HeatCell::Fresh(Some(0.75)),
            HeatCell::Masked,
            HeatCell::Pinned,
        ],
        [
            HeatCell::Committed,
            HeatCell::Committed,
            HeatCell::Fresh(Some(1.0)),
            HeatCell::Pinned,
        ],
    ];
    assert_eq!(heat, expected);
    let second = recording.columns(3).remove(1);
    let corner = recording.heat(1..3, &[second]);
    assert_eq!(corner, [[HeatCell::Fresh(Some(0.75)), HeatCell::Masked]]);
    // One column for all: whatever was settled in any of them is new in it.
    let all = recording.heat(0..4, &recording.columns(1));
    assert_eq!(all[0][0], HeatCell::Fresh(Some(0.5)));
    assert_eq!(all[0][1], HeatCell::Fresh(Some(0.75)));
}

#[test]
fn positions_beyond_any_canvas_are_left_out() {
    let far = [0, 3, u32::MAX].map(|position| token(position, GUESS, 0.5));
    let recording = recorded([pass(1, 0, far.to_vec())]);
    assert!(recording.bytes < 1 << 20);
    let heat = recording.heat(2..4, &recording.columns(1));
    assert_eq!(heat, [[HeatCell::Masked, HeatCell::Provisional(Some(0.5))]]);
    let end = recording.heat(u32::MAX - 1..u32::MAX, &recording.columns(1));
    assert_eq!(end, [[HeatCell::Masked]]);
    let _ = pictures(&recording);
}

#[test]
fn columns_share_passes_out_evenly() {
    let recording = recorded((1..=7).map(|number| pass(number, 0, Vec::new())));
    assert_eq!(recording.columns(3), [0..2, 2..4, 4..7]);
    assert_eq!(recording.columns(9).len(), 7);
    assert!(Recording::default().columns(9).is_empty());
}

#[test]
fn a_long_run_keeps_fewer_passes_and_no_more_memory() {
    let tokens: Vec<_> = (0..64).map(|at| token(at, GUESS, 0.5)).collect();
    let mut recording = recorded([queued(), started(1)]);
    for number in 1..=20_000 {
        recording.take(pass(number, 0, tokens.clone()));
        assert!(recording.bytes <= PASSES_BYTES_MAX);
    }
    assert!(recording.is_thinned());
    assert!(recording.len() > 500, "{}", recording.len());
    let numbers: Vec<_> = recording
        .passes
        .iter()
        .map(|kept| kept.pass_number)
        .collect();
    let stride = numbers[1] - numbers[0];
    assert_eq!(numbers[0], 1);
    assert!(numbers.windows(2).all(|two| two[1] - two[0] == stride));
    assert!(stride.is_power_of_two() && 20_000 - numbers.last().unwrap() < stride);
    let latest = recording.canvas().pass.as_ref().unwrap();
    assert_eq!(latest.passes, 20_000);
    let again = load(&*written(&recording)).unwrap();
    assert_eq!(again.canvas().pass.as_ref().unwrap().passes, 20_000);
}

#[test]
fn who_joins_the_same_request_again_keeps_its_passes() {
    let mut recording = recorded(story().into_iter().take(6));
    recording.take(queued());
    assert!(recording.is_empty() && recording.canvas().started.is_none());
    // The connection broke before more was told.
    recording.take(queued());
    recording.take(started(1));
    recording.take(pass(2, 0, Vec::new()));
    recording.take(pass(3, 1, Vec::new()));
    let numbers: Vec<_> = (0..9).map_while(|index| recording.number(index)).collect();
    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn another_request_of_the_same_number_begins_anew() {
    let mut recording = recorded(story());
    recording.take(queued());
    recording.take(started(2));
    assert!(recording.is_empty() && !recording.canvas().has_ended());
}

#[test]
fn a_run_without_an_end_is_loaded_as_far_as_it_goes() {
    let file = written(&recorded(story()));
    let lines: Vec<&[u8]> = file.split_inclusive(|byte| *byte == b'\n').collect();
    let half = lines[..4].concat();
    let recording = load(&half[..half.len() - 9]).unwrap();
    assert_eq!(recording.len(), 1);
    assert!(!recording.canvas().has_ended());
}

#[test]
fn what_holds_no_run_is_refused() {
    let problem = |text: &str| load(text.as_bytes()).unwrap_err().to_string();
    let words = "it ends without an event of a generation";
    assert_eq!(problem(""), format!("line 1: {words}"));
    assert_eq!(
        problem("{\"event\":\"x\"}\n{\"event\":\"loading\"}\n"),
        format!("line 2: {words}")
    );
}

fn any_token() -> impl Strategy<Value = CanvasToken> {
    let piece = prop_oneof![
        vec(any::<u8>(), 0..6),
        any::<String>().prop_map(String::into_bytes)
    ];
    let confidence = option::of(0.0_f32..=1.0);
    (
        0..40_u32,
        any::<Option<u32>>(),
        piece,
        confidence,
        0..5,
        any::<bool>(),
    )
        .prop_map(
            |(position, id, piece, confidence, state, fresh)| CanvasToken {
                position,
                id,
                piece,
                confidence,
                state,
                is_fresh: fresh,
                is_edited: false,
                logprobs: None,
            },
        )
}

fn any_event() -> impl Strategy<Value = Event> {
    let tokens = || vec(any_token(), 0..5);
    prop_oneof![
        6 => (1..60_u32, 0..4_u32, tokens()).prop_map(|(number, block, tokens)| pass(number, block, tokens)),
        2 => (0..4_u32, tokens()).prop_map(|(block, tokens)| block_done(block, tokens)),
        1 => any::<String>().prop_map(|text| Event::Notice(GenerationNotice { request_id: 7, text })),
        1 => any::<Option<String>>().prop_map(|text| Event::Done(GenerationDone { text, ..Default::default() })),
    ]
}

/// Events as a daemon tells them: block by block, with passes that are counted.
fn any_run() -> impl Strategy<Value = Vec<Event>> {
    let order = |kind: &Event| match kind {
        Event::PassDone(pass) => (pass.block, pass.passes),
        Event::BlockDone(done) => (done.block, u32::MAX),
        Event::Notice(notice) => (notice.text.len() as u32 % 4, 30),
        _ => (u32::MAX, 0),
    };
    vec(any_event(), 0..30).prop_map(move |mut events| {
        events.sort_by_key(order);
        let passes = events.iter_mut().filter_map(|kind| match kind {
            Event::PassDone(pass) => Some(pass),
            _ => None,
        });
        for (number, pass) in (1..).zip(passes) {
            pass.passes = number;
        }
        [queued(), started(3)].into_iter().chain(events).collect()
    })
}

proptest! {
    #[test]
    fn what_was_saved_shows_the_same_pictures(events in any_run()) {
        let recording = recorded(events);
        let again = load(&*written(&recording)).expect("what was written can be read");
        prop_assert_eq!(pictures(&again), pictures(&recording));
        prop_assert_eq!(written(&again), written(&recording));
    }

    #[test]
    fn no_order_of_events_and_no_positions_do_harm(events in vec(any_event(), 0..30)) {
        let recording = recorded(events);
        let _ = pictures(&recording);
        let heat = recording.heat(0..50, &recording.columns(7));
        prop_assert!(heat.iter().all(|column| column.len() == 50));
    }

    #[test]
    fn no_file_does_harm(cut in 0..2_000_usize, put in any::<Vec<u8>>()) {
        let mut file = written(&recorded(story()));
        let cut = cut.min(file.len());
        let end = (cut + put.len()).min(file.len());
        file.splice(cut..end, put);
        if let Ok(recording) = load(&*file) {
            let _ = pictures(&recording);
        }
    }
}

#[test]
fn the_heat_map_marks_tokens_that_took_the_place_of_others() {
    let committed = |confidence| token(0, COMMITTED, confidence);
    let edited = CanvasToken {
        is_fresh: true,
        is_edited: true,
        ..committed(0.25)
    };
    let passes = [committed(0.5), edited, committed(0.25)];
    let passes = passes.into_iter().zip(1..);
    let recording = recorded(passes.map(|(token, number)| pass(number, 0, vec![token])));
    let heat = recording.heat(0..1, &recording.columns(3));
    let edit = HeatCell::Edited(Some(0.25));
    assert_eq!(heat[1..], [[edit], [HeatCell::Committed]]);
    // A column of several passes has what happened in any of them.
    assert_eq!(recording.heat(0..1, &[0..1, 1..3])[1], [edit]);
    // What was committed in it as well is new.
    let all = recording.heat(0..1, &recording.columns(1));
    assert_eq!(all, [[HeatCell::Fresh(None)]]);
}
