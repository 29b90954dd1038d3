//! What becomes of conversations, prompt by prompt.

use super::*;

fn done(text: &str, finish: FinishReason) -> Done {
    Done {
        text: Some(text.into()),
        finish_reason: finish.into(),
        ..Default::default()
    }
}

fn answered(prompts: &[&str]) -> Chat {
    let mut chat = Chat::default();
    for prompt in prompts {
        chat.ask(None, prompt);
        let answer = format!("answer to {prompt}");
        chat.take(&done(&answer, FinishReason::Eos));
    }
    chat
}

fn texts(chat: &Chat) -> Vec<&str> {
    let turns = chat.conversation().turns.iter();
    turns.map(|turn| turn.text.as_str()).collect()
}

#[test]
fn a_prompt_is_sent_behind_all_turns_and_the_instructions() {
    let mut chat = answered(&["one"]);
    let request = chat.ask(Some("be brief"), "two");
    let Some(Input::Chat(sent)) = request.input else {
        panic!("a chat");
    };
    let sent: Vec<_> = sent.messages.iter().map(|m| m.content.as_str()).collect();
    assert_eq!(sent, ["be brief", "one", "answer to one", "two"]);
    assert_eq!(texts(&chat), ["one", "answer to one"]);
}

#[test]
fn an_answer_goes_to_the_conversation_that_asked() {
    let mut chat = answered(&["one"]);
    chat.ask(None, "two");
    chat.begin();
    chat.take(&done("late", FinishReason::Length));
    assert!(chat.conversation().turns.is_empty());
    chat.step(-1);
    assert_eq!(texts(&chat), ["one", "answer to one", "two", "late"]);
}

#[test]
fn a_stopped_answer_keeps_its_beginning_if_there_is_one() {
    let mut chat = answered(&[]);
    chat.ask(None, "one");
    let outcome = chat.take(&done(" ", FinishReason::Cancelled));
    assert_eq!(outcome, Outcome::Nothing(Some("one".into())));
    assert!(texts(&chat).is_empty());
    chat.ask(None, "one");
    chat.take(&done("Once", FinishReason::Cancelled));
    let origin = chat.conversation().turns[1].origin.clone();
    assert!(origin.expect("known").is_cut);
}

#[test]
fn words_that_were_stopped_stay_as_they_were() {
    let mut chat = answered(&["one"]);
    chat.choice = Choice::of(1, "answer to one");
    assert!(chat.rewrite(None).is_some());
    let outcome = chat.take(&done("answer", FinishReason::Cancelled));
    assert_eq!(outcome, Outcome::Nothing(None));
    assert_eq!(texts(&chat), ["one", "answer to one"]);
}

#[test]
fn chosen_words_are_bytes_of_the_text() {
    let mut chat = answered(&["né"]);
    chat.choice = Choice::of(1, "answer to né");
    let choice = chat.choice.as_mut().expect("words");
    choice.step(1);
    choice.from = Some(choice.at);
    choice.step(9);
    let Some(Input::Edit(edit)) = chat.rewrite(Some("be brief")).expect("sent").input else {
        panic!("an edit");
    };
    assert_eq!((edit.span_start_bytes, edit.span_end_bytes), (7, 13));
    assert_eq!(
        (edit.text.as_str(), edit.messages.len()),
        ("answer to né", 2)
    );
    chat.take(&done("answer in full", FinishReason::Length));
    assert_eq!(texts(&chat), ["né", "answer in full"]);
    assert!(chat.undo());
    assert_eq!(texts(&chat), ["né", "answer to né"]);
    assert!(chat.undo());
    assert_eq!(texts(&chat), ["né", "answer in full"]);
}

#[test]
fn the_last_answer_is_asked_for_once_more() {
    let mut chat = answered(&["one", "two"]);
    let Some(Input::Chat(sent)) = chat.again(None).expect("sent").input else {
        panic!("a chat");
    };
    assert_eq!(sent.messages.last().expect("some").content, "two");
    chat.take(&done("better", FinishReason::Eos));
    assert_eq!(texts(&chat)[3], "better");
    assert_eq!(Chat::default().again(None), None);
}

#[test]
fn conversations_and_their_text_are_bounded() {
    let mut chat = Chat::default();
    for number in 0..CONVERSATIONS_MAX + 3 {
        chat.ask(None, &number.to_string());
        chat.take(&done("a", FinishReason::Eos));
        chat.begin();
    }
    assert_eq!(chat.conversations.len(), CONVERSATIONS_MAX);
    let long = "x".repeat(CONVERSATION_BYTES_MAX / 2);
    for _ in 0..3 {
        chat.ask(None, "more");
        chat.take(&done(&long, FinishReason::Eos));
    }
    assert_eq!(chat.conversation().turns.len(), 2);
}

#[test]
fn a_forgotten_conversation_leaves_at_least_one() {
    let mut chat = answered(&["one"]);
    chat.forget();
    assert!(chat.conversation().turns.is_empty());
    assert_eq!(chat.conversations.len(), 1);
}
