//! The library over folders that a test makes.

use super::*;

fn library(folder: &Path) -> Library {
    let access = Access::new("http://127.0.0.1:1", None, true).unwrap();
    Library::new(Some(folder.to_owned()), None, access, Arc::default())
}

fn set_default(library: &Library, model: &ModelName) {
    let record = library.default_record(model);
    let saved = library
        .state()
        .save(|state| state.default_model = Some(record));
    saved.unwrap();
}

fn remember(library: &Library, path: &Path) {
    if let Some(path) = library.new_path(path) {
        library.state().save(|state| path.put_in(state)).unwrap();
    }
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
    assert_eq!(
        (found.file_format, found.disk_bytes),
        (v1::FileFormat::Sluice, 6)
    );
    assert!(matches!(
        library.remove("coded"),
        Err(Failure::NotOurs { .. })
    ));
    assert_eq!(library.find("o/only").unwrap().path, models.join("o/only"));
    let plain = library.find("plain").unwrap();
    assert_eq!(plain.path, models.join("plain"));
    let found = library.find("O/G:q8_0").unwrap();
    assert_eq!(found.path, models.join("o/g/g-Q8_0.gguf"));
    assert_eq!(
        (found.file_format, found.disk_bytes),
        (v1::FileFormat::Gguf, 4)
    );
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
    let lock = FolderLock::take(folder.path(), &"o/m".parse().unwrap()).unwrap();
    let removed = library.remove("o/m");
    assert!(
        matches!(removed, Err(Failure::Hub(_))),
        "a download of it is under way"
    );
    assert!(model.join("config.json").exists());
    drop(lock);
    assert_eq!(library.remove("o/m").unwrap(), RemovedModel::Deleted(4));
    assert_eq!(fs::read(model.join("notes.txt")).unwrap(), b"mine");
    assert!(!model.join("config.json").exists());
    assert!(matches!(
        library.remove("o/m"),
        Err(Failure::UnknownModel { .. })
    ));
}

#[test]
fn folders_in_a_model_go_with_what_was_brought_in_them() {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    let model = models.join("o/m");
    let files = ["config.json", "model.safetensors", "1_Pooling/config.json"];
    let put_all = |model: &Path| {
        put(model, "config.json", b"{}");
        put(model, "model.safetensors", b"xx");
        put(&model.join("1_Pooling"), "config.json", b"{}");
        put(model, sluice_hub::MANIFEST, &manifest(&files));
    };
    let library = library(&models);
    put_all(&model);
    assert_eq!(library.remove("o/m").unwrap(), RemovedModel::Deleted(6));
    assert!(!models.join("o").exists());
    // What the user put there stays.
    put_all(&model);
    put(&model.join("1_Pooling"), "notes.txt", b"mine");
    assert_eq!(library.remove("o/m").unwrap(), RemovedModel::Deleted(6));
    assert!(model.join("1_Pooling/notes.txt").exists());
    assert!(!model.join("1_Pooling/config.json").exists());
    fs::remove_dir_all(&model).unwrap();
    // And a link leads to what was not brought.
    put_all(&model);
    let elsewhere = folder.path().join("elsewhere");
    fs::rename(model.join("1_Pooling"), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, model.join("1_Pooling")).unwrap();
    let removed = library.remove("o/m");
    assert!(matches!(removed, Err(Failure::NotOurs { .. })));
    assert!(elsewhere.join("config.json").exists());
    // Of a download that has not ended, all is counted.
    let partial = models.join(PARTIAL).join("o--n");
    put(&partial.join("1_Pooling"), "config.json.part", b"{");
    put(&partial, "config.json", b"{}");
    let listed = manifest(&files);
    put(&partial, sluice_hub::MANIFEST, &listed);
    let entries = library.entries();
    let entry = entries.iter().find(|entry| entry.is_partial).unwrap();
    assert_eq!(entry.disk_bytes, 3 + listed.len() as u64);
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
    assert_eq!(
        (mine.origin, mine.commit.as_str()),
        (EntryOrigin::Local, "")
    );
    let removed = library.remove("o/m:Q8_0");
    assert!(matches!(removed, Err(Failure::NotOurs { .. })));
    assert!(model.join("model.safetensors").exists());
    assert_eq!(library.find("o/m").unwrap().origin, EntryOrigin::Pulled);
    assert_eq!(library.remove("o/m").unwrap(), RemovedModel::Deleted(4));
    assert_eq!(
        library.remove("o/l:Q8_0").unwrap(),
        RemovedModel::Deleted(2)
    );
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
    // A name means one model: another that would have the same one is called by its path.
    put(
        &models.join("plain"),
        "config.json",
        br#"{"model_type":"llada"}"#,
    );
    put(&models.join("plain"), "model.safetensors", b"xx");
    let elsewhere = library.at(Path::new("/m/plain"));
    assert_eq!(elsewhere.name, "/m/plain");
    assert_eq!(library.model("plain").unwrap().name, "plain");
}

