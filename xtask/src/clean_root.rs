//! The packages tried in a clean root: Debian's base system, booted in a container with its own systemd and without a network.
//! `packaging/clean-root/try.sh` says what is tried.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::outcome::Outcome;
use crate::package::{self, Purpose};
use crate::system::{TemporaryFolder, cargo, has, root};

/// Folder for base systems, below the repository's root; each is made once.
const ROOTS: &str = "target/clean-root";
/// What the base system has besides, as every installed Debian does: systemd, logins, and the certificates of the network.
const INCLUDED: &str = "--include=systemd,systemd-sysv,dbus,libpam-systemd,ca-certificates";
/// Debian with the least glibc that released programs run with.
const OLDEST: &str = "bullseye";
/// The whole script takes a minute; of emulated or busy machines nobody knows.
const PATIENCE: Duration = Duration::from_secs(600);
/// In which the README says how to install the package.
const README_SECTION: &str = "### The Debian package";

/// With the programs that tests have built, in this machine's release of Debian.
pub(crate) fn check() -> io::Result<Outcome> {
    if let Some(why) = missing() {
        return Ok(Outcome::Skipped(why));
    }
    let Some(suite) = own_suite()? else {
        let why = "programs of this build run on this system or a newer one, and this is no Debian";
        return Ok(Outcome::Skipped(why.to_owned()));
    };
    // The build that `cargo test` makes, so that CI doesn't pay for another.
    let build = cargo()
        .args([
            "build",
            "--quiet",
            "-p",
            "sluice-daemon",
            "-p",
            "sluice-tui",
        ])
        .current_dir(root())
        .status()?;
    if !build.success() {
        return Ok(Outcome::Failed("the programs cannot be built".to_owned()));
    }
    try_packages(&root().join("target/debug"), &suite)
}

/// With the programs as they are released, in the oldest Debian that they are for.
pub(crate) fn check_release() -> io::Result<Outcome> {
    if let Some(why) = missing() {
        return Ok(Outcome::Skipped(why));
    }
    match package::build()? {
        Outcome::Passed => try_packages(&package::released(), OLDEST),
        other => Ok(other),
    }
}

/// With programs that are there, in this release of Debian.
pub(crate) fn run_with(programs: &str, suite: &str) -> ExitCode {
    let outcome = match missing() {
        Some(why) => Ok(Outcome::Skipped(why)),
        None => try_packages(Path::new(programs), suite),
    };
    match outcome {
        Ok(Outcome::Passed) => ExitCode::SUCCESS,
        Ok(Outcome::Skipped(why) | Outcome::Failed(why)) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What is not here.
fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can make a root of its own".to_owned());
    }
    let needed = [
        ("debootstrap", "--version", "debootstrap"),
        ("systemd-nspawn", "--version", "systemd-container"),
        ("dpkg-deb", "--version", "dpkg"),
    ];
    let missing = needed
        .iter()
        .find(|(program, question, _)| !has(program, &[question]));
    missing.map(|(program, _, package)| {
        format!("{program} is not here; on Debian: apt-get install {package}")
    })
}

/// The release of this system, if it is Debian.
fn own_suite() -> io::Result<Option<String>> {
    let release = fs::read_to_string("/etc/os-release")?;
    let value = |key: &str| {
        release
            .lines()
            .find_map(|line| Some(line.strip_prefix(key)?.trim_matches('"').to_owned()))
    };
    Ok(value("VERSION_CODENAME=").filter(|_| value("ID=").as_deref() == Some("debian")))
}

fn try_packages(programs: &Path, suite: &str) -> io::Result<Outcome> {
    let base = match base_system(suite)? {
        Ok(base) => base,
        Err(outcome) => return Ok(outcome),
    };
    let old = package::make(
        programs,
        &format!("{}~earlier", package::VERSION),
        Purpose::Trial,
    )?;
    let new = package::make(programs, package::VERSION, Purpose::Trial)?;
    if let Outcome::Failed(problem) = lint(&new.deb)? {
        return Ok(Outcome::Failed(problem));
    }
    // Beside the base system, so that a copy shares its blocks where the file system can.
    let place = TemporaryFolder::new("clean-root")?;
    let (system, packages) = (place.path().join("root"), place.path().join("packages"));
    copy(&base, &system)?;
    fs::create_dir(&packages)?;
    for (deb, folder) in [(&old.deb, "old"), (&new.deb, "new")] {
        let folder = packages.join(folder);
        fs::create_dir(&folder)?;
        fs::copy(deb, folder.join(deb.file_name().expect("it has one")))?;
    }
    fs::copy(&new.archive, packages.join("archive.tar.gz"))?;
    fs::write(packages.join("readme"), readme_lines()?)?;
    let source = root().join("packaging/clean-root");
    fs::copy(source.join("try.sh"), packages.join("try.sh"))?;
    let units = system.join("etc/systemd/system");
    fs::copy(source.join("try.service"), units.join("try.service"))?;
    let wants = units.join("multi-user.target.wants");
    fs::create_dir_all(&wants)?;
    std::os::unix::fs::symlink("../try.service", wants.join("try.service"))?;
    boot(&system, &packages)?;
    judge(&packages)
}

