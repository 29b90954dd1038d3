//! Who is at the other end of a Unix socket, by the kernel.

use std::{io, os::fd::AsRawFd};

use tokio::net::UnixStream;

/// Groups of a process that count; Linux allows 65,536.
const GROUPS_MAX: usize = 1024;

/// All groups of the process that opened the connection, as they were then.
///
/// # Errors
/// When the process is in more groups than count, or the kernel is older than 4.13.
pub(super) fn groups(stream: &UnixStream) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; GROUPS_MAX];
    let mut bytes = (GROUPS_MAX * size_of::<u32>()) as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to `groups`, which has so many, and any bytes are a u32.
    let failed = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    groups.truncate(bytes as usize / size_of::<u32>());
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_tells_the_groups_of_the_other_end() {
        let (here, _there) = UnixStream::pair().unwrap();
        let mut expected: Vec<u32> = rustix::process::getgroups()
            .unwrap()
            .into_iter()
            .map(|group| group.as_raw())
            .collect();
        let mut found = groups(&here).unwrap();
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
    }
}
