//! The licence that a GGUF file names, from the beginning of the file alone: lists are made of many models, whose vocabularies
//! take megabytes.

use super::{
    check_version,
    cursor::Cursor,
    metadata::{Metadata, read_entry},
    value::Value,
    with_bytes,
};
use crate::CheckpointError;

const LICENCE_KEY: &str = "general.license";
/// Most keys that are looked through.
const KEYS_MAX: usize = 4096;

/// The value of `general.license` in the first bytes of a file; `None` where they don't have it whole. Nothing that the bytes
/// say of lengths is believed beyond their end.
#[must_use]
pub fn licence(head: &[u8]) -> Option<String> {
    with_bytes(head, read).ok().flatten()
}

fn read(cursor: &mut Cursor<'_>) -> Result<Option<String>, CheckpointError> {
    check_version(cursor)?;
    // Not compared with the bytes that are here: the table of tensors lies behind them.
    let _tensors = cursor.u64()?;
    let keys = cursor.count("keys", Metadata::ENTRY_BYTES_MIN)?;
    for _ in 0..keys.min(KEYS_MAX) {
        match read_entry(cursor)? {
            (key, Value::Text(licence)) if key == LICENCE_KEY => return Ok(Some(licence)),
            _ => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: u32 = 8;
    const LIST: u32 = 9;

    fn named(text: &[u8]) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes(), text].concat()
    }

    /// A header of these keys, each with its kind and its value's bytes.
    fn head(keys: &[(&str, u32, Vec<u8>)]) -> Vec<u8> {
        let mut head = b"GGUF".to_vec();
        head.extend(3_u32.to_le_bytes());
        head.extend(0_u64.to_le_bytes());
        head.extend((keys.len() as u64).to_le_bytes());
        for (key, kind, value) in keys {
            head.extend(named(key.as_bytes()));
            head.extend(kind.to_le_bytes());
            head.extend(value);
        }
        head
    }

    #[test]
    fn the_licence_is_found_behind_values_of_all_kinds() {
        let list = |kind: u32, count: u64, values: &[u8]| {
            [&kind.to_le_bytes()[..], &count.to_le_bytes(), values].concat()
        };
        let words = [named(b"a"), named(b"bc")].concat();
        let head = head(&[
            ("general.architecture", TEXT, named(b"llama")),
            ("a", 7, vec![1]),
            ("b", 12, vec![0; 8]),
            ("c", LIST, list(TEXT, 2, &words)),
            ("d", LIST, list(4, 3, &[0; 12])),
            ("general.license", TEXT, named(b"apache-2.0")),
        ]);
        assert_eq!(licence(&head).as_deref(), Some("apache-2.0"));
        // Cut anywhere there is none, and nothing is read beyond.
        for end in 0..head.len() {
            assert_eq!(licence(&head[..end]), None, "{end}");
        }
    }

    #[test]
    fn lengths_are_not_believed() {
        let huge = u64::MAX.to_le_bytes();
        let list = |kind: u32| [&kind.to_le_bytes()[..], &huge].concat();
        for (kind, value) in [
            (TEXT, huge.to_vec()),
            (LIST, list(TEXT)),
            (LIST, list(12)),
            (LIST, list(LIST)),
            (99, vec![0; 8]),
        ] {
            let head = head(&[("x", kind, value), ("general.license", TEXT, named(b"mit"))]);
            assert_eq!(licence(&head), None, "{kind}");
        }
        assert_eq!(licence(b"GGUF"), None);
        assert_eq!(licence(b""), None);
    }
}
