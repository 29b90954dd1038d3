//! Keeping text from posing as control tokens.
//!
//! A tokenizer finds strings such as `<|eot_id|>` wherever they stand, in a user's words
//! too. Only those that the chat template itself writes may become the token. So each
//! occurrence in a user's text gets a *break* after its first character, carried through
//! the template by a character that nobody used, and matches across a break don't count.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use aho_corasick::AhoCorasick;
use tokenizers::Tokenizer as HfTokenizer;

use super::{
    config::TokenizerConfig,
    error::TokenizerError,
    world::{END_OF_TEXT, END_OF_TEXT_STRING, WorldVocabulary},
};

/// The strings that stand for control tokens.
pub(super) struct ControlTokens {
    strings: HashMap<u32, String>,
    /// Finds all of them in one walk over a text: a file may declare tens of thousands.
    finder: AhoCorasick,
}

impl ControlTokens {
    /// What either file calls special.
    pub(super) fn new(
        tokenizer: &HfTokenizer,
        config: &TokenizerConfig,
    ) -> Result<Self, TokenizerError> {
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let mut strings: HashMap<u32, String> = added
            .iter()
            .filter(|(_, token)| token.special)
            .map(|(&id, token)| (id, token.content.clone()))
            .collect();
        // The library calls special only what `tokenizer.json` does; the configuration may name more.
        for string in config
            .tokens
            .iter()
            .map(|(_, token)| token)
            .chain(&config.other_special)
        {
            if let Some(id) = tokenizer.token_to_id(string) {
                strings.insert(id, string.clone());
            }
        }
        Self::of(strings).map_err(TokenizerError::tokenizer)
    }

    /// The end of text, the only one of a world vocabulary, by the name that the configuration gives it.
    pub(super) fn of_world(
        world: &WorldVocabulary,
        config: &TokenizerConfig,
    ) -> Result<Self, TokenizerError> {
        // Some configurations name a token of the vocabulary here, with which answers end.
        let names = ["bos_token", "eos_token"].into_iter().filter_map(|key| {
            let named = config.tokens.iter().find(|(name, _)| *name == key)?;
            Some(&named.1).filter(|token| !token.is_empty() && !world.has(token))
        });
        let name = names.into_iter().next();
        let name = name.map_or(END_OF_TEXT_STRING, String::as_str).to_owned();
        Self::of(HashMap::from([(END_OF_TEXT, name)])).map_err(TokenizerError::world)
    }

    fn of(mut strings: HashMap<u32, String>) -> Result<Self, aho_corasick::BuildError> {
        // An empty string would match everywhere.
        strings.retain(|_, string| !string.is_empty());
        let finder = AhoCorasick::new(strings.values())?;
        Ok(Self { strings, finder })
    }

    /// Where a text has the string of a control token.
    pub(super) fn find(&self, text: &str) -> impl Iterator<Item = Range<usize>> {
        self.finder.find_iter(text).map(|found| found.range())
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        self.strings.contains_key(&id)
    }

    /// All of them, by id.
    pub(super) fn strings(&self) -> &HashMap<u32, String> {
        &self.strings
    }

    pub(super) fn string(&self, id: u32) -> Option<&str> {
        self.strings.get(&id).map(String::as_str)
    }

    /// Where `text` is to be broken: after the first character of each control string in it,
    /// overlapping ones included.
    pub(super) fn breaks(&self, text: &str) -> Vec<usize> {
        let matches = self.finder.find_overlapping_iter(text);
        let mut starts: Vec<usize> = matches.map(|found| found.start()).collect();
        starts.sort_unstable();
        starts.dedup();
        let after_first =
            |start: usize| start + text[start..].chars().next().map_or(0, char::len_utf8);
        starts.into_iter().map(after_first).collect()
    }

    /// `text` with `mark` at each of its breaks.
    pub(super) fn mark(&self, text: &str, mark: char) -> String {
        let mut marked = String::with_capacity(text.len() + 16);
        let mut from = 0;
        for at in self.breaks(text) {
            marked.push_str(&text[from..at]);
            marked.push(mark);
            from = at;
        }
        marked.push_str(&text[from..]);
        marked
    }
}

/// One of the 32 characters that Unicode reserves as noncharacters, and that is not in use.
pub(super) fn free_mark(is_in_use: impl Fn(char) -> bool) -> Option<char> {
    ('\u{FDD0}'..='\u{FDEF}').find(|&mark| !is_in_use(mark))
}

/// Takes the marks out again: the text, and where they stood.
pub(super) fn unmark(marked: &str, mark: char) -> (String, Vec<usize>) {
    let mut text = String::with_capacity(marked.len());
    let mut breaks = Vec::new();
    for part in marked.split(mark) {
        breaks.push(text.len() + part.len());
        text.push_str(part);
    }
    breaks.pop(); // the end of the last part is no break
    (text, breaks)
}

/// A copy of `text`, byte for byte as long, in which nothing matches across a break.
pub(super) fn hide<'a>(text: &'a str, breaks: &[usize]) -> Cow<'a, str> {
    if breaks.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut bytes = text.as_bytes().to_vec();
    for &at in breaks {
        let before = text[..at].chars().next_back().map_or(0, char::len_utf8);
        // The character before the break becomes bytes 0x01, so no string matches across it; as many bytes keep all
        // offsets.
        bytes[at - before..at].fill(1);
    }
    Cow::Owned(String::from_utf8(bytes).expect("whole characters were replaced by ASCII"))
}
