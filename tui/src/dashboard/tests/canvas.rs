//! The canvas page: passes seen again, the heat map, and runs in files.

use std::path::PathBuf;

use ratatui::style::{Color, Modifier};

use super::{
    super::{
        hit_areas::HitTarget,
        reel::{CanvasView, OpenedRun},
        state::DaemonLink,
    },
    *,
};
use crate::record::{Recording, Runs};

const WORDS: [&str; 24] = [
    "Once", " upon", " a", " time", " a", " river", " ran", " dry", ",", " so", " the", " mill",
    " stood", " still", ".", "\n", "The", " miller", " waited", " for", " rain", " and", " caf",
    "é",
];

/// A run of three blocks of eight positions; each pass commits two of them, the surest first. Position 12 is pinned.
fn run(request_id: u64, passes: u32) -> Vec<WireEvent> {
    use TokenState::{Committed, Masked, Pinned, Provisional};
    let mut events = vec![
        queued(request_id),
        WireEvent::Started(GenerationStarted {
            request_id,
            prompt_tokens: 12,
            length: 24,
            block_length: 8,
            blocks: 3,
            diffusion: Some(DiffusionOptions {
                steps: Some(12),
                ..Default::default()
            }),
            prompt_text: b"a prompt".to_vec(),
            pinned: vec![CanvasToken {
                confidence: None,
                ..token(12, WORDS[12], Pinned, 0.0)
            }],
            model: "sluice-demo".into(),
            is_exact: true,
            ..Default::default()
        }),
    ];
    // In each block the positions are committed from its end.
    let tokens = |block: u32, pass_in_block: u32| -> Vec<CanvasToken> {
        let at = |offset: u32| {
            let position = block * 8 + offset;
            let turn = (7 - offset) / 2 + 1;
            let word = WORDS[position as usize];
            // Any figures that differ from one position to the next and grow with the passes.
            let sure = 0.1 + 0.05 * pass_in_block as f32 + 0.01 * (position * 37 % 70) as f32;
            if position == 12 {
                return CanvasToken {
                    confidence: None,
                    ..token(position, word, Pinned, 0.0)
                };
            }
            match turn {
                turn if turn <= pass_in_block => CanvasToken {
                    is_fresh: turn == pass_in_block,
                    ..token(position, word, Committed, sure)
                },
                turn if turn > pass_in_block + 2 => CanvasToken {
                    confidence: None,
                    ..token(position, "", Masked, 0.0)
                },
                _ => token(position, word, Provisional, sure),
            }
        };
        (0..8).map(at).collect()
    };
    for number in 1..=passes {
        let (block, pass_in_block) = ((number - 1) / 4, (number - 1) % 4 + 1);
        events.push(WireEvent::PassDone(GenerationPass {
            request_id,
            passes: number,
            block,
            passes_in_block: pass_in_block,
            tokens: tokens(block, pass_in_block),
            committed_positions: number * 2,
            rows: 36,
            lm_head_rows: 6,
            pass_ms: 12.0,
            elapsed_ms: 12.5 * f64::from(number),
            is_exact: true,
            ..Default::default()
        }));
        if pass_in_block == 4 {
            events.push(WireEvent::BlockDone(GenerationBlock {
                request_id,
                block,
                passes: 4,
                tokens: tokens(block, 4),
            }));
        }
    }
    events
}

/// A request that has thought `steps` of 16 steps and written nothing.
fn thinking(request_id: u64, steps: u32) -> Vec<WireEvent> {
    let mut events = run(request_id, 0);
    let thought = |step: u32| {
        let share = (-f64::from(step) / 4.0).exp();
        WireEvent::Thought(GenerationThought {
            request_id,
            step,
            steps_max: 16,
            nll: 40.0 + 30.0 * share,
            kl: 4.0 * (1.0 - share),
            tokens: 11,
            pass_ms: 30.0,
            elapsed_ms: 30.0 * f64::from(step + 1),
            is_last: step == 16,
            ..Default::default()
        })
    };
    events.extend((0..=steps).map(thought));
    events
}

