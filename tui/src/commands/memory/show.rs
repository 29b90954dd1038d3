//! Collections, sources, pieces and what a search finds, as tables and texts.

use sluice_proto::v1::{
    ListCollectionsResponse, ListSourcesRequest, MemoryHit, MemoryRanking, MemorySource,
    MemorySourceKind, ReadSourceRequest, SearchMemoryRequest, SearchMemoryResponse,
};
use sluice_shared::units;

use crate::{
    cli::{MemorySearch, MemoryShow},
    connection::DaemonConnection,
    memory,
    output::{Failure, StandardOutput, dim},
    text::{clip, sanitise, sanitise_line},
};

/// Lists the collections.
pub(super) async fn collections(
    daemon: &DaemonConnection,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let all = super::collections(daemon).await?;
    if json {
        return out.json(&all);
    }
    if all.collections.is_empty() {
        return out.line("nothing is remembered");
    }
    out.line(&format!(
        "{:<24} {:>9} {:>11} {:>10}  READERS",
        "COLLECTION", "SOURCES", "PIECES", "SIZE"
    ))?;
    for one in &all.collections {
        out.line(&format!(
            "{:<24} {:>9} {:>11} {:>10}  {}",
            sanitise_line(&one.name),
            units::count(one.sources),
            units::count(one.pieces),
            units::bytes(one.bytes),
            one.reader(),
        ))?;
    }
    dim(&store(&all));
    Ok(())
}

/// What the store takes, and what makes its vectors.
fn store(all: &ListCollectionsResponse) -> String {
    let encoder = match all.encoder.as_str() {
        "" => "no sentence encoder: pieces are found by their words alone".to_owned(),
        name => format!(
            "{} pieces with vectors by {}, {} in memory",
            units::count(all.encoded_pieces),
            sanitise_line(name),
            units::bytes(all.index_bytes)
        ),
    };
    format!("{} on disk; {encoder}", units::bytes(all.file_bytes))
}

/// Lists the sources of a collection, page by page.
pub(super) async fn sources(
    daemon: &DaemonConnection,
    collection: &str,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let mut page_token = String::new();
    let mut is_first = true;
    loop {
        let request = ListSourcesRequest {
            collection: collection.to_owned(),
            page_size: 0,
            page_token,
        };
        let answer = daemon.memory().list_sources(request).await;
        let page = answer
            .map_err(|status| daemon.failure(status))?
            .into_inner();
        if json {
            out.json(&page)?;
        } else if is_first && page.sources.is_empty() {
            return out.line("no sources");
        } else {
            if is_first {
                out.line(&format!(
                    "{:>6}  {:<12} {:>8} {:>10}  {:<10}  NAME",
                    "ID", "KIND", "PIECES", "SIZE", "CHANGED"
                ))?;
            }
            for source in &page.sources {
                out.line(&row(source))?;
            }
        }
        is_first = false;
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(());
        }
    }
}

fn row(source: &MemorySource) -> String {
    format!(
        "{:>6}  {:<12} {:>8} {:>10}  {:<10}  {}",
        source.source_id,
        source.kind(),
        units::count(source.pieces),
        units::bytes(source.bytes),
        memory::day(source),
        sanitise_line(&source.name),
    )
}

/// Shows a source's pieces, page by page, or one of them.
pub(super) async fn pieces(
    daemon: &DaemonConnection,
    arguments: &MemoryShow,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let mut first_piece = arguments.piece.unwrap_or(0);
    let mut is_first = true;
    loop {
        let request = ReadSourceRequest {
            source_id: arguments.source_id,
            first_piece,
            page_size: arguments.piece.map_or(0, |_| 1),
        };
        let answer = daemon.memory().read_source(request).await;
        let page = answer
            .map_err(|status| daemon.failure(status))?
            .into_inner();
        let source = page.source.clone().unwrap_or_default();
        if let (Some(number), true) = (arguments.piece, page.pieces.is_empty()) {
            let count = units::count(source.pieces);
            return Err(Failure::new(format!(
                "source {} has no piece {number}; it has {count}, counted from 0",
                arguments.source_id
            )));
        }
        if arguments.json {
            out.json(&page)?;
        } else {
            if is_first {
                dim(&head(&source));
            }
            for (index, piece) in page.pieces.iter().enumerate() {
                if !is_first || index > 0 {
                    out.line("")?;
                }
                let heading = sanitise_line(&piece.heading);
                out.line(format!("[{}] {heading}", piece.number).trim_end())?;
                out.line(&sanitise(piece.text.trim_end()))?;
            }
        }
        is_first = false;
        let last = page
            .pieces
            .last()
            .map(|piece| piece.number.saturating_add(1));
        match last.filter(|next| *next > first_piece && *next < source.pieces) {
            Some(next) if arguments.piece.is_none() => first_piece = next,
            _ => return Ok(()),
        }
    }
}

