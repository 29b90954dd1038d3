//! The fixture as PyTorch saved it, and files that say something else than PyTorch would.

use std::{fs, path::PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;

use crate::{Checkpoint, Source, tests::assert_same_model};

fn fixture() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/fixtures/rwkv7-tiny")
}

/// What opening a file of these bytes gives, and what reading its model then does.
fn try_open(bytes: &[u8]) -> Result<(TempDir, Checkpoint), String> {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("rwkv.pth");
    fs::write(&file, bytes).unwrap();
    let checkpoint = Checkpoint::open(&Source::Folder(file));
    let checkpoint = checkpoint.map_err(|error| {
        let error = error.to_string();
        match error.split_once("rwkv.pth ") {
            Some((_, rest)) => rest.to_owned(),
            None => error,
        }
    })?;
    Ok((folder, checkpoint))
}

#[test]
fn a_file_of_pytorch_is_the_same_model_as_hugging_face_s() {
    // By its folder, where it is the only model, and by its own path.
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("rwkv7-tiny.pth");
    fs::copy(fixture().join("rwkv.pth"), &file).unwrap();
    for path in [folder.path().to_owned(), file] {
        let found = Checkpoint::open(&Source::Folder(path)).unwrap();
        assert_same_model(&found, &fixture());
    }
}

#[test]
fn the_vocabulary_lies_beside_it() {
    let folder = TempDir::new().unwrap();
    fs::copy(fixture().join("rwkv.pth"), folder.path().join("a.pth")).unwrap();
    let open = || Checkpoint::open(&Source::Folder(folder.path().to_owned())).unwrap();
    assert!(open().tokenizer().unwrap().is_none());
    for (name, contents) in [
        ("rwkv_vocab_v20230424.txt", "1 'a' 1\n"),
        // What Hugging Face's library reads goes first.
        ("tokenizer.json", "{}"),
    ] {
        fs::write(folder.path().join(name), contents).unwrap();
        let files = open().tokenizer().unwrap().unwrap();
        assert_eq!(files.tokenizer, contents.as_bytes());
    }
}

/// An entry of an archive: name and bytes.
type Entry = (String, Vec<u8>);

/// An archive of stored entries, with all numbers of the directory in 64 bits where `is_wide` says so.
fn archive(entries: &[Entry], is_wide: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let mut directory = Vec::new();
    let u16s = |numbers: &[u16]| {
        numbers
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .collect::<Vec<_>>()
    };
    for (name, bytes) in entries {
        let header = out.len() as u64;
        // Sizes are zero here, as PyTorch leaves them, and padding makes data begin at a multiple of 64.
        let padding =
            (out.len() + 30 + name.len() + 4).next_multiple_of(64) - out.len() - 34 - name.len();
        out.extend(b"PK\x03\x04");
        out.extend([0; 22]);
        out.extend(u16s(&[name.len() as u16, 4 + padding as u16]));
        out.extend(name.as_bytes());
        out.extend(b"FB");
        out.extend(u16s(&[padding as u16]));
        out.resize(out.len() + padding, b'Z');
        out.extend(bytes);
        directory.extend(b"PK\x01\x02");
        directory.extend([0; 16]);
        let numbers = [bytes.len() as u64, bytes.len() as u64, header];
        let extra: Vec<u8> = match is_wide {
            true => {
                let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
                // Another field first, which is passed over.
                u16s(&[7, 2, 0, 1, 24]).into_iter().chain(numbers).collect()
            }
            false => Vec::new(),
        };
        let narrow = |number: u64| if is_wide { u32::MAX } else { number as u32 };
        directory.extend(narrow(numbers[0]).to_le_bytes());
        directory.extend(narrow(numbers[1]).to_le_bytes());
        directory.extend(u16s(&[
            name.len() as u16,
            extra.len() as u16,
            0,
            0,
            0,
            0,
            0,
        ]));
        directory.extend(narrow(numbers[2]).to_le_bytes());
        directory.extend(name.as_bytes());
        directory.extend(extra);
    }
    let (start, count) = (out.len() as u64, entries.len() as u64);
    let len = directory.len() as u64;
    out.extend(directory);
    if is_wide {
        let record = out.len() as u64;
        out.extend(b"PK\x06\x06");
        out.extend([0; 20]);
        out.extend(
            [count, count, len, start]
                .iter()
                .flat_map(|number| number.to_le_bytes()),
        );
        out.extend(b"PK\x06\x07");
        out.extend([0; 4]);
        out.extend(record.to_le_bytes());
        out.extend([1, 0, 0, 0]);
    }
    out.extend(b"PK\x05\x06");
    out.extend([0; 4]);
    let narrow = |number: u64| if is_wide { u32::MAX } else { number as u32 };
    out.extend(u16s(&[narrow(count) as u16; 2]));
    out.extend(narrow(len).to_le_bytes());
    out.extend(narrow(start).to_le_bytes());
    out.extend([0; 2]);
    out
}

