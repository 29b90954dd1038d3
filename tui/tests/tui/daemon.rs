//! `sluice` with the real daemon and its embedded model.
//!
//! The daemon's binary is looked for beside this package's: `cargo build` makes both.

use std::{
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use testkit::{eventually, terminal::Journey};

use crate::support::{code, said, sluice, stderr, stdout};

/// Reading the embedded model takes a moment, more so beside other tests.
const READY_WITHIN: Duration = Duration::from_secs(180);

/// A daemon with the demonstration model and a folder of its own; killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    pub(crate) socket: PathBuf,
    _folder: tempfile::TempDir,
}

impl Daemon {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// One that is started with these flags, too.
    pub(crate) fn with(flags: &[&str]) -> Self {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_sluice")).with_file_name("sluiced");
        assert!(
            program.exists(),
            "{} is missing: run `cargo build` first, which makes the daemon too",
            program.display()
        );
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = folder.path().join("sluice.sock");
        let child = Command::new(program)
            .arg("--socket")
            .arg(&socket)
            .args(["--device", "cpu"])
            .args(flags)
            // The tester's own settings must not matter.
            .env("XDG_CONFIG_HOME", folder.path())
            .env("XDG_DATA_HOME", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start sluiced");
        let daemon = Self {
            child,
            socket,
            _folder: folder,
        };
        let start = Instant::now();
        loop {
            let output = daemon.run(&["status", "--json"]);
            let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            if status["daemon"]["state"] == "ready" {
                return daemon;
            }
            let problem = format!("{}{}", stdout(&output), stderr(&output));
            assert!(
                start.elapsed() < READY_WITHIN,
                "sluiced did not get ready: {problem}"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let mut command = sluice(&["--socket", self.socket.to_str().expect("UTF-8")]);
        command.args(arguments).output().expect("run sluice")
    }

    /// The last line of `--json`, after every line was read as an object.
    pub(crate) fn done(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let text = stdout(&output);
        let object = |line| serde_json::from_str(line).expect("an object");
        let events: Vec<Value> = text.lines().map(object).collect();
        events.last().cloned().expect("at least one event")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a page is the one that is marked among the names.
fn expect_open(journey: &Journey, page: &str) {
    journey.expect(page);
    eventually(&format!("{page} open"), || {
        let place = journey.find(page);
        place.is_some_and(|(row, column)| journey.cell(row, column).inverse())
    });
}

/// README: "`?` lists every key, `q` quits"; then what docs/dashboard.md says of the pages, the prompt and the levels.
#[test]
fn the_first_minute_of_the_dashboard_is_as_the_readme_says() {
    let daemon = Daemon::start();
    let socket = daemon.socket.to_str().expect("UTF-8");
    let mut journey = Journey::sized(sluice(&["--socket", socket]), 120, 40);
    // It opens on the page: the first keys are keys.
    journey.expect("connected");
    journey.expect("demonstration model");
    journey.expect("i or Enter writes a prompt");
    journey.expect("Prompt · new conversation · context 0 of");
    for page in [
        "2 Memory",
        "3 Canvas",
        "4 Chat",
        "5 Levels",
        "6 Jobs",
        "1 Overview",
    ] {
        journey.press(&page[..1]);
        expect_open(&journey, page);
    }
    journey.press("?");
    journey.expect("On every page");
    journey.expect("write a prompt");
    journey.press("?");
    journey.expect_gone("On every page");
    // A prompt and its answer.
    journey.press("i");
    journey.press("Tell me a story about a fox.\r");
    journey.expect("Prompt · conversation 1, 1 answer");
    journey.expect(" tokens");
    // The load of the start was the first operation.
    journey.expect("Request 2");
    journey.press("\t4");
    expect_open(&journey, "4 Chat");
    journey.expect("Tell me a story about a fox.");
    journey.expect(" passes · ");
    // Copied as `y` says.
    journey.press("y");
    journey.expect_written("\x1b]52;c;");
    journey.expect("characters went to the terminal's clipboard");
    // Another level.
    journey.press("5");
    expect_open(&journey, "5 Levels");
    journey.expect("aggressive");
    journey.press("jj\r");
    journey.expect("Put level moderate in force?");
    journey.press("y");
    journey.expect("level moderate is in force after");
    journey.press("1");
    journey.expect("moderate, budget");
    // One that comes later knows of the request.
    let mut later = Journey::sized(sluice(&["--socket", socket]), 120, 40);
    later.expect("2    done");
    later.press("q");
    assert!(later.end().success());
    journey.press("q");
    assert!(journey.end().success());
    assert!(!journey.is_alternate());
}

#[test]
fn a_bench_tells_what_the_preset_buys() {
    let daemon = Daemon::start();
    let output = daemon.run(&[
        "bench",
        "--preset",
        "exact,fast",
        "--length",
        "64",
        "--warmup",
        "0",
        "--json",
    ]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    let rows: Vec<Value> = (text.lines())
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    let [exact, fast] = &rows[..] else {
        panic!("two rows: {text}");
    };
    assert_eq!(
        (&exact["preset"], &fast["preset"]),
        (&"exact".into(), &"fast".into())
    );
    assert_eq!(
        (&exact["kv_cache"], &exact["exact"]),
        (&"none".into(), &true.into())
    );
    assert_eq!(
        (&fast["kv_cache"], &fast["exact"]),
        (&"dual:recompute-before=32".into(), &false.into())
    );
    let figure = |row: &Value, key: &str| row[key].as_f64().expect("a number");
    assert!(figure(fast, "passes") < figure(exact, "passes"));
    assert!(figure(fast, "rows_per_pass") < figure(exact, "rows_per_pass"));
    assert!((0.0..=1.0).contains(&figure(fast, "same_tokens")));
    assert!(exact["same_tokens"].is_null());
}

#[test]
fn a_prompt_is_answered() {
    let daemon = Daemon::start();
    let output = daemon.run(&[
        "generate",
        "Tell me a story.",
        "--length",
        "32",
        "--seed",
        "1",
    ]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(!stdout(&output).trim().is_empty());

    let arguments = [
        "generate",
        "--json",
        "Tell me a story.",
        "--length",
        "32",
        "--seed",
        "1",
    ];
    let done = daemon.done(&arguments);
    assert_eq!(done["event"], "done");
    let text = done["text"]
        .as_str()
        .expect("the embedded model has a tokenizer");
    assert_eq!(format!("{text}\n"), stdout(&output), "same seed, same text");
    // How many there are is the model's to say.
    let ids = |done: &Value| done["token_ids"].as_array().expect("ids").len();
    assert!((1..=32).contains(&ids(&done)), "{done}");
    for key in [
        "passes",
        "elapsed_ms",
        "peak_device_bytes",
        "seed",
        "request_id",
    ] {
        assert!(done[key].is_number(), "{key} in {done}");
    }
    assert!(
        done["is_exact"].is_boolean() && done["finish_reason"].is_string(),
        "{done}"
    );

    let done = daemon.done(&["generate", "--tokens", "5,6,7", "--length", "8", "--json"]);
    assert!((1..=8).contains(&ids(&done)), "{done}");
}

#[test]
fn what_the_daemon_refuses_is_explained_and_does_it_no_harm() {
    let daemon = Daemon::start();
    for (arguments, word) in [
        (&["generate", "hi", "--length", "0"][..], "length"),
        (&["generate", "hi", "--temperature", "NaN"], "temperature"),
        (&["generate", "hi", "--temperature", "-1"], "temperature"),
        (
            &[
                "generate", "hi", "--length", "8", "--block", "4", "--pin", "99:x",
            ],
            "99",
        ),
        (&["generate", ""], "empty"),
        (
            &["generate", "hi", "--length", "8", "--block", "64"],
            "block",
        ),
        (
            &[
                "generate",
                "hi",
                "--kv-cache",
                "dual:keep=0.5,recompute-before=3",
            ],
            "keep",
        ),
        (&["generate", "--tokens", "4294967295"], "4294967295"),
        (&["edit", "abc", "--span", "2..9"], "outside"),
        (&["watch", "999999"], "999999"),
        (&["load", "/nonexistent"], "/nonexistent"),
    ] {
        let output = daemon.run(arguments);
        let error = stderr(&output);
        assert_eq!(code(&output), 1, "{arguments:?}: {error}");
        assert_eq!(stdout(&output), "", "{arguments:?}");
        assert!(error.starts_with("error: "), "{arguments:?}: {error}");
        assert!(error.contains(word), "{arguments:?}: {error}");
    }
    assert_eq!(code(&daemon.run(&["status"])), 0);
}

#[test]
fn facts_have_a_plain_and_a_json_form() {
    let daemon = Daemon::start();
    for command in ["status", "models", "requests"] {
        let plain = daemon.run(&[command]);
        assert_eq!(code(&plain), 0, "{}", stderr(&plain));
        let json = daemon.run(&[command, "--json"]);
        let _: Value = serde_json::from_slice(&json.stdout).expect("an object");
    }
    assert!(stdout(&daemon.run(&["models"])).contains("demonstration model"));
}

#[test]
fn the_model_goes_into_a_file_and_back() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (file, back) = (path("demo.sluice"), path("back"));
    let made = daemon.done(&["compress", "sluice-demo", "-o", &file, "--all", "--json"]);
    assert_eq!(made["state"], "done");
    let made = &made["compress"];
    assert!(
        made["file_bytes"].as_u64() < made["original_bytes"].as_u64(),
        "{made}"
    );
    let inspected = daemon.done(&["inspect", &file, "--json"]);
    assert_eq!(inspected["container"]["file_bytes"], made["file_bytes"]);
    assert_eq!(inspected["model"]["file_format"], "sluice");
    let output = daemon.run(&["verify", &file]);
    assert!(
        stdout(&output).contains("all as they were written"),
        "{}",
        stderr(&output)
    );
    daemon.done(&["decompress", &file, "-o", &back, "--json"]);
    assert!(folder.path().join("back/model.safetensors").exists());
    let output = daemon.run(&["compress", "sluice-demo", "-o", &file]);
    assert_eq!(code(&output), 1);
    assert!(
        stderr(&output)
            .ends_with("exists\nhint: choose another name, or delete the existing file first (sluiced compress: --force)\n"),
        "{}",
        stderr(&output)
    );
    let jobs = stdout(&daemon.run(&["jobs"]));
    assert!(jobs.contains("compress   done       100 %"), "{jobs}");
}

#[test]
fn a_pruned_model_is_made_inspected_and_loaded() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("small.sluice");
    let file = file.to_str().expect("UTF-8");
    let prune = [
        "prune",
        "sluice-demo",
        "-o",
        file,
        "--heads",
        "0.1",
        "--json",
    ];
    let made = daemon.done(&prune);
    assert_eq!(made["kind"], "prune");
    let pruning = &made["prune"]["pruning"];
    assert_eq!(pruning["removed_kv_heads"], 2);
    assert_eq!(pruning["kv_heads"], 20);
    let inspected = daemon.done(&["inspect", file, "--json"]);
    assert_eq!(&inspected["container"]["pruning"], pruning);
    daemon.done(&["load", file, "--json"]);
    let output = daemon.run(&["generate", "Once upon a time", "--length", "16"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

#[test]
fn an_edit_keeps_what_stands_around_its_span() {
    let daemon = Daemon::start();
    let text = "Once upon a time there was a king.";
    let output = daemon.run(&["edit", text, "--replace", "king", "--seed", "1"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(
        stdout(&output).starts_with("Once upon a time there was"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn an_answer_is_scored() {
    let daemon = Daemon::start();
    let arguments = [
        "score",
        "Tell me a story.",
        "Once",
        "--draws",
        "2",
        "--seed",
        "1",
        "--json",
    ];
    let output = daemon.run(&arguments);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let score: Value = serde_json::from_slice(&output.stdout).expect("an object");
    assert!(
        score["score"]["log_likelihood"].as_f64().expect("a number") < 0.0,
        "{score}"
    );
}

#[test]
fn levels_are_measured_on_the_sample_that_comes_with_the_model() {
    let daemon = Daemon::start();
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/../daemon/model/sample.txt");
    let arguments = ["fidelity", sample, "--samples=8", "--seed=1"];
    let all = [&arguments[..], &["--level", "all"]].concat();
    let output = daemon.run(&all);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let table = stdout(&output);
    let levels: Vec<_> = table
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let names = ["level", "standard", "mild", "moderate", "aggressive", "8"];
    assert_eq!(levels, names);
    assert!(
        table.contains("mild       same weights as standard"),
        "{table}"
    );
    let json = daemon.run(&[&all[..], &["--json"]].concat());
    let rows: Vec<Value> = stdout(&json)
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    let kl = |row: usize| {
        rows[row]["result"]["mean_kl_nats"]
            .as_f64()
            .expect("a number")
    };
    assert_eq!(rows[1]["equal_to"], "standard");
    assert!(kl(0) < 1e-9 && kl(2) > kl(0) && kl(3) > kl(2), "{rows:?}");
}

#[test]
fn the_defaults_for_small_memory_are_told_and_give_way() {
    let daemon = Daemon::with(&["--small-memory"]);
    let status = stdout(&daemon.run(&["status"]));
    assert!(
        status.lines().any(|line| line
            == "defaults  level aggressive, length 64, block length 32, steps 64 (small_memory)"),
        "{status}"
    );
    let started = |arguments: &[&str]| -> Value {
        let all = [&["generate", "Tell me a story.", "--json"], arguments].concat();
        let output = stdout(&daemon.run(&all));
        let events = output.lines().map(serde_json::from_str);
        let events: Result<Vec<Value>, _> = events.collect();
        let started = events.unwrap().into_iter();
        started
            .into_iter()
            .find(|event| event["event"] == "started")
            .unwrap()
    };
    let event = started(&[]);
    assert_eq!(
        (&event["length"], &event["level"]),
        (&64.into(), &"aggressive".into())
    );
    let settings = event["settings"].as_array().unwrap();
    let of_small = |setting: &&Value| setting["origin"] == "small_memory";
    let names: Vec<_> = settings
        .iter()
        .filter(of_small)
        .map(|one| &one["name"])
        .collect();
    // The checkpoint's own blocks are shorter.
    assert_eq!(names, ["length", "steps"]);
    assert_eq!(started(&["--length=16"])["length"], 16);
    assert_eq!(code(&daemon.run(&["level", "standard"])), 0);
    assert_eq!(started(&["--length=16"])["level"], "standard");
}

#[test]
fn levels_are_reported_and_the_one_before_is_in_force_again() {
    let daemon = Daemon::start();
    let arguments = [
        "report",
        "--levels=standard,mild,aggressive,optimized",
        "--samples=4",
        "--length=8",
        "--json",
    ];
    let output = daemon.run(&arguments);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let rows: Vec<Value> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    let figure = |row: usize, key: &str| rows[row][key].as_f64().expect("a number");
    // Two thirds of bf16, then a little more than four bits.
    let bits = [0, 1, 2].map(|row| figure(row, "bits_per_weight"));
    assert!(bits[0] > bits[1] && bits[1] > bits[2], "{bits:?}");
    assert!(figure(0, "device_weight_bytes") > figure(2, "device_weight_bytes"));
    assert!([0, 1, 2].iter().all(|row| figure(*row, "pass_ms") > 0.0));
    let kl = |row: usize| {
        rows[row]["fidelity"]["mean_kl_nats"]
            .as_f64()
            .expect("a number")
    };
    assert!(kl(0) < 1e-9 && kl(1) < 1e-9 && kl(2) > kl(0), "{rows:?}");
    assert_eq!(rows[1]["equal_to"], "standard");
    let problem = rows[3]["problem"].as_str().expect("no mix was made");
    assert!(!problem.is_empty() && rows[3]["pass_ms"].is_null());
    let status: Value = serde_json::from_slice(&daemon.run(&["status", "--json"]).stdout).unwrap();
    assert_eq!(status["settings"]["options"]["level"], "standard");
    assert_eq!(status["plan"]["level"], "standard");
}

#[test]
fn a_level_is_planned_put_in_force_and_taken_back() {
    let daemon = Daemon::start();
    let generate = ["generate", "Tell me a story.", "--length=16", "--seed=1"];
    let before = stdout(&daemon.run(&generate));
    let plan = daemon.done(&["plan", "--level", "moderate", "--json"]);
    for key in ["peak_bytes", "streamed_bytes_per_pass"] {
        assert!(plan[key].is_number(), "{key} in {plan}");
    }
    assert!(plan["layers"].as_array().is_some_and(|all| !all.is_empty()));

    let applied = daemon.done(&["level", "moderate", "--json"]);
    assert_eq!(applied["kind"], "apply");
    assert_eq!(applied["apply"]["plan"]["peak_bytes"], plan["peak_bytes"]);
    assert_eq!(
        daemon.done(&["status", "--json"])["plan"]["level"],
        "moderate"
    );
    let status = stdout(&daemon.run(&["status"]));
    assert!(
        status.contains("level     moderate, not lossless"),
        "{status}"
    );

    let small = daemon.run(&["budget", "1MiB"]);
    assert_eq!(code(&small), 1);
    assert!(
        stderr(&small).contains("needs at least"),
        "{}",
        stderr(&small)
    );
    let restored = daemon.run(&["restore"]);
    assert_eq!(code(&restored), 0, "{}", stderr(&restored));
    assert!(
        stdout(&restored).contains("moderate → standard"),
        "{}",
        stdout(&restored)
    );
    assert_eq!(
        stdout(&daemon.run(&generate)),
        before,
        "as if it had never left"
    );
}

/// docs/rwkv7.md: a text goes on from a file.
#[test]
fn a_state_that_was_saved_goes_on_as_if_the_text_had_not_ended() {
    let fixtures = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../daemon/engine/tests/fixtures"
    );
    let daemon = Daemon::with(&["--model", &format!("{fixtures}/rwkv7-tiny")]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state.safetensors");
    let file = file.to_str().unwrap();
    let greedy = ["--greedy", "--eos", "suppress", "--json"];
    let ids = |arguments: &[&str]| {
        let done = daemon.done(&[&["generate"], arguments, &greedy].concat());
        serde_json::from_value::<Vec<u32>>(done["token_ids"].clone()).unwrap()
    };
    let whole = ids(&["--tokens", "9,8,7,6", "--length", "12"]);
    let save = ["--tokens", "9,8,7,6", "--length", "5", "--save-state", file];
    assert_eq!(ids(&save), whole[..5]);
    // The file that is read is written anew.
    let on = ["--state", file, "--length", "3", "--save-state", file];
    assert_eq!(ids(&on), whole[5..8]);
    assert_eq!(ids(&["--state", file, "--length", "4"]), whole[8..]);

    let refused = |daemon: &Daemon, arguments: &[&str]| {
        let output = daemon.run(arguments);
        assert_eq!(code(&output), 1);
        stderr(&output)
    };
    let other = Daemon::start();
    let message = refused(&other, &["generate", "hi", "--state", file]);
    assert!(
        message.contains("state: only recurrent models (RWKV-7)"),
        "{message}"
    );
    let message = refused(&other, &["generate", "hi", "--save-state", file]);
    assert!(message.contains("load a recurrent model"), "{message}");
    let config = format!("{fixtures}/rwkv7-tiny/config.json");
    let message = refused(&daemon, &["generate", "--state", &config]);
    assert!(message.contains("holds no state"), "{message}");
    let weights = format!("{fixtures}/rwkv7-tiny/model.safetensors");
    let message = refused(&daemon, &["generate", "--state", &weights]);
    assert!(message.contains("its format is not"), "{message}");
}

#[test]
fn a_daemon_that_is_stopped_is_told_of_within_two_seconds() {
    let daemon = Daemon::start();
    let pid = rustix::process::Pid::from_child(&daemon.child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let begun = Instant::now();
    let mut waiting = sluice(&["--socket", daemon.socket.to_str().unwrap(), "status"])
        .spawn()
        .unwrap();
    let mut errors = waiting.stderr.take().unwrap();
    said(&mut errors, "it does not answer yet");
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "{:?}",
        begun.elapsed()
    );
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert!(waiting.wait().unwrap().success());
}
