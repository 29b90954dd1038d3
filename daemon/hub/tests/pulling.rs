//! Pulls from a hub on this machine, as a user's would go, with everything that can happen on the way.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use sluice_hub::{
    Access, Client, HubError, Manifest, PARTIAL, Patience, Pull, PullEvent, PulledModel, Token,
};
use tempfile::TempDir;
use testkit::hub::{COMMIT, Fault, Hub, sha256};

/// Quick enough for a test, long enough for a busy machine.
const PATIENCE: Patience = Patience {
    connect: Duration::from_secs(5),
    stall: Duration::from_millis(400),
    pause: Duration::from_millis(1),
    attempts: 3,
};

const SECRET: &str = "hf_secret";

/// A hub with one model, and a folder to pull into.
struct Setting {
    hub: Hub,
    models: TempDir,
    weights: Vec<u8>,
}

impl Setting {
    fn new() -> Self {
        let hub = Hub::start();
        let weights: Vec<u8> = (0..100_000_u32).map(|index| (index % 251) as u8).collect();
        hub.put("o/m", "config.json", b"{}", false);
        hub.put("o/m", "README.md", b"---\nlicense: mit\n---\n", false);
        hub.put("o/m", "model.safetensors", &weights, true);
        Self {
            hub,
            models: TempDir::new().unwrap(),
            weights,
        }
    }

    fn client(&self, token: Option<&str>) -> Client {
        let access = Access::new(&self.hub.endpoint(), token.and_then(Token::new), false);
        Client::new(access.unwrap(), PATIENCE)
    }

    async fn pull(&self, name: &str) -> Result<PulledModel, HubError> {
        self.pull_with(name, &self.client(None), &mut |_| {}).await
    }

    async fn pull_with(
        &self,
        name: &str,
        client: &Client,
        report: &mut (dyn FnMut(PullEvent) + Send),
    ) -> Result<PulledModel, HubError> {
        let pull = Pull {
            name: name.parse().unwrap(),
            file: None,
            revision: None,
        };
        pull.run(client, self.models.path(), &|_, _| false, report)
            .await
    }

    fn path(&self, path: &str) -> PathBuf {
        self.models.path().join(path)
    }

    fn part(&self) -> PathBuf {
        self.path(PARTIAL).join("o--m/model.safetensors.part")
    }

    /// The model is there, whole, and nothing else is.
    fn check_whole(&self) {
        assert_eq!(
            fs::read(self.path("o/m/model.safetensors")).unwrap(),
            self.weights
        );
        assert_eq!(
            names(&self.path("o/m")),
            [
                ".sluice.json",
                "README.md",
                "config.json",
                "model.safetensors"
            ]
        );
        assert_eq!(names(&self.path(PARTIAL)), ["o--m.lock"]);
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn a_model_comes_whole_with_word_of_how_far_it_is() {
    let setting = Setting::new();
    setting.hub.put("o/m", "pytorch_model.bin", b"code", true);
    let mut events = Vec::new();
    let pulled = setting
        .pull_with("o/m", &setting.client(None), &mut |event| {
            events.push(event);
        })
        .await
        .unwrap();
    assert!(!pulled.was_present);
    assert_eq!(pulled.folder, setting.path("o/m"));
    setting.check_whole();
    let manifest = Manifest::read(&pulled.folder).unwrap();
    assert_eq!(
        (manifest.commit.as_str(), manifest.files.len()),
        (COMMIT, 3)
    );
    let total = manifest.bytes();
    assert!(
        matches!(&events[0], PullEvent::Resolved { total_bytes, present_bytes: 0, weight_bytes: 100_000, .. } if *total_bytes == total)
    );
    let done: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            PullEvent::Progress { done_bytes } => Some(*done_bytes),
            _ => None,
        })
        .collect();
    assert!(done.is_sorted(), "{done:?}");
    assert_eq!(done.last(), Some(&total));
    assert!(setting.hub.asked_for(".bin").is_empty());

