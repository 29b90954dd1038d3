//! The choice of tokens on a device compared with the CPU's.

use sluice_formats::{DType, Format};
use sluice_machine::MemoryKind;
use sluice_ops::{
    Activation, LmHeadGroup, LmHeadRow, LogitScaling, RankingScore, SamplingParams,
    device::DeviceBuffer,
};

use sluice_engine::{EngineError, check::worse};

use super::{DevicePair, StoredWeight, distance};

/// A way to choose tokens from rows.
#[derive(Clone, Copy)]
struct LmHeadCase {
    name: &'static str,
    guidance: Option<f64>,
    temperature: f64,
    suppresses: bool,
    /// As canvases of random tokens are: bounded logits, entropies, the most probable tokens and soft embeddings.
    denoises: bool,
}

impl DevicePair<'_> {
    /// An LM head, and rows each of which resembles one of its rows most, so that the choice is clear whatever is
    /// rounded.
    fn lm_head_and_rows(
        &mut self,
        count: usize,
    ) -> Result<(StoredWeight, [Activation; 2], Vec<u32>), EngineError> {
        const WIDTH: usize = 64;
        const VOCABULARY: usize = 5_000;
        let numbers = self.elements(VOCABULARY * WIDTH, 1.0);
        let head = self.stored_as(&numbers, VOCABULARY, WIDTH)?;
        let targets: Vec<u32> = (0..count)
            .map(|row| (row * 397 % (VOCABULARY - 1000)) as u32)
            .collect();
        let of_target = |&target: &u32| &numbers[target as usize * WIDTH..][..WIDTH];
        let values: Vec<f32> = targets.iter().flat_map(of_target).copied().collect();
        let number = self.tried.device().dtype();
        let rows = [
            self.cpu.matrix(count, WIDTH, &values, DType::F32)?,
            self.tried.matrix(count, WIDTH, &values, number)?,
        ];
        Ok((head, rows, targets))
    }

    fn stored_as(
        &mut self,
        elements: &[f32],
        rows: usize,
        width: usize,
    ) -> Result<StoredWeight, EngineError> {
        let mut words = vec![0u64; size_of_val(elements) / size_of::<u64>()];
        bytemuck::cast_slice_mut(&mut words).copy_from_slice(elements);
        let (device, ledger) = (self.tried.device(), self.tried.ledger());
        let tried =
            DeviceBuffer::filled(device, ledger, MemoryKind::Weights, words.len(), |memory| {
                memory.copy_from_slice(&words);
            })?;
        Ok(StoredWeight {
            format: Format::F32,
            rows,
            width,
            elements: elements.to_vec(),
            tried,
            decompressed: self.decompressed.on_gpu(),
        })
    }

    pub(super) fn lm_heads(&mut self) -> Result<(), EngineError> {
        let plain = LmHeadCase {
            name: "plain",
            guidance: None,
            temperature: 0.0,
            suppresses: false,
            denoises: false,
        };
        let kinds = [
            plain,
            LmHeadCase {
                name: "guided",
                guidance: Some(0.7),
                ..plain
            },
            LmHeadCase {
                name: "noised",
                temperature: 0.3,
                ..plain
            },
            LmHeadCase {
                name: "suppressed",
                suppresses: true,
                ..plain
            },
            LmHeadCase {
                name: "denoised",
                temperature: 0.3,
                denoises: true,
                ..plain
            },
        ];
        for kind in kinds {
            self.lm_heads_of(kind.name, &[kind])?;
        }
        self.lm_heads_of("together", &kinds)
    }

    /// Checks some rows of each kind, all in one pass.
    fn lm_heads_of(&mut self, name: &str, kinds: &[LmHeadCase]) -> Result<(), EngineError> {
        const ROWS: usize = 40;
        self.poison()?;
        let inputs = |kind: &LmHeadCase| ROWS * if kind.guidance.is_some() { 2 } else { 1 };
        let (head, x, targets) = self.lm_head_and_rows(kinds.iter().map(inputs).sum())?;
        let mut rest = &targets[..];
        let targets = kinds.iter().map(|kind| {
            let (here, later) = rest.split_at(inputs(kind));
            rest = later;
            here
        });
        let targets: Vec<&[u32]> = targets.collect();
        let rows = targets.iter().map(|targets| {
            let row = |row: usize| LmHeadRow {
                position: row + 3,
                may_end: row.is_multiple_of(2),
                target: (!row.is_multiple_of(3)).then_some(targets[row]),
                watched: Vec::new(),
                is_check: false,
            };
            (0..ROWS).map(row).collect()
        });
        let rows: Vec<Vec<LmHeadRow>> = rows.collect();
        let choices = kinds.iter().zip(&targets);
        let choices = choices.map(|(kind, targets)| SamplingParams {
            temperature: kind.temperature,
            noise: self.noise,
            pass: 5,
            guidance: kind.guidance,
            // Below the rows of the matrix, as padded vocabularies are: the rows beyond it must never be chosen.
            vocab_size: head.rows - 500,
            mask_token_id: Some(targets[4]),
            end_tokens: &targets[6..8],
            suppressed: if kind.suppresses { &targets[1..3] } else { &[] },
            ranking: match kind.denoises {
                true => RankingScore::Entropy,
                false => RankingScore::Confidence,
            },
            top: kind.denoises,
            scaling: kind.denoises.then_some(LogitScaling {
                soft_cap: Some(30.0),
                temperature: 0.6,
            }),
        });
        let choices: Vec<SamplingParams<'_>> = choices.collect();
        let (mut results, mut softs) = (Vec::new(), Vec::new());
        for (ops, x, weight) in [
            (&self.cpu, &x[0], head.on_cpu()),
            (&self.tried, &x[1], head.on_tried()),
        ] {
            // In two unequal parts, and not at a multiple of any tile, as an LM head that is streamed arrives in parts.
            let half = head.rows / 2 + 3;
            let soft = kinds.iter().map(|kind| match kind.denoises {
                true => ops.soft_embeddings(ROWS, head.width).map(Some),
                false => Ok(None),
            });
            let mut soft = soft.collect::<Result<Vec<_>, _>>()?;
            let groups = rows.iter().zip(&choices).zip(&mut soft);
            let groups = groups.map(|((rows, choice), soft)| LmHeadGroup {
                rows,
                sampling: choice.clone(),
                distributions: None,
                soft: soft.as_mut(),
            });
            let mut reduction = ops.start_lm_head(groups.collect(), half)?;
            for (from, to) in [(0, half), (half, head.rows)] {
                ops.reduce_lm_head(&mut reduction, x, &weight.rows(from, to), from)?;
            }
            results.push(reduction.candidates()?);
            let soft = soft.iter().flatten().map(|soft| {
                let rows = ops.embed_soft(soft, 2.0)?;
                ops.read(&rows)
            });
            softs.push(soft.collect::<Result<Vec<_>, _>>()?.concat());
        }
        let (mut differing, mut worst) = (0, 0.0f64);
        for (index, ((rows, choice), targets)) in
            rows.iter().zip(&choices).zip(&targets).enumerate()
        {
            let pairs = results[0][index].iter().zip(&results[1][index]);
            for ((row, &target), (expected, found)) in rows.iter().zip(*targets).zip(pairs) {
                // Rows whose best token must not be chosen have no clear second.
                let is_clear = Some(target) != choice.mask_token_id
                    && (row.may_end || !choice.end_tokens.contains(&target))
                    && !choice.suppressed.contains(&target)
                    && (target as usize) < choice.vocab_size;
                if !is_clear {
                    continue;
                }
                differing += usize::from(expected.token != found.token);
                let confidences = [expected, found].map(|candidate| candidate.confidence.ln());
                worst = worse(worst, (confidences[0] - confidences[1]).abs());
                if choice.top {
                    worst = worse(worst, (expected.rank - found.rank).abs());
                    let tops = [expected, found].map(|candidate| candidate.evidence.top);
                    let [Some(expected), Some(found)] = tops else {
                        unreachable!("it was asked for")
                    };
                    differing += usize::from(expected.token != found.token);
                    let log_probabilities = expected.log_probability - found.log_probability;
                    worst = worse(worst, log_probabilities.abs());
                }
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
        // Logits are sums of 64 products of about 1/12 each.
        let tolerance = 10.0 * self.tolerance();
        self.record(
            format!("head, {name}: log-probabilities, in nats"),
            worst,
            tolerance,
        );
        if let [expected, found] = &softs[..]
            && !expected.is_empty()
        {
            let error = distance(expected, found);
            let name = format!("head, {name}: soft embeddings");
            self.record(name, error, self.tolerance());
        }
        Ok(())
    }

    pub(super) fn logits(&mut self) -> Result<(), EngineError> {
        const ROWS: usize = 3;
        self.poison()?;
        let (head, x, _) = self.lm_head_and_rows(ROWS)?;
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

    pub(super) fn comparisons(&mut self) -> Result<(), EngineError> {
        self.poison()?;
        let (one, x, targets) = self.lm_head_and_rows(30)?;
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
                ops.compare_lm_heads(&mut comparison, [x, x], [&parts[0], &parts[1]], from)?;
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