/// A request that has taken `steps` of 25 steps of sampling its prior.
fn sampling(request_id: u64, steps: u32) -> Vec<WireEvent> {
    let mut events = run(request_id, 0);
    let step = |step: u32| {
        WireEvent::Thought(GenerationThought {
            request_id,
            step,
            steps_max: 25,
            noise_level: Some(match step {
                25 => 0.0,
                step => 80.0 * (-f64::from(step) / 2.5).exp(),
            }),
            pass_ms: 30.0,
            elapsed_ms: 30.0 * f64::from(step),
            is_last: step == 25,
            ..Default::default()
        })
    };
    events.extend((1..=steps).map(step));
    events
}

fn thought_run(request_id: u64) -> Vec<WireEvent> {
    let mut events = thinking(request_id, 16);
    events.extend(whole_run(request_id).split_off(2));
    events
}

fn whole_run(request_id: u64) -> Vec<WireEvent> {
    let mut events = run(request_id, 12);
    events.push(WireEvent::Done(GenerationDone {
        request_id,
        finish_reason: FinishReason::Length.into(),
        is_truncated: true,
        text: Some(WORDS.concat()),
        text_tokens: 24,
        generated_tokens: 24,
        filled_positions: 24,
        passes: 12,
        elapsed_ms: 150.0,
        is_exact: true,
        ..Default::default()
    }));
    events
}

/// The canvas page with our own request on it.
fn watching(events: Vec<WireEvent>) -> DashboardState {
    let mut state = idle();
    state.runs = Runs {
        folder: PathBuf::from("/home/ada/.local/state/sluice/runs"),
        began_s: 1_767_323_045,
    };
    write(&mut state, "Tell me a story.");
    press(&mut state, KeyCode::Enter);
    for kind in events {
        feed(&mut state, own(3, kind));
    }
    press(&mut state, KeyCode::Tab);
    press(&mut state, KeyCode::Char('3'));
    assert_eq!((state.page, state.mode()), (Page::Canvas, Mode::Page));
    state
}

fn letter(state: &mut DashboardState, letter: char) -> Vec<Effect> {
    let effects = press(state, KeyCode::Char(letter));
    state.message = None;
    effects
}

fn opened() -> Box<OpenedRun> {
    let mut recording = Recording::default();
    for kind in whole_run(7) {
        recording.take(kind);
    }
    let name = "stories/river.jsonl".to_owned();
    Box::new(OpenedRun { name, recording })
}

/// As `sluice replay` begins, without a daemon.
fn replayed() -> DashboardState {
    let mut state = state();
    let name = "stories/river.jsonl".to_owned();
    state.link = DaemonLink::Replay { name };
    feed(&mut state, Event::Opened(opened()));
    state
}

#[test]
fn a_canvas_that_resolves() {
    pictures("canvas_live", &watching(run(3, 6)));
}

#[test]
fn a_token_that_took_the_place_of_another() {
    let mut events = run(3, 6);
    for kind in &mut events {
        match kind {
            WireEvent::Started(started) => {
                let diffusion = started.diffusion.get_or_insert_default();
                diffusion.policy = Some(CommitPolicy {
                    name: "edit".into(),
                    ..Default::default()
                });
            }
            // The latest pass alone.
            WireEvent::PassDone(pass) if pass.passes == 6 => {
                let token = &mut pass.tokens[7];
                token.piece = b" went".to_vec();
                (token.is_fresh, token.is_edited) = (true, true);
            }
            _ => {}
        }
    }
    let state = watching(events);
    pictures("canvas_edited", &state);
    // Told apart by more than colour, in the text and in the map's labels, and by the figures.
    let screen = draw(&state, SIZES[0]);
    let buffer = screen.backend().buffer();
    let edited = buffer.content().iter();
    let reversed = edited.filter(|cell| cell.modifier == Modifier::REVERSED);
    let text: String = reversed.map(|cell| cell.symbol()).collect();
    assert_eq!(text, " went wentedited");
    let screen = shown(&state, (160, 50));
    assert!(screen.contains("1 new, 1 edited"), "{screen}");
}

#[test]
fn a_request_that_thinks() {
    pictures("canvas_thinking", &watching(thinking(3, 7)));
}

