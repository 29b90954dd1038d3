//! The byte-level BPE tokenizer: trained on generated text, with LLaDA's special tokens after the learned ones.

use std::{collections::HashMap, path::Path};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};
use tokenizers::{
    AddedToken, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer,
    TokenizerBuilder,
    models::bpe::{BPE, BpeTrainer},
    normalizers::NormalizerWrapper,
    pre_tokenizers::byte_level::ByteLevel,
};

use crate::{
    config::SpecialIds,
    corpus::{self, Message, Role, Sample, Split},
    objective::BLOCK_LENGTH,
};

const BEGIN: &str = "<|startoftext|>";
const END: &str = "<|endoftext|>";
const MASK: &str = "<|mdm_mask|>";
const HEADER_START: &str = "<|start_header_id|>";
const HEADER_END: &str = "<|end_header_id|>";
const TURN_END: &str = "<|eot_id|>";

/// In the order of their ids, which follow the learned tokens.
const SPECIAL_TOKENS: [&str; 6] = [BEGIN, END, MASK, HEADER_START, HEADER_END, TURN_END];

/// LLaDA's own template, word for word (MIT).
const CHAT_TEMPLATE: &str = "{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}";

const ALPHABET: usize = 256;
/// Merges, for text outside of the language.
const MERGES: usize = 96;

/// How many generated samples the tokenizer of the demonstration model is trained on.
pub const TRAINING_SAMPLES: u64 = 20_000;

/// The tokenizer with the ids that training and decoding need to know.
pub struct Vocabulary {
    tokenizer: Tokenizer,
    /// Begins every conversation.
    pub begin_id: u32,
    /// Ends the text and fills what is left of the canvas.
    pub end_id: u32,
    /// Stands where nothing has been written yet; the end where there is [no mask](Self::has_mask).
    pub mask_id: u32,
    /// Ends one message; the end of the text where there are no messages.
    pub turn_end_id: u32,
    /// Whether it has LLaDA's special tokens, and so the chat template.
    has_template: bool,
}

/// Tokens that begin or end texts in well-known tokenizers.
const OTHER_BEGINS: [&str; 4] = ["<s>", "<|begin_of_text|>", "<bos>", "<|im_start|>"];
const OTHER_ENDS: [&str; 5] = [
    "<|endoftext|>",
    "</s>",
    "<|end_of_text|>",
    "<eos>",
    "<|im_end|>",
];
/// Bytes of a text that a tokenizer is learned from.
const LEARNED_BYTES_MAX: usize = 32 << 20;

impl Vocabulary {
    /// Learns a vocabulary of the given size, special tokens included, from samples of a seed: byte-level BPE for any text,
    /// and the words of the language that come up most as they are, without merges that lead to them. A word that is one token
    /// keeps its place whatever it is; where names are longer than others, a model that commits what follows first leaves too
    /// little room for them.
    pub fn train(seed: u64, size: usize, samples: u64) -> Result<Self> {
        let mut counts: HashMap<String, usize> = HashMap::new();
        let text: Vec<String> = (0..samples)
            .flat_map(|number| {
                let sample = corpus::sample(Split::Train, seed, number);
                let messages = sample.messages.into_iter().map(|message| message.content);
                // The chat template adds these to every message, so they are counted with every sample.
                ["user", "assistant", "\n\n"]
                    .map(str::to_owned)
                    .into_iter()
                    .chain(messages)
                    .chain([sample.answer])
            })
            .collect();
        for text in &text {
            count_words(text, &mut counts)?;
        }
        let merged = (ALPHABET + MERGES).min(size - SPECIAL_TOKENS.len());
        let tokenizer = learned(merged, text.into_iter())?;
        let tokenizer = with_words(tokenizer, counts, size - SPECIAL_TOKENS.len())?;
        Self::with_special_tokens(tokenizer)
    }

    /// Learns a vocabulary of the given size, special tokens included, from the beginning of a text: byte-level BPE.
    pub fn learn(chunks: impl Iterator<Item = Result<String>>, size: usize) -> Result<Self> {
        let least = ALPHABET + SPECIAL_TOKENS.len();
        ensure!(
            size >= least,
            "a tokenizer needs at least {least} entries, not {size}"
        );
        let mut text = Vec::new();
        let mut bytes = 0;
        for chunk in chunks {
            let chunk = chunk?;
            bytes += chunk.len();
            text.push(chunk);
            if bytes >= LEARNED_BYTES_MAX {
                break;
            }
        }
        Self::with_special_tokens(learned(size - SPECIAL_TOKENS.len(), text.into_iter())?)
    }

    fn with_special_tokens(mut tokenizer: Tokenizer) -> Result<Self> {
        let special = SPECIAL_TOKENS.map(|token| AddedToken::from(token, true));
        tokenizer
            .add_special_tokens(special)
            .map_err(|error| anyhow!("add special tokens: {error}"))?;
        let json = tokenizer
            .to_string(false)
            .map_err(|error| anyhow!("write tokenizer: {error}"))?;
        Self::from_json(json.as_bytes())
    }

