//! `sluice doctor`: what is found of programs, daemon and machine, and what to do about it.

mod unit;

use std::{
    env,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use sluice_proto::{
    PROTOCOL,
    client::CallError,
    v1::{DaemonState, DaemonStatus, ExamineRequest, Finding, Snapshot},
};
use sluice_report::findings::{self, ok, problem, warning};
use sluice_shared::units;
use tokio::{process::Command, time::timeout};

use super::{
    background::{has_listener, is_address},
    offline,
};
use crate::{
    connection::DaemonConnection,
    output::{Failure, StandardOutput},
};

/// How long a daemon may take to accept a connection. One that has no place is busy, and waiting would tell no more.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// How long `sluiced doctor` may take, which opens the GPU and reads from the disk.
const EXAMINE_WAIT: Duration = Duration::from_secs(60);

/// Prints what is found. Fails if something does not work.
pub(super) async fn run(
    socket: PathBuf,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let found = examine(&socket).await;
    let has_problem = findings::has_problem(&found);
    if json {
        out.json(&findings::json(found))?;
    } else {
        for line in findings::lines(&found) {
            out.line(&line)?;
        }
    }
    match has_problem {
        true => Err(Failure::new(
            "something does not work: see the problems above",
        )),
        false => Ok(()),
    }
}

async fn examine(socket: &Path) -> Vec<Finding> {
    let connecting = DaemonConnection::connect_at_rest(socket.to_owned(), Duration::ZERO);
    let connected = match timeout(CONNECT_WAIT, connecting).await {
        Ok(Ok(daemon)) => daemon.snapshot().await.map(|snapshot| (daemon, snapshot)),
        Ok(Err(failure)) => Err(failure),
        Err(_) => Err(Failure::new(format!(
            "{} is open, but nobody answers: all connections are taken, or the daemon is stopped",
            socket.display()
        ))
        .with_hint("look at its log (`journalctl -u sluice`), or restart it")),
    };
    let mut found = Vec::new();
    match connected {
        Ok((daemon, snapshot)) => {
            let status = snapshot.daemon.clone().unwrap_or_default();
            found.push(versions(Some(&status)));
            found.push(of_daemon(&status, &snapshot));
            found.extend(of_running(&daemon).await);
        }
        Err(failure) => {
            found.push(versions(None));
            found.push(unreachable(socket, &failure));
            found.extend(without_daemon().await);
        }
    }
    found.extend(unit::findings().await);
    found
}

/// This program's version, and whether the daemon's fits.
fn versions(daemon: Option<&DaemonStatus>) -> Finding {
    const SUBJECT: &str = "sluice";
    let own = env!("CARGO_PKG_VERSION");
    let Some(daemon) = daemon else {
        return ok(SUBJECT, own);
    };
    let DaemonStatus {
        version,
        protocol_version: protocol,
        ..
    } = daemon;
    let found =
        format!("{own} with protocol {PROTOCOL}; the daemon is {version} with protocol {protocol}");
    match protocol.cmp(&PROTOCOL) {
        std::cmp::Ordering::Less => problem(
            SUBJECT,
            found,
            "the daemon is older: upgrade sluiced, then restart it with `systemctl restart sluice` or `sluice stop --daemon`",
        ),
        std::cmp::Ordering::Greater => problem(
            SUBJECT,
            found,
            "the daemon is newer: upgrade sluice to its version",
        ),
        std::cmp::Ordering::Equal if version != own => warning(
            SUBJECT,
            found,
            "they fit together; to have one version, install both and restart the daemon",
        ),
        std::cmp::Ordering::Equal => ok(SUBJECT, found),
    }
}

/// Whether the daemon gets on.
fn of_daemon(status: &DaemonStatus, snapshot: &Snapshot) -> Finding {
    const SUBJECT: &str = "daemon";
    if let Some(stall) = &status.stall {
        let advice =
            "its watchdog restarts a service; else restart it yourself, and look at its log";
        return problem(SUBJECT, format!("it is stuck: {stall}"), advice);
    }
    let model = snapshot.model.as_ref();
    if let Some(model) = model.filter(|model| !model.error.is_empty()) {
        let found = format!(
            "the model {} could not be loaded: {}",
            model.name, model.error
        );
        return problem(
            SUBJECT,
            found,
            "load another: `sluice list` shows which there are",
        );
    }
    let found = format!(
        "{} at {}, pid {}, up {}",
        status.state().to_string().replace('_', " "),
        status.socket_path,
        status.process_id,
        units::duration_ms(status.uptime_ms as f64)
    );
    match status.state() {
        DaemonState::Draining => {
            warning(SUBJECT, found, "it is shutting down: try again in a while")
        }
        _ => ok(SUBJECT, found),
    }
}

/// What the daemon finds of itself.
async fn of_running(daemon: &DaemonConnection) -> Vec<Finding> {
    match daemon.telemetry().examine(ExamineRequest {}).await {
        Ok(answer) => answer.into_inner().findings,
        // Which of both is older is said already.
        Err(status)
            if CallError::from(status.clone()).reason.as_deref() == Some("OTHER_PROTOCOL") =>
        {
            Vec::new()
        }
        Err(status) => vec![failed("examination", &daemon.failure(status))],
    }
}

/// No daemon is no problem: `sluice run` starts one. One that doesn't let us in is.
fn unreachable(socket: &Path, failure: &Failure) -> Finding {
    match is_address(socket) || has_listener(socket) {
        true => failed("daemon", failure),
        false => {
            let (found, hint) = failure.message_and_hint();
            warning(
                "daemon",
                format!("none runs: {found}"),
                hint.unwrap_or_default(),
            )
        }
    }
}

fn failed(subject: &str, failure: &Failure) -> Finding {
    let (found, hint) = failure.message_and_hint();
    problem(subject, found, hint.unwrap_or_default())
}

/// What `sluiced` finds in the place of a daemon.
async fn without_daemon() -> Vec<Finding> {
    const SUBJECT: &str = "sluiced";
    let program = offline::sibling(env::current_exe());
    let examining = Command::new(&program)
        .args(["doctor", "--json"])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let shown = program.display();
    let output = match timeout(EXAMINE_WAIT, examining).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return vec![failed(SUBJECT, &offline::missing(&program, &error))],
        Err(_) => {
            let found = format!(
                "`{shown} doctor` took more than {} s",
                EXAMINE_WAIT.as_secs()
            );
            let advice = "a GPU's driver or a disk may hang: see `dmesg`";
            return vec![problem(SUBJECT, found, advice)];
        }
    };
    findings::of_json(&String::from_utf8_lossy(&output.stdout)).unwrap_or_else(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        let found = format!("`{shown} doctor` failed: {}", said.trim());
        let advice = "install sluice and sluiced in one version";
        vec![problem(SUBJECT, found, advice)]
    })
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::{FindingState, Model};

    use super::*;

    fn status(version: &str, protocol: u32) -> DaemonStatus {
        DaemonStatus {
            version: version.into(),
            protocol_version: protocol,
            ..DaemonStatus::default()
        }
    }

    #[test]
    fn versions_fit_where_protocols_do_and_whoever_is_older_is_named() {
        let own = env!("CARGO_PKG_VERSION");
        assert_eq!(versions(None).state(), FindingState::Ok);
        assert_eq!(
            versions(Some(&status(own, PROTOCOL))).state(),
            FindingState::Ok
        );
        let other = versions(Some(&status("0.0.1", PROTOCOL)));
        assert_eq!(other.state(), FindingState::Warning);
        let older = versions(Some(&status("0.0.1", PROTOCOL - 1)));
        assert_eq!(older.state(), FindingState::Problem);
        assert!(older.advice().contains("older: upgrade sluiced"));
        let newer = versions(Some(&status("9.0.0", PROTOCOL + 1)));
        assert!(newer.advice().contains("newer: upgrade sluice"));
    }

    #[test]
    fn a_daemon_that_is_stuck_or_has_no_model_for_a_reason_is_a_problem() {
        let fine = status("0.1.0", PROTOCOL);
        assert_eq!(
            of_daemon(&fine, &Snapshot::default()).state(),
            FindingState::Ok
        );
        let stuck = DaemonStatus {
            stall: Some("a pass takes 40 s".into()),
            ..fine.clone()
        };
        let found = of_daemon(&stuck, &Snapshot::default());
        assert_eq!(found.state(), FindingState::Problem);
        assert!(found.found.contains("a pass takes 40 s"));
        let failed = Snapshot {
            model: Some(Model {
                name: "llada".into(),
                error: "no such file".into(),
                ..Model::default()
            }),
            ..Snapshot::default()
        };
        let found = of_daemon(&fine, &failed);
        assert_eq!(found.state(), FindingState::Problem);
        assert!(found.found.contains("llada"), "{found:?}");
        let leaving = DaemonStatus {
            state: DaemonState::Draining.into(),
            ..fine
        };
        let found = of_daemon(&leaving, &Snapshot::default());
        assert_eq!(found.state(), FindingState::Warning);
    }

    #[test]
    fn no_daemon_is_no_problem_but_one_that_does_not_answer_is() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let failure = Failure::new("no such socket").with_hint("start it");
        let found = unreachable(&socket, &failure);
        assert_eq!(found.state(), FindingState::Warning);
        assert_eq!(found.advice(), "start it");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(
            unreachable(&socket, &failure).state(),
            FindingState::Problem
        );
        let address = Path::new("http://127.0.0.1:9");
        assert_eq!(
            unreachable(address, &failure).state(),
            FindingState::Problem
        );
    }
}
