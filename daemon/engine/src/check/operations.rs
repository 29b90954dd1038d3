//! Each operation of a device beside the CPU's, on the same random inputs, with results written over poison: what an
//! operation forgets to write is no number.

mod coded;

use half::{bf16, f16};
use sluice_cuda::{Number, Span};

use super::{Check, worse};
use crate::{
    device::{Device, DeviceBuffer},
    error::EngineError,
    format::Format,
    ledger::{Kind, Ledger},
    model::family::Rope,
    ops::{
        Activation, AttentionRange, AttentionShape, CacheShape, Choice, HeadGroup, HeadRow,
        KeyRows, KeySegment, Keys, Noise, Ops, ROUNDED_ROWS_ERROR, Ranking, RopeTable,
        computed_format,
    },
    page::{PAGE_BYTES, Page},
    residency::{Data, Weight},
};

/// Memory that results are written to, poisoned before each check.
const ARENA_BYTES: u64 = 64 << 20;
/// Memory that a card decodes weights into: less than the largest are, so that they come in pieces.
const DECODED_BYTES: usize = 512 << 10;

/// Checks every operation of the device, in the numbers that it computes in. `told` hears of each check as it is done. An
/// operation that fails is a check that does.
///
/// # Errors
/// When what they all need can't be had.
pub fn operations(
    device: &Device,
    seed: u64,
    told: &mut dyn FnMut(&Check),
) -> Result<Vec<Check>, EngineError> {
    let tried = Ops::new(device.clone(), Ledger::default())?;
    let decoded_pages = DECODED_BYTES / PAGE_BYTES;
    let mut pair = Pair {
        cpu: Ops::new(Device::cpu(device.threads())?, Ledger::default())?,
        decoded: DeviceBuffer::new(device, tried.ledger(), Kind::Scratch, decoded_pages)?,
        tried,
        noise: Noise::new(seed),
        drawn: 0,
        checks: Vec::new(),
        told,
    };
    type Group<'a> = fn(&mut Pair<'a>) -> Result<(), EngineError>;
    let groups: [(&str, Group<'_>); 12] = [
        ("embeddings", Pair::embeddings),
        ("norms", Pair::norms),
        ("rotations", Pair::rotations),
        ("products", Pair::products),
        ("coded weights", Pair::coded),
        ("rows", Pair::rows),
        ("attention", Pair::attention),
        ("sequences", Pair::sequences),
        ("chosen keys", Pair::chosen_keys),
        ("heads", Pair::heads),
        ("logits", Pair::logits),
        ("comparisons", Pair::comparisons),
    ];
    for (name, group) in groups {
        if let Err(error) = group(&mut pair) {
            // What was found before still counts, and what comes may tell more.
            pair.add(Check::failed(format!("{name}, the rest"), &error));
        }
        if device.has_failed() {
            break;
        }
    }
    Ok(pair.checks)
}

/// The same computed twice.
struct Pair<'a> {
    cpu: Ops,
    tried: Ops,
    /// What a card decodes weights into.
    decoded: DeviceBuffer<Page>,
    noise: Noise,
    /// Matrices drawn so far.
    drawn: u64,
    checks: Vec<Check>,
    told: &'a mut dyn FnMut(&Check),
}

/// How tokens are chosen from rows.
#[derive(Clone, Copy)]
struct HeadKind {
    name: &'static str,
    guidance: Option<f64>,
    temperature: f64,
    suppresses: bool,
}

/// A matrix of random weights as a format stores them, in both memories.
struct Stored {
    format: Format,
    rows: usize,
    width: usize,
    /// The numbers that it stands for: what the CPU multiplies with, which rounds rows for some formats.
    numbers: Vec<f32>,
    tried: DeviceBuffer<u64>,
    /// Where the device tried may decode it into.
    decoded: Span,
}

