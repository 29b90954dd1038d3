//! The dashboard without a terminal: journeys through the update, and pictures of the view.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::{
    Terminal,
    backend::TestBackend,
    style::{Color, Modifier},
};
use sluice_proto::v1::{
    BlockDone, CanvasToken, Card, Device, Done, FinishReason, Host, Measured, MemoryKind, Model,
    ModelShape, ModelState, NoCard, Notice, Pass, Plan, Queue, Queued, RequestKind, RequestState,
    RequestSummary, Server, ServerState, Settings, Snapshot, Started, Switch, SwitchTarget,
    TokenState, generation_event::Kind,
};
use sluice_shared::level::Level;

use super::{
    event::{Effect, Event},
    keys::Mode,
    state::{Link, Own, State},
    update::update,
    view::view,
};

const SIZES: [(u16, u16); 3] = [(120, 40), (80, 24), (40, 12)];

fn state() -> State {
    State::new("/run/sluice/sluice.sock".into())
}

fn feed(state: &mut State, event: Event) -> Vec<Effect> {
    let now_ms = state.now_ms;
    update(state, event, now_ms).effects
}

fn press(state: &mut State, code: KeyCode) -> Vec<Effect> {
    feed(state, Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn write(state: &mut State, text: &str) {
    for character in text.chars() {
        press(state, KeyCode::Char(character));
    }
}

fn snapshot(requests: Vec<RequestSummary>) -> Event {
    let running = requests
        .iter()
        .filter(|row| row.state() == RequestState::Running)
        .count() as u32;
    let gib = 1 << 30;
    let kind = |kind: &str, bytes| MemoryKind {
        kind: kind.into(),
        bytes,
        peak_bytes: bytes,
    };
    Event::Snapshot(Box::new(Snapshot {
        server: Some(Server {
            version: "0.1.0".into(),
            protocol: 1,
            pid: 100,
            uptime_ms: 185_000,
            state: ServerState::Ready.into(),
            socket: "/run/sluice/sluice.sock".into(),
        }),
        device: Some(Device {
            kind: "cpu".into(),
            name: "a processor".into(),
            threads: 8,
            memory: vec![
                kind("weights", 900 << 20),
                kind("activations", 60 << 20),
                kind("head", 40 << 20),
            ],
            used_bytes: 1000 << 20,
            peak_bytes: 1200 << 20,
            ..Default::default()
        }),
        host: Some(Host {
            total_bytes: Some(32 * gib),
            available_bytes: Some(7 * gib),
            resident_bytes: Some(gib),
            resident_peak_bytes: None,
        }),
        model: Some(Model {
            name: "sluice-demo".into(),
            state: ModelState::Ready.into(),
            is_demonstration: true,
            shape: Some(ModelShape {
                parameters: 12_345_678,
                formats: vec!["bf16".into()],
                ..Default::default()
            }),
            ..Default::default()
        }),
        queue: Some(Queue {
            capacity: 16,
            waiting: requests.len() as u32 - running,
            running,
        }),
        requests,
        plan: Some(plan(Level::Standard)),
        settings: Some(Settings {
            level: "standard".into(),
            budget_bytes: 4 * gib,
            is_default_budget: true,
            ..Default::default()
        }),
        measured: Some(Measured {
            passes: 8,
            mean_pass_ms: Some(1_900.0),
            peak_bytes: Some(1200 << 20),
            ..Default::default()
        }),
        ..Default::default()
    }))
}

fn plan(level: Level) -> Plan {
    let index = Level::ALL.iter().position(|other| *other == level);
    let smaller = index.expect("one of all") as u64;
    Plan {
        level: level.name().into(),
        budget_bytes: 4 << 30,
        peak_bytes: (1200 << 20) / (smaller + 1),
        pass_ms: Some(1_800.0 / (smaller + 1) as f64),
        streamed_bytes_per_pass: u64::from(level == Level::Standard) << 30,
        is_loadable: level != Level::Mild,
        not_loadable: "this version has no lossless format yet".into(),
        ..Default::default()
    }
}

/// A request on a card; `change` says what is known of it.
fn on_card(change: impl FnOnce(&mut Device)) -> State {
    let mut state = busy();
    let rows = vec![summary(3, RequestState::Running)];
    let Event::Snapshot(mut snapshot) = snapshot(rows) else {
        unreachable!("that is what it is");
    };
    let device = snapshot.device.as_mut().expect("was set");
    let kind = |kind: &str, bytes| MemoryKind {
        kind: kind.into(),
        bytes,
        peak_bytes: bytes,
    };
    *device = Device {
        kind: "cuda".into(),
        name: "NVIDIA GeForce RTX 3060 Laptop GPU".into(),
        threads: 8,
        memory: vec![
            kind("context", 180 << 20),
            kind("weights", 900 << 20),
            kind("slots", 0),
            kind("activations", 60 << 20),
            kind("head", 0),
            kind("scratch", 40 << 20),
        ],
        used_bytes: 1180 << 20,
        peak_bytes: 1200 << 20,
        total_bytes: Some(6 << 30),
        free_bytes: Some(3 << 30),
        card: Some(Card {
            compute: "bf16".into(),
            capability: "8.6".into(),
            pci_bus_id: "0000:01:00.0".into(),
            driver_version: Some("570.00".into()),
            cuda_version: "12.8".into(),
            multiprocessors: 30,
            held_by_others_bytes: Some(1 << 30),
            bus_generation: Some(3),
            bus_generation_max: Some(4),
            bus_width: Some(8),
            bus_width_max: Some(8),
            clock_mhz: Some(1_500),
            memory_clock_mhz: Some(5_000),
            temperature_c: Some(56),
            power_w: Some(61.2),
            power_limit_w: Some(115.0),
            utilization_percent: Some(37),
            ..Default::default()
        }),
        ..Default::default()
    };
    change(device);
    feed(&mut state, Event::Snapshot(snapshot));
    state
}

/// The list of levels with all answers but the last.
fn choosing() -> State {
    let mut state = busy();
    press(&mut state, KeyCode::Tab);
    assert_eq!(press(&mut state, KeyCode::Char('l')), [Effect::AskPlans]);
    let refusal = "a budget of 4294967296 bytes is too small: level off needs at least 17179869184";
    for level in Level::ALL {
        let answer = match level {
            Level::Off => Err(refusal.to_owned()),
            Level::Auto => continue,
            other => Ok(Box::new(plan(other))),
        };
        feed(&mut state, Event::Planned { level, answer });
    }
    state
}

fn summary(request_id: u64, state: RequestState) -> RequestSummary {
    RequestSummary {
        request_id,
        kind: RequestKind::Generate.into(),
        state: state.into(),
        length: 24,
        blocks: 3,
        blocks_done: u32::from(state == RequestState::Running),
        passes: 10,
        elapsed_ms: 1_100.0,
        queued_ms: 400.0,
        ..Default::default()
    }
}

fn token(position: u32, piece: &str, state: TokenState, confidence: f32) -> CanvasToken {
    CanvasToken {
        position,
        id: (state != TokenState::Masked).then_some(position + 1),
        piece: piece.as_bytes().to_vec(),
        confidence: Some(confidence),
        state: state.into(),
        fresh: false,
    }
}

fn queued(request_id: u64) -> Kind {
    Kind::Queued(Queued {
        request_id,
        ahead: 0,
    })
}

/// The events of a request in its second block.
fn generating(request_id: u64) -> Vec<Kind> {
    use TokenState::{Committed, Masked, Pinned, Provisional};
    let block = [
        "Once ", "upon ", "a ", "time ", "a ", "river ", "ran ", "dry",
    ];
    let first: Vec<CanvasToken> = block
        .iter()
        .zip(0..)
        .map(|(word, position)| token(position, word, Committed, 0.9))
        .collect();
    let mut fresh = token(9, " so", Committed, 0.2);
    fresh.fresh = true;
    let second = vec![
        token(8, ",", Committed, 0.9),
        fresh,
        token(10, " the", Provisional, 0.4),
        token(11, "", Masked, 0.0),
        token(12, " \x1b[2Jmill", Pinned, 0.0),
        token(13, "", Masked, 0.0),
        token(14, " stood", Provisional, 0.1),
        token(15, "", Masked, 0.0),
    ];
    vec![
        queued(request_id),
        Kind::Started(Started {
            request_id,
            prompt_tokens: 12,
            length: 24,
            block_length: 8,
            blocks: 3,
            steps: 24,
            prompt_text: b"a prompt".to_vec(),
            exact: true,
            ..Default::default()
        }),
        Kind::BlockDone(BlockDone {
            request_id,
            block: 0,
            passes: 8,
            tokens: first,
        }),
        Kind::Pass(Pass {
            request_id,
            pass: 10,
            block: 1,
            pass_in_block: 2,
            tokens: second,
            committed: 11,
            rows: 36,
            head_rows: 6,
            pass_ms: 12.0,
            elapsed_ms: 123.0,
            exact: true,
            ..Default::default()
        }),
    ]
}

fn request(request_id: u64, kind: Kind) -> Event {
    Event::Request {
        request_id,
        kind: Box::new(kind),
    }
}

fn idle() -> State {
    let mut state = state();
    feed(&mut state, Event::Connected);
    feed(&mut state, snapshot(vec![]));
    state
}

fn busy() -> State {
    let mut state = idle();
    write(&mut state, "Tell me a story.");
    press(&mut state, KeyCode::Enter);
    for kind in generating(3) {
        feed(&mut state, request(3, kind));
    }
    let rows = vec![
        summary(3, RequestState::Running),
        summary(4, RequestState::Queued),
    ];
    feed(&mut state, snapshot(rows));
    state
}

fn lost() -> State {
    let mut state = busy();
    write(&mut state, "a draft");
    let event = Event::Lost {
        cause: "can't reach sluiced at /run/sluice/sluice.sock: no such socket".into(),
        retry_ms: 4_000,
    };
    feed(&mut state, event);
    feed(&mut state, Event::OwnFailed("lost sluiced".into()));
    update(&mut state, Event::Tick, 1_500);
    state.message = None;
    state
}

fn draw(state: &State, (columns, rows): (u16, u16), colour: bool) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("infallible");
    terminal
        .draw(|frame| view(frame, state, colour))
        .expect("infallible");
    terminal
}

fn pictures(name: &str, state: &State) {
    for size in SIZES {
        let terminal = draw(state, size, true);
        let name = format!("{name}_{}x{}", size.0, size.1);
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!(name, terminal.backend());
        });
    }
}

