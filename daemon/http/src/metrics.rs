//! `GET /metrics`: what the daemon's snapshot says, for Prometheus and whatever else reads OpenMetrics.
//!
//! Names carry units, labels have few values: kinds of memory, states, levels, and the models in memory. Neither prompts nor
//! users are in any of them.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet, text::encode},
    metrics::MetricType,
    registry::{Registry, Unit},
};
use sluice_proto::v1::{self, DaemonState, Snapshot};

use crate::{
    failure::Failure,
    models,
    services::Services,
    streaming::{self, Answer},
};

/// The form of the answer.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics now. Whoever may look at the daemon may read them.
///
/// # Errors
/// When the caller may not.
pub(crate) async fn answer(services: &Services) -> Result<Answer, Failure> {
    let snapshot = models::snapshot(services).await?;
    Ok(streaming::text(OPEN_METRICS, text(snapshot)))
}

fn text(snapshot: Snapshot) -> String {
    let mut registry = Registry::with_prefix("sluice");
    registry.register_collector(Box::new(SnapshotMetrics(snapshot)));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a String takes all that is written");
    text
}

/// A row of a metric: its label's value, where the metric has a label, and its own.
type Rows<'a> = &'a [(String, f64)];

#[derive(Debug)]
struct SnapshotMetrics(Snapshot);

impl Collector for SnapshotMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (snapshot, mut metrics) = (&self.0, MetricWriter(encoder));
        metrics.daemon(&snapshot.daemon.clone().unwrap_or_default())?;
        metrics.requests(snapshot)?;
        metrics.memory(snapshot)?;
        metrics.passes(snapshot)?;
        metrics.gpu(snapshot)
    }
}

struct MetricWriter<'a>(DescriptorEncoder<'a>);

