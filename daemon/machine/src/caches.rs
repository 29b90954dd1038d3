//! How much the CPU's caches hold: what is timed in memory must be larger.

use std::{collections::BTreeMap, fs, path::Path};

use crate::memory::text;

/// Bytes of the last-level caches of all CPUs that this process may run on; `None` where the system does not tell.
#[must_use]
pub fn last_level_cache_bytes() -> Option<u64> {
    let status = text("/proc/self/status");
    let allowed = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    of_cpus(Path::new("/sys/devices/system/cpu"), allowed)
}

/// The same of the CPUs in a list such as `0-3,8`, with the system's folder of CPUs.
fn of_cpus(folder: &Path, list: &str) -> Option<u64> {
    // A cache belongs to all CPUs that share it, and counts once.
    let caches: BTreeMap<String, u64> = cpus(list)
        .filter_map(|cpu| last_level(&folder.join(format!("cpu{cpu}/cache"))))
        .collect();
    (!caches.is_empty()).then(|| caches.values().sum())
}

/// A CPU's last cache before memory: the list of CPUs that share it, and its bytes.
fn last_level(folder: &Path) -> Option<(String, u64)> {
    let caches = fs::read_dir(folder).ok()?.flatten().filter_map(|cache| {
        let file = |name: &str| fs::read_to_string(cache.path().join(name)).ok();
        let level: u32 = file("level")?.trim().parse().ok()?;
        let size = file("size")?;
        let kib: u64 = size.trim().strip_suffix('K')?.parse().ok()?;
        let is_of_data = file("type")?.trim() != "Instruction";
        is_of_data.then_some((level, (file("shared_cpu_list")?, kib << 10)))
    });
    let (_, last) = caches.max_by_key(|(level, _)| *level)?;
    Some(last)
}

/// The numbers in a list such as `0-3,8`; what is none is left out.
fn cpus(list: &str) -> impl Iterator<Item = u32> {
    let ranges = list.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let [first, last] = [first, last].map(|number| number.trim().parse());
        Some(first.ok()?..=last.ok()?)
    });
    ranges.flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_last_level_cache_of_the_cpus_counts_once() {
        let folder = tempfile::tempdir().unwrap();
        let cache = |cpu: u32, index: u32, [level, kind, size, shared]: [&str; 4]| {
            let cache = folder.path().join(format!("cpu{cpu}/cache/index{index}"));
            fs::create_dir_all(&cache).unwrap();
            let files = [
                ("level", level),
                ("type", kind),
                ("size", size),
                ("shared_cpu_list", shared),
            ];
            for (name, value) in files {
                fs::write(cache.join(name), format!("{value}\n")).unwrap();
            }
        };
        // Two chiplets, of which one has more cache, and a core of another kind without a third level.
        for cpu in 0..4 {
            let (size, shared) = [("98304K", "0-1"), ("32768K", "2-3")][cpu as usize / 2];
            cache(cpu, 0, ["1", "Data", "48K", "0"]);
            cache(cpu, 1, ["1", "Instruction", "32K", "0"]);
            cache(cpu, 2, ["2", "Unified", "1024K", "0"]);
            cache(cpu, 3, ["3", "Unified", size, shared]);
        }
        cache(4, 0, ["2", "Unified", "2048K", "4-5"]);
        cache(4, 1, ["3", "Instruction", "4096K", "4-5"]);
        let of = |list| of_cpus(folder.path(), list);
        assert_eq!(of("\t0-5\n"), Some((96 + 32 + 2) << 20));
        assert_eq!(of("1,3"), Some((96 + 32) << 20));
        assert_eq!(of("2-3"), Some(32 << 20));
        for unknown in ["7", "", "-", "x-2"] {
            assert_eq!(of(unknown), None, "{unknown:?}");
        }
    }

    #[test]
    fn a_list_of_cpus_is_read() {
        assert_eq!(
            cpus("0-2,8,10-11\n").collect::<Vec<_>>(),
            [0, 1, 2, 8, 10, 11]
        );
    }
}
