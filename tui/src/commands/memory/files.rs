//! Which files a command line means: those that it names, and those of folders that are text.

use std::{
    collections::BTreeSet,
    fs::{self, File, Metadata},
    io::{self, Read},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use ignore::{IncrementalIgnore, WalkBuilder};
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
    takes_ignored: bool,
    names: BTreeSet<String>,
    hidden: usize,
    ignored: usize,
    links: usize,
    binary: usize,
    other: usize,
    unreadable: Vec<String>,
    /// Lines of ignore files that say nothing.
    broken_rules: Vec<String>,
}

impl FoundFiles {
    /// None yet. `takes_ignored`: folders give what ignore files leave out, too.
    pub(super) fn new(takes_ignored: bool) -> Self {
        Self {
            takes_ignored,
            ..Self::default()
        }
    }

    /// Takes a file, or the files of a folder, that somebody named: hidden or ignored or not, and by a link or not.
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
        let mut rules = match self.takes_ignored {
            true => None,
            false => rules(&folder),
        };
        let mut left = vec![folder];
        while let Some(path) = left.pop() {
            let taken = self.visit(&path, &mut left, rules.as_mut());
            if let Err(error) = taken {
                self.unreadable.push(format!("{}: {error}", path.display()));
            }
        }
    }

    fn visit(
        &mut self,
        path: &Path,
        left: &mut Vec<PathBuf>,
        rules: Option<&mut IncrementalIgnore>,
    ) -> io::Result<()> {
        let facts = fs::symlink_metadata(path)?;
        if rules.is_some_and(|rules| self.is_ignored(path, &facts, rules)) {
            self.ignored += 1;
            return Ok(());
        }
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

    fn is_ignored(&mut self, path: &Path, facts: &Metadata, rules: &mut IncrementalIgnore) -> bool {
        let below = path.strip_prefix(rules.root()).unwrap_or(path);
        let (matched, problems) = rules.matched_with_errors(below, facts.is_dir());
        if let Some(problems) = problems {
            let lines = problems.to_string();
            let lines = lines.lines().take(NOTICES_MAX).map(str::to_owned);
            self.broken_rules.extend(lines);
        }
        matched.is_ignore()
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
            (self.ignored, "ignored"),
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
        let broken = self.broken_rules.iter().take(NOTICES_MAX);
        let broken = broken.map(|problem| format!("note: {problem}"));
        counts.into_iter().chain(unreadable).chain(broken).collect()
    }
}

/// What ignore files say of a folder: its own, and those of folders above and below it. They are asked about one entry after another,
/// since the library's own walk doesn't tell what it leaves out.
fn rules(folder: &Path) -> Option<IncrementalIgnore> {
    let mut rules = WalkBuilder::new(folder);
    // A `.gitignore` counts in a Git repository or not.
    rules.require_git(false).build_matchers().pop()
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

        let mut found = FoundFiles::new(false);
        found.add(&at("notes")).unwrap();
        // The same file a second time, by a link; and a file that is hidden and named.
        found.add(&at("link.md")).unwrap();
        found.add(&at(".named")).unwrap();
        let taken = ["notes/a.pdf", "notes/b.md", "notes/deep/c.rs", ".named"];
        assert_eq!(names(&found, folder.path()), taken);
        assert_eq!(
            found.notes(),
            ["note: left out: 2 hidden, 1 symbolic links, 1 binary"]
        );
        assert_eq!(found.sources[1].bytes, 4);
        assert!(found.sources[1].header.modified_unix_s.is_some());
        assert!(found.add(&at("nowhere")).is_err());
    }

    /// The names of what is found in this folder, below it.
    fn names(found: &FoundFiles, folder: &Path) -> Vec<String> {
        let root = folder.canonicalize().unwrap();
        let names = found.sources.iter().map(|source| &source.header.name);
        let below = names.map(|name| Path::new(name).strip_prefix(&root).unwrap());
        below
            .map(|name| name.to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn what_ignore_files_name_is_left_out_unless_it_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (name, content) in [
            (".git/info/exclude", "/mine.txt\n"),
            (".gitignore", "target/\n*.log\n!kept.log\n[z-a]\n"),
            ("crate/.gitignore", "/made.rs\n"),
            ("crate/.ignore", "large.md\n!wanted.log\n"),
            ("crate/deep/.gitignore", "mine.md\n"),
            ("crate/deep/made.rs", "not the one"),
            ("crate/deep/mine.md", "left out below"),
            ("crate/large.md", "x"),
            ("crate/made.rs", "x"),
            ("crate/mine.md", "x"),
            ("crate/target/a/b.rs", "x"),
            ("crate/wanted.log", "x"),
            ("kept.log", "x"),
            ("mine.txt", "x"),
            ("other.log", "x"),
            ("target", "a file, and the rule is for folders"),
        ] {
            let path = at(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let mut found = FoundFiles::new(false);
        found.add(folder.path()).unwrap();
        let kept = [
            "crate/deep/made.rs",
            "crate/mine.md",
            "crate/wanted.log",
            "kept.log",
            "target",
        ];
        assert_eq!(names(&found, folder.path()), kept);
        let notes = found.notes();
        assert_eq!(notes[0], "note: left out: 5 hidden, 6 ignored");
        assert!(notes[1].contains(".gitignore: line 4: "), "{notes:?}");
        assert_eq!(notes.len(), 2);

        // Rules above a folder count; one that is named is taken, and so is a file.
        let mut found = FoundFiles::new(false);
        found.add(&at("crate/deep")).unwrap();
        found.add(&at("crate/target")).unwrap();
        found.add(&at("other.log")).unwrap();
        let named = ["crate/deep/made.rs", "crate/target/a/b.rs", "other.log"];
        assert_eq!(names(&found, folder.path()), named);

        let mut found = FoundFiles::new(true);
        found.add(folder.path()).unwrap();
        assert_eq!(found.sources.len(), 11);
        assert_eq!(found.notes(), ["note: left out: 5 hidden"]);
    }
}
