//! Conversations: the open one, requests and prompts that are pending for each, and the choice of words to rewrite.

mod choice;
mod layout;
mod turn;

use std::ops::Range;

use sluice_proto::v1::{
    self, ChatMessage, ChatRole, FinishReason, GenerateRequest, GenerationDone, GenerationStarted,
    TextEdit, generate_request::Input,
};

use crate::text::sanitise_line;
pub use choice::WordChoice;
use layout::ConversationLayout;
pub use turn::{AnswerLimit, AnswerOrigin, AnswerVersion, Speaker, Turn};

/// Most conversations that are kept.
pub const CONVERSATIONS_MAX: usize = 32;
/// Most bytes of a conversation's text; beyond that its earliest turns are dropped.
pub const CONVERSATION_BYTES_MAX: usize = 256 << 10;
/// Longest title; a title is the beginning of the first prompt.
const TITLE_CHARACTERS: usize = 60;

/// All conversations, of which one is open.
#[derive(Debug)]
pub struct Chat {
    /// At least one, the earliest first.
    pub conversations: Vec<Conversation>,
    /// Index of the open one.
    pub open: usize,
    /// Answers that requests of ours will give, at most one per conversation.
    pub pending: Vec<PendingAnswer>,
    /// Prompts that are not sent yet, since the answer before them is pending; the earliest first.
    pub waiting: Vec<WaitingPrompt>,
    /// The selected message of the open conversation; `None`: the end is followed.
    pub selected: Option<usize>,
    /// Lines scrolled from the selected message; negative scrolls backwards.
    pub scroll: isize,
    /// The choice of words to rewrite, while one is being made.
    pub choice: Option<WordChoice>,
    /// Lines of the open conversation, kept from the last frame.
    pub(super) layout: ConversationLayout,
    numbers: u64,
}

/// The turns of a user and the model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// Prompts and answers alternately, the earliest first.
    pub turns: Vec<Turn>,
    /// Identifies the conversation; its index changes when others are dropped.
    number: u64,
}

/// A prompt that waits for the answer before it, since that answer is part of what it continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingPrompt {
    conversation: u64,
    /// The prompt's text.
    pub prompt: String,
}

/// The answer that a request of ours will give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingAnswer {
    /// The request's serial number, as in [`super::requests::OwnRequest`].
    pub serial: u64,
    conversation: u64,
    /// Where its text goes.
    pub target: AnswerTarget,
}

/// Where the text of a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerTarget {
    /// The answer to a new prompt. The prompt joins the conversation only with its answer.
    Answer {
        /// The prompt's text.
        prompt: String,
    },
    /// Replaces an answer by another one.
    Again {
        /// Index of the answer's turn.
        turn: usize,
    },
    /// Replaces some words of an answer.
    Words {
        /// Index of the answer's turn.
        turn: usize,
        /// The bytes of the answer that are replaced.
        span: Range<usize>,
    },
}

/// What an ended request did to its conversation.
#[derive(Debug, PartialEq, Eq)]
pub enum AnswerOutcome {
    /// Its text is in the conversation.
    Taken,
    /// It was cancelled before there was any text. Holds the prompts that go back to the prompt line, the earliest first:
    /// its own, and those that waited for its answer.
    Nothing(Vec<String>),
    /// Its text is in the conversation, and the earliest turns were dropped for [`CONVERSATION_BYTES_MAX`].
    Shortened,
}

impl Default for Chat {
    fn default() -> Self {
        Self::restored(Vec::new())
    }
}

impl Chat {
    /// Restores conversations and opens a new one behind them.
    #[must_use]
    pub fn restored(turns: Vec<Vec<Turn>>) -> Self {
        let mut chat = Self {
            conversations: Vec::new(),
            open: 0,
            pending: Vec::new(),
            waiting: Vec::new(),
            selected: None,
            scroll: 0,
            choice: None,
            layout: ConversationLayout::default(),
            numbers: 0,
        };
        for turns in turns {
            chat.push(turns);
        }
        if chat.conversations.is_empty() {
            chat.push(Vec::new());
        }
        chat.begin_anew();
        chat
    }

    fn push(&mut self, turns: Vec<Turn>) {
        self.numbers += 1;
        self.conversations.push(Conversation {
            turns,
            number: self.numbers,
        });
    }

    /// The open conversation.
    #[must_use]
    pub fn conversation(&self) -> &Conversation {
        &self.conversations[self.open]
    }

