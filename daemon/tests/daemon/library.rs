//! The library as a user meets it: a daemon, a hub on this machine, models pulled, loaded, let go and removed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use sluice_proto::{
    client::CallError,
    v1::{
        self,
        model_ref::By,
        operation::{Detail, Outcome},
    },
};
use tempfile::TempDir;
use testkit::hub::{COMMIT, Fault, Hub};
use tonic::{Code, Streaming};

use crate::{
    embeddings::{embed, texts},
    support::{
        self, Daemon, apply, checkpoints, command, done, generate, pictures, rest_of, tokens,
        until, within,
    },
};

const NAME: &str = "o/llada-tiny";

type Pulling = Streaming<v1::PullModelResponse>;

/// A daemon and its hub, which has the small fixture.
struct Setting {
    hub: Hub,
    daemon: Daemon,
}

impl Setting {
    async fn new(arguments: &[&str]) -> Self {
        Self::with_variables(arguments, &[]).await
    }

    async fn with_variables(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let hub = Hub::start();
        for file in ["config.json", "model.safetensors"] {
            let bytes = fs::read(checkpoints::fixture("llada-tiny").join(file)).unwrap();
            hub.put(NAME, file, &bytes, file.ends_with("safetensors"));
        }
        hub.put(NAME, "README.md", b"---\nlicense: mit\n---\n", false);
        let folder = TempDir::new().unwrap();
        let daemon = start(folder, &hub, arguments, variables).await;
        Self { hub, daemon }
    }

    async fn pull(&self, name: &str) -> Result<Vec<v1::Operation>, CallError> {
        pull(&self.daemon, name).await
    }

    async fn load(&self, name: &str, make_default: bool) -> Result<v1::Model, CallError> {
        match self.last_of_load(name, make_default).await?.outcome {
            Some(Outcome::Load(result)) => Ok(result.model.expect("a load ends with a model")),
            other => panic!("{other:?}"),
        }
    }

    /// The last picture of a load.
    async fn last_of_load(
        &self,
        name: &str,
        make_default: bool,
    ) -> Result<v1::Operation, CallError> {
        let request = v1::LoadModelRequest {
            model: By::Name(name.to_owned()).into(),
            make_default,
            ..Default::default()
        };
        let answer = self.daemon.models().await.load_model(request).await;
        let mut pictures = pictures(answer).await?;
        Ok(pictures.pop().expect("there is one at once"))
    }

    async fn list(&self) -> Vec<v1::Model> {
        let answer = self
            .daemon
            .models()
            .await
            .list_models(v1::ListModelsRequest {})
            .await;
        answer.unwrap().into_inner().models
    }

    async fn listed(&self, name: &str) -> Option<v1::Model> {
        self.list()
            .await
            .into_iter()
            .find(|model| model.name == name)
    }

    async fn remove(&self, name: &str, force: bool) -> Result<u64, CallError> {
        let request = v1::RemoveModelRequest {
            model: By::Name(name.to_owned()).into(),
            force,
            ..Default::default()
        };
        let answer = self.daemon.models().await.remove_model(request).await?;
        Ok(answer.into_inner().freed_bytes)
    }

    /// Puts a level in force; whether weights were converted for it.
    async fn switch(&self, level: v1::Level) -> bool {
        let pictures = apply(&self.daemon, support::level(level)).await.unwrap();
        // Weights of such a small model may be converted between two pictures.
        let Some(Detail::PlannedChange(planned)) = &pictures.last().unwrap().detail else {
            panic!("{pictures:?}")
        };
        let plan = planned.plan.as_ref().unwrap();
        let estimate = plan.switch_estimate.expect("rates are known");
        estimate.converted_weights > 0
    }

    async fn kept(&self) -> Vec<v1::ConvertedWeights> {
        let request = v1::ListModelsRequest {};
        let answer = self.daemon.models().await.list_models(request).await;
        answer.unwrap().into_inner().converted_weights
    }

    async fn remove_kept(&self) -> v1::RemoveModelResponse {
        let request = v1::RemoveModelRequest {
            model: By::Name(NAME.to_owned()).into(),
            converted_weights_only: true,
            ..Default::default()
        };
        let answer = self.daemon.models().await.remove_model(request).await;
        answer.unwrap().into_inner()
    }

