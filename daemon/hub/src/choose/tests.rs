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
    let chosen = choose(&files(paths), &name.parse().unwrap(), &wanted, None)?;
    Ok((
        chosen.name.to_string(),
        chosen.files.into_iter().map(|file| file.path).collect(),
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
    assert!(needs_index(&all, &name, &WantedModel::default()));
    let pick = |index: &str| choose(&all, &name, &WantedModel::default(), Some(index.as_bytes()));
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
