//! What the first `cargo demo` costs: how many crates it builds, and how long they take a processor. Whoever tries Sluice waits for
//! them, so neither grows unsaid.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::outcome::Outcome;
use crate::system::{TemporaryFolder, cargo, root};

/// Crates that `cargo demo` builds, this workspace's own among them.
const CRATES: usize = 318;
/// A change by more than this share fails CI until [`CRATES`] says the new number.
const CHANGE_PERCENT: usize = 5;
/// Packages whose programs it builds.
const PROGRAMS: [&str; 3] = ["sluice-daemon", "sluice-tui", "xtask"];

/// The check of the crates as a step of CI.
pub(crate) fn check() -> io::Result<Outcome> {
    let found = crates()?.len();
    println!("`cargo demo` builds {found} crates; xtask/src/first_build.rs says {CRATES}");
    let change = found.abs_diff(CRATES);
    Ok(match 100 * change > CHANGE_PERCENT * CRATES {
        false => Outcome::Passed,
        true => Outcome::Failed(format!(
            "the crates of the first build changed by more than {CHANGE_PERCENT} %: write {found} into CRATES, and say so in the \
             commit's body, with what `cargo xtask first-build` measures before and after"
        )),
    })
}

/// Builds what `cargo demo` does, from nothing, and prints what that took.
pub(crate) fn run() -> ExitCode {
    match measure() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("first-build: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> io::Result<bool> {
    let crates = crates()?.len();
    let folder = TemporaryFolder::new("first-build")?;
    // Downloads are the network's time.
    let fetched = in_root(cargo().args(["fetch", "--locked", "--quiet"])).status()?;
    let (begin, cpu_s) = (Instant::now(), children_cpu_s()?);
    let mut build = cargo();
    build.args(["build", "--bins", "--locked"]);
    let built = in_root(build.arg("--target-dir").arg(folder.path())).status()?;
    let cpu_s = children_cpu_s()? - cpu_s;
    let wall_s = begin.elapsed().as_secs_f64();
    println!("{crates} crates, {cpu_s:.0} s of CPU time, {wall_s:.0} s");
    Ok(fetched.success() && built.success())
}

fn in_root(command: &mut Command) -> &mut Command {
    command.current_dir(root())
}

/// CPU time of the processes that this one has waited for, and of those that they have.
fn children_cpu_s() -> io::Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let ticks = children_ticks(&stat)
        .ok_or_else(|| io::Error::other("/proc/self/stat has no time of children"))?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// The fields `cutime` and `cstime`, the 16th and the 17th; the second, the program's name, may have spaces.
fn children_ticks(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut fields = behind_name.split_whitespace().skip(13);
    let (user, system) = (fields.next()?, fields.next()?);
    Some(user.parse::<u64>().ok()? + system.parse::<u64>().ok()?)
}

/// The crates of the first build, by name and version.
fn crates() -> io::Result<BTreeSet<String>> {
    // Features are resolved for all default members together, as `cargo demo` has it, though it builds programs alone.
    let arguments = [
        "tree",
        "--locked",
        "--edges",
        "normal,build",
        "--prefix",
        "depth",
        "--format",
        "{p}",
    ];
    let output = in_root(cargo().args(arguments)).output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!(
            "`cargo tree` ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )));
    }
    let edges = edges(&String::from_utf8_lossy(&output.stdout));
    Ok(reachable(&edges, &PROGRAMS))
}

/// Who depends on whom, from what `cargo tree --prefix depth` prints. What was printed with its dependencies before is printed
/// without them.
fn edges(tree: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut above: Vec<String> = Vec::new();
    for line in tree.lines() {
        let digits = line.bytes().take_while(u8::is_ascii_digit).count();
        let Ok(depth) = line[..digits].parse() else {
            // Members stand apart by an empty line.
            continue;
        };
        let name = line[digits..].split_whitespace().take(2);
        let name = name.collect::<Vec<_>>().join(" ");
        above.truncate(depth);
        if let Some(parent) = above.last() {
            edges
                .entry(parent.clone())
                .or_default()
                .insert(name.clone());
        }
        edges.entry(name.clone()).or_default();
        above.push(name);
    }
    edges
}

/// Packages of these names, and all that they depend on.
fn reachable(edges: &BTreeMap<String, BTreeSet<String>>, names: &[&str]) -> BTreeSet<String> {
    let is_named = |package: &&String| {
        let name = package.split(' ').next();
        name.is_some_and(|name| names.contains(&name))
    };
    let mut open: Vec<&String> = edges.keys().filter(is_named).collect();
    let mut found = BTreeSet::new();
    while let Some(package) = open.pop() {
        if found.insert(package.clone()) {
            open.extend(&edges[package]);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_those_that_programs_need() {
        let tree = "0one v0.1.0 (/one)\n1a v1.0.0\n2b v2.0.0 (proc-macro)\n1c v1.0.0\n\n\
                    0two v0.1.0 (/two)\n1a v1.0.0 (*)\n1d v1.0.0\n1b v3.0.0\n";
        let edges = edges(tree);
        let found = |name| Vec::from_iter(reachable(&edges, &[name]));
        assert_eq!(
            found("one"),
            ["a v1.0.0", "b v2.0.0", "c v1.0.0", "one v0.1.0"]
        );
        let two = ["a v1.0.0", "b v2.0.0", "b v3.0.0", "d v1.0.0", "two v0.1.0"];
        assert_eq!(found("two"), two);
        assert!(found("three").is_empty());
    }

    #[test]
    fn the_time_of_children_stands_behind_the_name() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194304 100 200 0 0 11 12 250 50 20 0 1 0 99";
        assert_eq!(children_ticks(stat), Some(300));
        assert_eq!(children_ticks("7 (a) S"), None);
    }
}
