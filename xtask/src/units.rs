//! The files in `systemd/`, checked by systemd's own tools, none of which needs a running
//! systemd: `verify` reports unknown keys but exits 0, so any word of it is a failure.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use crate::outcome::Outcome;
use crate::system::{TemporaryFolder, built, cargo, has, root};

/// Tenths of what `systemd-analyze security` calls exposure.
const EXPOSURE_MAX: &str = "12";
const UNITS: [&str; 2] = ["sluice.service", "sluice.socket"];

pub(crate) fn check() -> io::Result<Outcome> {
    // The build that `cargo test` makes, so that CI doesn't pay for another.
    let build = cargo()
        .args(["test", "--no-run", "--quiet"])
        .current_dir(root())
        .status()?;
    if !build.success() {
        return Ok(Outcome::Failed(
            "sluiced, which the unit starts, cannot be built".to_owned(),
        ));
    }
    let mut checks = Checks::default();
    configuration(&mut checks)?;
    if !has("systemd-analyze", &["--version"]) {
        checks.skip("systemd-analyze is not here");
    } else {
        units(&mut checks)?;
    }
    if !has("systemd-sysusers", &["--version"]) || !has("systemd-tmpfiles", &["--version"]) {
        checks.skip("systemd-sysusers and systemd-tmpfiles are not here");
    } else if rustix::process::geteuid().is_root() {
        users_and_folders(&mut checks)?;
    } else {
        let conf = root().join("systemd/sysusers.d/sluice.conf");
        checks.run(Command::new("systemd-sysusers").arg("--dry-run").arg(conf))?;
        checks.skip("systemd-tmpfiles gives folders to users, which only root can try");
    }
    Ok(checks.outcome())
}

/// The sample, as it stands and with every key in force.
fn configuration(checks: &mut Checks) -> io::Result<()> {
    let folder = TemporaryFolder::new("config")?;
    let sample = root().join("systemd/sluiced.toml");
    let mut all = String::new();
    for line in fs::read_to_string(&sample)?.lines() {
        // The model's folder would have to exist, and the files of tokens and certificates.
        let key = line
            .strip_prefix('#')
            .filter(|key| !key.starts_with([' ', 'm']) && !key.contains("\"/etc/"));
        all.push_str(key.unwrap_or(line));
        all.push('\n');
    }
    let all_set = folder.path().join("sluiced.toml");
    fs::write(&all_set, &all)?;
    if !all.lines().any(|line| line.starts_with("queue = ")) {
        checks.fail("systemd/sluiced.toml shows no keys");
    }
    for file in [&sample, &all_set] {
        let mut command = Command::new(built("sluiced")?);
        checks.run(command.arg("--check-config").arg("--config").arg(file))?;
    }
    Ok(())
}

/// The units, with the program that was just built in the installed one's place.
fn units(checks: &mut Checks) -> io::Result<()> {
    let folder = TemporaryFolder::new("units")?;
    let program = built("sluiced")?;
    for unit in UNITS {
        let text = fs::read_to_string(root().join("systemd").join(unit))?;
        let text = text.replace("/usr/bin/sluiced", &program.to_string_lossy());
        fs::write(folder.path().join(unit), text)?;
    }
    let mut verify = Command::new("systemd-analyze");
    verify
        .args(["verify", "--man=no"])
        .args(UNITS.map(|unit| folder.path().join(unit)));
    checks.run_silent(&mut verify)?;

    let mut security = Command::new("systemd-analyze");
    security
        .args(["security", "--no-pager", "--offline=true"])
        .arg(format!("--threshold={EXPOSURE_MAX}"))
        .arg(folder.path().join("sluice.service"));
    checks.run(&mut security)?;

    user_units(checks, folder.path(), &program)?;

    // The drop-ins afterwards: the bound is for the unit as it is installed.
    let drop_in = folder.path().join("sluice.service.d");
    fs::create_dir(&drop_in)?;
    for name in ["listen.conf", "pull.conf", "tls.conf"] {
        let file = root().join("systemd/sluice.service.d").join(name);
        fs::copy(file, drop_in.join(name))?;
    }
    checks.run_silent(&mut verify)
}

/// Those for one user, which a user's manager runs.
fn user_units(checks: &mut Checks, folder: &Path, program: &Path) -> io::Result<()> {
    let into = folder.join("user");
    fs::create_dir(&into)?;
    for unit in UNITS {
        let text = fs::read_to_string(root().join("systemd/user").join(unit))?;
        let text = text.replace("/usr/bin/sluiced", &program.to_string_lossy());
        fs::write(into.join(unit), text)?;
    }
    let mut verify = Command::new("systemd-analyze");
    verify
        .args(["verify", "--user", "--man=no"])
        .args(UNITS.map(|unit| into.join(unit)))
        .env("XDG_RUNTIME_DIR", folder);
    checks.run_silent(&mut verify)
}

/// The user, then the folders that belong to it, in an empty root of their own.
fn users_and_folders(checks: &mut Checks) -> io::Result<()> {
    let folder = TemporaryFolder::new("root")?;
    let target = folder.path();
    fs::create_dir_all(target.join("etc"))?;
    for kind in ["sysusers.d", "tmpfiles.d"] {
        let into = target.join("usr/lib").join(kind);
        fs::create_dir_all(&into)?;
        fs::copy(
            root().join("systemd").join(kind).join("sluice.conf"),
            into.join("sluice.conf"),
        )?;
    }
    let in_root = |program: &str, flags: &[&str]| {
        let mut command = Command::new(program);
        command
            .arg(format!("--root={}", target.display()))
            .args(flags)
            .arg("sluice.conf");
        command
    };
    checks.run(&mut in_root("systemd-sysusers", &[]))?;
    checks.run(&mut in_root("systemd-tmpfiles", &["--create"]))?;
    if !target.join("run/sluice").is_dir() {
        checks.fail("systemd-tmpfiles made no /run/sluice");
    }
    let users = fs::read_to_string(target.join(Path::new("etc/passwd"))).unwrap_or_default();
    if !users.lines().any(|user| user.starts_with("sluice:")) {
        checks.fail("systemd-sysusers made no user sluice");
    }
    Ok(())
}

/// What was found so far.
#[derive(Default)]
struct Checks {
    problems: Vec<String>,
    skipped: Vec<String>,
}

impl Checks {
    fn run(&mut self, command: &mut Command) -> io::Result<()> {
        self.judge(command, false)
    }

    /// Any output is a failure too.
    fn run_silent(&mut self, command: &mut Command) -> io::Result<()> {
        self.judge(command, true)
    }

    fn judge(&mut self, command: &mut Command, silent: bool) -> io::Result<()> {
        let line = format!("{command:?}").replace('"', "");
        println!("{line}");
        let output = command.output()?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        if !output.status.success() || (silent && !said.is_empty()) {
            println!("{said}");
            self.fail(&format!(
                "`{line}` found something, and ended with {}",
                output.status
            ));
        }
        Ok(())
    }

    fn fail(&mut self, problem: &str) {
        self.problems.push(problem.to_owned());
    }

    fn skip(&mut self, why: &str) {
        self.skipped.push(why.to_owned());
    }

    fn outcome(self) -> Outcome {
        if !self.problems.is_empty() {
            Outcome::Failed(self.problems.join("; "))
        } else if !self.skipped.is_empty() {
            Outcome::Skipped(format!("partly: {}", self.skipped.join("; ")))
        } else {
            Outcome::Passed
        }
    }
}
