//! The library over folders that a test makes.

use super::*;

fn library(folder: &Path) -> Library {
    let access = Access::new("http://127.0.0.1:1", None, true).unwrap();
    Library::new(Some(folder.to_owned()), None, access)
}

fn put(folder: &Path, file: &str, bytes: &[u8]) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join(file), bytes).unwrap();
}

fn names(library: &Library) -> Vec<String> {
    library
        .entries()
        .into_iter()
        .map(|entry| entry.name)
        .collect()
}

/// A manifest as the hub's crate writes it.
fn manifest(files: &[&str]) -> Vec<u8> {
    let files: Vec<_> = files
        .iter()
        .map(|file| {
            serde_json::json!({"name": file, "path": file, "bytes": 2, "sha256": null, "blob": "b"})
        })
        .collect();
    let manifest = serde_json::json!({
        "endpoint": "https://h", "repository": "o/m", "label": null, "revision": "main",
        "commit": "c0ffee0", "files": files,
    });
    manifest.to_string().into_bytes()
}

#[test]
fn models_are_found_by_name_whatever_else_lies_about() {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path();
    for (name, file) in [("o/m", "model.safetensors"), ("plain", "model.safetensors")] {
        put(
            &models.join(name),
            "config.json",
            br#"{"model_type":"llada"}"#,
        );
        put(&models.join(name), file, b"not a header");
    }
    put(&models.join("o/g"), "g-Q4_K_M.gguf", b"GGUF");
    put(&models.join("o/g"), "g-Q8_0.gguf", b"GGUF");
    put(&models.join("o/one:Q4_K_M"), "one-Q4_K_M.gguf", b"GGUF");
    put(&models.join("o/notes"), "todo.txt", b"");
    put(&models.join("o/pickle"), "config.json", b"{}");
    put(&models.join(".hidden/m"), "x.gguf", b"");
    put(models, "file", b"");
    put(models, "coded.sluice", b"SLUICE");
    put(models, "plain.sluice", b"the folder has the name");
    put(models, "unfinished.sluice.partial", b"");
    put(&models.join("o/only"), "m.sluice", b"SLUICE");
    put(&models.join("o/g"), "g.sluice", b"SLUICE");
    let library = library(models);
    assert_eq!(
        names(&library),
        [
            "coded",
            "o/g:Q4_K_M",
            "o/g:Q8_0",
            "o/g:g",
            "o/m",
            "o/one:Q4_K_M",
            "o/only",
            "plain"
        ]
    );
    let found = library.find("coded").unwrap();
    assert_eq!(found.path, models.join("coded.sluice"));
    assert_eq!((found.file_format, found.disk_bytes), ("sluice", 6));
    assert!(matches!(
        library.remove("coded"),
        Err(Failure::NotOurs { .. })
    ));
    assert_eq!(library.find("o/only").unwrap().path, models.join("o/only"));
    let plain = library.find("plain").unwrap();
    assert_eq!(plain.path, models.join("plain"));
    let found = library.find("O/G:q8_0").unwrap();
    assert_eq!(found.path, models.join("o/g/g-Q8_0.gguf"));
    assert_eq!((found.file_format, found.disk_bytes), ("gguf", 4));
    let found = library.find("o/m").unwrap();
    assert_eq!((found.family.as_str(), found.parameters()), ("llada", None));
    assert!(
        matches!(library.find("o/g"), Err(Failure::UnknownModel { alike, .. }) if alike.len() == 3)
    );
    assert_eq!(library.model(EMBEDDED_NAME).unwrap(), ModelName::embedded());
    let removed = library.remove(EMBEDDED_NAME);
    assert!(matches!(removed, Err(Failure::Embedded)));
}

#[test]
fn removing_takes_what_was_brought_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("o/m");
    put(&model, "config.json", b"{}");
    put(&model, "model.safetensors", b"xx");
    let library = library(folder.path());
    assert!(matches!(
        library.remove("o/m"),
        Err(Failure::NotOurs { .. })
    ));
    put(
        &model,
        sluice_hub::MANIFEST,
        &manifest(&["config.json", "model.safetensors"]),
    );
    put(&model, "notes.txt", b"mine");
    let lock = Lock::take(folder.path(), &"o/m".parse().unwrap()).unwrap();
    let removed = library.remove("o/m");
    assert!(
        matches!(removed, Err(Failure::Hub(_))),
        "a download of it is under way"
    );
    assert!(model.join("config.json").exists());
    drop(lock);
    assert_eq!(library.remove("o/m").unwrap(), 4);
    assert_eq!(fs::read(model.join("notes.txt")).unwrap(), b"mine");
    assert!(!model.join("config.json").exists());
    assert!(matches!(
        library.remove("o/m"),
        Err(Failure::UnknownModel { .. })
    ));
}

