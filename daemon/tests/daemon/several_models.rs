//! Several models in one budget: requests name the one that they are for, models come for them, and others go.

mod evictions;

use std::path::{Path, PathBuf};

use sluice_proto::{
    client::CallError,
    v1::{self, generation_event::Event, model_ref::By},
};
use tempfile::TempDir;
use tonic::{Code, Streaming};

use crate::support::{
    Daemon, apply, checkpoints, done, generate, level, next, pictures, rest, run, tokens, until,
    within,
};

/// A request for ids of the model of this name.
fn asking(model: &str) -> v1::GenerateRequest {
    v1::GenerateRequest {
        model: model.to_owned(),
        ..tokens(&[1, 2, 3], 8)
    }
}

fn code_and_reason(error: &CallError) -> (Code, &str) {
    (error.code, error.reason.as_deref().unwrap_or_default())
}

/// Names of models in a folder of models.
const MODELS: [&str; 4] = ["one", "two", "three", "four"];

/// A folder with models of one shape and of different weights.
fn models() -> TempDir {
    let folder = TempDir::new().unwrap();
    for (seed, name) in MODELS.iter().enumerate() {
        checkpoints::slow_with_seed(&folder.path().join(name), seed as u64);
    }
    folder
}

struct Setting {
    daemon: Daemon,
    folder: TempDir,
}

impl Setting {
    /// A daemon that has the first model loaded.
    async fn new(arguments: &[&str]) -> Self {
        Self::in_folder(models(), arguments).await
    }

    async fn in_folder(folder: TempDir, arguments: &[&str]) -> Self {
        let models = folder.path().to_str().unwrap().to_owned();
        let first = folder.path().join(MODELS[0]);
        let arguments = [&["--models", &models], arguments].concat();
        let daemon = Daemon::with_model(&first, &arguments).await;
        Self { daemon, folder }
    }

    async fn load(&self, name: &str, pin: bool) -> Result<Vec<v1::Operation>, CallError> {
        let request = v1::LoadModelRequest {
            model: By::Name(name.to_owned()).into(),
            pin,
            ..Default::default()
        };
        pictures(self.daemon.models().await.load_model(request).await).await
    }

    async fn unload(&self, name: &str) -> String {
        let model = name.to_owned();
        let request = v1::UnloadModelRequest { model };
        let answer = self.daemon.models().await.unload_model(request).await;
        answer.unwrap().into_inner().model
    }

    /// The loaded models, in the order in which they were loaded.
    async fn loaded(&self) -> Vec<v1::LoadedModel> {
        self.daemon.snapshot().await.loaded_models
    }

    async fn names(&self) -> Vec<String> {
        let loaded = self.loaded().await.into_iter();
        loaded.map(|loaded| loaded.model.unwrap().name).collect()
    }

    async fn ids(&self, request: v1::GenerateRequest) -> Vec<u32> {
        let events = generate(&self.daemon, request).await.unwrap();
        done(&events).token_ids.clone()
    }

    /// What the plan of a model takes at most, as the daemon prints it.
    async fn peak_bytes(&self, name: &str) -> u64 {
        let request = v1::PlanRequest {
            model: By::Name(name.to_owned()).into(),
            ..Default::default()
        };
        let answer = self.daemon.optimizer().await.plan(request).await.unwrap();
        answer.into_inner().plan.unwrap().peak_bytes
    }
}

/// What a model answers that is alone in a daemon.
async fn alone(model: &Path) -> Vec<u32> {
    let daemon = Daemon::with_model(model, &[]).await;
    let events = generate(&daemon, tokens(&[1, 2, 3], 8)).await.unwrap();
    done(&events).token_ids.clone()
}

/// A budget that has room for so many of the models, and for no one more.
async fn budget_for(count: u64) -> (TempDir, String) {
    let setting = Setting::new(&[]).await;
    let loaded = setting.loaded().await;
    let [one] = &loaded[..] else {
        panic!("{loaded:?}")
    };
    let peak = one.plan.as_ref().unwrap().peak_bytes;
    let common = peak - one.claimed_bytes;
    let bytes = common + count * one.claimed_bytes + one.claimed_bytes / 8;
    (setting.folder, bytes.to_string())
}