    // The second time nothing but the list is asked for.
    let asked = setting.hub.seen().len();
    assert!(setting.pull("o/m").await.unwrap().was_present);
    assert_eq!(setting.hub.seen().len(), asked + 1);
}

#[tokio::test]
async fn damaged_files_are_found_and_mended_by_the_next_pull() {
    let setting = Setting::new();
    let pulled = setting.pull("o/m").await.unwrap();
    assert_eq!(pulled.hashed.len(), 3);
    let again = setting.pull("o/m").await.unwrap();
    assert!(again.was_present && again.hashed.len() == 3);
    for (name, length) in [("model.safetensors", 100_000), ("config.json", 2)] {
        let path = setting.path("o/m").join(name);
        let mut bytes = fs::read(&path).unwrap();
        bytes[length / 2] ^= 4;
        fs::write(&path, bytes).unwrap();
        let before = setting.hub.asked_for("model.safetensors").len();
        let pulled = setting.pull("o/m").await.unwrap();
        assert!(!pulled.was_present);
        setting.check_whole();
        assert_eq!(fs::read(setting.path("o/m/config.json")).unwrap(), b"{}");
        let asked = setting.hub.asked_for("model.safetensors").len() - before;
        assert_eq!(
            asked,
            usize::from(name != "config.json"),
            "whole files stay"
        );
    }

    // What is known isn't read.
    let pull = Pull {
        name: "o/m".parse().unwrap(),
        file: None,
        revision: None,
    };
    let client = setting.client(None);
    let mut quiet = |_| {};
    let known = pull.run(&client, setting.models.path(), &|_, _| true, &mut quiet);
    let known = known.await.unwrap();
    assert!(known.was_present && known.hashed.is_empty());
}

#[tokio::test]
async fn a_cut_connection_is_taken_up_where_it_broke() {
    let setting = Setting::new();
    setting.hub.fault(
        "model.safetensors",
        [Fault::Cut(30_000), Fault::Cut(30_000)],
    );
    setting.pull("o/m").await.unwrap();
    setting.check_whole();
    let asked = setting.hub.asked_for("model.safetensors");
    let ranges: Vec<_> = asked.into_iter().map(|seen| seen.range).collect();
    assert_eq!(
        ranges,
        [
            None,
            Some("bytes=30000-".to_owned()),
            Some("bytes=60000-".to_owned())
        ]
    );
}

#[tokio::test]
async fn a_line_that_breaks_often_is_enough_while_it_brings_something() {
    let setting = Setting::new();
    setting
        .hub
        .fault("model.safetensors", vec![Fault::Cut(10_000); 9]);
    setting.pull("o/m").await.unwrap();
    setting.check_whole();
}

#[tokio::test]
async fn a_pull_that_was_killed_goes_on_and_is_checked_from_its_first_byte() {
    let setting = Setting::new();
    setting
        .hub
        .fault("model.safetensors", [Fault::Stall(50_000)]);
    let client = setting.client(None);
    // Dropped in the middle, as by a kill.
    let mut quiet = |_| {};
    let pull = setting.pull_with("o/m", &client, &mut quiet);
    assert!(
        tokio::time::timeout(Duration::from_millis(300), pull)
            .await
            .is_err()
    );
    assert!(!setting.path("o/m").exists());
    // What a kill leaves is any number of its first bytes.
    fs::write(setting.part(), &setting.weights[..40_000]).unwrap();
    let mut present = None;
    let mut report = |event| {
        if let PullEvent::Resolved { present_bytes, .. } = event {
            present = Some(present_bytes);
        }
    };
    setting
        .pull_with("o/m", &client, &mut report)
        .await
        .unwrap();
    setting.check_whole();
    assert_eq!(
        present,
        Some(40_000 + 2 + 21),
        "the part and the two small files"
    );
    let last = setting.hub.asked_for("model.safetensors").pop().unwrap();
    assert_eq!(last.range.as_deref(), Some("bytes=40000-"));
    assert_eq!(setting.hub.asked_for("config.json").len(), 1);
}

