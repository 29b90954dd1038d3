//! The prompt: how the dashboard opens, what is written, sent, waits and is copied.

use crossterm::event::{KeyCode, KeyModifiers};

use super::{super::requests::OWN_MAX, *};

const CONTROL: KeyModifiers = KeyModifiers::CONTROL;

fn press_with(state: &mut DashboardState, code: KeyCode, modifiers: KeyModifiers) -> Vec<Effect> {
    feed(state, Event::Key(KeyEvent::new(code, modifiers)))
}

fn done(request_id: u64, text: &str, finish: FinishReason) -> WireEvent {
    WireEvent::Done(GenerationDone {
        request_id,
        text: Some(text.into()),
        finish_reason: finish.into(),
        text_tokens: 24,
        generated_tokens: 24,
        filled_positions: 24,
        passes: 24,
        ..Default::default()
    })
}

fn told(state: &DashboardState) -> &str {
    state.message.as_ref().map_or("", |message| &message.text)
}

/// A snapshot of a model with a context of so many tokens.
fn with_context(context_length: u32) -> Event {
    let Event::Snapshot(mut next) = snapshot(vec![]) else {
        unreachable!("it is a snapshot");
    };
    let model = next.model.as_mut().expect("given");
    model.shape.as_mut().expect("given").context_length = context_length;
    Event::Snapshot(next)
}

/// Serial numbers of the requests that are to be sent.
fn sent(effects: &[Effect]) -> Vec<u64> {
    let serial = |effect: &Effect| match effect {
        Effect::Generate { serial, .. } => Some(*serial),
        _ => None,
    };
    effects.iter().filter_map(serial).collect()
}

#[test]
fn it_opens_on_the_page_where_the_first_keys_of_the_readme_work() {
    let mut state = opened();
    assert_eq!(state.mode(), Mode::Page);
    press(&mut state, KeyCode::Char('?'));
    assert_eq!(state.mode(), Mode::Help);
    press(&mut state, KeyCode::Char('?'));
    press(&mut state, KeyCode::Char('2'));
    assert_eq!(state.page, Page::Memory);
    press(&mut state, KeyCode::Char('1'));
    assert_eq!(press(&mut state, KeyCode::Char('q')), [Effect::Quit]);
    assert_eq!(state.prompt.value(), "", "nothing was written");
    for way_in in [KeyCode::Char('i'), KeyCode::Enter, KeyCode::Tab] {
        let mut state = opened();
        press(&mut state, way_in);
        assert_eq!(state.mode(), Mode::Prompt, "{way_in:?}");
    }
}

#[test]
fn the_prompt_says_what_it_is_sent_with() {
    let mut state = opened();
    feed(&mut state, with_context(256));
    let screen = shown(&state, (120, 40));
    assert!(
        screen.contains("Prompt · new conversation · context 0 of 256 · the daemon's defaults · sluice-demo · system prompt: the model's"),
        "{screen}"
    );
    state.options.set("system", "be brief").expect("any text");
    state.options.set("preset", "balanced").expect("known");
    press(&mut state, KeyCode::Char('i'));
    write(&mut state, "hello");
    press(&mut state, KeyCode::Enter);
    feed(&mut state, own(3, queued(3)));
    let started = GenerationStarted {
        request_id: 3,
        prompt_tokens: 120,
        length: 24,
        ..Default::default()
    };
    feed(&mut state, own(3, WireEvent::Started(started)));
    feed(&mut state, own(3, done(3, "hi", FinishReason::Eos)));
    let screen = shown(&state, (140, 40));
    assert!(
        screen.contains("Prompt · conversation 1, 1 answer · context 144 of 256, nearly full · --preset balanced · sluice-demo · system \"be brief\""),
        "{screen}"
    );
}

