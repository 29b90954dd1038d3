//! The commands for compressed files and jobs, against a daemon that plays a script.

use std::{
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

use fake_daemon::{ChangeScript, FakeDaemon, job};
use sluice_proto::v1::{
    CalibrateResult, CompressResult, Compression, DecompressResult, Operation, OperationProgress,
    OperationState, VerifyResult, model_ref::By, operation::Outcome,
};
use testkit::eventually;

use crate::support::{Client, code, interrupt, said, sluice, stderr, stdout};

/// A daemon whose jobs come to this result, or to none until they are cancelled.
fn working(result: Option<Outcome>) -> FakeDaemon {
    let progress = OperationProgress {
        item: "wq\x1b[2J".into(),
        done: 1 << 20,
        total: Some(1 << 21),
        ..Default::default()
    };
    let running = Operation {
        progress: Some(progress),
        ..job()
    };
    let hangs = result.is_none();
    let result = result.map(|outcome| Operation {
        state: OperationState::Done.into(),
        elapsed_ms: 1_500.0,
        outcome: Some(outcome),
        ..job()
    });
    let change = ChangeScript {
        job: [running].into_iter().chain(result).collect(),
        hangs,
        ..Default::default()
    };
    FakeDaemon::with_changes(Vec::new(), change)
}

fn compressed() -> Outcome {
    Outcome::Compress(CompressResult {
        file_bytes: 2 << 30,
        original_bytes: 3 << 30,
        resumed_tensors: 7,
        omitted_files: vec!["notes.txt".into()],
        relative_error: None,
    })
}

#[test]
fn a_file_is_asked_for_as_it_was_written_and_its_size_is_told() {
    let fake = working(Some(compressed()));
    let output = fake.output(&[
        "compress",
        "o/m",
        "--output",
        "m.sluice",
        "--coder",
        "dictionary",
        "--tile",
        "128",
        "--keep",
        "*.wte.*",
        "--keep",
        "lm_head*",
        "--only",
        "*.mlp.*",
        "--min-size",
        "4MiB",
        "--all",
        "--threads",
        "3",
    ]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(
        stdout(&output),
        "/models/m.sluice: 2.00 GiB, 66.7 % of 3.00 GiB, compressed in 1.5 s\n"
    );
    let told = stderr(&output);
    for line in [
        "job 3: compress /models/m → /models/m.sluice, 2 of the daemon's threads",
        "omitted: notes.txt",
        "resumed after 7 tensors of an earlier run",
        "note: /models/m.sluice is not visible here: the daemon has its own folders, as a service its own /tmp; use a path below /var/lib/sluice, or run `sluiced` yourself",
    ] {
        assert!(
            told.lines().any(|found| found == line),
            "{line:?} in {told}"
        );
    }
    assert!(!told.contains('\x1b'), "{told:?}");
    fake.output(&["compress", "./src", "-o", "/m.sluice", "--bits", "4.5"]);
    let seen = fake.seen.lock().unwrap();
    let asked = &seen.compressed[0];
    assert_eq!(asked.model, By::Name("o/m".into()).into());
    assert!(asked.output_path.starts_with('/') && asked.output_path.ends_with("/m.sluice"));
    assert_eq!(asked.compression(), Compression::Dictionary);
    assert_eq!(
        (asked.tile_elements, asked.threads, asked.all_tensors),
        (Some(128), Some(3), true)
    );
    assert_eq!(asked.keep_tensors, ["*.wte.*", "lm_head*"]);
    assert_eq!(asked.only_tensors, ["*.mlp.*"]);
    assert_eq!(asked.min_bytes, Some(4 << 20));
    let asked = &seen.compressed[1];
    let model = asked.model.clone().and_then(|model| model.by);
    assert!(matches!(model, Some(By::Path(path)) if path.ends_with("/src")));
    assert_eq!(asked.bits_per_weight, Some(4.5));
    assert_eq!(
        (asked.tile_elements, asked.threads, asked.all_tensors),
        (None, None, false)
    );
}

#[test]
fn a_job_for_scripts_is_a_line_a_picture() {
    let fake = working(Some(compressed()));
    let output = fake.output(&["compress", "o/m", "-o", "m.sluice", "--json"]);
    let lines: Vec<serde_json::Value> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let states: Vec<_> = lines
        .iter()
        .map(|line| line["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["running", "running", "done"]);
    assert_eq!(
        (&lines[0]["operation_id"], &lines[0]["kind"]),
        (&3.into(), &"compress".into())
    );
    assert_eq!(lines[1]["progress"]["done"], 1 << 20);
    assert_eq!(
        (&lines[2]["compress"]["file_bytes"], &lines[2]["elapsed_ms"]),
        (&(2_u64 << 30).into(), &1500.0.into())
    );
    assert!(stderr(&output).starts_with("note: /models/m.sluice is not visible here"));
}

#[test]
fn the_way_back_tells_the_files() {
    let made = DecompressResult {
        original_bytes: 3 << 30,
        files: 5,
    };
    let fake = working(Some(Outcome::Decompress(made)));
    let output = fake.output(&["decompress", "m.sluice", "--output", "m"]);
    assert_eq!(
        stdout(&output),
        "/models/m.sluice: 3.00 GiB in 5 files, decompressed in 1.5 s\n"
    );
    let seen = fake.seen.lock().unwrap();
    let asked = &seen.decompressed[0];
    assert!(asked.input_path.starts_with('/') && asked.input_path.ends_with("/m.sluice"));
    assert!(asked.output_path.starts_with('/') && asked.output_path.ends_with("/m"));
}

#[test]
fn a_calibration_is_asked_for_as_typed_and_told_in_a_line() {
    let fake = working(Some(Outcome::Calibrate(CalibrateResult {
        file_bytes: 5 << 20,
        passes: 210,
        positions: 32_100,
        masked_positions: 12_000,
        sweeps: 3,
        ..Default::default()
    })));
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    std::fs::write(&text, "Mia had a kite.\n").unwrap();
    let text = text.to_str().unwrap();
    let output = fake.output(&[
        "calibrate",
        text,
        "-o",
        "m.safetensors",
        "--positions",
        "900",
        "--diagonal",
        "--memory",
        "2GiB",
        "--threads",
        "3",
    ]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(
        stdout(&output),
        "/models/m.sluice: 5.00 MiB, 32,100 positions, 12,000 of them masked, 210 passes in 3 sweeps, measured in 1.5 s\n"
    );
    let seen = fake.seen.lock().unwrap();
    let asked = &seen.calibrated[0];
    assert_eq!(asked.texts, ["Mia had a kite."]);
    assert!(asked.output_path.starts_with('/') && asked.output_path.ends_with("/m.safetensors"));
    assert_eq!((asked.max_positions, asked.threads), (Some(900), Some(3)));
    assert_eq!((asked.memory_bytes, asked.seed), (Some(2 << 30), None));
    assert!(asked.diagonal && !asked.replace);
}

#[test]
fn damage_is_told_and_is_a_failure() {
    let found = |damage: &[&str]| {
        Outcome::Verify(VerifyResult {
            file_bytes: 2 << 30,
            tensors: 291,
            damage: damage.iter().map(|&place| place.to_owned()).collect(),
            damaged_places: damage.len() as u64,
        })
    };
    let fake = working(Some(found(&[])));
    let output = fake.output(&["verify", "m.sluice"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(
        stdout(&output),
        "/models/m: 2.00 GiB, 291 tensors, all as they were written\n"
    );
    let fake = working(Some(found(&[
        "tensor wq\x1b[2J, tile 7",
        "its checksum section",
    ])));
    let output = fake.output(&["verify", "m.sluice"]);
    assert_eq!((code(&output), &*stdout(&output)), (1, ""));
    let told = stderr(&output);
    assert!(
        told.contains("damaged: tensor wq") && told.contains(", tile 7\n"),
        "{told}"
    );
    assert!(
        told.contains(
            "error: /models/m is damaged in 2 places\nhint: compress the checkpoint again"
        ),
        "{told}"
    );
    assert!(!told.contains('\x1b'), "{told:?}");
    let output = fake.output(&["verify", "m.sluice", "--json"]);
    assert_eq!(code(&output), 1);
    assert!(
        stdout(&output).contains(r#""damaged_places":2"#),
        "{}",
        stdout(&output)
    );
}

#[test]
fn a_job_can_be_left_to_the_daemon() {
    let fake = working(None);
    let output = fake.output(&["compress", "o/m", "-o", "m.sluice", "--detach"]);
    assert_eq!((code(&output), &*stdout(&output)), (0, ""));
    assert!(
        stderr(&output).ends_with("; `sluice jobs watch 3` follows it\n"),
        "{}",
        stderr(&output)
    );
    assert!(fake.seen.lock().unwrap().operations_cancelled.is_empty());
}

/// Ctrl-C for a command that has told of its job, and so knows its id; how it ended, and what it said from there on.
fn interrupted(fake: &FakeDaemon, arguments: &[&str]) -> Output {
    let mut child = fake.sluice(arguments).spawn().unwrap();
    said(child.stderr.as_mut().expect("a pipe"), "job 3: ");
    interrupt(child)
}

#[test]
fn an_interrupt_cancels_a_job_of_ones_own_and_leaves_others_alone() {
    let fake = working(None);
    let arguments = ["compress", "o/m", "-o", "m.sluice"];
    let output = interrupted(&fake, &arguments);
    assert_eq!(code(&output), 130);
    assert_eq!(
        stderr(&output),
        "cancelling the job\nerror: the job was cancelled; what is done is kept in /p\n"
    );
    assert_eq!(fake.seen.lock().unwrap().operations_cancelled, [3]);

    let fake = working(None);
    let output = interrupted(&fake, &["jobs", "watch", "3"]);
    assert_eq!(code(&output), 130);
    assert_eq!(stderr(&output), "error: interrupted; the job continues\n");
    assert!(fake.seen.lock().unwrap().operations_cancelled.is_empty());
}

#[test]
fn an_interrupt_ends_the_wait_for_a_daemon_that_says_nothing() {
    let change = ChangeScript {
        silent: true,
        ..Default::default()
    };
    let fake = FakeDaemon::with_changes(Vec::new(), change);
    let arguments = ["verify", "m.sluice"];
    let child = fake.sluice(&arguments).spawn().unwrap();
    eventually("the job", || !fake.seen.lock().unwrap().verified.is_empty());
    let begun = Instant::now();
    let output = interrupt(child);
    assert_eq!(code(&output), 130);
    let told = stderr(&output);
    assert!(told.contains("has not confirmed"), "{told}");
    assert!(begun.elapsed() < Duration::from_secs(4), "a short wait");
}

#[test]
fn without_a_daemon_the_program_beside_this_one_does_the_work() {
    let program = Path::new(env!("CARGO_BIN_EXE_sluice"));
    let folder = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
    let client = folder.path().join("sluice");
    std::fs::hard_link(program, &client).unwrap();
    symlink("/bin/echo", folder.path().join("sluiced")).unwrap();
    for (arguments, words) in [
        ("compress /m -o /a.sluice", "compress /m --output=/a.sluice"),
        (
            "compress /m -o /a.sluice --bits 4.5 --tile 128 --keep a --keep -b --only c --min-size 4KiB --all --threads 3",
            "compress /m --output=/a.sluice --bits=4.5 --tile=128 --keep=a --keep=-b --only=c --min-size=4096 --all --threads=3",
        ),
        (
            "compress /m -o /a.sluice --lossless --coder dictionary",
            "compress /m --output=/a.sluice --lossless --coder=dictionary",
        ),
        (
            "decompress /a.sluice -o /m --threads 2",
            "decompress /a.sluice --output=/m --threads=2",
        ),
        ("verify /a.sluice", "verify /a.sluice"),
        ("inspect /a.sluice", "inspect /a.sluice"),
    ] {
        let arguments = arguments.replace("--keep -b", "--keep=-b");
        let output = Command::new(&client)
            .args(["--socket", "/nonexistent/sluice.sock"])
            .args(arguments.split(' '))
            .output()
            .unwrap();
        assert_eq!(stdout(&output), format!("{words}\n"), "{}", stderr(&output));
    }
}

#[test]
fn jobs_are_listed_stopped_and_shown_with_the_status() {
    let fake = working(None);
    let output = fake.output(&["jobs"]);
    let output = stdout(&output);
    let lines: Vec<_> = output.lines().collect();
    assert_eq!(
        lines,
        [
            "   ID  KIND       STATE       DONE         TIME  FILES",
            "    2  verify     failed      50 %   1 min 30 s  /models/m: it is gone\u{fffd}[2J",
            "    3  compress   running     50 %   1 min 30 s  /models/m → /models/m.sluice",
        ]
    );
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&fake.output(&["jobs", "--json"]))).unwrap();
    assert_eq!(json["operations"][1]["progress"]["total"], 2_u64 << 30);
    let output = fake.output(&["jobs", "cancel", "3"]);
    assert_eq!(
        stdout(&output),
        "job 3: the job was cancelled; what is done is kept in /p\n"
    );
    assert_eq!(fake.seen.lock().unwrap().watched, [3]);

    let status = stdout(&fake.output(&["status"]));
    assert!(status.contains("/models/m → /models/m.sluice"), "{status}");
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&fake.output(&["status", "--json"]))).unwrap();
    assert_eq!(json["operations"][0]["operation_id"], 3);
}

#[test]
fn what_is_no_job_is_not_cancelled_as_one() {
    let fake = working(None);
    let output = fake.output(&["jobs", "cancel", "7"]);
    assert_eq!((code(&output), &*stdout(&output)), (1, ""));
    assert_eq!(
        stderr(&output),
        "error: operation 7 is no job\nhint: `sluice jobs` lists the jobs\n"
    );
    assert!(fake.seen.lock().unwrap().operations_cancelled.is_empty());
}

#[test]
fn a_compressed_file_is_inspected_to_its_tensors() {
    let fake = working(None);
    let output = stdout(&fake.output(&["inspect", "./m.sluice"]));
    for line in [
        "/models/m.sluice: 1.38 MiB, 68.9 % of 2.00 MiB",
        "config.json: 1.00 KiB",
    ] {
        assert!(
            output.lines().any(|found| found == line),
            "{line:?} in {output}"
        );
    }
    assert!(
        output.contains("1024 × 1024  bf16  huffman     1.38 MiB  11.00 of 16"),
        "{output}"
    );
    assert!(!output.contains('\x1b'), "{output:?}");
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&fake.output(&["inspect", "./m.sluice", "--json"]))).unwrap();
    assert_eq!(json["container"]["bits_per_weight"], 11.0);
    assert_eq!(json["container"]["tensors"][0]["compression"], "huffman");
}

#[test]
fn wrong_usage_and_an_absent_daemon_are_told_apart() {
    for arguments in [
        &["compress", "m"][..],
        &["compress", "m", "-o", "a.sluice", "--tile", "100"],
        &["compress", "m", "-o", "a.sluice", "--bits", "9"],
        &[
            "compress",
            "m",
            "-o",
            "a.sluice",
            "--bits",
            "4",
            "--lossless",
        ],
        &[
            "compress", "m", "-o", "a.sluice", "--bits", "4", "--coder", "huffman",
        ],
        &["compress", "m", "-o", "a.sluice", "--coder", "zip"],
        &["compress", "m", "-o", "a.gguf"],
        &["compress", "m", "-o", "a.sluice", "--keep", ""],
        &["compress", "m", "-o", "a.sluice", "--min-size", "small"],
        &["compress", "m", "-o", "a.sluice", "--threads", "0"],
        &["prune", "m", "-o", "a.sluice"],
        &["prune", "m", "-o", "a.sluice", "--heads", "1"],
        &["prune", "m", "-o", "a.sluice", "--channels", "nan"],
        &[
            "prune",
            "m",
            "-o",
            "a.sluice",
            "--heads",
            "0.1",
            "--compensate",
        ],
        &["decompress", "a.sluice", "-o", "m", "--threads", "0"],
        &["decompress", "a.sluice"],
        &["verify"],
        &["jobs", "cancel", "all"],
    ] {
        let output = sluice(arguments).output().unwrap();
        assert_eq!(code(&output), 64, "{arguments:?}");
    }
    for pattern in ["--keep=*", "--only=*"] {
        let mut patterns = vec!["compress", "m", "-o", "a.sluice"];
        patterns.extend([pattern; 65]);
        let output = sluice(&patterns).output().unwrap();
        assert_eq!(code(&output), 64);
    }
    for (arguments, offline) in [
        (
            &["compress", "m", "-o", "a.sluice"][..],
            "`sluiced compress DIR --output FILE.sluice`",
        ),
        (
            &["decompress", "a.sluice", "-o", "m", "--detach"],
            "`sluiced decompress FILE --output DIR`",
        ),
        (&["verify", "a.sluice", "--json"], "`sluiced verify FILE`"),
        (
            &["inspect", "a.sluice", "--json"],
            "`sluiced inspect FILE.sluice --json`",
        ),
    ] {
        let absent = ["--socket", "/nonexistent/sluice.sock"];
        let output = sluice(&[&absent[..], arguments].concat()).output().unwrap();
        assert_eq!(code(&output), 69, "{arguments:?}");
        assert!(stderr(&output).contains(offline), "{}", stderr(&output));
    }
    for command in [
        "compress",
        "prune",
        "decompress",
        "verify",
        "calibrate",
        "jobs",
    ] {
        let output = sluice(&[command, "--help"]).output().unwrap();
        assert_eq!((code(&output), &*stderr(&output)), (0, ""));
        let output = sluice(&["man", command]).output().unwrap();
        assert!(stdout(&output).contains(command));
    }
}
