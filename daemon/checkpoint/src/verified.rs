//! Comparing containers with their checksums before a model computes with them, once: files that were compared are
//! remembered by their stamps.

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::Path,
    sync::atomic::AtomicBool,
};

use sluice_codec::container::{Container, ContainerError};

use super::{Checkpoint, CheckpointError, container::refused, file::CheckpointFile};

/// Name of the file with the stamps, in the folder of converted weights.
const REMEMBERED: &str = "verified";
/// Stamps that are remembered, the latest first.
const REMEMBERED_MAX: usize = 256;
/// Bytes of that file.
const REMEMBERED_BYTES_MAX: u64 = 64 << 10;

impl Checkpoint {
    /// Compares the weights of a container with its checksums, unless that was done since the file changed last; other
    /// checkpoints have none. What was found intact is remembered in `folder`. `progress` is told how many bytes of how
    /// many were read. Returns false if `cancel` was set before all were.
    ///
    /// # Errors
    /// Names the tensor and the tile that are damaged.
    pub fn verify(
        &self,
        folder: Option<&Path>,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<bool, CheckpointError> {
        let (true, [file, ..]) = (self.is_container(), &self.files[..]) else {
            return Ok(true);
        };
        let stamp = file.stamp();
        if let (Some(folder), Some(stamp)) = (folder, &stamp)
            && remembered(folder).iter().any(|known| known == stamp)
        {
            return Ok(true);
        }
        let container = Container::read(file, file.path.clone());
        let container = container.map_err(|error| refused(file, error))?;
        let total = container.header().bytes;
        match container.compare(cancel, &mut |done| progress(done, total)) {
            Err(ContainerError::Cancelled) => return Ok(false),
            Err(error) => return Err(refused(file, error)),
            Ok(Some(damage)) => {
                return Err(CheckpointError::MalformedFile {
                    path: file.path.clone(),
                    cause: format!("it is damaged: {damage}"),
                });
            }
            Ok(None) => {}
        }
        // Not what was compared, if it changed meanwhile.
        if let (Some(folder), Some(stamp)) = (folder, stamp)
            && file.stamp().as_ref() == Some(&stamp)
        {
            remember(folder, stamp);
        }
        Ok(true)
    }
}

fn remembered(folder: &Path) -> Vec<String> {
    let mut text = String::new();
    // What cannot be read is compared again.
    let read = File::open(folder.join(REMEMBERED))
        .and_then(|file| file.take(REMEMBERED_BYTES_MAX).read_to_string(&mut text));
    match read {
        Ok(_) => text.lines().map(str::to_owned).collect(),
        Err(_) => Vec::new(),
    }
}

/// Adds a stamp. Where that fails, only time is lost.
fn remember(folder: &Path, stamp: String) {
    let mut stamps = remembered(folder);
    stamps.insert(0, stamp);
    stamps.truncate(REMEMBERED_MAX);
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(folder)?;
        let new = folder.join(format!(".{REMEMBERED}-{}", std::process::id()));
        let mut file = File::create(&new)?;
        file.write_all(stamps.join("\n").as_bytes())?;
        // Before the name: a stamp must not stand for a file that was never compared.
        file.sync_all()?;
        fs::rename(&new, folder.join(REMEMBERED))
    };
    let _ = write();
}

impl CheckpointFile {
    /// Device, inode, length, and when content and inode changed last; `None` for files in the program. Whoever changes a
    /// file's bytes can set back the time of its content, but not that of its inode.
    fn stamp(&self) -> Option<String> {
        use std::os::unix::fs::MetadataExt;
        let metadata = self.metadata()?.ok()?;
        Some(format!(
            "{:x}:{:x} {} {}.{} {}.{}",
            metadata.dev(),
            metadata.ino(),
            metadata.len(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ctime(),
            metadata.ctime_nsec()
        ))
    }
}