#[test]
fn a_request_that_samples_its_prior() {
    pictures("canvas_sampling", &watching(sampling(3, 14)));
    // What follows takes its place, and a saved run has both.
    let mut events = sampling(7, 25);
    events.extend(whole_run(7).split_off(2));
    let screen = shown(&watching(events.clone()), SIZES[0]);
    assert!(screen.contains("sampled the prior in 25 steps"), "{screen}");
    let mut recording = Recording::default();
    for kind in sampling(7, 25)
        .into_iter()
        .chain(thinking(7, 3).split_off(2))
    {
        recording.take(kind);
    }
    let mut file = Vec::new();
    recording.write(&mut file).unwrap();
    let recording = crate::record::load(&file[..]).unwrap();
    let canvas = recording.canvas();
    assert_eq!((canvas.samples.len(), canvas.thoughts.len()), (25, 4));
}

#[test]
fn a_request_that_has_thought() {
    pictures("canvas_thought", &watching(thought_run(3)));
}

#[test]
fn thoughts_stay_with_earlier_passes_and_with_saved_runs() {
    let mut state = watching(thought_run(3));
    press(&mut state, KeyCode::Home);
    assert_eq!(state.reel.at, Some(1));
    for size in [SIZES[0], SIZES[1]] {
        let screen = shown(&state, size);
        assert!(screen.contains("thoughts 0.357"), "{screen}");
    }
    let mut recording = Recording::default();
    for kind in thinking(7, 16) {
        recording.take(kind);
    }
    let mut file = Vec::new();
    recording.write(&mut file).unwrap();
    let recording = crate::record::load(&file[..]).unwrap();
    let name = "thoughts.jsonl".to_owned();
    let opened = Box::new(OpenedRun { name, recording });
    feed(&mut state, Event::Opened(opened));
    let screen = shown(&state, SIZES[0]);
    assert!(screen.contains("thought for 16 steps"), "{screen}");
    // Who cancels it sees how far it got.
    let mut state = watching(thinking(3, 7));
    feed(&mut state, own_failed("cancelled"));
    let screen = shown(&state, SIZES[1]);
    assert!(screen.contains("failed: cancelled"), "{screen}");
    assert!(screen.contains("thoughts "), "{screen}");
}

#[test]
fn an_earlier_pass() {
    let mut state = watching(whole_run(3));
    letter(&mut state, 'm');
    assert_eq!(state.reel.view, CanvasView::Text);
    for _ in 0..7 {
        press(&mut state, KeyCode::Left);
    }
    assert_eq!(state.reel.at, Some(6));
    pictures("canvas_scrubbed", &state);
}

#[test]
fn the_heat_map_alone() {
    let mut state = watching(whole_run(3));
    letter(&mut state, 'm');
    letter(&mut state, 'm');
    assert_eq!(state.reel.view, CanvasView::Heat);
    press(&mut state, KeyCode::Home);
    for _ in 0..8 {
        letter(&mut state, 'l');
    }
    pictures("canvas_heat", &state);
}

#[test]
fn text_and_heat_map_together() {
    let mut state = watching(whole_run(3));
    press(&mut state, KeyCode::Left);
    pictures("canvas_both", &state);
}

#[test]
fn a_run_without_a_daemon() {
    let mut state = replayed();
    update(&mut state, Event::Tick, 400);
    pictures("canvas_replay", &state);
}

#[test]
fn left_and_right_step_through_the_passes_and_end_at_the_latest() {
    let mut state = watching(run(3, 6));
    press(&mut state, KeyCode::Right);
    assert_eq!(state.reel.at, None);
    // The latest is the picture of the last pass, so that one back shows another.
    press(&mut state, KeyCode::Left);
    assert_eq!(state.reel.at, Some(5));
    letter(&mut state, 'h');
    letter(&mut state, 'l');
    press(&mut state, KeyCode::Right);
    assert_eq!(state.reel.at, None);
    press(&mut state, KeyCode::Home);
    press(&mut state, KeyCode::Left);
    assert_eq!(state.reel.at, Some(1));
    // More passes come, and the one that is seen stays.
    for kind in run(3, 9).split_off(9) {
        feed(&mut state, own(3, kind));
    }
    assert_eq!(state.reel.at, Some(1));
    press(&mut state, KeyCode::End);
    assert_eq!(state.reel.at, None);
    assert!(shown(&state, SIZES[1]).contains("pass 9 of 9"));
    press(&mut state, KeyCode::Home);
    press(&mut state, KeyCode::Esc);
    assert_eq!(state.reel.at, None);
}