    fn models(&self) -> PathBuf {
        models(self.daemon.folder.path())
    }
}

fn models(folder: &Path) -> PathBuf {
    folder.join(".local/share/sluice/models")
}

async fn start(
    folder: TempDir,
    hub: &Hub,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Daemon {
    let socket = folder.path().join("s");
    let mut command = command(folder.path());
    command
        .env("HF_ENDPOINT", hub.endpoint())
        .envs(variables.iter().copied())
        .arg("--socket")
        .arg(&socket)
        .args(["--device", "cpu"])
        .args(arguments);
    let daemon = Daemon::spawn(folder, socket, command).await;
    // One loads at a time, and at the start one does.
    daemon.model_state(v1::ModelState::Ready).await;
    daemon
}

async fn pull(daemon: &Daemon, name: &str) -> Result<Vec<v1::Operation>, CallError> {
    rest_of(pulling(daemon, name).await?).await
}

/// A download that was begun, or joined.
async fn pulling(daemon: &Daemon, name: &str) -> Result<Pulling, CallError> {
    let request = v1::PullModelRequest {
        model: By::Name(name.to_owned()).into(),
        ..Default::default()
    };
    let answer = daemon.models().await.pull_model(request).await?;
    Ok(answer.into_inner())
}

#[tokio::test]
async fn the_embedded_model_is_inspected_and_stays() {
    let setting = Setting::new(&[]).await;
    let request = v1::InspectModelRequest::default();
    let mut client = setting.daemon.models().await;
    let facts = client.inspect_model(request).await.unwrap().into_inner();
    assert!(facts.facts.iter().any(|fact| fact.name == "layers"));
    let not_loadable = facts
        .levels
        .iter()
        .filter(|level| !level.not_loadable_reason.is_empty());
    assert_eq!(not_loadable.count(), 0);
    let error = setting.remove("sluice-demo", true).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("EMBEDDED"));
}

/// What a pull has hashed isn't read again by the load; what the disk damages later is refused, and mended by a pull.
#[tokio::test]
async fn a_damaged_file_of_a_pulled_model_is_refused_and_mended() {
    let setting = Setting::new(&[]).await;
    setting.pull(NAME).await.unwrap();
    let verified = setting.daemon.folder.path().join(".cache/sluice/verified");
    let lines = || fs::read_to_string(&verified).unwrap().lines().count();
    assert_eq!(lines(), 3, "all were hashed");
    let before = fs::metadata(&verified).unwrap().modified().unwrap();
    setting.load(NAME, false).await.unwrap();
    let after = fs::metadata(&verified).unwrap().modified().unwrap();
    assert_eq!(before, after, "nothing was compared");

    let path = setting.models().join(NAME).join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = setting.load(NAME, false).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("FILE_DAMAGED"), "{error:?}");
    assert!(error.to_string().contains("model.safetensors"), "{error}");
    setting.pull(NAME).await.unwrap();
    setting.load(NAME, false).await.unwrap();
}

