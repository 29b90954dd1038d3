//! Which files a command line means: those that it names, and those of folders that are text.

use std::{
    collections::BTreeSet,
    fs::{self, File, Metadata},
    io::{self, Read},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use sluice_proto::v1::{MemorySourceKind, SourceHeader};

use super::import::{Content, Source};
use crate::output::Failure;

/// Bytes of a file's beginning that tell whether it is text.
const BEGINNING_BYTES: u64 = 8 << 10;
/// Most notices about single files.
const NOTICES_MAX: usize = 10;

/// Files to remember, and what was left out.
#[derive(Debug, Default)]
pub(super) struct FoundFiles {
    pub(super) sources: Vec<Source>,
    names: BTreeSet<String>,
    hidden: usize,
    links: usize,
    binary: usize,
    other: usize,
    unreadable: Vec<String>,
}

impl FoundFiles {
    /// Takes a file, or the files of a folder, that somebody named: hidden or not, and by a link or not.
    ///
    /// # Errors
    /// When it isn't there or can't be read.
    pub(super) fn add(&mut self, path: &Path) -> Result<(), Failure> {
        let failed =
            |error: io::Error| Failure::new(format!("cannot read {}: {error}", path.display()));
        // Whichever way it was named, it has one name.
        let path = path.canonicalize().map_err(failed)?;
        let facts = fs::metadata(&path).map_err(failed)?;
        match facts.is_dir() {
            true => {
                // One that can't be read at all is no folder with nothing in it.
                fs::read_dir(&path).map_err(failed)?;
                self.walk(path);
                Ok(())
            }
            false => self.take(&path, &facts).map_err(failed),
        }
    }

    /// Takes the files of a folder and of those below it, in the order of their names.
    fn walk(&mut self, folder: PathBuf) {
        let mut left = vec![folder];
        while let Some(path) = left.pop() {
            let taken = self.visit(&path, &mut left);
            if let Err(error) = taken {
                self.unreadable.push(format!("{}: {error}", path.display()));
            }
        }
    }

    fn visit(&mut self, path: &Path, left: &mut Vec<PathBuf>) -> io::Result<()> {
        let facts = fs::symlink_metadata(path)?;
        if !facts.is_dir() {
            return self.take(path, &facts);
        }
        let entries = fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path()));
        let mut entries = entries.collect::<io::Result<Vec<_>>>()?;
        entries.sort();
        for entry in entries.into_iter().rev() {
            let name = entry.file_name().unwrap_or_default();
            match name.as_encoded_bytes().starts_with(b".") {
                true => self.hidden += 1,
                false => left.push(entry),
            }
        }
        Ok(())
    }

    fn take(&mut self, path: &Path, facts: &Metadata) -> io::Result<()> {
        if facts.is_symlink() {
            self.links += 1;
            return Ok(());
        }
        let Some(name) = path.to_str().filter(|_| facts.is_file()) else {
            self.other += 1;
            return Ok(());
        };
        if is_binary(path)? {
            self.binary += 1;
            return Ok(());
        }
        if !self.names.insert(name.to_owned()) {
            return Ok(());
        }
        let modified = facts.modified().ok();
        let modified = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        self.sources.push(Source {
            header: SourceHeader {
                kind: MemorySourceKind::File.into(),
                name: name.to_owned(),
                modified_unix_s: modified.and_then(|since| i64::try_from(since.as_secs()).ok()),
            },
            bytes: facts.len(),
            content: Content::File(path.to_owned()),
        });
        Ok(())
    }

    /// What was left out, for the user.
    pub(super) fn notes(&self) -> Vec<String> {
        let counts = [
            (self.hidden, "hidden"),
            (self.links, "symbolic links"),
            (self.binary, "binary"),
            (self.other, "no files or with names that are not UTF-8"),
            (self.unreadable.len(), "unreadable"),
        ];
        let counts = counts.iter().filter(|(count, _)| *count > 0);
        let counts: Vec<_> = counts
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        let counts = (!counts.is_empty()).then(|| format!("note: left out: {}", counts.join(", ")));
        let unreadable = self.unreadable.iter().take(NOTICES_MAX);
        let unreadable = unreadable.map(|problem| format!("note: cannot read {problem}"));
        counts.into_iter().chain(unreadable).collect()
    }
}

/// Whether a file is no text; a PDF, which the daemon can read, is none in this sense.
fn is_binary(path: &Path) -> io::Result<bool> {
    let mut beginning = Vec::new();
    File::open(path)?
        .take(BEGINNING_BYTES)
        .read_to_end(&mut beginning)?;
    let is_pdf = (path.extension()).is_some_and(|ending| ending.eq_ignore_ascii_case("pdf"));
    Ok(!is_pdf && beginning.contains(&0))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn folders_are_walked_and_what_is_no_text_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("notes/deep")).unwrap();
        fs::create_dir(at("notes/.git")).unwrap();
        for (name, bytes) in [
            ("notes/b.md", &b"pool"[..]),
            ("notes/a.pdf", b"%PDF\0"),
            ("notes/deep/c.rs", b"fn main() {}"),
            ("notes/deep/.hidden", b"x"),
            ("notes/.git/config", b"x"),
            ("notes/picture.png", b"\x89PNG\0"),
            (".named", b"hidden, but named"),
        ] {
            fs::write(at(name), bytes).unwrap();
        }
        symlink(at("notes"), at("notes/deep/round")).unwrap();
        symlink(at("notes/b.md"), at("link.md")).unwrap();

        let mut found = FoundFiles::default();
        found.add(&at("notes")).unwrap();
        // The same file a second time, by a link; and a file that is hidden and named.
        found.add(&at("link.md")).unwrap();
        found.add(&at(".named")).unwrap();
        let root = folder.path().canonicalize().unwrap();
        let names: Vec<_> = (found.sources.iter())
            .map(|source| Path::new(&source.header.name).strip_prefix(&root).unwrap())
            .map(|name| name.to_str().unwrap())
            .collect();
        assert_eq!(
            names,
            ["notes/a.pdf", "notes/b.md", "notes/deep/c.rs", ".named"]
        );
        assert_eq!(
            found.notes(),
            ["note: left out: 2 hidden, 1 symbolic links, 1 binary"]
        );
        assert_eq!(found.sources[1].bytes, 4);
        assert!(found.sources[1].header.modified_unix_s.is_some());
        assert!(found.add(&at("nowhere")).is_err());
    }
}