#[test]
fn space_plays_to_the_end_at_ten_passes_a_second() {
    let mut state = watching(whole_run(3));
    letter(&mut state, ' ');
    assert_eq!(state.reel.at, Some(1));
    let seen: Vec<_> = (1..=5)
        .map(|tick| {
            update(&mut state, Event::Tick, tick * 100);
            state.reel.at
        })
        .collect();
    assert_eq!(seen, [Some(2), Some(3), Some(4), Some(5), Some(6)]);
    letter(&mut state, ' ');
    assert!(!update(&mut state, Event::Tick, 700).changed);
    assert_eq!(state.reel.at, Some(6));
    letter(&mut state, ' ');
    for tick in 8..30 {
        update(&mut state, Event::Tick, tick * 100);
    }
    assert_eq!((state.reel.at, state.reel.next_at_ms), (None, None));
    assert!(shown(&state, SIZES[1]).contains("ended"));
}

#[test]
fn the_mouse_chooses_a_pass_on_the_line_and_on_the_map() {
    let mut state = watching(whole_run(3));
    let size = SIZES[0];
    let (_, targets) = draw_with_targets(&state, size);
    let passes = |row: u16| -> Vec<usize> {
        let hit = |x| match targets.at(x, row) {
            Some(HitTarget::Pass(index)) => Some(index),
            _ => None,
        };
        (0..size.0).filter_map(hit).collect()
    };
    let line = passes(size.1 - 3);
    assert_eq!((line.first(), line.last()), (Some(&0), Some(&11)));
    assert!(line.is_sorted());
    let map = passes(10);
    assert_eq!(map.len(), 24, "each pass is two columns wide");
    feed(&mut state, Event::Click(HitTarget::Pass(4)));
    assert_eq!(state.reel.at, Some(5));
}

#[test]
fn what_is_saved_is_asked_for_on_the_command_line() {
    let mut state = watching(whole_run(3));
    assert_eq!(press(&mut state, KeyCode::Char('s')), []);
    let file = "/home/ada/.local/state/sluice/runs/3-20260102-030405.jsonl";
    assert_eq!(state.command.value(), format!("save {file}"));
    let effects = press(&mut state, KeyCode::Enter);
    let [Effect::Save(path, recording)] = &effects[..] else {
        panic!("{effects:?}");
    };
    assert_eq!((path, recording.len()), (&PathBuf::from(file), 12));
    let mut state = idle();
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Char('3'));
    press(&mut state, KeyCode::Char('s'));
    let message = state.message.clone().expect("told");
    assert!(message.is_error && message.text.contains("no run"));
}

#[test]
fn an_opened_run_stays_until_it_is_left() {
    let mut state = watching(run(3, 6));
    letter(&mut state, ':');
    write(&mut state, "open river.jsonl");
    let effects = press(&mut state, KeyCode::Enter);
    assert_eq!(effects, [Effect::Open("river.jsonl".into())]);
    feed(&mut state, Event::Opened(opened()));
    assert_eq!((state.page, state.reel.at), (Page::Canvas, Some(1)));
    let screen = shown(&state, SIZES[1]);
    assert!(screen.contains("Saved run stories/river.jsonl"), "{screen}");
    // Requests come and go meanwhile.
    for kind in whole_run(3).split_off(9) {
        feed(&mut state, own(3, kind));
    }
    feed(
        &mut state,
        snapshot(vec![summary(9, OperationState::Running)]),
    );
    assert_eq!((state.requests.selected, state.reel.at), (Some(3), Some(1)));
    letter(&mut state, ']');
    assert_eq!((state.opened.is_some(), state.reel.at), (false, None));
    // Without a daemon there is nothing to go back to.
    let mut state = replayed();
    press(&mut state, KeyCode::Esc);
    letter(&mut state, '[');
    assert!(state.opened.is_some());
}

