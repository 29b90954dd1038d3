//! How much memory this process may have: the least that the machine, the control groups
//! above the process and its own limits leave it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rustix::process::{Resource, getrlimit};

/// Memory of the device. Figures that are not known are `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Most bytes that this process could have if it were alone.
    pub total_bytes: Option<u64>,
    /// Bytes that it may still take.
    pub free_bytes: Option<u64>,
    /// Bytes of files that the system's cache may hold for it.
    pub page_cache_bytes: Option<u64>,
}

/// Part of the free memory that [`default_budget`] leaves to others, in percent, and its
/// least.
const MARGIN_PERCENT: u64 = 6;
const MARGIN_BYTES_MIN: u64 = 256 << 20;

/// The default memory budget: all of `free_bytes` but a margin.
#[must_use]
pub fn default_budget(free_bytes: u64) -> u64 {
    let margin = (free_bytes / 100 * MARGIN_PERCENT).max(MARGIN_BYTES_MIN);
    free_bytes.saturating_sub(margin)
}

/// The default limit of pinned memory: at most half of the main memory, and three quarters of what is free.
#[must_use]
pub fn default_pinned_memory_limit(memory: &MemoryStats) -> u64 {
    // Half, as mmgp limits it: no other program gets pinned memory, whether it is in use or not.
    let half = memory.total_bytes.map_or(0, |total| total / 2);
    let most_of_free = memory.free_bytes.map_or(0, |free| free / 4 * 3);
    half.min(most_of_free)
}

impl MemoryStats {
    /// The main memory, as it is at this moment.
    #[must_use]
    pub fn read() -> Self {
        let status = text("/proc/self/status");
        let groups = group_folders(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"));
        groups
            .iter()
            .map(|folder| Self::of_group(folder))
            .chain([
                Self::of_machine(&text("/proc/meminfo")),
                Self::of_limit(getrlimit(Resource::Data).current, &status, "VmData"),
                Self::of_limit(getrlimit(Resource::As).current, &status, "VmSize"),
            ])
            // The tightest of all limits counts, whoever set it; a figure that is missing limits nothing.
            .fold(Self::default(), Self::least)
    }

    fn least(self, other: Self) -> Self {
        let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        Self {
            total_bytes: least(self.total_bytes, other.total_bytes),
            free_bytes: least(self.free_bytes, other.free_bytes),
            page_cache_bytes: least(self.page_cache_bytes, other.page_cache_bytes),
        }
    }

    /// Parses `/proc/meminfo`.
    fn of_machine(meminfo: &str) -> Self {
        Self {
            // Available and not free: pages of files count as free, since the system drops them for whoever allocates.
            total_bytes: kib_line(meminfo, "MemTotal"),
            free_bytes: kib_line(meminfo, "MemAvailable"),
            page_cache_bytes: kib_line(meminfo, "MemAvailable"),
        }
    }

    /// A limit of the process, with the line `used` of `/proc/self/status`.
    fn of_limit(limit: Option<u64>, status: &str, used: &str) -> Self {
        let used = kib_line(status, used);
        Self {
            total_bytes: limit,
            free_bytes: limit.zip(used).map(|(all, used)| all.saturating_sub(used)),
            // The system's cache does not count towards a process's limit.
            page_cache_bytes: None,
        }
    }

    /// Reads the files of one control group, of version 1 or 2.
    fn of_group(folder: &Path) -> Self {
        let file = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let stat = file("memory.stat");
        // Version 2 slows a process down above `high` and kills it above `max`.
        // Whichever is lower is the one that hurts first.
        let limits = ["memory.max", "memory.high", "memory.limit_in_bytes"];
        let used = ["memory.current", "memory.usage_in_bytes"];
        let number = |name: &&str| file(name).trim().parse().ok();
        Self::of_counts(
            // A group of version 2 without a limit says `max`, which is no number and so limits nothing.
            limits.iter().filter_map(number).min(),
            used.iter().find_map(number),
            &stat,
        )
    }

    /// A control group's limit, its use and the text of its `memory.stat`.
    fn of_counts(limit: Option<u64>, used: Option<u64>, stat: &str) -> Self {
        // Pages of files count as used, but are dropped when somebody needs memory. Version 1 has the figures with and
        // without the groups below.
        let files = |state: &str| {
            word_line(stat, &format!("total_{state}_file"))
                .or_else(|| word_line(stat, &format!("{state}_file")))
                .unwrap_or(0)
        };
        let kept = used.map(|used: u64| {
            used.saturating_sub(files("active"))
                .saturating_sub(files("inactive"))
        });
        let free = limit.zip(kept).map(|(all, kept)| all.saturating_sub(kept));
        Self {
            total_bytes: limit,
            free_bytes: free,
            page_cache_bytes: free,
        }
    }
}

/// The machine's swap space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapStats {
    /// All of it.
    pub total_bytes: u64,
    /// What is not used.
    pub free_bytes: u64,
}

impl SwapStats {
    /// As it is at this moment; `None` where the system does not tell.
    #[must_use]
    pub fn read() -> Option<Self> {
        let meminfo = text("/proc/meminfo");
        Some(Self {
            total_bytes: kib_line(&meminfo, "SwapTotal")?,
            free_bytes: kib_line(&meminfo, "SwapFree")?,
        })
    }
}

/// A file of the system; empty, so without any figure, when it cannot be read.
pub(crate) fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The value in bytes of a line such as `VmData:    360 kB`.
fn kib_line(text: &str, name: &str) -> Option<u64> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

/// The value of a line such as `active_file 4096`.
fn word_line(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?
        .trim()
        .parse()
        .ok()
}

/// The folders of the control groups that limit this process's memory, its own and those
/// above it, by the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn group_folders(cgroup: &str, mountinfo: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
            continue;
        };
        let is_memory = |controller| controller == "memory";
        // Version 2 is one tree for all controllers, and names none.
        let kind = match controllers {
            "" => "cgroup2",
            names if names.split(',').any(is_memory) => "cgroup",
            _ => continue,
        };
        for mount in mountinfo.lines().filter_map(Mount::parse) {
            // Version 1 mounts a tree for each controller, of which only the memory controller's has the figures.
            if mount.kind == kind && (kind == "cgroup2" || mount.options.split(',').any(is_memory))
            {
                folders.extend(mount.folders_up_from(group));
            }
        }
    }
    folders
}

/// A line of `mountinfo`.
struct Mount<'a> {
    /// The part of the file system that is mounted.
    root: &'a Path,
    /// The folder where it is mounted.
    point: &'a Path,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (place, system) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let mut system = system.split(' ');
        Some(Self {
            root: Path::new(place.next()?),
            point: Path::new(place.next()?),
            kind: system.next()?,
            options: system.nth(1)?,
        })
    }

    /// The folder of `group`, then those above it up to the mount's own. A group outside of
    /// what is mounted, as seen from inside a container, leaves the mount's own.
    fn folders_up_from(&self, group: &str) -> Vec<PathBuf> {
        let below = Path::new(group).strip_prefix(self.root).ok();
        let plain = |path: &&Path| !path.components().any(|part| part.as_os_str() == "..");
        let parts = below.filter(plain).into_iter().flat_map(Path::components);
        // Part by part: joining nothing would leave a slash at the end.
        let folder = parts.fold(self.point.to_owned(), |folder, part| folder.join(part));
        folder
            .ancestors()
            .take_while(|folder| folder.starts_with(self.point))
            .map(Path::to_owned)
            .collect()
    }
}

#[cfg(test)]
mod tests;