/// A base system of this release of Debian, or why there is none.
fn base_system(suite: &str) -> io::Result<Result<PathBuf, Outcome>> {
    let roots = root().join(ROOTS);
    let base = roots.join(suite);
    if base.is_dir() {
        return Ok(Ok(base));
    }
    fs::create_dir_all(&roots)?;
    let new = roots.join(format!("{suite}.new"));
    if new.exists() {
        fs::remove_dir_all(&new)?;
    }
    println!("making a base system of {suite} in {}", base.display());
    let log = fs::File::create(roots.join("debootstrap.log"))?;
    let made = Command::new("debootstrap")
        .args(["--variant=minbase", INCLUDED, suite])
        .arg(&new)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .status()?;
    if !made.success() {
        let words = "debootstrap could not make a base system, see target/clean-root/debootstrap.log; it needs Debian's archive";
        return Ok(Err(Outcome::Skipped(words.to_owned())));
    }
    // What was downloaded is unpacked.
    let _ = fs::remove_dir_all(new.join("var/cache/apt/archives"));
    fs::rename(&new, &base)?;
    Ok(Ok(base))
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let copied = Command::new("cp")
        .args(["-a", "--reflink=auto"])
        .args([from, to])
        .status()?;
    match copied.success() {
        true => Ok(()),
        false => Err(io::Error::other("the base system cannot be copied")),
    }
}

/// Debian's own checks of a package, where they are here.
fn lint(deb: &Path) -> io::Result<Outcome> {
    if !has("lintian", &["--version"]) {
        println!(
            "lintian is not here, so the package is not checked by it; on Debian: apt-get install lintian"
        );
        return Ok(Outcome::Passed);
    }
    let output = Command::new("lintian")
        .args(["--fail-on", "error,warning", "--allow-root"])
        .arg(deb)
        .output()?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    Ok(match output.status.success() {
        true => Outcome::Passed,
        false => Outcome::Failed("lintian finds fault with the package".to_owned()),
    })
}

/// The lines that the README gives for installing the package and getting a first answer.
fn readme_lines() -> io::Result<String> {
    let readme = fs::read_to_string(root().join("README.md"))?;
    let section = readme
        .split_once(README_SECTION)
        .map(|(_, section)| section);
    let block = section.and_then(|section| section.split("```\n").nth(1));
    let lines = block.ok_or_else(|| {
        io::Error::other(format!("the README has no lines below {README_SECTION}"))
    })?;
    // Remarks are for readers.
    let commands = lines
        .lines()
        .map(|line| line.split(" # ").next().unwrap_or_default().trim_end());
    Ok(commands.collect::<Vec<_>>().join("\n") + "\n")
}

/// Boots the system until it powers off.
fn boot(system: &Path, packages: &Path) -> io::Result<()> {
    let console = fs::File::create(packages.join("console"))?;
    let mut container = Command::new("systemd-nspawn")
        .args([
            "--quiet",
            "--boot",
            "--register=no",
            "--keep-unit",
            "--private-network",
        ])
        .arg(format!("--machine=sluice-try-{}", std::process::id()))
        .arg(format!("--directory={}", system.display()))
        .arg(format!("--bind={}:/packages", packages.display()))
        .stdin(Stdio::null())
        .stdout(console.try_clone()?)
        .stderr(console)
        .spawn()?;
    let deadline = Instant::now() + PATIENCE;
    while container.try_wait()?.is_none() {
        if Instant::now() > deadline {
            container.kill()?;
            container.wait()?;
            break;
        }
        sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// By what the script left.
fn judge(packages: &Path) -> io::Result<Outcome> {
    let read = |name: &str| fs::read_to_string(packages.join(name)).unwrap_or_default();
    let result = read("result");
    if result.trim() == "passed" {
        let milliseconds: f64 = read("first-answer-ms").trim().parse().unwrap_or(f64::NAN);
        println!(
            "from the package's file to the first answer: {:.1} s",
            milliseconds / 1000.0
        );
        let security = read("security");
        println!("{}", security.lines().last().unwrap_or_default());
        return Ok(Outcome::Passed);
    }
    let log = read("log");
    if log.is_empty() {
        // Nothing was tried: a container can't boot here.
        let console = read("console");
        let last = console.lines().last().unwrap_or("it says nothing");
        return Ok(Outcome::Skipped(format!(
            "systemd does not boot in a container here: {last}"
        )));
    }
    println!("{log}\n{}", read("journal"));
    Ok(Outcome::Failed(match result.is_empty() {
        true => "the script did not end in time".to_owned(),
        false => result.trim().to_owned(),
    }))
}
