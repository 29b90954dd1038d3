//! How well the store finds what answers a question: recall and nDCG by words, by vectors and by both, with 95 % intervals.
//!
//! ```sh
//! cargo run --release -p sluice-measure --example retrieval_quality -- ENCODER FOLDER SPLIT [PIECES]
//! ```
//!
//! FOLDER is laid out as BEIR's sets are (`corpus.jsonl`, `queries.jsonl`, `qrels/SPLIT.tsv`); `tools/measure/retrieval_sets.py` makes
//! some. A document is a source, its title the heading of its pieces; it ranks where its best piece does. PIECES gets the pieces
//! (`doc`, `heading`, `text`), a line each, for `tools/measure/retrieval_peers.py`.

use std::{
    collections::{HashMap, HashSet},
    error::Error,
    fs::{self, File},
    io::{BufRead, BufReader, BufWriter, Write},
    path::Path,
    sync::Arc,
    time::Instant,
};

use serde_json::Value;
use sluice_checkpoint::Source;
use sluice_engine::{Embed, Engine, LoadedModel, Outcome, PlanSettings, Work};
use sluice_retrieval::{
    EncoderId, NewPiece, NewSource, Piece, Query, Ranking, SourceKind, Splitter, Store, TextKind,
};

/// Ranks that count.
const DEPTH: usize = 10;
/// Pieces that are asked for, so that ten documents are among them.
const PIECES: usize = 50;
/// Texts of a request to the engine.
const BATCH: usize = 256;
/// Resamples of the questions for an interval.
const RESAMPLES: usize = 1000;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

struct Encoder {
    engine: Engine,
    model: Arc<LoadedModel>,
    id: EncoderId,
}

impl Encoder {
    fn load(folder: &Path) -> Result<Self> {
        let engine = Engine::start(sluice_measure::engine_options()?)?;
        let model = engine.load_now(Source::Folder(folder.to_owned()), PlanSettings::default())?;
        let id = EncoderId {
            name: folder.display().to_string(),
            elements: model.info.hidden_size,
        };
        Ok(Self { engine, model, id })
    }

    /// The vectors of texts, which are cut to what the model reads.
    fn vectors(&self, texts: &[String]) -> Result<Vec<Vec<f32>>> {
        let tokenizer = self.model.tokenizer.as_ref().ok_or("no tokenizer")?;
        let (before, behind) = (tokenizer.bos_tokens(), tokenizer.end_tokens());
        let most = self.model.info.context_length - before.len() - behind.len();
        let mut vectors = Vec::with_capacity(texts.len());
        for batch in texts.chunks(BATCH) {
            let ids = |text: &String| -> Result<Vec<u32>> {
                let mut ids = tokenizer.encode(text)?;
                ids.truncate(most);
                Ok([before, &ids, behind].concat())
            };
            let work = Work::Embed(Embed {
                model: self.model.id,
                texts: batch.iter().map(ids).collect::<Result<_>>()?,
            });
            match self.engine.run(work)? {
                Outcome::Embedded(result) => vectors.extend(result.vectors),
                other => return Err(format!("{other:?}").into()),
            }
        }
        Ok(vectors)
    }
}

/// A question, and how much each document that answers it tells.
struct Question {
    text: String,
    relevant: HashMap<String, f64>,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [encoder, folder, split, rest @ ..] = &arguments[..] else {
        return Err("ENCODER FOLDER SPLIT [PIECES]".into());
    };
    let (encoder, folder) = (Encoder::load(Path::new(encoder))?, Path::new(folder));
    let temporary = tempfile::tempdir()?;
    let mut store = Store::open(&temporary.path().join("store.db"))?;
    let documents = import(folder, &encoder, &mut store, rest.first())?;
    let questions = questions(folder, split)?;
    let texts: Vec<String> = questions.iter().map(|q| q.text.clone()).collect();
    let begun = Instant::now();
    let vectors = encoder.vectors(&texts)?;
    println!(
        "{} questions, {:.2} ms each for their vectors\n",
        questions.len(),
        begun.elapsed().as_secs_f64() * 1e3 / questions.len() as f64
    );
    println!("| | recall@1 | recall@5 | nDCG@10 | a search, ms |\n|---|---|---|---|---|");
    for (name, ranking) in [
        ("words", Ranking::Words),
        ("vectors", Ranking::Vectors),
        ("both", Ranking::Both),
    ] {
        let mut scores = Vec::new();
        let mut times = Vec::new();
        for (question, vector) in questions.iter().zip(&vectors) {
            let query = Query {
                text: &question.text,
                vector: Some((&encoder.id, vector)),
                ranking,
                most: PIECES,
                ..Query::default()
            };
            let begun = Instant::now();
            let hits = store.search(&query)?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
            let mut seen = HashSet::new();
            let mut ranked: Vec<_> = hits.iter().map(|hit| hit.piece.source).collect();
            ranked.retain(|source| seen.insert(*source));
            let ranked: Vec<_> = ranked.iter().map(|source| &documents[source]).collect();
            scores.push(score(&ranked, &question.relevant));
        }
        times.sort_by(f64::total_cmp);
        print!("| {name} ");
        for measure in 0..3 {
            let each: Vec<f64> = scores.iter().map(|scores| scores[measure]).collect();
            let (mean, half) = interval(&each);
            print!("| {:.1} ± {:.1} ", 100.0 * mean, 100.0 * half);
        }
        println!("| {:.1} |", times[times.len() / 2]);
    }
    Ok(())
}