#[tokio::test]
async fn a_request_is_for_the_model_that_it_names() {
    let setting = Setting::new(&["--load-on-request=false"]).await;
    let daemon = &setting.daemon;
    let unnamed = setting.ids(tokens(&[1, 2, 3], 8)).await;
    assert_eq!(setting.ids(asking("one")).await, unnamed);

    let refusal =
        |model: String| async move { generate(daemon, asking(&model)).await.unwrap_err() };
    let error = refusal("two".to_owned()).await;
    let not_loaded = (Code::FailedPrecondition, "MODEL_NOT_LOADED");
    assert_eq!(code_and_reason(&error), not_loaded);
    let error = refusal("sluice-demo".to_owned()).await;
    assert_eq!(code_and_reason(&error), not_loaded);
    let error = refusal("o/nothing".to_owned()).await;
    assert_eq!(code_and_reason(&error), (Code::NotFound, "UNKNOWN_MODEL"));
    let error = refusal("n".repeat(5000)).await;
    let wrong = (Code::InvalidArgument, "INVALID_FIELD");
    assert_eq!(code_and_reason(&error), wrong);

    // What somebody loads is there for all.
    setting.load("two", false).await.unwrap();
    let two = setting.ids(asking("two")).await;
    assert_ne!(two, unnamed);
    assert_eq!(setting.ids(asking("one")).await, unnamed);
    // The one that was loaded last is meant where none is named.
    assert_eq!(setting.ids(tokens(&[1, 2, 3], 8)).await, two);
    assert_eq!(setting.unload("").await, "two");
    assert_eq!(setting.ids(tokens(&[1, 2, 3], 8)).await, unnamed);
    // Unloaded on request it does not come back.
    let error = refusal("two".to_owned()).await;
    assert_eq!(code_and_reason(&error), not_loaded);
}

#[tokio::test]
async fn a_model_comes_for_the_request_that_names_it_and_all_serve_at_once() {
    let setting = Setting::new(&[]).await;
    let daemon = &setting.daemon;
    let mut stream = daemon.generation().await.generate(asking("two")).await;
    let events = rest(stream.as_mut().unwrap().get_mut()).await.unwrap();
    let told = |event: &Event| matches!(event, Event::Notice(notice) if notice.text == "waiting for the model two to load");
    assert!(events.iter().any(told), "{events:?}");
    assert_eq!(setting.names().await, ["one", "two"]);
    let snapshot = daemon.snapshot().await;
    assert_eq!(
        snapshot.model.unwrap().name,
        "one",
        "it is the present one still"
    );

    let expected = [
        alone(&setting.folder.path().join("one")).await,
        alone(&setting.folder.path().join("two")).await,
        alone(&setting.folder.path().join("three")).await,
    ];
    let asked = |index: usize| setting.ids(asking(MODELS[index]));
    for _ in 0..3 {
        let (one, two, three) = tokio::join!(asked(0), asked(1), asked(2));
        assert_eq!([one, two, three], expected);
    }
    assert_eq!(setting.names().await, ["one", "two", "three"]);
    // Each with its own level: that of the others stays.
    let change = v1::ApplyRequest {
        model: "two".to_owned(),
        ..level(v1::Level::Aggressive)
    };
    apply(daemon, change).await.unwrap();
    let levels: Vec<_> = (setting.loaded().await.iter())
        .map(|loaded| loaded.plan.as_ref().unwrap().level())
        .collect();
    let (standard, aggressive) = (v1::Level::Standard, v1::Level::Aggressive);
    assert_eq!(levels, [standard, aggressive, standard]);
    assert_eq!(asked(0).await, expected[0]);
    assert_ne!(asked(1).await, expected[1]);
}

#[tokio::test]
async fn the_least_recently_used_goes_for_another() {
    let setting = Setting::new(&["--loaded-models", "2"]).await;
    let one = setting.ids(asking("one")).await;
    setting.ids(asking("two")).await;
    setting.ids(asking("one")).await;
    setting.ids(asking("three")).await;
    assert_eq!(setting.names().await, ["one", "three"]);
    // Who names none means the one that was loaded last by somebody, which goes and comes back.
    setting.ids(asking("four")).await;
    assert_eq!(setting.names().await, ["three", "four"]);
    assert_eq!(setting.ids(tokens(&[1, 2, 3], 8)).await, one);
    assert_eq!(setting.names().await, ["four", "one"]);
}

#[tokio::test]
async fn pinned_models_stay() {
    let setting = Setting::new(&["--loaded-models", "2"]).await;
    setting.load("two", true).await.unwrap();
    setting.ids(asking("one")).await;
    setting.ids(asking("three")).await;
    assert_eq!(setting.names().await, ["two", "three"]);
    assert!(setting.loaded().await[0].is_pinned);

    setting.load("three", true).await.unwrap();
    let error = generate(&setting.daemon, asking("one")).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("MODEL_FAILED"));
    assert!(error.message.contains("pinned"), "{}", error.message);
    let error = setting.load("one", false).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("NO_PLACE"));
    assert_eq!(setting.names().await, ["two", "three"]);
    assert_eq!(setting.unload("two").await, "two");
    setting.ids(asking("one")).await;
    assert_eq!(setting.names().await, ["three", "one"]);
}

