//! The bounds: memory by an allocator that refuses, time by a thread that watches. Either ends the program.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    fs,
    io::Write,
    process,
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// Most memory that a file may take.
const MEMORY_BYTES_MAX: usize = 1 << 30;
/// Most time of a processor that a file may take. Other programs may keep it from running meanwhile.
const CPU_TIME_MAX: Duration = Duration::from_secs(10);
/// Longest that it may take, busy or not.
const WAIT_MAX: Duration = Duration::from_mins(5);
/// The kernel's unit in `/proc/self/stat`, on all of Linux's architectures of today.
const TICK: Duration = Duration::from_millis(10);

/// Counts, and refuses beyond the bound: whoever can't do without ends the program.
struct BoundedAllocator;

#[global_allocator]
static ALLOCATOR: BoundedAllocator = BoundedAllocator;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static NUMBER: AtomicU64 = AtomicU64::new(0);
static BEGUN: Mutex<Option<Instant>> = Mutex::new(None);

// SAFETY: the system's allocator does the work; layouts and pointers go to it as they come.
unsafe impl GlobalAlloc for BoundedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(held, Relaxed);
        if held > MEMORY_BYTES_MAX {
            HELD.fetch_sub(layout.size(), Relaxed);
            let number = NUMBER.load(Relaxed);
            // Numbers are formatted without memory, and standard error has no buffer.
            let _ = writeln!(std::io::stderr(), "change {number} takes {held} bytes");
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller says.
        unsafe { System.dealloc(start, layout) }
    }
}

/// Watches the files of one kind, and keeps what the worst took.
pub(crate) struct Watch {
    kind: String,
    slowest: Mutex<(Duration, u64)>,
}

impl Watch {
    pub(crate) fn start(kind: &str) -> Self {
        static WATCHING: std::sync::Once = std::sync::Once::new();
        WATCHING.call_once(|| {
            let watch = || {
                let (mut watched, mut cpu_before) = (None, Duration::ZERO);
                loop {
                    thread::sleep(Duration::from_millis(500));
                    let begun = *BEGUN.lock().unwrap();
                    if watched != begun {
                        (watched, cpu_before) = (begun, cpu_time());
                    }
                    let is_stuck = begun.is_some_and(|begun| begun.elapsed() > WAIT_MAX);
                    if begun.is_some() && (is_stuck || cpu_time() - cpu_before > CPU_TIME_MAX) {
                        let number = NUMBER.load(Relaxed);
                        let _ = writeln!(std::io::stderr(), "change {number} takes too long");
                        process::abort();
                    }
                }
            };
            let thread = thread::Builder::new().name("watch".to_owned());
            drop(thread.spawn(watch).unwrap());
        });
        PEAK.store(HELD.load(Relaxed), Relaxed);
        Self {
            kind: kind.to_owned(),
            slowest: Mutex::default(),
        }
    }

    /// The next file begins.
    pub(crate) fn next(&self, number: u64) {
        self.note();
        NUMBER.store(number, Relaxed);
        *BEGUN.lock().unwrap() = Some(Instant::now());
    }

    fn note(&self) {
        if let Some(begun) = BEGUN.lock().unwrap().take() {
            let mut slowest = self.slowest.lock().unwrap();
            *slowest = (*slowest).max((begun.elapsed(), NUMBER.load(Relaxed)));
        }
    }

    /// What the worst of them took, in words.
    pub(crate) fn end(&self) -> String {
        self.note();
        let (time, number) = *self.slowest.lock().unwrap();
        let mib = PEAK.load(Relaxed) >> 20;
        let kind = &self.kind;
        format!("the slowest of {kind}, {number}, took {time:?}, the largest {mib} MiB")
    }
}

/// What all threads have taken so far.
fn cpu_time() -> Duration {
    let text = fs::read_to_string("/proc/self/stat").unwrap();
    // After the program's name, which may hold anything: user and system time are fields 14 and 15 of all.
    let (_, rest) = text.rsplit_once(')').unwrap();
    let ticks = rest.split_whitespace().skip(11).take(2);
    TICK * ticks
        .map(|ticks| ticks.parse::<u32>().unwrap())
        .sum::<u32>()
}
