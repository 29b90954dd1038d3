//! Texts to make vectors of, as ids.

use sluice_checkpoint::features::Feature;
use sluice_engine::{Embed, EngineError, RequestError, admission::EMBED_TEXTS_MAX};
use sluice_proto::{
    client::MESSAGE_BYTES_MAX,
    model::{EmbeddedTexts, Embedding, InvalidField},
};
use sluice_tokenizer::Patience;

use super::{RequestSize, TEXT_BYTES_MAX, encoder::TextEncoder};
use crate::{failure::Failure, models::ServingModel};

/// Bytes of all vectors of one answer, so that it is no larger than a message may be.
const VECTOR_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 2;

/// A request for vectors as the engine takes it.
#[derive(Debug)]
pub struct PreparedEmbedding {
    /// What is asked of the engine.
    pub work: Embed,
    /// Of each text how many tokens are read, and whether it had more.
    pub texts: Vec<(usize, bool)>,
}

/// Turns a checked request into the engine's. Tokenizing takes time: not for async code.
///
/// # Errors
/// What the request asks for that cannot be done with this model.
pub fn embedding(
    request: Embedding,
    serving: &ServingModel,
    patience: &Patience,
) -> Result<PreparedEmbedding, Failure> {
    let info = &serving.loaded.info;
    if info.features().refusal(Feature::Embed).is_some() {
        return Err(EngineError::from(RequestError::OnlyEncoders).into());
    }
    let (field, count, size) = match &request.texts {
        EmbeddedTexts::Texts(texts) => (
            "texts",
            texts.len(),
            RequestSize {
                text_bytes: texts.iter().map(String::len).sum(),
                ids: 0,
            },
        ),
        EmbeddedTexts::Tokens(texts) => (
            "tokens",
            texts.len(),
            RequestSize {
                text_bytes: 0,
                ids: texts.iter().map(Vec::len).sum(),
            },
        ),
    };
    let vector_bytes = info.hidden_size * size_of::<f32>();
    let max = EMBED_TEXTS_MAX.min(VECTOR_BYTES_MAX / vector_bytes.max(1));
    if count > max {
        return Err(EngineError::from(RequestError::TooManyTexts { texts: count, max }).into());
    }
    size.check(field, TEXT_BYTES_MAX)?;
    let read = match request.texts {
        EmbeddedTexts::Tokens(texts) => {
            let tokenizer = serving.tokenizer().ok();
            let end_tokens = tokenizer.map(|tokenizer| tokenizer.end_tokens());
            let read = texts.into_iter().map(|mut ids| {
                // What ends a text stays where it is cut, as if it had come as a text.
                let ends = end_tokens.filter(|ends| ids.ends_with(ends)).unwrap_or(&[]);
                ids.truncate(ids.len() - ends.len());
                framed([&[], ends], ids, info.context_length)
            });
            read.collect()
        }
        EmbeddedTexts::Texts(texts) => read_texts(&texts, serving, patience)?,
    };
    if let Some(index) = read.iter().position(|text| text.is_truncated)
        && !request.truncates
    {
        return Err(InvalidField {
            field,
            problem: format!(
                "text {index}, counted from 0, has {} tokens; the model reads {}",
                read[index].tokens, info.context_length
            ),
        }
        .into());
    }
    Ok(PreparedEmbedding {
        texts: (read.iter())
            .map(|text| (text.ids.len(), text.is_truncated))
            .collect(),
        work: Embed {
            model: serving.loaded.id,
            texts: read.into_iter().map(|text| text.ids).collect(),
        },
    })
}

/// A text as far as it is read.
struct ReadText {
    ids: Vec<u32>,
    /// Tokens of the whole text.
    tokens: usize,
    is_truncated: bool,
}

fn read_texts(
    texts: &[String],
    serving: &ServingModel,
    patience: &Patience,
) -> Result<Vec<ReadText>, Failure> {
    let info = &serving.loaded.info;
    let mut encoder = TextEncoder::new(serving, patience);
    let tokenizer = serving.tokenizer()?;
    // Static tables are trained without what stands around texts, and without what stands for unknown words.
    let is_static = info.layers == 0;
    let around = match is_static {
        true => [&[][..], &[]],
        false => [tokenizer.bos_tokens(), tokenizer.end_tokens()],
    };
    let read = texts.iter().map(|text| {
        let ids = match text.is_empty() {
            // Nothing is asked of the tokenizer's process for it.
            true => Vec::new(),
            false => encoder.session()?.encode(text)?,
        };
        let mut read = framed(around, ids, info.context_length);
        if is_static {
            read.ids.retain(|id| Some(*id) != tokenizer.unknown_token());
        }
        Ok(read)
    });
    read.collect()
}

/// A text's ids with others before and behind them, cut to so many.
fn framed([before, behind]: [&[u32]; 2], mut ids: Vec<u32>, most: usize) -> ReadText {
    let tokens = before.len() + ids.len() + behind.len();
    ids.truncate(most.saturating_sub(before.len() + behind.len()));
    let ids = [before, &ids, behind].concat();
    ReadText {
        is_truncated: tokens > most,
        tokens,
        ids,
    }
}
