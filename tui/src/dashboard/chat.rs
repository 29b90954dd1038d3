//! Conversations, of which one is open; what was asked for them, and the words of an answer that are chosen.

mod choice;
mod laid;
mod turn;

use std::ops::Range;

use sluice_proto::v1::{
    self, Done, Edit, FinishReason, GenerateRequest, Message, generate_request::Input,
};

use crate::text::sanitise_line;
pub use choice::Choice;
use laid::Laid;
pub use turn::{Origin, Speaker, Turn, Version};

/// Conversations kept.
pub const CONVERSATIONS_MAX: usize = 32;
/// Bytes of a conversation's text; beyond that its earliest turns go.
pub const CONVERSATION_BYTES_MAX: usize = 256 << 10;
/// Characters of a title, which the first prompt gives.
const TITLE_CHARACTERS: usize = 60;

/// Conversations, of which one is open.
#[derive(Debug)]
pub struct Chat {
    /// At least one, the earliest first.
    pub conversations: Vec<Conversation>,
    /// Index of the open one.
    pub open: usize,
    /// What our own request is for, while it waits or runs.
    pub asked: Option<Asked>,
    /// The selected message of the open conversation; `None`: the end is followed.
    pub selected: Option<usize>,
    /// Lines scrolled from there; negative is backwards.
    pub scroll: isize,
    /// Words that are being chosen.
    pub choice: Option<Choice>,
    /// The open conversation as it was laid out last.
    pub(super) laid: Laid,
    numbers: u64,
}

/// Turns of a user and the model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// Prompts and answers in turn, the earliest first.
    pub turns: Vec<Turn>,
    /// Tells it from all others, whatever their order.
    number: u64,
}

/// What our own request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    conversation: u64,
    /// What its text becomes.
    pub what: What,
}

/// What the text of a request becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The answer to a prompt, which stands in no conversation before it is answered.
    Answer {
        /// The prompt.
        prompt: String,
    },
    /// Another answer in the place of one.
    Again {
        /// Index of its turn.
        turn: usize,
    },
    /// An answer with words of it written anew.
    Words {
        /// Index of its turn.
        turn: usize,
        /// Which bytes of it.
        span: Range<usize>,
    },
}

/// What became of a request that came to its end.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its text is where it belongs.
    Taken,
    /// It stopped before anything stood; the prompt, if it was one, is to be written again.
    Nothing(Option<String>),
    /// The same, and the earliest turns went for want of room.
    Shortened,
}

impl Default for Chat {
    fn default() -> Self {
        Self::restored(Vec::new(), 0)
    }
}

