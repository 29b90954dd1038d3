//! How long searches take, and the memory and disk that a store has, by its size.
//!
//! ```sh
//! cargo run --release -p sluice-retrieval --example search_latency -- FOLDER PIECES...
//! ```
//!
//! Pieces are 80 words drawn by Zipf's law from 50,000, with random vectors of 384 elements; queries are eight such words and a
//! random vector. Medians of 21 searches, after one that loads the vectors.

use std::{error::Error, path::Path, time::Instant};

use sluice_retrieval::{EncoderId, NewPiece, NewSource, Piece, Query, Ranking, SourceKind, Store};

const VOCABULARY: f64 = 50_000.0;
const SOURCE_PIECES: usize = 1000;

struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Words whose frequency goes with one through the rank.
    fn words(&mut self, count: usize) -> String {
        let word = |random: &mut Self| format!("w{}", VOCABULARY.powf(random.uniform()) as u64);
        let words: Vec<_> = (0..count).map(|_| word(self)).collect();
        words.join(" ")
    }

    fn vector(&mut self, elements: usize) -> Vec<f32> {
        (0..elements).map(|_| self.uniform() as f32 - 0.5).collect()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("FOLDER is missing")?;
    let encoder = EncoderId {
        name: "random".to_owned(),
        elements: 384,
    };
    println!("pieces  import/s  words ms  vectors ms  both ms  first ms  index MB  file MB");
    for count in arguments {
        let count: usize = count.parse()?;
        let path = Path::new(&folder).join(format!("latency-{count}.db"));
        let mut store = Store::open(&path)?;
        let mut random = Random(88_172_645_463_325_252);
        let begun = Instant::now();
        for number in 0..count.div_ceil(SOURCE_PIECES) {
            let name = number.to_string();
            let source = NewSource {
                collection: "all",
                access: 0,
                kind: SourceKind::File,
                name: &name,
                digest: [0; 32],
                bytes: 0,
                modified: None,
                now: 0,
            };
            let mut import = store.begin(&source, Some(&encoder))?.ok_or("it is there")?;
            let pieces: Vec<_> = (0..SOURCE_PIECES.min(count - number * SOURCE_PIECES))
                .map(|_| NewPiece {
                    piece: Piece {
                        heading: String::new(),
                        text: random.words(80),
                    },
                    vector: Some(random.vector(encoder.elements)),
                })
                .collect();
            store.add_pieces(&mut import, &pieces)?;
            store.finish(import)?;
        }
        let import = count as f64 / begun.elapsed().as_secs_f64();
        let mut time = |ranking| -> Result<(f64, f64), Box<dyn Error>> {
            let mut times = Vec::new();
            for _ in 0..22 {
                let (text, vector) = (random.words(8), random.vector(encoder.elements));
                let query = Query {
                    text: &text,
                    vector: Some((&encoder, &vector)),
                    ranking,
                    most: 8,
                    ..Query::default()
                };
                let begun = Instant::now();
                assert!(!store.search(&query)?.is_empty());
                times.push(begun.elapsed().as_secs_f64() * 1e3);
            }
            let first = times.remove(0);
            times.sort_by(f64::total_cmp);
            Ok((times[10], first))
        };
        let (words, _) = time(Ranking::Words)?;
        let (vectors, first) = time(Ranking::Vectors)?;
        let (both, _) = time(Ranking::Both)?;
        let totals = store.totals()?;
        println!(
            "{count:6}  {import:8.0}  {words:8.2}  {vectors:10.2}  {both:7.2}  {first:8.1}  {:8.1}  {:7.1}",
            totals.index_bytes as f64 / 1e6,
            totals.file_bytes as f64 / 1e6
        );
        drop(store.wipe()?);
    }
    Ok(())
}