#[tokio::test]
async fn bytes_that_are_not_those_promised_are_deleted() {
    let setting = Setting::new();
    fs::create_dir_all(setting.path(PARTIAL)).unwrap();
    setting.hub.claim(
        "o/m",
        "model.safetensors",
        100_000,
        Some(sha256(b"something else")),
    );
    let error = setting.pull("o/m").await.unwrap_err();
    assert!(
        matches!(&error, HubError::WrongHash { found, .. } if *found == sha256(&setting.weights)),
        "{error}"
    );
    assert!(error.to_string().contains("deleted"), "{error}");
    assert!(!setting.part().exists() && !setting.path("o/m").exists());
    // A disk that spoiled the first half is found out too, and the next pull brings it right.
    setting.hub.claim(
        "o/m",
        "model.safetensors",
        100_000,
        Some(sha256(&setting.weights)),
    );
    setting
        .hub
        .fault("model.safetensors", [Fault::Status(404, vec![])]);
    setting.pull("o/m").await.unwrap_err();
    fs::write(setting.part(), [0; 40_000]).unwrap();
    assert!(matches!(
        setting.pull("o/m").await,
        Err(HubError::WrongHash { .. })
    ));
    setting.pull("o/m").await.unwrap();
    setting.check_whole();
}

#[tokio::test]
async fn refusals_say_what_is_missing() {
    let setting = Setting::new();
    let refused = async |status, code: &str, token: Option<&str>| {
        let headers = vec![("x-error-code", code.to_owned())];
        setting
            .hub
            .fault("/revision/main", [Fault::Status(status, headers)]);
        setting
            .pull_with("o/m", &setting.client(token), &mut |_| {})
            .await
            .unwrap_err()
    };
    assert!(matches!(
        refused(401, "RepoNotFound", None).await,
        HubError::NoRepository {
            has_token: false,
            ..
        }
    ));
    assert!(matches!(
        refused(401, "", None).await,
        HubError::NoRepository { .. }
    ));
    assert!(matches!(
        refused(401, "", Some(SECRET)).await,
        HubError::WrongToken
    ));
    assert!(matches!(
        refused(401, "GatedRepo", None).await,
        HubError::Gated {
            has_token: false,
            ..
        }
    ));
    assert!(matches!(
        refused(403, "GatedRepo", Some(SECRET)).await,
        HubError::Gated {
            has_token: true,
            ..
        }
    ));
    assert!(matches!(
        refused(404, "RevisionNotFound", None).await,
        HubError::NoRevision { .. }
    ));
    assert!(matches!(
        refused(404, "", Some(SECRET)).await,
        HubError::NoRepository {
            has_token: true,
            ..
        }
    ));
    assert!(matches!(
        refused(418, "", None).await,
        HubError::Status { status: 418, .. }
    ));
    // None of them was asked twice.
    assert_eq!(setting.hub.seen().len(), 8);
    // Gated repositories are listed, and refuse their files.
    setting.hub.fault(
        "model.safetensors",
        [Fault::Status(
            401,
            vec![("x-error-code", "GatedRepo".to_owned())],
        )],
    );
    assert!(
        matches!(setting.pull("o/m").await, Err(HubError::Gated { page, .. }) if page.ends_with("/o/m"))
    );
}

#[tokio::test]
async fn what_may_pass_is_tried_again_with_word_of_it() {
    let setting = Setting::new();
    let too_many = Fault::Status(429, vec![("retry-after", "0".to_owned())]);
    setting
        .hub
        .fault("/revision/main", [too_many, Fault::Status(503, vec![])]);
    setting.hub.fault(
        "model.safetensors",
        [Fault::Status(500, vec![]), Fault::Status(502, vec![])],
    );
    let mut told = Vec::new();
    let mut report = |event| {
        if let PullEvent::Retry { reason, .. } = event {
            told.push(reason);
        }
    };
    setting
        .pull_with("o/m", &setting.client(None), &mut report)
        .await
        .unwrap();
    setting.check_whole();
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(told[0].contains("limits the request rate"), "{told:?}");
    // But not for ever.
    let other = Setting::new();
    other
        .hub
        .fault("model.safetensors", vec![Fault::Status(500, vec![]); 9]);
    assert!(matches!(
        other.pull("o/m").await,
        Err(HubError::Status { status: 500, .. })
    ));
    assert_eq!(other.hub.asked_for("model.safetensors").len(), 3);
}

