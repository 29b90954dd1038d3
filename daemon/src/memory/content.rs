//! The content of a source on its way into memory: a file without a name, which goes with the daemon.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use sha2::{Digest, Sha256};
#[cfg(feature = "documents")]
use sluice_documents::{DocumentError, Pages};
use sluice_retrieval::{Piece, Splitter, TextKind};
#[cfg(feature = "documents")]
use sluice_tokenizer::Patience;

use super::MemoryError;

/// Most bytes of a source.
pub const CONTENT_BYTES_MAX: u64 = 4 << 30;

/// Bytes by which text is told from other files.
const HEAD_BYTES: usize = 8 << 10;

/// Takes content in, as it comes.
#[derive(Debug)]
pub struct ContentWriter {
    name: String,
    folder: PathBuf,
    file: File,
    bytes: u64,
    digest: Sha256,
}

/// A source's whole content.
#[derive(Debug)]
pub struct Content {
    file: File,
    /// Its bytes.
    pub bytes: u64,
    /// Its SHA-256.
    pub digest: [u8; 32],
}

/// Why no piece of a source could be had.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It has a zero byte near its beginning.
    #[error("it is no text")]
    Binary,
    /// This daemon was built without the reader.
    #[cfg(not(feature = "documents"))]
    #[error("this sluiced was built without a reader of PDFs")]
    Pdf,
    /// The PDF has no text for us.
    #[cfg(feature = "documents")]
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The file with its content failed.
    #[error(transparent)]
    File(#[from] io::Error),
}

impl ContentWriter {
    /// Begins with the source of this name, beside the memory in this file.
    ///
    /// # Errors
    /// When no file can be made there.
    pub fn new(name: &str, memory: &Path) -> Result<Self, MemoryError> {
        let folder = memory.parent().unwrap_or(memory).to_owned();
        let made = crate::atomic_file::create_folder(&folder).and_then(|()| unnamed(memory));
        match made {
            Ok(file) => Ok(Self {
                name: name.to_owned(),
                folder,
                file,
                bytes: 0,
                digest: Sha256::new(),
            }),
            Err(error) => Err(MemoryError::Spool {
                name: name.to_owned(),
                folder,
                error,
            }),
        }
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// When the disk is full, or there are more than [`CONTENT_BYTES_MAX`].
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), MemoryError> {
        self.bytes += chunk.len() as u64;
        if self.bytes > CONTENT_BYTES_MAX {
            let name = self.name.clone();
            return Err(MemoryError::TooLarge { name });
        }
        self.digest.update(chunk);
        let written = self.file.write_all(chunk);
        written.map_err(|error| self.failed(error))
    }

    /// Ends with what has come.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn finish(mut self) -> Result<Content, MemoryError> {
        if let Err(error) = self.file.rewind() {
            return Err(self.failed(error));
        }
        Ok(Content {
            file: self.file,
            bytes: self.bytes,
            digest: self.digest.finalize().into(),
        })
    }

    fn failed(&self, error: io::Error) -> MemoryError {
        MemoryError::Spool {
            name: self.name.clone(),
            folder: self.folder.clone(),
            error,
        }
    }
}

impl Content {
    /// Cuts it into pieces, by the name of its source, and gives each to `take` until that fails. A PDF's are headed by their page;
    /// a process of its own reads it, until `gone`. `read` counts the bytes that were read of other files.
    ///
    /// # Errors
    /// When it has no text for us, the file cannot be read, or `take` fails.
    pub fn split(
        mut self,
        name: &str,
        gone: &Arc<AtomicBool>,
        read: &AtomicU64,
        mut take: impl FnMut(Piece) -> io::Result<()>,
    ) -> Result<(), Unreadable> {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        (&self.file)
            .take(HEAD_BYTES as u64)
            .read_to_end(&mut head)?;
        self.file.rewind()?;
        if head.starts_with(b"%PDF-") {
            self.split_pdf(gone, &mut take)?;
            read.fetch_add(self.bytes, Ordering::Relaxed);
            return Ok(());
        }
        if head.contains(&0) {
            return Err(Unreadable::Binary);
        }
        let counted = Counted {
            file: self.file,
            read,
        };
        Ok(Splitter::new(TextKind::of_name(name)).split(counted, take)?)
    }

    #[cfg(feature = "documents")]
    fn split_pdf(
        &self,
        gone: &Arc<AtomicBool>,
        take: &mut impl FnMut(Piece) -> io::Result<()>,
    ) -> Result<(), Unreadable> {
        let patience = Patience::new(sluice_documents::limits::WAIT_MAX, gone.clone());
        // The very program that runs, even if its file was replaced since.
        let program = Path::new("/proc/self/exe");
        // All of them first, 64 MiB at most: what is made of pieces may take longer than reading may.
        let pages = Pages::of_pdf(program, &self.file, &patience)?;
        let pages = pages.collect::<Result<Vec<_>, _>>()?;
        for page in pages {
            let heading = format!("page {}", page.number);
            Splitter::new(TextKind::Plain).split(page.text.as_bytes(), |piece| {
                let heading = heading.clone();
                take(Piece { heading, ..piece })
            })?;
        }
        Ok(())
    }

    #[cfg(not(feature = "documents"))]
    fn split_pdf(
        &self,
        _: &Arc<AtomicBool>,
        _: &mut impl FnMut(Piece) -> io::Result<()>,
    ) -> Result<(), Unreadable> {
        Err(Unreadable::Pdf)
    }
}

/// A file whose bytes are counted as they are read.
struct Counted<'a> {
    file: File,
    read: &'a AtomicU64,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// A file beside this one that has no name, so that nothing of it is left when it is closed, however the daemon ends.
fn unnamed(beside: &Path) -> io::Result<File> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let mut path = beside.as_os_str().to_owned();
    path.push(format!(".import-{}-{number}", std::process::id()));
    let path = PathBuf::from(path);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}
