//! How much processor time other programs take while something is measured here.

use std::fs;

/// Processor time so far, in the system's ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CpuTicks {
    /// Time of all processors.
    total: u64,
    /// Time that was not idle, including what a hypervisor gave to other guests.
    busy: u64,
    /// Time that this process took.
    own: u64,
}

impl CpuTicks {
    /// The present counts; `None` where the system does not tell.
    pub(super) fn now() -> Option<Self> {
        let machine = fs::read_to_string("/proc/stat").ok()?;
        let process = fs::read_to_string("/proc/self/stat").ok()?;
        Self::of(&machine, &process)
    }

    /// Parses `/proc/stat` and `/proc/self/stat`.
    fn of(machine: &str, process: &str) -> Option<Self> {
        let line = machine.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let numbers: Vec<u64> = line
            .split_whitespace()
            .map_while(|n| n.parse().ok())
            .collect();
        // user and nice already contain the time of guests, so what follows steal is left out. Older systems have fewer
        // fields.
        let [user, nice, system, idle, rest @ ..] = &numbers[..] else {
            return None;
        };
        let rest = &rest[..rest.len().min(4)];
        let waits = rest.first().copied().unwrap_or(0);
        let busy = user + nice + system + rest.iter().skip(1).sum::<u64>();
        // The program's name may contain spaces and parentheses: fields are counted from the last one.
        let (_, fields) = process.rsplit_once(") ")?;
        // utime and stime are fields 14 and 15; state, the third, comes first after the name.
        let mut times = fields.split(' ').skip(11).map(str::parse::<u64>);
        let own = times.next()?.ok()? + times.next()?.ok()?;
        Some(Self {
            total: busy + idle + waits,
            busy,
            own,
        })
    }

    /// Share of the processors' time that others have had since, from 0 to 1.
    pub(super) fn others_until(self, later: Self) -> f64 {
        let total = later.total.saturating_sub(self.total);
        let busy = later.busy.saturating_sub(self.busy);
        // The counts are not read at one moment, so that our own time may exceed what was busy.
        let own = later.own.saturating_sub(self.own);
        match total {
            0 => 0.0,
            _ => (busy.saturating_sub(own) as f64 / total as f64).min(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESS: &str = "7 (a) b) S 1 7 7 0 -1 4194560 900 0 3 0 {own} 5 0 0 20 0 9 0 100 1 2";

    fn ticks(machine: &str, own: u64) -> CpuTicks {
        let process = PROCESS.replace("{own}", &own.to_string());
        CpuTicks::of(machine, &process).unwrap()
    }

    #[test]
    fn what_others_have_is_what_is_neither_idle_nor_ours() {
        let before = ticks("cpu  100 0 50 1000 10 0 0 0 30 0\ncpu0 1 2 3 4\n", 20);
        assert_eq!((before.total, before.busy, before.own), (1160, 150, 25));
        // 40 of 100 ticks were ours, 30 somebody else's, 10 of them another machine's.
        let after = ticks("cpu  160 0 50 1020 20 0 0 10 30 0\n", 60);
        assert!((before.others_until(after) - 0.3).abs() < 1e-9);
        assert_eq!(before.others_until(before), 0.0);
        assert_eq!(after.others_until(before), 0.0);
    }

    #[test]
    fn what_the_system_does_not_tell_is_not_known() {
        assert_eq!(CpuTicks::of("", PROCESS), None);
        assert_eq!(CpuTicks::of("cpu  1 2 3", "7 (a) S 1 7"), None);
        assert!(CpuTicks::now().is_some());
    }
}
