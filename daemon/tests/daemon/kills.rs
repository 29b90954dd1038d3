//! What was acknowledged is there after a kill that comes right after.

use std::{env, fs, future::ready, path::PathBuf, time::Duration};

use rustix::process::{Resource, Rlimit, Signal, prlimit};
use sluice_proto::{
    operations::OperationResponse,
    v1::{self, model_ref::By},
};
use tempfile::TempDir;
use testkit::hub::Hub;
use tokio::process::Command;
use tonic::{Code, Response, Status, Streaming};

use crate::support::{
    Daemon, apply, checkpoints, command, isolate, level, pictures, rest_of, run, until, within,
};

/// Says how many kills there are, of all kinds together.
const KILLS: &str = "SLUICE_KILLS";
const KILLS_DEFAULT: usize = 12;

/// What is acknowledged before a kill.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Promise {
    Default,
    Level,
    Budget,
    Job,
    Compress,
    Pull,
}

const PROMISES: [Promise; 6] = [
    Promise::Default,
    Promise::Level,
    Promise::Budget,
    Promise::Job,
    Promise::Compress,
    Promise::Pull,
];

/// A daemon that is killed and started again, in one folder.
struct Victim {
    hub: Hub,
    daemon: Daemon,
    /// Operations that it acknowledged, and the state that each is to be found in.
    acknowledged: Vec<(u64, v1::OperationState)>,
    lost: usize,
    corrupt: usize,
}

impl Victim {
    async fn new() -> Self {
        let hub = Hub::start();
        let daemon = start(TempDir::new().unwrap(), &hub).await;
        for name in ["by-hand", "slow"] {
            let source = match name {
                "slow" => checkpoints::slow().to_owned(),
                _ => checkpoints::fixture("llada-tiny"),
            };
            let target = models(&daemon).join(name);
            fs::create_dir_all(&target).unwrap();
            for file in ["config.json", "model.safetensors"] {
                fs::copy(source.join(file), target.join(file)).unwrap();
            }
        }
        Self {
            hub,
            daemon,
            acknowledged: Vec::new(),
            lost: 0,
            corrupt: 0,
        }
    }

    async fn kill(&mut self) {
        self.daemon.signal(Signal::KILL);
        self.daemon.ended().await;
        // What another daemon would read now.
        let text = fs::read_to_string(models(&self.daemon).join(".state.json")).unwrap();
        let is_whole = serde_json::from_str::<serde_json::Value>(&text).is_ok();
        self.expect_whole("the state", is_whole);
        let folder = std::mem::replace(&mut self.daemon.folder, TempDir::new().unwrap());
        self.daemon = start(folder, &self.hub).await;
    }

    /// Notes what was lost.
    fn expect(&mut self, what: &str, is_there: bool) {
        if !is_there {
            eprintln!("lost: {what}");
            self.lost += 1;
        }
    }

    /// Notes what was damaged.
    fn expect_whole(&mut self, what: &str, is_whole: bool) {
        if !is_whole {
            eprintln!("corrupt: {what}");
            self.corrupt += 1;
        }
    }

    /// The last picture of an operation that is done, and is so after the next kill.
    async fn done<R: OperationResponse>(
        &mut self,
        answer: Result<Response<Streaming<R>>, Status>,
    ) -> v1::Operation {
        let mut stream = answer.unwrap().into_inner();
        let mut last = None;
        // The end of the stream is not waited for: the picture is the acknowledgement.
        while let Some(answer) = within("a picture", stream.message()).await.unwrap() {
            last = answer.into_operation();
            if last.as_ref().is_some_and(|last| !last.is_active()) {
                break;
            }
        }
        let last = last.unwrap();
        self.acknowledged.push((last.operation_id, last.state()));
        last
    }

