//! What becomes of conversations, prompt by prompt.

use super::*;

fn done(text: &str, finish: FinishReason) -> GenerationDone {
    GenerationDone {
        text: Some(text.into()),
        finish_reason: finish.into(),
        ..Default::default()
    }
}

/// Sends a prompt of the open conversation.
fn ask(chat: &mut Chat, system: Option<&str>, prompt: &str) -> GenerateRequest {
    chat.wait(prompt.to_owned());
    let waiting = chat.next_waiting().expect("no answer is on its way");
    chat.ask(1, system, &waiting)
}

fn take(chat: &mut Chat, done: &GenerationDone) -> AnswerOutcome {
    chat.take(1, done, None)
}

fn answered(prompts: &[&str]) -> Chat {
    let mut chat = Chat::default();
    for prompt in prompts {
        ask(&mut chat, None, prompt);
        let answer = format!("answer to {prompt}");
        take(&mut chat, &done(&answer, FinishReason::Eos));
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
    let request = ask(&mut chat, Some("be brief"), "two");
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
    ask(&mut chat, None, "two");
    chat.begin();
    take(&mut chat, &done("late", FinishReason::Length));
    assert!(chat.conversation().turns.is_empty());
    chat.step(-1);
    assert_eq!(texts(&chat), ["one", "answer to one", "two", "late"]);
}

#[test]
fn a_stopped_answer_keeps_its_beginning_if_there_is_one() {
    let mut chat = answered(&[]);
    ask(&mut chat, None, "one");
    let outcome = take(&mut chat, &done(" ", FinishReason::Cancelled));
    assert_eq!(outcome, AnswerOutcome::Nothing(vec!["one".into()]));
    assert!(texts(&chat).is_empty());
    ask(&mut chat, None, "one");
    take(&mut chat, &done("Once", FinishReason::Cancelled));
    let origin = chat.conversation().turns[1].origin.clone();
    assert!(origin.expect("known").is_cut);
}

#[test]
fn words_that_were_stopped_stay_as_they_were() {
    let mut chat = answered(&["one"]);
    chat.choice = WordChoice::of(1, "answer to one");
    assert!(chat.rewrite(1, None).is_some());
    let outcome = take(&mut chat, &done("answer", FinishReason::Cancelled));
    assert_eq!(outcome, AnswerOutcome::Nothing(Vec::new()));
    assert_eq!(texts(&chat), ["one", "answer to one"]);
}

#[test]
fn prompts_that_waited_for_an_answer_that_never_came_are_given_back() {
    let both = vec!["one".to_owned(), "two".to_owned()];
    for is_refused in [true, false] {
        let mut chat = Chat::default();
        ask(&mut chat, None, "one");
        chat.wait("two".into());
        assert_eq!(chat.next_waiting(), None);
        let back = match is_refused {
            true => chat.give_up(1),
            false => match take(&mut chat, &done("", FinishReason::Cancelled)) {
                AnswerOutcome::Nothing(back) => back,
                other => panic!("{other:?}"),
            },
        };
        assert_eq!(back, both);
        assert!(chat.waiting.is_empty());
    }
    // What waits behind an answer that stays is sent behind it.
    let mut chat = answered(&["one"]);
    chat.again(1, None);
    chat.wait("two".into());
    take(&mut chat, &done("", FinishReason::Cancelled));
    assert!(chat.next_waiting().is_some());
}

#[test]
fn chosen_words_are_bytes_of_the_text() {
    let mut chat = answered(&["né"]);
    chat.choice = WordChoice::of(1, "answer to né");
    let choice = chat.choice.as_mut().expect("words");
    choice.step(1);
    choice.from = Some(choice.at);
    choice.step(9);
    let Some(Input::Edit(edit)) = chat.rewrite(1, Some("be brief")).expect("sent").input else {
        panic!("an edit");
    };
    assert_eq!((edit.span_start_bytes, edit.span_end_bytes), (7, 13));
    assert_eq!(
        (edit.text.as_str(), edit.messages.len()),
        ("answer to né", 2)
    );
    take(&mut chat, &done("answer in full", FinishReason::Length));
    assert_eq!(texts(&chat), ["né", "answer in full"]);
    assert!(chat.undo());
    assert_eq!(texts(&chat), ["né", "answer to né"]);
    assert!(chat.undo());
    assert_eq!(texts(&chat), ["né", "answer in full"]);
}

#[test]
fn the_last_answer_is_asked_for_once_more() {
    let mut chat = answered(&["one", "two"]);
    let Some(Input::Chat(sent)) = chat.again(1, None).expect("sent").input else {
        panic!("a chat");
    };
    assert_eq!(sent.messages.last().expect("some").content, "two");
    take(&mut chat, &done("better", FinishReason::Eos));
    assert_eq!(texts(&chat)[3], "better");
    assert_eq!(Chat::default().again(1, None), None);
}

#[test]
fn conversations_and_their_text_are_bounded() {
    let mut chat = Chat::default();
    for number in 0..CONVERSATIONS_MAX + 3 {
        ask(&mut chat, None, &number.to_string());
        take(&mut chat, &done("a", FinishReason::Eos));
        chat.begin();
    }
    assert_eq!(chat.conversations.len(), CONVERSATIONS_MAX + 1);
    let long = "x".repeat(CONVERSATION_BYTES_MAX / 2);
    for _ in 0..3 {
        ask(&mut chat, None, "more");
        take(&mut chat, &done(&long, FinishReason::Eos));
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