#[tokio::test]
async fn the_file_of_models_pins_as_well() {
    let folder = models();
    let config = TempDir::new().unwrap();
    std::fs::write(config.path().join("sluiced.toml"), "").unwrap();
    std::fs::write(config.path().join("models.toml"), "[two]\npinned = true\n").unwrap();
    let file = config.path().join("sluiced.toml");
    let arguments = ["--loaded-models", "2", "--config", file.to_str().unwrap()];
    let setting = Setting::in_folder(folder, &arguments).await;
    setting.ids(asking("two")).await;
    setting.ids(asking("one")).await;
    setting.ids(asking("three")).await;
    assert_eq!(setting.names().await, ["two", "three"]);
}

/// With room for two of four: whoever fits stays, and the sum never exceeds the budget.
#[tokio::test]
async fn what_all_hold_keeps_to_the_budget() {
    let (folder, budget) = budget_for(2).await;
    let arguments = ["--loaded-models", "8", "--budget", &budget];
    let setting = Setting::in_folder(folder, &arguments).await;
    let budget: u64 = budget.parse().unwrap();
    let mut expected = Vec::new();
    for model in MODELS {
        expected.push(alone(&setting.folder.path().join(model)).await);
    }
    for round in 0..3 {
        for (index, model) in MODELS.iter().enumerate() {
            assert_eq!(setting.ids(asking(model)).await, expected[index]);
            let names = setting.names().await;
            assert!(
                names.len() <= 2 && names.contains(&(*model).to_owned()),
                "{names:?}"
            );
            let loaded = setting.loaded().await;
            for loaded in &loaded {
                assert_eq!(
                    loaded.plan.as_ref().unwrap().streamed_bytes_per_pass,
                    0,
                    "round {round}"
                );
            }
            let claimed: u64 = loaded.iter().map(|loaded| loaded.claimed_bytes).sum();
            assert!(claimed <= budget);
        }
    }
    let device = setting.daemon.snapshot().await.device.unwrap();
    assert!(
        device.peak_bytes <= budget,
        "{} of {budget}",
        device.peak_bytes
    );
    // A model that does not fit even alone is refused with figures, and nobody goes for it.
    let before = setting.names().await;
    let request = v1::LoadModelRequest {
        model: By::Name("one".to_owned()).into(),
        options: Some(v1::PlanOptions {
            budget: Some(v1::plan_options::Budget::BudgetBytes(1 << 20)),
            ..Default::default()
        }),
        ..Default::default()
    };
    if !before.contains(&"one".to_owned()) {
        let answer = setting.daemon.models().await.load_model(request).await;
        let error = pictures(answer).await.unwrap_err();
        assert!(error.message.contains("too small"), "{}", error.message);
        assert_eq!(setting.names().await, before);
    }
}