#[tokio::test]
async fn a_model_is_pulled_listed_inspected_loaded_and_removed() {
    let setting = Setting::new(&[]).await;
    let pictures = setting.pull(NAME).await.unwrap();
    let last = pictures.last().unwrap();
    let Some(Outcome::Pull(result)) = &last.outcome else {
        panic!("{last:?}")
    };
    assert_eq!(result.model.as_ref().unwrap().name, NAME);
    let Some(Detail::PullPlan(plan)) = &last.detail else {
        panic!("{last:?}")
    };
    assert_eq!((plan.files, plan.present_bytes), (3, 0));
    assert_eq!(Path::new(&plan.folder), setting.models().join(NAME));

    let model = setting.listed(NAME).await.unwrap();
    assert_eq!(model.state(), v1::ModelState::Available);
    assert_eq!(model.origin(), v1::ModelOrigin::Pulled);
    assert_eq!(
        (model.family.as_str(), model.commit.as_str()),
        ("llada", COMMIT)
    );
    assert!(model.parameters.unwrap() > 10_000);

    let request = v1::InspectModelRequest {
        model: By::Name(NAME.to_owned()).into(),
    };
    let facts = setting
        .daemon
        .models()
        .await
        .inspect_model(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(facts.not_loadable_reason, "");
    assert!(
        facts
            .facts
            .iter()
            .any(|fact| fact.name == "licence" && fact.value == "mit")
    );
    assert!(
        facts
            .facts
            .iter()
            .any(|fact| fact.name == "tokenizer" && fact.value == "none")
    );
    assert_eq!(
        facts
            .tensors
            .iter()
            .map(|group| group.parameters)
            .sum::<u64>(),
        model.parameters.unwrap()
    );
    let off = facts
        .levels
        .iter()
        .find(|level| level.level() == v1::Level::Off)
        .unwrap();
    let frugal = facts
        .levels
        .iter()
        .find(|level| level.level() == v1::Level::Moderate)
        .unwrap();
    assert!(
        off.fits && frugal.weight_bytes < off.weight_bytes,
        "{:?}",
        facts.levels
    );

    let loaded = setting.load(NAME, false).await.unwrap();
    assert_eq!(loaded.name, NAME);
    assert_eq!(
        setting.listed(NAME).await.unwrap().state(),
        v1::ModelState::Ready
    );
    let events = generate(&setting.daemon, tokens(&[1, 2, 3], 8))
        .await
        .unwrap();
    assert_eq!(done(&events).token_ids.len(), 8);

    let error = setting.remove(NAME, false).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("MODEL_IN_USE"));
    assert!(setting.remove(NAME, true).await.unwrap() > 10_000);
    assert!(setting.listed(NAME).await.is_none());
    assert!(
        !setting.models().join("o").exists(),
        "its owner's folder went with it"
    );
    let error = setting.remove(NAME, false).await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_deref()),
        (Code::NotFound, Some("UNKNOWN_MODEL"))
    );
}

#[tokio::test]
async fn a_sentence_encoder_is_pulled_with_its_pooling_embeds_and_is_removed_whole() {
    const ENCODER: &str = "o/bert-tiny";
    let setting = Setting::new(&[]).await;
    let files = [
        "config.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "1_Pooling/config.json",
    ];
    let mut total = 0;
    for file in files {
        let bytes = fs::read(checkpoints::fixture("bert-tiny").join(file)).unwrap();
        total += bytes.len() as u64;
        let has_hash = file.ends_with("safetensors");
        setting.hub.put(ENCODER, file, &bytes, has_hash);
    }
    let pictures = setting.pull(ENCODER).await.unwrap();
    let Some(Detail::PullPlan(plan)) = &pictures.last().unwrap().detail else {
        panic!("{pictures:?}")
    };
    assert_eq!(
        (plan.files as usize, plan.total_bytes),
        (files.len(), total)
    );
    setting.load(ENCODER, false).await.unwrap();
    let found = embed(&setting.daemon, texts(&["a", "b"])).await.unwrap();
    // Its Pooling is followed by Normalize.
    for vector in &found.vectors {
        let length: f32 = vector.values.iter().map(|value| value * value).sum();
        assert!((length - 1.0).abs() < 1e-4, "{length}");
    }
    assert_eq!(setting.remove(ENCODER, true).await.unwrap(), total);
    assert!(!setting.models().join("o").exists());

    // A module that is not computed is refused by its name, with its configuration there.
    let modules = r#"[{"path": "", "type": "Transformer"}, {"path": "1_Pooling", "type": "Pooling"}, {"path": "2_Dense", "type": "Dense"}]"#;
    let put = |file: &str, bytes: &[u8]| setting.hub.put(ENCODER, file, bytes, false);
    put("modules.json", modules.as_bytes());
    put("2_Dense/config.json", b"{}");
    put("2_Dense/model.safetensors", b"no");
    setting.pull(ENCODER).await.unwrap();
    let dense = setting.models().join(ENCODER).join("2_Dense");
    assert!(dense.join("config.json").exists() && !dense.join("model.safetensors").exists());
    let refused = setting.load(ENCODER, false).await.unwrap_err().to_string();
    assert!(refused.contains("\"Dense\" as module 2"), "{refused}");
    setting.remove(ENCODER, true).await.unwrap();

    // Nothing is there of one that leads elsewhere.
    put("modules.json", br#"[{"path": "../../escaped"}]"#);
    let refused = setting.pull(ENCODER).await.unwrap_err().to_string();
    assert!(
        refused.contains("\"../../escaped\" is not the name of a folder"),
        "{refused}"
    );
    assert!(!setting.models().join("o").exists());
}

#[tokio::test]
async fn a_download_outlives_its_client_and_a_daemon_that_is_killed() {
    let mut setting = Setting::new(&[]).await;
    let size = fs::metadata(checkpoints::fixture("llada-tiny").join("model.safetensors"))
        .unwrap()
        .len();
    setting.hub.pace(Some(size as usize / 4));
    let request = v1::PullModelRequest {
        model: By::Name(NAME.to_owned()).into(),
        ..Default::default()
    };
    let stream = setting
        .daemon
        .models()
        .await
        .pull_model(request)
        .await
        .unwrap();
    drop(stream);
    until("bytes of it", || async {
        let model = setting.listed(NAME).await;
        model.is_some_and(|model| model.state() == v1::ModelState::Pulling)
    })
    .await;
    let error = setting.remove(NAME, true).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("MODEL_IN_USE"));
    let part = setting
        .models()
        .join(".partial/o--llada-tiny/model.safetensors.part");
    until("a part on disk", || async { part.exists() }).await;
    setting.daemon.signal(rustix::process::Signal::KILL);
    setting.daemon.ended().await;

    setting.hub.pace(None);
    let folder = std::mem::replace(&mut setting.daemon.folder, TempDir::new().unwrap());
    fs::remove_file(folder.path().join("s")).unwrap();
    setting.daemon = start(folder, &setting.hub, &[], &[]).await;
    assert_eq!(
        setting.listed(NAME).await.unwrap().state(),
        v1::ModelState::Partial
    );
    let error = setting.load(NAME, false).await.unwrap_err();
    assert!(error.hint.unwrap().contains("sluice pull o/llada-tiny"));
    setting.pull(NAME).await.unwrap();
    setting.load(NAME, false).await.unwrap();
}

