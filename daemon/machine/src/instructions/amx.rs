//! Whether AMX works. CPUID alone does not tell: the system has to keep the tiles, and to permit them to the process, and a
//! virtual machine's or a sandbox's may do neither. So the kernel itself is tried, in a process of its own: an instruction that
//! isn't there ends that process, and this one learns of it.

use std::{arch::x86_64::__cpuid_count, mem, sync::OnceLock};

use crate::tiles::{Amx, COLUMNS, Line, Lines, ROWS, Shapes, Sums, Tiles, WORDS, gemm_panels};

/// What CPUID's leaf 7 says in `edx` of products of bf16, and of tiles.
const CPUID_BITS: u32 = 1 << 22 | 1 << 24;
/// The states of the tiles' shapes and of their elements, among those that the system keeps.
const KEPT_STATES: u64 = 1 << 17 | 1 << 18;
/// Asks Linux (5.16 or newer) for permission to use a state, here that of the tiles' elements.
const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
const TILE_DATA: libc::c_long = 18;

/// Rows of each panel in the trial's products, and pairs of the depth: neither fills its last tile.
const ROWS_TRIED: usize = ROWS - 3;
const PAIRS_TRIED: usize = 2 * WORDS + 5;
const STEPS_TRIED: usize = PAIRS_TRIED.div_ceil(WORDS);
/// How often the trial multiplies.
const TIMES_TRIED: usize = 4;