#[test]
fn a_manifest_that_names_other_places_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let precious = folder.path().join("precious");
    fs::write(&precious, b"x").unwrap();
    for file in [
        "../../precious",
        "/etc/passwd",
        ".ssh",
        "",
        "../precious",
        "a/../../precious",
        "a/.ssh",
        "a/",
        "a/b/c",
    ] {
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
    set_default(&library, &own);
    assert_eq!(library.default(), Some(own));
    fs::create_dir(&elsewhere).unwrap();
    let other = ModelName::at(&elsewhere);
    set_default(&library, &other);
    assert_eq!(library.default(), Some(other));
    fs::remove_dir(&elsewhere).unwrap();
    assert_eq!(library.default(), None);
    let nowhere = Library::new(None, None, library.access().clone(), Arc::default());
    assert!(matches!(
        nowhere.check_default(),
        Err(Failure::NoModelsFolder)
    ));
    // A file where the folder should be.
    fs::write(&elsewhere, "").unwrap();
    let library = self::library(&elsewhere.join("models"));
    assert!(matches!(
        library.check_default(),
        Err(Failure::SaveState(_))
    ));
}

#[test]
fn a_model_used_by_its_path_stays_listed_until_it_is_gone_or_forgotten() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let library = library(folder.path());
    let place = |name: &str| elsewhere.path().join(name);
    for name in ["mine", "other/mine", "gone"] {
        let config = br#"{"model_type":"llada"}"#;
        put(&place(name), "config.json", config);
        put(&place(name), "model.safetensors", b"not a header");
    }
    put(elsewhere.path(), "m-Q8_0.gguf", b"GGUF");
    put(&folder.path().join("pulled"), "config.json", b"{}");
    put(&folder.path().join("pulled"), "model.safetensors", b"");
    for name in ["mine", "other/mine", "gone", "m-Q8_0.gguf", "mine"] {
        remember(&library, &place(name));
    }
    // What the library has anyway needs no second line.
    remember(&library, &folder.path().join("pulled"));
    fs::remove_dir_all(place("gone")).unwrap();
    let other = place("other/mine").to_string_lossy().into_owned();
    let mut expected = vec![
        other.clone(),
        "m-Q8_0".into(),
        "mine".into(),
        "pulled".into(),
    ];
    expected.sort();
    assert_eq!(names(&library), expected);
    let found = library.find("mine").unwrap();
    assert_eq!(
        (found.origin, &found.path),
        (EntryOrigin::Path, &place("mine"))
    );
    assert_eq!((found.disk_bytes, &*found.family), (12, "llada"));
    assert_eq!(library.find(&other).unwrap().path, place("other/mine"));

    // Its owner's files stay.
    let listed = library.listed_name(&place("mine").to_string_lossy());
    assert_eq!(
        library.remove(&listed).unwrap(),
        RemovedModel::Forgotten(place("mine"))
    );
    assert!(place("mine/model.safetensors").exists());
    assert_eq!(names(&library), ["m-Q8_0", "mine", "pulled"]);
    assert_eq!(library.find("mine").unwrap().path, place("other/mine"));
}

#[test]
fn no_more_paths_are_remembered_than_a_bound() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let library = library(folder.path());
    for number in 0..crate::state::PATHS_MAX + 3 {
        let name = format!("m{number:03}.gguf");
        put(elsewhere.path(), &name, b"GGUF");
        remember(&library, &elsewhere.path().join(name));
    }
    let names = names(&library);
    assert_eq!(names.len(), crate::state::PATHS_MAX);
    assert_eq!(names[0], "m003");
}

#[test]
fn short_names_and_near_ones_lead_to_models() {
    let folder = tempfile::tempdir().unwrap();
    let library = library(folder.path());
    put(
        &folder.path().join("GSAI-ML/LLaDA-8B-Instruct"),
        "config.json",
        b"{}",
    );
    put(
        &folder.path().join("GSAI-ML/LLaDA-8B-Instruct"),
        "model.safetensors",
        b"",
    );
    assert_eq!(
        library.find("llada").unwrap().name,
        "GSAI-ML/LLaDA-8B-Instruct"
    );
    assert_eq!(library.listed_name("LLaDA"), "GSAI-ML/LLaDA-8B-Instruct");
    assert_eq!(library.model("demo").unwrap(), ModelName::embedded());
    let unknown = library.find("llado").unwrap_err();
    let status = tonic::Status::from(unknown);
    let call = sluice_proto::client::CallError::from(status);
    let hint = call.hint.unwrap();
    assert!(hint.starts_with("did you mean llada"), "{hint}");
    let absent = tonic::Status::from(library.find("smollm2").unwrap_err());
    let hint = sluice_proto::client::CallError::from(absent).hint.unwrap();
    assert!(hint.contains("sluice pull"), "{hint}");
    // A model of one's own comes before the table.
    put(&folder.path().join("llada"), "config.json", b"{}");
    put(&folder.path().join("llada"), "model.safetensors", b"");
    assert_eq!(library.find("llada").unwrap().name, "llada");
}