#[tokio::test]
async fn a_download_is_joined_and_cancelled() {
    let setting = Setting::new(&[]).await;
    setting.hub.fault("model.safetensors", [Fault::Stall(1000)]);
    let first = pulling(&setting.daemon, NAME).await.unwrap();
    let second = pulling(&setting.daemon, NAME).await.unwrap();
    let cancelled = async {
        until("the download", || async {
            !setting.hub.asked_for("model.safetensors").is_empty()
        })
        .await;
        // Another revision is another model, for the same folder.
        let other = v1::PullModelRequest {
            model: By::Name(NAME.to_owned()).into(),
            revision: "other".to_owned(),
            ..Default::default()
        };
        let refused = setting.daemon.models().await.pull_model(other).await;
        let error = CallError::from(refused.unwrap_err());
        assert_eq!(error.reason.as_deref(), Some("PULLING_ANOTHER_REVISION"));
        let operation_id = setting.listed(NAME).await.unwrap().operation_id.unwrap();
        let request = v1::CancelOperationRequest { operation_id };
        let mut client = setting.daemon.operations().await;
        let answer = client.cancel_operation(request).await;
        let answer = answer.unwrap().into_inner();
        assert!(answer.was_active);
        // Whoever cancels by id alone learns what it was.
        let cancelled = answer.operation.unwrap();
        assert_eq!(cancelled.kind(), v1::OperationKind::Pull);
        assert_eq!(cancelled.model, NAME);
        until("its end", || async {
            let model = setting.listed(NAME).await;
            model.is_some_and(|model| model.state() == v1::ModelState::Partial)
        })
        .await;
        let answer = client.cancel_operation(request).await;
        assert!(!answer.unwrap().into_inner().was_active);
    };
    let (first, second, ()) = tokio::join!(rest_of(first), rest_of(second), cancelled);
    for ended in [first, second] {
        assert_eq!(ended.unwrap_err().reason.as_deref(), Some("CANCELLED"));
    }
    assert_eq!(
        setting.hub.asked_for("/revision/main?blobs=true").len(),
        1,
        "the second joined the first"
    );
    assert!(
        setting.remove(NAME, false).await.unwrap() > 0,
        "what there is of it can go"
    );
    assert!(setting.listed(NAME).await.is_none());
}