    /// The pending answer of the open conversation.
    #[must_use]
    pub fn pending_here(&self) -> Option<&PendingAnswer> {
        self.pending_for(self.conversation().number)
    }

    /// Whether an answer of a conversation is pending.
    #[must_use]
    pub fn is_asked_for(&self, conversation: &Conversation) -> bool {
        self.pending_for(conversation.number).is_some()
    }

    fn pending_for(&self, conversation: u64) -> Option<&PendingAnswer> {
        let mut asked = self.pending.iter();
        asked.find(|asked| asked.conversation == conversation)
    }

    /// Prompts that wait for an answer of the open conversation.
    pub fn waiting_here(&self) -> impl Iterator<Item = &str> {
        let number = self.conversation().number;
        let waiting = self.waiting.iter();
        let here = waiting.filter(move |waiting| waiting.conversation == number);
        here.map(|waiting| waiting.prompt.as_str())
    }

    /// Queues a prompt of the open conversation.
    pub(super) fn wait(&mut self, prompt: String) {
        let conversation = self.conversation().number;
        self.waiting.push(WaitingPrompt {
            conversation,
            prompt,
        });
    }

    /// Takes the first prompt whose conversation has no pending answer.
    pub(super) fn next_waiting(&mut self) -> Option<WaitingPrompt> {
        let mut waiting = self.waiting.iter();
        let at = waiting.position(|waiting| self.pending_for(waiting.conversation).is_none())?;
        Some(self.waiting.remove(at))
    }

    /// Opens a new conversation behind all others, unless the last is empty. A restored conversation is continued only when the
    /// user opens it.
    pub(super) fn begin_anew(&mut self) {
        self.open = self.conversations.len() - 1;
        self.begin();
    }

    /// Opens a new conversation, unless the open one is still empty.
    pub(super) fn begin(&mut self) {
        let is_empty = self.conversation().turns.is_empty() && self.pending_here().is_none();
        if !is_empty {
            self.push(Vec::new());
            // The new conversation does not count while it is empty: opening one must not drop the oldest.
            let said = self.conversations.len() - 1;
            self.conversations
                .drain(..said.saturating_sub(CONVERSATIONS_MAX));
            self.open = self.conversations.len() - 1;
        }
        self.follow();
    }

    /// Opens the conversation at an index; beyond the last, the last.
    pub(super) fn show(&mut self, index: usize) {
        self.open = index.min(self.conversations.len() - 1);
        self.follow();
    }

    /// Opens the conversation `by` places after the open one.
    pub(super) fn step(&mut self, by: isize) {
        self.show(self.open.saturating_add_signed(by));
    }

    /// Forgets the open conversation.
    pub(super) fn forget(&mut self) {
        let forgotten = self.conversations.remove(self.open);
        self.waiting
            .retain(|waiting| waiting.conversation != forgotten.number);
        if self.conversations.is_empty() {
            self.push(Vec::new());
        }
        self.show(self.open);
    }

    /// Scrolls to the end of the open conversation and follows it.
    pub(super) fn follow(&mut self) {
        self.selected = None;
        self.scroll = 0;
        self.choice = None;
    }

    /// Selects the message `by` places after the selected one; past the last, the end is followed.
    pub(super) fn select(&mut self, by: isize) {
        let turns = self.conversation().turns.len();
        let at = self.selected.unwrap_or(turns).saturating_add_signed(by);
        self.selected = (at < turns).then_some(at);
        self.scroll = 0;
    }

    /// Index of the answer that keys apply to: the selected one, else the last; `None` if a prompt is selected.
    #[must_use]
    pub fn answer(&self) -> Option<usize> {
        let turns = &self.conversation().turns;
        let is_answer = |index: &usize| turns[*index].speaker == Speaker::Assistant;
        match self.selected {
            Some(index) => Some(index).filter(is_answer),
            None => (0..turns.len()).rev().find(is_answer),
        }
    }

