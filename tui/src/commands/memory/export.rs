//! `sluice memory export`: sources with their pieces as lines of JSON.

use std::{io::Write, path::Path};

use sluice_proto::v1::{
    ExportMemoryRequest, ExportMemoryResponse, MemoryPiece, MemorySource,
    export_memory_response::Part,
};
use sluice_shared::units;
use tonic::Streaming;

use super::super::whole_file::WholeFile;
use crate::{
    cli::MemoryExport,
    connection::DaemonConnection,
    json,
    output::{Failure, StandardOutput, dim},
};

/// Bytes that are gathered before they are written to standard output.
const BUFFER_BYTES: usize = 64 << 10;

/// Writes all sources to a file or standard output.
pub(super) async fn run(
    daemon: &DaemonConnection,
    arguments: &MemoryExport,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let request = ExportMemoryRequest {
        collection: arguments.collection.clone().unwrap_or_default(),
    };
    let answer = daemon.memory().export_memory(request).await;
    let parts = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let Some(path) = &arguments.output else {
        let mut buffer = String::new();
        let counts = write(daemon, parts, |text| {
            buffer.push_str(text);
            match buffer.len() < BUFFER_BYTES {
                true => Ok(()),
                false => out.raw(std::mem::take(&mut buffer).as_bytes()),
            }
        });
        counts.await?;
        return out.raw(buffer.as_bytes());
    };
    let failed = |path: &Path, error| Failure::new(format!("write {}: {error}", path.display()));
    let mut file = WholeFile::create_private(path).map_err(|error| failed(path, error))?;
    let counts = write(daemon, parts, |text| {
        let written = file.write_all(text.as_bytes());
        written.map_err(|error| failed(path, error))
    });
    let counts = counts.await?;
    file.finish().map_err(|error| failed(path, error))?;
    dim(&format!(
        "{}: {} sources in {} pieces",
        path.display(),
        units::count(counts.sources),
        units::count(counts.pieces)
    ));
    Ok(())
}

/// What was written.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    sources: u64,
    pieces: u64,
}

async fn write(
    daemon: &DaemonConnection,
    mut parts: Streaming<ExportMemoryResponse>,
    mut give: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<Counts, Failure> {
    let mut lines = Lines::default();
    while let Some(answer) = parts
        .message()
        .await
        .map_err(|status| daemon.failure(status))?
    {
        match answer.part {
            Some(Part::Source(source)) => give(&lines.source(&source))?,
            Some(Part::Piece(piece)) => give(&lines.piece(&piece))?,
            None => {}
        }
    }
    give(lines.end())?;
    Ok(lines.counts)
}

/// Makes a line of each source, piece by piece: a source may have more of them than fit in memory.
#[derive(Default)]
struct Lines {
    counts: Counts,
    /// Whether the present line has a piece.
    has_pieces: bool,
}

impl Lines {
    fn source(&mut self, source: &MemorySource) -> String {
        let end = self.end();
        self.counts.sources += 1;
        self.has_pieces = false;
        format!("{end}{{\"source\":{},\"pieces\":[", json::line(source))
    }

    fn piece(&mut self, piece: &MemoryPiece) -> String {
        let comma = if self.has_pieces { "," } else { "" };
        self.counts.pieces += 1;
        self.has_pieces = true;
        format!("{comma}{}", json::line(piece))
    }

    /// The end of the present line, if there is one.
    fn end(&self) -> &'static str {
        if self.counts.sources > 0 { "]}\n" } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn each_source_is_an_object_on_a_line() {
        let mut lines = Lines::default();
        let source = |id| MemorySource {
            source_id: id,
            ..Default::default()
        };
        let piece = |number| MemoryPiece {
            number,
            text: "a\nb".into(),
            ..Default::default()
        };
        let mut text = lines.source(&source(1));
        text += &lines.piece(&piece(0));
        text += &lines.piece(&piece(1));
        text += &lines.source(&source(2));
        text += lines.end();
        let read: Vec<Value> = (text.lines())
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(read.len(), 2);
        assert_eq!(read[0]["source"]["source_id"], 1);
        assert_eq!(read[0]["pieces"][1]["number"], 1);
        assert_eq!(read[1]["pieces"], Value::Array(Vec::new()));
        let pieces = 2;
        assert_eq!(lines.counts, Counts { sources: 2, pieces });
        assert_eq!(Lines::default().end(), "");
    }
}
