//! What is taken of repositories as people have them.

use super::*;

fn files(paths: &[&str]) -> Vec<RemoteFile> {
    let file = |path: &&str| RemoteFile {
        path: (*path).to_owned(),
        bytes: 10,
        sha256: None,
        blob: None,
    };
    paths.iter().map(file).collect()
}

fn chosen(
    paths: &[&str],
    name: &str,
    file: Option<&str>,
) -> Result<(String, Vec<String>), HubError> {
    let wanted = WantedModel {
        file: file.map(str::to_owned),
    };
    let chosen = choose(
        &files(paths),
        &name.parse().unwrap(),
        &wanted,
        &NamingFiles::new(),
    )?;
    Ok((
        chosen.name.to_string(),
        chosen.files.into_iter().map(|file| file.name).collect(),
    ))
}

#[test]
fn of_a_folder_only_what_is_needed_is_taken() {
    let all = [
        "README.md",
        "config.json",
        "model.safetensors",
        "pytorch_model.bin",
        "tokenizer.json",
        "sub/config.json",
        "consolidated.safetensors",
        "training_args.bin",
        "x.gguf",
        "tf_model.h5",
    ];
    let (name, paths) = chosen(&all, "a/b", None).unwrap();
    assert_eq!(name, "a/b");
    assert_eq!(
        paths,
        [
            "config.json",
            "tokenizer.json",
            "README.md",
            "model.safetensors"
        ]
    );
}

