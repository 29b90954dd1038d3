//! The program's allocator, told to give back. Weights and what computes with them are mappings of the engine's own; what is
//! left are tokenizers, headers, messages, the buffers of jobs, and the demonstration model in the program itself.

/// Size from which an allocation is a mapping of its own, which goes back to the system when freed. Unless it is set, glibc
/// raises it to the largest freed mapping, up to 32 MiB, and keeps all smaller memory.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_FROM_BYTES: libc::c_int = 1 << 20;
/// Most bytes that stay free at the end of an arena.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const FREE_BYTES_MAX: libc::c_int = 4 << 20;
/// Arenas, of which each keeps what is free in it: glibc's eight a core are for programs whose threads do little else than
/// allocate.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const ARENAS_MAX: libc::c_int = 2;

/// Pages are no larger; where they are, whole ones are let go of all the same.
#[cfg(target_os = "linux")]
const PAGE_BYTES: usize = 1 << 16;

/// Sets the allocator's bounds: before there are other threads, which take an arena each.
pub fn settle() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, value) in [
        (libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES),
        (libc::M_TRIM_THRESHOLD, FREE_BYTES_MAX),
        (libc::M_ARENA_MAX, ARENAS_MAX),
    ] {
        // SAFETY: it takes two numbers. Where it refuses one, memory comes back later, and nothing else is lost.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Returns free memory to the system, also between other allocations. Called after something large was freed: it takes some
/// milliseconds.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes a number, locks what it looks at, and only tells whether there was anything.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Drops resident pages of constant data in the program's own file. The next read maps them again.
pub fn forget(bytes: &'static [u8]) {
    #[cfg(target_os = "linux")]
    {
        let range = bytes.as_ptr_range();
        let first = range.start.addr().next_multiple_of(PAGE_BYTES);
        let end = range.end.addr() / PAGE_BYTES * PAGE_BYTES;
        if first < end {
            let start = range.start.with_addr(first).cast_mut().cast();
            // SAFETY: whole pages of constant bytes, which the program's file has as they are.
            unsafe { libc::madvise(start, end - first, libc::MADV_DONTNEED) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_let_go_of_is_read_again() {
        static BYTES: [u8; 5 * PAGE_BYTES] = [7; 5 * PAGE_BYTES];
        forget(&BYTES);
        forget(&BYTES[1..PAGE_BYTES]);
        forget(&[]);
        assert!(BYTES.iter().all(|byte| *byte == 7));
        give_back();
    }
}
