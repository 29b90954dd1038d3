use std::{collections::BTreeSet, fmt::Write, fs, path::Path};

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
            free_bytes: Some(8),
            gpu: Some(v1::GpuStatus {
                temperature_c: Some(60),
                power_w: Some(100.0),
                utilization_percent: Some(50),
                other_processes_bytes: Some(1),
                ..Default::default()
            }),
            ..Default::default()
        }),
        totals: Some(v1::RequestTotals {
            done_requests: 3,
            streamed_bytes: 1 << 40,
            pass_time: Some(times),
            ..Default::default()
        }),
        settings: Some(v1::SettingsStatus::default()),
        host: Some(v1::HostStatus {
            available_bytes: Some(9),
            resident_bytes: Some(4),
            ..Default::default()
        }),
        loaded_models: vec![
            loaded("a \"model\"\nof two lines", Level::Mild),
            loaded("other", Level::Moderate),
        ],
        loaded_models_max: 3,
        ..Default::default()
    }
}

fn loaded(name: &str, level: Level) -> LoadedModel {
    LoadedModel {
        model: Some(v1::Model {
            name: name.to_owned(),
            ..Default::default()
        }),
        device_bytes: 6,
        queue: Some(v1::QueueStatus::default()),
        plan: Some(Plan {
            level: level.into(),
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
        "sluice_loaded_models 2.0",
        "sluice_model_device_memory_bytes{model=\"other\"} 6.0",
        "sluice_predicted_to_measured_ratios{model=\"other\"} 1.5",
        "sluice_level{model=\"other\",level=\"moderate\"} 1.0",
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
fn a_daemon_without_a_model_tells_of_none() {
    let text = text(Snapshot::default());
    assert!(!text.contains("sluice_level"));
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn models_that_metrics_tell_of_are_bounded() {
    let models = (0..1000).map(|number| loaded(&format!("model {number}"), Level::Mild));
    let text = text(Snapshot {
        loaded_models: models.collect(),
        ..Default::default()
    });
    assert_eq!(text.matches("sluice_level{").count(), LABELLED_MODELS_MAX);
    assert!(text.contains("sluice_loaded_models 1000.0"));
}

const HEAD: &str = "| metric | type | labels | |\n|---|---|---|---|\n";

/// The table of docs/metrics.md: what a snapshot in which nothing is unknown comes to.
fn documented() -> String {
    let text = text(snapshot());
    let described = |kind: &str| {
        let mark = format!("# {kind} ");
        let lines = text.lines().filter_map(move |line| {
            let (name, value) = line.strip_prefix(&mark)?.split_once(' ')?;
            Some((name.to_owned(), value.to_owned()))
        });
        lines.collect::<Vec<_>>()
    };
    let mut table = HEAD.to_owned();
    for ((name, help), (_, kind)) in described("HELP").into_iter().zip(described("TYPE")) {
        let suffix = match kind.as_str() {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let rows = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(&name)?.strip_prefix(suffix)?;
            rest.strip_prefix('{')
        });
        let labels = rows.flat_map(|labels| labels.split("\","));
        let labels = labels.filter_map(|label| label.split_once("=\""));
        let labels: BTreeSet<_> = labels.map(|(label, _)| format!("`{label}`")).collect();
        let labels = labels.into_iter().collect::<Vec<_>>().join(", ");
        let help = help.trim_end_matches('.');
        writeln!(table, "| `{name}{suffix}` | {kind} | {labels} | {help} |").unwrap();
    }
    table
}

/// `SLUICE_WRITE_SAMPLE=1` writes the table into the page.
#[test]
fn every_metric_is_written_down() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = fs::read_to_string(&path).unwrap();
    let begin = page.find(HEAD).expect("a table of metrics");
    let lines = page[begin..].lines();
    let old: usize = (lines.take_while(|line| line.starts_with('|')))
        .map(|line| line.len() + 1)
        .sum();
    let mut updated = page.clone();
    updated.replace_range(begin..begin + old, &documented());
    if std::env::var_os("SLUICE_WRITE_SAMPLE").is_some() {
        fs::write(&path, &updated).unwrap();
        return;
    }
    for (line, expected) in page.lines().zip(updated.lines()) {
        assert_eq!(line, expected, "SLUICE_WRITE_SAMPLE=1 writes the table");
    }
    assert_eq!(page, updated);
}