/// The fixture's entries, read by another way than the one under test: it is stored, so its bytes are as they lie.
fn entries() -> Vec<Entry> {
    let bytes = fs::read(fixture().join("rwkv.pth")).unwrap();
    let number = |at: usize, len: usize| {
        let bytes = bytes[at..at + len].iter().rev();
        bytes.fold(0usize, |number, &byte| number << 8 | usize::from(byte))
    };
    let mut at = number(bytes.len() - 6, 4);
    let mut entries = Vec::new();
    for _ in 0..number(bytes.len() - 12, 2) {
        let (len, name, extra, comment) = (
            number(at + 24, 4),
            number(at + 28, 2),
            number(at + 30, 2),
            number(at + 32, 2),
        );
        let header = number(at + 42, 4);
        let data = header + 30 + number(header + 26, 2) + number(header + 28, 2);
        let text = String::from_utf8(bytes[at + 46..at + 46 + name].to_vec()).unwrap();
        entries.push((text, bytes[data..data + len].to_vec()));
        at += 46 + name + extra + comment;
    }
    entries
}

/// What is said of the fixture's file with other entries.
fn refusal(change: impl FnOnce(&mut Vec<Entry>)) -> String {
    let mut entries = entries();
    change(&mut entries);
    try_open(&archive(&entries, false)).unwrap_err()
}

/// The same with another pickle.
fn pickle_refusal(pickle: &[u8]) -> String {
    let error = refusal(|entries| find(entries, "data.pkl").clone_from(&pickle.to_vec()));
    error.replace("is malformed: data.pkl: ", "")
}

fn find<'a>(entries: &'a mut [Entry], name: &str) -> &'a mut Vec<u8> {
    let mut found = entries
        .iter_mut()
        .filter(|(found, _)| found.ends_with(name));
    &mut found.next().unwrap().1
}

fn replace(bytes: &mut Vec<u8>, from: &[u8], to: &[u8]) {
    let at = bytes
        .windows(from.len())
        .position(|part| part == from)
        .unwrap();
    bytes.splice(at..at + from.len(), to.iter().copied());
}

#[test]
fn numbers_of_64_bits_say_the_same() {
    for is_wide in [false, true] {
        let (_folder, checkpoint) = try_open(&archive(&entries(), is_wide)).unwrap();
        assert_eq!(checkpoint.model().unwrap().shape.parameters(), 498_816);
    }
}

