//! `sluiced compress`, `prune`, `decompress`, `verify` and `inspect`, as the programs they are: what they say, and what a kill leaves.

use std::{
    fs,
    path::Path,
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use sluice_shared::exit;
use tempfile::TempDir;

use crate::support::{
    checkpoints::{contents, demo},
    command, run, within,
};

fn code(output: &Output) -> u8 {
    output.status.code().unwrap() as u8
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn synthetic(folder: &Path, name: &str, layers: u32, width: u32) {
    let layers = format!("--layers={layers}");
    let width = format!("--hidden-size={width}");
    let arguments = [
        "synth",
        &layers,
        &width,
        "--attention-heads=8",
        "--intermediate-size=1024",
        "--vocab-size=600",
        name,
    ];
    let output = run(folder, &arguments).await;
    assert_eq!(code(&output), exit::OK, "{}", stderr(&output));
}

/// Prunes the demonstration model into `a.sluice`.
async fn prune(folder: &Path, arguments: &[&str]) -> Output {
    let source = demo();
    let begin = ["prune", source.to_str().unwrap(), "-o", "a.sluice"];
    run(folder, &[&begin, arguments].concat()).await
}

#[tokio::test]
async fn a_model_is_pruned_and_the_file_says_of_what() {
    let folder = TempDir::new().unwrap();
    let refused = prune(folder.path(), &["--heads", "0.9"]).await;
    assert_eq!(code(&refused), exit::FAILURE);
    assert!(
        stderr(&refused).starts_with(
            "sluiced: removing 18 of 20 KV heads would leave a layer without any: at most 15 can be removed\nhint: "
        ),
        "{}",
        stderr(&refused)
    );
    for wrong in [
        &["--heads", "1"][..],
        &[],
        &["--heads", "0.1", "--score", "taylor"],
    ] {
        assert_eq!(
            code(&prune(folder.path(), wrong).await),
            exit::USAGE,
            "{wrong:?}"
        );
    }
    let refused = prune(folder.path(), &["--heads", "0.1", "--score", "obs"]).await;
    assert!(stderr(&refused).contains("the score obs needs a calibration"));
    assert!(!folder.path().join("a.sluice").exists());

    let output = prune(folder.path(), &["--heads", "0.4", "--channels", "0.1"]).await;
    assert_eq!(code(&output), exit::OK, "{}", stderr(&output));
    assert!(
        stdout(&output).contains("without 8 of 20 KV heads, 12.5 % of the feed-forward channels"),
        "{}",
        stdout(&output)
    );
    assert!(
        stderr(&output).starts_with("removing 40 % of the attention heads is more than"),
        "{}",
        stderr(&output)
    );
    let output = run(folder.path(), &["inspect", "a.sluice"]).await;
    assert!(
        stdout(&output).contains(
            "\npruned of 8 of 20 KV heads, 12.5 % of the feed-forward channels; score: l2; made from "
        ),
        "{}",
        stdout(&output)
    );
    let output = run(folder.path(), &["verify", "a.sluice"]).await;
    assert_eq!(code(&output), exit::OK, "{}", stderr(&output));
    let output = run(folder.path(), &["decompress", "a.sluice", "-o", "back"]).await;
    assert_eq!(code(&output), exit::FAILURE);
    assert!(stderr(&output).contains("it is a pruned model"));
    let output = run(
        folder.path(),
        &["plan", "--model", "a.sluice", "--level", "aggressive"],
    )
    .await;
    assert_eq!(code(&output), exit::OK, "{}", stderr(&output));
}

#[tokio::test]
async fn a_model_goes_into_a_file_and_back() {
    let folder = TempDir::new().unwrap();
    let source = demo();
    let source = source.to_str().unwrap();
    let output = run(
        folder.path(),
        &["compress", source, "-o", "a.sluice", "--all"],
    )
    .await;
    assert_eq!(code(&output), exit::OK, "{}", stderr(&output));
    assert!(
        stdout(&output).starts_with("a.sluice: "),
        "{}",
        stdout(&output)
    );
    assert_eq!(stderr(&output), "");

    let output = run(folder.path(), &["verify", "a.sluice"]).await;
    assert_eq!(code(&output), exit::OK, "{}", stderr(&output));
    assert!(stdout(&output).contains("all as they were written"));

    let output = run(folder.path(), &["inspect", "a.sluice"]).await;
    assert!(stdout(&output).contains("huffman"), "{}", stdout(&output));
    let output = run(folder.path(), &["inspect", "a.sluice", "--json"]).await;
    let shown: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(shown["elements"], 3_934_976);
    assert!(shown["bits_per_weight"].as_f64().unwrap() < 14.0, "{shown}");

    let output = run(folder.path(), &["decompress", "a.sluice", "-o", "back"]).await;
    assert_eq!(code(&output), exit::OK, "{}", stderr(&output));
    assert!(contents(&folder.path().join("back")) == contents(&demo()));

    // It isn't written twice, unless that is asked for.
    let before = fs::read(folder.path().join("a.sluice")).unwrap();
    let output = run(folder.path(), &["compress", source, "-o", "a.sluice"]).await;
    assert_eq!(code(&output), exit::FAILURE);
    assert!(
        stderr(&output).contains("a.sluice already exists\nhint: "),
        "{}",
        stderr(&output)
    );
    assert!(fs::read(folder.path().join("a.sluice")).unwrap() == before);
    let arguments = ["compress", source, "-o", "a.sluice", "--bits=5", "--force"];
    let output = run(folder.path(), &arguments).await;
    assert_eq!(code(&output), exit::OK, "{}", stderr(&output));
    assert!(stdout(&output).contains(", error -"), "{}", stdout(&output));
    let output = run(folder.path(), &["decompress", "a.sluice", "-o", "back"]).await;
    assert!(stderr(&output).contains("exists and is not an empty folder"));
}

#[tokio::test]
async fn what_is_wrong_with_a_file_is_said_with_its_place() {
    let folder = TempDir::new().unwrap();
    synthetic(folder.path(), "source", 2, 512).await;
    let output = run(folder.path(), &["compress", "source", "-o", "a.sluice"]).await;
    assert_eq!(code(&output), exit::OK, "{}", stderr(&output));
    let path = folder.path().join("a.sluice");
    let whole = fs::read(&path).unwrap();

    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(&path, damaged).unwrap();
    for arguments in [
        &["verify", "a.sluice"][..],
        &["decompress", "a.sluice", "-o", "back"],
    ] {
        let output = run(folder.path(), arguments).await;
        assert_eq!(code(&output), exit::FAILURE);
        let said = stderr(&output);
        assert!(said.contains("tensor model.transformer.blocks."), "{said}");
        assert!(said.contains("tile") && said.contains("hint: "), "{said}");
        assert!(!folder.path().join("back").exists());
    }

    fs::write(&path, &whole[..middle]).unwrap();
    for name in ["verify", "inspect"] {
        let output = run(folder.path(), &[name, "a.sluice"]).await;
        assert_eq!(code(&output), exit::FAILURE);
        assert!(
            stderr(&output).contains("is truncated or damaged"),
            "{}",
            stderr(&output)
        );
    }
    fs::write(&path, &whole).unwrap();
    for (arguments, words) in [
        (
            &["verify", "source/config.json"][..],
            "is not a .sluice file",
        ),
        (&["verify", "source"], "is not a .sluice file"),
        (&["verify", "nothing"], "cannot open nothing"),
        (&["compress", "nothing", "-o", "b.sluice"], "cannot read"),
        (
            &["compress", "a.sluice", "-o", "b.sluice"],
            "is already a .sluice file",
        ),
    ] {
        let output = run(folder.path(), arguments).await;
        assert_eq!(code(&output), exit::FAILURE, "{arguments:?}");
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    }
    for arguments in [
        &["compress", "source"][..],
        &["compress", "source", "-o", "b"],
        &["compress", "source", "-o", "b.sluice", "--keep="],
        &["compress", "source", "-o", "b.sluice", "--tile=100"],
        &["compress", "source", "-o", "b.sluice", "--bits=9"],
        &[
            "compress",
            "source",
            "-o",
            "b.sluice",
            "--bits=4",
            "--lossless",
        ],
        &["compress", "source", "-o", "b.sluice", "--coder=zip"],
        &["decompress", "a.sluice"],
        &["verify"],
    ] {
        let output = run(folder.path(), arguments).await;
        assert_eq!(code(&output), exit::USAGE, "{arguments:?}");
    }
}

/// Runs a command and kills it after a time; says whether it came to its end before.
async fn killed_after(folder: &Path, arguments: &[&str], time: Duration, signal: Signal) -> bool {
    let mut command = command(folder);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.args(arguments).spawn().unwrap();
    let pid = Pid::from_raw(child.id().unwrap() as i32).unwrap();
    tokio::time::sleep(time).await;
    let _ = kill_process(pid, signal);
    let status = within("a killed process to end", child.wait()).await;
    status.unwrap().success()
}

/// How long a run takes. Of several the shortest counts: what else the machine does makes single ones longer.
async fn timed(folder: &Path, arguments: &[&str]) -> Duration {
    let begun = Instant::now();
    let output = run(folder, arguments).await;
    assert_eq!(code(&output), exit::OK, "{}", stderr(&output));
    begun.elapsed()
}

/// Times between 0 and somewhat more than a run takes: anywhere in a run, and now and then just after it.
struct Moments(u32);

impl Moments {
    fn next(&mut self, takes: Duration) -> Duration {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        takes.mul_f64(f64::from(self.0 >> 8) / f64::from(1 << 24) * 1.1)
    }
}

#[tokio::test]
async fn a_killed_run_leaves_the_source_and_nothing_that_looks_finished() {
    let folder = TempDir::new().unwrap();
    synthetic(folder.path(), "source", 8, 512).await;
    // Coding to a rate takes longer.
    synthetic(folder.path(), "small", 1, 256).await;
    let path = |name: &str| folder.path().join(name);
    let before = ["source", "small"].map(|name| contents(&path(name)));
    let mut moments = Moments(7);
    // Into the source's folder, too, which the next run then looks through.
    for (turns, source, target, how) in [
        (28, "source", "a.sluice", "--lossless"),
        (12, "source", "source/b.sluice", "--lossless"),
        (10, "small", "c.sluice", "--bits=4"),
    ] {
        let arguments = ["compress", source, "-o", target, how];
        let mut takes = timed(folder.path(), &arguments).await;
        let whole = fs::read(path(target)).unwrap();
        fs::remove_file(path(target)).unwrap();
        takes = takes.min(timed(folder.path(), &arguments).await);
        fs::remove_file(path(target)).unwrap();

        let (partial, journal) = (
            format!("{target}.partial"),
            format!("{target}.partial.journal"),
        );
        let (mut killed, mut ended) = (0, 0);
        for turn in 0..turns {
            let signal = match turn % 4 {
                0 => Signal::INT,
                _ => Signal::KILL,
            };
            let time = moments.next(takes);
            killed_after(folder.path(), &arguments, time, signal).await;
            match fs::read(path(target)) {
                // What has the name is whole, whether or not the process had its time to say so.
                Ok(found) => {
                    assert!(found == whole);
                    fs::remove_file(path(target)).unwrap();
                    ended += 1;
                }
                Err(_) => killed += 1,
            }
            // Half the runs go on with what those before them left.
            if turn % 2 == 0 {
                for rest in [&partial, &journal] {
                    drop(fs::remove_file(path(rest)));
                }
            }
        }
        assert!(killed > 2, "{killed} were killed, {ended} ended");
        let output = run(folder.path(), &arguments).await;
        assert_eq!(code(&output), exit::OK, "{}", stderr(&output));
        assert!(fs::read(path(target)).unwrap() == whole);
        assert!(!path(&partial).exists() && !path(&journal).exists());
    }
    fs::remove_file(path("source/b.sluice")).unwrap();
    assert!(["source", "small"].map(|name| contents(&path(name))) == before);
}

#[tokio::test]
async fn a_killed_way_back_leaves_nothing_that_stays() {
    let folder = TempDir::new().unwrap();
    synthetic(folder.path(), "source", 8, 512).await;
    let path = |name: &str| folder.path().join(name);
    let source = contents(&path("source"));
    let output = run(folder.path(), &["compress", "source", "-o", "a.sluice"]).await;
    assert_eq!(code(&output), exit::OK, "{}", stderr(&output));
    let arguments = ["decompress", "a.sluice", "-o", "back"];
    // Those of runs that were killed so that they couldn't clear up.
    let left = || {
        let names = fs::read_dir(folder.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(".sluice-")).count()
    };
    let took_back = || {
        assert!(contents(&path("back")) == source);
        fs::remove_dir_all(path("back")).unwrap();
    };
    let mut takes = timed(folder.path(), &arguments).await;
    took_back();
    takes = takes.min(timed(folder.path(), &arguments).await);
    took_back();

    let mut moments = Moments(11);
    let mut killed = 0;
    for turn in 0..16 {
        let signal = match turn % 4 {
            0 => Signal::TERM,
            _ => Signal::KILL,
        };
        let before = left();
        let time = moments.next(takes);
        killed_after(folder.path(), &arguments, time, signal).await;
        match path("back").exists() {
            true => took_back(),
            false => killed += 1,
        }
        // A run takes away what others left before it leaves something itself; one that was killed early did neither.
        let limit = if signal == Signal::KILL { 1 } else { before };
        assert!(left() <= limit, "{} are left", left());
    }
    assert!(killed > 2, "{killed} were killed");
    let output = run(folder.path(), &arguments).await;
    assert_eq!(code(&output), exit::OK, "{}", stderr(&output));
    took_back();
    assert_eq!(left(), 0);
}