#[tokio::test]
async fn one_with_requests_never_goes() {
    let setting = Setting::new(&["--loaded-models", "1"]).await;
    let daemon = &setting.daemon;
    let long = |model: &str| v1::GenerateRequest {
        model: model.to_owned(),
        ..crate::support::long()
    };
    let (_, mut running) = daemon.running(long("one")).await;
    let mut stream = daemon.generation().await.generate(asking("two")).await;
    let waiting = stream.as_mut().unwrap().get_mut();
    // It is told what it waits for, and the other goes on.
    let load = async {
        loop {
            let snapshot = daemon.snapshot().await;
            let mut operations = snapshot.operations.into_iter();
            let load = operations.find(|one| one.kind() == v1::OperationKind::Load);
            if let Some(load) = load
                && load
                    .notices
                    .iter()
                    .any(|notice| notice == "waiting for requests of the model one to end")
            {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    within("the load to wait", load).await;
    assert_eq!(setting.names().await, ["one"]);
    // Who comes for the first model now waits behind it: they take turns.
    let late = tokio::spawn({
        let mut client = daemon.generation().await;
        async move {
            let mut stream = client.generate(asking("one")).await.unwrap().into_inner();
            rest(&mut stream).await.unwrap()
        }
    });
    until("the late one in line", || async {
        let snapshot = daemon.snapshot().await;
        snapshot.queue.unwrap().waiting == 2
    })
    .await;
    for _ in 0..3 {
        assert!(next(&mut running).await.unwrap().is_some());
    }
    drop(running);
    let events = rest(waiting).await.unwrap();
    assert_eq!(done(&events).token_ids.len(), 8);
    let late = within("the late one", late).await.unwrap();
    assert_eq!(done(&late).token_ids.len(), 8);
    assert_eq!(setting.names().await, ["one"]);
}

/// Clients that alternate between models of which one fits: nobody is lost, and nobody starves.
#[tokio::test]
async fn under_load_models_take_turns_and_no_request_is_lost() {
    let (folder, budget) = budget_for(1).await;
    let arguments = ["--loaded-models", "4", "--budget", &budget];
    let setting = Setting::in_folder(folder, &arguments).await;
    let budget: u64 = budget.parse().unwrap();
    let mut expected = Vec::new();
    for model in &MODELS[..3] {
        expected.push(alone(&setting.folder.path().join(model)).await);
    }
    let clients = (0..6).map(|client: usize| {
        let (daemon, expected) = (&setting.daemon, &expected);
        async move {
            for round in 0..4 {
                // Two of each stay with their model, so that none is ever without requests; the others alternate.
                let index = match client {
                    0..3 => client,
                    _ => (client + round) % 3,
                };
                let events = generate(daemon, asking(MODELS[index])).await.unwrap();
                assert_eq!(done(&events).token_ids, expected[index]);
            }
        }
    });
    within("all of them", futures_util::future::join_all(clients)).await;
    let snapshot = setting.daemon.snapshot().await;
    let totals = snapshot.totals.unwrap();
    assert_eq!((totals.done_requests, totals.failed_requests), (24, 0));
    assert!(snapshot.device.unwrap().peak_bytes <= budget);
    let log = setting.daemon.log();
    let swaps = log.matches("unloaded to make room").count();
    assert!((2..=24).contains(&swaps), "{swaps} swaps for 24 requests");
}

#[tokio::test]
async fn a_request_that_nobody_wants_any_more_has_nothing_loaded() {
    let setting = Setting::new(&["--loaded-models", "1"]).await;
    let daemon = &setting.daemon;
    let (_, running) = daemon.running(crate::support::long()).await;
    let stream = daemon.generation().await.generate(asking("two")).await;
    until("the load", || async {
        let operations = daemon.snapshot().await.operations;
        operations
            .iter()
            .any(|one| one.kind() == v1::OperationKind::Load)
    })
    .await;
    // Cancelled while it waits for the other's end, the load comes to nothing.
    let operations = daemon.snapshot().await.operations;
    let load = operations
        .iter()
        .find(|one| one.kind() == v1::OperationKind::Load);
    assert!(daemon.cancel(load.unwrap().operation_id).await.unwrap());
    let error = rest(&mut stream.unwrap().into_inner()).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("MODEL_FAILED"));
    drop(running);
    assert_eq!(setting.names().await, ["one"]);
    assert_eq!(setting.ids(asking("two")).await.len(), 8);
}

/// As it was before there could be several: a load takes the present model's place, whatever it does.
#[tokio::test]
async fn with_one_model_a_load_replaces_it() {
    let setting = Setting::new(&["--loaded-models", "1"]).await;
    let daemon = &setting.daemon;
    let (_, mut running) = daemon.running(crate::support::long()).await;
    let loading = tokio::spawn({
        let mut client = daemon.models().await;
        async move {
            let request = v1::LoadModelRequest {
                model: By::Name("two".to_owned()).into(),
                ..Default::default()
            };
            pictures(client.load_model(request).await).await.unwrap()
        }
    });
    assert!(next(&mut running).await.unwrap().is_some());
    drop(running);
    within("the load", loading).await.unwrap();
    assert_eq!(setting.names().await, ["two"]);
    let present = daemon.snapshot().await.model.unwrap();
    assert_eq!(
        (&*present.name, present.state()),
        ("two", v1::ModelState::Ready)
    );
    assert_eq!(setting.unload("").await, "two");
    let error = generate(daemon, tokens(&[1, 2, 3], 8)).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("NO_MODEL"));
}

#[tokio::test]
async fn each_model_goes_after_its_own_time_without_requests() {
    let setting = Setting::new(&["--idle-unload", "1s"]).await;
    setting.load("two", true).await.unwrap();
    setting.ids(asking("three")).await;
    // The pinned one alone stays.
    until("the others to go", || async {
        setting.names().await == ["two"]
    })
    .await;
    let states: Vec<_> = {
        let mut client = setting.daemon.models().await;
        let answer = client.list_models(v1::ListModelsRequest {});
        let list = answer.await.unwrap().into_inner().models;
        let state = |name: &str| {
            let model = list.iter().find(|model| model.name == name);
            model.map(v1::Model::state)
        };
        MODELS.iter().map(|name| state(name).unwrap()).collect()
    };
    let (asleep, ready) = (v1::ModelState::Asleep, v1::ModelState::Ready);
    let available = v1::ModelState::Available;
    // What only a request had loaded does not sleep: it is as it was before.
    assert_eq!(states, [asleep, ready, available, available]);
    setting.ids(asking("one")).await;
    assert_eq!(setting.names().await, ["two", "one"]);
}

/// The file of another model with the folder's own content, and what a daemon makes of a broken one.
#[tokio::test]
async fn a_model_that_cannot_be_loaded_leaves_the_others() {
    let folder = models();
    let broken: PathBuf = folder.path().join("four/model.safetensors");
    let bytes = std::fs::read(&broken).unwrap();
    std::fs::write(&broken, &bytes[..bytes.len() / 2]).unwrap();
    let setting = Setting::in_folder(folder, &["--loaded-models", "1"]).await;
    let before = setting.ids(asking("one")).await;
    let error = generate(&setting.daemon, asking("four")).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("MODEL_FAILED"));
    assert_eq!(setting.names().await, ["one"]);
    assert_eq!(setting.ids(tokens(&[1, 2, 3], 8)).await, before);
    assert!(setting.peak_bytes("one").await > 0);
}

