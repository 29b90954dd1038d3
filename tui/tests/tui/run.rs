//! `sluice run`, `ps` and `stop`: with the real daemon, started on the way, and with one that plays a script.
//!
//! The daemon's binary is looked for beside this package's: `cargo build` makes both.

use std::{
    fs,
    io::{Seek, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use fake_daemon::{ChangeScript, FakeDaemon, generation_events};
use serde_json::Value;
use sluice_proto::v1::{generate_request::Input, model_ref::By};
use testkit::{eventually, terminal::Journey};

use crate::support::{Client, code, run_with_input, sluice, stderr, stdout};

/// A user with a home and a runtime folder, where no daemon runs yet. What was started is ended with it.
struct User {
    home: tempfile::TempDir,
    program: PathBuf,
}

impl User {
    fn new() -> Self {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_sluice"));
        let daemon = program.with_file_name("sluiced");
        assert!(
            daemon.exists(),
            "{} is missing: run `cargo build` first, which makes the daemon too",
            daemon.display()
        );
        Self {
            home: tempfile::tempdir().expect("a folder"),
            program,
        }
    }

    fn socket(&self) -> PathBuf {
        self.home.path().join("s")
    }

    fn sluice(&self, arguments: &[&str]) -> Command {
        let own = sluice(arguments);
        let mut command = Command::new(&self.program);
        command.args(own.get_args());
        for (name, _) in own.get_envs() {
            command.env_remove(name);
        }
        command
            .env("HOME", self.home.path())
            .env("SLUICE_SOCKET", self.socket())
            .env("SLUICE_DEVICE", "cpu")
            .env_remove("XDG_DATA_HOME")
            .env_remove("XDG_CACHE_HOME")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.sluice(arguments).output().expect("run sluice")
    }

    fn done(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert_eq!(code(&output), 0, "{arguments:?}: {}", stderr(&output));
        stdout(&output)
    }

    fn log(&self) -> PathBuf {
        self.home.path().join(".local/state/sluice/sluiced.log")
    }

    fn daemons(&self) -> usize {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        log.matches(" listening ").count()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if UnixStream::connect(self.socket()).is_ok() {
            let _ = self.output(&["stop", "--daemon"]);
        }
    }
}

#[test]
fn a_model_is_run_where_nothing_runs_yet() {
    let user = User::new();
    let arguments = [
        "run",
        "demo",
        "Tell",
        "me a story.",
        "--length",
        "16",
        "--seed",
        "1",
    ];
    let output = user.output(&arguments);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let first = stdout(&output);
    assert!(!first.trim().is_empty(), "{first:?}");
    let told = stderr(&output);
    assert!(
        told.contains("starting sluiced in the background; `sluice stop --daemon`"),
        "{told}"
    );
    let mode = fs::metadata(user.log()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // The second finds it there, and has nothing to say of it.
    let output = user.output(&arguments);
    assert_eq!((code(&output), stdout(&output)), (0, first));
    let told = stderr(&output);
    assert!(!told.contains("sluiced"), "{told}");
    assert_eq!(user.daemons(), 1);
    let shown = user.done(&["ps"]);
    assert!(shown.contains("sluice-demo  loaded    cpu"), "{shown}");
    let shown: Value = serde_json::from_str(&user.done(&["ps", "--json"])).unwrap();
    assert_eq!(shown["models"][0]["level"], "standard");

    let output = user.output(&["stop", "llada"]);
    assert_eq!(code(&output), 1, "another model is not the one");
    assert!(stderr(&output).contains("llada is not loaded\nhint: sluice-demo is"));
    assert!(
        user.done(&["stop", "demo"])
            .starts_with("unloaded sluice-demo")
    );
    assert!(user.done(&["ps"]).starts_with("no model is loaded"));
    // Prompts in a pipe bring it back.
    let output = run_with_input(user.sluice(&["run", "demo", "--length", "16"]), b"Hello.\n");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(!stdout(&output).trim().is_empty());

    assert_eq!(user.done(&["stop", "--daemon"]), "sluiced has ended\n");
    assert!(!user.socket().exists());
    assert_eq!(code(&user.output(&["ps"])), 69);
}

#[test]
fn two_at_once_share_one_daemon() {
    let user = User::new();
    let runs: Vec<_> = (0..3)
        .map(|_| user.sluice(&["run", "demo"]).spawn().expect("run sluice"))
        .collect();
    for run in runs {
        let output = run.wait_with_output().expect("an end");
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert!(
            stderr(&output).ends_with("sluice-demo is loaded\n"),
            "{}",
            stderr(&output)
        );
    }
    assert_eq!(user.daemons(), 1);
    user.done(&["stop", "--daemon"]);
    assert!(UnixStream::connect(user.socket()).is_err(), "there was one");
}

#[test]
fn the_daemon_outlives_the_terminal() {
    let user = User::new();
    let mut journey = Journey::start(user.sluice(&["run", "demo", "--length", "16"]));
    journey.expect("> ");
    journey.press("hello\r");
    journey.expect("demonstration model");
    journey.hang_up();
    assert!(user.done(&["ps"]).contains("sluice-demo"));
    user.done(&["stop", "--daemon"]);
}

#[test]
fn a_model_used_by_its_path_stays_in_the_list_until_it_is_forgotten() {
    let user = User::new();
    let model = user.home.path().join("mine");
    let made = Command::new(user.program.with_file_name("sluiced"))
        .args([
            "synth",
            "--layers",
            "1",
            "--hidden-size",
            "32",
            "--attention-heads",
            "2",
        ])
        .args(["--intermediate-size", "32", "--vocab-size", "64"])
        .arg(&model)
        .output()
        .expect("run sluiced");
    assert!(made.status.success(), "{}", stderr(&made));
    let path = model.to_str().expect("UTF-8");
    user.done(&["run", path]);
    user.done(&["run", "demo"]);
    let mine = |user: &User| {
        let list: Value = serde_json::from_str(&user.done(&["ls", "--json"])).unwrap();
        let models = list["models"].as_array().expect("a list").clone();
        models.into_iter().find(|model| model["name"] == "mine")
    };
    let listed = mine(&user).expect("it is listed");
    assert_eq!(
        (&listed["path"], &listed["state"]),
        (&path.into(), &"ready".into()),
        "both are loaded"
    );
    user.done(&["stop", "mine"]);
    assert_eq!(mine(&user).expect("it is listed")["state"], "available");
    // It has a name now.
    user.done(&["run", "mine"]);
    assert!(user.done(&["ps"]).contains("mine"));
    user.done(&["stop", "mine"]);
    let told = user.done(&["rm", "mine"]);
    assert_eq!(told, format!("forgot mine; its files stay in {path}\n"));
    assert!(mine(&user).is_none());
    assert!(model.join("model.safetensors").exists());
    user.done(&["stop", "--daemon"]);
}

/// `sluice` beside a `sluiced` that does what a script says.
fn beside(folder: &Path, script: &str) -> PathBuf {
    let client = folder.join("sluice");
    fs::hard_link(env!("CARGO_BIN_EXE_sluice"), &client).unwrap();
    let daemon = folder.join("sluiced");
    fs::write(&daemon, script).unwrap();
    fs::set_permissions(&daemon, fs::Permissions::from_mode(0o755)).unwrap();
    client
}

#[test]
fn a_daemon_that_does_not_start_says_why() {
    // A link needs the same file system.
    let parent = Path::new(env!("CARGO_BIN_EXE_sluice")).parent().unwrap();
    let folder = tempfile::tempdir_in(parent).unwrap();
    fs::write(folder.path().join("token"), "0123456789abcdef").unwrap();
    let program = beside(
        folder.path(),
        "#!/bin/sh\necho \"no such key: $1\" >&2\nexit 78\n",
    );
    let run = || {
        Command::new(&program)
            .args(["run", "demo", "hi", "--socket", "/nonexistent/s"])
            .env("HOME", folder.path())
            .env_remove("XDG_STATE_HOME")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let output = run();
    assert_eq!(code(&output), 1);
    let told = stderr(&output);
    assert!(told.contains("error: sluiced ended at its start"), "{told}");
    assert!(
        told.contains("hint: it said:\nno such key: --background"),
        "{told}"
    );
    fs::remove_file(folder.path().join("sluiced")).unwrap();
    let output = Command::new(&program)
        .args(["run", "demo", "hi", "--socket", "/nonexistent/s"])
        .env("HOME", folder.path())
        .env("PATH", "/nonexistent")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        stderr(&output).contains("there is no sluiced"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn what_is_on_disk_is_loaded_and_what_is_not_is_downloaded_first() {
    let fake = FakeDaemon::with_changes(generation_events("well"), ChangeScript::default());
    let output = fake.output(&["run", "O/M", "hi", "there", "--system", "be brief"]);
    assert_eq!(
        (code(&output), &*stdout(&output)),
        (0, "well\n"),
        "{}",
        stderr(&output)
    );
    let output = fake.output(&["run", "llada", "hi", "--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(
        stderr(&output).contains("llada is GSAI-ML/LLaDA-8B-Instruct"),
        "{}",
        stderr(&output)
    );
    let last = stdout(&output).lines().last().map(str::to_owned).unwrap();
    assert!(last.contains("\"event\":\"done\""), "{last}");
    // What serves already needs no load.
    assert_eq!(code(&fake.output(&["run", "fake", "hi"])), 0);
    let seen = fake.seen.lock().unwrap();
    assert_eq!(seen.pulled.len(), 1);
    let name = |name: &str| By::Name(name.to_owned()).into();
    assert_eq!(seen.pulled[0].model, name("GSAI-ML/LLaDA-8B-Instruct"));
    let loaded: Vec<_> = seen.loaded.iter().map(|load| load.model.clone()).collect();
    assert_eq!(
        loaded,
        [name("o/m"), name("o/m")],
        "by the name that the download came to"
    );
    assert_eq!(seen.generate.len(), 3);
}

/// The prompt of the last request.
#[test]
fn stop_cancels_a_load() {
    let change = ChangeScript {
        hangs: true,
        ..ChangeScript::default()
    };
    let fake = FakeDaemon::with_changes(generation_events("well"), change);
    let loading = fake.sluice(&["load", "on-its-way"]).spawn().unwrap();
    eventually("a load begins", || {
        !fake.seen.lock().unwrap().loaded.is_empty()
    });
    let output = fake.output(&["stop", "other"]);
    assert_eq!(code(&output), 1, "the one that is on its way is another");
    let told = stderr(&output);
    assert!(told.contains("other is not loaded\nhint: "), "{told}");
    assert!(told.contains("on-its-way"), "{told}");
    let output = fake.output(&["stop", "on-its-way"]);
    assert_eq!(
        (code(&output), &stdout(&output)[..]),
        (0, "cancelled the load of on-its-way\n")
    );
    {
        let seen = fake.seen.lock().unwrap();
        assert_eq!(seen.operations_cancelled, [5]);
        assert_eq!(seen.watched, [5], "until it had ended");
    }
    let output = loading.wait_with_output().unwrap();
    assert_eq!(code(&output), 1, "{}", stderr(&output));
}

fn asked(fake: &FakeDaemon) -> String {
    let seen = fake.seen.lock().unwrap();
    let Some(Input::Chat(chat)) = &seen.generate.last().expect("a request").input else {
        panic!("{seen:?}");
    };
    chat.messages.last().expect("a message").content.clone()
}

#[test]
fn what_a_pipe_brings_stands_behind_the_words() {
    let fake = FakeDaemon::start(generation_events("well"));
    let run = |words: &[&str], stdin: Stdio| {
        let mut command = fake.sluice(&["run", "fake"]);
        let output = command.args(words).stdin(stdin).output().unwrap();
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        (asked(&fake), stderr(&output))
    };
    let pipe = |bytes: &[u8]| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(bytes).unwrap();
        (Stdio::from(reader), writer)
    };
    let closed = |bytes| pipe(bytes).0;
    let words = ["Sum", "up:"];
    assert_eq!(run(&words, closed(b"a\nb\n")).0, "Sum up:\n\na\nb");
    assert_eq!(run(&["Sum up:", "-"], closed(b"a")).0, "Sum up:\n\na");
    assert_eq!(run(&words, closed(b"")), ("Sum up:".into(), String::new()));
    let nothing = run(&words, Stdio::null());
    assert_eq!(nothing, ("Sum up:".into(), String::new()));
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"of a file").unwrap();
    file.rewind().unwrap();
    assert_eq!(run(&words, file.into()).0, "Sum up:\n\nof a file");
    // One that stays open and empty holds nothing up.
    let (stdin, _writer) = pipe(b"");
    let (asked, told) = run(&words, stdin);
    assert_eq!(asked, "Sum up:");
    assert!(told.contains("standard input is empty so far"), "{told}");
}

#[test]
fn an_address_starts_and_ends_no_daemon() {
    let folder = tempfile::tempdir().unwrap();
    // Nobody listens on this port, which only the system could give away.
    let address = "http://127.0.0.1:1";
    for arguments in [&["run", "demo", "hi"][..], &["stop", "--daemon"]] {
        let output = sluice(&["--socket", address])
            .args(arguments)
            .env("HOME", folder.path())
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(code(&output), 69, "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(address), "{}", stderr(&output));
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_daemon_is_told_paths_as_they_are_meant_here() {
    let parent = Path::new(env!("CARGO_BIN_EXE_sluice")).parent().unwrap();
    let folder = tempfile::tempdir_in(parent).unwrap();
    fs::write(folder.path().join("token"), "0123456789abcdef").unwrap();
    let program = beside(
        folder.path(),
        "#!/bin/sh\necho \"$SLUICE_SOCKET $SLUICE_MODELS$SLUICE_TOKEN_FILE.\" >&2\nexit 78\n",
    );
    let output = Command::new(&program)
        .args(["run", "demo", "hi"])
        .env("HOME", folder.path())
        .env("SLUICE_SOCKET", "s")
        .env("SLUICE_MODELS", "m/n")
        // The client's own, which is no setting of the daemon's.
        .env("SLUICE_TOKEN_FILE", folder.path().join("token"))
        .env_remove("XDG_STATE_HOME")
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let here = folder.path().display();
    let expected = format!("{here}/s {here}/m/n.");
    assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
}

#[test]
fn a_name_that_nobody_knows_leads_to_near_ones() {
    let fake = FakeDaemon::start(Vec::new());
    let output = fake.output(&["run", "lada", "hi"]);
    assert_eq!(code(&output), 1);
    let told = stderr(&output);
    assert!(
        told.contains("error: there is no model lada\nhint: did you mean llada"),
        "{told}"
    );
    assert!(fake.seen.lock().unwrap().pulled.is_empty());
    let output = fake.output(&["run", "demo", "--json"]);
    assert_eq!(
        code(&output),
        0,
        "an empty prompt loads: {}",
        stderr(&output)
    );
}