#[test]
fn connecting() {
    pictures("connecting", &state());
}

#[test]
fn idle_with_a_model() {
    pictures("idle", &idle());
}

#[test]
fn a_request_in_its_second_block() {
    pictures("generating", &busy());
}

#[test]
fn a_card_that_computes() {
    pictures("card", &on_card(|_| {}));
}

#[test]
fn a_card_of_which_little_is_known_shows_no_zeros() {
    let state = on_card(|device| {
        device.free_bytes = None;
        device.memory.retain(|kind| kind.kind != "context");
        device.card = Some(Card {
            compute: "f16".into(),
            capability: "7.5".into(),
            ..Default::default()
        });
    });
    pictures("card_unknown", &state);
}

#[test]
fn a_cpu_that_computes_for_want_of_a_card() {
    let state = on_card(|device| {
        device.kind = "cpu".into();
        device.card = None;
        device.no_card = Some(NoCard {
            reason: "NVIDIA's driver finds no card".into(),
            hint: "see that `nvidia-smi` lists the card".into(),
        });
    });
    pictures("no_card", &state);
    let terminal = draw(&state, (120, 40), true);
    let buffer = terminal.backend().buffer();
    let row = (0..40).find(|y| {
        (1..8).all(|x| buffer[(x, *y)].symbol() == &"no card"[usize::from(x) - 1..usize::from(x)])
    });
    let cell = &buffer[(1, row.expect("it is said"))];
    assert_eq!((cell.fg, cell.modifier), (Color::Reset, Modifier::DIM));
}

