//! The licence that a GGUF file names, from the beginning of the file alone: lists are made of many models, whose vocabularies
//! take megabytes.

use super::MAGIC;

const LICENCE_KEY: &[u8] = b"general.license";
/// Most keys that are looked through.
const KEYS_MAX: u64 = 4096;

/// The value of `general.license` in the first bytes of a file; `None` where they don't have it whole. Nothing that the bytes
/// say of lengths is believed beyond their end.
#[must_use]
pub fn licence(head: &[u8]) -> Option<String> {
    let mut rest = head.strip_prefix(&MAGIC)?;
    let version = u32::from_le_bytes(take(&mut rest)?);
    if !(2..=3).contains(&version) {
        return None;
    }
    let _tensors: [u8; 8] = take(&mut rest)?;
    let keys = u64::from_le_bytes(take(&mut rest)?);
    for _ in 0..keys.min(KEYS_MAX) {
        let key = text(&mut rest)?;
        let kind = u32::from_le_bytes(take(&mut rest)?);
        if key == LICENCE_KEY && kind == TEXT {
            let value = text(&mut rest)?;
            return Some(String::from_utf8_lossy(value).into_owned());
        }
        skip(&mut rest, kind)?;
    }
    None
}

const TEXT: u32 = 8;
const LIST: u32 = 9;

/// Passes over a value.
fn skip(rest: &mut &[u8], kind: u32) -> Option<()> {
    match kind {
        TEXT => text(rest).map(|_| ()),
        LIST => {
            let kind = u32::from_le_bytes(take(rest)?);
            let count = u64::from_le_bytes(take(rest)?);
            match kind {
                // Each takes eight bytes at least, so that the bytes end before a long count does.
                TEXT => (0..count).try_for_each(|_| text(rest).map(|_| ())),
                kind => {
                    let bytes = count.checked_mul(size(kind)?)?;
                    bytes_of(rest, bytes).map(|_| ())
                }
            }
        }
        kind => bytes_of(rest, size(kind)?).map(|_| ()),
    }
}

/// Bytes of a number.
fn size(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = u64::from_le_bytes(take(rest)?);
    bytes_of(rest, length)
}

fn bytes_of<'a>(rest: &mut &'a [u8], count: u64) -> Option<&'a [u8]> {
    let (first, behind) = rest.split_at_checked(usize::try_from(count).ok()?)?;
    *rest = behind;
    Some(first)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

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