#[tokio::test]
async fn who_follows_a_download_hears_that_the_shutdown_ended_it() {
    let mut setting = Setting::new(&[]).await;
    setting.hub.fault("model.safetensors", [Fault::Stall(1000)]);
    let followed = pulling(&setting.daemon, NAME).await.unwrap();
    until("the download", || async {
        !setting.hub.asked_for("model.safetensors").is_empty()
    })
    .await;
    setting.daemon.signal(rustix::process::Signal::TERM);
    let ended = rest_of(followed).await.unwrap_err();
    assert_eq!(ended.reason.as_deref(), Some("CANCELLED"));
    let (status, _, log) = setting.daemon.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
}

#[tokio::test]
async fn failures_of_a_hub_come_with_a_hint() {
    let setting = Setting::new(&[]).await;
    setting.hub.wants("hf_right");
    let error = setting.pull(NAME).await.unwrap_err();
    assert_eq!(error.code, Code::NotFound);
    assert!(error.hint.unwrap().contains("HF_TOKEN"));
    // The caller's own token goes along, for this call.
    let request = v1::PullModelRequest {
        model: By::Name(NAME.to_owned()).into(),
        hub_token: "hf_right".to_owned(),
        ..Default::default()
    };
    let mut stream = setting
        .daemon
        .models()
        .await
        .pull_model(request)
        .await
        .unwrap()
        .into_inner();
    while within("a download", stream.message())
        .await
        .unwrap()
        .is_some()
    {}
    assert!(setting.listed(NAME).await.is_some());
    assert!(!setting.daemon.log().contains("hf_right"));
    for wrong in ["nameless", "../o/m", "o/../m", "/etc/passwd", ""] {
        let error = setting.pull(wrong).await.unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument, "{wrong}");
    }
    let offline = Setting::with_variables(&[], &[("HF_HUB_OFFLINE", "1")]).await;
    let error = offline.pull(NAME).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("OFFLINE"));
    assert!(offline.hub.seen().is_empty());
}

#[tokio::test]
async fn the_default_model_is_there_after_a_restart() {
    let mut setting = Setting::new(&[]).await;
    setting.pull(NAME).await.unwrap();
    setting.load(NAME, true).await.unwrap();
    until("the record", || async {
        setting.listed(NAME).await.unwrap().is_default
    })
    .await;
    setting.daemon.signal(rustix::process::Signal::TERM);
    setting.daemon.ended().await;
    let folder = std::mem::replace(&mut setting.daemon.folder, TempDir::new().unwrap());
    setting.daemon = start(folder, &setting.hub, &[], &[]).await;
    let model = setting.daemon.model_state(v1::ModelState::Ready).await;
    assert_eq!(model.name, NAME);
    // What is gone is no default any more.
    setting.remove(NAME, true).await.unwrap();
    let list = setting.list().await;
    let default: Vec<_> = list.iter().filter(|model| model.is_default).collect();
    assert!(
        matches!(&default[..], [model] if model.is_demonstration),
        "{default:?}"
    );
}

#[tokio::test]
async fn who_asks_for_a_default_that_cannot_be_saved_gets_the_error_and_the_model() {
    let setting = Setting::new(&[]).await;
    setting.pull(NAME).await.unwrap();
    // No file takes the place of a folder.
    let file = setting.models().join(".state.json");
    fs::remove_file(&file).unwrap();
    fs::create_dir_all(file.join("in the way")).unwrap();
    let error = setting.load(NAME, true).await.unwrap_err();
    assert_eq!(error.code, Code::FailedPrecondition);
    assert_eq!(error.reason.as_deref(), Some("CANNOT_RECORD"));
    let words = "o/llada-tiny is loaded, but is not the default after a restart: cannot write ";
    assert!(error.message.starts_with(words), "{}", error.message);
    let model = setting.daemon.snapshot().await.model.unwrap();
    assert_eq!((&*model.name, model.state()), (NAME, v1::ModelState::Ready));
    // A load that asks for nothing to be kept is done.
    setting.load(NAME, false).await.unwrap();
    let error = apply(&setting.daemon, support::level(v1::Level::Moderate)).await;
    let error = error.unwrap_err();
    let words = "level and budget of o/llada-tiny are in force, but not after a restart: ";
    assert!(error.message.starts_with(words), "{}", error.message);
    let settings = setting.daemon.snapshot().await.settings.unwrap();
    assert_eq!(settings.level(), v1::Level::Moderate);
    fs::remove_dir_all(&file).unwrap();
    setting.load(NAME, true).await.unwrap();
    assert!(setting.listed(NAME).await.unwrap().is_default);
}

