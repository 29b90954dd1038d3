//! Where the time of a pass goes. On the CPU operations are timed one by one, on the thread that runs them; on a GPU,
//! events in its stream mark where another kind of operation begins.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use sluice_cuda::{Gpu, GpuLaps};

use super::{Backend, Ops};

/// The kind of work that an operation's time is counted as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Rotary embedding, KV cache writes and attention.
    Attention,
    /// Matmuls with the layers' matrices.
    Matmul,
    /// Matmuls with the LM head, and the reduction of their logits.
    LmHead,
    /// The choice of tokens, by this thread: on the CPU a part of the LM head. A GPU's results are read back for it.
    Sampling,
    /// Decompressing or dequantizing weights on a GPU before a matmul; on the CPU that is timed within the matmul.
    Decompress,
    /// Waiting for streamed weights.
    Wait,
    /// Embedding, norms, activation functions and copies of rows.
    Other,
}

/// Time that operations took, of which none is counted twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PhaseTimes {
    /// Attention, KV caches included.
    pub attention: Duration,
    /// Matmuls with weights.
    pub matmul: Duration,
    /// Decompressing and dequantizing weights.
    pub decompress: Duration,
    /// The LM head and what is chosen from its logits.
    pub lm_head: Duration,
    /// How long a GPU stood still until streamed weights were there. On the CPU their reader counts that.
    pub waited: Option<Duration>,
}

/// Nanoseconds since they were last taken. Operations follow one another: only decompression adds from several threads.
#[derive(Debug)]
pub(super) struct PhaseClock {
    attention: AtomicU64,
    matmul: AtomicU64,
    lm_head: AtomicU64,
    /// Decompression of the operations that have ended.
    decompress: AtomicU64,
    /// Decompression of the operation that runs, the sum over all threads.
    decompressing: AtomicU64,
    threads: u64,
}

impl PhaseClock {
    pub(super) fn new(threads: usize) -> Self {
        Self {
            attention: AtomicU64::new(0),
            matmul: AtomicU64::new(0),
            lm_head: AtomicU64::new(0),
            decompress: AtomicU64::new(0),
            decompressing: AtomicU64::new(0),
            threads: threads.max(1) as u64,
        }
    }

    /// Counts time in which one of the threads decompressed weights.
    pub(super) fn add_decompressed(&self, time: Duration) {
        self.decompressing.fetch_add(nanos(time), Ordering::Relaxed);
    }

    /// The counter of a phase, if it has one.
    fn of(&self, phase: Phase) -> Option<&AtomicU64> {
        match phase {
            Phase::Attention => Some(&self.attention),
            Phase::Matmul => Some(&self.matmul),
            Phase::LmHead | Phase::Sampling => Some(&self.lm_head),
            Phase::Decompress | Phase::Wait | Phase::Other => None,
        }
    }
}

/// An operation that runs; it ends when this is dropped.
pub struct PhaseTimer<'a> {
    clock: &'a PhaseClock,
    of_phase: &'a AtomicU64,
    begun: Instant,
}

impl Drop for PhaseTimer<'_> {
    fn drop(&mut self) {
        let all = nanos(self.begun.elapsed());
        // Threads add their own times, so the sum is divided by their number: wall time as if all had shared in it
        // evenly. Capped, since threads that other programs keep waiting can report more than the operation took.
        let decoded = self.clock.decompressing.swap(0, Ordering::Relaxed) / self.clock.threads;
        let decoded = decoded.min(all);
        self.clock.decompress.fetch_add(decoded, Ordering::Relaxed);
        self.of_phase.fetch_add(all - decoded, Ordering::Relaxed);
    }
}

/// The moments of a pass at which a GPU switches from one phase to another.
pub(super) struct GpuClock(Mutex<Moments>);

struct Moments {
    laps: GpuLaps,
    /// The phase that begins at each lap.
    phases: Vec<Phase>,
    /// Whether a pass is being timed and none of its marks was lost.
    runs: bool,
}

impl GpuClock {
    pub(super) fn new(gpu: &Gpu) -> Self {
        Self(Mutex::new(Moments {
            laps: gpu.laps(),
            phases: Vec::new(),
            runs: false,
        }))
    }

    fn start(&self) {
        let mut moments = self.lock();
        // What an earlier pass left is dropped: it may have failed before its times were taken.
        moments.laps.clear();
        moments.phases.clear();
        moments.runs = true;
    }

