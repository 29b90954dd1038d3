//! Finding what matters for a text, for searches and for prompts.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sluice_proto::{
    model::{Generation, Input, MemorySearch, Prompt, Role},
    v1,
};
use sluice_retrieval::{EncoderId, Hit, Query, Ranking, Source, SourceKind, Store, StoreError};

use super::super::{Daemon, call_terms::CallTerms};
use crate::{
    failure::Failure,
    memory::{self, MemoryError},
    translate::memory as wire,
};

/// Pieces that a prompt may get, if there is room for so many.
const RECALLED_MAX: usize = 32;
/// Bytes of a message that are searched by: the last ones, where people ask.
const QUERY_BYTES_MAX: usize = 4 << 10;

/// What was found.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Found {
    /// The best first.
    pub(super) hits: Vec<v1::MemoryHit>,
    pub(super) ranking: v1::MemoryRanking,
    pub(super) elapsed: Duration,
    /// What the user should know.
    pub(super) notices: Vec<String>,
}

/// What was found for a prompt.
#[derive(Debug, Clone)]
pub(in super::super) struct Recalled(Found);

impl Recalled {
    /// As prompts are made of it, and what the user should know.
    pub(in super::super) fn into_parts(self) -> (crate::prepare::Recalled, Vec<String>) {
        let recalled = crate::prepare::Recalled {
            hits: self.0.hits,
            ranking: self.0.ranking,
            elapsed: self.0.elapsed,
        };
        (recalled, self.0.notices)
    }
}

impl Daemon {
    /// Finds pieces in collections that the caller may read.
    pub(super) async fn search_memory(
        self: &Arc<Self>,
        terms: CallTerms,
        search: MemorySearch,
    ) -> Result<Found, Failure> {
        let began = Instant::now();
        let (mut ranking, vector, mut notices) = self.ranked_by(&terms, &search).await?;
        let share = terms.caller.share();
        let turn = self.memory_turns.enter(share).await?;
        let search_for = move |store: &mut Store| {
            let asked = &search.collections;
            let collections = memory::readable(store, terms.caller, asked)?;
            let found = find(store, &search, &collections, ranking, vector);
            match found {
                Err(MemoryError::Store(error @ StoreError::VectorLength { .. }))
                    if search.ranking.is_none() =>
                {
                    let words = find(store, &search, &collections, Ranking::Words, None)?;
                    Ok((words, Some(error.to_string())))
                }
                found => Ok((found?, None)),
            }
        };
        let found = self.at_store((turn, share), |memory| memory.search(search_for));
        let (hits, other_encoder) = found.await?.unwrap_or_default();
        if let Some(reason) = other_encoder {
            ranking = Ranking::Words;
            notices.push(format!("found by words alone: {reason}"));
        }
        self.release_index_later();
        Ok(Found {
            hits: (hits.iter())
                .map(|(hit, source)| wire::hit(hit, source))
                .collect(),
            ranking: match ranking {
                Ranking::Both => v1::MemoryRanking::Hybrid,
                Ranking::Words => v1::MemoryRanking::Words,
                Ranking::Vectors => v1::MemoryRanking::Vectors,
            },
            elapsed: began.elapsed(),
            notices,
        })
    }

    /// How a search ranks, and by which vector. Where nothing was said of the ranking, words alone do.
    async fn ranked_by(
        self: &Arc<Self>,
        terms: &CallTerms,
        search: &MemorySearch,
    ) -> Result<(Ranking, Option<(EncoderId, Vec<f32>)>, Vec<String>), Failure> {
        let ranking = match search.ranking {
            Some(v1::MemoryRanking::Words) => return Ok((Ranking::Words, None, Vec::new())),
            Some(v1::MemoryRanking::Vectors) => Ranking::Vectors,
            _ => Ranking::Both,
        };
        let Some(encoder) = self.memory_encoder() else {
            return match search.ranking {
                Some(_) => Err(MemoryError::NoEncoder.into()),
                None => Ok((Ranking::Words, None, Vec::new())),
            };
        };
        let texts = vec![search.query.clone()];
        match self.encode(terms, &encoder, texts).await {
            Ok((id, mut vectors)) => {
                let vector = vectors.pop().map(|vector| (id, vector));
                Ok((ranking, vector, Vec::new()))
            }
            Err(failure) if search.ranking.is_none() => {
                let notice = format!("found by words alone: {failure}");
                Ok((Ranking::Words, None, vec![notice]))
            }
            Err(failure) => Err(failure),
        }
    }

    /// What of memory a generation gets that asks for it.
    pub(in super::super) async fn recall(
        self: &Arc<Self>,
        terms: &CallTerms,
        generation: &Generation,
    ) -> Result<Option<Recalled>, Failure> {
        let (Some(memory), Some(query)) = (&generation.memory, last_question(&generation.input))
        else {
            return Ok(None);
        };
        let search = MemorySearch {
            query: query.to_owned(),
            collections: memory.collections.clone(),
            kinds: Vec::new(),
            since: None,
            ranking: None,
            most: RECALLED_MAX,
        };
        let found = self.search_memory(terms.clone(), search).await?;
        Ok(Some(Recalled(found)))
    }
}

/// The last message of a user, or its end where it is long.
fn last_question(input: &Input) -> Option<&str> {
    let Input::Prompt {
        prompt: Prompt::Chat(chat),
        ..
    } = input
    else {
        return None;
    };
    let turn = chat.turns.iter().rfind(|turn| turn.role == Role::User)?;
    let text = turn.content.trim();
    let start = text.len().saturating_sub(QUERY_BYTES_MAX);
    let start = (start..text.len()).find(|&at| text.is_char_boundary(at));
    Some(&text[start.unwrap_or(0)..]).filter(|text| !text.is_empty())
}

/// The hits with their sources.
fn find(
    store: &mut Store,
    search: &MemorySearch,
    collections: &[String],
    ranking: Ranking,
    vector: Option<(EncoderId, Vec<f32>)>,
) -> Result<Vec<(Hit, Source)>, MemoryError> {
    if collections.is_empty() {
        return Ok(Vec::new());
    }
    // To the store, none means all: without a filter it looks at no piece but those that it finds.
    let is_all = search.collections.is_empty() && collections.len() == store.accesses()?.len();
    let collections: Vec<&str> = match is_all {
        true => Vec::new(),
        false => collections.iter().map(String::as_str).collect(),
    };
    let kinds: Vec<SourceKind> = (search.kinds.iter())
        .filter_map(|kind| wire::kind(*kind))
        .collect();
    let hits = store.search(&Query {
        text: &search.query,
        vector: (vector.as_ref()).map(|(encoder, vector)| (encoder, &vector[..])),
        ranking,
        collections: &collections,
        kinds: &kinds,
        since: search.since,
        most: search.most,
    })?;
    let with_source = |hit: Hit| {
        let source = store.source(hit.piece.source)?;
        Ok((hit, source))
    };
    hits.into_iter().map(with_source).collect()
}
