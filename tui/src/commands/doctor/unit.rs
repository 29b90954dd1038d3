//! The units of systemd, where it runs and has them: the system's, and those of the user.

use std::{process::Stdio, time::Duration};

use sluice_proto::v1::Finding;
use sluice_report::findings::{ok, problem, warning};
use sluice_shared::exit;
use tokio::{process::Command, time::timeout};

/// How long `systemctl` may take, which talks to systemd over a bus.
const WAIT: Duration = Duration::from_secs(5);

const PROPERTIES: &str =
    "--property=LoadState,ActiveState,SubState,Result,NRestarts,ExecMainStatus,UnitFileState";

/// How a manager is asked, and what its service is called for people.
const MANAGERS: [(&[&str], &str, &str); 2] = [
    (&[], "service", "journalctl -u sluice"),
    (&["--user"], "user's service", "journalctl --user -u sluice"),
];

/// A finding for each manager that has the service.
pub(super) async fn findings() -> Vec<Finding> {
    let mut found = Vec::new();
    for (flags, subject, log) in MANAGERS {
        let shown = Command::new("systemctl")
            .args(flags)
            .args(["show", PROPERTIES, "sluice.service", "sluice.socket"])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        // Where no systemd runs, or none for this user, there is nothing to say.
        if let Ok(Ok(output)) = timeout(WAIT, shown).await
            && output.status.success()
        {
            let text = String::from_utf8_lossy(&output.stdout);
            found.extend(finding(&text, subject, log));
        }
    }
    found
}

/// What `systemctl show` says of service and socket, an empty line between both.
fn finding(shown: &str, subject: &str, log: &str) -> Option<Finding> {
    let mut units = shown.split("\n\n");
    let (service, socket) = (units.next()?, units.next().unwrap_or_default());
    if value(service, "LoadState") != "loaded" {
        return None;
    }
    let activates = value(socket, "ActiveState") == "active";
    let socket = match activates {
        true => "its socket is open",
        false => "its socket is not open",
    };
    let state = value(service, "ActiveState");
    let found = format!("{state} ({}), {socket}", value(service, "SubState"));
    let code = value(service, "ExecMainStatus");
    let restarts: u32 = value(service, "NRestarts").parse().unwrap_or(0);
    Some(match state {
        "failed" if code == exit::CONFIG.to_string() => problem(
            subject,
            format!("{found}: the configuration is wrong"),
            format!(
                "`sluiced --check-config` says where; then `systemctl restart sluice`; log: `{log}`"
            ),
        ),
        "failed" => problem(
            subject,
            format!("{found}: {}", value(service, "Result")),
            format!("its log says why: `{log}`"),
        ),
        "inactive" if !activates => warning(
            subject,
            found,
            "start it: `systemctl enable --now sluice.service` (as user: `systemctl --user enable --now sluice.socket`)",
        ),
        _ if restarts > 0 => warning(
            subject,
            format!("{found}; restarted {restarts} times after failures"),
            format!("its log says why: `{log}`"),
        ),
        _ => ok(subject, found),
    })
}

fn value<'a>(shown: &'a str, key: &str) -> &'a str {
    let mut values = shown.lines().filter_map(|line| line.split_once('='));
    values
        .find(|(known, _)| *known == key)
        .map_or("", |(_, value)| value)
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::FindingState;

    use super::*;

    fn found(service: &str, socket: &str) -> Option<Finding> {
        finding(&format!("{service}\n\n{socket}"), "service", "log")
    }

    #[test]
    fn a_service_is_judged_by_its_state_and_its_past() {
        let active = "LoadState=loaded\nActiveState=active\nSubState=running\nNRestarts=0";
        let open = "LoadState=loaded\nActiveState=active";
        let state = |service: &str, socket: &str| found(service, socket).unwrap().state();
        assert_eq!(found("LoadState=not-found\nActiveState=inactive", ""), None);
        assert_eq!(state(active, open), FindingState::Ok);
        let restarted = active.replace("NRestarts=0", "NRestarts=3");
        let finding = found(&restarted, open).unwrap();
        assert_eq!(finding.state(), FindingState::Warning);
        assert!(finding.found.contains("restarted 3 times"));
        let idle = "LoadState=loaded\nActiveState=inactive\nSubState=dead";
        assert_eq!(state(idle, open), FindingState::Ok);
        assert_eq!(state(idle, ""), FindingState::Warning);
        let failed = "LoadState=loaded\nActiveState=failed\nSubState=failed\nResult=watchdog\nExecMainStatus=6";
        let finding = found(failed, open).unwrap();
        assert_eq!(finding.state(), FindingState::Problem);
        assert!(finding.found.ends_with("watchdog"), "{finding:?}");
        let wrong = failed.replace("ExecMainStatus=6", "ExecMainStatus=78");
        assert!(
            found(&wrong, open)
                .unwrap()
                .found
                .contains("configuration is wrong")
        );
    }
}
