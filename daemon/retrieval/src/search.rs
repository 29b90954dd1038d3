//! Finds what matters for a text: by its words, by its vector, or by both.

use std::collections::{BTreeMap, HashSet};

use rusqlite::{ToSql, params, params_from_iter, types::Value};

use crate::{
    EncoderId, SourceKind, Store, StoreError,
    store::StoredPiece,
    vectors::{CodedVector, VectorIndex},
};

/// Pieces of either ranking that take part when both are fused.
const CANDIDATES: usize = 100;
/// Words of a text that are searched for, the rarest, have at most so many places in all pieces together: each is looked at, and
/// what stands everywhere tells nothing.
const PLACES_MAX: i64 = 20_000;
/// Most words that are searched for.
const WORDS_MAX: usize = 32;
/// What is said more than once matters more, up to so many times.
const REPEATS_MAX: usize = 4;
/// Bytes of a text whose words are looked at.
const TEXT_BYTES_MAX: usize = 8 << 10;

/// How pieces are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ranking {
    /// By words and by vectors, as far as there are vectors.
    #[default]
    Both,
    /// By words alone (BM25).
    Words,
    /// By vectors alone.
    Vectors,
}

/// What to search for, and where.
#[derive(Debug, Clone, Default)]
pub struct Query<'a> {
    /// The text.
    pub text: &'a str,
    /// The text's vector, and the encoder that it comes from.
    pub vector: Option<(&'a EncoderId, &'a [f32])>,
    /// How pieces are ranked.
    pub ranking: Ranking,
    /// The collections to look in; empty: all.
    pub collections: &'a [&'a str],
    /// The kinds of sources to look in; empty: all.
    pub kinds: &'a [SourceKind],
    /// Only sources that were added, or whose file has changed, at this time or later, in seconds since 1970.
    pub since: Option<i64>,
    /// Most hits.
    pub most: usize,
}

/// A piece that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    /// The piece.
    pub piece: StoredPiece,
    /// What hits are ranked by, more is better: BM25's score, the cosine, or the sum of both, each as a share of the best one's.
    pub score: f64,
    /// BM25's score, where the piece has any of the words.
    pub bm25: Option<f64>,
    /// The cosine of the piece's vector and the query's, where it was among the nearest.
    pub cosine: Option<f64>,
}

impl Store {
    /// The pieces that matter most for a text, the best first. By both, a piece's score is the sum of two shares: BM25's of the
    /// best, and how far the cosine is on its way from the last candidate's to the best. Ranks alone, as in reciprocal rank fusion,
    /// find less (docs/retrieval.md). Of pieces with the same text only the best is told.
    ///
    /// # Errors
    /// When there is no collection of a name, a vector has another length than the encoder's, or the file cannot be read.
    pub fn search(&mut self, query: &Query<'_>) -> Result<Vec<Hit>, StoreError> {
        let filter = self.filter(query)?;
        let count = CANDIDATES.max(2 * query.most);
        let words = match query.ranking {
            Ranking::Vectors => Vec::new(),
            _ => {
                let found = self.by_words(query.text, &filter, count);
                self.checked(found)?
            }
        };
        let vectors = match (query.ranking, query.vector) {
            (Ranking::Words, _) | (_, None) => Vec::new(),
            (_, Some((encoder, vector))) => self.by_vector(encoder, vector, &filter, count)?,
        };
        let is_fused = query.ranking == Ranking::Both;
        let share = |score: f64, least: f64, best: f64| match is_fused {
            true if best > least => (score - least) / (best - least),
            true => 1.0,
            false => score,
        };
        let mut scores: BTreeMap<i64, (f64, Option<f64>, Option<f64>)> = BTreeMap::new();
        let best = words.first().map_or(0.0, |&(_, score)| score);
        for &(piece, score) in &words {
            let entry = scores.entry(piece).or_default();
            // Without any of the words it would be 0.
            entry.0 += share(score, 0.0, best);
            entry.1 = Some(score);
        }
        let [best, least] = [vectors.first(), vectors.last()]
            .map(|vector| vector.map_or(0.0, |&(_, cosine)| f64::from(cosine)));
        for &(piece, cosine) in &vectors {
            let entry = scores.entry(piece).or_default();
            entry.0 += share(f64::from(cosine), least, best);
            entry.2 = Some(f64::from(cosine));
        }
        let mut ranked: Vec<_> = scores.into_iter().collect();
        ranked.sort_by(|(a, of_a), (b, of_b)| of_b.0.total_cmp(&of_a.0).then(a.cmp(b)));
        let mut hits: Vec<Hit> = Vec::new();
        let mut texts = HashSet::new();
        for (id, (score, bm25, cosine)) in ranked {
            if hits.len() == query.most {
                break;
            }
            let piece = self.piece(id)?;
            if texts.insert(piece.text.clone()) {
                hits.push(Hit {
                    piece,
                    score,
                    bm25,
                    cosine,
                });
            }
        }
        Ok(hits)
    }

