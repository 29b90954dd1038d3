//! Tests in processes of their own: a process opens libraries only once, and the environment configures the stand-in's
//! GPU.

use std::{env, fs, os::unix::fs::symlink, panic::Location, path::Path, process::Command};

use crate::stand_in;

/// Set in the processes that tests start, which then run the body.
const APART: &str = "SLUICE_TEST_APART";

/// Runs the body of the test `name`, which is in the calling file, in a process where the stand-in is found and `settings` are set.
#[track_caller]
pub fn run(name: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    run_without(&[], name, settings, body);
}

/// As [`run`], where some libraries cannot be opened, whatever this machine has of them.
#[track_caller]
pub fn run_without(absent: &[&str], name: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    if env::var_os(APART).is_some() {
        return body();
    }
    let folder = tempfile::tempdir().expect("make a folder");
    // A file that is no library shadows the machine's own, since the folder comes first in the search path.
    for library in absent {
        fs::write(folder.path().join(library), "no library").expect("write a file");
    }
    for library in fs::read_dir(stand_in::build()).expect("list the stand-in") {
        let library = library.expect("list the stand-in");
        let link = folder.path().join(library.file_name());
        if !link.exists() {
            symlink(library.path(), link).expect("link to the stand-in");
        }
    }
    // A test program lists its tests with their modules, each a file of this name.
    let module = Path::new(Location::caller().file()).file_stem();
    let module = module.expect("code has a file").to_string_lossy();
    let output = Command::new(env::current_exe().expect("this program has a file"))
        .args([
            &*format!("{module}::{name}"),
            "--exact",
            "--nocapture",
            "--include-ignored",
        ])
        // The machine's own choice of GPUs would hide the stand-in's.
        .env_remove("CUDA_VISIBLE_DEVICES")
        .envs(settings.iter().copied())
        .env("LD_LIBRARY_PATH", folder.path())
        .env(APART, "1")
        .output()
        .expect("start this program again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        // A filter that matches no test also succeeds, so the count is checked.
        output.status.success() && text.contains("1 passed"),
        "{}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}
