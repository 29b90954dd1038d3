//! A store of posteriors of training texts, from which a prior can be learned.

use std::{collections::HashMap, path::Path};

use anyhow::{Context, Result, bail, ensure};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use super::{LatentOptions, Posterior, infer, seen};
use crate::{
    batch::{Batch, BatchOptions},
    config::LatentThoughtConfig,
    file,
    model::Model,
    objective::Objective,
    parallel,
    random::Random,
    text::Data,
};

/// Texts that are fitted together.
const BATCH_TOKENS: usize = 1024;

/// Posteriors of texts.
#[derive(Debug, Clone, PartialEq)]
pub struct Posteriors {
    /// Latent vectors of each text.
    pub vectors: usize,
    /// Width of a vector.
    pub width: usize,
    /// All posteriors, one text after another.
    pub all: Posterior,
    /// The tokens of all texts.
    pub ids: Vec<u32>,
    /// Tokens of each text.
    pub lengths: Vec<u32>,
}

/// Infers the posteriors of so many training texts.
pub fn collect(
    model: &Model,
    config: &LatentThoughtConfig,
    data: &Data,
    latent: &LatentOptions,
    count: usize,
    seed: u64,
    threads: usize,
) -> Result<Posteriors> {
    let options = BatchOptions {
        text: data.text.as_ref().map(|text| *text.facts()),
        seed,
        objective: Objective::Latent,
        parts: 1,
        part_tokens: BATCH_TOKENS,
        length_max: config.max_seq_len,
        length_warm_up_steps: 0,
        exercise_steps: 0,
    };
    let mut parts = Vec::new();
    let mut texts = 0;
    for step in 0.. {
        if texts >= count {
            break;
        }
        let batch = Batch::draw(&options, data, step)?;
        let part = batch
            .parts
            .into_iter()
            .next()
            .context("a batch has a part")?;
        texts += part.prompts.len();
        parts.push((step, part));
    }
    let frozen = model.frozen()?;
    let fast = latent.at(1.0);
    let found = parallel::map(threads, &parts, |(step, part)| {
        let mut random = Random::new(seed ^ 0x706f_7374, *step);
        let initial = latent.initial_log_variance;
        infer(
            &frozen,
            config,
            &seen(part, || false),
            &fast,
            initial,
            None,
            &mut random,
        )
    })?;
    let mut all = Posteriors {
        vectors: config.max_z_len,
        width: config.dim,
        all: Posterior {
            mean: Vec::new(),
            log_variance: Vec::new(),
        },
        ids: Vec::new(),
        lengths: Vec::new(),
    };
    for (posterior, (_, part)) in found.into_iter().zip(&parts) {
        all.all.mean.extend(posterior.mean);
        all.all.log_variance.extend(posterior.log_variance);
        all.ids.extend(&part.ids);
        all.lengths
            .extend(part.pack.sequences().map(|rows| rows.len() as u32));
    }
    // The last part has more texts than were wanted.
    let size = all.vectors * all.width;
    all.lengths.truncate(count);
    let tokens: u32 = all.lengths.iter().sum();
    all.ids.truncate(tokens as usize);
    all.all.mean.truncate(count * size);
    all.all.log_variance.truncate(count * size);
    Ok(all)
}

impl Posteriors {
    /// Writes the file.
    pub fn write(&self, path: &Path) -> Result<()> {
        let floats = |values: &[f32]| {
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect()
        };
        let numbers = |values: &[u32]| {
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect()
        };
        let shape = vec![self.lengths.len(), self.vectors, self.width];
        let tensors: [(&str, Dtype, Vec<usize>, Vec<u8>); 4] = [
            ("mean", Dtype::F32, shape.clone(), floats(&self.all.mean)),
            (
                "log_variance",
                Dtype::F32,
                shape,
                floats(&self.all.log_variance),
            ),
            ("ids", Dtype::U32, vec![self.ids.len()], numbers(&self.ids)),
            (
                "lengths",
                Dtype::U32,
                vec![self.lengths.len()],
                numbers(&self.lengths),
            ),
        ];
        let views = tensors.iter().map(|(name, dtype, shape, data)| {
            Ok((*name, TensorView::new(*dtype, shape.clone(), data)?))
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        file::replace(path, safetensors::serialize(views, None::<HashMap<_, _>>)?)
    }

    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let tensors = SafeTensors::deserialize(&bytes)
            .with_context(|| format!("understand {}", path.display()))?;
        let words = |name: &str| -> Result<Vec<[u8; 4]>> {
            let view = tensors
                .tensor(name)
                .with_context(|| format!("find {name}"))?;
            let words = view.data().chunks_exact(4);
            Ok(words
                .map(|four| [four[0], four[1], four[2], four[3]])
                .collect())
        };
        let floats = |name: &str| -> Result<Vec<f32>> {
            Ok(words(name)?.into_iter().map(f32::from_le_bytes).collect())
        };
        let numbers = |name: &str| -> Result<Vec<u32>> {
            Ok(words(name)?.into_iter().map(u32::from_le_bytes).collect())
        };
        let view = tensors.tensor("mean").context("find mean")?;
        let [_, vectors, width] = *view.shape() else {
            bail!("{} holds no posteriors", path.display());
        };
        let found = Self {
            vectors,
            width,
            all: Posterior {
                mean: floats("mean")?,
                log_variance: floats("log_variance")?,
            },
            ids: numbers("ids")?,
            lengths: numbers("lengths")?,
        };
        ensure!(
            found.all.mean.len() == found.all.log_variance.len() && !found.all.mean.is_empty(),
            "{} holds no posteriors",
            path.display()
        );
        Ok(found)
    }
}
