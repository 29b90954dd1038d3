//! What a process that was started apart may take.

use std::{
    ffi::CStr,
    fs, io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::net::UnixStream,
    },
};

use rustix::process::{Resource, Rlimit, setrlimit};

/// What the process may take. It writes no files, and leaves no core.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Memory beside the program itself.
    pub memory_bytes: u64,
    /// CPU time.
    pub cpu_seconds: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

/// What a process that was started apart does first: takes the bounds and the name, and gives the socket to the side that
/// asks, which is its standard input. The caller has one thread.
///
/// # Errors
/// When the system refuses a call.
pub fn begin(name: &CStr, bounds: &Bounds) -> io::Result<UnixStream> {
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    close_others(&control);
    // For lists of processes; without a name of its own nothing is worse.
    let _ = rustix::thread::set_name(name);
    for (resource, most) in [
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nofile, bounds.descriptors),
        (Resource::Cpu, bounds.cpu_seconds),
    ] {
        limit(resource, Some(most))?;
    }
    limit_memory(bounds.memory_bytes)?;
    Ok(control)
}

/// Closes what the program that started this one had open by oversight.
fn close_others(control: &UnixStream) {
    let first = control.as_raw_fd() + 1;
    // SAFETY: nothing in this process uses a descriptor above its newest. An old kernel refuses the call, which is harmless.
    unsafe {
        libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0);
    }
}

/// Limits a resource, or gives it back.
///
/// # Errors
/// When the system refuses it.
pub fn limit(resource: Resource, most: Option<u64>) -> io::Result<()> {
    // The hard limit stays: what is raised later was never a file's to raise.
    let maximum = rustix::process::getrlimit(resource).maximum;
    let current = match (most, maximum) {
        (Some(most), Some(maximum)) => Some(most.min(maximum)),
        (most, maximum) => most.or(maximum),
    };
    Ok(setrlimit(resource, Rlimit { current, maximum })?)
}

/// Limits the address space to what is in use and so many bytes more.
///
/// # Errors
/// When the system does not tell what is in use, or refuses the limit.
pub fn limit_memory(more: u64) -> io::Result<()> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages: Option<u64> = statm.split(' ').next().and_then(|pages| pages.parse().ok());
    let in_use = pages.ok_or(io::ErrorKind::InvalidData)? * rustix::param::page_size() as u64;
    limit(Resource::As, Some(in_use + more))
}
