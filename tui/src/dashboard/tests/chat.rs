//! Conversations, words written anew and the form: journeys and pictures.

use ratatui::{buffer::Buffer, style::Modifier};
use sluice_proto::v1::{ChatMessage, GenerateRequest, TextEdit, generate_request::Input};

use super::*;

const ANSWER: &str = "Once upon a time a river ran dry, and the mill stood still.\n\nThe end.";

/// The chat page, with the prompt line open.
pub(super) fn chatting() -> DashboardState {
    let mut state = idle();
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Char('4'));
    let Event::Snapshot(mut next) = snapshot(vec![]) else {
        unreachable!("it is a snapshot");
    };
    let model = next.model.as_mut().expect("given");
    let shape = model.shape.as_mut().expect("given");
    shape.kind = ModelKind::MaskedDiffusion.into();
    shape.context_length = 4096;
    feed(&mut state, Event::Snapshot(next));
    press(&mut state, KeyCode::Char('i'));
    state
}

/// Sends a prompt, and gives what was sent.
pub(super) fn send(state: &mut DashboardState, prompt: &str) -> GenerateRequest {
    write(state, prompt);
    sent(press(state, KeyCode::Enter))
}

fn sent(effects: Vec<Effect>) -> GenerateRequest {
    match effects.into_iter().next() {
        Some(Effect::Generate { request, .. }) => *request,
        other => panic!("{other:?}"),
    }
}

fn messages(request: &GenerateRequest) -> Vec<&ChatMessage> {
    match &request.input {
        Some(Input::Chat(chat)) => chat.messages.iter().collect(),
        other => panic!("{other:?}"),
    }
}

fn ends(state: &mut DashboardState, request_id: u64, text: &str, finish: FinishReason) {
    feed(state, own(request_id, queued(request_id)));
    let done = WireEvent::Done(GenerationDone {
        request_id,
        finish_reason: finish.into(),
        is_truncated: finish == FinishReason::Length,
        text: Some(text.into()),
        text_tokens: 18,
        generated_tokens: 18,
        filled_positions: 18,
        passes: 12,
        elapsed_ms: 1_234.0,
        seed: 42,
        is_exact: true,
        ..Default::default()
    });
    feed(state, own(request_id, done));
}

/// A conversation of two turns, with the keys on the page.
fn answered() -> DashboardState {
    let mut state = chatting();
    send(&mut state, "Tell me a story.");
    ends(&mut state, 5, ANSWER, FinishReason::Eos);
    press(&mut state, KeyCode::Esc);
    state
}

fn texts(state: &DashboardState) -> Vec<&str> {
    let turns = state.chat.conversation().turns.iter();
    turns.map(|turn| turn.text.as_str()).collect()
}

fn told(state: &DashboardState) -> String {
    state.message.clone().expect("something is told").text
}

/// An answer of which "river ran dry, and" is chosen.
fn choosing_words() -> DashboardState {
    let mut state = answered();
    press(&mut state, KeyCode::Char('e'));
    for _ in 0..5 {
        press(&mut state, KeyCode::Right);
    }
    press(&mut state, KeyCode::Char(' '));
    for _ in 0..3 {
        press(&mut state, KeyCode::Char('l'));
    }
    state
}

