//! Where the time of a pass goes: operations are timed one by one, on the thread that runs them.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use super::{Body, Ops};

/// What an operation belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Turning and keeping keys and values, and looking at them.
    Attention,
    /// Products with the layers' matrices.
    Multiply,
    /// Products with the head, and the choice of tokens.
    Head,
}

/// Time that operations took, of which none is counted twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Times {
    pub(crate) attention: Duration,
    pub(crate) multiply: Duration,
    pub(crate) decode: Duration,
    pub(crate) head: Duration,
}

/// Nanoseconds since they were last taken. Operations follow one another: only decoding adds from several threads.
#[derive(Debug)]
pub(super) struct Clock {
    attention: AtomicU64,
    multiply: AtomicU64,
    head: AtomicU64,
    /// Of the operations that have ended.
    decode: AtomicU64,
    /// Of the one that runs, the sum over all threads.
    decoding: AtomicU64,
    threads: u64,
}

impl Clock {
    pub(super) fn new(threads: usize) -> Self {
        Self {
            attention: AtomicU64::new(0),
            multiply: AtomicU64::new(0),
            head: AtomicU64::new(0),
            decode: AtomicU64::new(0),
            decoding: AtomicU64::new(0),
            threads: threads.max(1) as u64,
        }
    }

    /// Counts time in which one of the threads decoded weights.
    pub(super) fn decoded(&self, time: Duration) {
        self.decoding.fetch_add(nanos(time), Ordering::Relaxed);
    }

    fn of(&self, phase: Phase) -> &AtomicU64 {
        match phase {
            Phase::Attention => &self.attention,
            Phase::Multiply => &self.multiply,
            Phase::Head => &self.head,
        }
    }
}

/// An operation that runs; it ends when this is dropped.
pub(crate) struct Timed<'a> {
    clock: &'a Clock,
    phase: Phase,
    begun: Instant,
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        let all = nanos(self.begun.elapsed());
        // As if all threads had shared in it.
        let decoded = self.clock.decoding.swap(0, Ordering::Relaxed) / self.clock.threads;
        let decoded = decoded.min(all);
        self.clock.decode.fetch_add(decoded, Ordering::Relaxed);
        let phase = self.clock.of(self.phase);
        phase.fetch_add(all - decoded, Ordering::Relaxed);
    }
}

impl Ops {
    /// Counts the time until this is dropped; `None` where nothing is timed.
    pub(crate) fn timed(&self, phase: Phase) -> Option<Timed<'_>> {
        match &self.body {
            Body::Cpu(cpu) => Some(Timed {
                clock: cpu.clock(),
                phase,
                begun: Instant::now(),
            }),
            // What is sent to a card is done later: this thread's clock would tell what sending takes.
            Body::Card(_) | Body::Rehearsal => None,
        }
    }

    /// What operations took since it was last asked, on the CPU.
    pub(crate) fn take_times(&self) -> Option<Times> {
        let Body::Cpu(cpu) = &self.body else {
            return None;
        };
        let clock = cpu.clock();
        let take = |nanos: &AtomicU64| Duration::from_nanos(nanos.swap(0, Ordering::Relaxed));
        Some(Times {
            attention: take(&clock.attention),
            multiply: take(&clock.multiply),
            decode: take(&clock.decode),
            head: take(&clock.head),
        })
    }
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{device::Device, ledger::Ledger};

    #[test]
    fn decoding_is_taken_out_of_what_it_is_part_of() {
        let ops = Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap();
        let Body::Cpu(cpu) = &ops.body else {
            unreachable!("it was made for the CPU")
        };
        for phase in [Phase::Multiply, Phase::Head] {
            let timed = ops.timed(phase).unwrap();
            // More than the operation itself takes, on one thread of two.
            cpu.clock().decoded(Duration::from_secs(1000));
            drop(timed);
        }
        let attention = ops.timed(Phase::Attention).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        drop(attention);
        let times = ops.take_times().unwrap();
        assert_eq!((times.multiply, times.head), Default::default());
        assert!(times.decode > Duration::ZERO && times.decode < Duration::from_secs(1));
        assert!(times.attention >= Duration::from_millis(2));
        assert_eq!(ops.take_times(), Some(Times::default()));
    }
}
