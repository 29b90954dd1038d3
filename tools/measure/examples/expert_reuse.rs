//! How many experts the passes of a block go through, and how many of them the passes before went through: of a block diffusion
//! model, whose blocks are filled one position after another, the most certain first.
//!
//! ```sh
//! cargo run -p sluice-measure --example expert_reuse -- MODEL [BLOCKS [PROMPT [THREADS]]]
//! ```
//!
//! For each layer with experts: unique experts of the first 8, 16, 24 and all rows of a block, means over all passes; the
//! cosine similarity of how many rows each expert has in passes that follow each other, and that are five apart; and the
//! experts of all passes of a block together.

use std::{collections::BTreeSet, error::Error, path::Path, sync::atomic::AtomicBool};

use sluice_engine::model::network::{Sequence, VisibleKeys, logits};
use sluice_formats::noise::Noise;
use sluice_measure::loaded::Loaded;
use sluice_ops::{Ops, Routing, RoutingLog, device::Device, ledger::Ledger};
use sluice_shared::level::Level;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("MODEL is missing")?;
    let mut number = |default: usize| {
        let given = arguments.next();
        given.map_or(Ok(default), |given| given.parse())
    };
    let (blocks, prompt, threads) = (number(3)?, number(64)?, number(2)?);
    let mut ops = Ops::new(Device::cpu(threads)?, Ledger::default())?;
    let log = RoutingLog::default();
    ops.log_routings(log.clone());
    let loaded = Loaded::new(Path::new(&path), Level::Off, &ops)?;
    let mask = loaded.config.mask.ok_or("the model has no masks")?;
    let mask_id = mask.token_id.ok_or("the model has no mask token")?;
    let length = mask.blocks.ok_or("the model has no blocks")?.length;
    let vocabulary = loaded.config.vocab_size;
    let noise = Noise::new(1);
    // Whole blocks, so that all rows of the first one are to be filled.
    let mut canvas: Vec<u32> = (0..prompt.next_multiple_of(length))
        .map(|place| (noise.uniform(0, place as u64, 0) * (vocabulary - 8) as f64) as u32)
        .collect();
    let mut layers: Vec<Layer> = Vec::new();
    for _ in 0..blocks {
        let start = canvas.len();
        canvas.resize(start + length, mask_id);
        let mut block = Vec::new();
        while canvas[start..].contains(&mask_id) {
            let positions: Vec<usize> = (0..canvas.len()).collect();
            let mut sequences = [Sequence {
                tokens: &canvas,
                positions: &positions,
                wanted: &positions[start..],
                sees: VisibleKeys::Each { checks: 0 },
            }];
            let never = AtomicBool::new(false);
            let hidden = loaded
                .model
                .forward(&ops, &loaded.weights, &mut sequences, &never)
                .map_err(|_| "a pass failed")?;
            let hidden = loaded.model.final_norm(&ops, &loaded.weights, &hidden)?;
            let rows = logits(&ops, &loaded.weights, &hidden)?;
            let (place, token) = most_certain(&rows, &canvas[start..], mask_id);
            canvas[start + place] = token;
            let routings = log.take();
            block.push(
                routings
                    .iter()
                    .map(|routing| chosen(routing, length))
                    .collect::<Vec<_>>(),
            );
        }
        let of_layers = block.first().map_or(0, Vec::len);
        layers.resize_with(of_layers, Layer::default);
        for (number, layer) in layers.iter_mut().enumerate() {
            layer.add(block.iter().map(|pass| &pass[number][..]).collect());
        }
    }
    println!("layer  experts of 8, 16, 24, all rows     cosine, five apart   of a block");
    for (number, layer) in layers.iter().enumerate() {
        let unique = layer.unique.map(|sum| sum / layer.passes);
        println!(
            "{number:5}  {:6.1} {:6.1} {:6.1} {:6.1}          {:.4}  {:.4}     {:6.1}",
            unique[0],
            unique[1],
            unique[2],
            unique[3],
            layer.next.0 / layer.next.1,
            layer.fifth.0 / layer.fifth.1,
            layer.of_blocks / blocks as f64,
        );
    }
    Ok(())
}

/// The masked place of a block whose likeliest token is most probable, and this token.
fn most_certain(logits: &[f32], block: &[u32], mask: u32) -> (usize, u32) {
    let mut best = (f32::NEG_INFINITY, 0, 0);
    for (place, row) in logits.chunks_exact(logits.len() / block.len()).enumerate() {
        if block[place] != mask {
            continue;
        }
        let others = (0..).zip(row).filter(|(token, _)| *token != mask);
        let (token, most) = others.max_by(|a, b| a.1.total_cmp(b.1)).expect("tokens");
        let sum: f32 = row.iter().map(|logit| (logit - most).exp()).sum();
        if 1.0 / sum > best.0 {
            best = (1.0 / sum, place, token);
        }
    }
    (best.1, best.2)
}

/// The experts of each of the last rows, which are a block's. The last layer has no others.
fn chosen(routing: &Routing, length: usize) -> Vec<(usize, usize)> {
    let experts = 0..routing.experts();
    let all = 0..routing.places(routing.experts() - 1).end;
    let rows = routing.rows(all).max().map_or(0, |last| last + 1);
    let start = rows.saturating_sub(length);
    let pairs = experts.flat_map(|expert| {
        let rows = routing.rows(routing.places(expert));
        rows.map(move |row| (row, expert))
    });
    let of_block = pairs.filter(|(row, _)| *row >= start);
    of_block
        .map(|(row, expert)| (row - start, expert))
        .collect()
}

/// Sums over the passes of a layer.
#[derive(Default)]
struct Layer {
    passes: f64,
    /// Of the first 8, 16, 24 and all rows.
    unique: [f64; 4],
    /// Similarities of neighbouring passes, and how many.
    next: (f64, f64),
    fifth: (f64, f64),
    of_blocks: f64,
}

impl Layer {
    /// Adds the passes of a block: rows and experts of each.
    fn add(&mut self, passes: Vec<&[(usize, usize)]>) {
        let unique = |pairs: &mut dyn Iterator<Item = &(usize, usize)>| {
            let experts: BTreeSet<usize> = pairs.map(|(_, expert)| *expert).collect();
            experts.len() as f64
        };
        for pass in &passes {
            for (sum, rows) in self.unique.iter_mut().zip([8, 16, 24, usize::MAX]) {
                *sum += unique(&mut pass.iter().filter(|(row, _)| *row < rows));
            }
            self.passes += 1.0;
        }
        for (apart, (sum, count)) in [(1, &mut self.next), (5, &mut self.fifth)] {
            for (a, b) in passes.iter().zip(passes.iter().skip(apart)) {
                *sum += cosine(a, b);
                *count += 1.0;
            }
        }
        self.of_blocks += unique(&mut passes.iter().copied().flatten());
    }
}

fn cosine(a: &[(usize, usize)], b: &[(usize, usize)]) -> f64 {
    let experts = a.iter().chain(b).map(|(_, expert)| expert + 1).max();
    let counts = |pairs: &[(usize, usize)]| {
        let mut counts = vec![0.0; experts.unwrap_or(0)];
        pairs.iter().for_each(|(_, expert)| counts[*expert] += 1.0);
        counts
    };
    let (a, b): (Vec<f64>, Vec<f64>) = (counts(a), counts(b));
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    product(&a, &b) / (product(&a, &a) * product(&b, &b)).sqrt()
}