#[tokio::test]
async fn a_hub_that_says_nothing_is_given_up() {
    let setting = Setting::new();
    setting.hub.fault("model.safetensors", [Fault::Stall(10)]);
    setting.pull("o/m").await.unwrap();
    setting.check_whole();
    let other = Setting::new();
    other
        .hub
        .fault("model.safetensors", vec![Fault::Stall(0); 3]);
    assert!(matches!(
        other.pull("o/m").await,
        Err(HubError::Stalled { .. })
    ));
    let gone = Access::new("http://127.0.0.1:1", None, false).unwrap();
    let client = Client::new(gone, PATIENCE);
    let error = other
        .pull_with("o/m", &client, &mut |_| {})
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("127.0.0.1:1: Connection refused"),
        "{error}"
    );
}

#[tokio::test]
async fn a_token_goes_to_the_hub_and_to_nobody_it_refers_to() {
    let (setting, store) = (Setting::new(), Hub::start());
    setting.hub.wants(SECRET);
    setting.hub.refer_to(&store);
    for (path, bytes) in [
        ("config.json", &b"{}"[..]),
        ("README.md", b"---\nlicense: mit\n---\n"),
        ("model.safetensors", &setting.weights),
    ] {
        store.put("o/m", path, bytes, true);
    }
    assert!(matches!(
        setting.pull("o/m").await,
        Err(HubError::NoRepository {
            has_token: false,
            ..
        })
    ));
    setting
        .pull_with("o/m", &setting.client(Some(SECRET)), &mut |_| {})
        .await
        .unwrap();
    setting.check_whole();
    assert!(
        setting
            .hub
            .seen()
            .iter()
            .skip(1)
            .all(|seen| seen.token.as_deref() == Some(SECRET))
    );
    assert_eq!(store.seen().len(), 3);
    assert!(store.seen().iter().all(|seen| seen.token.is_none()));
}

#[tokio::test]
async fn redirects_come_to_an_end() {
    let setting = Setting::new();
    let moved = Fault::Status(
        307,
        vec![(
            "location",
            "/api/models/o/m/revision/main?blobs=true".to_owned(),
        )],
    );
    setting.hub.fault("/revision/main", vec![moved.clone(); 2]);
    setting.pull("o/m").await.unwrap();
    setting.hub.fault("/revision/main", vec![moved; 20]);
    let error = setting.pull("o/m").await.unwrap_err().to_string();
    assert!(error.contains("redirects"), "{error}");
}

#[tokio::test]
async fn a_store_that_knows_no_ranges_is_read_from_the_start() {
    let setting = Setting::new();
    setting
        .hub
        .fault("model.safetensors", [Fault::Cut(30_000), Fault::NoRanges]);
    setting.pull("o/m").await.unwrap();
    setting.check_whole();
    let other = Setting::new();
    other
        .hub
        .fault("model.safetensors", [Fault::Cut(30_000), Fault::WrongRange]);
    let error = other.pull("o/m").await.unwrap_err().to_string();
    assert!(
        error.contains("has another byte range than requested"),
        "{error}"
    );
}

#[tokio::test]
async fn lies_about_lengths_are_found_out() {
    let setting = Setting::new();
    setting.hub.fault("model.safetensors", [Fault::Endless]);
    let error = setting.pull("o/m").await.unwrap_err().to_string();
    assert!(error.contains("has more bytes than declared"), "{error}");
    assert!(!setting.part().exists());
    setting.hub.claim("o/m", "model.safetensors", 99_999, None);
    let error = setting.pull("o/m").await.unwrap_err().to_string();
    assert!(error.contains("another length"), "{error}");
    setting.hub.fault("/revision/main", [Fault::Endless]);
    let error = setting.pull("o/m").await.unwrap_err().to_string();
    assert!(error.contains("more than 16777216 bytes"), "{error}");
}