/// Fills the store; the document of each source.
fn import(
    folder: &Path,
    encoder: &Encoder,
    store: &mut Store,
    pieces_file: Option<&String>,
) -> Result<HashMap<i64, String>> {
    let mut pieces_file = match pieces_file {
        Some(path) => Some(BufWriter::new(File::create(path)?)),
        None => None,
    };
    let begun = Instant::now();
    let mut cut = Vec::new();
    for document in lines(&folder.join("corpus.jsonl"))? {
        let (name, title, text) = (
            of(&document, "_id")?,
            of(&document, "title")?,
            of(&document, "text")?,
        );
        let mut pieces = Vec::new();
        let take = |piece: Piece| {
            pieces.push(Piece {
                heading: title.to_owned(),
                ..piece
            });
            Ok::<_, std::io::Error>(())
        };
        Splitter::new(TextKind::Plain).split(text.as_bytes(), take)?;
        for Piece { heading, text } in &pieces {
            if let Some(file) = &mut pieces_file {
                let line = serde_json::json!({ "doc": name, "heading": heading, "text": text });
                writeln!(file, "{line}")?;
            }
        }
        cut.push((name.to_owned(), pieces));
    }
    let all = cut.iter().flat_map(|(_, pieces)| pieces);
    let texts: Vec<String> = all.map(|piece| piece.text.clone()).collect();
    let mut vectors = encoder.vectors(&texts)?.into_iter();
    let seconds = begun.elapsed().as_secs_f64();
    let mut documents = HashMap::new();
    for (name, pieces) in &cut {
        let source = NewSource {
            collection: "all",
            access: 0,
            kind: SourceKind::File,
            name,
            digest: [0; 32],
            bytes: 0,
            modified: None,
            now: 0,
        };
        let mut import = (store.begin(&source, Some(&encoder.id))?).ok_or("twice the same id")?;
        let with_vector = |(piece, vector): (&Piece, _)| NewPiece {
            piece: piece.clone(),
            vector: Some(vector),
        };
        let pieces: Vec<_> = pieces
            .iter()
            .zip(vectors.by_ref())
            .map(with_vector)
            .collect();
        store.add_pieces(&mut import, &pieces)?;
        documents.insert(store.finish(import)?, name.clone());
    }
    println!(
        "{} documents in {} pieces, {:.0} vectors/s",
        documents.len(),
        texts.len(),
        texts.len() as f64 / seconds
    );
    Ok(documents)
}

/// The questions of which a split says what answers them.
fn questions(folder: &Path, split: &str) -> Result<Vec<Question>> {
    let mut relevant: HashMap<String, HashMap<String, f64>> = HashMap::new();
    let judged = fs::read_to_string(folder.join(format!("qrels/{split}.tsv")))?;
    for line in judged.lines().skip(1) {
        let [question, document, grade] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(format!("no judgement: {line}").into());
        };
        let of_question = relevant.entry(question.to_owned()).or_default();
        of_question.insert(document.to_owned(), grade.parse()?);
    }
    let mut questions = Vec::new();
    for question in lines(&folder.join("queries.jsonl"))? {
        if let Some(relevant) = relevant.remove(of(&question, "_id")?) {
            let text = of(&question, "text")?.to_owned();
            questions.push(Question { text, relevant });
        }
    }
    Ok(questions)
}

fn lines(path: &Path) -> Result<Vec<Value>> {
    let lines = BufReader::new(File::open(path)?).lines();
    lines
        .map(|line| Ok(serde_json::from_str(&line?)?))
        .collect()
}

fn of<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    let text = value[key].as_str();
    Ok(text.ok_or_else(|| format!("no {key} in {value}"))?)
}

/// Recall at 1 and 5, and nDCG at 10.
fn score(ranked: &[&String], relevant: &HashMap<String, f64>) -> [f64; 3] {
    let gain = |document: &&String| relevant.get(*document).copied().unwrap_or(0.0);
    let recall = |depth: usize| {
        let found = ranked.iter().take(depth).filter(|&it| gain(it) > 0.0);
        found.count() as f64 / relevant.values().filter(|&&gain| gain > 0.0).count() as f64
    };
    let discounted = |gains: &mut dyn Iterator<Item = f64>| {
        let gains = gains.take(DEPTH).enumerate();
        gains
            .map(|(rank, gain)| gain / (rank as f64 + 2.0).log2())
            .sum::<f64>()
    };
    let mut best: Vec<f64> = relevant.values().copied().collect();
    best.sort_by(|a, b| b.total_cmp(a));
    let ideal = discounted(&mut best.into_iter());
    [
        recall(1),
        recall(5),
        discounted(&mut ranked.iter().map(gain)) / ideal,
    ]
}

/// The mean, and half of the width of its 95 % interval by resampling.
fn interval(each: &[f64]) -> (f64, f64) {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        each[(state % each.len() as u64) as usize]
    };
    let count = each.len() as f64;
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| (0..each.len()).map(|_| next()).sum::<f64>() / count)
        .collect();
    means.sort_by(f64::total_cmp);
    let (low, high) = (means[RESAMPLES / 40], means[RESAMPLES - RESAMPLES / 40 - 1]);
    (each.iter().sum::<f64>() / count, (high - low) / 2.0)
}
