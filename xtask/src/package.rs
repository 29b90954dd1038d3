//! `cargo xtask package`: what is released, an archive for any Linux and a Debian package, from a release build.
//!
//! The same programs give the same bytes: times are the last commit's, owners are root, entries are sorted.

mod deb;
mod third_party;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::outcome::Outcome;
use crate::steps::{command, steps};
use crate::system::{TemporaryFolder, cargo, has, root};

/// Of glibc, the least version that released programs run with: Debian 11, Ubuntu 20.04.
const GLIBC: &str = "2.31";

/// Folder for what is made, below the repository's root.
const PACKAGES: &str = "target/packages";

/// What packages are made for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be given away: as small as they can be.
    Release,
    /// To be tried: soon.
    Trial,
}

impl Purpose {
    /// The level of compression.
    fn level(self) -> &'static str {
        match self {
            Self::Release => "9",
            Self::Trial => "1",
        }
    }
}

/// What was made.
pub(crate) struct Packages {
    pub(crate) archive: PathBuf,
    pub(crate) deb: PathBuf,
}

/// Builds for release, and packages that.
pub(crate) fn run() -> ExitCode {
    steps(
        [
            ("release build", build as fn() -> _),
            ("packages", of_release as _),
        ]
        .into_iter(),
    )
}