#[test]
fn where_rows_are_short_details_go_before_the_level_does() {
    for (rows, kept) in [(30, "context"), (24, "memory"), (20, "37 % busy")] {
        let screen = draw(&on_card(|_| {}), (100, rows), true);
        let screen = screen.backend().to_string();
        for words in ["host", "NVIDIA", "cuda: 1.15 GiB", "level", "a pass", kept] {
            assert!(screen.contains(words), "{words} in {rows} rows: {screen}");
        }
    }
}

#[test]
fn a_lost_connection_keeps_what_was_known() {
    pictures("lost", &lost());
}

#[test]
fn levels_with_what_each_would_lead_to() {
    pictures("levels", &choosing());
}

#[test]
fn help_over_everything() {
    let mut state = idle();
    press(&mut state, KeyCode::Char('?'));
    pictures("help", &state);
    for _ in 0..99 {
        press(&mut state, KeyCode::Down);
    }
    let screen = draw(&state, (40, 12), true).backend().to_string();
    assert!(
        screen.contains("Ctrl-Z"),
        "the last keys can be reached: {screen}"
    );
    press(&mut state, KeyCode::Esc);
    assert_eq!(state.mode, Mode::Prompt);
    write(&mut state, "why?");
    assert_eq!((state.mode, state.input.value()), (Mode::Prompt, "why?"));
}