    /// Reads a saved tokenizer.
    pub fn load(path: &Path) -> Result<Self> {
        let json = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        Self::from_json(&json)
    }

    fn from_json(json: &[u8]) -> Result<Self> {
        let tokenizer =
            Tokenizer::from_bytes(json).map_err(|error| anyhow!("load tokenizer: {error}"))?;
        let id = |token: &str| tokenizer.token_to_id(token);
        if let [
            Some(begin_id),
            Some(end_id),
            Some(mask_id),
            Some(_),
            Some(_),
            Some(turn_end_id),
        ] = SPECIAL_TOKENS.map(id)
        {
            return Ok(Self {
                begin_id,
                end_id,
                mask_id,
                turn_end_id,
                has_template: true,
                tokenizer,
            });
        }
        let any = |tokens: &[&str]| tokens.iter().find_map(|token| id(token));
        let end_id = any(&OTHER_ENDS).with_context(|| {
            format!("the tokenizer has no token that ends a text; known are {OTHER_ENDS:?}")
        })?;
        Ok(Self {
            begin_id: any(&OTHER_BEGINS).unwrap_or(end_id),
            end_id,
            mask_id: id(MASK).unwrap_or(end_id),
            turn_end_id: end_id,
            has_template: false,
            tokenizer,
        })
    }

    /// Whether there is a token for what is not written yet.
    #[must_use]
    pub fn has_mask(&self) -> bool {
        self.mask_id != self.end_id
    }

    /// The tokenizer as `tokenizer.json` has it.
    pub fn to_json(&self) -> Result<String> {
        self.tokenizer
            .to_string(true)
            .map_err(|error| anyhow!("write tokenizer: {error}"))
    }

    /// Writes the tokenizer as `tokenizer.json` has it.
    pub fn save(&self, path: &Path) -> Result<()> {
        std::fs::write(path, self.to_json()?).with_context(|| format!("write {}", path.display()))
    }

    /// How many ids there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// False: there are always the bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// For each token of this vocabulary, the tokens of another one that say the same.
    pub fn in_terms_of(&self, other: &Self) -> Result<Vec<Vec<u32>>> {
        let ids = 0..self.len() as u32;
        ids.map(|id| {
            let token = self.tokenizer.id_to_token(id).context("a token")?;
            match other.tokenizer.token_to_id(&token) {
                Some(same) => Ok(vec![same]),
                None => other.encode(&self.decode(&[id])?),
            }
        })
        .collect()
    }

    /// The ids of a text; special tokens written in it become themselves.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self
            .tokenizer
            .encode(text, false)
            .map_err(|error| anyhow!("encode: {error}"))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of the ids without special tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer
            .decode(ids, true)
            .map_err(|error| anyhow!("decode: {error}"))
    }

    /// A conversation as LLaDA's chat template renders it, ready for the next answer.
    pub fn encode_messages(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let mut text = BEGIN.to_owned();
        for message in messages {
            let role = message.role.name();
            let content = message.content.trim();
            text += &format!("{HEADER_START}{role}{HEADER_END}\n\n{content}{TURN_END}");
        }
        let role = Role::Assistant.name();
        self.encode(&format!("{text}{HEADER_START}{role}{HEADER_END}\n\n"))
    }

    /// Prompt and answer of a sample; the answer ends with the end of its turn.
    pub fn encode_sample(&self, sample: &Sample) -> Result<(Vec<u32>, Vec<u32>)> {
        let mut answer = self.encode(&sample.answer)?;
        answer.push(self.turn_end_id);
        Ok((self.encode_messages(&sample.messages)?, answer))
    }

    /// The ids that end the text of an autoregressive model, the usual one first. It is trained to the end of a turn; it
    /// has no canvas to fill.
    #[must_use]
    pub fn eos_ids(&self) -> Vec<u32> {
        let mut ids = vec![self.turn_end_id, self.end_id];
        ids.dedup();
        ids
    }

    /// The ids that a `config.json` tells.
    #[must_use]
    pub fn special_ids(&self) -> SpecialIds {
        SpecialIds {
            begin: Some(self.begin_id),
            ends: self.eos_ids(),
            mask: self.has_mask().then_some(self.mask_id),
        }
    }

    /// The whole `tokenizer_config.json` of a masked diffusion model, or of a causal one, which has no masks.
    #[must_use]
    pub fn config_json(&self, causal: bool) -> Value {
        let added = SPECIAL_TOKENS.iter().filter_map(|token| {
            let id = self.tokenizer.token_to_id(token)?;
            let entry = json!({
                "content": token, "lstrip": false, "normalized": false, "rstrip": false,
                "single_word": false, "special": true,
            });
            Some((id.to_string(), entry))
        });
        let token = |id: u32| self.tokenizer.id_to_token(id);
        let end = if causal {
            self.turn_end_id
        } else {
            self.end_id
        };
        let mut json = json!({
            "add_bos_token": false,
            "add_eos_token": false,
            "added_tokens_decoder": added.collect::<serde_json::Map<_, _>>(),
            "bos_token": token(self.begin_id),
            "clean_up_tokenization_spaces": false,
            "eos_token": token(end),
            "model_max_length": 512,
            "pad_token": token(self.end_id),
            "tokenizer_class": "PreTrainedTokenizerFast",
        });
        if self.has_template {
            json["chat_template"] = json!(CHAT_TEMPLATE);
        }
        if !causal {
            json["mask_token"] = json!(token(self.mask_id));
        }
        json
    }

    /// The whole `generation_config.json`.
    #[must_use]
    pub fn generation_json(&self, causal: bool) -> Value {
        let (bos, pad) = (self.begin_id, self.end_id);
        if causal {
            json!({ "bos_token_id": bos, "eos_token_id": self.eos_ids(), "pad_token_id": pad })
        } else {
            json!({
                "bos_token_id": bos,
                "eos_token_id": pad,
                "pad_token_id": pad,
                "block_length": BLOCK_LENGTH,
            })
        }
    }
}

