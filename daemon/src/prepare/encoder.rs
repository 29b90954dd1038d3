//! The texts of one request, which one session of the tokenizer turns into ids.

use sluice_checkpoint::family::Family;
use sluice_engine::saved_state::SavedState;
use sluice_proto::model::{Conversation, InvalidField, PinContent, Prompt};
use sluice_tokenizer::{Patience, TokenizerSession};

use super::template;
use crate::{failure::Failure, models::ServingModel};

/// Text in one request, in bytes, whatever the model's context holds.
pub const TEXT_BYTES_MAX: usize = 1 << 20;
/// Bytes that a token is taken for at least, where the vocabulary's longest token has fewer: normalizers shorten texts.
const TOKEN_BYTES_MIN: usize = 32;

/// Turns texts into ids for one request.
pub(super) struct TextEncoder<'a> {
    serving: &'a ServingModel,
    patience: &'a Patience,
    /// Begun with the first text.
    session: Option<TokenizerSession<'a>>,
}

impl<'a> TextEncoder<'a> {
    pub(super) fn new(serving: &'a ServingModel, patience: &'a Patience) -> Self {
        Self {
            serving,
            patience,
            session: None,
        }
    }

    /// Bytes of text beyond which no text of the context's length in tokens exists. Told before anything is tokenized,
    /// which takes several hundred times the text's memory.
    pub(super) fn text_bytes_max(&self) -> usize {
        let tokenizer = self.serving.loaded.tokenizer.as_ref();
        let longest = tokenizer.map_or(0, |tokenizer| tokenizer.longest_piece());
        let context = self.serving.loaded.info.context_length;
        TEXT_BYTES_MAX.min(context.saturating_mul(longest.max(TOKEN_BYTES_MIN)))
    }

    pub(super) fn session(&mut self) -> Result<&mut TokenizerSession<'a>, Failure> {
        let session = match self.session.take() {
            Some(session) => session,
            None => self.serving.tokenizer()?.session(self.patience)?,
        };
        Ok(self.session.insert(session))
    }

    pub(super) fn prompt(&mut self, prompt: Prompt) -> Result<Vec<u32>, Failure> {
        let (field, ids) = match prompt {
            Prompt::Tokens(ids) => return Ok(ids),
            Prompt::Raw(text) if text.is_empty() => return Ok(vec![self.begin()?]),
            Prompt::Raw(text) => ("raw_text", self.raw(&text)?),
            Prompt::Chat(chat) => ("chat", self.chat(&chat)?),
        };
        if ids.is_empty() {
            return Err(empty(field, "the prompt has no tokens").into());
        }
        Ok(ids)
    }

    /// What a text without a prompt begins with.
    fn begin(&self) -> Result<u32, InvalidField> {
        let info = &self.serving.loaded.info;
        let refused = |problem| Err(empty("raw_text", problem));
        match (info.mask, info.bos_token_id) {
            (None, Some(id)) => Ok(id),
            (None, None) => refused(
                "the prompt is empty, and the model's configuration has no begin token (bos_token_id) to begin with; give a prompt",
            ),
            (Some(_), _) => {
                refused("the prompt is empty; only autoregressive models write without one")
            }
        }
    }

    /// A prompt that follows what a state has read, its unread token first. Nothing marks a beginning there.
    pub(super) fn prompt_after(
        &mut self,
        state: &SavedState,
        prompt: Prompt,
    ) -> Result<Vec<u32>, Failure> {
        let ids = match prompt {
            Prompt::Tokens(ids) => ids,
            Prompt::Raw(text) => self.session()?.encode(&text)?,
            Prompt::Chat(chat) => {
                let mut ids = self.chat(&chat)?;
                let bos = self.serving.tokenizer()?.bos_tokens();
                if ids.starts_with(bos) {
                    ids.drain(..bos.len());
                }
                ids
            }
        };
        let ids: Vec<u32> = state.unread_token.into_iter().chain(ids).collect();
        if ids.is_empty() {
            let problem = "nothing is left to read of this state, since its text has ended; give a prompt that goes on";
            return Err(empty("input", problem).into());
        }
        Ok(ids)
    }

    /// Text as it stands, behind what the tokenizer puts before every text. LLaDA's puts nothing there.
    pub(super) fn raw(&mut self, raw: &str) -> Result<Vec<u32>, Failure> {
        let ids = self.session()?.encode(raw)?;
        let is_llada = self.serving.loaded.info.family == Family::Llada.name();
        match is_llada || ids.is_empty() {
            true => Ok(ids),
            false => Ok([self.serving.tokenizer()?.bos_tokens(), &ids].concat()),
        }
    }

    pub(super) fn chat(&mut self, chat: &Conversation) -> Result<Vec<u32>, Failure> {
        let takes_tools = self.serving.tokenizer()?.takes_tools();
        if !self.serving.can_chat() {
            return Err(Failure::NoChatTemplate {
                model: self.serving.name.name.clone(),
            });
        }
        let input = template::input(chat, takes_tools)?;
        Ok(self.session()?.encode_chat(input)?)
    }

    pub(super) fn content(
        &mut self,
        field: &'static str,
        content: PinContent,
    ) -> Result<Vec<u32>, Failure> {
        let ids = match content {
            PinContent::Tokens(ids) => ids,
            PinContent::Text(text) => self.session()?.encode(&text)?,
        };
        if ids.is_empty() {
            return Err(empty(field, "the text has no tokens").into());
        }
        Ok(ids)
    }
}

pub(super) fn empty(field: &'static str, problem: &str) -> InvalidField {
    InvalidField {
        field,
        problem: problem.to_owned(),
    }
}
