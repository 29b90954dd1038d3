//! Writes a calibration input by input, under a temporary name until it is whole.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FlockOperation, OFlags, RenameFlags, flock, renameat_with, statvfs},
    io::Errno,
};
use sluice_optimize::moments::Moments;
use sluice_weights::MatrixInput;

use super::{
    CalibrationError, CalibrationOrigin, InputRows, PositionKind,
    layout::{FileLayout, Part, tensor_name},
};

/// The unfinished file for `target`.
fn partial_of(target: &Path) -> PathBuf {
    let mut path = target.as_os_str().to_owned();
    path.push(".partial");
    path.into()
}

/// Removes what a writer that was killed left for `target`. A file that is being written stays.
pub fn remove_abandoned(target: &Path) {
    let partial = partial_of(target);
    // What can't be opened or removed only takes space, and the next writer says so.
    if let Ok(file) = File::open(&partial)
        && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
    {
        drop(fs::remove_file(partial));
    }
}

/// A calibration that is being written. Dropped before it is finished, it leaves nothing.
#[derive(Debug)]
pub struct CalibrationWriter {
    target: PathBuf,
    partial: PathBuf,
    file: File,
    origin: CalibrationOrigin,
    layout: FileLayout,
    may_replace: bool,
    is_finished: bool,
}

impl CalibrationWriter {
    /// Begins a file with these inputs. A file of that name is refused, unless it may be replaced.
    ///
    /// # Errors
    /// When the file is there, the disk has too little space, or a file operation fails.
    pub fn create(
        target: &Path,
        origin: CalibrationOrigin,
        inputs: &[InputRows],
        may_replace: bool,
    ) -> Result<Self, CalibrationError> {
        if !may_replace && target.symlink_metadata().is_ok() {
            return Err(exists(target));
        }
        let layout = FileLayout::new(&origin, inputs);
        let folder = folder_of(target);
        fs::create_dir_all(folder).map_err(CalibrationError::io("create", folder))?;
        check_free_space(target, layout.bytes)?;
        let partial = partial_of(target);
        let file = create(&partial).map_err(CalibrationError::io("create", &partial))?;
        let writer = Self {
            target: target.to_owned(),
            partial,
            file,
            origin,
            layout,
            may_replace,
            is_finished: false,
        };
        // First to nothing: what a killed writer left must not be read as zeros that nobody wrote.
        let cut = writer.file.set_len(0);
        let sized = cut.and_then(|()| writer.file.set_len(writer.layout.bytes));
        sized.map_err(writer.failed())?;
        Ok(writer)
    }

    /// Writes the statistics of an input.
    ///
    /// # Errors
    /// When they can't be written.
    ///
    /// # Panics
    /// When the file was not made for them.
    pub fn put(
        &self,
        input: MatrixInput,
        kind: PositionKind,
        moments: &mut Moments,
    ) -> Result<(), CalibrationError> {
        let width = self.origin.model.width(input);
        assert_eq!(moments.width(), width, "a width for each input");
        let offset = |part| self.layout.offsets[&tensor_name(input, kind, part)];
        let write = |bytes: &[u8], offset| {
            let written = self.file.write_all_at(bytes, offset);
            written.map_err(self.failed())
        };
        let doubles = |numbers: &[f64]| -> Vec<u8> {
            let each = numbers.iter().flat_map(|number| number.to_le_bytes());
            each.collect()
        };
        write(&moments.rows().to_le_bytes(), offset(Part::Positions))?;
        write(&doubles(moments.sums()), offset(Part::Sums))?;
        write(&doubles(moments.squares()), offset(Part::Squares))?;
        if self.origin.is_full {
            let mut at = offset(Part::Products);
            let mut values = vec![0.0; width];
            for row in 0..width {
                let values = &mut values[..=row];
                moments.copy_products_row(row, values);
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                write(&bytes, at)?;
                at += bytes.len() as u64;
            }
        }
        Ok(())
    }

    /// Writes the header, syncs the file and gives it its name. Returns its bytes.
    ///
    /// # Errors
    /// When a file operation fails, or a file took the name meanwhile.
    pub fn finish(mut self, is_lossless: bool) -> Result<u64, CalibrationError> {
        self.origin.is_lossless = is_lossless;
        let written = self
            .file
            .write_all_at(&self.layout.header(&self.origin), 0)
            // A full disk may show only now, and a name must not reach the disk before the bytes.
            .and_then(|()| self.file.sync_all());
        written.map_err(self.failed())?;
        self.rename().map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => exists(&self.target),
            _ => CalibrationError::io("create", &self.target)(error),
        })?;
        self.is_finished = true;
        let folder = folder_of(&self.target);
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(CalibrationError::io("sync", folder))?;
        Ok(self.layout.bytes)
    }

    fn rename(&self) -> io::Result<()> {
        let (from, to) = (&self.partial, &self.target);
        if self.may_replace {
            return fs::rename(from, to);
        }
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // Such file systems leave no better way than a check before the rename.
            Err(Errno::INVAL | Errno::NOSYS) => match to.symlink_metadata() {
                Ok(_) => Err(Errno::EXIST.into()),
                Err(_) => fs::rename(from, to),
            },
            done => Ok(done?),
        }
    }

    fn failed(&self) -> impl Fn(io::Error) -> CalibrationError {
        CalibrationError::io("write", &self.partial)
    }
}

impl Drop for CalibrationWriter {
    fn drop(&mut self) {
        if !self.is_finished {
            // It only takes space, and the next writer begins anew.
            drop(fs::remove_file(&self.partial));
        }
    }
}

/// Opens a file of its own for writing and locks it.
fn create(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        // A link may be somebody's way to have its target overwritten, and opening a pipe would block.
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(io::Error::other("another process writes it")),
        locked => Ok(locked.map(|()| file)?),
    }
}

fn exists(path: &Path) -> CalibrationError {
    CalibrationError::Exists {
        path: path.to_owned(),
    }
}

/// The folder of a file, whose path may be a name alone.
pub(super) fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    folder.unwrap_or(Path::new("."))
}

fn check_free_space(target: &Path, needed_bytes: u64) -> Result<(), CalibrationError> {
    // If the folder can't be examined, the error appears when it is written to.
    let Ok(free) = statvfs(folder_of(target)) else {
        return Ok(());
    };
    let free_bytes = free.f_bavail.saturating_mul(free.f_frsize);
    match free_bytes < needed_bytes {
        true => Err(CalibrationError::NoSpace {
            path: target.to_owned(),
            needed_bytes,
            free_bytes,
        }),
        false => Ok(()),
    }
}
