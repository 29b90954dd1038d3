//! Runs tests against the stand-in for NVIDIA's libraries, each in a process with the environment that it needs: the libraries
//! are found by it, and opened once in a process.

#![allow(dead_code, reason = "each file of tests uses its part")]

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// Set in the processes that tests start.
const INSIDE: &str = "SLUICE_STAND_IN";

/// Runs the body of the test `name` in a process where the stand-in is found and `settings` are set.
pub fn run(name: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    if env::var_os(INSIDE).is_some() {
        return body();
    }
    run_with_libraries(name, libraries(), settings, body);
}

/// The same with libraries from another folder.
pub fn run_with_libraries(
    name: &str,
    libraries: impl AsRef<Path>,
    settings: &[(&str, &str)],
    body: impl FnOnce(),
) {
    if env::var_os(INSIDE).is_some() {
        return body();
    }
    let output = Command::new(env::current_exe().expect("this program has a file"))
        .args([name, "--exact", "--nocapture"])
        .env_remove("CUDA_VISIBLE_DEVICES")
        .envs(settings.iter().copied())
        .env("LD_LIBRARY_PATH", libraries.as_ref())
        .env(INSIDE, "1")
        .output()
        .expect("this program can be started again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The folder with the stand-in's libraries, compiled by the first call.
pub fn libraries() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand-in");
        let lock = folder.with_extension("lock");
        let lock = fs::File::create(lock).expect("the folder of tests can be written");
        // Other files of tests run at the same time.
        lock.lock().expect("a file can be locked");
        let status = Command::new("bash")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/stand-in/build.sh"))
            .arg(&folder)
            .status()
            .expect("bash is there");
        assert!(status.success(), "the stand-in can't be compiled");
        folder
    })
}

/// A folder like [`libraries`] in which some can't be opened, whatever the machine has of them elsewhere.
pub fn libraries_without(absent: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in absent {
        fs::write(folder.path().join(name), "no library").expect("a file in it");
    }
    if env::var_os(INSIDE).is_none() {
        for library in fs::read_dir(libraries()).expect("it was made").flatten() {
            let link = folder.path().join(library.file_name());
            if !link.exists() {
                symlink(library.path(), link).expect("a link in it");
            }
        }
    }
    folder
}