#[tokio::test]
async fn a_disk_without_room_is_known_before_the_first_byte() {
    let setting = Setting::new();
    setting.hub.claim("o/m", "model.safetensors", 1 << 62, None);
    let error = setting.pull("o/m").await.unwrap_err();
    assert!(
        matches!(error, HubError::NoSpace { needed_bytes, .. } if needed_bytes > 1 << 62),
        "{error}"
    );
    assert!(setting.hub.asked_for("config.json").is_empty());
}

#[tokio::test]
async fn offline_means_that_nobody_is_asked() {
    let setting = Setting::new();
    let access = Access::new(&setting.hub.endpoint(), None, true).unwrap();
    let error = setting
        .pull_with("o/m", &Client::new(access, PATIENCE), &mut |_| {})
        .await
        .unwrap_err();
    assert!(matches!(error, HubError::Offline { .. }));
    assert!(setting.hub.seen().is_empty());
}

#[tokio::test]
async fn names_from_a_hostile_hub_stay_in_the_folder() {
    let setting = Setting::new();
    for path in [
        "../../escaped.safetensors",
        "/etc/escaped",
        "..",
        "a/../../escaped",
        ".sluice.json",
    ] {
        setting.hub.put("o/m", path, b"evil", false);
    }
    setting.pull("o/m").await.unwrap();
    setting.check_whole();
    assert_eq!(names(setting.models.path()), [".partial", "o"]);
    // Through an index, too.
    let index = br#"{"weight_map":{"x":"../../escaped.safetensors"}}"#;
    setting.hub.put("o/n", "config.json", b"{}", false);
    setting
        .hub
        .put("o/n", "model.safetensors.index.json", index, false);
    setting
        .hub
        .put("o/n", "../../escaped.safetensors", b"evil", false);
    assert!(matches!(
        setting.pull("o/n").await,
        Err(HubError::NoModel { .. })
    ));
}

#[tokio::test]
async fn shards_and_single_gguf_files_come_with_what_belongs_to_them() {
    let setting = Setting::new();
    let index = br#"{"weight_map":{"x":"model-1.safetensors","y":"model-2.safetensors"}}"#;
    setting.hub.put("o/s", "config.json", b"{}", false);
    setting
        .hub
        .put("o/s", "model.safetensors.index.json", index, false);
    for shard in [
        "model-1.safetensors",
        "model-2.safetensors",
        "model-3.safetensors",
    ] {
        setting.hub.put("o/s", shard, shard.as_bytes(), true);
    }
    setting.pull("o/s").await.unwrap();
    assert_eq!(
        names(&setting.path("o/s")),
        [
            ".sluice.json",
            "config.json",
            "model-1.safetensors",
            "model-2.safetensors",
            "model.safetensors.index.json"
        ]
    );
    setting.hub.put("o/g", "sub/g-Q4_K_M.gguf", b"GGUF4", true);
    setting.hub.put("o/g", "g-Q8_0.gguf", b"GGUF8", true);
    assert!(matches!(
        setting.pull("o/g").await,
        Err(HubError::Ambiguous { .. })
    ));
    let pulled = setting.pull("o/g:q4_k_m").await.unwrap();
    assert_eq!(pulled.name.to_string(), "o/g:Q4_K_M");
    assert_eq!(
        names(&setting.path("o/g:Q4_K_M")),
        [".sluice.json", "g-Q4_K_M.gguf"]
    );
}

/// A sentence encoder with its pooling's configuration in a folder.
fn put_encoder(hub: &Hub, pooling: &[u8]) {
    let modules = br#"[{"path":""},{"path":"1_Pooling"},{"path":"2_Normalize"}]"#;
    hub.put("o/m", "modules.json", modules, false);
    hub.put("o/m", "1_Pooling/config.json", pooling, false);
    hub.put("o/m", "1_Pooling/model.safetensors", b"no", true);
    hub.put("o/m", "onnx/config.json", b"{}", false);
}

const POOLING: &[u8] = br#"{"pooling_mode":"mean"}"#;