#[test]
fn classes_of_confidence_differ_without_colour() {
    let look = |colour: bool, word: &str| {
        let mut state = watching(run(3, 6));
        state.paint = Paint::new(Theme::Terminal, Glyphs::Braille, colour);
        let terminal = draw(&state, SIZES[1]);
        let buffer = terminal.backend().buffer();
        let mut rows = buffer.content().chunks(usize::from(SIZES[1].0));
        rows.find_map(|row| {
            let text: Vec<&str> = row.iter().map(|cell| cell.symbol()).collect();
            let at = (0..text.len() - word.len())
                .find(|at| text[*at..*at + word.len()].concat() == word)?;
            Some((row[at].fg, row[at].modifier))
        })
        .expect("it is drawn")
    };
    let bold = Modifier::BOLD;
    assert_eq!(
        look(true, "likely <0.7"),
        (Color::Yellow, bold | Modifier::ITALIC)
    );
    let classes = [
        "new ",
        "likely <0.7",
        "unsure <0.3",
        "committed",
        "guess",
        "pinned",
    ];
    let looks = classes.map(|word| look(false, word));
    for (index, a) in looks.iter().enumerate() {
        assert_eq!(a.0, Color::Reset);
        assert!(!looks[index + 1..].contains(a), "{}", classes[index]);
    }
}

#[test]
fn every_size_and_every_shape_can_be_drawn() {
    let mut empty = OpenedRun {
        name: "x\x1b[2J".into(),
        recording: Recording::default(),
    };
    empty.recording.take(queued(1));
    for mut state in [
        watching(run(3, 1)),
        watching(whole_run(3)),
        watching(thought_run(3)),
        replayed(),
    ] {
        for _ in 0..3 {
            letter(&mut state, 'm');
            for size in [
                (40, 10),
                (41, 20),
                (99, 31),
                (120, 20),
                (300, 90),
                (120, 11),
            ] {
                state.paint.glyphs = Glyphs::Ascii;
                let terminal = draw(&state, size);
                let cells = terminal.backend().buffer().content();
                assert!(cells.iter().all(|cell| cell.symbol().is_ascii()));
            }
            if state.reel.view != CanvasView::Text {
                let legend = "_ to # guess  @ new  O <0.7  o <0.3  - committed  P pinned";
                assert!(shown(&state, SIZES[0]).contains(legend));
            }
        }
        feed(&mut state, Event::Opened(Box::new(empty.clone())));
        letter(&mut state, ' ');
        press(&mut state, KeyCode::Left);
        assert_eq!((state.reel.at, state.reel.next_at_ms), (None, None));
        for size in SIZES {
            assert!(shown(&state, size).contains("no pass yet"));
        }
    }
}

#[test]
fn scrolling_ends_where_the_text_begins() {
    let mut state = watching(run(3, 12));
    letter(&mut state, 'm');
    shown(&state, SIZES[2]);
    for _ in 0..50 {
        press(&mut state, KeyCode::PageUp);
    }
    let top = shown(&state, SIZES[2]);
    press(&mut state, KeyCode::Down);
    assert_eq!(top == shown(&state, SIZES[2]), state.reel.scroll == 0);
    // Where all of it is shown there is nothing to scroll.
    shown(&state, SIZES[0]);
    press(&mut state, KeyCode::PageUp);
    assert_eq!(state.reel.scroll, 0);
}

#[test]
fn a_run_that_plays_goes_on_where_it_was_after_a_pause() {
    let mut state = watching(whole_run(3));
    letter(&mut state, ' ');
    update(&mut state, Event::Tick, 60_000);
    assert_eq!(state.reel.at, Some(2));
    update(&mut state, Event::Tick, 60_100);
    assert_eq!(state.reel.at, Some(3));
}

#[test]
fn without_a_run_nothing_plays() {
    let mut state = watching(whole_run(3));
    letter(&mut state, ' ');
    state.requests.recordings.clear();
    state.requests.selected = None;
    assert!(update(&mut state, Event::Tick, 200).changed);
    assert_eq!((state.reel.at, state.reel.next_at_ms), (None, None));
    assert!(!update(&mut state, Event::Tick, 400).changed);
}