impl Chat {
    /// Conversations from an earlier time; where there are none, a new one.
    #[must_use]
    pub fn restored(turns: Vec<Vec<Turn>>, open: usize) -> Self {
        let mut chat = Self {
            conversations: Vec::new(),
            open: 0,
            asked: None,
            selected: None,
            scroll: 0,
            choice: None,
            laid: Laid::default(),
            numbers: 0,
        };
        for turns in turns {
            chat.push(turns);
        }
        if chat.conversations.is_empty() {
            chat.push(Vec::new());
        }
        chat.open = open.min(chat.conversations.len() - 1);
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

    /// What our own request is for, if it is for the open conversation.
    #[must_use]
    pub fn asked_here(&self) -> Option<&What> {
        let number = self.conversation().number;
        let asked = self.asked.as_ref();
        let here = asked.filter(|asked| asked.conversation == number);
        here.map(|asked| &asked.what)
    }

    /// Whether our own request is for a conversation.
    #[must_use]
    pub fn is_asked_for(&self, conversation: &Conversation) -> bool {
        let asked = self.asked.as_ref();
        asked.is_some_and(|asked| asked.conversation == conversation.number)
    }

    /// Opens a new conversation, unless the open one is still empty.
    pub(super) fn begin(&mut self) {
        let is_empty = self.conversation().turns.is_empty() && self.asked_here().is_none();
        if !is_empty {
            self.push(Vec::new());
            let excess = self.conversations.len().saturating_sub(CONVERSATIONS_MAX);
            self.conversations.drain(..excess);
            self.open = self.conversations.len() - 1;
        }
        self.follow();
    }

    /// Opens a conversation.
    pub(super) fn show(&mut self, index: usize) {
        self.open = index.min(self.conversations.len() - 1);
        self.follow();
    }

    /// Opens the conversation so many further.
    pub(super) fn step(&mut self, by: isize) {
        self.show(self.open.saturating_add_signed(by));
    }

    /// Forgets the open conversation.
    pub(super) fn forget(&mut self) {
        self.conversations.remove(self.open);
        if self.conversations.is_empty() {
            self.push(Vec::new());
        }
        self.show(self.open);
    }

    /// Shows the end of the open conversation.
    pub(super) fn follow(&mut self) {
        self.selected = None;
        self.scroll = 0;
        self.choice = None;
    }

    /// Selects the message so many further; past the last the end is followed.
    pub(super) fn select(&mut self, by: isize) {
        let turns = self.conversation().turns.len();
        let at = self.selected.unwrap_or(turns).saturating_add_signed(by);
        self.selected = (at < turns).then_some(at);
        self.scroll = 0;
    }

    /// The answer that keys are about: the selected one, else the last.
    #[must_use]
    pub fn answer(&self) -> Option<usize> {
        let turns = &self.conversation().turns;
        let is_answer = |index: &usize| turns[*index].speaker == Speaker::Assistant;
        match self.selected {
            Some(index) => Some(index).filter(is_answer),
            None => (0..turns.len()).rev().find(is_answer),
        }
    }

    /// What is sent to continue the open conversation with a prompt.
    pub(super) fn ask(&mut self, system: Option<&str>, prompt: &str) -> GenerateRequest {
        let conversation = self.conversation();
        let mut messages = conversation.messages(system, conversation.turns.len());
        messages.push(message("user", prompt));
        self.expect(What::Answer {
            prompt: prompt.to_owned(),
        });
        of_chat(messages)
    }

    /// What is sent to have the last answer once more.
    pub(super) fn again(&mut self, system: Option<&str>) -> Option<GenerateRequest> {
        let turns = &self.conversation().turns;
        let turn = turns.len().checked_sub(1)?;
        if turns[turn].speaker != Speaker::Assistant {
            return None;
        }
        let messages = self.conversation().messages(system, turn);
        self.expect(What::Again { turn });
        Some(of_chat(messages))
    }

    /// What is sent to have the chosen words written anew.
    pub(super) fn rewrite(&mut self, system: Option<&str>) -> Option<GenerateRequest> {
        let choice = self.choice.take()?;
        let span = choice.span()?;
        let conversation = self.conversation();
        let text = conversation.turns.get(choice.turn)?.text.clone();
        let messages = conversation.messages(system, choice.turn);
        let offset = |at: usize| u32::try_from(at).ok();
        let edit = Edit {
            messages,
            text,
            span_start_bytes: offset(span.start)?,
            span_end_bytes: offset(span.end)?,
            span_length: None,
        };
        self.expect(What::Words {
            turn: choice.turn,
            span,
        });
        Some(GenerateRequest {
            input: Some(Input::Edit(edit)),
            ..Default::default()
        })
    }

    fn expect(&mut self, what: What) {
        let conversation = self.conversation().number;
        self.asked = Some(Asked { conversation, what });
        self.follow();
    }

    /// Our own request was refused or failed: what it was for stays as it was. The prompt is given back.
    pub(super) fn give_up(&mut self) -> Option<String> {
        match self.asked.take()?.what {
            What::Answer { prompt } => Some(prompt),
            What::Again { .. } | What::Words { .. } => None,
        }
    }

    /// Takes in what a request came to. One that was stopped leaves the text up to the first open position: a beginning of an
    /// answer is kept as one that was cut off, but words of an answer that were not all written stay as they were.
    pub(super) fn take(&mut self, done: &Done) -> Outcome {
        let Some(Asked { conversation, what }) = self.asked.take() else {
            return Outcome::Taken;
        };
        let all = &mut self.conversations;
        let Some(conversation) = all.iter_mut().find(|its| its.number == conversation) else {
            return Outcome::Taken;
        };
        let is_cut = done.finish_reason() == FinishReason::Cancelled;
        let text = done.text.clone().unwrap_or_default();
        let origin = Origin {
            request_id: done.request_id,
            seed: done.seed,
            exact: done.exact,
            tokens: done.text_tokens,
            passes: done.passes,
            elapsed_ms: Some(done.elapsed_ms).filter(|ms| ms.is_finite()),
            is_cut,
        };
        match what {
            What::Answer { prompt } if is_cut && text.trim().is_empty() => {
                return Outcome::Nothing(Some(prompt));
            }
            What::Again { .. } if is_cut && text.trim().is_empty() => {
                return Outcome::Nothing(None);
            }
            What::Words { .. } if is_cut => return Outcome::Nothing(None),
            What::Answer { prompt } => {
                conversation.turns.push(Turn::new(Speaker::User, prompt));
                let answer = Turn {
                    origin: Some(origin),
                    ..Turn::new(Speaker::Assistant, text)
                };
                conversation.turns.push(answer);
            }
            What::Again { turn } | What::Words { turn, .. } => {
                // Words that were being chosen may be gone.
                self.choice = None;
                if let Some(turn) = conversation.turns.get_mut(turn) {
                    turn.before = Some(Version {
                        text: std::mem::replace(&mut turn.text, text),
                        origin: turn.origin.replace(origin),
                    });
                }
            }
        }
        match conversation.shorten() {
            true => {
                self.follow();
                Outcome::Shortened
            }
            false => Outcome::Taken,
        }
    }

    /// Gives an answer the text that it had before; once more, and it is back.
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
    /// Its first prompt in a line.
    #[must_use]
    pub fn title(&self) -> Option<String> {
        let first = self.turns.first()?;
        let line = sanitise_line(first.text.trim());
        Some(line.chars().take(TITLE_CHARACTERS).collect())
    }

    /// The first turns as they are sent, behind instructions.
    fn messages(&self, system: Option<&str>, turns: usize) -> Vec<Message> {
        let system = system.map(|text| message("system", text));
        let turns = self.turns.iter().take(turns).map(|turn| {
            let role = match turn.speaker {
                Speaker::User => "user",
                Speaker::Assistant => "assistant",
            };
            message(role, &turn.text)
        });
        system.into_iter().chain(turns).collect()
    }

    /// Drops the earliest prompts, each with its answer, while there is more text than may be. Whether any went.
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

fn message(role: &str, content: &str) -> Message {
    Message {
        role: role.to_owned(),
        content: content.to_owned(),
    }
}

fn of_chat(messages: Vec<Message>) -> GenerateRequest {
    GenerateRequest {
        input: Some(Input::Chat(v1::Chat { messages })),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests;
