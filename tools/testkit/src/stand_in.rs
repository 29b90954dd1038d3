//! The stand-in for NVIDIA's libraries, compiled when a test first wants it: `daemon/cuda/stand-in/README.md`. It takes minutes and
//! a C++ compiler, so tests that want it are run by `cargo ci`, not by `cargo test`.

use std::{
    env,
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The folder with the libraries.
pub fn build() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(compile)
}

fn compile() -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join("daemon/cuda"))
        .find(|folder| folder.join("stand-in").is_dir())
        .expect("the crate lies in the repository");
    let program = env::current_exe().expect("this program has a file");
    // From `target/debug/deps` to what Cargo calls `CARGO_TARGET_TMPDIR`, which only test programs are compiled with.
    let target = program.ancestors().nth(3).expect("a target folder");
    let temporary = target.join("tmp");
    fs::create_dir_all(&temporary).expect("create the folder for temporary files");
    let folder = temporary.join(format!("stand-in-{:016x}", state(&sources)));
    // Several test programs may need it at the same time.
    let lock = File::create(temporary.join("stand-in.lock")).expect("create the lock");
    lock.lock().expect("wait for the lock");
    if folder.is_dir() {
        return folder;
    }
    // Built under another name and renamed, so that a build that was killed is not taken for a whole one.
    let unfinished = folder.with_extension("unfinished");
    let output = Command::new("bash")
        .arg(sources.join("stand-in/build.sh"))
        .arg(&unfinished)
        .output()
        .expect("run bash, which compiles the stand-in");
    assert!(
        output.status.success(),
        "the stand-in for NVIDIA's libraries cannot be compiled, and tests of the GPU need it\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    fs::rename(&unfinished, &folder).expect("name the folder");
    folder
}

/// A hash of its sources and compiler, which names its folder.
fn state(sources: &Path) -> u64 {
    let mut files: Vec<PathBuf> = ["stand-in", "kernels"]
        .iter()
        .flat_map(|folder| fs::read_dir(sources.join(folder)).expect("list the sources"))
        .map(|entry| entry.expect("list the sources").path())
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    let mut hasher = DefaultHasher::new();
    env::var_os("CXX").hash(&mut hasher);
    for file in files {
        file.hash(&mut hasher);
        fs::read(&file).expect("read the sources").hash(&mut hasher);
    }
    hasher.finish()
}