#[test]
fn an_answer_that_was_cut_says_so_on_every_page_that_shows_it() {
    for (finish, words) in [
        (FinishReason::Length, "cut off at its length"),
        (FinishReason::Context, "cut off, the context is full"),
    ] {
        let mut state = opened();
        feed(&mut state, with_context(256));
        press(&mut state, KeyCode::Char('i'));
        write(&mut state, "hello");
        press(&mut state, KeyCode::Enter);
        feed(&mut state, own(3, queued(3)));
        let started = GenerationStarted {
            request_id: 3,
            length: 24,
            blocks: 1,
            ..Default::default()
        };
        feed(&mut state, own(3, WireEvent::Started(started)));
        let mut done = done(3, "and then", finish);
        if let WireEvent::Done(done) = &mut done {
            done.is_truncated = true;
        }
        feed(&mut state, own(3, done));
        press(&mut state, KeyCode::Esc);
        for page in ['1', '3', '4'] {
            press(&mut state, KeyCode::Char(page));
            for size in &SIZES[..2] {
                let screen = shown(&state, *size);
                assert!(screen.contains(words), "page {page}: {screen}");
            }
        }
    }
    // One that came to its own end doesn't, be it at the last position.
    for finish in [FinishReason::Eos, FinishReason::Length] {
        let mut state = idle();
        write(&mut state, "hello");
        press(&mut state, KeyCode::Enter);
        feed(&mut state, own(3, queued(3)));
        feed(&mut state, own(3, done(3, "the end", finish)));
        assert!(!shown(&state, SIZES[0]).contains("cut off"));
    }
}

#[test]
fn a_second_prompt_waits_for_the_answer_and_is_sent_then() {
    let mut state = idle();
    write(&mut state, "one");
    assert_eq!(sent(&press(&mut state, KeyCode::Enter)), [1]);
    feed(&mut state, own(5, queued(5)));
    write(&mut state, "two");
    assert!(sent(&press(&mut state, KeyCode::Enter)).is_empty());
    assert_eq!(state.prompt.value(), "", "it was taken");
    assert!(told(&state).contains("will be sent after the previous answer"));
    assert!(shown(&state, (140, 40)).contains("1 waiting"));
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Char('4'));
    assert!(shown(&state, SIZES[0]).contains("waits for the answer above"));
    let effects = feed(&mut state, own(5, done(5, "first", FinishReason::Eos)));
    let [Effect::Generate { serial: 2, request }, ..] = &effects[..] else {
        panic!("{effects:?}");
    };
    let Some(v1::generate_request::Input::Chat(chat)) = &request.input else {
        panic!("{request:?}");
    };
    let contents: Vec<_> = chat.messages.iter().map(|m| m.content.as_str()).collect();
    assert_eq!(contents, ["one", "first", "two"]);
}

#[test]
fn a_prompt_of_another_conversation_is_sent_at_once() {
    let mut state = idle();
    write(&mut state, "one");
    press(&mut state, KeyCode::Enter);
    feed(&mut state, own(5, queued(5)));
    press_with(&mut state, KeyCode::Char('n'), CONTROL);
    write(&mut state, "two");
    assert_eq!(sent(&press(&mut state, KeyCode::Enter)), [2]);
    feed(&mut state, own(6, queued(6)));
    assert_eq!(own_ids(&state), [Some(5), Some(6)]);
    // The answers go where they were asked for, in whatever order.
    feed(&mut state, own(6, done(6, "second", FinishReason::Eos)));
    feed(&mut state, own(5, done(5, "first", FinishReason::Eos)));
    let turns = |index: usize| state.chat.conversations[index].turns[1].text.as_str();
    assert_eq!((turns(0), turns(1)), ("first", "second"));
}

#[test]
fn escape_twice_cancels_all_of_ours_and_what_waits() {
    let mut state = idle();
    write(&mut state, "one");
    press(&mut state, KeyCode::Enter);
    feed(&mut state, own(5, queued(5)));
    write(&mut state, "two");
    press(&mut state, KeyCode::Enter);
    press(&mut state, KeyCode::Esc);
    assert_eq!(press(&mut state, KeyCode::Esc), [Effect::Cancel(5)]);
    let effects = feed(&mut state, own(5, done(5, "on", FinishReason::Cancelled)));
    assert!(sent(&effects).is_empty(), "nothing is sent behind it");
    press(&mut state, KeyCode::Char('i'));
    press(&mut state, KeyCode::Up);
    assert_eq!(state.prompt.value(), "two");
}

