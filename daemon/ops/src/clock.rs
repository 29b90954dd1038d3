//! Where the time of a pass goes. On the CPU operations are timed one by one, on the thread that runs them; a card notes the
//! moments in its own work at which another kind of operation begins.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use sluice_cuda::{Gpu, Laps};

use super::{Body, Ops};

/// What an operation belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Turning and keeping keys and values, and looking at them.
    Attention,
    /// Products with the layers' matrices.
    Multiply,
    /// Products with the head, and what is made of them.
    Head,
    /// The choice of tokens, by this thread: on the CPU a part of the head. What is sent to a card is read back for it.
    Choice,
    /// Decoding weights on a card, before they are multiplied with; on the CPU that is a part of multiplying.
    Decode,
    /// Until streamed weights are there.
    Wait,
    /// Everything else.
    Rest,
}

/// Time that operations took, of which none is counted twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// Attention, KV caches included.
    pub attention: Duration,
    /// Matmuls with weights.
    pub multiply: Duration,
    /// Decompressing and dequantizing weights.
    pub decode: Duration,
    /// The LM head and what is chosen from its logits.
    pub head: Duration,
    /// What a card stood still for until streamed weights were there. On the CPU their reader counts that.
    pub waited: Option<Duration>,
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

    /// Where what belongs to a phase is counted, if it is.
    fn of(&self, phase: Phase) -> Option<&AtomicU64> {
        match phase {
            Phase::Attention => Some(&self.attention),
            Phase::Multiply => Some(&self.multiply),
            Phase::Head | Phase::Choice => Some(&self.head),
            Phase::Decode | Phase::Wait | Phase::Rest => None,
        }
    }
}

/// An operation that runs; it ends when this is dropped.
pub struct Timed<'a> {
    clock: &'a Clock,
    of_phase: &'a AtomicU64,
    begun: Instant,
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        let all = nanos(self.begun.elapsed());
        // As if all threads had shared in it.
        let decoded = self.clock.decoding.swap(0, Ordering::Relaxed) / self.clock.threads;
        let decoded = decoded.min(all);
        self.clock.decode.fetch_add(decoded, Ordering::Relaxed);
        self.of_phase.fetch_add(all - decoded, Ordering::Relaxed);
    }
}

/// The moments of a pass at which a card turns from one phase to another.
pub(super) struct CardClock(Mutex<Moments>);

struct Moments {
    laps: Laps,
    /// What begins at each.
    phases: Vec<Phase>,
    /// Whether there is a pass to time, and each of its moments was noted.
    runs: bool,
}

impl CardClock {
    pub(super) fn new(gpu: &Gpu) -> Self {
        Self(Mutex::new(Moments {
            laps: gpu.laps(),
            phases: Vec::new(),
            runs: false,
        }))
    }

    fn start(&self) {
        let mut moments = self.lock();
        moments.laps.clear();
        moments.phases.clear();
        moments.runs = true;
    }

    /// Notes that what is sent from now on belongs to a phase, if that is another than before.
    fn turn_to(&self, phase: Phase) {
        let mut moments = self.lock();
        if !moments.runs || moments.phases.last() == Some(&phase) {
            return;
        }
        // A pass too long for them is not timed. One on a card that fails ends for a reason of its own.
        match moments.laps.mark() {
            Ok(true) => moments.phases.push(phase),
            Ok(false) | Err(_) => moments.runs = false,
        }
    }

    /// Notes that what `work` sends belongs to a phase, and what comes after it to that before.
    pub(super) fn within<T>(&self, phase: Phase, work: impl FnOnce() -> T) -> T {
        let before = self.lock().phases.last().copied();
        self.turn_to(phase);
        let done = work();
        if let Some(before) = before {
            self.turn_to(before);
        }
        done
    }

    /// What lay between the moments since the start, where all were noted.
    fn take(&self) -> Option<Times> {
        if !matches!(self.lock().phases.last(), Some(Phase::Choice | Phase::Rest)) {
            // Nothing was read back: this moment is yet to come.
            self.turn_to(Phase::Rest);
        }
        let mut moments = self.lock();
        if !std::mem::take(&mut moments.runs) {
            return None;
        }
        let intervals = moments.laps.take_intervals().ok()?;
        let (mut times, mut waited) = (Times::default(), Duration::ZERO);
        for (phase, interval) in moments.phases.iter().zip(intervals) {
            match phase {
                Phase::Attention => times.attention += interval,
                Phase::Multiply => times.multiply += interval,
                Phase::Head => times.head += interval,
                Phase::Decode => times.decode += interval,
                Phase::Wait => waited += interval,
                Phase::Choice | Phase::Rest => {}
            }
        }
        times.waited = Some(waited);
        Some(times)
    }

    fn lock(&self) -> MutexGuard<'_, Moments> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ops {
    /// Counts what is done until this is dropped as a phase's; on a card, what is sent until another phase begins.
    pub fn timed(&self, phase: Phase) -> Option<Timed<'_>> {
        match &self.body {
            Body::Cpu(cpu) => cpu.clock().of(phase).map(|of_phase| Timed {
                clock: cpu.clock(),
                of_phase,
                begun: Instant::now(),
            }),
            // What is sent to a card is done later: this thread's clock would tell what sending takes.
            Body::Card(card) => {
                card.clock().turn_to(phase);
                None
            }
            Body::Rehearsal => None,
        }
    }

    /// Begins to time a pass.
    pub fn start_times(&self) {
        match &self.body {
            Body::Cpu(_) => drop(self.take_times()),
            Body::Card(card) => card.clock().start(),
            Body::Rehearsal => {}
        }
    }

    /// What operations took since the start, where they were timed.
    pub fn take_times(&self) -> Option<Times> {
        let clock = match &self.body {
            Body::Cpu(cpu) => cpu.clock(),
            Body::Card(card) => return card.clock().take(),
            Body::Rehearsal => return None,
        };
        let take = |nanos: &AtomicU64| Duration::from_nanos(nanos.swap(0, Ordering::Relaxed));
        Some(Times {
            attention: take(&clock.attention),
            multiply: take(&clock.multiply),
            decode: take(&clock.decode),
            head: take(&clock.head),
            waited: None,
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
        assert!(ops.timed(Phase::Wait).is_none() && ops.timed(Phase::Rest).is_none());
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