/// What was found, once.
pub(super) fn state() -> State {
    static STATE: OnceLock<State> = OnceLock::new();
    *STATE.get_or_init(|| {
        if !is_named() {
            return State::Missing;
        }
        if !is_kept() {
            return State::Barred("the system doesn't keep its registers");
        }
        if !Apart::begin(has_right_products_while_switched).succeeds() {
            return State::Barred("its products were wrong, or ended the process that tried them");
        }
        // For all threads of this process, those that run already, too: Linux keeps the permission with the process, and asks
        // it there when a thread first uses a tile.
        match is_permitted() {
            true => State::Works,
            false => State::Barred("the system doesn't permit it to this process"),
        }
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The processor has no AMX.
    Missing,
    /// The processor has it, and it can't be used: why.
    Barred(&'static str),
    Works,
}

fn is_named() -> bool {
    __cpuid_count(7, 0).edx & CPUID_BITS == CPUID_BITS
}

fn is_kept() -> bool {
    #[target_feature(enable = "xsave")]
    fn kept() -> u64 {
        // SAFETY: register 0 is there wherever the instruction is.
        unsafe { std::arch::x86_64::_xgetbv(0) }
    }
    // SAFETY: detection says that the system has enabled the instruction.
    is_x86_feature_detected!("xsave") && unsafe { kept() } & KEPT_STATES == KEPT_STATES
}

fn is_permitted() -> bool {
    // SAFETY: it changes nothing but what the process may do. Refused, it fails.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

/// A process that tries something and ends; none if it could not be begun.
struct Apart(Option<libc::pid_t>);

impl Apart {
    /// Begins a trial, which may take no lock and no memory.
    fn begin(trial: fn() -> bool) -> Self {
        // SAFETY: other threads may hold locks that the child then lacks. It takes none: it computes, and ends at once.
        match unsafe { libc::fork() } {
            -1 => Self(None),
            // SAFETY: neither call takes a lock. A trial that fails leaves no core behind.
            0 => unsafe {
                libc::prctl(libc::PR_SET_DUMPABLE, 0_u64);
                libc::_exit(i32::from(!trial()))
            },
            child => Self(Some(child)),
        }
    }

    /// Whether the trial ends, and is true.
    fn succeeds(self) -> bool {
        let Some(child) = self.0 else {
            return false;
        };
        let mut status = 0;
        loop {
            // SAFETY: the child is this process's, and nobody else waits for it.
            let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
            if ended == child {
                return libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
            }
            let is_interrupted =
                std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted;
            if !is_interrupted {
                return false;
            }
        }
    }
}

/// Multiplies in two processes that give way to each other in the midst of each product, on the same CPU: some virtual machines
/// lose what is in tiles when threads are switched.
fn has_right_products_while_switched() -> bool {
    if !is_permitted() {
        return false;
    }
    stay_on_this_cpu();
    let other = Apart::begin(has_right_products::<Switched>);
    let own = has_right_products::<Switched>();
    other.succeeds() && own
}

/// Keeps this process, and those that it begins, on the CPU that it runs on.
fn stay_on_this_cpu() {
    // SAFETY: a set of CPUs may be all zeros, and is as large as it says. Refused, the process runs where it did.
    unsafe {
        let mut cpus: libc::cpu_set_t = mem::zeroed();
        if let Ok(cpu) = usize::try_from(libc::sched_getcpu()) {
            libc::CPU_SET(cpu, &mut cpus);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const cpus);
        }
    }
}

/// AMX's tiles, with other processes between one instruction and the next.
struct Switched;

impl Tiles for Switched {
    unsafe fn configure(shapes: &Shapes) {
        // SAFETY: as the caller says, as for all that follow.
        unsafe { Amx::configure(shapes) }
    }

    unsafe fn zero<const TILE: usize>() {
        // SAFETY: see above.
        unsafe { Amx::zero::<TILE>() }
    }

    unsafe fn load<const TILE: usize>(lines: &Lines) {
        // SAFETY: see above.
        unsafe { Amx::load::<TILE>(lines) }
    }

    unsafe fn add_products<const SUM: usize, const X: usize, const WEIGHT: usize>() {
        // SAFETY: see above; the call takes no lock.
        unsafe {
            libc::sched_yield();
            Amx::add_products::<SUM, X, WEIGHT>();
        }
    }

    unsafe fn store<const TILE: usize>(sums: &mut Sums, column: usize) {
        // SAFETY: see above.
        unsafe { Amx::store::<TILE>(sums, column) }
    }

    unsafe fn release() {
        // SAFETY: see above.
        unsafe { Amx::release() }
    }
}

/// Whether the kernel multiplies as it should, with one panel and with two.
fn has_right_products<T: Tiles>() -> bool {
    (0..TIMES_TRIED).all(|time| is_right::<T, 1>(time) && is_right::<T, 2>(time))
}

/// Multiplies small integers, whose sums are exact in any order, and compares.
fn is_right<T: Tiles, const PANELS: usize>(time: usize) -> bool {
    let number = |row: usize, k: usize| ((row * 31 + k * 7 + row * k + time) % 17) as i32 - 8;
    let x_at = |row: usize, k: usize| number(row, k);
    let weight_at = |column: usize, k: usize| number(column + 40, k);
    let mut x = [[[[0; size_of::<Line>()]; ROWS]; STEPS_TRIED]; PANELS];
    for (panel, steps) in x.iter_mut().enumerate() {
        for (row, pair) in pairs_of(ROWS_TRIED) {
            let line = &mut steps[pair / WORDS][row];
            let row = panel * ROWS_TRIED + row;
            line.as_chunks_mut().0[pair % WORDS] = word([0, 1].map(|k| x_at(row, 2 * pair + k)));
        }
    }
    let mut weights = [[[0; size_of::<Line>()]; PAIRS_TRIED]; 2];
    for (column, pair) in pairs_of(COLUMNS) {
        let line = &mut weights[column / WORDS][pair];
        line.as_chunks_mut().0[column % WORDS] =
            word([0, 1].map(|k| weight_at(column, 2 * pair + k)));
    }
    let mut sums = [[[f32::NAN; COLUMNS]; ROWS]; PANELS];
    // SAFETY: the caller's process may end here, and is made for it. The tiles are configured.
    unsafe {
        T::configure(&Shapes::new(ROWS_TRIED));
        gemm_panels::<T, PANELS>(
            x.each_ref().map(<[Lines; STEPS_TRIED]>::as_slice),
            weights.each_ref().map(<[Line; PAIRS_TRIED]>::as_slice),
            false,
            &mut sums,
        );
        T::release();
    }
    (0..PANELS * ROWS_TRIED).all(|row| {
        (0..COLUMNS).all(|column| {
            let products = (0..2 * PAIRS_TRIED).map(|k| x_at(row, k) * weight_at(column, k));
            sums[row / ROWS_TRIED][row % ROWS_TRIED][column] == products.sum::<i32>() as f32
        })
    })
}

/// Each pair of so many rows.
fn pairs_of(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).flat_map(|row| (0..PAIRS_TRIED).map(move |pair| (row, pair)))
}

/// Two small integers as bf16.
fn word(pair: [i32; 2]) -> [u8; 4] {
    let [[_, _, a, b], [_, _, c, d]] = pair.map(|number| (number as f32).to_le_bytes());
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiles::Model;

    /// Wherever tiles are missing, their first instruction ends the process that tries it.
    #[test]
    fn a_trial_that_is_killed_is_a_no() {
        assert!(Apart::begin(|| true).succeeds());
        assert!(!Apart::begin(|| false).succeeds());
        if !is_named() {
            assert!(!Apart::begin(has_right_products::<Amx>).succeeds());
            assert!(!Apart::begin(has_right_products_while_switched).succeeds());
            assert!(state() == State::Missing);
        }
    }

    #[test]
    fn the_trial_takes_right_products_alone() {
        assert!(has_right_products::<Model>());
        assert!(!has_right_products::<Forgetful>());
    }

    /// Tiles that are lost between loads and products.
    struct Forgetful;

    impl Tiles for Forgetful {
        unsafe fn configure(shapes: &Shapes) {
            // SAFETY: the model works everywhere, as for all that follow.
            unsafe { Model::configure(shapes) }
        }

        unsafe fn zero<const TILE: usize>() {
            // SAFETY: see above.
            unsafe { Model::zero::<TILE>() }
        }

        unsafe fn load<const TILE: usize>(lines: &Lines) {
            // SAFETY: see above.
            unsafe { Model::load::<TILE>(lines) }
        }

        unsafe fn add_products<const SUM: usize, const X: usize, const WEIGHT: usize>() {
            // SAFETY: see above.
            unsafe {
                Model::add_products::<SUM, X, WEIGHT>();
                Model::zero::<0>();
            }
        }

        unsafe fn store<const TILE: usize>(sums: &mut Sums, column: usize) {
            // SAFETY: see above.
            unsafe { Model::store::<TILE>(sums, column) }
        }

        unsafe fn release() {
            // SAFETY: see above.
            unsafe { Model::release() }
        }
    }
}