    /// The request that continues a conversation with a prompt.
    pub(super) fn ask(
        &mut self,
        serial: u64,
        system: Option<&str>,
        waiting: &WaitingPrompt,
    ) -> GenerateRequest {
        let number = waiting.conversation;
        let mut all = self.conversations.iter();
        // Forgetting a conversation drops its prompts, but the bound on conversations may have dropped the oldest. The
        // prompt is then sent without a history.
        let conversation = all.find(|its| its.number == number);
        let turns = conversation.map_or(0, |its| its.turns.len());
        let nothing = Conversation::default();
        let conversation = conversation.unwrap_or(&nothing);
        let mut messages = conversation.messages(system, turns);
        messages.push(message(ChatRole::User, &waiting.prompt));
        let prompt = waiting.prompt.clone();
        self.expect(serial, number, AnswerTarget::Answer { prompt });
        of_chat(messages)
    }

    /// The request for another version of the last answer; `None` where there is no answer.
    pub(super) fn again(&mut self, serial: u64, system: Option<&str>) -> Option<GenerateRequest> {
        let turns = &self.conversation().turns;
        let turn = turns.len().checked_sub(1)?;
        if turns[turn].speaker != Speaker::Assistant {
            return None;
        }
        let messages = self.conversation().messages(system, turn);
        let number = self.conversation().number;
        self.expect(serial, number, AnswerTarget::Again { turn });
        Some(of_chat(messages))
    }

    /// The request that rewrites the chosen words; `None` where none are chosen.
    pub(super) fn rewrite(&mut self, serial: u64, system: Option<&str>) -> Option<GenerateRequest> {
        let choice = self.choice.take()?;
        let span = choice.span()?;
        let conversation = self.conversation();
        let text = conversation.turns.get(choice.turn)?.text.clone();
        let messages = conversation.messages(system, choice.turn);
        let offset = |at: usize| u32::try_from(at).ok();
        let edit = TextEdit {
            messages,
            text,
            span_start_bytes: offset(span.start)?,
            span_end_bytes: offset(span.end)?,
            span_tokens: None,
        };
        let number = conversation.number;
        let turn = choice.turn;
        self.expect(serial, number, AnswerTarget::Words { turn, span });
        Some(GenerateRequest {
            input: Some(Input::Edit(edit)),
            ..Default::default()
        })
    }

    fn expect(&mut self, serial: u64, conversation: u64, what: AnswerTarget) {
        self.pending.push(PendingAnswer {
            serial,
            conversation,
            target: what,
        });
        if conversation == self.conversation().number {
            self.follow();
        }
    }

    fn take_pending(&mut self, serial: u64) -> Option<PendingAnswer> {
        let at = self
            .pending
            .iter()
            .position(|asked| asked.serial == serial)?;
        Some(self.pending.remove(at))
    }

    /// Ends a request of ours that was refused or failed. Its conversation stays as it was; its prompt and those that waited for
    /// it are returned, the earliest first.
    pub(super) fn give_up(&mut self, serial: u64) -> Vec<String> {
        let Some(asked) = self.take_pending(serial) else {
            return Vec::new();
        };
        let own = match asked.target {
            AnswerTarget::Answer { prompt } => Some(prompt),
            AnswerTarget::Again { .. } | AnswerTarget::Words { .. } => None,
        };
        own.into_iter()
            .chain(self.take_waiting(asked.conversation))
            .collect()
    }

    /// Removes and returns the prompts that wait for an answer of a conversation.
    fn take_waiting(&mut self, conversation: u64) -> impl Iterator<Item = String> {
        let all = std::mem::take(&mut self.waiting).into_iter();
        let (taken, left) =
            all.partition(|waiting: &WaitingPrompt| waiting.conversation == conversation);
        self.waiting = left;
        let taken: Vec<WaitingPrompt> = taken;
        taken.into_iter().map(|waiting| waiting.prompt)
    }

