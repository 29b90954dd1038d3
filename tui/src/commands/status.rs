//! `sluice status`: one snapshot in words.

use sluice_proto::v1::{Device, GetSnapshotRequest, Host, Snapshot};
use sluice_shared::units;

use super::models::describe;
use crate::{
    connection::Daemon,
    json,
    output::{Failure, Out},
};

/// Prints one snapshot.
pub(super) async fn run(daemon: &Daemon, json: bool, out: &mut Out) -> Result<(), Failure> {
    let answer = daemon.telemetry().get_snapshot(GetSnapshotRequest {}).await;
    let snapshot = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner()
        .snapshot
        .ok_or_else(|| Failure::new("the daemon's snapshot is empty"))?;
    if json {
        return out.line(&json::snapshot(&snapshot).to_string());
    }
    for line in lines(&snapshot) {
        out.line(&line)?;
    }
    Ok(())
}

fn lines(snapshot: &Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    let mut fact = |name: &str, value: String| lines.push(format!("{name:<9} {value}"));
    if let Some(server) = &snapshot.server {
        fact(
            "daemon",
            format!(
                "sluiced {}, {}, pid {}, up {}, {}",
                server.version,
                json::server_state(server.state()).replace('_', " "),
                server.pid,
                units::duration_ms(server.uptime_ms as f64),
                server.socket,
            ),
        );
    }
    fact(
        "model",
        snapshot.model.as_ref().map_or("none".into(), describe),
    );
    if let Some(device) = &snapshot.device {
        fact("device", device_line(device));
        for kind in &device.memory {
            fact(
                "",
                format!(
                    "{:<12} {:>10}, at most {}",
                    kind.kind,
                    units::bytes(kind.bytes),
                    units::bytes(kind.peak_bytes)
                ),
            );
        }
    }
    fact("memory", host_line(snapshot.host.as_ref()));
    if let Some(queue) = &snapshot.queue {
        fact(
            "queue",
            format!(
                "{} running, {} waiting, room for {}",
                queue.running, queue.waiting, queue.capacity
            ),
        );
    }
    for request in &snapshot.requests {
        fact("", super::requests::row(request));
    }
    if let Some(totals) = &snapshot.totals {
        fact(
            "so far",
            format!(
                "{} done, {} cancelled, {} failed, {} refused; {} passes, {} tokens",
                units::count(totals.requests_done),
                units::count(totals.requests_cancelled),
                units::count(totals.requests_failed),
                units::count(totals.requests_refused),
                units::count(totals.passes),
                units::count(totals.tokens_committed),
            ),
        );
    }
    lines
}

fn device_line(device: &Device) -> String {
    let mut line = device.kind.clone();
    if !device.name.is_empty() {
        line += &format!(" ({})", device.name);
    }
    format!(
        "{line}, {} threads, {} held, at most {}",
        device.threads,
        units::bytes(device.used_bytes),
        units::bytes(device.peak_bytes)
    )
}

fn host_line(host: Option<&Host>) -> String {
    let known = |bytes: Option<u64>| bytes.map_or("unknown".into(), units::bytes);
    let host = host.copied().unwrap_or_default();
    format!(
        "{} available of {}; sluiced resident {}, at most {}",
        known(host.available_bytes),
        known(host.total_bytes),
        known(host.resident_bytes),
        known(host.resident_peak_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_figure_reads_as_unknown() {
        let lines = lines(&Snapshot::default());
        assert_eq!(
            lines,
            [
                "model     none",
                "memory    unknown available of unknown; sluiced resident unknown, at most unknown"
            ]
        );
    }
}