#[tokio::test]
async fn models_of_others_are_listed_and_left_alone() {
    let folder = TempDir::new().unwrap();
    let source = checkpoints::fixture("llada-tiny");
    let put = |target: &Path| {
        fs::create_dir_all(target).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(source.join(file), target.join(file)).unwrap();
        }
    };
    put(&models(folder.path()).join("by-hand"));
    let repository = folder
        .path()
        .join(".cache/huggingface/hub/models--o--cached");
    let blobs = repository.join("blobs");
    put(&blobs);
    let snapshot = repository.join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::os::unix::fs::symlink(blobs.join(file), snapshot.join(file)).unwrap();
    }
    fs::create_dir_all(repository.join("refs")).unwrap();
    fs::write(repository.join("refs/main"), COMMIT).unwrap();
    let gguf = models(folder.path()).join("o/several");
    fs::create_dir_all(&gguf).unwrap();
    fs::write(gguf.join("several-Q4_K_M.gguf"), b"GGUF").unwrap();

    let hub = Hub::start();
    let daemon = start(folder, &hub, &[], &[]).await;
    let setting = Setting { hub, daemon };
    for (name, origin) in [
        ("by-hand", v1::ModelOrigin::Local),
        ("o/cached", v1::ModelOrigin::HubCache),
        ("o/several:Q4_K_M", v1::ModelOrigin::Local),
    ] {
        assert_eq!(
            setting.listed(name).await.unwrap().origin(),
            origin,
            "{name}"
        );
        let error = setting.remove(name, true).await.unwrap_err();
        assert_eq!(error.reason.as_deref(), Some("NOT_OURS"), "{name}");
    }
    for name in ["by-hand", "o/cached"] {
        assert_eq!(setting.load(name, false).await.unwrap().name, name);
    }
    let error = setting.load("o/several", false).await.unwrap_err();
    assert!(
        error.message.contains("there is o/several:Q4_K_M"),
        "{}",
        error.message
    );
}

#[tokio::test]
async fn a_model_that_serves_by_its_path_is_in_use_as_well() {
    let mut setting = Setting::new(&[]).await;
    setting.pull(NAME).await.unwrap();
    let path = setting.models().join(NAME);
    setting.daemon.signal(rustix::process::Signal::TERM);
    setting.daemon.ended().await;
    let folder = std::mem::replace(&mut setting.daemon.folder, TempDir::new().unwrap());
    let arguments = ["--model", path.to_str().unwrap()];
    setting.daemon = start(folder, &setting.hub, &arguments, &[]).await;
    let listed = setting.listed(NAME).await.unwrap();
    assert_eq!(listed.state(), v1::ModelState::Ready);
    let error = setting.remove(NAME, false).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("MODEL_IN_USE"));
    assert!(path.join("model.safetensors").exists());
}

#[tokio::test]
async fn converted_weights_are_kept_listed_and_removed() {
    let setting = Setting::new(&[]).await;
    setting.pull(NAME).await.unwrap();
    setting.load(NAME, false).await.unwrap();
    assert!(setting.kept().await.is_empty());
    assert!(setting.switch(v1::Level::Moderate).await);
    let kept = setting.kept().await;
    let told = (&kept[0].model[..], kept[0].level(), kept[0].is_in_use);
    assert_eq!((kept.len(), told), (1, (NAME, v1::Level::Moderate, true)));
    let removed = setting.remove_kept().await;
    assert_eq!((removed.removed_files, removed.files_in_use), (0, 1));

    assert!(!setting.switch(v1::Level::Standard).await);
    assert!(!setting.switch(v1::Level::Moderate).await, "it is read");
    assert!(!setting.switch(v1::Level::Standard).await);
    let removed = setting.remove_kept().await;
    assert_eq!(
        (removed.removed_files, removed.freed_bytes),
        (1, kept[0].bytes)
    );
    assert!(setting.kept().await.is_empty());
    assert!(
        setting.switch(v1::Level::Moderate).await,
        "nothing was left to read"
    );

    // What was converted of a model goes with it.
    setting.remove(NAME, true).await.unwrap();
    assert!(setting.kept().await.is_empty());
}
