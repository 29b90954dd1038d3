//! Folders with digests beside their files, in each way that these are written down.

use std::{fs, os::unix::fs::symlink, path::Path, sync::atomic::AtomicBool};

use serde_json::json;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::{
    Checkpoint, CheckpointError, Source,
    compression::{CompressOptions, CompressionMethod, Lossless, SourceCheck, compress_checked},
};

const WEIGHTS: &str = "model.safetensors";
const CONFIG: &str = "config.json";

fn sha256(bytes: &[u8]) -> String {
    let digits = Sha256::digest(bytes);
    digits.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn git(bytes: &[u8]) -> String {
    let mut hasher = Sha1::new_with_prefix(format!("blob {}\0", bytes.len()));
    hasher.update(bytes);
    let digits = hasher.finalize();
    digits.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn files() -> [(&'static str, Vec<u8>); 2] {
    let header = br#"{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#;
    let mut weights = (header.len() as u64).to_le_bytes().to_vec();
    weights.extend_from_slice(header);
    weights.extend_from_slice(&[7; 16]);
    [(WEIGHTS, weights), (CONFIG, b"{}".to_vec())]
}

/// Compares; returns whether anything was read.
fn verify(folder: &Path, kept: &Path) -> Result<bool, CheckpointError> {
    let checkpoint = Checkpoint::open(&Source::Folder(folder.to_owned())).unwrap();
    let mut read = false;
    let is_whole = checkpoint.verify(Some(kept), &AtomicBool::new(false), &mut |done, total| {
        assert!(done <= total);
        read = true;
    });
    is_whole.map(|is_whole| {
        assert!(is_whole);
        read
    })
}

/// Each file is refused by its name with a bit flipped, even if its times are set back; the rest is read once.
fn check(folder: &Path, damaged: &[&str]) {
    let kept = TempDir::new().unwrap();
    assert!(verify(folder, kept.path()).unwrap());
    assert!(!verify(folder, kept.path()).unwrap(), "it is remembered");
    for name in damaged {
        let path = folder.join(name);
        let whole = fs::read(&path).unwrap();
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        let mut bytes = whole.clone();
        // A bit of a weight, or a space for a brace that the configuration's reader would refuse later.
        *bytes.last_mut().unwrap() ^= 1;
        let write = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(modified).unwrap();
        };
        write(&bytes);
        match verify(folder, kept.path()) {
            Err(CheckpointError::WrongDigest { path, .. }) => assert!(path.ends_with(name)),
            other => panic!("{name}: {other:?}"),
        }
        write(&whole);
        assert!(verify(folder, kept.path()).unwrap(), "it has changed");
    }
}

fn put(folder: &Path) {
    for (name, bytes) in files() {
        fs::write(folder.join(name), bytes).unwrap();
    }
}

#[test]
fn what_was_pulled_is_compared_with_its_manifest() {
    let folder = TempDir::new().unwrap();
    put(folder.path());
    let [(_, weights), (_, config)] = files();
    let manifest = json!({"endpoint": "e", "files": [
        {"name": WEIGHTS, "path": WEIGHTS, "bytes": 1, "sha256": sha256(&weights), "blob": git(b"pointer")},
        {"name": CONFIG, "path": CONFIG, "bytes": 1, "sha256": null, "blob": git(&config)},
        {"name": "gone", "path": "gone", "bytes": 1, "sha256": null, "blob": null},
    ]});
    let path = folder.path().join(".sluice.json");
    fs::write(&path, manifest.to_string()).unwrap();
    check(folder.path(), &[WEIGHTS, CONFIG]);

    // Nobody knows what a damaged list has promised.
    fs::write(&path, "{").unwrap();
    let kept = TempDir::new().unwrap();
    let refused = verify(folder.path(), kept.path()).unwrap_err();
    assert!(refused.to_string().contains(".sluice.json"), "{refused}");
}

#[test]
fn files_are_compared_with_the_sums_beside_them() {
    let folder = TempDir::new().unwrap();
    put(folder.path());
    let [(_, weights), (_, config)] = files();
    let sums = format!(
        "{}  {WEIGHTS}\n{} *./{CONFIG}\nnonsense\n",
        sha256(&weights).to_uppercase(),
        sha256(&config)
    );
    fs::write(folder.path().join("SHA256SUMS"), sums).unwrap();
    check(folder.path(), &[WEIGHTS, CONFIG]);
}

#[test]
fn files_in_the_hubs_cache_are_compared_with_their_names() {
    let cache = TempDir::new().unwrap();
    let (blobs, snapshot) = (cache.path().join("blobs"), cache.path().join("snapshots/c"));
    fs::create_dir(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    for (name, bytes) in files() {
        let digest = match name {
            WEIGHTS => sha256(&bytes),
            _ => git(&bytes),
        };
        fs::write(blobs.join(&digest), bytes).unwrap();
        symlink(Path::new("../../blobs").join(digest), snapshot.join(name)).unwrap();
    }
    check(&snapshot, &[WEIGHTS, CONFIG]);
}

#[test]
fn what_huggingface_hub_noted_holds_until_a_file_is_changed() {
    let folder = TempDir::new().unwrap();
    put(folder.path());
    let notes = folder.path().join(".cache/huggingface/download");
    fs::create_dir_all(&notes).unwrap();
    let [(_, weights), _] = files();
    let note = |seconds: u64| {
        let text = format!("{}\n{}\n{seconds}.5\n", git(b"commit"), sha256(&weights));
        fs::write(notes.join(format!("{WEIGHTS}.metadata")), text).unwrap();
    };
    note(1 << 40);
    check(folder.path(), &[WEIGHTS]);
    // Changed after the download: the user's own.
    note(1);
    let kept = TempDir::new().unwrap();
    fs::write(folder.path().join(CONFIG), "{ }").unwrap();
    assert!(!verify(folder.path(), kept.path()).unwrap());
}

#[test]
fn a_source_that_is_compressed_is_compared_once_and_says_how_far_it_is() {
    let (folder, kept) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    put(folder.path());
    let [(_, weights), _] = files();
    let list = json!({"endpoint": "e", "files": [
        {"name": WEIGHTS, "path": WEIGHTS, "bytes": 1, "sha256": sha256(&weights), "blob": null},
    ]});
    fs::write(folder.path().join(".sluice.json"), list.to_string()).unwrap();
    let options = CompressOptions {
        method: CompressionMethod::Lossless(Lossless::Huffman),
        tile: 256,
        tensors: Default::default(),
        all: false,
        threads: 1,
        replace: true,
    };
    let compress = || {
        let mut last = None;
        let check = SourceCheck {
            remembered: Some(kept.path()),
            progress: &mut |amount| last = Some(amount),
        };
        let (source, target) = (
            Source::Folder(folder.path().to_owned()),
            kept.path().join("m.sluice"),
        );
        let go_on = AtomicBool::new(false);
        compress_checked(&source, &target, &options, check, &go_on, &mut |_, _| {}).unwrap();
        last
    };
    let whole = compress().expect("it is compared");
    assert_eq!(whole.done_bytes, whole.total_bytes);
    assert_eq!(whole.total_bytes, weights.len() as u64);
    assert_eq!(compress(), None, "it is remembered");
}