#[test]
fn what_is_no_archive_of_stored_tensors_is_refused() {
    let whole = fs::read(fixture().join("rwkv.pth")).unwrap();
    for cut in [0, 4, 21, 1000, whole.len() - 1] {
        let error = try_open(&whole[..cut]).unwrap_err();
        assert!(
            error.starts_with("is malformed: it is no whole zip archive"),
            "{error}"
        );
    }
    // Behind the directory of an archive that begins later.
    let mut shifted = whole;
    shifted.drain(..100);
    let error = try_open(&shifted).unwrap_err();
    assert_eq!(
        error,
        "is malformed: its directory would lie beyond its end"
    );

    let mut packed = archive(&entries(), false);
    let at = packed
        .windows(4)
        .position(|part| part == b"PK\x01\x02")
        .unwrap();
    packed[at + 10] = 8;
    let error = try_open(&packed).unwrap_err();
    assert_eq!(
        error,
        "is malformed: the entry rwkv/data.pkl is compressed or encrypted, as torch.save writes none"
    );
    let mut sooner = archive(&entries(), false);
    sooner[at + 42] = 1;
    let error = try_open(&sooner).unwrap_err();
    assert_eq!(
        error,
        "is malformed: the entry rwkv/data.pkl lies outside the archive"
    );

    let error = refusal(|entries| entries.retain(|(name, _)| name != "rwkv/data.pkl"));
    assert_eq!(
        error,
        "is malformed: it has no data.pkl, so it wasn't written by torch.save"
    );
    let error = refusal(|entries| entries.push(("b/data.pkl".to_owned(), Vec::new())));
    assert_eq!(error, "is malformed: it has several data.pkl");
    let error = refusal(|entries| entries.push(entries[0].clone()));
    assert_eq!(error, "is malformed: it has the entry rwkv/data.pkl twice");
    let error = refusal(|entries| *find(entries, "byteorder") = b"big".to_vec());
    assert_eq!(
        error,
        "is malformed: its byte order is \"big\"; only little-endian files are supported"
    );
}

#[test]
fn tensors_lie_inside_their_storages_and_apart() {
    let error = refusal(|entries| find(entries, "data/0").truncate(65_535));
    assert_eq!(
        error,
        "is malformed: tensor emb.weight lies in rwkv/data/0, which would have 32768 elements in 65535 bytes"
    );
    let error = refusal(|entries| entries.retain(|(name, _)| name != "rwkv/data/0"));
    assert_eq!(
        error,
        "is malformed: tensor emb.weight lies in rwkv/data/0, which the archive lacks"
    );
    // An element later, and a row more.
    let pickle =
        |from: &[u8], to: &[u8]| refusal(|entries| replace(find(entries, "data.pkl"), from, to));
    for (from, to) in [(b"QK\x00M", b"QK\x01M"), (b"M\x00\x01K", b"M\x01\x01K")] {
        let error = pickle(from, to);
        assert!(
            error.contains("doesn't fit the 32768 elements of rwkv/data/0"),
            "{error}"
        );
    }
    let error = pickle(b"K\x80K\x01\x86", b"K\x01K\x80\x86");
    assert!(error.contains("only contiguous ones are read"), "{error}");
    // The second tensor in the first one's storage, whose length it would change.
    let error = pickle(b"X\x01\x00\x00\x001", b"X\x01\x00\x00\x000");
    assert_eq!(
        error,
        "is malformed: tensor blocks.0.ln0.weight gives rwkv/data/0 another type or length than before"
    );
    // As long as it: both lie in its beginning.
    let error = refusal(|entries| {
        let pickle = find(entries, "data.pkl");
        let part = b"X\x01\x00\x00\x001q\x0fh\x06K\x80";
        replace(pickle, part, b"X\x01\x00\x00\x000q\x0fh\x06M\x00\x80");
    });
    assert_eq!(
        error,
        "is malformed: tensors blocks.0.ln0.weight and emb.weight overlap"
    );
}