/// Packages programs that were built by other means, for trying the packages.
pub(crate) fn run_with(programs: &str, version: Option<&str>) -> ExitCode {
    match make(
        Path::new(programs),
        version.unwrap_or(VERSION),
        Purpose::Release,
    ) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The version of all packages of the workspace.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The target of release builds, as rustc names it.
fn target() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

fn has_zig() -> bool {
    has("cargo", &["zigbuild", "--help"])
}

/// Builds the programs as they are released.
pub(crate) fn build() -> io::Result<Outcome> {
    let mut build = cargo();
    if has_zig() {
        build
            .arg("zigbuild")
            .args(["--target", &format!("{}.{GLIBC}", target())]);
    } else {
        println!(
            "cargo-zigbuild is not here, so the programs need this machine's glibc; for {GLIBC}: pip install ziglang cargo-zigbuild"
        );
        build.args(["build", "--target", &target()]);
    }
    build.args([
        "--release",
        "--locked",
        "-p",
        "sluice-daemon",
        "-p",
        "sluice-tui",
    ]);
    build.args(["--features", "sluice-daemon/installed"]);
    command(&mut build)
}

/// Packages what [`build`] built.
fn of_release() -> io::Result<Outcome> {
    let programs = released();
    let packages = make(&programs, VERSION, Purpose::Release)?;
    let found = glibc(&programs)?;
    println!("{}\n{}", packages.archive.display(), packages.deb.display());
    if has_zig() && found > number(GLIBC) {
        let problem = format!("the programs need glibc 2.{found}, newer than {GLIBC}");
        return Ok(Outcome::Failed(problem));
    }
    Ok(Outcome::Passed)
}

/// Where [`build`] puts the programs.
pub(crate) fn released() -> PathBuf {
    root().join("target").join(target()).join("release")
}

/// Makes both packages of the programs in a folder.
pub(crate) fn make(programs: &Path, version: &str, purpose: Purpose) -> io::Result<Packages> {
    let out = root().join(PACKAGES);
    fs::create_dir_all(&out)?;
    let name = format!("sluice-{version}-{}-linux-gnu", std::env::consts::ARCH);
    let folder = TemporaryFolder::new("package")?;
    let tree = folder.path().join(&name);
    stage(programs, &tree)?;
    let archive = out.join(format!("{name}.tar.gz"));
    let tar = folder.path().join("archive.tar");
    tar_of(folder.path(), &name, &tar)?;
    let packed = Command::new("gzip")
        .args([&format!("-{}n", purpose.level()), "-c"])
        .arg(&tar)
        .output()?;
    succeeded("gzip", packed.status.success())?;
    fs::write(&archive, packed.stdout)?;
    let deb = deb::make(&tree, version, glibc(programs)?, purpose, &out)?;
    for file in [&archive, &deb] {
        let megabytes = fs::metadata(file)?.len() as f64 / 1e6;
        println!("{} {megabytes:.1} MB", file.display());
    }
    Ok(Packages { archive, deb })
}

/// The archive's tree: what `install.sh` installs, and it.
fn stage(programs: &Path, tree: &Path) -> io::Result<()> {
    let repository = root();
    let copy = |from: &str, to: &str, mode: &str| -> io::Result<()> {
        let to = tree.join(to);
        run_checked(
            Command::new("install")
                .args(["-D", "-m", mode])
                .arg(repository.join(from))
                .arg(to),
        )
    };
    for program in ["sluiced", "sluice"] {
        let to = tree.join("bin").join(program);
        run_checked(
            Command::new("install")
                .args(["-D", "-m", "755"])
                .arg(programs.join(program))
                .arg(&to),
        )?;
        // Names of functions are a third of the bytes; panics name files and lines without them.
        if has("strip", &["--version"]) {
            run_checked(Command::new("strip").args(["--strip-all"]).arg(&to))?;
        }
    }
    let program = |name: &str| Command::new(tree.join("bin").join(name));
    let (pages, formats) = (tree.join("share/man/man1"), tree.join("share/man/man5"));
    run_checked(program("sluice").args(["man", "--folder"]).arg(&pages))?;
    run_checked(program("sluiced").arg("man").arg(&pages))?;
    fs::create_dir_all(&formats)?;
    fs::rename(pages.join("sluiced.toml.5"), formats.join("sluiced.toml.5"))?;
    for folder in [pages, formats] {
        for page in fs::read_dir(folder)? {
            run_checked(Command::new("gzip").args(["-9n"]).arg(page?.path()))?;
        }
    }
    for (shell, file) in [
        ("bash", "share/bash-completion/completions/sluice"),
        ("zsh", "share/zsh/site-functions/_sluice"),
        ("fish", "share/fish/vendor_completions.d/sluice.fish"),
    ] {
        let script = program("sluice").args(["completions", shell]).output()?;
        succeeded("sluice completions", script.status.success())?;
        let file = tree.join(file);
        fs::create_dir_all(file.parent().expect("it has a folder"))?;
        fs::write(file, script.stdout)?;
    }
    for (from, to, mode) in [
        (
            "systemd/sluice.service",
            "lib/systemd/system/sluice.service",
            "644",
        ),
        (
            "systemd/sluice.socket",
            "lib/systemd/system/sluice.socket",
            "644",
        ),
        (
            "systemd/user/sluice.service",
            "lib/systemd/user/sluice.service",
            "644",
        ),
        (
            "systemd/user/sluice.socket",
            "lib/systemd/user/sluice.socket",
            "644",
        ),
        (
            "systemd/sysusers.d/sluice.conf",
            "lib/sysusers.d/sluice.conf",
            "644",
        ),
        (
            "systemd/tmpfiles.d/sluice.conf",
            "lib/tmpfiles.d/sluice.conf",
            "644",
        ),
        ("systemd/sluiced.toml", "etc/sluice/sluiced.toml", "644"),
        ("systemd/README.md", "share/doc/sluice/systemd.md", "644"),
        ("README.md", "share/doc/sluice/README.md", "644"),
        ("CHANGELOG.md", "share/doc/sluice/CHANGELOG.md", "644"),
        ("LICENSE-MIT", "share/doc/sluice/LICENSE-MIT", "644"),
        ("LICENSE-APACHE", "share/doc/sluice/LICENSE-APACHE", "644"),
        ("packaging/install.sh", "install.sh", "755"),
        ("packaging/uninstall.sh", "uninstall.sh", "755"),
    ] {
        copy(from, to, mode)?;
    }
    for drop_in in fs::read_dir(repository.join("systemd/sluice.service.d"))? {
        let name = drop_in?.file_name();
        let name = name.to_string_lossy();
        copy(
            &format!("systemd/sluice.service.d/{name}"),
            &format!("lib/systemd/examples/{name}"),
            "644",
        )?;
    }
    let notices = third_party::notices()?;
    fs::write(tree.join("share/doc/sluice/THIRD-PARTY.txt"), notices)
}

/// A tar file of an entry of a folder.
fn tar_of(folder: &Path, entry: &str, to: &Path) -> io::Result<()> {
    let mtime = format!("--mtime=@{}", epoch());
    run_checked(
        Command::new("tar")
            .args([
                "--sort=name",
                &mtime,
                "--owner=0",
                "--group=0",
                "--numeric-owner",
                "--format=gnu",
            ])
            .arg("-C")
            .arg(folder)
            .arg("-cf")
            .arg(to)
            .arg(entry),
    )
}

/// When the last commit was made, in seconds.
fn epoch() -> u64 {
    let log = Command::new("git")
        .args(["log", "-1", "--format=%ct"])
        .current_dir(root())
        .output();
    let text = log.map_or_else(|_| Vec::new(), |log| log.stdout);
    // Without git or its history, as in an unpacked archive, any time will do that is always the same.
    String::from_utf8_lossy(&text).trim().parse().unwrap_or(0)
}

/// The least minor version of glibc 2 that programs need, by the names of versions in them.
fn glibc(programs: &Path) -> io::Result<u32> {
    let mut least = 0;
    for program in ["sluiced", "sluice"] {
        let names = Command::new("grep")
            .args(["-a", "-o", "-E", r"GLIBC_2\.[0-9]+"])
            .arg(programs.join(program))
            .output()?;
        let names = String::from_utf8_lossy(&names.stdout).into_owned();
        let found = names
            .lines()
            .filter_map(|name| name.rsplit('.').next()?.parse().ok());
        least = found.fold(least, u32::max);
    }
    Ok(least)
}

/// The minor number of a version such as 2.31.
fn number(version: &str) -> u32 {
    let minor = version.split('.').nth(1);
    minor
        .and_then(|minor| minor.parse().ok())
        .expect("a constant")
}

fn run_checked(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    let line = format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    succeeded(&line, output.status.success())
}

fn succeeded(what: &str, succeeded: bool) -> io::Result<()> {
    match succeeded {
        true => Ok(()),
        false => Err(io::Error::other(format!("failed: {what}"))),
    }
}