/// Byte-level BPE with so many entries.
fn learned(size: usize, text: impl Iterator<Item = String> + Send) -> Result<Tokenizer> {
    let mut tokenizer = TokenizerBuilder::new()
        .with_model(BPE::default())
        .with_normalizer(None::<NormalizerWrapper>)
        .with_pre_tokenizer(Some(byte_level()))
        .with_post_processor(None::<ByteLevel>)
        .with_decoder(Some(byte_level()))
        .build()
        .map_err(|error| anyhow!("assemble tokenizer: {error}"))?;
    let mut trainer = BpeTrainer::builder()
        .vocab_size(size)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    tokenizer
        .train(&mut trainer, text)
        .map_err(|error| anyhow!("train tokenizer: {error}"))?;
    Ok(tokenizer.into())
}

/// Counts what the tokenizer takes for words, as it writes them.
fn count_words(text: &str, counts: &mut HashMap<String, usize>) -> Result<()> {
    let mut words = PreTokenizedString::from(text);
    byte_level()
        .pre_tokenize(&mut words)
        .map_err(|error| anyhow!("find words: {error}"))?;
    let words = words.get_splits(OffsetReferential::Original, OffsetType::Byte);
    for (word, _, _) in words {
        *counts.entry(word.to_owned()).or_default() += 1;
    }
    Ok(())
}

/// Adds the words that come up most until there are so many tokens. Words that are tokens are no longer split.
fn with_words(
    tokenizer: Tokenizer,
    counts: HashMap<String, usize>,
    size: usize,
) -> Result<Tokenizer> {
    let json = tokenizer
        .to_string(false)
        .map_err(|error| anyhow!("write tokenizer: {error}"))?;
    let mut json: Value = serde_json::from_str(&json)?;
    let model = &mut json["model"];
    model["ignore_merges"] = json!(true);
    let vocabulary = model["vocab"].as_object_mut().context("a vocabulary")?;
    let mut words: Vec<_> = counts.into_iter().collect();
    words.sort_by(|(left, many), (right, more)| more.cmp(many).then_with(|| left.cmp(right)));
    for (word, _) in words {
        let id = vocabulary.len();
        if id < size {
            vocabulary.entry(word).or_insert_with(|| json!(id));
        }
    }
    Tokenizer::from_bytes(serde_json::to_vec(&json)?).map_err(|error| anyhow!("add words: {error}"))
}

fn byte_level() -> ByteLevel {
    ByteLevel::new(false, true, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_survives_the_round_trip() {
        let vocabulary = Vocabulary::train(1, 400, 500).expect("train");
        for text in [
            "One sunny day, Mia met a fox.",
            "größer — 日本 🦊\n\ttabs  and   spaces",
            "\u{0}\u{7f}",
        ] {
            let ids = vocabulary.encode(text).expect("encode");
            assert_eq!(vocabulary.decode(&ids).expect("decode"), text);
        }
        assert_eq!(vocabulary.len(), 400);
    }

    #[test]
    fn special_tokens_are_single_ids_after_the_learned_ones() {
        let vocabulary = Vocabulary::train(1, 400, 500).expect("train");
        let (prompt, answer) = vocabulary
            .encode_sample(&corpus::sample(Split::Train, 1, 0))
            .expect("encode");
        assert_eq!(prompt[0], 394);
        assert_eq!(vocabulary.end_id, 395);
        assert_eq!(vocabulary.mask_id, 396);
        assert_eq!(answer.last(), Some(&399));
    }

    #[test]
    fn training_twice_gives_the_same_vocabulary() {
        let text = "Near the lake lived a hedgehog named Theo.";
        let [first, second] = [(); 2].map(|()| Vocabulary::train(1, 500, 500).expect("train"));
        assert_eq!(
            first.encode(text).expect("encode"),
            second.encode(text).expect("encode")
        );
    }
}