impl Stored {
    fn on_cpu(&self) -> Weight<'_> {
        Weight {
            format: Format::F32,
            ..self.weight(Data::Host(bytemuck::cast_slice(&self.numbers)))
        }
    }

    fn on_tried(&self) -> Weight<'_> {
        match &self.tried {
            DeviceBuffer::Host(words) => {
                let bytes: &[u8] = bytemuck::cast_slice(words);
                self.weight(Data::Host(&bytes[..self.bytes()]))
            }
            on_card @ DeviceBuffer::Gpu(_) => {
                let span = on_card.span().part(0, self.bytes());
                self.weight(Data::on_card(span, self.decoded))
            }
        }
    }

    fn bytes(&self) -> usize {
        self.format.bytes(self.rows * self.width)
    }

    fn weight<'a>(&self, data: Data<'a>) -> Weight<'a> {
        Weight {
            format: self.format,
            rows: self.rows,
            width: self.width,
            data,
            epoch: 0,
        }
    }
}

impl Pair<'_> {
    /// Random numbers around 0 that the device's numbers hold exactly.
    fn numbers(&mut self, count: usize, size: f32) -> Vec<f32> {
        self.drawn += 1;
        let noise = self.noise.stream(self.drawn);
        let number = self.tried.device().number();
        (0..count as u64)
            .map(|place| {
                let value = (noise.uniform(0, place, 0) as f32 - 0.5) * size;
                match number {
                    Number::F32 => value,
                    Number::F16 => f16::from_f32(value).to_f32(),
                    Number::Bf16 => bf16::from_f32(value).to_f32(),
                }
            })
            .collect()
    }

    fn stored(
        &mut self,
        rows: usize,
        width: usize,
        format: Format,
        size: f32,
    ) -> Result<Stored, EngineError> {
        let numbers = self.numbers(rows * width, size);
        let len = format.bytes(rows * width);
        let mut words = vec![0u64; len.div_ceil(size_of::<u64>())];
        format.store(&numbers, &mut bytemuck::cast_slice_mut(&mut words)[..len]);
        let mut numbers = numbers;
        format.widen(&bytemuck::cast_slice(&words)[..len], &mut numbers);
        let (device, ledger) = (self.tried.device(), self.tried.ledger());
        let tried = DeviceBuffer::filled(device, ledger, Kind::Weights, words.len(), |memory| {
            memory.copy_from_slice(&words);
        })?;
        Ok(Stored {
            format,
            rows,
            width,
            numbers,
            tried,
            decoded: self.decoded.on_card(),
        })
    }

    /// The same rows in both memories, in the numbers that are computed in.
    fn activations(
        &mut self,
        rows: usize,
        width: usize,
        size: f32,
    ) -> Result<[Activation; 2], EngineError> {
        let values = self.numbers(rows * width, size);
        let number = self.tried.device().number();
        Ok([
            self.cpu.matrix(rows, width, &values, Number::F32)?,
            self.tried.matrix(rows, width, &values, number)?,
        ])
    }

    /// The same rows in both memories, in `f32`, as the residual stream is.
    fn stream(
        &mut self,
        rows: usize,
        width: usize,
        size: f32,
    ) -> Result<[Activation; 2], EngineError> {
        let values = self.numbers(rows * width, size);
        Ok([
            self.cpu.matrix(rows, width, &values, Number::F32)?,
            self.tried.matrix(rows, width, &values, Number::F32)?,
        ])
    }

    /// Fills what the next results are written to with what is no number.
    fn poison(&mut self) -> Result<(), EngineError> {
        if let Some(gpu) = self.tried.device().gpu() {
            gpu.fill(self.decoded.on_card(), 0xFF)?;
        }
        self.tried.poison(ARENA_BYTES)
    }

    /// A unit in the last place of the numbers that results are rounded to, and some for sums in another order.
    fn tolerance(&self) -> f64 {
        match self.tried.device().number() {
            Number::F32 => 1e-5,
            Number::F16 => 2e-3,
            Number::Bf16 => 1.6e-2,
        }
    }

    /// The same of products with weights of this format.
    fn product_tolerance(&self, format: Format) -> f64 {
        match self.tried.rounds_rows(format) {
            // Some hundred results scatter more than many do.
            true => 1.5 * ROUNDED_ROWS_ERROR,
            false => self.tolerance(),
        }
    }

    fn check(&mut self, name: String, results: [&Activation; 2]) -> Result<(), EngineError> {
        self.check_within(self.tolerance(), name, results)
    }

    fn check_within(
        &mut self,
        tolerance: f64,
        name: String,
        [expected, found]: [&Activation; 2],
    ) -> Result<(), EngineError> {
        let (expected, found) = (self.cpu.read(expected)?, self.tried.read(found)?);
        self.record(name, distance(&expected, &found), tolerance);
        Ok(())
    }

    fn record(&mut self, name: String, error: f64, tolerance: f64) {
        self.add(Check {
            name,
            error,
            tolerance,
            cause: None,
        });
    }

    fn add(&mut self, check: Check) {
        (self.told)(&check);
        self.checks.push(check);
    }

    fn embeddings(&mut self) -> Result<(), EngineError> {
        let ids = [3, 0, 0, 0, 699, 3, 3, 12];
        for format in Format::ALL {
            let table = self.stored(700, 512, format, 2.0)?;
            self.poison()?;
            let expected = self.cpu.embed(&ids, &table.on_cpu())?;
            let found = self.tried.embed(&ids, &table.on_tried())?;
            self.check(format!("embed, {}", format.name()), [&expected, &found])?;
        }
        // Runs of one id, and more single rows than are copied at once.
        let ids: Vec<u32> = (0..300)
            .map(|row| if row % 100 < 20 { 7 } else { row })
            .collect();
        let table = self.numbers(300 * 96, 2.0);
        self.poison()?;
        let fill = |id: u32, row: &mut [f32]| {
            row.copy_from_slice(&table[id as usize * 96..][..96]);
            Ok(())
        };
        let expected = self.cpu.embed_rows(&ids, 96, fill)?;
        let found = self.tried.embed_rows(&ids, 96, fill)?;
        self.check("embed, rows from the host".to_owned(), [&expected, &found])
    }

    fn norms(&mut self) -> Result<(), EngineError> {
        for format in [Format::F32, Format::F16, Format::Bf16] {
            for (rows, width) in [(1, 4096), (37, 250)] {
                let weight = self.stored(1, width, format, 3.0)?;
                self.poison()?;
                let [a, b] = self.stream(rows + 2, width, 8.0)?;
                let kept = 1..rows + 1;
                let expected = self
                    .cpu
                    .rms_norm(&a, kept.clone(), &weight.on_cpu(), 1e-5)?;
                let found = self.tried.rms_norm(&b, kept, &weight.on_tried(), 1e-5)?;
                let name = format!("rms norm, {rows} rows of {width}, {}", format.name());
                self.check(name, [&expected, &found])?;
            }
        }
        Ok(())
    }

    fn rotations(&mut self) -> Result<(), EngineError> {
        for (heads, head_dim) in [(4, 64), (3, 18), (2, 128)] {
            let rope = Rope::plain(500_000.0, head_dim);
            let tables = [
                RopeTable::new(&rope, 4096, &self.cpu)?,
                RopeTable::new(&rope, 4096, &self.tried)?,
            ];
            self.poison()?;
            // Queries, and keys that are more and stand elsewhere.
            let mut q = self.activations(3, heads * head_dim, 4.0)?;
            let mut k = self.activations(5, 2 * head_dim, 4.0)?;
            let places = [0, 1, 77, 4095, 2];
            for (side, ops) in [&self.cpu, &self.tried].into_iter().enumerate() {
                let positions = [ops.indices(places[2..].to_vec())?, ops.indices(places)?];
                let turned = [(&mut q[side], &positions[0]), (&mut k[side], &positions[1])];
                ops.rope(turned, &tables[side])?;
            }
            for (what, turned) in [("queries", q), ("keys", k)] {
                let name = format!("rotary embedding of {what}, {heads} heads of {head_dim}");
                self.check(name, [&turned[0], &turned[1]])?;
            }
        }
        Ok(())
    }

    fn products(&mut self) -> Result<(), EngineError> {
        for format in Format::ALL {
            let tolerance = self.product_tolerance(format);
            for (rows, width, outputs) in [
                (1, 512, 300),
                (5, 256, 77),
                (33, 512, 130),
                (200, 256, 140),
                (300, 512, 600),
            ] {
                let weight = self.stored(outputs, width, format, 1.0)?;
                self.poison()?;
                let [a, b] = self.activations(rows, width, 2.0)?;
                let expected = self.cpu.linear(&a, &weight.on_cpu())?;
                let found = self.tried.linear(&b, &weight.on_tried())?;
                let name = format!("linear, {rows} x {width} x {outputs}, {}", format.name());
                self.check_within(tolerance, name, [&expected, &found])?;

                self.poison()?;
                let [a, b] = self.activations(rows, width, 2.0)?;
                let [mut expected, mut found] = self.stream(rows + 3, outputs, 20.0)?;
                self.cpu
                    .linear_add(&mut expected, 2, &a, &weight.on_cpu())?;
                self.tried
                    .linear_add(&mut found, 2, &b, &weight.on_tried())?;
                let name = format!("linear, added, {rows} rows, {}", format.name());
                self.check_within(tolerance, name, [&expected, &found])?;

                let bias = self.stored(1, outputs, Format::Bf16, 2.0)?;
                self.poison()?;
                let [a, b] = self.activations(rows, width, 2.0)?;
                let expected = (self.cpu).linear_biased(&a, &weight.on_cpu(), &bias.on_cpu())?;
                let found = (self.tried).linear_biased(&b, &weight.on_tried(), &bias.on_tried())?;
                let name = format!("linear, biased, {rows} rows, {}", format.name());
                self.check_within(tolerance, name, [&expected, &found])?;
            }
        }
        // Rows that are no multiple of what is loaded at once.
        let weight = self.stored(19, 203, Format::F32, 1.0)?;
        self.poison()?;
        let [a, b] = self.activations(70, 203, 2.0)?;
        let expected = self.cpu.linear(&a, &weight.on_cpu())?;
        let found = self.tried.linear(&b, &weight.on_tried())?;
        self.check("linear, odd width".to_owned(), [&expected, &found])
    }

    fn rows(&mut self) -> Result<(), EngineError> {
        self.poison()?;
        let [mut expected, mut found] = self.activations(33, 75, 30.0)?;
        let [a, b] = self.activations(33, 75, 4.0)?;
        self.cpu.silu_multiply(&mut expected, &a)?;
        self.tried.silu_multiply(&mut found, &b)?;
        self.check("gated activation".to_owned(), [&expected, &found])?;

        for width in [64, 33] {
            let [a, b] = self.activations(50, width, 4.0)?;
            let places = [49, 0, 7, 7, 31];
            let taken = [
                self.cpu.take_rows(&a, &self.cpu.indices(places)?)?,
                self.tried.take_rows(&b, &self.tried.indices(places)?)?,
            ];
            self.check(format!("rows taken, width {width}"), taken.each_ref())?;

            let mut kept = [self.cpu.keep(9, width)?, self.tried.keep(9, width)?];
            let [before, before_tried] = self.activations(9, width, 4.0)?;
            self.cpu.set_rows(&mut kept[0], 0, &before)?;
            self.tried.set_rows(&mut kept[1], 0, &before_tried)?;
            self.cpu.set_rows(&mut kept[0], 3, &taken[0])?;
            self.tried.set_rows(&mut kept[1], 3, &taken[1])?;
            self.check(format!("rows set, width {width}"), kept.each_ref())?;
        }
        Ok(())
    }

    fn attention(&mut self) -> Result<(), EngineError> {
        for (heads, kv_heads, head_dim) in [(4, 2, 64), (2, 2, 18), (2, 1, 128), (1, 1, 256)] {
            let shape = AttentionShape {
                heads,
                kv_heads,
                head_dim,
            };
            let keys = |start, len| KeySegment { start, len };
            let ranges = vec![
                AttentionRange {
                    queries: 0..100,
                    keys: Keys::Pass(vec![keys(0, 7), keys(50, 60), keys(199, 1)]),
                },
                AttentionRange {
                    queries: 100..101,
                    keys: Keys::Pass(vec![keys(120, 80)]),
                },
            ];
            self.poison()?;
            let [q, q_tried] = self.activations(101, heads * head_dim, 6.0)?;
            let [k, k_tried] = self.activations(200, kv_heads * head_dim, 6.0)?;
            let [v, v_tried] = self.activations(200, kv_heads * head_dim, 2.0)?;
            let attend = |ops: &Ops, q: &Activation, k: &Activation, v: &Activation| {
                let keys = KeyRows {
                    pass: Some([k, v]),
                    caches: &[],
                    layer: 0,
                };
                let tasks = ops.attention_tasks(ranges.clone())?;
                ops.attend(q, &keys, shape, &tasks)
            };
            let expected = attend(&self.cpu, &q, &k, &v)?;
            let found = attend(&self.tried, &q_tried, &k_tried, &v_tried)?;
            let name = format!("attention, {heads} heads over {kv_heads} of {head_dim}");
            self.check(name, [&expected, &found])?;
        }
        Ok(())
    }

    /// Queries of several sequences at once, each of which sees what is kept of its own.
    fn sequences(&mut self) -> Result<(), EngineError> {
        let shape = AttentionShape {
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
        };
        // Positions before this pass, and in it.
        let lengths = [(0, 33), (70, 1), (5, 0), (20, 2), (9, 140)];
        let before: usize = lengths.iter().map(|(before, _)| before).sum();
        let next: usize = lengths.iter().map(|(_, next)| next).sum();
        self.poison()?;
        let q = self.activations(next, shape.heads * shape.head_dim, 6.0)?;
        let kept = self.activations(before, shape.kv_heads * shape.head_dim, 2.0)?;
        let k = self.activations(next, shape.kv_heads * shape.head_dim, 6.0)?;
        let v = self.activations(next, shape.kv_heads * shape.head_dim, 2.0)?;
        let mut results = Vec::new();
        for (side, ops) in [&self.cpu, &self.tried].into_iter().enumerate() {
            // Random numbers are those that the tried device's hold, so that the CPU keeps the same.
            let cache_shape = CacheShape {
                layers: 2,
                kv_heads: shape.kv_heads,
                head_dim: shape.head_dim,
                format: computed_format(&ops.device().profile()),
            };
            let (mut from, mut start) = (0, 0);
            let (mut caches, mut ranges) = (Vec::new(), Vec::new());
            for (index, (before, next)) in lengths.into_iter().enumerate() {
                let mut cache = ops.cache(cache_shape, before + next + 3)?;
                let rows = from..from + before;
                ops.put(&mut cache, 1, [&kept[side], &kept[side]], rows, 0)?;
                let rows = start..start + next;
                ops.put(&mut cache, 1, [&k[side], &v[side]], rows.clone(), before)?;
                // The third sequence has no queries, in the fourth each sees all, and those of the last are out of order.
                let keys = match index {
                    3 => Keys::Kept {
                        cache: index,
                        segments: vec![KeySegment {
                            start: 1,
                            len: before + next - 1,
                        }],
                    },
                    4 => Keys::Causal {
                        cache: index,
                        places: (before + 71..before + next)
                            .chain(before..before + 71)
                            .collect(),
                    },
                    _ => Keys::Causal {
                        cache: index,
                        places: (before..before + next).collect(),
                    },
                };
                ranges.push(AttentionRange {
                    queries: rows,
                    keys,
                });
                caches.push(cache);
                from += before;
                start += next;
            }
            let tasks = ops.attention_tasks(ranges)?;
            let caches: Vec<_> = caches.iter().collect();
            let keys = KeyRows {
                pass: None,
                caches: &caches,
                layer: 1,
            };
            results.push(ops.attend(&q[side], &keys, shape, &tasks)?);
        }
        self.check(
            "attention, of several sequences to what is kept".to_owned(),
            [&results[0], &results[1]],
        )
    }

    /// Attention to the keys of a cache that queries look at most.
    fn chosen_keys(&mut self) -> Result<(), EngineError> {
        let shape = AttentionShape {
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
        };
        const PLACES: usize = 200;
        let places = [3..90, 110..111, 140..199];
        self.poison()?;
        let q = self.activations(21, shape.heads * shape.head_dim, 6.0)?;
        let k = self.activations(PLACES, shape.kv_heads * shape.head_dim, 6.0)?;
        let v = self.activations(PLACES, shape.kv_heads * shape.head_dim, 2.0)?;
        let mut results = Vec::new();
        for (side, ops) in [&self.cpu, &self.tried].into_iter().enumerate() {
            let mut cache = ops.cache(
                CacheShape {
                    layers: 2,
                    kv_heads: shape.kv_heads,
                    head_dim: shape.head_dim,
                    format: computed_format(&ops.device().profile()),
                },
                PLACES,
            )?;
            for layer in 0..2 {
                ops.put(&mut cache, layer, [&k[side], &v[side]], 0..PLACES, 0)?;
                // Layers look by different queries.
                let queries = 10 * layer..10 * layer + 11;
                ops.choose_salient(&mut cache, layer, &q[side], queries, shape, &places, 60)?;
            }
            ops.settle(&mut cache)?;
            let attended = (0..2).map(|layer| {
                let tasks = ops.attention_tasks(vec![AttentionRange {
                    queries: 0..21,
                    keys: Keys::Kept {
                        cache: 0,
                        segments: vec![KeySegment { start: 0, len: 60 }],
                    },
                }])?;
                let keys = KeyRows {
                    pass: None,
                    caches: &[&cache],
                    layer,
                };
                ops.attend(&q[side], &keys, shape, &tasks)
            });
            results.push(attended.collect::<Result<Vec<_>, _>>()?);
        }
        for (layer, (expected, found)) in results[0].iter().zip(&results[1]).enumerate() {
            let name = format!("attention to chosen keys, layer {layer}");
            self.check(name, [expected, found])?;
        }
        Ok(())
    }

    /// A head and rows of which each is most like one of the head's, so that the choice is clear whatever is rounded.
    fn head_and_rows(
        &mut self,
        count: usize,
    ) -> Result<(Stored, [Activation; 2], Vec<u32>), EngineError> {
        const WIDTH: usize = 64;
        const VOCABULARY: usize = 5_000;
        let numbers = self.numbers(VOCABULARY * WIDTH, 1.0);
        let head = self.stored_as(&numbers, VOCABULARY, WIDTH)?;
        let targets: Vec<u32> = (0..count)
            .map(|row| (row * 397 % (VOCABULARY - 1000)) as u32)
            .collect();
        let of_target = |&target: &u32| &numbers[target as usize * WIDTH..][..WIDTH];
        let values: Vec<f32> = targets.iter().flat_map(of_target).copied().collect();
        let number = self.tried.device().number();
        let rows = [
            self.cpu.matrix(count, WIDTH, &values, Number::F32)?,
            self.tried.matrix(count, WIDTH, &values, number)?,
        ];
        Ok((head, rows, targets))
    }

    fn stored_as(
        &mut self,
        numbers: &[f32],
        rows: usize,
        width: usize,
    ) -> Result<Stored, EngineError> {
        let mut words = vec![0u64; size_of_val(numbers) / size_of::<u64>()];
        bytemuck::cast_slice_mut(&mut words).copy_from_slice(numbers);
        let (device, ledger) = (self.tried.device(), self.tried.ledger());
        let tried = DeviceBuffer::filled(device, ledger, Kind::Weights, words.len(), |memory| {
            memory.copy_from_slice(&words);
        })?;
        Ok(Stored {
            format: Format::F32,
            rows,
            width,
            numbers: numbers.to_vec(),
            tried,
            decoded: self.decoded.on_card(),
        })
    }

    fn heads(&mut self) -> Result<(), EngineError> {
        let plain = HeadKind {
            name: "plain",
            guidance: None,
            temperature: 0.0,
            suppresses: false,
        };
        let kinds = [
            plain,
            HeadKind {
                name: "guided",
                guidance: Some(0.7),
                ..plain
            },
            HeadKind {
                name: "noised",
                temperature: 0.3,
                ..plain
            },
            HeadKind {
                name: "suppressed",
                suppresses: true,
                ..plain
            },
        ];
        for kind in kinds {
            self.heads_of(kind.name, &[kind])?;
        }
        self.heads_of("together", &kinds)
    }

    /// Some rows of each kind, all in one pass.
    fn heads_of(&mut self, name: &str, kinds: &[HeadKind]) -> Result<(), EngineError> {
        const ROWS: usize = 40;
        self.poison()?;
        let inputs = |kind: &HeadKind| ROWS * if kind.guidance.is_some() { 2 } else { 1 };
        let (head, x, targets) = self.head_and_rows(kinds.iter().map(inputs).sum())?;
        let mut rest = &targets[..];
        let targets = kinds.iter().map(|kind| {
            let (here, later) = rest.split_at(inputs(kind));
            rest = later;
            here
        });
        let targets: Vec<&[u32]> = targets.collect();
        let rows = targets.iter().map(|targets| {
            let row = |row: usize| HeadRow {
                position: row + 3,
                may_end: row.is_multiple_of(2),
                target: (!row.is_multiple_of(3)).then_some(targets[row]),
                watched: Vec::new(),
                is_check: false,
            };
            (0..ROWS).map(row).collect()
        });
        let rows: Vec<Vec<HeadRow>> = rows.collect();
        let choices = kinds.iter().zip(&targets);
        let choices = choices.map(|(kind, targets)| Choice {
            temperature: kind.temperature,
            noise: self.noise,
            pass: 5,
            guidance: kind.guidance,
            vocabulary: head.rows - 500,
            mask_token_id: targets[4],
            end_tokens: &targets[6..8],
            suppressed: if kind.suppresses { &targets[1..3] } else { &[] },
            ranking: Ranking::Confidence,
            top: false,
        });
        let choices: Vec<Choice<'_>> = choices.collect();
        let mut results = Vec::new();
        for (ops, x, weight) in [
            (&self.cpu, &x[0], head.on_cpu()),
            (&self.tried, &x[1], head.on_tried()),
        ] {
            let half = head.rows / 2 + 3;
            let groups = rows.iter().zip(&choices);
            let groups = groups.map(|(rows, choice)| HeadGroup {
                rows,
                choice: choice.clone(),
                distributions: None,
            });
            let mut reduction = ops.start_head(groups.collect(), half)?;
            for (from, to) in [(0, half), (half, head.rows)] {
                ops.reduce_head(&mut reduction, x, &weight.rows(from, to), from)?;
            }
            results.push(reduction.candidates()?);
        }
        let (mut differing, mut worst) = (0, 0.0f64);
        for (index, ((rows, choice), targets)) in
            rows.iter().zip(&choices).zip(&targets).enumerate()
        {
            let pairs = results[0][index].iter().zip(&results[1][index]);
            for ((row, &target), (expected, found)) in rows.iter().zip(*targets).zip(pairs) {
                // Rows whose best token may not be chosen have no clear second.
                let is_clear = target != choice.mask_token_id
                    && (row.may_end || !choice.end_tokens.contains(&target))
                    && !choice.suppressed.contains(&target)
                    && (target as usize) < choice.vocabulary;
                if !is_clear {
                    continue;
                }
                differing += usize::from(expected.token != found.token);
                let confidences = [expected, found].map(|candidate| candidate.confidence.ln());
                worst = worse(worst, (confidences[0] - confidences[1]).abs());
                let targets = [expected, found].map(|candidate| candidate.target_log_probability);
                assert_eq!(targets[0].is_some(), row.target.is_some());
                if let [Some(expected), Some(found)] = targets {
                    worst = worse(worst, (expected - found).abs());
                }
            }
        }
        self.record(
            format!("head, {name}: rows with another token"),
            f64::from(differing as u32),
            0.0,
        );
        // Logits are products of 64 terms of about 1/12.
        let tolerance = 10.0 * self.tolerance();
        self.record(
            format!("head, {name}: log-probabilities, in nats"),
            worst,
            tolerance,
        );
        Ok(())
    }

    fn logits(&mut self) -> Result<(), EngineError> {
        const ROWS: usize = 3;
        self.poison()?;
        let (head, x, _) = self.head_and_rows(ROWS)?;
        let mut results = Vec::new();
        for (ops, x, weight) in [
            (&self.cpu, &x[0], head.on_cpu()),
            (&self.tried, &x[1], head.on_tried()),
        ] {
            // Room for more rows than come.
            let mut logits = ops.logits_rows(ROWS + 1, head.rows)?;
            for (from, to) in [(0, 1801), (1801, head.rows)] {
                ops.take_logits(&mut logits, x, &weight.rows(from, to), from)?;
            }
            let mut all = Vec::new();
            for row in (0..ROWS).rev() {
                all.extend_from_slice(ops.read_logits(&mut logits, row)?.0);
            }
            results.push(all);
        }
        let pairs = results[0].iter().zip(&results[1]);
        let worst = pairs.fold(0.0, |worst, (expected, found)| {
            worse(worst, f64::from((expected - found).abs()))
        });
        let tolerance = 10.0 * self.tolerance();
        self.record("logits of several rows".to_owned(), worst, tolerance);
        Ok(())
    }

    fn comparisons(&mut self) -> Result<(), EngineError> {
        self.poison()?;
        let (one, x, targets) = self.head_and_rows(30)?;
        let other = self.stored(one.rows, one.width, Format::F32, 1.0)?;
        let mut results = Vec::new();
        for (ops, x, heads) in [
            (&self.cpu, &x[0], [one.on_cpu(), other.on_cpu()]),
            (&self.tried, &x[1], [one.on_tried(), other.on_tried()]),
        ] {
            let half = one.rows / 2 + 3;
            let mut comparison = ops.start_comparison(&targets, half)?;
            for (from, to) in [(0, half), (half, one.rows)] {
                let parts = heads.map(|head| head.rows(from, to));
                ops.compare_heads(&mut comparison, [x, x], [&parts[0], &parts[1]], from)?;
            }
            results.push(comparison.divergences()?);
        }
        let mut worst = 0.0f64;
        for (expected, found) in results[0].iter().zip(&results[1]) {
            worst = worse(worst, (expected.kl - found.kl).abs());
            for side in 0..2 {
                worst = worse(worst, (expected.target[side] - found.target[side]).abs());
            }
        }
        let tolerance = 10.0 * self.tolerance();
        self.record("comparison of heads, in nats".to_owned(), worst, tolerance);
        Ok(())
    }
}

/// The largest difference, relative to the largest number expected; not a number where one of `found` isn't.
fn distance(expected: &[f32], found: &[f32]) -> f64 {
    if expected.len() != found.len() || found.iter().any(|value| !value.is_finite()) {
        return f64::NAN;
    }
    let largest = expected
        .iter()
        .fold(0.0f32, |most, value| most.max(value.abs()));
    let pairs = expected.iter().zip(found);
    let worst = pairs.map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs());
    worst.fold(0.0, worse) / f64::from(largest.max(f32::MIN_POSITIVE))
}