    async fn round(&mut self, promise: Promise, round: usize) {
        match promise {
            Promise::Default => {
                let name = ["by-hand", "sluice-demo"][round % 2];
                self.load(name, true).await;
                self.kill().await;
                let serves = self.daemon.model_state(v1::ModelState::Ready).await;
                self.expect("the default", serves.name == name);
            }
            Promise::Level => {
                let to = [v1::Level::Moderate, v1::Level::Off][round % 2];
                let answer = self.daemon.optimizer().await.apply(level(to)).await;
                self.done(answer).await;
                self.kill().await;
                let settings = self.daemon.snapshot().await.settings.unwrap();
                self.expect("the level", settings.level() == to);
            }
            Promise::Budget => {
                let bytes = (64 + round as u64) << 20;
                let request = v1::ApplyRequest {
                    options: Some(v1::PlanOptions {
                        budget: Some(v1::plan_options::Budget::BudgetBytes(bytes)),
                        ..Default::default()
                    }),
                    ..Default::default()
                };
                let answer = self.daemon.optimizer().await.apply(request).await;
                self.done(answer).await;
                self.kill().await;
                let settings = self.daemon.snapshot().await.settings.unwrap();
                self.expect("the budget", settings.budget_bytes == bytes);
            }
            Promise::Job => {
                let output = self
                    .daemon
                    .folder
                    .path()
                    .join(format!("job-{round}.sluice"));
                let answer = self.compress("slow", output).await;
                let mut stream = answer.unwrap().into_inner();
                // It has only begun.
                let first = within("a picture", stream.message()).await.unwrap();
                let id = first.and_then(OperationResponse::into_operation).unwrap();
                let id = id.operation_id;
                self.kill().await;
                let found = self.operation(id).await;
                let is_there = found.is_some_and(|found| match found.state() {
                    v1::OperationState::Done => true,
                    state => {
                        let error = found.error.unwrap_or_default();
                        state == v1::OperationState::Failed && error.reason == "INTERRUPTED"
                    }
                });
                self.expect("a job", is_there);
            }
            Promise::Compress => {
                let output = self.daemon.folder.path().join(format!("{round}.sluice"));
                let answer = self.compress("by-hand", output.clone()).await;
                self.done(answer).await;
                self.kill().await;
                self.expect("a compressed file", output.exists());
                let verified = run(
                    self.daemon.folder.path(),
                    &["verify", output.to_str().unwrap()],
                )
                .await;
                self.expect_whole("a compressed file", verified.status.success());
            }
            Promise::Pull => {
                let name = format!("o/pulled-{round}");
                let bytes = |file| fs::read(checkpoints::fixture("llada-tiny").join(file)).unwrap();
                for file in ["config.json", "model.safetensors"] {
                    let is_large = file == "model.safetensors";
                    self.hub.put(&name, file, &bytes(file), is_large);
                }
                let request = v1::PullModelRequest {
                    model: By::Name(name.clone()).into(),
                    ..Default::default()
                };
                let answer = self.daemon.models().await.pull_model(request).await;
                self.done(answer).await;
                self.kill().await;
                let folder = models(&self.daemon).join(&name);
                for file in ["config.json", "model.safetensors"] {
                    match fs::read(folder.join(file)) {
                        Ok(there) => self.expect_whole(file, there == bytes(file)),
                        Err(_) => self.expect("a pulled file", false),
                    }
                }
            }
        }
        self.check_operations().await;
    }

    async fn load(&mut self, name: &str, make_default: bool) {
        let request = v1::LoadModelRequest {
            model: By::Name(name.to_owned()).into(),
            make_default,
            ..Default::default()
        };
        let answer = self.daemon.models().await.load_model(request).await;
        self.done(answer).await;
    }

    async fn compress(
        &self,
        name: &str,
        output: PathBuf,
    ) -> Result<Response<Streaming<v1::CompressResponse>>, Status> {
        let request = v1::CompressRequest {
            model: By::Name(name.to_owned()).into(),
            output_path: output.to_str().unwrap().to_owned(),
            ..Default::default()
        };
        self.daemon.optimizer().await.compress(request).await
    }

    async fn operation(&self, id: u64) -> Option<v1::Operation> {
        let request = v1::ListOperationsRequest::default();
        let answer = self
            .daemon
            .operations()
            .await
            .list_operations(request)
            .await;
        let all = answer.unwrap().into_inner().operations;
        all.into_iter().find(|one| one.operation_id == id)
    }

    /// What was acknowledged last is listed as it was, and the files of the state are whole.
    async fn check_operations(&mut self) {
        if let Some((id, state)) = self.acknowledged.last().copied() {
            let found = self.operation(id).await;
            let is_there = found.is_some_and(|found| found.state() == state);
            self.expect("an operation that had ended", is_there);
        }
        // Not at once: the daemon writes that its load has ended.
        let folder = models(&self.daemon);
        until("the daemon's temporary file to go", || async {
            !folder.join(".state.json.new").exists()
        })
        .await;
        let aside = fs::read_dir(folder).unwrap().filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_string_lossy().contains("unreadable")
        });
        let is_whole = aside.count() == 0;
        self.expect_whole("the state", is_whole);
    }
}

fn models(daemon: &Daemon) -> PathBuf {
    daemon.folder.path().join(".local/share/sluice/models")
}

async fn start(folder: TempDir, hub: &Hub) -> Daemon {
    let socket = folder.path().join("s");
    let mut command = command(folder.path());
    command
        .env("HF_ENDPOINT", hub.endpoint())
        .arg("--socket")
        .arg(&socket)
        .args(["--device", "cpu"]);
    let daemon = Daemon::spawn(folder, socket, command).await;
    daemon.model_state(v1::ModelState::Ready).await;
    daemon
}

