//! Six hours of a busy daemon at home, in minutes: for `cargo soak`. docs/soak.md says what such hours have.

mod clients;
mod measures;
mod trouble;

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Instant,
};

use futures_util::future::join_all;
use sluice_proto::v1::{self, model_ref::By};
use tempfile::TempDir;

use self::{
    clients::{Caller, Client, DEMO, MIX, STORIES, WRITERS, writer},
    measures::Measure,
    trouble::Counts,
};
use crate::{
    secure::{HTTP, SecureDaemon},
    support::{Daemon, checkpoints, clock::SetClock, many_descriptors, pictures, until},
};

/// How many requests there are once all is warm.
const REQUESTS: &str = "SLUICE_MIXED_REQUESTS";
const REQUESTS_DEFAULT: usize = 360;
const HOURS: usize = 6;
/// Hours that are not counted, in which arenas, pools and lists of what has ended fill up.
const WARM_UP_HOURS: usize = 2;
/// Clients that ask at once.
const CLIENTS: usize = 8;
/// Most by which memory grows, as a part of it.
const GROWTH_MAX: f64 = 0.01;

/// Threads of a pool that a task a second keeps busy in turns, each of which goes after ten seconds without one.
const POOL_MORE_MAX: usize = 10;

struct Setting {
    secure: SecureDaemon,
    clock: Option<SetClock>,
    /// What each client is answered whenever it asks, by the model that it asks.
    expected: HashMap<(Client, &'static str), String>,
    asked: AtomicUsize,
    answered: AtomicU64,
    counts: Counts,
    /// Where the models are.
    _models: TempDir,
}

/// Models that differ in their weights, large enough that not all fit.
fn models() -> TempDir {
    let folder = TempDir::new().unwrap();
    for (seed, name) in WRITERS.iter().enumerate() {
        checkpoints::write_writer(&folder.path().join(name), seed as u64, |shape| {
            shape.layers = 8;
            shape.hidden_size = 256;
            shape.head_dim = 64;
            shape.intermediate_size = 688;
        });
    }
    folder
}

/// Loads the demonstration model and these.
async fn load(daemon: &Daemon, writers: &[&str]) {
    for name in [&[DEMO], writers].concat() {
        let request = v1::LoadModelRequest {
            model: By::Name(name.to_owned()).into(),
            ..Default::default()
        };
        let answer = daemon.models().await.load_model(request).await;
        pictures(answer).await.unwrap();
    }
}

/// A budget that has room for the demonstration model and for two of the others.
async fn budget(models: &str) -> String {
    let daemon = Daemon::start(&["--models", models]).await;
    daemon.model_state(v1::ModelState::Ready).await;
    load(&daemon, &WRITERS[..2]).await;
    let loaded = daemon.snapshot().await.loaded_models;
    assert_eq!(loaded.len(), 3);
    let claimed: u64 = loaded.iter().map(|loaded| loaded.claimed_bytes).sum();
    let common = loaded.iter().map(|loaded| {
        let plan = loaded.plan.as_ref().unwrap();
        plan.peak_bytes - loaded.claimed_bytes
    });
    let bytes = claimed + common.max().unwrap() + loaded[2].claimed_bytes / 2;
    bytes.to_string()
}

impl Setting {
    async fn new() -> Self {
        let models = models();
        let folder = models.path().to_str().unwrap().to_owned();
        let budget = budget(&folder).await;
        let arguments = ["--models", &folder, "--budget", &budget];
        let more = ["--loaded-models", "8", "--parallel", "4"];
        let (reachable, clock) = SetClock::daemon(&[&arguments[..], &more, &HTTP].concat()).await;
        let mut setting = Self {
            secure: SecureDaemon::of(reachable),
            clock,
            expected: HashMap::new(),
            asked: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
            counts: Counts::default(),
            _models: models,
        };
        setting.expected = setting.ask_alone().await;
        setting
    }

    fn daemon(&self) -> &Daemon {
        &self.secure.reachable.daemon
    }