impl MetricWriter<'_> {
    fn daemon(&mut self, daemon: &v1::DaemonStatus) -> fmt::Result {
        let version = [("version", daemon.version.as_str())];
        let mut build =
            (self.0).encode_descriptor("build", "The daemon", None, MetricType::Info)?;
        build.encode_info(&version)?;
        let uptime = daemon.uptime_ms as f64 / 1e3;
        self.gauge("uptime", "Time since the start", Unit::Seconds, uptime)?;
        let states = [
            DaemonState::NoModel,
            DaemonState::Loading,
            DaemonState::Ready,
            DaemonState::Draining,
        ];
        let rows = states.map(|state| {
            let is_in_it = daemon.state() == state;
            (state.to_string(), f64::from(u8::from(is_in_it)))
        });
        let help = "1 for the state that the daemon is in";
        self.gauges("state", help, None, "state", &rows)?;
        let is_stuck = f64::from(u8::from(daemon.stall.is_some()));
        self.plain_gauge("stuck", "1 while the engine does not get on", is_stuck)
    }

    fn requests(&mut self, snapshot: &Snapshot) -> fmt::Result {
        let totals = snapshot.totals.clone().unwrap_or_default();
        let ended = [
            ("done", totals.done_requests),
            ("cancelled", totals.cancelled_requests),
            ("failed", totals.failed_requests),
            ("refused", totals.refused_requests),
        ];
        self.counters("requests", "Requests by their end", "state", &ended)?;
        for (name, help, count) in [
            (
                "passes",
                "Passes; one that several requests shared counts for each",
                totals.passes,
            ),
            (
                "committed_tokens",
                "Tokens that passes committed",
                totals.committed_tokens,
            ),
            (
                "prompt_tokens",
                "Tokens of prompts of requests that began",
                totals.prompt_tokens,
            ),
        ] {
            self.counter(name, help, None, count)?;
        }
        let help = "Weights streamed for passes";
        self.counter("streamed", help, Some(Unit::Bytes), totals.streamed_bytes)?;
        let queue = snapshot.queue.unwrap_or_default();
        for (name, help, count) in [
            ("requests_waiting", "Requests that wait", queue.waiting),
            ("requests_running", "Requests that run", queue.running),
            (
                "queue_capacity",
                "Places of the engine's queue",
                queue.capacity,
            ),
        ] {
            self.plain_gauge(name, help, count.into())?;
        }
        for (name, help, times) in [
            (
                "queue_time",
                "From a request's arrival to its begin",
                totals.queue_time,
            ),
            (
                "first_token_time",
                "From a request's arrival to its first token",
                totals.first_token_time,
            ),
            (
                "request_time",
                "From arrival to end, of requests that are done",
                totals.request_time,
            ),
            ("pass_time", "Times of passes", totals.pass_time),
            (
                "pass_waited",
                "Times that passes waited for streamed weights",
                totals.pass_waited,
            ),
        ] {
            self.times(name, help, &times.unwrap_or_default())?;
        }
        Ok(())
    }

    fn memory(&mut self, snapshot: &Snapshot) -> fmt::Result {
        let device = snapshot.device.clone().unwrap_or_default();
        let by_kind = |bytes: fn(&v1::MemoryUse) -> u64| -> Vec<_> {
            let kinds = device.memory.iter();
            kinds
                .map(|kind| (kind.kind().to_string(), bytes(kind) as f64))
                .collect()
        };
        let bytes = Some(Unit::Bytes);
        let (held, peak) = (by_kind(|kind| kind.bytes), by_kind(|kind| kind.peak_bytes));
        let help = "Device memory that Sluice holds";
        self.gauges("device_memory", help, bytes.clone(), "kind", &held)?;
        let help = "The most that it held of each kind";
        self.gauges("device_memory_peak", help, bytes, "kind", &peak)?;
        let host = snapshot.host.unwrap_or_default();
        let budget = (snapshot.settings.as_ref()).map(|settings| settings.budget_bytes);
        for (name, help, bytes) in [
            ("budget", "Limit for the device's memory", budget),
            ("device_used", "Device memory held", Some(device.used_bytes)),
            ("device_used_peak", "The most held", Some(device.peak_bytes)),
            (
                "device_free",
                "Device memory that nobody holds",
                device.free_bytes,
            ),
            (
                "resident",
                "The daemon's resident memory",
                host.resident_bytes,
            ),
            (
                "host_available",
                "The host's memory that could be had",
                host.available_bytes,
            ),
        ] {
            if let Some(bytes) = bytes {
                self.gauge(name, help, Unit::Bytes, bytes as f64)?;
            }
        }
        Ok(())
    }

    /// The plan in force beside what was measured under it.
    fn passes(&mut self, snapshot: &Snapshot) -> fmt::Result {
        let Some(plan) = &snapshot.plan else {
            return Ok(());
        };
        let level = [
            ("model", plan.model.clone()),
            ("level", plan.level().to_string()),
        ];
        let help = "1 for the level in force of the present model";
        let mut descriptor = (self.0).encode_descriptor("level", help, None, MetricType::Gauge)?;
        descriptor.encode_family(&level)?.encode_gauge(&1.0)?;
        let passes = snapshot.passes.unwrap_or_default();
        let predicted = plan.pass_ms;
        for (name, help, ms) in [
            (
                "predicted_pass_time",
                "What the plan in force predicts for a pass",
                predicted,
            ),
            (
                "measured_pass_time",
                "Mean of the passes under the plan in force",
                passes.mean_ms,
            ),
        ] {
            if let Some(ms) = ms {
                self.gauge(name, help, Unit::Seconds, ms / 1e3)?;
            }
        }
        if let (Some(predicted), Some(measured)) = (predicted, passes.mean_ms)
            && measured > 0.0
        {
            let help = "Predicted time of a pass, divided by the measured one";
            let ratio = predicted / measured;
            self.gauge("predicted_to_measured", help, Unit::Ratios, ratio)?;
        }
        Ok(())
    }

    fn gpu(&mut self, snapshot: &Snapshot) -> fmt::Result {
        let Some(gpu) = (snapshot.device.as_ref()).and_then(|device| device.gpu.as_ref()) else {
            return Ok(());
        };
        let share = |percent: u32| f64::from(percent) / 100.0;
        for (name, help, unit, value) in [
            (
                "gpu_temperature",
                "The GPU's temperature",
                Unit::Celsius,
                gpu.temperature_c.map(f64::from),
            ),
            (
                "gpu_power",
                "What the GPU draws",
                Unit::Other("watts".to_owned()),
                gpu.power_w,
            ),
            (
                "gpu_utilization",
                "Share of time in which the GPU computes",
                Unit::Ratios,
                gpu.utilization_percent.map(share),
            ),
            (
                "gpu_other_processes",
                "GPU memory that other processes hold",
                Unit::Bytes,
                gpu.other_processes_bytes.map(|bytes| bytes as f64),
            ),
        ] {
            if let Some(value) = value {
                self.gauge(name, help, unit, value)?;
            }
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, unit: Option<Unit>, count: u64) -> fmt::Result {
        let unit = unit.as_ref();
        let mut descriptor = (self.0).encode_descriptor(name, help, unit, MetricType::Counter)?;
        descriptor.encode_counter::<NoLabelSet, _, u64>(&count, None)
    }

    fn counters(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        rows: &[(&str, u64)],
    ) -> fmt::Result {
        let mut descriptor = (self.0).encode_descriptor(name, help, None, MetricType::Counter)?;
        for (value, count) in rows {
            let labels = [(label, *value)];
            let mut row = descriptor.encode_family(&labels)?;
            row.encode_counter::<NoLabelSet, _, u64>(count, None)?;
        }
        Ok(())
    }

    fn plain_gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let mut descriptor = (self.0).encode_descriptor(name, help, None, MetricType::Gauge)?;
        descriptor.encode_gauge(&value)
    }

    fn gauge(&mut self, name: &str, help: &str, unit: Unit, value: f64) -> fmt::Result {
        let unit = Some(&unit);
        let mut descriptor = (self.0).encode_descriptor(name, help, unit, MetricType::Gauge)?;
        descriptor.encode_gauge(&value)
    }

    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        label: &str,
        rows: Rows<'_>,
    ) -> fmt::Result {
        let unit = unit.as_ref();
        let mut descriptor = (self.0).encode_descriptor(name, help, unit, MetricType::Gauge)?;
        for (value, number) in rows {
            let labels = [(label, value.as_str())];
            descriptor.encode_family(&labels)?.encode_gauge(number)?;
        }
        Ok(())
    }

    fn times(&mut self, name: &str, help: &str, times: &v1::TimeDistribution) -> fmt::Result {
        let unit = Some(&Unit::Seconds);
        let mut descriptor = (self.0).encode_descriptor(name, help, unit, MetricType::Histogram)?;
        // The last class has no bound of its own.
        let bounds = times.upper_bounds_s.iter().copied().chain([f64::INFINITY]);
        let classes: Vec<_> = bounds.zip(times.counts.iter().copied()).collect();
        let count = times.counts.iter().sum();
        descriptor.encode_histogram::<NoLabelSet>(times.sum_s, count, &classes, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        let times = v1::TimeDistribution {
            upper_bounds_s: vec![0.1, 1.0],
            counts: vec![2, 1, 4],
            sum_s: 12.5,
        };
        Snapshot {
            daemon: Some(v1::DaemonStatus {
                version: "1.2.3".to_owned(),
                state: DaemonState::Ready.into(),
                ..Default::default()
            }),
            device: Some(v1::DeviceStatus {
                memory: vec![v1::MemoryUse {
                    kind: v1::MemoryKind::KvCache.into(),
                    bytes: 5,
                    peak_bytes: 7,
                }],
                ..Default::default()
            }),
            totals: Some(v1::RequestTotals {
                done_requests: 3,
                streamed_bytes: 1 << 40,
                pass_time: Some(times),
                ..Default::default()
            }),
            plan: Some(v1::Plan {
                model: "a \"model\"\nof two lines".to_owned(),
                level: v1::Level::Mild.into(),
                pass_ms: Some(30.0),
                ..Default::default()
            }),
            passes: Some(v1::PassStatistics {
                mean_ms: Some(20.0),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn a_snapshot_becomes_lines_of_openmetrics() {
        let text = text(snapshot());
        for line in [
            "sluice_build_info{version=\"1.2.3\"} 1",
            "sluice_state{state=\"ready\"} 1.0",
            "sluice_state{state=\"loading\"} 0.0",
            "sluice_requests_total{state=\"done\"} 3",
            "sluice_streamed_bytes_total 1099511627776",
            "sluice_device_memory_peak_bytes{kind=\"kv_cache\"} 7.0",
            "sluice_pass_time_seconds_sum 12.5",
            "sluice_pass_time_seconds_count 7",
            "sluice_pass_time_seconds_bucket{le=\"1.0\"} 3",
            "sluice_pass_time_seconds_bucket{le=\"+Inf\"} 7",
            "sluice_predicted_to_measured_ratios 1.5",
            // What a name could do to the lines, it does not.
            "sluice_level{model=\"a \\\"model\\\"\\nof two lines\",level=\"mild\"} 1.0",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn each_metric_is_described_once() {
        let text = text(snapshot());
        let mut names: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("# TYPE "))
            .collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(all > 20, "{all}");
    }

    #[test]
    fn a_daemon_without_a_model_has_no_plan_to_tell_of() {
        let text = text(Snapshot::default());
        assert!(!text.contains("sluice_level"));
        assert!(text.ends_with("# EOF\n"));
    }
}