#[test]
fn a_pickle_that_would_run_something_is_refused_by_name() {
    let error = pickle_refusal(b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R.");
    assert_eq!(
        error,
        "it names \"os.system\", which is no part of a tensor in f32, f16 or bf16; nothing of a file is ever run"
    );
    let error = pickle_refusal(b"\x80\x02ctorch\nDoubleStorage\n.");
    assert!(
        error.starts_with("it names \"torch.DoubleStorage\""),
        "{error}"
    );
    let long = [&b"c"[..], &[b'x'; 200]].concat();
    for (pickle, expected) in [
        (
            &b"\x80\x04."[..],
            "it is written in version 4 of the protocol",
        ),
        (b"i", "opcode 0x69 is none that torch.save writes"),
        (b"\x80", "it ends too early"),
        (b"K\x01.", "it holds something else than a dict of tensors"),
        (
            b"}X\x01\0\0\0aK\x01s.",
            "it holds a number under \"a\"; only dicts",
        ),
        (b"}K\x01K\x01s.", "a tensor's name is a number"),
        (b"K\x01K\x01R", "it calls a number with unknown arguments"),
        (
            b"ctorch._utils\n_rebuild_tensor_v2\n)R",
            "a tensor is described in an unknown way",
        ),
        (b"K\x01Q", "a storage is described in an unknown way"),
        (b"K\x01}b", "attributes are given to what is no dict"),
        (b"K\x01K\x01K\x01s", "items are added to what is no dict"),
        (b"}(K\x01u", "a dict's key has no value"),
        (b"K\x01(R", "its stack is empty"),
        (b"t", "it lacks a mark"),
        (b"h\x07", "it recalls what it didn't remember"),
        (b"q\x07", "its stack is empty"),
        (
            b"K\x01r\xff\xff\xff\xff",
            "it has more remembered values than any model's",
        ),
        (b"X\xff\xff\xff\xff", "a text has more than 1024 bytes"),
        (b"X\x01\0\0\0\xff", "a text is not UTF-8"),
        (
            b"\x8a\x09\0\0\0\0\0\0\0\0\0",
            "a number has more than 64 bits",
        ),
        (b")\x85\x85\x85", "its tuples are more than 3 deep"),
        (&long, "a name has more than 100 bytes"),
    ] {
        let error = pickle_refusal(pickle);
        assert!(error.starts_with(expected), "{error}, not {expected}");
    }
    for (opcode, what) in [(b'(', "marks"), (b'N', "values"), (b'}', "values")] {
        let error = pickle_refusal(&[opcode; 1 << 16]);
        assert_eq!(error, format!("it has more {what} than any model's"));
    }
    let error = pickle_refusal(&[&b"("[..], &[b'N'; 17], b"t"].concat());
    assert_eq!(error, "a tuple has more than 16 elements");
}

#[test]
fn a_module_s_state_is_read_as_a_dict_is() {
    let mut entries = entries();
    let pickle = find(&mut entries, "data.pkl");
    // An ordered dict, with attributes at the end: versions of the module's parts.
    replace(pickle, b"}", b"ccollections\nOrderedDict\n)R");
    let (stop, body) = pickle.split_last().unwrap();
    let state = b"}X\x09\0\0\0_metadata}X\0\0\0\0}X\x07\0\0\0versionK\x01sssb";
    *pickle = [body, state, &[*stop]].concat();
    let (_folder, checkpoint) = try_open(&archive(&entries, false)).unwrap();
    assert_eq!(checkpoint.model().unwrap().shape.parameters(), 498_816);
}

#[test]
fn another_model_is_refused_by_what_it_lacks() {
    let error = pickle_refusal(b"\x80\x02}.");
    assert_eq!(
        error,
        "is no RWKV-7 model: it lacks emb.weight or layers named blocks.0 and so on"
    );
}

proptest! {
    /// Whatever changes in pickle, headers and directory is taken or refused, and what is taken can be read.
    #[test]
    fn changed_bytes_are_taken_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        place in 0..2usize,
    ) {
        let mut bytes = fs::read(fixture().join("rwkv.pth")).unwrap();
        let len = bytes.len();
        let part = [0..6600, len - 6000..len][place].clone();
        for (at, byte) in changes {
            bytes[part.start + at.index(part.len())] = byte;
        }
        if let Ok((_folder, checkpoint)) = try_open(&bytes) {
            for (entry, bytes) in checkpoint.tensors() {
                let mut out = vec![0; bytes as usize];
                checkpoint.read_part(entry, 0..bytes, &mut out).unwrap();
            }
            drop(checkpoint.model());
        }
    }
}
