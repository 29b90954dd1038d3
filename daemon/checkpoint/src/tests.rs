//! Bad checkpoints: each error names the file or tensor, and nothing large is allocated.

use std::{collections::HashMap, fs, path::Path};

use ::safetensors::{Dtype, tensor::TensorView};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

fn write_weights(path: &Path, names: &[&str]) {
    let data = [0u8; 16];
    let tensors: HashMap<&str, TensorView<'_>> = names
        .iter()
        .map(|name| {
            (
                *name,
                TensorView::new(Dtype::F32, vec![2, 2], &data).unwrap(),
            )
        })
        .collect();
    fs::write(path, ::safetensors::serialize(tensors, None).unwrap()).unwrap();
}

fn folder_with(names: &[&str]) -> TempDir {
    let folder = TempDir::new().unwrap();
    write_weights(&folder.path().join("model.safetensors"), names);
    folder
}

fn open(folder: &TempDir) -> Result<Checkpoint, CheckpointError> {
    Checkpoint::open(&Source::Folder(folder.path().to_owned()))
}

fn refusal(folder: &TempDir) -> String {
    let text = open(folder).unwrap_err().to_string();
    // The folder's name differs from run to run.
    let folder = fs::canonicalize(folder.path()).unwrap();
    text.replace(&folder.display().to_string(), "DIR")
}

/// Whether a checkpoint is the model of a folder: its names, shapes and every byte. Which token texts begin with isn't in
/// every file.
pub(crate) fn assert_same_model(found: &Checkpoint, folder: &Path) {
    let expected = Checkpoint::open(&Source::Folder(folder.to_owned())).unwrap();
    let expected_model = expected.model().unwrap();
    let model = family::ModelConfig {
        bos_token_id: expected_model.bos_token_id,
        ..found.model().unwrap()
    };
    assert_eq!(model, expected_model);
    assert!(found.names().eq(expected.names()));
    for spec in model.shape.tensors() {
        found.check(&spec.name, &spec.shape).unwrap();
        let read = |checkpoint: &Checkpoint| {
            let entry = checkpoint.tensor(&spec.name).unwrap();
            let mut bytes = vec![0; entry.bytes as usize];
            let all = 0..entry.bytes;
            checkpoint.read_part(entry, all, &mut bytes).unwrap();
            bytes
        };
        assert!(read(found) == read(&expected), "{}", spec.name);
    }
}

#[test]
fn a_file_cut_short_is_noticed_by_its_header() {
    let folder = folder_with(&["a"]);
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let (expected, found) = (whole.len(), whole.len() - 1);
    assert_eq!(
        refusal(&folder),
        format!(
            "DIR/model.safetensors is truncated or damaged: its header declares {expected} bytes, the file has {found}"
        )
    );
    fs::write(&path, &whole[..20]).unwrap();
    assert!(refusal(&folder).contains("is truncated or damaged: its header declares"));
    fs::write(&path, b"short").unwrap();
    assert!(refusal(&folder).contains("too short for a safetensors header"));
}

#[test]
fn a_file_that_shrinks_after_it_was_opened_is_an_error() {
    let folder = folder_with(&["a"]);
    let checkpoint = open(&folder).unwrap();
    fs::write(folder.path().join("model.safetensors"), b"gone").unwrap();
    let entry = checkpoint.tensor("a").unwrap();
    let error = checkpoint
        .read_part(entry, 0..16, &mut [0; 16])
        .unwrap_err();
    assert!(error.to_string().contains("is truncated"), "{error}");
}

#[test]
fn an_absurd_header_is_refused_before_it_is_read() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("model.safetensors"), [0xFF; 64]).unwrap();
    assert!(refusal(&folder).contains("this is no safetensors file"));
}

#[test]
fn tensors_beyond_any_file_are_refused() {
    let folder = TempDir::new().unwrap();
    // Eight tensors of the largest size whose bits can be counted.
    let size = u64::MAX / 8;
    let entries: Vec<String> = (0..8)
        .map(|i| {
            let offsets = format!("[{},{}]", i * size, (i + 1) * size);
            format!(r#""t{i}":{{"dtype":"U8","shape":[{size}],"data_offsets":{offsets}}}"#)
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    assert!(refusal(&folder).contains("its tensors would exceed any file"));
}

#[test]
fn shards_are_found_by_the_index() {
    let folder = TempDir::new().unwrap();
    write_weights(&folder.path().join("one.safetensors"), &["a"]);
    write_weights(&folder.path().join("two.safetensors"), &["b"]);
    let index = r#"{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}"#;
    fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    let checkpoint = open(&folder).unwrap();
    assert!(checkpoint.tensor("a").is_some() && checkpoint.tensor("b").is_some());

    fs::remove_file(folder.path().join("two.safetensors")).unwrap();
    assert_eq!(refusal(&folder), "DIR/two.safetensors is missing");

    write_weights(&folder.path().join("two.safetensors"), &["a"]);
    assert_eq!(
        refusal(&folder),
        "duplicate tensor a, found again in two.safetensors"
    );
}

#[test]
fn a_shard_outside_the_folder_is_refused() {
    for shard in [
        "../x.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "..",
        "",
    ] {
        let folder = TempDir::new().unwrap();
        let index = format!(r#"{{"weight_map": {{"a": "{shard}"}}}}"#);
        fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        assert!(refusal(&folder).contains("names a shard outside its folder"));
    }
}

#[test]
fn what_is_no_checkpoint_is_said_to_be_none() {
    let folder = TempDir::new().unwrap();
    assert_eq!(
        refusal(&folder),
        "DIR has no weights: expected model.safetensors, model.safetensors.index.json or a .gguf or .pth file"
    );
    let file = folder.path().join("notes.txt");
    fs::write(&file, "hello").unwrap();
    let error = Checkpoint::open(&Source::Folder(file)).unwrap_err();
    assert!(error.to_string().contains("is not a checkpoint"), "{error}");
}

#[test]
fn a_configuration_that_is_no_json_says_where() {
    let folder = folder_with(&["a"]);
    let config = |bytes: &[u8]| {
        fs::write(folder.path().join("config.json"), bytes).unwrap();
        open(&folder).unwrap().config().unwrap_err().to_string()
    };
    assert!(config(b"{\"d_model\": \xff}").contains("not UTF-8 at byte 12"));
    assert!(config(b"[1]").contains("is malformed"));
    assert!(config(&vec![b' '; 2 << 20]).contains("the limit for such a file is 1048576"));
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("model.safetensors");
        fs::write(&path, &bytes).unwrap();
        prop_assert!(open(&folder).is_err());
        // A plausible header length in front.
        let framed = [&(bytes.len() as u64).to_le_bytes(), bytes.as_slice()].concat();
        fs::write(&path, &framed).unwrap();
        prop_assert!(open(&folder).is_err());
    }
}
