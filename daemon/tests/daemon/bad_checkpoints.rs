//! Checkpoints that cannot be loaded: each is explained, and the model before stays.

use std::{fs, path::Path};

use serde_json::json;
use sluice_proto::{
    client::CallError,
    v1::{self, model_ref::By},
};
use tempfile::TempDir;
use tonic::Code;

use crate::support::{
    Daemon, chat,
    checkpoints::{self, change_config, change_weights},
    done, generate, tokens, within,
};

/// Loads a checkpoint to the end.
async fn load(daemon: &Daemon, path: &Path) -> Result<v1::Model, CallError> {
    load_by(daemon, By::Path(path.to_str().unwrap().to_owned())).await
}

async fn load_by(daemon: &Daemon, model: By) -> Result<v1::Model, CallError> {
    let request = v1::LoadModelRequest {
        model: model.into(),
        ..Default::default()
    };
    let mut stream = daemon
        .models()
        .await
        .load_model(request)
        .await?
        .into_inner();
    loop {
        let message = within("the load", stream.message()).await?.unwrap();
        let outcome = message.operation.and_then(|load| load.outcome);
        if let Some(v1::operation::Outcome::Load(result)) = outcome {
            return Ok(result.model.expect("a load ends with a model"));
        }
    }
}

/// GGUF files without tensors in the place of the weights, whose only key is their architecture.
fn only_gguf(folder: &Path, names: &[&str], architecture: &str) {
    fs::remove_file(folder.join("model.safetensors")).unwrap();
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    for number in [0u64, 1] {
        bytes.extend(number.to_le_bytes());
    }
    for (text, kind) in [("general.architecture", Some(8u32)), (architecture, None)] {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend(kind.map_or(Vec::new(), |kind| kind.to_le_bytes().to_vec()));
    }
    for name in names {
        fs::write(folder.join(name), &bytes).unwrap();
    }
}

#[tokio::test]
async fn each_broken_checkpoint_is_explained_and_the_model_before_stays() {
    const LOST: &str = "model.transformer.blocks.1.q_proj.weight";
    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    type Spoil = fn(&Path);
    let cases: [(Spoil, Code, &str, &[&str]); 10] = [
        (
            |folder| change_weights(folder, |tensors| drop(tensors.remove(LOST))),
            Code::FailedPrecondition,
            "TENSOR_MISSING",
            &[LOST],
        ),
        (
            |folder| {
                change_weights(folder, |tensors| {
                    tensors.get_mut(LOST).unwrap().0 = vec![32, 128];
                });
            },
            Code::FailedPrecondition,
            "TENSOR_WRONG_SHAPE",
            &[LOST, "[32, 128]", "[64, 64]"],
        ),
        (
            |folder| {
                let path = folder.join("model.safetensors");
                let bytes = fs::read(&path).unwrap();
                fs::write(&path, &bytes[..bytes.len() - 1000]).unwrap();
            },
            Code::FailedPrecondition,
            "FILE_WRONG_LENGTH",
            &["model.safetensors"],
        ),
        (
            |folder| change_config(folder, "model_type", json!("mystery")),
            Code::FailedPrecondition,
            "UNKNOWN_ARCHITECTURE",
            &["mystery", "llada"],
        ),
        (
            |folder| fs::write(folder.join("config.json"), b"{\"a\": \"\xff\"}").unwrap(),
            Code::FailedPrecondition,
            "FILE_MALFORMED",
            &["config.json"],
        ),
        (
            |folder| fs::write(folder.join("tokenizer.json"), "{}").unwrap(),
            Code::FailedPrecondition,
            "TOKENIZER_INVALID",
            &["tokenizer"],
        ),
        (
            |folder| fs::remove_file(folder.join("model.safetensors")).unwrap(),
            Code::FailedPrecondition,
            "NO_WEIGHTS",
            &["model.safetensors"],
        ),
        (
            |folder| only_gguf(folder, &["model.gguf"], "mamba"),
            Code::FailedPrecondition,
            "UNKNOWN_ARCHITECTURE",
            &["mamba", "llada"],
        ),
        (
            |folder| only_gguf(folder, &["model.gguf"], "llada"),
            Code::FailedPrecondition,
            "METADATA_INVALID",
            &["model.gguf", "llada.embedding_length is missing"],
        ),
        (
            |folder| only_gguf(folder, &["a.gguf", "b.gguf"], "llada"),
            Code::FailedPrecondition,
            "SEVERAL_MODELS",
            &["2 files of models, such as a.gguf"],
        ),
    ];
    for (spoil, code, reason, words) in cases {
        let copy = checkpoints::copy();
        spoil(copy.path());
        let error = load(&daemon, copy.path()).await.unwrap_err();
        assert_eq!(
            (error.code, error.reason.as_deref()),
            (code, Some(reason)),
            "{error}"
        );
        for word in words {
            assert!(error.message.contains(word), "{word} in {error}");
        }
        let events = generate(&daemon, tokens(&[1, 2], 8)).await.unwrap();
        assert_eq!(done(&events).token_ids.len(), 8);
    }
    let absent = load(&daemon, Path::new("/nowhere/at/all"))
        .await
        .unwrap_err();
    assert_eq!(absent.code, Code::NotFound, "{absent}");
    let relative = load(&daemon, Path::new("nowhere")).await.unwrap_err();
    assert_eq!(relative.reason.as_deref(), Some("INVALID_FIELD"));
}

#[tokio::test]
async fn a_daemon_whose_model_fails_says_why_and_takes_another() {
    let empty = TempDir::new().unwrap();
    let daemon = Daemon::start(&["--model", empty.path().to_str().unwrap()]).await;
    let model = daemon.model_state(v1::ModelState::Failed).await;
    assert!(model.error.contains("model.safetensors"), "{}", model.error);
    let error = generate(&daemon, chat("hello")).await.unwrap_err();
    assert_eq!(error.code, Code::FailedPrecondition);
    assert_eq!(error.reason.as_deref(), Some("MODEL_FAILED"));
    assert!(error.message.contains("model.safetensors") && error.hint.is_some());
    let errors = daemon.log().matches("ERROR").count();
    assert_eq!(errors, 1, "{}", daemon.log());

    let model = load(&daemon, &checkpoints::fixture("llada-tiny"))
        .await
        .unwrap();
    assert_eq!(model.name, "llada-tiny");
    assert!(generate(&daemon, tokens(&[1], 8)).await.is_ok());
    // And back to the embedded one, by its name.
    let demo = By::Name("sluice-demo".to_owned());
    let model = load_by(&daemon, demo).await.unwrap();
    assert!(model.is_demonstration);
    assert!(generate(&daemon, chat("Hello.")).await.is_ok());
    let list = daemon
        .models()
        .await
        .list_models(v1::ListModelsRequest {})
        .await;
    let listed = list.unwrap().into_inner().models;
    let names: Vec<_> = listed.iter().map(|model| model.name.as_str()).collect();
    assert_eq!(
        names.len(),
        2,
        "the embedded one, and what was loaded by its path: {names:?}"
    );
}
