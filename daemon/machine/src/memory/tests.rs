//! Texts of the system, true ones and odd ones.

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const GIB: u64 = 1 << 30;

fn facts(total: Option<u64>, free: Option<u64>) -> MemoryStats {
    MemoryStats {
        total_bytes: total,
        free_bytes: free,
        page_cache_bytes: free,
    }
}

#[test]
fn this_machine_has_memory() {
    let now = MemoryStats::read();
    let total = now.total_bytes.expect("Linux tells");
    let free = now.free_bytes.expect("Linux tells");
    assert!(free > 0 && free <= total, "{now:?}");
}

#[test]
fn the_machine_tells_in_kibibytes() {
    let text = "MemTotal:       24684092 kB\nMemFree:        1 kB\nMemAvailable:   23520804 kB\n";
    assert_eq!(
        MemoryStats::of_machine(text),
        facts(Some(24_684_092 << 10), Some(23_520_804 << 10))
    );
}

#[test]
fn odd_texts_have_no_figures() {
    for text in [
        "",
        "MemTotal\nMemAvailable",
        "MemTotal: kB\nMemAvailable: kB",
        "MemTotal: -1 kB\nMemAvailable: 1.5 kB",
        "MemTotal: 12\nMemAvailable: 12 MB",
        "MemTotal: 18446744073709551615 kB\nMemAvailable: 99999999999999999999 kB",
        "MemTotalX: 12 kB\nXMemAvailable: 12 kB",
    ] {
        assert_eq!(MemoryStats::of_machine(text), facts(None, None), "{text}");
    }
}

#[test]
fn a_limit_leaves_what_is_not_yet_used() {
    let status = "VmSize:\t    3060 kB\nVmData:\t    1024 kB\n";
    let of = |limit| MemoryStats::of_limit(limit, status, "VmData");
    // Nothing is said of the system's cache.
    let facts = |total, free| MemoryStats {
        page_cache_bytes: None,
        ..facts(total, free)
    };
    assert_eq!(of(None), facts(None, None));
    assert_eq!(of(Some(3 << 20)), facts(Some(3 << 20), Some(2 << 20)));
    assert_eq!(of(Some(1000)), facts(Some(1000), Some(0)));
    // A limit whose use is unknown leaves an unknown rest.
    let unknown = MemoryStats::of_limit(Some(1000), "", "VmData");
    assert_eq!(unknown, facts(Some(1000), None));
}

#[test]
fn files_of_a_group_count_as_free() {
    let version_2 = "anon 10\nactive_file 300\ninactive_file 200\n";
    let version_1 =
        "active_file 1\ninactive_file 1\ntotal_inactive_file 200\ntotal_active_file 300";
    for stat in [version_2, version_1] {
        assert_eq!(
            MemoryStats::of_counts(Some(2000), Some(1200), stat),
            facts(Some(2000), Some(1300))
        );
    }
    assert_eq!(
        MemoryStats::of_counts(Some(2000), Some(1200), "active_file x"),
        facts(Some(2000), Some(800))
    );
    assert_eq!(MemoryStats::of_counts(None, Some(1), ""), facts(None, None));
}

#[test]
fn a_group_is_read_from_its_files() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    assert_eq!(MemoryStats::of_group(folder.path()), facts(None, None));
    write("memory.max", "max\n");
    write("memory.current", "1000\n");
    assert_eq!(MemoryStats::of_group(folder.path()), facts(None, None));
    write("memory.high", "8000\n");
    write("memory.max", "9000\n");
    write("memory.stat", "inactive_file 400\n");
    assert_eq!(
        MemoryStats::of_group(folder.path()),
        facts(Some(8000), Some(7400))
    );
}

#[test]
fn groups_are_found_where_they_are_mounted() {
    let paths = |cgroup: &str, mountinfo: &str| -> Vec<String> {
        let folders = group_folders(cgroup, mountinfo).into_iter();
        folders.map(|folder| folder.display().to_string()).collect()
    };
    let version_2 = "31 23 0:28 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate";
    assert_eq!(
        paths("0::/system.slice/sluiced.service\n", version_2),
        [
            "/sys/fs/cgroup/system.slice/sluiced.service",
            "/sys/fs/cgroup/system.slice",
            "/sys/fs/cgroup",
        ]
    );
    let version_1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                     36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu";
    assert_eq!(
        paths("9:name=systemd:/x\n4:memory:/job\n2:cpu:/job", version_1),
        ["/sys/fs/cgroup/memory/job", "/sys/fs/cgroup/memory"]
    );
    // A container that sees the groups of its own alone.
    let container = "35 31 0:32 /docker/1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";
    for group in ["/docker/1", "/elsewhere", "/docker/1/../.."] {
        let found = paths(&format!("4:memory:{group}"), container);
        assert_eq!(found, ["/sys/fs/cgroup/memory"], "{group}");
    }
    for odd in ["", "0", "0:", "0::", ":::", "\n\n"] {
        assert!(paths(odd, "").is_empty());
        assert!(paths("0::/", odd).is_empty());
    }
}

#[test]
fn the_default_budget_leaves_a_margin() {
    assert_eq!(default_budget(0), 0);
    assert_eq!(default_budget(256 << 20), 0);
    assert_eq!(default_budget(GIB), GIB - (256 << 20));
    assert_eq!(default_budget(100 * GIB), 94 * GIB);
    assert!(default_budget(u64::MAX) < u64::MAX);
}

proptest! {
    #[test]
    fn no_text_makes_the_readers_panic(text in "(?s).{0,200}", limit: Option<u64>, used: Option<u64>) {
        MemoryStats::of_machine(&text);
        MemoryStats::of_limit(limit, &text, "VmData");
        MemoryStats::of_counts(limit, used, &text);
        group_folders(&text, &text);
        group_folders("0::/a", &format!("1 2 3 {text} - cgroup2 {text}"));
    }
}
