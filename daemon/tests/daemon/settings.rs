//! Settings of single models: who wins in a running daemon, and what outlives it.

use std::fs;

use sluice_proto::v1::{self, model_ref::By};
use tempfile::TempDir;

use crate::support::{Daemon, checkpoints, command, generate, run, tokens, until, within};

/// What outlives a daemon, below its folder.
const STATE_FILE: &str = ".local/share/sluice/models/.state.json";

/// A daemon with the embedded model in a folder that may have seen others.
async fn start(folder: TempDir, arguments: &[&str]) -> Daemon {
    let socket = folder.path().join("s");
    let mut command = command(folder.path());
    command.arg("--socket").arg(&socket).args(arguments);
    let daemon = Daemon::spawn(folder, socket, command).await;
    daemon.model_state(v1::ModelState::Ready).await;
    daemon
}

async fn restart(mut daemon: Daemon, arguments: &[&str]) -> Daemon {
    daemon.signal(rustix::process::Signal::TERM);
    daemon.ended().await;
    let folder = std::mem::replace(&mut daemon.folder, TempDir::new().unwrap());
    start(folder, arguments).await
}

async fn level(daemon: &Daemon) -> v1::Level {
    daemon.snapshot().await.settings.unwrap().level()
}

async fn set_level(daemon: &Daemon, level: v1::Level) {
    let request = v1::ApplyRequest {
        options: Some(v1::PlanOptions {
            level: level.into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let answers = daemon.optimizer().await.apply(request).await;
    let mut answers = answers.unwrap().into_inner();
    while within("the change", answers.message())
        .await
        .unwrap()
        .is_some()
    {}
}

/// Waits until the daemon has written down what was asked for, or that it no longer holds.
async fn written(daemon: &Daemon, word: Option<&str>) {
    let file = daemon.folder.path().join(STATE_FILE);
    until("the file", || async {
        let text = fs::read_to_string(&file);
        text.is_ok_and(|text| match word {
            Some(word) => text.contains(word),
            None => text.contains("\"models\": []"),
        })
    })
    .await;
}

/// What InspectModel says of a setting of the embedded model.
async fn told(daemon: &Daemon, name: &str) -> Option<(String, String)> {
    let request = v1::InspectModelRequest {
        model: By::Name("sluice-demo".to_owned()).into(),
    };
    let answer = daemon.models().await.inspect_model(request).await;
    let settings = answer.unwrap().into_inner().settings;
    let found = settings.into_iter().find(|setting| setting.name == name)?;
    Some((found.value, found.origin))
}

#[tokio::test]
async fn a_level_outlives_the_daemon_and_gives_way_to_file_and_flag() {
    let daemon = start(TempDir::new().unwrap(), &[]).await;
    assert_eq!(level(&daemon).await, v1::Level::Standard);
    let pair = |value: &str, origin: &str| Some((value.to_owned(), origin.to_owned()));
    assert_eq!(told(&daemon, "level").await, pair("standard", "built-in"));
    set_level(&daemon, v1::Level::Moderate).await;
    written(&daemon, Some("moderate")).await;

    let daemon = restart(daemon, &[]).await;
    assert_eq!(level(&daemon).await, v1::Level::Moderate);
    assert_eq!(told(&daemon, "level").await, pair("moderate", "remembered"));

    let config = daemon.folder.path().join("config/sluice");
    fs::create_dir_all(&config).unwrap();
    let file = "[sluice-demo]\nlevel = \"off\"\nbudget = \"64MiB\"\n";
    fs::write(config.join("models.toml"), file).unwrap();
    assert_eq!(told(&daemon, "level").await, pair("off", "models.toml"));
    let daemon = restart(daemon, &[]).await;
    assert_eq!(level(&daemon).await, v1::Level::Off);
    let settings = daemon.snapshot().await.settings.unwrap();
    assert_eq!(settings.budget_bytes, 64 << 20);

    let daemon = restart(daemon, &["--level", "standard"]).await;
    assert_eq!(level(&daemon).await, v1::Level::Standard);
    let of_flag = pair("standard", "command line");
    assert_eq!(told(&daemon, "level").await, of_flag);
    set_level(&daemon, v1::Level::Aggressive).await;
    assert_eq!(level(&daemon).await, v1::Level::Aggressive);

    // Back to where nobody had asked for anything. What was asked for last is written last.
    restore(&daemon, v1::RestoreTarget::Unspecified).await;
    written(&daemon, None).await;
    fs::remove_file(config.join("models.toml")).unwrap();
    let daemon = restart(daemon, &[]).await;
    assert_eq!(told(&daemon, "level").await, pair("standard", "built-in"));
}

#[tokio::test]
async fn what_passes_told_of_experts_outlives_the_daemon() {
    let experts = async |daemon: &Daemon, model: By| {
        let request = v1::PlanRequest {
            model: model.into(),
            ..Default::default()
        };
        let planned = daemon.optimizer().await.plan(request).await;
        planned.unwrap().into_inner().plan.unwrap().experts.unwrap()
    };
    let model = checkpoints::fixture("llada-moe-tiny");
    let model = model.to_str().unwrap();
    let path = || By::Path(model.to_owned());
    let daemon = start(TempDir::new().unwrap(), &["--model", model]).await;
    assert!(!experts(&daemon, path()).await.is_measured);
    let request = tokens(&[1, 2, 3], 24);
    generate(&daemon, request).await.unwrap();
    assert!(experts(&daemon, path()).await.is_measured);
    written(&daemon, Some("turnover")).await;

    // The next one loads another model.
    let daemon = restart(daemon, &[]).await;
    assert!(experts(&daemon, path()).await.is_measured);
    let other = By::Shape("llada2-mini".to_owned());
    assert!(!experts(&daemon, other).await.is_measured);

    // A plan without a daemon looks there, too, and changes nothing.
    let folder = daemon.folder.path();
    let is_measured = async || {
        let ask = ["plan", "--device", "cpu", "--model", model, "--json"];
        let output = run(folder, &ask).await;
        assert!(output.stderr.is_empty(), "{output:?}");
        let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        plan["experts"]["is_measured"].as_bool().unwrap_or_default()
    };
    assert!(is_measured().await);
    let file = folder.join(STATE_FILE);
    for broken in ["", "{\"version\": 2}"] {
        fs::write(&file, broken).unwrap();
        assert!(!is_measured().await);
        assert_eq!(fs::read_to_string(&file).unwrap(), broken);
    }
    fs::remove_file(&file).unwrap();
    assert!(!is_measured().await);
    assert!(!file.exists());
}

async fn restore(daemon: &Daemon, target: v1::RestoreTarget) {
    let request = v1::RestoreRequest {
        target: target.into(),
        ..Default::default()
    };
    let restored = daemon.optimizer().await.restore(request).await;
    let mut restored = restored.unwrap().into_inner();
    while within("the change", restored.message())
        .await
        .unwrap()
        .is_some()
    {}
}

#[tokio::test]
async fn what_a_daemon_goes_back_to_is_what_the_next_one_has() {
    let daemon = start(TempDir::new().unwrap(), &[]).await;
    set_level(&daemon, v1::Level::Moderate).await;
    // A daemon writes down what was asked for before it ends.
    let daemon = restart(daemon, &[]).await;
    let settings = daemon.snapshot().await.settings.unwrap();
    assert_eq!(settings.level(), v1::Level::Moderate);
    assert_eq!(settings.loaded_with.unwrap().level(), v1::Level::Standard);
    restore(&daemon, v1::RestoreTarget::Unspecified).await;
    assert_eq!(level(&daemon).await, v1::Level::Standard);
    let daemon = restart(daemon, &[]).await;
    assert_eq!(level(&daemon).await, v1::Level::Standard);
    restore(&daemon, v1::RestoreTarget::Source).await;
    assert_eq!(level(&daemon).await, v1::Level::Off);
    let daemon = restart(daemon, &[]).await;
    assert_eq!(level(&daemon).await, v1::Level::Off);

    // A level that the load asked for is where it goes back to.
    let request = v1::LoadModelRequest {
        options: Some(v1::PlanOptions {
            level: v1::Level::Moderate.into(),
            ..Default::default()
        }),
        model: By::Name("sluice-demo".to_owned()).into(),
        ..Default::default()
    };
    let loading = daemon.models().await.load_model(request).await;
    let mut loading = loading.unwrap().into_inner();
    while within("the load", loading.message())
        .await
        .unwrap()
        .is_some()
    {}
    set_level(&daemon, v1::Level::Aggressive).await;
    restore(&daemon, v1::RestoreTarget::Unspecified).await;
    assert_eq!(level(&daemon).await, v1::Level::Moderate);
    let daemon = restart(daemon, &[]).await;
    assert_eq!(level(&daemon).await, v1::Level::Moderate);
}

#[tokio::test]
async fn an_unknown_key_is_named_with_its_line() {
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("config/sluice");
    fs::create_dir_all(&config).unwrap();
    let file = "[sluice-demo]\nlevel = \"off\"\ntemprature = 0.5\n";
    fs::write(config.join("models.toml"), file).unwrap();
    let output = run(folder.path(), &["--check-config"]).await;
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("models.toml:3:1: unknown field `temprature`"),
        "{error}"
    );
}