#[test]
fn shards_are_those_of_the_list() {
    let all = files(&[
        "config.json",
        INDEX,
        "m-1.safetensors",
        "m-2.safetensors",
        "m-3.safetensors",
    ]);
    let name: HubName = "a/b".parse().unwrap();
    let wanted = WantedModel::default();
    let naming = naming_files(&all, &name, &wanted);
    assert_eq!(naming, [(INDEX, INDEX_BYTES_MAX)]);
    let pick = |index: &str| {
        let naming = NamingFiles::from([(INDEX, index.into())]);
        choose(&all, &name, &wanted, &naming)
    };
    let chosen = pick(
        r#"{"weight_map":{"x":"m-1.safetensors","y":"m-2.safetensors","z":"m-1.safetensors"}}"#,
    )
    .unwrap();
    assert_eq!(chosen.weight_bytes, 20);
    assert_eq!(chosen.files.len(), 4);
    for wrong in [
        r#"{"weight_map":{"x":"../../etc/passwd"}}"#,
        r#"{"weight_map":{"x":"m-4.safetensors"}}"#,
        r#"{"weight_map":{"x":"config.json"}}"#,
        r#"{"weight_map":{}}"#,
        "[]",
        "",
    ] {
        assert!(pick(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn modules_bring_the_configurations_in_their_folders_and_nothing_else() {
    let all = files(&[
        "config.json",
        MODULES,
        SINGLE,
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "other/config.json",
        "a/b/config.json",
        "LICENSE",
        "x.y/config.json",
    ]);
    let name: HubName = "a/b".parse().unwrap();
    let wanted = WantedModel::default();
    let naming = naming_files(&all, &name, &wanted);
    assert_eq!(naming, [(MODULES, MODULES_BYTES_MAX)]);
    let pick = |modules: &str| {
        let naming = NamingFiles::from([(MODULES, modules.into())]);
        let chosen = choose(&all, &name, &wanted, &naming)?;
        let names: Vec<_> = chosen.files.into_iter().map(|file| file.name).collect();
        Ok::<_, HubError>(names)
    };
    // Without a path, in a folder of two, and in one that the repository doesn't have.
    let modules = r#"[{"path":""},{},{"path":"1_Pooling","type":"x"},{"path":"1_Pooling"},{"path":"2_Dense"},{"path":"3_Normalize"}]"#;
    assert_eq!(
        pick(modules).unwrap(),
        [
            "config.json",
            MODULES,
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "LICENSE",
            SINGLE
        ]
    );
    let long = "a".repeat(FOLDER_BYTES_MAX + 1);
    for path in [
        "..",
        ".",
        "../x",
        "/etc",
        "a/b",
        "1_Pooling/",
        "./1_Pooling",
        "a\\\\b",
        ".git",
        "-x",
        "x.y",
        "ä",
        " ",
        "a\\u0000b",
        &long,
    ] {
        let refused = pick(&format!(r#"[{{"path":"{path}"}}]"#)).unwrap_err();
        let refused = refused.to_string();
        assert!(
            refused.contains("modules.json") && refused.contains("is not the name of a folder"),
            "{path}: {refused}"
        );
    }
    let many = format!("[{}]", vec![r#"{"path":"x"}"#; MODULES_MAX + 1].join(","));
    for wrong in [&many, "{}", "", "[1]", r#"[{"path":1}]"#] {
        let refused = pick(wrong).unwrap_err().to_string();
        assert!(refused.contains("modules.json: "), "{refused}");
    }
}

#[test]
fn a_configuration_of_a_module_is_of_a_likely_size() {
    let mut all = files(&["config.json", MODULES, SINGLE, "1_Pooling/config.json"]);
    all[3].bytes = CONFIG_BYTES_MAX + 1;
    let naming = NamingFiles::from([(MODULES, br#"[{"path":"1_Pooling"}]"#.to_vec())]);
    let name = "a/b".parse().unwrap();
    let refused = choose(&all, &name, &WantedModel::default(), &naming).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("1_Pooling/config.json of a likely size"),
        "{refused}"
    );
    // Of one of another size, or beside GGUF files alone, nothing is asked.
    let gguf = files(&["config.json", MODULES, "x.gguf"]);
    all[1].bytes = MODULES_BYTES_MAX + 1;
    for files in [&gguf, &all] {
        assert_eq!(naming_files(files, &name, &WantedModel::default()), []);
    }
}

#[test]
fn one_of_several_gguf_files_is_named_by_its_format_or_its_name() {
    let all = [
        "b-Q4_K_M.gguf",
        "b-q8_0.gguf",
        "mmproj-F16.gguf",
        "big/b-BF16-00002-of-00002.gguf",
        "big/b-BF16-00001-of-00002.gguf",
        "README.md",
    ];
    assert_eq!(
        chosen(&all, "a/b:q4_k_m", None).unwrap(),
        (
            "a/b:Q4_K_M".to_owned(),
            vec!["README.md".to_owned(), "b-Q4_K_M.gguf".to_owned()]
        )
    );
    assert_eq!(
        chosen(&all, "a/b", Some("b-q8_0.gguf")).unwrap().0,
        "a/b:Q8_0"
    );
    for error in [
        chosen(&all, "a/b:BF16", None),
        chosen(&["b-00001-of-00002.gguf"], "a/b", None),
    ] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("split into 2 parts"), "{error}");
    }
    let error = chosen(&all, "a/b", None).unwrap_err().to_string();
    assert!(
        error.contains("BF16 (20 B), Q4_K_M (10 B), Q8_0"),
        "{error}"
    );
    assert!(matches!(
        chosen(&all, "a/b:Q2_K", None),
        Err(HubError::NoLabel { .. })
    ));
    assert!(matches!(
        chosen(&all, "a/b", Some("../x.gguf")),
        Err(HubError::NoLabel { .. })
    ));
    assert_eq!(chosen(&["only.gguf"], "a/b", None).unwrap().0, "a/b:only");
}

#[test]
fn formats_that_two_files_share_do_not_name_either() {
    let all = ["x-Q8_0.gguf", "y-Q8_0.gguf"];
    assert!(matches!(
        chosen(&all, "a/b:Q8_0", None),
        Err(HubError::NoLabel { .. })
    ));
    assert_eq!(chosen(&all, "a/b:x-Q8_0", None).unwrap().0, "a/b:x-Q8_0");
}

#[test]
fn what_is_no_model_is_told_apart() {
    assert!(matches!(
        chosen(&["config.json", "pytorch_model.bin"], "a/b", None),
        Err(HubError::PickleOnly { .. })
    ));
    assert!(matches!(
        chosen(&["README.md"], "a/b", None),
        Err(HubError::NoModel { .. })
    ));
    assert!(matches!(
        chosen(&["model.safetensors"], "a/b", None),
        Err(HubError::NoModel { .. })
    ));
}

#[test]
fn labels_are_formats_or_safe_names() {
    for (stem, label) in [
        ("m-Q4_K_M", "Q4_K_M"),
        ("m.q8_0", "Q8_0"),
        ("m-IQ3_XXS", "IQ3_XXS"),
        ("m-f16", "F16"),
        ("Qwen", "Qwen"),
        ("a b..c", "a_b_c"),
        ("..x", "_x"),
    ] {
        assert_eq!(label_of(stem), label, "{stem}");
        assert!(
            "a/b"
                .parse::<HubName>()
                .unwrap()
                .with_label(&label_of(stem))
                .is_ok()
        );
    }
}