#[tokio::test]
async fn folders_of_modules_come_with_their_configurations() {
    let setting = Setting::new();
    put_encoder(&setting.hub, POOLING);
    let pulled = setting.pull("o/m").await.unwrap();
    assert_eq!(names(&setting.path(PARTIAL)), ["o--m.lock"]);
    assert_eq!(
        names(&pulled.folder),
        [
            ".sluice.json",
            "1_Pooling",
            "README.md",
            "config.json",
            "model.safetensors",
            "modules.json"
        ]
    );
    let inner = pulled.folder.join("1_Pooling");
    assert_eq!(names(&inner), ["config.json"]);
    assert_eq!(fs::read(inner.join("config.json")).unwrap(), POOLING);
    let manifest = Manifest::read(&pulled.folder).unwrap();
    assert_eq!(manifest.files.len(), 5);
    assert_eq!(
        manifest.folders().into_iter().collect::<Vec<_>>(),
        ["1_Pooling"]
    );
    assert!(setting.pull("o/m").await.unwrap().was_present);
    // Damage is found there, too, and mended.
    fs::write(inner.join("config.json"), vec![b'x'; POOLING.len()]).unwrap();
    let mended = setting.pull("o/m").await.unwrap();
    assert!(!mended.was_present);
    assert_eq!(fs::read(inner.join("config.json")).unwrap(), POOLING);
    assert_eq!(setting.hub.asked_for("model.safetensors").len(), 1);
}

#[tokio::test]
async fn what_a_killed_pull_left_in_a_folder_is_gone_on_with_or_removed() {
    let setting = Setting::new();
    put_encoder(&setting.hub, POOLING);
    let cut = [Fault::Cut(7), Fault::Status(404, vec![])];
    setting.hub.fault("1_Pooling/config.json", cut);
    setting.pull("o/m").await.unwrap_err();
    let partial = setting.path(PARTIAL).join("o--m");
    assert_eq!(names(&partial.join("1_Pooling")), ["config.json.part"]);
    // Of another version, or of nobody.
    fs::write(partial.join("1_Pooling/other.json"), "x").unwrap();
    fs::create_dir_all(partial.join("1_Pooling/deeper")).unwrap();
    fs::create_dir_all(partial.join("2_Dense/deeper")).unwrap();
    fs::write(partial.join("2_Dense/config.json"), "x").unwrap();
    let pulled = setting.pull("o/m").await.unwrap();
    let asked = setting.hub.asked_for("1_Pooling/config.json");
    assert_eq!(asked.last().unwrap().range.as_deref(), Some("bytes=7-"));
    assert_eq!(names(&pulled.folder.join("1_Pooling")), ["config.json"]);
    assert!(!pulled.folder.join("2_Dense").exists());
}

#[tokio::test]
async fn a_link_in_the_place_of_a_folder_is_not_followed() {
    let setting = Setting::new();
    put_encoder(&setting.hub, POOLING);
    let cut = [Fault::Cut(7), Fault::Status(404, vec![])];
    setting.hub.fault("1_Pooling/config.json", cut);
    setting.pull("o/m").await.unwrap_err();
    let elsewhere = TempDir::new().unwrap();
    let precious = elsewhere.path().join("config.json");
    fs::write(&precious, "precious").unwrap();
    let replace = |folder: &Path| {
        fs::remove_dir_all(folder).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), folder).unwrap();
    };
    replace(&setting.path(PARTIAL).join("o--m/1_Pooling"));
    let pulled = setting.pull("o/m").await.unwrap();
    assert_eq!(
        fs::read(pulled.folder.join("1_Pooling/config.json")).unwrap(),
        POOLING
    );
    // A model with such a link is none that was pulled.
    replace(&pulled.folder.join("1_Pooling"));
    assert_eq!(Manifest::read(&pulled.folder), None);
    assert!(matches!(
        setting.pull("o/m").await,
        Err(HubError::FolderTaken { .. })
    ));
    assert_eq!(names(elsewhere.path()), ["config.json"]);
    assert_eq!(fs::read(precious).unwrap(), b"precious");
}