    /// What a piece's source has to meet, as a condition on `sources` and its values.
    fn filter(&self, query: &Query<'_>) -> Result<(String, Vec<Value>), StoreError> {
        let mut condition = "ready".to_owned();
        let mut values = Vec::new();
        if !query.collections.is_empty() {
            let mut ids = Vec::new();
            for &name in query.collections {
                let id = self.checked(self.find_collection(name))?;
                ids.push(
                    id.ok_or_else(|| StoreError::NoCollection(name.to_owned()))?
                        .to_string(),
                );
            }
            condition += &format!(" AND collection IN ({})", ids.join(","));
        }
        if !query.kinds.is_empty() {
            let kinds: Vec<_> = query
                .kinds
                .iter()
                .map(|kind| kind.number().to_string())
                .collect();
            condition += &format!(" AND kind IN ({})", kinds.join(","));
        }
        if let Some(since) = query.since {
            condition += " AND max(added, coalesce(modified, added)) >= ?";
            values.push(Value::Integer(since));
        }
        Ok((condition, values))
    }

    /// Pieces by BM25, the best first.
    fn by_words(
        &self,
        text: &str,
        (condition, values): &(String, Vec<Value>),
        count: usize,
    ) -> rusqlite::Result<Vec<(i64, f64)>> {
        let words = self.rarest_words(text)?;
        if words.is_empty() {
            return Ok(Vec::new());
        }
        // In quotation marks a word is nothing but a word.
        let words: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
        // Headings are short, and a word of them tells more.
        let select = format!(
            "SELECT words.rowid, -bm25(words, 2.0, 1.0) AS score FROM words
             JOIN pieces ON pieces.id = words.rowid JOIN sources ON sources.id = source
             WHERE words MATCH ? AND {condition}
             ORDER BY score DESC, words.rowid LIMIT {count}"
        );
        let mut query = self.connection.prepare(&select)?;
        let matched = Value::Text(words.join(" OR "));
        let values = std::iter::once(&matched).chain(values);
        let rows = query.query_map(params_from_iter(values), |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
        rows.collect()
    }

    /// The words of a text that stand in the fewest pieces, of those that stand in any; each as often as the text has it.
    fn rarest_words(&self, text: &str) -> rusqlite::Result<Vec<String>> {
        let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
        let mut repeats: BTreeMap<String, usize> = BTreeMap::new();
        let words = text.split(|char: char| !char.is_alphanumeric());
        for word in words.filter(|word| !word.is_empty()) {
            *repeats.entry(word.to_lowercase()).or_default() += 1;
        }
        let words: Vec<_> = repeats.into_iter().collect();
        self.connection
            .execute("DELETE FROM temp.query_words", [])?;
        let mut add = self
            .connection
            .prepare("INSERT INTO temp.query_words (rowid, word) VALUES (?1, ?2)")?;
        for (number, (word, _)) in words.iter().enumerate() {
            add.execute(params![number as i64, word])?;
        }
        let mut counted = self.connection.prepare(
            "SELECT query_terms.doc, word_counts.doc FROM temp.query_terms
             JOIN word_counts ON word_counts.term = query_terms.term",
        )?;
        let rows =
            counted.query_map([], |row| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(0)?)))?;
        let mut counts = rows.collect::<rusqlite::Result<Vec<_>>>()?;
        counts.sort_unstable();
        counts.dedup_by_key(|&mut (_, number)| number);
        let mut places = 0;
        let mut affordable = Vec::new();
        for (count, number) in counts.into_iter().take(WORDS_MAX) {
            if places > 0 && places + count > PLACES_MAX {
                break;
            }
            let (word, repeats) = &words[number as usize];
            // BM25 counts a word as often as the query names it, and looks at all of its places each time.
            let room = usize::try_from((PLACES_MAX - places) / count.max(1)).unwrap_or(0);
            let repeats = (*repeats).min(REPEATS_MAX).min(room).max(1);
            places += count * repeats as i64;
            affordable.extend(std::iter::repeat_n(word.clone(), repeats));
        }
        Ok(affordable)
    }

    /// Pieces by the cosine of their vectors, the nearest first.
    fn by_vector(
        &mut self,
        encoder: &EncoderId,
        vector: &[f32],
        (condition, values): &(String, Vec<Value>),
        count: usize,
    ) -> Result<Vec<(i64, f32)>, StoreError> {
        if vector.len() != encoder.elements {
            return Err(StoreError::VectorLength {
                found: vector.len(),
                expected: encoder.elements,
            });
        }
        let id = self.encoder(encoder)?;
        if self.index.as_ref().is_none_or(|(of, _)| *of != id) {
            let index = self.load_vectors(id, encoder.elements);
            self.index = Some((id, self.checked(index)?));
        }
        let Some((_, index)) = &self.index else {
            return Ok(Vec::new());
        };
        let query = CodedVector::new(vector);
        if condition == "ready" {
            return Ok(index.nearest(&query, count, |_| true));
        }
        let wanted = || -> rusqlite::Result<HashSet<i64>> {
            let select = format!(
                "SELECT pieces.id FROM pieces JOIN sources ON sources.id = source WHERE {condition}"
            );
            let mut query = self.connection.prepare(&select)?;
            let values = values.iter().map(|value| value as &dyn ToSql);
            query
                .query_map(params_from_iter(values), |row| row.get(0))?
                .collect()
        };
        let wanted = self.checked(wanted())?;
        Ok(index.nearest(&query, count, |piece| wanted.contains(&piece)))
    }

    /// The vectors of an encoder, of sources that are whole.
    fn load_vectors(&self, encoder: i64, length: usize) -> rusqlite::Result<VectorIndex> {
        let count = "SELECT count(*) FROM vectors WHERE encoder = ?1";
        let count: usize = (self.connection).query_row(count, [encoder], |row| row.get(0))?;
        let mut index = VectorIndex::new(length, count);
        self.add_vectors(&mut index, encoder, None)?;
        Ok(index)
    }

    /// Adds an encoder's vectors of a source, or of all.
    fn add_vectors(
        &self,
        index: &mut VectorIndex,
        encoder: i64,
        source: Option<i64>,
    ) -> rusqlite::Result<()> {
        let mut query = self.connection.prepare(
            "SELECT piece, scale, elements FROM pieces JOIN vectors ON piece = pieces.id
             JOIN sources ON sources.id = source
             WHERE encoder = ?1 AND ready AND (?2 IS NULL OR source = ?2) ORDER BY piece",
        )?;
        let mut rows = query.query(params![encoder, source])?;
        while let Some(row) = rows.next()? {
            let elements = row.get_ref(2)?.as_blob().unwrap_or_default();
            let elements = elements.iter().map(|&byte| byte as i8);
            index.push(row.get(0)?, row.get::<_, f64>(1)? as f32, elements);
        }
        Ok(())
    }

    /// Adds the vectors of a source to those in memory.
    pub(crate) fn learn(&mut self, source: i64) -> Result<(), StoreError> {
        if let Some((encoder, mut index)) = self.index.take() {
            let added = self.add_vectors(&mut index, encoder, Some(source));
            self.checked(added)?;
            self.index = Some((encoder, index));
        }
        Ok(())
    }

    /// Removes the vectors of a source from those in memory.
    pub(crate) fn forget(&mut self, source: i64) -> Result<(), StoreError> {
        let Some((encoder, mut index)) = self.index.take() else {
            return Ok(());
        };
        let read = || -> rusqlite::Result<HashSet<i64>> {
            let mut query = (self.connection).prepare("SELECT id FROM pieces WHERE source = ?1")?;
            query.query_map([source], |row| row.get(0))?.collect()
        };
        let pieces = self.checked(read())?;
        index.remove(&pieces);
        self.index = Some((encoder, index));
        Ok(())
    }
}
