//! The machine's threads. Passes compute on them. Work beside passes (conversion and reading for another plan) has all
//! of them while no pass computes, and a fixed share of the time while one does, however many threads ask for it.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicIsize, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// The divisor of the share that work beside a computing pass gets of all cores. A pass then takes 6/5 as long, plus
/// what both lose in shared caches and memory bandwidth.
pub const SHARE: u32 = 6;
/// How often resting work checks whether passes have ended.
const REST_PIECE: Duration = Duration::from_millis(1);

/// One pool of threads for everything that computes or converts; clones share it. A device that only counts memory has
/// none.
#[derive(Clone)]
pub struct Workers {
    pool: Option<Arc<rayon::ThreadPool>>,
    threads: usize,
    background: Arc<Background>,
}

impl Workers {
    /// Starts so many threads; 0: one a core.
    ///
    /// # Errors
    /// Why the threads cannot be started.
    pub fn new(threads: usize) -> Result<Self, String> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("sluice-cpu-{index}"))
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self {
            threads: pool.current_num_threads(),
            pool: Some(Arc::new(pool)),
            background: Arc::default(),
        })
    }

    /// A stand-in for so many threads that does no work.
    pub fn none(threads: usize) -> Self {
        Self {
            pool: None,
            threads,
            background: Arc::default(),
        }
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Does `work` on one of the threads, or on the caller's where there are none.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// Runs `work` on the threads; not at all where there are none.
    pub fn run(&self, work: impl FnOnce() + Send) {
        if let Some(pool) = &self.pool {
            pool.install(work);
        }
    }

    /// Marks that a pass computes on these threads, until the guard is dropped.
    pub fn computing(&self) -> ComputingGuard {
        ComputingGuard::new(&self.background)
    }

    /// Marks that the computing pass waits, until the guard is dropped.
    pub fn waiting(&self) -> WaitingGuard {
        WaitingGuard::new(&self.background)
    }

    /// Does a piece of work beside passes, some milliseconds at most, which returns how much of all cores' time it
    /// took. While a pass computes, all such work together gets one part in [`SHARE`] of the time, and this returns
    /// after a rest.
    pub fn beside(&self, work: impl FnOnce() -> Duration) {
        self.background.work(work);
    }

    /// As [`Workers::beside`], on the threads, each of which does its part through [`BusyTime::during`].
    pub fn run_beside(&self, work: impl FnOnce(&BusyTime) + Send) {
        self.beside(|| {
            let busy = BusyTime::default();
            self.run(|| work(&busy));
            busy.of_all(self.threads)
        });
    }
}

/// Time that threads spend on work beside passes.
#[derive(Debug, Default)]
pub struct BusyTime(AtomicU64);

impl BusyTime {
    /// Does a part of the work, and counts its time.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = work();
        let nanoseconds = begun.elapsed().as_nanos() as u64;
        // Relaxed: the sum is read once all parts of the work have ended.
        self.0.fetch_add(nanoseconds, Ordering::Relaxed);
        done
    }

    /// The time as a share of so many threads.
    fn of_all(self, threads: usize) -> Duration {
        Duration::from_nanos(self.0.into_inner() / threads.max(1) as u64)
    }
}

/// Passes that compute, and the turn of those who work beside them.
#[derive(Debug, Default)]
struct Background {
    /// Passes that compute at this moment.
    // Signed: waiting guards subtract, and guards of several passes come and go in any order.
    computing: AtomicIsize,
    /// Held for a piece of work and the rest after it, so that the share is that of all workers together.
    turn: Mutex<()>,
}

/// A pass computes as long as this lives.
#[derive(Debug)]
pub struct ComputingGuard(Arc<Background>);

/// A pass waits, and leaves its cores to others, as long as this lives.
#[derive(Debug)]
pub struct WaitingGuard(Arc<Background>);

impl ComputingGuard {
    fn new(background: &Arc<Background>) -> Self {
        // Relaxed is enough: whoever sees the count late does one piece without a rest.
        background.computing.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(background))
    }
}

impl Drop for ComputingGuard {
    fn drop(&mut self) {
        self.0.computing.fetch_sub(1, Ordering::Relaxed);
    }
}

impl WaitingGuard {
    fn new(background: &Arc<Background>) -> Self {
        // A pass that waits does not compute: conversions have its cores until its weights are there.
        background.computing.fetch_sub(1, Ordering::Relaxed);
        Self(Arc::clone(background))
    }
}

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        self.0.computing.fetch_add(1, Ordering::Relaxed);
    }
}

impl Background {
    fn is_computing(&self) -> bool {
        self.computing.load(Ordering::Relaxed) > 0
    }

    /// Does a piece of work, which tells what it took of all cores, and rests after it where a pass computes.
    fn work(&self, work: impl FnOnce() -> Duration) {
        // Without the turn's lock: several conversions run side by side while no pass computes.
        if !self.is_computing() {
            work();
            return;
        }
        // A panic under the lock leaves nothing half-done.
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        let spent = work();
        // The rest is proportional to the work, so pieces of any length come to the same share.
        let until = begun + period(spent);
        // In short sleeps: once the pass ends or waits, all cores are free and the rest is over.
        while self.is_computing() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep(left.min(REST_PIECE));
        }
        drop(turn);
    }
}

/// From the beginning of a piece of work that took `spent` of all cores to the beginning of the next.
fn period(spent: Duration) -> Duration {
    spent * SHARE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beside_a_pass_work_takes_its_share_and_no_more() {
        let spent = Duration::from_millis(3);
        assert_eq!(period(spent), Duration::from_millis(18));
        assert_eq!(period(Duration::ZERO), Duration::ZERO);

        let background = Arc::new(Background::default());
        let _computing = ComputingGuard::new(&background);
        // Several at once have one share together.
        let begun = Instant::now();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| background.work(|| spent));
            }
        });
        assert!(begun.elapsed() >= 3 * period(spent));
    }

    #[test]
    fn nobody_rests_where_no_pass_computes() {
        let background = Arc::new(Background::default());
        let long = Duration::from_secs(3600);
        background.work(|| long);
        let computing = ComputingGuard::new(&background);
        let waiting = WaitingGuard::new(&background);
        background.work(|| long);
        drop(waiting);
        assert!(background.is_computing());
        // A pass that ends wakes whoever rests.
        thread::scope(|scope| {
            let resting = scope.spawn(|| background.work(|| long));
            drop(computing);
            resting.join().unwrap();
        });
        assert!(!background.is_computing());
    }
}
