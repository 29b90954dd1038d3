//! RWKV's world tokenizer, whose tokens are bytes. llama.cpp's converter writes them as Python spells them, without the
//! quotes; they become the lines of RWKV's vocabulary file again.

use std::fmt::Write;

use super::{
    super::{super::CheckpointError, TOKENS_KEY, metadata::Metadata},
    NORMAL, Vocabulary, types,
};

/// What llama.cpp has in the place of a template for its own way to write conversations of such models.
pub(super) const TEMPLATE: &str = "rwkv-world";

/// The contents of a vocabulary file.
pub(super) fn file(
    metadata: &Metadata,
    vocabulary: &Vocabulary<'_>,
) -> Result<Vec<u8>, CheckpointError> {
    let types = types(metadata, vocabulary)?;
    let mut types = types.into_iter().flat_map(|types| types.whole());
    let mut file = String::new();
    for (id, token) in vocabulary.tokens.iter().enumerate() {
        // The end of text has no bytes, and what fills the vocabulary up stands for nothing.
        if types.next().unwrap_or(NORMAL) != NORMAL || id == 0 {
            continue;
        }
        let bytes = unescaped(token).ok_or_else(|| {
            let problem = format!("has an escape that is none in token {id}: {token:?}");
            metadata.problem(TOKENS_KEY, problem)
        })?;
        let spelled = bytes.iter().fold(String::new(), |mut spelled, byte| {
            // Writing to a text cannot fail.
            let _ = write!(spelled, "\\x{byte:02x}");
            spelled
        });
        let _ = writeln!(file, "{id} b'{spelled}' {}", bytes.len());
    }
    Ok(file.into_bytes())
}

/// The bytes of a token as the converter spells it; `None` for an escape that it never writes.
fn unescaped(token: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(token.len());
    let mut rest = token.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next()? {
                b't' => b'\t',
                b'n' => b'\n',
                b'r' => b'\r',
                b'x' => hexadecimal(rest.next()?)? << 4 | hexadecimal(rest.next()?)?,
                quoted @ (b'\\' | b'\'' | b'"') => quoted,
                _ => return None,
            },
            plain => plain,
        });
    }
    Some(bytes)
}

fn hexadecimal(digit: u8) -> Option<u8> {
    let digit = char::from(digit).to_digit(16)?;
    // One digit fits.
    Some(digit as u8)
}