    /// What each client is answered while nobody else asks.
    async fn ask_alone(&self) -> HashMap<(Client, &'static str), String> {
        let caller = Caller::new(&self.secure).await;
        let mut answers = HashMap::new();
        for number in clients::each() {
            let client = Client::of(number);
            if let Some(answer) = client.ask(&caller, number).await {
                answers.insert((client, writer(number)), answer);
            }
        }
        for client in STORIES {
            let story = |client| &answers[&(client, WRITERS[0])];
            assert_eq!(story(client), story(STORIES[0]), "{client:?}");
        }
        answers
    }

    /// Clients ask until there were so many requests, while all that may happen does.
    async fn hour(&self, requests: usize) {
        let client = |_| async {
            let caller = Caller::new(&self.secure).await;
            loop {
                let number = self.asked.fetch_add(1, Ordering::Relaxed);
                if number >= requests {
                    self.asked.store(requests, Ordering::Relaxed);
                    break;
                }
                let client = Client::of(number);
                if let Some(answer) = client.ask(&caller, number).await {
                    let expected = &self.expected[&(client, writer(number))];
                    assert_eq!(answer, *expected, "{client:?}");
                    self.answered.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        tokio::select! {
            _ = join_all((0..CLIENTS).map(client)) => {}
            _ = trouble::all(self) => {}
        }
        trouble::undo(self).await;
    }

    /// What the daemon takes with the same models loaded that were not used before.
    async fn measure(&self) -> Measure {
        let daemon = self.daemon();
        until("an idle daemon", async || {
            let operations = daemon.snapshot().await.operations;
            let mut operations = operations.iter();
            operations.all(|operation| operation.ended_unix_ms.is_some())
        })
        .await;
        for loaded in daemon.snapshot().await.loaded_models {
            let model = loaded.model.unwrap().name;
            let request = v1::UnloadModelRequest { model };
            let mut models = daemon.models().await;
            models.unload_model(request).await.unwrap();
        }
        load(daemon, &WRITERS[..2]).await;
        let caller = Caller::new(&self.secure).await;
        for number in 0..MIX.len() {
            Client::of(number).ask(&caller, number).await;
        }
        drop(caller);
        Measure::at_rest(daemon).await
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "SLUICE_MIXED_REQUESTS says how many: cargo soak"]
async fn a_mixed_load_gets_its_answers_and_leaves_nothing_behind() {
    many_descriptors();
    let requests = std::env::var(REQUESTS).map_or(REQUESTS_DEFAULT, |text| text.parse().unwrap());
    let begun = Instant::now();
    let setting = Setting::new().await;
    let mut measures = Vec::new();
    for hour in 0..WARM_UP_HOURS + HOURS {
        setting.hour((hour + 1) * requests / HOURS).await;
        let measure = setting.measure().await;
        let minutes = begun.elapsed().as_secs_f64() / 60.0;
        println!("hour {} after {minutes:.1} minutes: {measure}", hour + 1);
        measures.push(measure);
    }
    let snapshot = setting.daemon().snapshot().await;
    let (totals, log) = (snapshot.totals.unwrap(), setting.daemon().log());
    let swaps = log.matches("unloaded to make room").count();
    let (before, after) = (
        measures[WARM_UP_HOURS - 1],
        measures[WARM_UP_HOURS + HOURS - 1],
    );
    let growth = after.growth(before);
    println!(
        "{:?} requests, {:?} answers, {swaps} models went for another, {:?}\nmemory: {:+.2} %",
        setting.asked,
        setting.answered,
        setting.counts,
        100.0 * growth
    );
    // It is the same daemon, and none of its parts had to be begun again.
    let up_ms = snapshot.daemon.unwrap().uptime_ms;
    assert!(
        u128::from(up_ms) + 60_000 > begun.elapsed().as_millis(),
        "up {up_ms} ms"
    );
    assert!(!log.contains("panicked"), "{log}");
    assert_eq!(totals.failed_requests, 0);
    assert!(swaps > 0);
    setting.counts.check(setting.clock.is_some());
    assert!(growth < GROWTH_MAX, "{before} to {after}");
    assert!(after.processes <= before.processes, "{before} to {after}");
    assert!(after.threads <= before.threads, "{before} to {after}");
    // A look at files each second keeps some of them from going.
    assert!(after.pool_threads <= before.pool_threads + POOL_MORE_MAX);
    assert!(
        after.descriptors <= before.descriptors,
        "{before} to {after}"
    );
}