#[tokio::test]
async fn modules_that_lead_elsewhere_are_refused_before_anything_is_downloaded() {
    let setting = Setting::new();
    for path in ["../../escaped", "/escaped", "a/b", "..", ".hidden"] {
        let modules = format!(r#"[{{"path":"{path}"}}]"#);
        let hub = &setting.hub;
        hub.put("o/m", "modules.json", modules.as_bytes(), false);
        hub.put("o/m", &format!("{path}/config.json"), b"evil", false);
        let refused = setting.pull("o/m").await.unwrap_err().to_string();
        assert!(refused.contains("is not the name of a folder"), "{refused}");
    }
    // A file of the model, and a folder of that name.
    let modules = br#"[{"path":"LICENSE"}]"#;
    setting.hub.put("o/m", "modules.json", modules, false);
    setting.hub.put("o/m", "LICENSE", b"mit", false);
    setting
        .hub
        .put("o/m", "LICENSE/config.json", b"evil", false);
    let refused = setting.pull("o/m").await.unwrap_err().to_string();
    assert!(refused.contains("two files of one name"), "{refused}");
    assert!(setting.hub.asked_for("model.safetensors").is_empty());
    assert!(names(setting.models.path()).is_empty());
}

#[tokio::test]
async fn a_newer_commit_takes_the_old_ones_place_and_brings_only_what_changed() {
    let setting = Setting::new();
    setting.pull("o/m").await.unwrap();
    setting.hub.put("o/m", "config.json", b"{\"a\":1}", false);
    setting
        .hub
        .commit("fedcba9876543210fedcba9876543210fedcba98");
    let pulled = setting.pull("o/m").await.unwrap();
    assert!(!pulled.was_present);
    setting.check_whole();
    assert_eq!(
        fs::read(setting.path("o/m/config.json")).unwrap(),
        b"{\"a\":1}"
    );
    assert_eq!(setting.hub.asked_for("model.safetensors").len(), 1);
    // A part of what has changed since is no beginning of the new one.
    fs::remove_dir_all(setting.path("o")).unwrap();
    setting
        .hub
        .fault("model.safetensors", vec![Fault::Cut(500); 1]);
    setting
        .hub
        .fault("model.safetensors", [Fault::Status(404, vec![])]);
    setting.pull("o/m").await.unwrap_err();
    assert!(setting.part().exists());
    let weights = vec![7; 90_000];
    setting.hub.put("o/m", "model.safetensors", &weights, true);
    setting.pull("o/m").await.unwrap();
    assert_eq!(
        fs::read(setting.path("o/m/model.safetensors")).unwrap(),
        weights
    );
    assert_eq!(
        setting
            .hub
            .asked_for("model.safetensors")
            .pop()
            .unwrap()
            .range,
        None
    );
}

#[tokio::test]
async fn what_somebody_else_put_there_is_left_alone_and_two_do_not_write_at_once() {
    let setting = Setting::new();
    fs::create_dir_all(setting.path("o/m")).unwrap();
    assert!(matches!(
        setting.pull("o/m").await,
        Err(HubError::FolderTaken { .. })
    ));
    fs::remove_dir(setting.path("o/m")).unwrap();
    setting.hub.fault("model.safetensors", [Fault::Stall(10)]);
    let access = Access::new(&setting.hub.endpoint(), None, false);
    // Longer than the second one waits for the first.
    let stall = Duration::from_secs(60);
    let client = Client::new(access.unwrap(), Patience { stall, ..PATIENCE });
    let mut quiet = |_| {};
    let first = setting.pull_with("o/m", &client, &mut quiet);
    let second = async {
        while setting.hub.asked_for("model.safetensors").is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        setting.pull("o/m").await
    };
    let second = tokio::select! {
        first = first => panic!("it stalls: {first:?}"),
        second = second => second,
    };
    assert!(matches!(second, Err(HubError::Locked { .. })), "{second:?}");
    // The first one is cancelled by now, and lets go of the folder.
    setting.pull("o/m").await.unwrap();
    setting.check_whole();
}
