//! A clock that jumps. Certificates alone depend on what time it is; whatever waits, waits by a clock that nobody sets.

use std::time::Duration;

use sluice_proto::v1::{self, telemetry_service_client::TelemetryServiceClient};
use testkit::{certificates::Validity, not_run};

use crate::support::{
    checkpoints,
    clock::{JUMPS, MISSING, SetClock},
    done, long, pass, tokens,
};

#[tokio::test]
#[ignore = "seconds of both cores: cargo ci"]
async fn a_clock_that_jumps_ends_nothing() {
    let model = checkpoints::slow().to_str().unwrap();
    let arguments = ["--model", model, "--idle-unload", "1h"];
    let roles = ["--roles", "generate=*,cert:*"];
    let (reachable, clock) = SetClock::daemon(&[&arguments[..], &roles].concat()).await;
    let Some(clock) = clock else {
        return not_run(MISSING);
    };
    let daemon = &reachable.daemon;
    let client = reachable.authority.client(&["a.example"], Validity::Now);
    let kept = reachable.connect(Some(&client)).await.unwrap();
    let mut kept = TelemetryServiceClient::new(kept);

    // During a generation, and with one that has a deadline.
    let (_, mut stream) = daemon.running(long()).await;
    let mut limited = tonic::Request::new(tokens(&[1, 2, 3], 8));
    limited.set_timeout(Duration::from_secs(3600));
    let mut generation = daemon.generation().await;
    let limited = generation.generate(limited).await.unwrap();
    for days in JUMPS {
        clock.jump(days);
        for _ in 0..3 {
            pass(&mut stream).await;
        }
        // What has been connected stays so, whatever its certificate's time.
        let snapshot = kept.get_snapshot(v1::GetSnapshotRequest {}).await.unwrap();
        let snapshot = snapshot.into_inner().snapshot.unwrap();
        let up_ms = snapshot.daemon.unwrap().uptime_ms;
        assert!(up_ms < 3_600_000, "{days} days: up {up_ms} ms");
        // Who comes now shows a certificate, which is of its time.
        let comes = reachable.connect(Some(&client)).await;
        assert_eq!(comes.is_ok(), days == 0, "{days} days");
    }
    let mut limited = limited.into_inner();
    let events = crate::support::rest(&mut limited).await.unwrap();
    done(&events);
    drop(stream);

    // While nothing runs: the model stays for an hour of the other clock.
    for days in JUMPS {
        clock.jump(days);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let model = daemon.snapshot().await.model.unwrap();
        assert_eq!(model.state(), v1::ModelState::Ready, "{days} days");
    }
    kept.get_snapshot(v1::GetSnapshotRequest {}).await.unwrap();
    let log = daemon.log();
    assert!(!log.contains("panicked") && !log.contains("stuck"), "{log}");
}
