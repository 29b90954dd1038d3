//! Files that lie: whatever their bytes, they are read or refused, and never more is taken than they could mean.

use proptest::prelude::*;
use sluice_checkpoint::gguf::Gguf;
use sluice_formats::Format;

use super::{
    convert::{Dialect, converted},
    tokenizer,
    writer::{File, Value},
};

/// A small file with everything that is read: sizes, tokenizer, tensors.
fn sound() -> File {
    let mut file = converted("llada-tiny", Dialect::LlamaCpp, Format::Q8_0);
    tokenizer::byte_level()
        .into_iter()
        .for_each(|(key, value)| file.set(&key, value));
    // Its elements would be most of the file.
    file.tensors
        .retain(|tensor| tensor.name.contains("token_embd") || tensor.name.contains(".1."));
    file
}

/// Everything that can be asked of a file.
fn ask(bytes: &[u8]) -> bool {
    let Ok(file) = Gguf::parse(bytes) else {
        return false;
    };
    let config = file.config();
    let tokenizer = file.tokenizer();
    config.is_ok() && tokenizer.is_ok()
}

#[test]
fn what_the_others_are_made_of_is_sound() {
    assert!(ask(&sound().bytes()));
}

#[test]
fn no_file_cut_short_is_read() {
    let bytes = sound().bytes();
    for end in (0..bytes.len()).step_by(97) {
        assert!(!ask(&bytes[..end]), "cut at {end} of {}", bytes.len());
    }
}

/// Where the header ends: the elements after it may be anything.
fn header_len(bytes: &[u8]) -> usize {
    bytes.len()
        - sound()
            .tensors
            .iter()
            .map(|tensor| tensor.bytes.len().next_multiple_of(32))
            .sum::<usize>()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn changed_bytes_are_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = sound().bytes();
        let header = header_len(&bytes);
        for (place, byte) in changes {
            bytes[place.index(header)] = byte;
        }
        ask(&bytes);
    }

    #[test]
    fn changed_numbers_are_read_or_refused(
        place in any::<prop::sample::Index>(),
        number in prop::sample::select(vec![0, 1, 3, 1 << 31, u64::from(u32::MAX), 1 << 40, 1 << 62, u64::MAX]),
    ) {
        let mut bytes = sound().bytes();
        let place = place.index(header_len(&bytes) - 8);
        bytes[place..place + 8].copy_from_slice(&number.to_le_bytes());
        ask(&bytes);
    }

    #[test]
    fn any_bytes_behind_the_magic_are_read_or_refused(rest in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(rest);
        ask(&bytes);
    }
}

fn refusal(file: &File) -> String {
    Gguf::parse(&file.bytes()).unwrap_err().to_string()
}

/// A list in a list in a list …
fn nested(depth: usize) -> Value {
    let mut bytes = Vec::new();
    for _ in 0..depth {
        bytes.extend(9u32.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
    }
    bytes.extend(0u32.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    Value::Raw(9, bytes)
}

#[test]
fn lists_have_a_greatest_depth() {
    let mut file = sound();
    file.set("x", nested(2));
    assert!(ask(&file.bytes()));
    file.set("x", nested(1000));
    assert_eq!(
        refusal(&file),
        "these bytes is malformed: its lists are more than 4 deep"
    );
}

#[test]
fn numbers_that_no_file_could_hold_are_refused_by_name() {
    let with = |kind: u32, bytes: Vec<u8>| {
        let mut file = sound();
        file.set("x", Value::Raw(kind, bytes));
        refusal(&file)
    };
    let text = with(8, u64::MAX.to_le_bytes().to_vec());
    assert!(text.contains("bytes of text, more than its"), "{text}");
    let list = with(
        9,
        [&4u32.to_le_bytes()[..], &(1u64 << 61).to_le_bytes()].concat(),
    );
    assert!(list.contains("values in a list, more than its"), "{list}");
    let kind = with(77, Vec::new());
    assert!(kind.contains("a value would have the type 77"), "{kind}");

    let mut file = sound();
    file.tensors[0].shape = vec![1 << 40, 1 << 40];
    assert!(refusal(&file).contains("would have the shape"));
    file.tensors[0].shape = vec![1 << 40, 64];
    assert!(refusal(&file).contains("is truncated or damaged: its header declares"));
    file.tensors[0].shape = vec![1; 5];
    assert!(refusal(&file).contains("5 dimensions, not 1 to 4"));
    file.tensors[0].shape = vec![0, 64];
    assert!(refusal(&file).contains("would have the shape [0, 64]"));
}

#[test]
fn tensors_lie_apart_and_inside_the_file() {
    let mut file = sound();
    // Each is written where the one before would end by its bytes, not by its shape.
    file.tensors[0].shape[0] *= 2;
    assert!(refusal(&file).contains("overlap"), "{}", refusal(&file));

    let bytes = sound().bytes();
    let error = Gguf::parse(&bytes[..bytes.len() - 1]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("is truncated or damaged: its header declares"),
        "{error}"
    );
}
