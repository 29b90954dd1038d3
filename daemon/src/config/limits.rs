//! Bounds of the numbers in the configuration.

use std::{fmt, str::FromStr};

use sluice_engine::PARALLEL_MAX;

/// A number that can be read, compared and shown.
pub trait Number:
    Copy + PartialOrd + fmt::Display + FromStr<Err = std::num::ParseIntError>
{
}

impl Number for usize {}
impl Number for u64 {}

/// What a number may be.
#[derive(Debug)]
pub struct Limit<T> {
    /// Its key in the file.
    pub key: &'static str,
    /// Its environment variable.
    pub variable: &'static str,
    /// Least value.
    pub min: T,
    /// Greatest value.
    pub max: T,
}

/// Threads that compute; more than any machine has cores.
pub const THREADS: Limit<usize> = Limit {
    key: "threads",
    variable: "SLUICE_THREADS",
    min: 1,
    max: 1024,
};

/// Requests that may wait.
pub const QUEUE: Limit<usize> = Limit {
    key: "queue",
    variable: "SLUICE_QUEUE",
    min: 1,
    max: 1024,
};

/// Requests that share a pass.
pub const PARALLEL: Limit<usize> = Limit {
    key: "parallel",
    variable: "SLUICE_PARALLEL",
    min: 1,
    max: PARALLEL_MAX,
};

/// Seconds to drain; longer than any service manager waits.
pub const DRAIN_SECONDS: Limit<u64> = Limit {
    key: "drain_seconds",
    variable: "SLUICE_DRAIN_SECONDS",
    min: 0,
    max: 3600,
};

impl<T: Number> Limit<T> {
    /// Whether `value` is within the bounds.
    ///
    /// # Errors
    /// The bounds, in words.
    pub fn check(&self, value: T) -> Result<(), String> {
        if value < self.min || value > self.max {
            let (min, max) = (self.min, self.max);
            return Err(format!("must lie between {min} and {max}, not {value}"));
        }
        Ok(())
    }

    fn read(&self, text: &str) -> Result<T, String> {
        let value = text.parse().map_err(|error| format!("{error}"))?;
        self.check(value)?;
        Ok(value)
    }
}

/// Reads `--threads`.
///
/// # Errors
/// What is wrong with the number.
pub fn threads(text: &str) -> Result<usize, String> {
    THREADS.read(text)
}

/// Reads `--queue`.
///
/// # Errors
/// What is wrong with the number.
pub fn queue(text: &str) -> Result<usize, String> {
    QUEUE.read(text)
}

/// Reads `--parallel`.
///
/// # Errors
/// What is wrong with the number.
pub fn parallel(text: &str) -> Result<usize, String> {
    PARALLEL.read(text)
}

/// Reads `--drain-seconds`.
///
/// # Errors
/// What is wrong with the number.
pub fn drain_seconds(text: &str) -> Result<u64, String> {
    DRAIN_SECONDS.read(text)
}