#[test]
fn only_so_many_wait_at_once() {
    let mut state = idle();
    for _ in 0..OWN_MAX {
        write(&mut state, "more");
        press(&mut state, KeyCode::Enter);
    }
    write(&mut state, "too much");
    assert_eq!(press(&mut state, KeyCode::Enter), []);
    assert_eq!(state.prompt.value(), "too much");
    assert!(told(&state).contains("8 of your requests are waiting or running"));
}

#[test]
fn a_prompt_has_lines_and_grows_with_them() {
    let mut state = idle();
    write(&mut state, "one");
    press_with(&mut state, KeyCode::Char('j'), CONTROL);
    write(&mut state, "two");
    press_with(&mut state, KeyCode::Enter, KeyModifiers::ALT);
    feed(&mut state, Event::Paste("three\r\nfour".into()));
    assert_eq!(state.prompt.value(), "one\ntwo\nthree\nfour");
    pictures("prompt_lines", &state);
    // Up goes through the lines before it recalls anything.
    for _ in 0..3 {
        press(&mut state, KeyCode::Up);
    }
    assert_eq!(state.prompt.value(), "one\ntwo\nthree\nfour");
    write(&mut state, "!");
    assert_eq!(state.prompt.value(), "one!\ntwo\nthree\nfour");
    let effects = press(&mut state, KeyCode::Enter);
    assert_eq!(sent(&effects), [1]);
    press(&mut state, KeyCode::Up);
    assert_eq!(
        state.prompt.value(),
        "one!\ntwo\nthree\nfour",
        "recalled whole"
    );
}

#[test]
fn y_copies_the_answer_within_a_bound_and_says_so() {
    let mut state = opened();
    assert_eq!(press(&mut state, KeyCode::Char('y')), []);
    assert!(told(&state).contains("no answer to copy"));
    for (text, copied) in [("once\nupon".to_owned(), true), ("x".repeat(70_000), false)] {
        for page in ['1', '3', '4'] {
            let mut state = idle();
            write(&mut state, "hello");
            press(&mut state, KeyCode::Enter);
            feed(&mut state, own(3, queued(3)));
            feed(&mut state, own(3, done(3, &text, FinishReason::Eos)));
            press(&mut state, KeyCode::Esc);
            press(&mut state, KeyCode::Char(page));
            let effects = press(&mut state, KeyCode::Char('y'));
            match copied {
                true => {
                    assert_eq!(effects, [Effect::Copy(text.clone())]);
                    assert!(told(&state).contains("9 characters"), "{}", told(&state));
                }
                false => {
                    assert_eq!(effects, []);
                    assert!(told(&state).contains("terminals accept at most 64.0 KiB"));
                }
            }
        }
    }
}

#[test]
fn what_is_told_hides_neither_the_keys_nor_the_prompt() {
    for page in Page::ALL {
        for size in SIZES {
            let mut state = opened();
            super::super::update::navigation::go(&mut state, page, &mut Vec::new());
            let before = shown(&state, size);
            let keys = before.lines().last().expect("a line").to_owned();
            assert!(keys.contains("q quit"), "{keys}");
            feed(&mut state, Event::Succeeded("a toast".into()));
            let screen = shown(&state, size);
            assert!(screen.contains("a toast"), "{screen}");
            assert_eq!(screen.lines().last(), Some(keys.as_str()), "{page:?}");
            assert_eq!(screen.contains("i or Enter writes"), page.has_prompt());
            let long = "something went wrong ".repeat(20);
            feed(&mut state, Event::Failed(long));
            let screen = shown(&state, size);
            assert_eq!(screen.lines().last(), Some(keys.as_str()), "{page:?}");
        }
    }
}