#[test]
fn a_screen_too_small_says_what_it_needs() {
    let terminal = draw(&idle(), (39, 10), true);
    let screen = terminal.backend().to_string();
    assert!(
        screen.contains("sluice needs 40x10, this is 39x10"),
        "{screen}"
    );
    for size in [(1, 1), (0, 0), (300, 3), (40, 10), (100, 20), (99, 20)] {
        draw(&busy(), size, true);
    }
}

#[test]
fn states_of_a_token_differ_in_style() {
    let state = busy();
    let style = |colour: bool, word: &str| {
        let terminal = draw(&state, (120, 40), colour);
        let buffer = terminal.backend().buffer().clone();
        // The legend has the same words, so the canvas's own row is looked for.
        let row = (0..40)
            .find(|y| {
                (0..120)
                    .map(|x| buffer[(x, *y)].symbol())
                    .collect::<String>()
                    .contains("Once upon")
            })
            .expect("the canvas is drawn");
        let text: Vec<&str> = (0..120).map(|x| buffer[(x, row)].symbol()).collect();
        let at = (0..120 - word.len())
            .find(|x| text[*x..*x + word.len()].concat() == word)
            .unwrap_or_else(|| panic!("{word} in {}", text.concat()));
        let cell = &buffer[(at as u16, row)];
        (cell.fg, cell.modifier)
    };
    assert_eq!(style(true, "upon"), (Color::Reset, Modifier::empty()));
    assert_eq!(style(true, "so"), (Color::Red, Modifier::BOLD));
    assert_eq!(
        style(true, "the"),
        (Color::Reset, Modifier::DIM | Modifier::ITALIC)
    );
    assert_eq!(style(true, "mill"), (Color::Cyan, Modifier::UNDERLINED));
    assert_eq!(style(false, "so"), (Color::Reset, Modifier::BOLD));
    assert_eq!(style(false, "mill"), (Color::Reset, Modifier::UNDERLINED));
}

#[test]
fn a_selection_and_a_loss_stand_out() {
    let mut state = busy();
    press(&mut state, KeyCode::Tab);
    let terminal = draw(&state, (120, 40), true);
    let buffer = terminal.backend().buffer();
    let mark = buffer.content().iter().find(|cell| cell.symbol() == "▸");
    assert!(mark.expect("a selection").modifier.contains(Modifier::BOLD));
    let terminal = draw(&lost(), (120, 40), true);
    let cell = &terminal.backend().buffer()[(8, 0)];
    assert_eq!((cell.symbol(), cell.fg), ("l", Color::Red));
    assert!(cell.modifier.contains(Modifier::BOLD));
}

#[test]
fn no_colour_means_none_anywhere() {
    for state in [state(), busy(), lost(), choosing()] {
        let terminal = draw(&state, (120, 40), false);
        let cells = terminal.backend().buffer().content();
        assert!(
            cells
                .iter()
                .all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset)
        );
    }
}

#[test]
fn control_characters_never_reach_the_screen() {
    let mut state = busy();
    let notice = Kind::Notice(Notice {
        request_id: 3,
        text: "beware\x1b[2J\u{9b}".into(),
    });
    feed(&mut state, request(3, notice));
    feed(&mut state, Event::Paste("a\x1b[2Jb\r\nc".into()));
    for size in SIZES {
        let terminal = draw(&state, size, true);
        let cells = terminal.backend().buffer().content();
        let is_safe = |symbol: &str| !symbol.chars().any(char::is_control);
        assert!(cells.iter().all(|cell| is_safe(cell.symbol())));
    }
}

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