#[tokio::test]
async fn killed_after_an_acknowledgement_a_daemon_has_lost_nothing() {
    let kills = env::var(KILLS).map_or(KILLS_DEFAULT, |text| text.parse().unwrap());
    let mut victim = Victim::new().await;
    for number in 0..kills {
        let promise = PROMISES[number % PROMISES.len()];
        victim.round(promise, number / PROMISES.len()).await;
    }
    let (lost, corrupt) = (victim.lost, victim.corrupt);
    println!("{kills} kills: {lost} lost, {corrupt} corrupt");
    assert_eq!((lost, corrupt), (0, 0), "{}", victim.daemon.log());
}

/// An id is never given twice.
#[tokio::test]
async fn killed_a_daemon_is_followed_by_one_with_other_ids_and_without_leftovers() {
    let mut victim = Victim::new().await;
    let packed = victim.daemon.folder.path().join("slow.sluice");
    let answer = victim.compress("slow", packed.clone()).await;
    let before = victim.done(answer).await.operation_id;
    let partial = |victim: &Victim| {
        let entries = fs::read_dir(victim.daemon.folder.path()).unwrap();
        let mut names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.any(|name| name.starts_with(".sluice-decompress-"))
    };
    let mut is_halfway = false;
    for attempt in 0..20 {
        let output = victim
            .daemon
            .folder
            .path()
            .join(format!("unpacked-{attempt}"));
        let request = v1::DecompressRequest {
            input_path: packed.to_str().unwrap().to_owned(),
            output_path: output.to_str().unwrap().to_owned(),
            threads: Some(1),
        };
        let answer = victim.daemon.optimizer().await.decompress(request).await;
        let mut stream = answer.unwrap().into_inner();
        within("a picture", stream.message()).await.unwrap();
        while !partial(&victim) && !output.exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Stopped, the daemon doesn't end the job between the look and the kill.
        victim.daemon.signal(Signal::STOP);
        stands_still(&victim.daemon).await;
        is_halfway = partial(&victim);
        if is_halfway {
            break;
        }
        // The job was quicker.
        victim.daemon.signal(Signal::CONT);
        while stream.message().await.unwrap().is_some() {}
    }
    assert!(is_halfway, "each job ended before it could be killed");
    // A user's folder, whatever its name.
    let others = victim.daemon.folder.path().join(".sluice-decompress-mine");
    fs::create_dir(&others).unwrap();
    victim.kill().await;
    fs::remove_dir(&others).unwrap();
    assert!(!partial(&victim));
    let answer = victim
        .compress("by-hand", victim.daemon.folder.path().join("b.sluice"))
        .await;
    let after = victim.done(answer).await.operation_id;
    assert!(after > before + 1, "{after} after {before}");
}

/// Waits until no thread of the daemon runs.
async fn stands_still(daemon: &Daemon) {
    let threads = format!("/proc/{}/task", daemon.pid().as_raw_nonzero());
    let is_stopped = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("stat"));
        // The state follows the name, which may have any characters. A thread may be gone by now.
        text.map_or(true, |text| {
            text.rsplit(')')
                .next()
                .is_some_and(|rest| rest.starts_with(" T"))
        })
    };
    until("it stands still", || {
        let mut threads = fs::read_dir(&threads).unwrap();
        ready(threads.all(|thread| is_stopped(thread.unwrap())))
    })
    .await;
}

#[tokio::test]
async fn a_full_disk_is_the_callers_error_and_the_change_holds() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("s");
    // Without this the limit's signal would kill.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]);
    command.arg(env!("CARGO_BIN_EXE_sluiced"));
    let mut command = isolate(command, folder.path());
    command
        .arg("--socket")
        .arg(&socket)
        .args(["--device", "cpu"]);
    let daemon = Daemon::spawn(folder, socket, command).await;
    daemon.model_state(v1::ModelState::Ready).await;
    // A limit on the size of files stands for a disk without room.
    let room = |bytes| {
        let limit = Rlimit {
            current: bytes,
            maximum: None,
        };
        prlimit(Some(daemon.pid()), Resource::Fsize, limit).unwrap();
    };
    room(Some(0));
    let error = apply(&daemon, level(v1::Level::Moderate))
        .await
        .unwrap_err();
    assert_eq!(error.code, Code::ResourceExhausted);
    assert_eq!(error.reason.as_deref(), Some("NO_SPACE"));
    assert!(
        error
            .message
            .contains("are in force, but not after a restart")
    );
    assert!(error.hint.is_some());
    let settings = daemon.snapshot().await.settings.unwrap();
    assert_eq!(settings.level(), v1::Level::Moderate);
    let load = |make_default| v1::LoadModelRequest {
        model: By::Name("sluice-demo".to_owned()).into(),
        make_default,
        ..Default::default()
    };
    let answer = daemon.models().await.load_model(load(true)).await;
    let error = pictures(answer).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("NO_SPACE"));
    room(None);
    let answer = daemon.models().await.load_model(load(true)).await;
    rest_of(answer.unwrap().into_inner()).await.unwrap();
    let state = fs::read_to_string(models(&daemon).join(".state.json")).unwrap();
    assert!(state.contains("moderate"), "{state}");
}