fn edit(request: &GenerateRequest) -> &TextEdit {
    match &request.input {
        Some(Input::Edit(edit)) => edit,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_conversation() {
    let mut state = answered();
    pictures("chat", &state);
    press(&mut state, KeyCode::Char('k'));
    assert_eq!(state.chat.selected, Some(1));
    press(&mut state, KeyCode::Char('k'));
    let screen = shown(&state, SIZES[1]);
    assert!(screen.contains("▸ you"), "{screen}");
    press(&mut state, KeyCode::Char('j'));
    press(&mut state, KeyCode::Char('j'));
    assert_eq!(state.chat.selected, None);
}

#[test]
fn an_answer_on_its_way() {
    let mut state = answered();
    press(&mut state, KeyCode::Char('i'));
    let request_sent = send(&mut state, "And then?");
    assert_eq!(messages(&request_sent).len(), 3);
    for kind in generating(6) {
        feed(&mut state, own(6, kind));
    }
    pictures("chat_running", &state);
}

#[test]
fn several_conversations() {
    let mut state = answered();
    press(&mut state, KeyCode::Char('n'));
    press(&mut state, KeyCode::Char('i'));
    send(&mut state, "How do I bake bread?\x1b[2J");
    ends(&mut state, 6, "With flour.", FinishReason::Length);
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Char('n'));
    press(&mut state, KeyCode::Char('['));
    state.message = None;
    pictures("conversations", &state);
    press(&mut state, KeyCode::Char('['));
    assert_eq!(texts(&state), ["Tell me a story.", ANSWER]);
    press(&mut state, KeyCode::Char('d'));
    assert_eq!(state.mode(), Mode::Confirm);
    press(&mut state, KeyCode::Char('y'));
    assert_eq!(state.chat.conversations.len(), 2);
    assert_eq!(texts(&state)[1], "With flour.");
}

#[test]
fn an_answer_goes_to_the_conversation_that_asked_for_it() {
    let mut state = answered();
    press(&mut state, KeyCode::Char('i'));
    send(&mut state, "And then?");
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Char('n'));
    ends(&mut state, 6, "Nothing.", FinishReason::Eos);
    assert!(texts(&state).is_empty());
    press(&mut state, KeyCode::Char('['));
    assert_eq!(texts(&state)[2..], ["And then?", "Nothing."]);
}

#[test]
fn a_refused_prompt_is_no_turn_and_a_full_context_has_a_way_out() {
    let mut state = answered();
    press(&mut state, KeyCode::Char('i'));
    send(&mut state, "And then?");
    let refusal = "a prompt of 90 tokens and a length of 9 exceed the model's context length of 64";
    feed(&mut state, own_failed(refusal));
    assert_eq!(texts(&state).len(), 2);
    assert_eq!(state.prompt.value(), "And then?");
    assert!(told(&state).contains("n begins a new conversation"));
}

#[test]
fn prompts_that_waited_for_a_refused_one_come_back_with_it() {
    for is_refused in [true, false] {
        let mut state = chatting();
        send(&mut state, "one");
        write(&mut state, "two");
        assert_eq!(press(&mut state, KeyCode::Enter), []);
        let effects = match is_refused {
            true => feed(&mut state, own_failed("no")),
            false => {
                feed(&mut state, own(6, queued(6)));
                feed(&mut state, own(6, stopped(6)))
            }
        };
        let is_sent = |effect: &Effect| matches!(effect, Effect::Generate { .. });
        assert!(!effects.iter().any(is_sent), "{effects:?}");
        assert_eq!(state.prompt.value(), "one\n\ntwo");
        assert!(state.chat.waiting.is_empty());
    }
    // Beside another that is being written, it is told where they are.
    let mut state = chatting();
    send(&mut state, "one");
    write(&mut state, "two");
    press(&mut state, KeyCode::Enter);
    write(&mut state, "three");
    feed(&mut state, own_failed("no"));
    assert_eq!(state.prompt.value(), "three");
    assert!(
        told(&state).contains("2 of your prompts"),
        "{}",
        told(&state)
    );
}

/// The end of a request that was cancelled before anything stood.
fn stopped(request_id: u64) -> WireEvent {
    WireEvent::Done(GenerationDone {
        request_id,
        finish_reason: FinishReason::Cancelled.into(),
        text: Some(String::new()),
        ..Default::default()
    })
}

#[test]
fn a_stopped_answer_is_marked() {
    let mut state = answered();
    press(&mut state, KeyCode::Char('i'));
    send(&mut state, "And then?");
    ends(&mut state, 6, "Then it", FinishReason::Cancelled);
    let screen = shown(&state, SIZES[1]);
    assert!(screen.contains("cut off"), "{screen}");
}

#[test]
fn the_last_answer_is_asked_for_once_more_with_another_seed() {
    let mut state = answered();
    state.options.set("seed", "42").expect("a number");
    let again = sent(press(&mut state, KeyCode::Char('r')));
    assert_eq!(messages(&again).len(), 1);
    assert_eq!(again.sampling.unwrap_or_default().seed, None);
    ends(&mut state, 6, "Another.", FinishReason::Eos);
    assert_eq!(texts(&state), ["Tell me a story.", "Another."]);
    press(&mut state, KeyCode::Char('u'));
    assert_eq!(texts(&state)[1], ANSWER);
}