/// What is printed for several models before they are loaded is what happens: who goes, what each takes, and the peak.
#[tokio::test]
#[ignore = "seconds of both cores: cargo ci"]
async fn what_the_plan_for_several_says_is_what_happens() {
    for count in [1, 2, 4] {
        let (folder, budget) = budget_for(count).await;
        let arguments = ["--loaded-models", "3", "--budget", &budget];
        let setting = Setting::in_folder(folder, &arguments).await;
        let named = |name: &str| v1::ModelRef {
            by: Some(By::Name(name.to_owned())),
        };
        let mut models = MODELS.iter().map(|name| named(name));
        let request = v1::PlanRequest {
            model: models.next(),
            more_models: models.collect(),
            ..Default::default()
        };
        let mut client = setting.daemon.optimizer().await;
        let planned = client.plan(request).await.unwrap().into_inner();
        assert!(planned.plan.is_none());
        assert_eq!(planned.budget_bytes.to_string(), budget);
        let mut expected: Vec<&str> = Vec::new();
        for (place, planned) in planned.models.iter().enumerate() {
            let gone: Vec<_> = (planned.evicted.iter())
                .map(|&place| MODELS[place as usize])
                .collect();
            expected.retain(|name| !gone.contains(name));
            expected.push(MODELS[place]);
            // The first is there since the start.
            if place > 0 {
                setting.load(MODELS[place], false).await.unwrap();
            }
            assert_eq!(setting.names().await, expected, "{count} fit");
            let loaded = setting.loaded().await;
            let loaded = loaded.last().unwrap();
            let (plan, foreseen) = (loaded.plan.as_ref(), planned.plan.as_ref());
            let figures = |plan: &v1::Plan| (plan.level, plan.peak_bytes, plan.budget_bytes);
            assert_eq!(plan.map(figures), foreseen.map(figures), "{count} fit");
            assert_eq!(loaded.claimed_bytes, planned.claimed_bytes);
            setting.ids(asking(MODELS[place])).await;
        }
        let device = setting.daemon.snapshot().await.device.unwrap();
        let budget: u64 = budget.parse().unwrap();
        assert!(device.peak_bytes <= budget);
    }
}

#[tokio::test]
async fn a_plan_for_several_needs_no_daemon() {
    let folder = models();
    let [one, two] = [MODELS[0], MODELS[1]].map(|name| {
        let path = folder.path().join(name);
        path.to_str().unwrap().to_owned()
    });
    let arguments = ["plan", "--device", "cpu", "--budget", "1GiB"];
    let arguments = [&arguments[..], &["--model", &one, &two]].concat();
    let output = run(folder.path(), &arguments).await;
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[0],
        "2 models within 1.00 GiB, loaded one after another"
    );
    assert!(lines[1].starts_with("one  level standard, "), "{text}");
    assert!(lines[1].contains("nothing streamed"), "{text}");
    assert!(
        lines[3].starts_with("in the end: one, two; at most "),
        "{text}"
    );

    let output = run(folder.path(), &[&arguments[..], &["--json"]].concat()).await;
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["models"][1]["model"], "two");
    assert_eq!(json["models"][1]["plan"]["level"], "standard");
}
