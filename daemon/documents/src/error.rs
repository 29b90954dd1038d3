//! Why a document has no text for us.

use std::fmt::Display;

use sluice_apart::WaitEnded;

use crate::limits::{
    CPU_SECONDS_MAX, FILE_BYTES_MAX, MEMORY_BYTES_MAX, PAGE_BYTES_MAX, TEXT_BYTES_MAX,
};

/// Why a document cannot be read. What is wrong with the file is told without a word of the file's own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// The file itself cannot be read.
    #[error("the file cannot be read: {cause}")]
    File {
        /// What the system said.
        cause: String,
    },
    /// It is too long.
    #[error("the file is larger than {} MiB", FILE_BYTES_MAX >> 20)]
    FileTooLarge,
    /// It does not begin as PDFs do.
    #[error("the file is no PDF")]
    NotPdf,
    /// Its pages cannot be found.
    #[error("the PDF is damaged")]
    Damaged,
    /// It asks for a password, or is encrypted in an unknown way.
    #[error("the PDF is encrypted")]
    Encrypted,
    /// No page has text.
    #[error(
        "the PDF has no text: its pages are pictures, as those of scans are, or its fonts do not tell their characters"
    )]
    NoText,
    /// There is more text than is taken.
    #[error(
        "the PDF has more than {} MiB of text, or a page with more than {} MiB",
        TEXT_BYTES_MAX >> 20,
        PAGE_BYTES_MAX >> 20
    )]
    TextTooLong,
    /// Memory.
    #[error(
        "reading the PDF takes more than {} MiB of memory, or it nests too deeply",
        MEMORY_BYTES_MAX >> 20
    )]
    Memory,
    /// CPU time.
    #[error("reading the PDF takes more than {CPU_SECONDS_MAX} s of CPU time")]
    Cpu,
    /// Time.
    #[error("the PDF was not read in time")]
    Wait,
    /// Nobody waits any more.
    #[error("the caller is gone")]
    Gone,
    /// The process failed in a way that nobody planned.
    #[error("the process that reads the PDF failed: {cause}")]
    Process {
        /// What is known of it.
        cause: String,
    },
}

impl DocumentError {
    /// Those that the process tells, each by its place here.
    pub(crate) const TOLD: [Self; 5] = [
        Self::NotPdf,
        Self::Damaged,
        Self::Encrypted,
        Self::NoText,
        Self::TextTooLong,
    ];

    pub(crate) fn process(cause: impl Display) -> Self {
        Self::Process {
            cause: cause.to_string(),
        }
    }
}

impl From<WaitEnded> for DocumentError {
    fn from(ended: WaitEnded) -> Self {
        match ended {
            WaitEnded::TimeUp => Self::Wait,
            WaitEnded::Gone => Self::Gone,
        }
    }
}