    /// Notes that what is sent from now on belongs to a phase, if that is another than before.
    fn switch_to(&self, phase: Phase) {
        let mut moments = self.lock();
        // An event costs a launch, so consecutive operations of one phase share one.
        if !moments.runs || moments.phases.last() == Some(&phase) {
            return;
        }
        // The pool of events is bounded: a pass too long for it is not timed. A GPU that fails is reported by the pass
        // itself.
        match moments.laps.mark() {
            Ok(true) => moments.phases.push(phase),
            Ok(false) | Err(_) => moments.runs = false,
        }
    }

    /// Notes that what `work` sends belongs to a phase, and what comes after it to that before.
    pub(super) fn within<T>(&self, phase: Phase, work: impl FnOnce() -> T) -> T {
        let before = self.lock().phases.last().copied();
        self.switch_to(phase);
        let done = work();
        // Without this mark the matmul that follows would count as decompression.
        if let Some(before) = before {
            self.switch_to(before);
        }
        done
    }

    /// The time between the marks since the start, unless a mark was lost.
    fn take(&self) -> Option<PhaseTimes> {
        if !matches!(
            self.lock().phases.last(),
            Some(Phase::Sampling | Phase::Other)
        ) {
            // Nothing was read back, so no mark closes the last interval yet.
            self.switch_to(Phase::Other);
        }
        let mut moments = self.lock();
        if !std::mem::take(&mut moments.runs) {
            return None;
        }
        // There is one interval fewer than marks: the last mark, of sampling or the one above, only ends the interval
        // before it.
        let intervals = moments.laps.take_intervals().ok()?;
        let (mut times, mut waited) = (PhaseTimes::default(), Duration::ZERO);
        for (phase, interval) in moments.phases.iter().zip(intervals) {
            match phase {
                Phase::Attention => times.attention += interval,
                Phase::Matmul => times.matmul += interval,
                Phase::LmHead => times.lm_head += interval,
                Phase::Decompress => times.decompress += interval,
                Phase::Wait => waited += interval,
                Phase::Sampling | Phase::Other => {}
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
    /// Counts what is done until this is dropped as a phase's; on a GPU, what is launched until another phase begins.
    pub fn timed(&self, phase: Phase) -> Option<PhaseTimer<'_>> {
        match &self.backend {
            Backend::Cpu(cpu) => cpu.clock().of(phase).map(|of_phase| PhaseTimer {
                clock: cpu.clock(),
                of_phase,
                begun: Instant::now(),
            }),
            // Launches return before their work is done: this thread's clock would tell what launching takes.
            Backend::Gpu(gpu) => {
                gpu.clock().switch_to(phase);
                None
            }
            Backend::DryRun => None,
        }
    }

    /// Begins to time a pass.
    pub fn start_phase_times(&self) {
        match &self.backend {
            // What was computed since the last pass, such as a probe of rates, belongs to none.
            Backend::Cpu(_) => drop(self.take_phase_times()),
            Backend::Gpu(gpu) => gpu.clock().start(),
            Backend::DryRun => {}
        }
    }

    /// What operations took since the start, where they were timed.
    pub fn take_phase_times(&self) -> Option<PhaseTimes> {
        let clock = match &self.backend {
            Backend::Cpu(cpu) => cpu.clock(),
            Backend::Gpu(gpu) => return gpu.clock().take(),
            Backend::DryRun => return None,
        };
        let take = |nanos: &AtomicU64| Duration::from_nanos(nanos.swap(0, Ordering::Relaxed));
        Some(PhaseTimes {
            attention: take(&clock.attention),
            matmul: take(&clock.matmul),
            decompress: take(&clock.decompress),
            lm_head: take(&clock.lm_head),
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
        let Backend::Cpu(cpu) = &ops.backend else {
            unreachable!("it was made for the CPU")
        };
        for phase in [Phase::Matmul, Phase::LmHead] {
            let timed = ops.timed(phase).unwrap();
            // More than the operation itself takes, on one thread of two.
            cpu.clock().add_decompressed(Duration::from_secs(1000));
            drop(timed);
        }
        assert!(ops.timed(Phase::Wait).is_none() && ops.timed(Phase::Other).is_none());
        let attention = ops.timed(Phase::Attention).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        drop(attention);
        let times = ops.take_phase_times().unwrap();
        assert_eq!((times.matmul, times.lm_head), Default::default());
        assert!(times.decompress > Duration::ZERO && times.decompress < Duration::from_secs(1));
        assert!(times.attention >= Duration::from_millis(2));
        assert_eq!(ops.take_phase_times(), Some(PhaseTimes::default()));
    }
}
