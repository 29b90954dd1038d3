//! `GET /metrics`: what the daemon's snapshot says, for Prometheus and whatever else reads OpenMetrics.
//!
//! Names carry units, labels have few values: kinds of memory, states, levels, and the models in memory. Neither prompts nor
//! users are in any of them. docs/metrics.md lists all of them.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet, text::encode},
    metrics::MetricType,
    registry::{Registry, Unit},
};
use sluice_proto::v1::{self, DaemonState, Level, LoadedModel, Plan, Snapshot};

use crate::{
    failure::Failure,
    limits::LABELLED_MODELS_MAX,
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
        metrics.models(snapshot)?;
        metrics.gpu(snapshot)
    }
}

/// A metric that each model in memory has.
struct ModelMetric(
    /// Its name.
    &'static str,
    /// What it tells.
    &'static str,
    Option<Unit>,
    /// Its value, if there is one yet.
    fn(&LoadedModel) -> Option<f64>,
);

const MODEL_METRICS: &[ModelMetric] = &[
    ModelMetric(
        "model_device_memory",
        "Device memory that a model holds, with what all have in common",
        Some(Unit::Bytes),
        |loaded| Some(loaded.device_bytes as f64),
    ),
    ModelMetric(
        "model_claimed",
        "Device memory that no other model can have",
        Some(Unit::Bytes),
        |loaded| Some(loaded.claimed_bytes as f64),
    ),
    ModelMetric(
        "model_budget",
        "Budget of a model's plan",
        Some(Unit::Bytes),
        |loaded| Some(loaded.budget_bytes as f64),
    ),
    ModelMetric(
        "model_requests_waiting",
        "Requests that wait for a model",
        None,
        |loaded| Some(loaded.queue?.waiting.into()),
    ),
    ModelMetric(
        "model_requests_running",
        "Requests that run on a model",
        None,
        |loaded| Some(loaded.queue?.running.into()),
    ),
    ModelMetric(
        "predicted_pass_time",
        "What the plan in force of a model predicts for a pass",
        Some(Unit::Seconds),
        |loaded| Some(predicted_ms(loaded)? / 1e3),
    ),
    ModelMetric(
        "measured_pass_time",
        "Mean of the passes of a model under the plan in force",
        Some(Unit::Seconds),
        |loaded| Some(measured_ms(loaded)? / 1e3),
    ),
    ModelMetric(
        "predicted_to_measured",
        "Predicted time of a pass, divided by the measured one",
        Some(Unit::Ratios),
        |loaded| {
            let measured = measured_ms(loaded).filter(|measured| *measured > 0.0)?;
            Some(predicted_ms(loaded)? / measured)
        },
    ),
];

fn predicted_ms(loaded: &LoadedModel) -> Option<f64> {
    loaded.plan.as_ref()?.pass_ms
}

fn measured_ms(loaded: &LoadedModel) -> Option<f64> {
    loaded.passes?.mean_ms
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
        for (name, help, bytes) in [
            (
                "budget",
                "Limit for the device's memory",
                Some(device.budget_bytes),
            ),
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

    /// The models in memory: the plan in force of each, what it takes, and what was measured under it.
    fn models(&mut self, snapshot: &Snapshot) -> fmt::Result {
        let models = &snapshot.loaded_models;
        let (count, most) = (models.len() as f64, snapshot.loaded_models_max.into());
        self.plain_gauge("loaded_models", "Models in memory", count)?;
        self.plain_gauge("loaded_models_max", "Models that may be", most)?;
        let models: Vec<_> = (models.iter().take(LABELLED_MODELS_MAX))
            .map(|loaded| (loaded.model.clone().unwrap_or_default().name, loaded))
            .collect();
        if models.is_empty() {
            return Ok(());
        }
        let help = "1 for the level in force of a model";
        let mut levels = (self.0).encode_descriptor("level", help, None, MetricType::Gauge)?;
        for (model, loaded) in &models {
            let level = loaded.plan.as_ref().map_or(Level::Unspecified, Plan::level);
            let labels = [("model", model.clone()), ("level", level.to_string())];
            levels.encode_family(&labels)?.encode_gauge(&1.0)?;
        }
        for ModelMetric(name, help, unit, value) in MODEL_METRICS {
            let rows = (models.iter())
                .filter_map(|(model, loaded)| Some((model.clone(), value(loaded)?)))
                .collect::<Vec<_>>();
            self.gauges(name, help, unit.clone(), "model", &rows)?;
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
mod tests;
