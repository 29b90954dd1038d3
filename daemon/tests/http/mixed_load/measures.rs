//! What a daemon and the processes of its tokenizers take, as the system tells it.

use std::{fmt, fs, time::Duration};

use crate::support::Daemon;

const MIB: f64 = (1 << 20) as f64;

/// Threads that have nothing to do end within ten seconds.
const REST: Duration = Duration::from_secs(12);
const SAMPLES: usize = 9;
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// All processes together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Measure {
    /// Of memory.
    pub(super) resident_bytes: u64,
    /// Of these, what no file has.
    pub(super) anonymous_bytes: u64,
    pub(super) processes: usize,
    /// Threads that are there for the daemon's whole life, or for a model's.
    pub(super) threads: usize,
    /// Those of the runtime, of which some come for what blocks and go ten seconds after it.
    pub(super) pool_threads: usize,
    /// Open ones.
    pub(super) descriptors: usize,
}

impl Measure {
    /// At this moment.
    fn now(pid: u32) -> Self {
        let mut all = Self::default();
        let mut pids = vec![pid];
        while let Some(pid) = pids.pop() {
            let process = format!("/proc/{pid}");
            // One that ends meanwhile takes nothing any more.
            let Ok(memory) = fs::read_to_string(format!("{process}/smaps_rollup")) else {
                continue;
            };
            all.resident_bytes += field_bytes(&memory, "Rss:");
            all.anonymous_bytes += field_bytes(&memory, "Anonymous:");
            all.processes += 1;
            all.descriptors += names(&format!("{process}/fd")).len();
            for thread in names(&format!("{process}/task")) {
                let of_thread = |file: &str| {
                    let path = format!("{process}/task/{thread}/{file}");
                    fs::read_to_string(path).unwrap_or_default()
                };
                match of_thread("comm").starts_with("tokio") {
                    true => all.pool_threads += 1,
                    false => all.threads += 1,
                }
                let children = of_thread("children");
                pids.extend(children.split_whitespace().flat_map(str::parse::<u32>));
            }
        }
        all
    }

    /// Of a daemon that nobody asks anything: the median of some.
    pub(super) async fn at_rest(daemon: &Daemon) -> Self {
        let pid = daemon.pid().as_raw_nonzero().get().cast_unsigned();
        tokio::time::sleep(REST).await;
        let mut samples = Vec::new();
        for _ in 0..SAMPLES {
            samples.push(Self::now(pid));
            tokio::time::sleep(SAMPLE_INTERVAL).await;
        }
        samples.sort_by_key(|sample| sample.resident_bytes);
        samples[SAMPLES / 2]
    }

    /// By what part of it memory is more than it was.
    pub(super) fn growth(self, before: Self) -> f64 {
        self.resident_bytes as f64 / before.resident_bytes as f64 - 1.0
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [resident, anonymous] =
            [self.resident_bytes, self.anonymous_bytes].map(|bytes| bytes as f64 / MIB);
        let (processes, descriptors) = (self.processes, self.descriptors);
        let (threads, pool) = (self.threads, self.pool_threads);
        write!(
            f,
            "{resident:.2} MiB resident, {anonymous:.2} of it anonymous; {processes} processes, {threads} threads and {pool} of the \
             pool, {descriptors} descriptors"
        )
    }
}

/// A line of the file, which counts in KiB.
fn field_bytes(file: &str, name: &str) -> u64 {
    let line = file.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Names in a folder; none when it goes meanwhile.
fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}
