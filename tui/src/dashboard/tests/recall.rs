//! What the daemon remembers: looked for, looked at, added, and in prompts.

use fake_daemon::hits;
use sluice_proto::v1::{MemoryRanking, PromptMemory, SearchMemoryResponse, UsedPiece};

use super::{
    chat::{chatting, send},
    *,
};

/// Gives a command.
fn give(state: &mut DashboardState, line: &str) -> Vec<Effect> {
    press(state, KeyCode::Char(':'));
    write(state, line);
    press(state, KeyCode::Enter)
}

fn chatting_on_the_page() -> DashboardState {
    let mut state = chatting();
    press(&mut state, KeyCode::Esc);
    state
}

#[test]
fn what_is_found_is_looked_at_piece_by_piece() {
    let mut state = chatting_on_the_page();
    let effects = give(&mut state, "search when does the pool open?");
    let query = "when does the pool open?".to_owned();
    assert_eq!(effects, [Effect::Recall(query.clone())]);
    let answer = Box::new(SearchMemoryResponse {
        hits: hits(),
        ranking: MemoryRanking::Hybrid.into(),
        ..Default::default()
    });
    feed(&mut state, Event::Recalled { query, answer });
    pictures("recall", &state);
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Down);
    let screen = shown(&state, SIZES[1]);
    assert!(screen.contains("opens with 4711"), "{screen}");
    press(&mut state, KeyCode::Up);
    press(&mut state, KeyCode::PageDown);
    assert_eq!(state.recall.scroll, 1);
    let screen = shown(&state, SIZES[1]);
    assert!(screen.contains("ten on Sundays"), "{screen}");
    assert!(!screen.contains("eight on weekdays"), "{screen}");
    press(&mut state, KeyCode::Esc);
    assert_eq!(state.mode(), Mode::Page);
    // A search that finds nothing says so.
    let (query, answer) = ("x".to_owned(), Box::default());
    feed(&mut state, Event::Recalled { query, answer });
    assert!(shown(&state, SIZES[2]).contains("nothing was found"));
}

#[test]
fn an_answer_tells_what_it_had_of_memory() {
    let mut state = chatting_on_the_page();
    give(&mut state, "sources");
    assert!(
        state
            .message
            .as_ref()
            .unwrap()
            .text
            .contains("no answer yet")
    );
    give(&mut state, "memory 64");
    press(&mut state, KeyCode::Tab);
    let request = send(&mut state, "When does the pool open?");
    assert_eq!(request.memory.unwrap().max_tokens, Some(64));
    feed(&mut state, own(5, queued(5)));
    let pieces = hits().into_iter().zip(1..).map(|(hit, label)| UsedPiece {
        hit: Some(hit),
        label,
        tokens: 40,
    });
    let memory = PromptMemory {
        pieces: pieces.collect(),
        tokens: 90,
        ..Default::default()
    };
    let started = WireEvent::Started(GenerationStarted {
        request_id: 5,
        seed: 42,
        memory: Some(memory),
        ..Default::default()
    });
    feed(&mut state, own(5, started));
    let done = WireEvent::Done(GenerationDone {
        request_id: 5,
        finish_reason: FinishReason::Eos.into(),
        text: Some("At eight.".into()),
        seed: 42,
        ..Default::default()
    });
    feed(&mut state, own(5, done));
    press(&mut state, KeyCode::Esc);
    let screen = shown(&state, SIZES[0]);
    assert!(screen.contains("2 pieces of memory"), "{screen}");
    give(&mut state, "sources");
    let screen = shown(&state, SIZES[0]);
    assert!(
        screen.contains("▸ [1]  /home/ada/notes/pool.md"),
        "{screen}"
    );
    assert!(screen.contains("90 tokens of its prompt"), "{screen}");
    press(&mut state, KeyCode::Esc);
    give(&mut state, "memory off");
    assert_eq!(state.options.value("memory"), None);
}

#[test]
fn a_note_goes_where_the_options_say() {
    let mut state = chatting_on_the_page();
    let remember = |collection: &str| Effect::Remember {
        collection: collection.to_owned(),
        text: "the pool opens at 8".to_owned(),
    };
    let line = "remember the pool opens at 8";
    assert_eq!(give(&mut state, line), [remember("")]);
    let collections = "notes | papers";
    state.options.set("memory-collection", collections).unwrap();
    assert_eq!(give(&mut state, line), [remember("notes")]);
}