#[test]
fn a_model_beside_one_that_was_brought_is_not_ours() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("o/m");
    put(&model, "config.json", b"{}");
    put(&model, "model.safetensors", b"xx");
    put(&model, "mine-Q8_0.gguf", b"GGUF");
    let files = ["config.json", "model.safetensors"];
    put(&model, sluice_hub::MANIFEST, &manifest(&files));
    let labelled = folder.path().join("o/l:Q8_0");
    put(&labelled, "brought-Q8_0.gguf", b"xx");
    put(&labelled, "a-mine-Q8_0.gguf", b"GGUF");
    let files = ["brought-Q8_0.gguf"];
    put(&labelled, sluice_hub::MANIFEST, &manifest(&files));

    let library = library(folder.path());
    let mine = library.find("o/m:Q8_0").unwrap();
    assert_eq!((mine.origin, mine.commit.as_str()), (Origin::Local, ""));
    let removed = library.remove("o/m:Q8_0");
    assert!(matches!(removed, Err(Failure::NotOurs { .. })));
    assert!(model.join("model.safetensors").exists());
    assert_eq!(library.find("o/m").unwrap().origin, Origin::Pulled);
    assert_eq!(library.remove("o/m").unwrap(), 4);
    assert_eq!(library.remove("o/l:Q8_0").unwrap(), 2);
    for kept in [
        model.join("mine-Q8_0.gguf"),
        labelled.join("a-mine-Q8_0.gguf"),
    ] {
        assert!(kept.exists(), "{}", kept.display());
    }
}

#[test]
fn a_model_is_known_by_whatever_path_leads_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    put(&models.join("o/m"), "config.json", b"{}");
    put(&models.join("o/m"), "model.safetensors", b"xx");
    put(&models.join("o/other"), "config.json", b"{}");
    put(&models.join("o/other"), "model.safetensors", b"xx");
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(models.join("o/m"), &link).unwrap();
    let library = library(&models);
    assert_eq!(library.at(&link), library.model("o/m").unwrap());
    let gguf = models.join("o/q:Q8_0");
    put(&gguf, "q-Q8_0.gguf", b"GGUF");
    assert!(library.holds_any("o/q:Q8_0", &[gguf]));
    let file = models.join("o/m/model.safetensors");
    for path in [link, file, models.join("o/../o/m")] {
        let paths = [PathBuf::from("/nowhere"), path];
        assert!(library.holds_any("o/m", &paths), "{paths:?}");
        assert!(!library.holds_any("o/other", &paths), "{paths:?}");
    }
    assert_eq!(
        library.at(Path::new("/m/x")),
        ModelName::at(Path::new("/m/x"))
    );
}

#[test]
fn a_manifest_that_names_other_places_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let precious = folder.path().join("precious");
    fs::write(&precious, b"x").unwrap();
    for file in ["../../precious", "/etc/passwd", ".ssh", ""] {
        let model = folder.path().join("o/m");
        put(&model, "config.json", b"{}");
        put(&model, "model.safetensors", b"xx");
        put(&model, sluice_hub::MANIFEST, &manifest(&[file]));
        let removed = library(folder.path()).remove("o/m");
        assert!(matches!(removed, Err(Failure::NotOurs { .. })), "{file}");
    }
    assert!(precious.exists());
}

#[test]
fn the_default_is_a_name_or_a_path_that_is_still_there() {
    let folder = tempfile::tempdir().unwrap();
    let (models, elsewhere) = (
        folder.path().join("models"),
        folder.path().join("elsewhere"),
    );
    let library = library(&models);
    assert_eq!(library.default(), None);
    put(&models.join("o/m"), "config.json", b"{}");
    put(&models.join("o/m"), "model.safetensors", b"xx");
    let own = library.model("o/m").unwrap();
    library.set_default(&own).unwrap();
    assert_eq!(library.default(), Some(own));
    fs::create_dir(&elsewhere).unwrap();
    let other = ModelName::at(&elsewhere);
    library.set_default(&other).unwrap();
    assert_eq!(library.default(), Some(other));
    fs::remove_dir(&elsewhere).unwrap();
    assert_eq!(library.default(), None);
    let nowhere = Library::new(None, None, library.access().clone());
    assert!(matches!(
        nowhere.set_default(&ModelName::embedded()),
        Err(Failure::NoModelsFolder)
    ));
}
