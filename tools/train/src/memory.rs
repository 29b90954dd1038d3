//! How much memory the process has.

use std::fs;

use serde::{Deserialize, Serialize};

/// Resident memory of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Now, in bytes.
    pub now_bytes: u64,
    /// At most since the process started, in bytes.
    pub peak_bytes: u64,
}

impl Memory {
    /// What the kernel says; `None` where it says nothing.
    #[must_use]
    pub fn measure() -> Option<Self> {
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let bytes = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some(kibibytes << 10)
        };
        Some(Self {
            now_bytes: bytes("VmRSS:")?,
            peak_bytes: bytes("VmHWM:")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_used_shows_at_the_peak() {
        let before = Memory::measure().expect("Linux");
        drop(std::hint::black_box(vec![1u8; 64 << 20]));
        let after = Memory::measure().expect("Linux");
        assert!(
            after.peak_bytes >= before.now_bytes + (48 << 20),
            "{before:?} {after:?}"
        );
    }
}