#[test]
fn words_that_are_chosen_are_shown_and_sent() {
    let mut state = choosing_words();
    pictures("chat_words", &state);
    for option in ["length", "block", "steps"] {
        state.options.set(option, "64").expect("a number");
    }
    let request_sent = sent(press(&mut state, KeyCode::Enter));
    let edit = edit(&request_sent);
    let span = edit.span_start_bytes as usize..edit.span_end_bytes as usize;
    assert_eq!(&edit.text[span], "river ran dry, and");
    assert_eq!((edit.span_tokens, edit.messages.len()), (None, 1));
    let sizes = (
        request_sent.length,
        request_sent.block_length,
        request_sent.diffusion().and_then(|options| options.steps),
    );
    assert_eq!(sizes, (None, None, None));
    pictures("chat_words_sent", &state);
}

#[test]
fn words_written_anew_appear_in_place_and_can_be_taken_back() {
    use TokenState::{Committed, Masked, Pinned};
    let mut state = choosing_words();
    press(&mut state, KeyCode::Enter);
    feed(&mut state, own(6, queued(6)));
    let words = [
        "Once upon a time a",
        " ",
        "",
        " ran",
        " and the mill stood still.",
    ];
    let states = [Pinned, Pinned, Masked, Committed, Pinned];
    let tokens: Vec<CanvasToken> = (0..)
        .zip(words.iter().zip(states))
        .map(|(position, (words, state))| token(position, words, state, 0.5))
        .collect();
    let started = WireEvent::Started(GenerationStarted {
        request_id: 6,
        length: 5,
        blocks: 1,
        diffusion: Some(DiffusionOptions {
            steps: Some(3),
            ..Default::default()
        }),
        prompt_text: b"x".to_vec(),
        pinned: tokens
            .iter()
            .filter(|token| token.state() == Pinned)
            .cloned()
            .collect(),
        ..Default::default()
    });
    feed(&mut state, own(6, started));
    let pass = WireEvent::PassDone(GenerationPass {
        request_id: 6,
        passes: 1,
        committed_positions: 4,
        tokens,
        elapsed_ms: 80.0,
        ..Default::default()
    });
    feed(&mut state, own(6, pass));
    pictures("chat_rewriting", &state);
    ends(&mut state, 6, "All of it, anew.", FinishReason::Eos);
    assert_eq!(texts(&state)[1], "All of it, anew.");
    press(&mut state, KeyCode::Char('u'));
    assert_eq!(texts(&state)[1], ANSWER);
}

#[test]
fn a_line_up_and_down_finds_the_word_above_and_below() {
    let mut state = answered();
    feed(&mut state, Event::Resized(40, 12));
    press(&mut state, KeyCode::Char('e'));
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Enter);
    let screen = shown(&state, SIZES[2]);
    assert!(screen.contains("░"), "{screen}");
    assert_eq!(state.chat.choice, None);
    let mut state = answered();
    press(&mut state, KeyCode::Char('e'));
    press(&mut state, KeyCode::Esc);
    assert_eq!(
        (state.mode(), state.chat.choice.as_ref()),
        (Mode::Page, None)
    );
}

#[test]
fn a_causal_model_fills_in_no_words() {
    let mut state = answered();
    feed(&mut state, snapshot(vec![]));
    press(&mut state, KeyCode::Char('e'));
    assert_eq!(state.mode(), Mode::Page);
    assert!(told(&state).contains("autoregressive"));
}

/// The modifiers of the cells that show `words`.
fn modifiers(buffer: &Buffer, words: &str) -> Modifier {
    let area = buffer.area;
    let found = (0..area.height).find_map(|y| {
        let row: Vec<&str> = (0..area.width).map(|x| buffer[(x, y)].symbol()).collect();
        let at = (0..row.len()).find(|at| row[*at..].concat().starts_with(words))?;
        Some((at as u16, y))
    });
    buffer[found.unwrap_or_else(|| panic!("{words} is not shown"))].modifier
}

#[test]
fn the_chosen_span_stands_out_without_colour() {
    let mut state = choosing_words();
    state.paint = Paint::new(Theme::Terminal, Glyphs::Braille, false);
    let terminal = draw(&state, SIZES[1]);
    let buffer = terminal.backend().buffer();
    let chosen = Modifier::BOLD | Modifier::REVERSED;
    assert_eq!(modifiers(buffer, "river ran"), chosen);
    assert_eq!(modifiers(buffer, "Once upon"), Modifier::empty());
    press(&mut state, KeyCode::Enter);
    let terminal = draw(&state, SIZES[1]);
    assert_eq!(
        modifiers(terminal.backend().buffer(), "░░░░░"),
        Modifier::DIM
    );
}