fn head(source: &MemorySource) -> String {
    sanitise_line(&format!(
        "{} {}: {} in {}, {} pieces, {}, {}",
        source.kind(),
        source.source_id,
        source.name,
        source.collection,
        units::count(source.pieces),
        units::bytes(source.bytes),
        memory::day(source),
    ))
}

/// Searches and shows what was found.
pub(super) async fn search(
    daemon: &DaemonConnection,
    query: String,
    arguments: &MemorySearch,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let kinds = arguments.kinds.iter();
    let request = SearchMemoryRequest {
        query,
        collections: arguments.collections.clone(),
        kinds: kinds
            .map(|kind| MemorySourceKind::from(*kind).into())
            .collect(),
        since_unix_s: arguments.since,
        ranking: (arguments.ranking).map_or(0, |ranking| MemoryRanking::from(ranking).into()),
        max_hits: arguments.hits_max.unwrap_or(0),
    };
    let answer = daemon.memory().search_memory(request).await;
    let found = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    if arguments.json {
        return out.json(&found);
    }
    for notice in &found.notices {
        dim(&format!("note: {}", sanitise_line(notice)));
    }
    for line in lines(&found, arguments.verbose, columns(out)) {
        out.line(&line)?;
    }
    let hits = found.hits.len();
    dim(&format!(
        "{hits} found by {} in {}",
        found.ranking(),
        units::duration_ms(found.elapsed_ms)
    ));
    Ok(())
}

/// Columns of the terminal; `None` where there is none, and lines are as long as they are.
fn columns(out: &StandardOutput) -> Option<usize> {
    let size = out.is_terminal().then(crossterm::terminal::size)?;
    size.ok().map(|(columns, _)| usize::from(columns).max(20))
}

fn lines(found: &SearchMemoryResponse, verbose: bool, columns: Option<usize>) -> Vec<String> {
    let fit = |line: &str| match columns {
        Some(columns) => clip(line, columns),
        None => line.to_owned(),
    };
    let mut lines = Vec::new();
    for (index, hit) in found.hits.iter().enumerate() {
        let (source, piece) = memory::parts(Some(hit));
        let place = memory::place(&source, &piece);
        let (id, number) = (source.source_id, piece.number);
        lines.push(fit(&format!(
            "{:>3}  {:>7}  {place} (source {id}, piece {number})",
            index + 1,
            memory::score(hit.score),
        )));
        if verbose {
            lines.push(format!("     {}", reasons(hit)));
            let text = sanitise(piece.text.trim_end());
            lines.extend(
                text.lines()
                    .map(|line| format!("     {line}").trim_end().to_owned()),
            );
        } else {
            let words: Vec<_> = piece.text.split_whitespace().collect();
            lines.push(fit(&format!("     {}", sanitise_line(&words.join(" ")))));
        }
    }
    lines
}

/// What the words and the vectors say of a piece.
fn reasons(hit: &MemoryHit) -> String {
    let said = |value: Option<f64>| value.map_or("not among the best".into(), memory::score);
    format!("words {}, vectors {}", said(hit.bm25), said(hit.cosine))
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::MemoryPiece;

    use super::*;

    fn found() -> SearchMemoryResponse {
        let hit = MemoryHit {
            source: Some(MemorySource {
                source_id: 3,
                name: "/notes/pool.md".into(),
                ..Default::default()
            }),
            piece: Some(MemoryPiece {
                number: 1,
                heading: "Hours".into(),
                text: "The pool\n  opens\x1b[2J at 8.\n".into(),
                ..Default::default()
            }),
            score: 0.0328,
            bm25: Some(4.5),
            cosine: None,
        };
        SearchMemoryResponse {
            hits: vec![hit],
            ..Default::default()
        }
    }

    #[test]
    fn a_hit_is_a_place_and_a_line_of_its_text() {
        assert_eq!(
            lines(&found(), false, None),
            [
                "  1    0.033  /notes/pool.md · Hours (source 3, piece 1)",
                "     The pool opens\u{fffd}[2J at 8."
            ]
        );
        let narrow = lines(&found(), false, Some(20));
        assert_eq!(narrow, ["  1    0.033  /note…", "     The pool opens…"]);
    }

    #[test]
    fn those_who_want_to_know_see_the_whole_piece_and_why() {
        assert_eq!(
            lines(&found(), true, None)[1..],
            [
                "     words 4.50, vectors not among the best",
                "     The pool",
                "       opens\u{fffd}[2J at 8."
            ]
        );
    }

    #[test]
    fn the_store_says_whether_there_are_vectors() {
        let mut all = ListCollectionsResponse {
            file_bytes: 1 << 20,
            ..Default::default()
        };
        assert!(store(&all).starts_with("1.00 MiB on disk; no sentence encoder"));
        all.encoder = "all-MiniLM-L6-v2".into();
        all.encoded_pieces = 12;
        assert_eq!(
            store(&all),
            "1.00 MiB on disk; 12 pieces with vectors by all-MiniLM-L6-v2, 0 B in memory"
        );
    }
}