    /// Takes the result of a request. A cancelled one has the text up to its first masked position. Such a beginning of an answer
    /// is kept and marked as cut off, but a rewrite that is incomplete leaves the old words.
    pub(super) fn take(
        &mut self,
        serial: u64,
        done: &GenerationDone,
        started: Option<&GenerationStarted>,
    ) -> AnswerOutcome {
        let Some(PendingAnswer {
            conversation,
            target: what,
            ..
        }) = self.take_pending(serial)
        else {
            return AnswerOutcome::Taken;
        };
        let all = &mut self.conversations;
        let number = conversation;
        let Some(conversation) = all.iter_mut().find(|its| its.number == number) else {
            // The conversation was forgotten, or dropped as the oldest, while its answer was generated.
            return AnswerOutcome::Taken;
        };
        let is_cut = done.finish_reason() == FinishReason::Cancelled;
        let text = done.text.clone().unwrap_or_default();
        let origin = AnswerOrigin {
            request_id: done.request_id,
            seed: done.seed,
            exact: done.is_exact,
            tokens: done.generated_tokens,
            passes: done.passes,
            elapsed_ms: Some(done.elapsed_ms).filter(|ms| ms.is_finite()),
            is_cut,
            limit: AnswerLimit::of(done),
            memory: started.and_then(|started| {
                let pieces = started.memory.as_ref()?.pieces.len();
                u32::try_from(pieces).ok()
            }),
            context: started.map(|started| started.prompt_tokens.saturating_add(done.text_tokens)),
        };
        match what {
            AnswerTarget::Answer { prompt } if is_cut && text.trim().is_empty() => {
                // The waiting prompts would continue a conversation without this answer.
                let waiting = self.take_waiting(number);
                return AnswerOutcome::Nothing([prompt].into_iter().chain(waiting).collect());
            }
            AnswerTarget::Again { .. } if is_cut && text.trim().is_empty() => {
                return AnswerOutcome::Nothing(Vec::new());
            }
            AnswerTarget::Words { .. } if is_cut => return AnswerOutcome::Nothing(Vec::new()),
            AnswerTarget::Answer { prompt } => {
                conversation.turns.push(Turn::new(Speaker::User, prompt));
                let answer = Turn {
                    origin: Some(origin),
                    ..Turn::new(Speaker::Assistant, text)
                };
                conversation.turns.push(answer);
            }
            AnswerTarget::Again { turn } | AnswerTarget::Words { turn, .. } => {
                // The choice holds byte positions in the text that is replaced here.
                self.choice = None;
                if let Some(turn) = conversation.turns.get_mut(turn) {
                    turn.before = Some(AnswerVersion {
                        text: std::mem::replace(&mut turn.text, text),
                        origin: turn.origin.replace(origin),
                    });
                }
            }
        }
        match conversation.shorten() {
            true => {
                self.follow();
                AnswerOutcome::Shortened
            }
            false => AnswerOutcome::Taken,
        }
    }

    /// Swaps an answer with its version before; a second call swaps back. Returns `false` if there is none.
    pub(super) fn undo(&mut self) -> bool {
        let Some(index) = self.answer() else {
            return false;
        };
        let turn = &mut self.conversations[self.open].turns[index];
        match &mut turn.before {
            Some(before) => {
                std::mem::swap(&mut before.text, &mut turn.text);
                std::mem::swap(&mut before.origin, &mut turn.origin);
                true
            }
            None => false,
        }
    }
}

impl Conversation {
    /// The first prompt in one line, shortened; `None` without turns.
    #[must_use]
    pub fn title(&self) -> Option<String> {
        let first = self.turns.first()?;
        let line = sanitise_line(first.text.trim());
        Some(line.chars().take(TITLE_CHARACTERS).collect())
    }

    /// The system prompt, if any, and the first `turns` turns, as they are sent.
    fn messages(&self, system: Option<&str>, turns: usize) -> Vec<ChatMessage> {
        let system = system.map(|text| message(ChatRole::System, text));
        let turns = self.turns.iter().take(turns).map(|turn| {
            let role = match turn.speaker {
                Speaker::User => ChatRole::User,
                Speaker::Assistant => ChatRole::Assistant,
            };
            message(role, &turn.text)
        });
        system.into_iter().chain(turns).collect()
    }

    /// Drops the earliest prompts with their answers until the text is within [`CONVERSATION_BYTES_MAX`]. Returns whether any
    /// were dropped.
    fn shorten(&mut self) -> bool {
        let before = self.turns.len();
        while self.turns.len() > 2 && self.bytes() > CONVERSATION_BYTES_MAX {
            self.turns.drain(..2);
        }
        self.turns.len() < before
    }

    fn bytes(&self) -> usize {
        let before = |turn: &Turn| turn.before.as_ref().map_or(0, |before| before.text.len());
        self.turns
            .iter()
            .map(|turn| turn.text.len() + before(turn))
            .sum()
    }
}

fn message(role: ChatRole, content: &str) -> ChatMessage {
    ChatMessage {
        role: role.into(),
        content: content.to_owned(),
        ..Default::default()
    }
}

fn of_chat(messages: Vec<ChatMessage>) -> GenerateRequest {
    GenerateRequest {
        input: Some(Input::Chat(v1::Chat {
            messages,
            ..Default::default()
        })),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests;