#[test]
fn the_form_with_an_error_in_a_field() {
    let mut state = chatting();
    press(&mut state, KeyCode::F(3));
    press(&mut state, KeyCode::Enter);
    write(&mut state, "many");
    press(&mut state, KeyCode::Enter);
    assert_eq!(state.mode(), Mode::Field);
    pictures("options_error", &state);
    for _ in 0..4 {
        press(&mut state, KeyCode::Backspace);
    }
    write(&mut state, "64");
    press(&mut state, KeyCode::Enter);
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Enter);
    press(&mut state, KeyCode::Tab);
    press(&mut state, KeyCode::Tab);
    press(&mut state, KeyCode::Enter);
    state.options.set("top-k", "4").expect("a number");
    pictures("options", &state);
    press(&mut state, KeyCode::Esc);
    let screen = shown(&state, SIZES[0]);
    assert!(screen.contains("--length 64 --preset quality"), "{screen}");
    let request = send(&mut state, "hello");
    let top_k = request.sampling.unwrap_or_default().top_k;
    assert_eq!((request.length, top_k), (Some(64), Some(4)));
    press(&mut state, KeyCode::F(3));
    press(&mut state, KeyCode::Char('d'));
    assert_eq!(state.options.value("preset"), None);
}

#[test]
fn every_field_can_be_reached_and_fields_that_the_model_refuses_say_why() {
    let mut state = chatting();
    press(&mut state, KeyCode::F(3));
    for _ in 0..99 {
        press(&mut state, KeyCode::Down);
    }
    for size in SIZES {
        let screen = shown(&state, size);
        assert!(screen.contains("▸ system"), "{screen}");
    }
    press(&mut state, KeyCode::Up);
    let screen = shown(&state, SIZES[0]);
    assert!(
        screen.contains("only autoregressive models support it"),
        "{screen}"
    );
}

#[test]
fn hostile_words_of_prompts_and_options_stay_words() {
    let mut state = chatting();
    state.options.set("system", "a\x1b[2Jb").expect("any text");
    send(&mut state, "x");
    ends(
        &mut state,
        5,
        "y\x1b[2J\r\nz\u{9b}\u{202e}",
        FinishReason::Eos,
    );
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Char('e'));
    press(&mut state, KeyCode::Char(' '));
    for open in [false, true] {
        for size in SIZES {
            let terminal = draw(&state, size);
            let cells = terminal.backend().buffer().content();
            assert!(
                cells
                    .iter()
                    .all(|cell| !cell.symbol().contains(char::is_control))
            );
        }
        if !open {
            state.modes = vec![Mode::Page, Mode::Options];
        }
    }
}

#[test]
fn only_our_own_request_is_cancelled_from_the_chat() {
    let mut state = answered();
    feed(
        &mut state,
        snapshot(vec![summary(9, OperationState::Running)]),
    );
    assert_eq!(state.requests.selected, Some(9));
    press(&mut state, KeyCode::Char('x'));
    assert_eq!(state.mode(), Mode::Page);
    press(&mut state, KeyCode::Char('i'));
    send(&mut state, "And then?");
    press(&mut state, KeyCode::Tab);
    press(&mut state, KeyCode::Char('x'));
    press(&mut state, KeyCode::Char('n'));
    // The snapshot needn't list it yet.
    feed(&mut state, own(10, queued(10)));
    press(&mut state, KeyCode::Char('x'));
    assert_eq!(press(&mut state, KeyCode::Char('y')), [Effect::Cancel(10)]);
}

#[test]
fn a_block_of_any_number_is_drawn() {
    let mut state = answered();
    press(&mut state, KeyCode::Char('i'));
    send(&mut state, "And then?");
    for kind in generating(6) {
        feed(&mut state, own(6, kind));
    }
    let pass = WireEvent::PassDone(GenerationPass {
        request_id: 6,
        passes: u32::MAX,
        block: u32::MAX,
        ..Default::default()
    });
    feed(&mut state, own(6, pass));
    let screen = shown(&state, SIZES[0]);
    assert!(screen.contains("block 4294967296/3"), "{screen}");
}
