//! Whether AMX works. CPUID alone does not tell: the system has to keep the tiles, and to permit them to the process, and a
//! virtual machine's or a sandbox's may do neither. So a product is tried, in a process of its own: an instruction that isn't
//! there ends that process, and this one learns of it.

use std::{
    arch::{asm, x86_64::__cpuid_count},
    ptr,
};

/// What CPUID's leaf 7 says in `edx` of products of bf16, of tiles and of products of bytes.
const CPUID_BITS: u32 = 1 << 22 | 1 << 24 | 1 << 25;
/// The states of the tiles' shapes and of their elements, among those that the system keeps.
const KEPT_STATES: u64 = 1 << 17 | 1 << 18;
/// Asks Linux (5.16 or newer) for permission to use a state, here that of the tiles' elements.
const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
const TILE_DATA: libc::c_long = 18;

/// Rows of a tile, and bytes of each.
const ROWS: usize = 16;
const ROW_BYTES: usize = 64;
/// Bytes that a lane multiplies and adds together.
const BYTES: usize = 4;

pub(super) fn works() -> bool {
    // Permission is asked for in the trial's process alone: the daemon has no kernels yet that need it.
    is_named() && is_kept() && runs_apart(|| is_permitted() && has_right_product())
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

/// Whether `trial` ends in a process of its own, and is true.
fn runs_apart(trial: fn() -> bool) -> bool {
    // SAFETY: other threads may hold locks that the child then lacks. It takes none: it computes, and ends at once.
    match unsafe { libc::fork() } {
        -1 => false,
        0 => {
            // SAFETY: neither call takes a lock. A trial that fails leaves no core behind.
            unsafe {
                libc::prctl(libc::PR_SET_DUMPABLE, 0_u64);
                libc::_exit(i32::from(!trial()))
            }
        }
        child => {
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
}

/// Shapes of tiles, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Multiplies two whole tiles of bytes, and compares with what it should be.
fn has_right_product() -> bool {
    let mut shapes = Shapes {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    };
    shapes.row_bytes[..3].fill(ROW_BYTES as u16);
    shapes.rows[..3].fill(ROWS as u8);
    let numbers = |step: usize| -> [[i8; ROW_BYTES]; ROWS] {
        std::array::from_fn(|row| {
            std::array::from_fn(|at| ((row * 31 + at * step) % 256) as u8 as i8)
        })
    };
    let (a, b) = (numbers(7), numbers(13));
    let mut found = [[0_i32; ROWS]; ROWS];
    // SAFETY: the caller's process may end here, and is made for it. The tiles are as large as the matrices.
    unsafe {
        asm!(
            "ldtilecfg [{shapes}]",
            "tilezero tmm0",
            "tileloadd tmm1, [{a} + {stride}*1]",
            "tileloadd tmm2, [{b} + {stride}*1]",
            "tdpbssd tmm0, tmm1, tmm2",
            "tilestored [{found} + {stride}*1], tmm0",
            "tilerelease",
            shapes = in(reg) ptr::from_ref(&shapes),
            a = in(reg) a.as_ptr(),
            b = in(reg) b.as_ptr(),
            found = in(reg) found.as_mut_ptr(),
            stride = in(reg) ROW_BYTES,
            out("tmm0") _,
            out("tmm1") _,
            out("tmm2") _,
            options(nostack),
        );
    }
    let expected = |row: usize, column: usize| -> i32 {
        // Words of `b` lie as they are multiplied: each of its rows has four bytes of the depth for every column.
        let products = (0..ROW_BYTES).map(|k| {
            let b = b[k / BYTES][column * BYTES + k % BYTES];
            i32::from(a[row][k]) * i32::from(b)
        });
        products.sum()
    };
    (0..ROWS).all(|row| (0..ROWS).all(|column| found[row][column] == expected(row, column)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wherever tiles are missing, their first instruction ends the process that tries it.
    #[test]
    fn a_trial_that_is_killed_is_a_no() {
        assert!(runs_apart(|| true));
        assert!(!runs_apart(|| false));
        if !is_named() {
            assert!(!runs_apart(has_right_product) && !works());
        }
    }
}
