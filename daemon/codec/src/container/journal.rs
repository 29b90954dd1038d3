//! The journal of an unfinished container: a line for each complete tensor, so that an interrupted run can resume. Each
//! line's hash covers all lines before it, so a torn line or lines of two runs are never taken for one journal.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Seek, SeekFrom, Write},
    path::Path,
};

use super::{
    hash::{Hash, Hasher},
    header::TensorRecord,
    own,
};

/// Longest line: a name, and the lengths of some 10,000 chunks.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// An open journal, positioned at its end.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    /// Hash of the last line, which the next line's hash includes.
    chain: Hash,
}

/// The tensors of a journal, and the offset and hash at the end of each line.
#[derive(Debug, Default)]
pub(super) struct JournalRecords {
    lines: Vec<(TensorRecord, u64, Hash)>,
    start: u64,
    start_chain: Hash,
}

impl JournalRecords {
    /// The tensors of all valid lines, in order.
    pub(super) fn records(&self) -> impl Iterator<Item = &TensorRecord> {
        self.lines.iter().map(|(record, ..)| record)
    }
}

impl Journal {
    /// Reads the journal at `path`; `None` if there is none, or it is of a run with another identity.
    pub(super) fn read(path: &Path, identity: &str) -> io::Result<Option<JournalRecords>> {
        let file = match own::open(path, OpenOptions::new().read(true)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut lines = Lines {
            reader: BufReader::new(file),
            at: 0,
            chain: Hash::default(),
        };
        let Some(first) = lines.next()? else {
            return Ok(None);
        };
        // The first line is the identity: source, files and options of the run.
        if first != serde_json::Value::from(identity).to_string().as_bytes() {
            return Ok(None);
        }
        let mut found = JournalRecords {
            lines: Vec::new(),
            start: lines.at,
            start_chain: lines.chain,
        };
        while let Some(line) = lines.next()? {
            // The hash was right, so an older or newer version wrote this line: what follows isn't used.
            let Ok(record) = serde_json::from_slice(&line) else {
                break;
            };
            found.lines.push((record, lines.at, lines.chain));
        }
        Ok(Some(found))
    }

    /// Begins a new journal.
    pub(super) fn begin(path: &Path, identity: &str) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        // Not `truncate(true)`: `own::open` first checks that the file is ours to empty.
        let file = own::open(path, options.write(true).create(true).truncate(false))?;
        file.set_len(0)?;
        let mut journal = Self {
            file,
            chain: Hash::default(),
        };
        journal.append_text(&serde_json::Value::from(identity).to_string())?;
        Ok(journal)
    }

    /// Resumes a journal after its first `count` tensors.
    pub(super) fn resume(path: &Path, found: &JournalRecords, count: usize) -> io::Result<Self> {
        let (end, chain) = match count.checked_sub(1) {
            None => (found.start, found.start_chain),
            Some(last) => (found.lines[last].1, found.lines[last].2),
        };
        let mut file = own::open(path, OpenOptions::new().write(true))?;
        file.set_len(end)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self { file, chain })
    }

    /// Records that a tensor is complete.
    pub(super) fn append(&mut self, record: &TensorRecord) -> io::Result<()> {
        self.append_text(&serde_json::to_string(record)?)
    }

    fn append_text(&mut self, text: &str) -> io::Result<()> {
        // Not synced: `ContainerWriter::resume` reads each tensor back, so a line that outlives its bytes does no harm.
        self.chain = chained(self.chain, text.as_bytes());
        self.file
            .write_all(format!("{} {text}\n", self.chain).as_bytes())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Iterator over lines up to the first whose hash doesn't match.
struct Lines {
    reader: BufReader<File>,
    at: u64,
    chain: Hash,
}

impl Lines {
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        // The journal is untrusted, too: without a limit, a file without line ends would be read into memory whole.
        let mut line = Vec::new();
        let mut reader = io::Read::take(&mut self.reader, LINE_BYTES_MAX);
        let length = reader.read_until(b'\n', &mut line)? as u64;
        // A line without its end was torn by a crash. A line begins with 16 hexadecimal digits and a space.
        if line.pop() != Some(b'\n') || line.get(16) != Some(&b' ') {
            return Ok(None);
        }
        let text = line.split_off(17);
        let chain = chained(self.chain, &text);
        if format!("{chain} ").as_bytes() != line {
            return Ok(None);
        }
        self.chain = chain;
        self.at += length;
        Ok(Some(text))
    }
}

fn chained(chain: Hash, text: &[u8]) -> Hash {
    let mut hasher = Hasher::default();
    hasher.update(&chain.0.to_le_bytes());
    hasher.update(text);
    hasher.finish()
}
