//! What reading a document may take, whatever its file says.

use std::time::Duration;

/// Bytes of a file.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
/// Memory of the process that reads it, beside the program itself.
pub const MEMORY_BYTES_MAX: u64 = 512 << 20;
/// CPU time of that process.
pub const CPU_SECONDS_MAX: u64 = 30;
/// Time that reading a document may take for all its pages, unless the caller waits less.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
/// Bytes of one page's text.
pub const PAGE_BYTES_MAX: usize = 4 << 20;
/// Bytes of all pages' text.
pub const TEXT_BYTES_MAX: usize = 64 << 20;
