//! A network with trainable weights: what all kinds have in common, so that gradients, optimizer, rounding and
//! checkpoints know no kind.

mod latent_thought;
mod rwkv7;
mod transformer;

use std::{collections::BTreeMap, iter, ops::Range, slice};

use anyhow::{Context as _, Result, ensure};
use candle_core::{DType, Device, Tensor, Var};
use half::bf16;

use self::{latent_thought::LatentThought, rwkv7::Rwkv7, transformer::Transformer};
use crate::{config::ModelConfig, ops::Pack};

/// The network. Its weights are candle variables, so that a loss computed from it has gradients.
pub struct Model {
    /// The shape of the network.
    pub config: ModelConfig,
    variables: Vec<(String, Var)>,
    network: Network,
    /// What is kept of a pass for its gradients.
    activations: DType,
}

enum Network {
    Transformer(Transformer),
    Rwkv7(Rwkv7),
    LatentThought(LatentThought),
}

/// What goes into every layer beside the rows of the residual stream.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// How the rows divide into sequences.
    pub pack: &'a Pack,
    /// The latent vectors of a latent thought model, `[sequences · vectors, width]`: those of a sequence in the order of
    /// the layers that see them.
    pub latents: Option<&'a Tensor>,
}

impl<'a> From<&'a Pack> for Context<'a> {
    fn from(pack: &'a Pack) -> Self {
        Self {
            pack,
            latents: None,
        }
    }
}

/// What goes from one layer to the next.
#[derive(Debug, Clone)]
pub struct Stream {
    /// The residual stream: `[rows of the pack, width]`.
    pub x: Tensor,
    /// The first layer's values, which all other layers of an RWKV-7 read: `[rows of the pack, width]`.
    pub first_values: Option<Tensor>,
}

impl Stream {
    /// The tensors that hold a stream.
    #[must_use]
    pub fn tensors(&self) -> Vec<&Tensor> {
        iter::once(&self.x).chain(&self.first_values).collect()
    }

    /// The stream of such tensors.
    pub fn from_tensors(tensors: impl IntoIterator<Item = Tensor>) -> Result<Self> {
        let mut tensors = tensors.into_iter();
        Ok(Self {
            x: tensors.next().context("a stream has rows")?,
            first_values: tensors.next(),
        })
    }

    /// The same values without what they were computed from.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self {
            x: self.x.detach(),
            first_values: self.first_values.as_ref().map(Tensor::detach),
        }
    }
}

impl Model {
    /// A network with fresh random weights. The mask, where there is one, is left out of what attention copies at first.
    pub fn random(
        config: impl Into<ModelConfig>,
        seed: u64,
        mask_id: impl Into<Option<u32>>,
        device: &Device,
    ) -> Result<Self> {
        let config = config.into();
        config.check()?;
        let weights = match &config {
            ModelConfig::Transformer(config) => {
                transformer::random_weights(config, seed, mask_id.into())?
            }
            ModelConfig::Rwkv7(config) => rwkv7::random_weights(config, seed)?,
            ModelConfig::LatentThought(config) => latent_thought::random_weights(config, seed),
        };
        Self::from_weights(config, weights, device)
    }

    /// A network with the given weights, which must be exactly those the shape asks for.
    pub fn from_weights(
        config: impl Into<ModelConfig>,
        mut weights: BTreeMap<String, Vec<f32>>,
        device: &Device,
    ) -> Result<Self> {
        let config = config.into();
        config.check()?;
        let mut variables = Vec::new();
        for (name, shape) in config.tensors() {
            let values = weights
                .remove(&name)
                .with_context(|| format!("the weights lack {name}"))?;
            let tensor =
                Tensor::from_vec(values, shape, device).with_context(|| format!("load {name}"))?;
            variables.push((name, Var::from_tensor(&tensor)?));
        }
        // A variable and the tensor made from it share their storage, so layers see every update.
        let tensors: Vec<_> = variables
            .iter()
            .map(|(_, variable)| variable.as_tensor().clone())
            .collect();
        Ok(Self {
            network: Network::new(&config, &tensors)?,
            config,
            variables,
            activations: DType::F32,
        })
    }

    /// The same network with weights that no loss has gradients for; it shares their storage.
    pub fn frozen(&self) -> Result<Self> {
        let tensors: Vec<_> = self
            .variables
            .iter()
            .map(|(_, variable)| variable.as_tensor().detach())
            .collect();
        Ok(Self {
            network: Network::new(&self.config, &tensors)?,
            config: self.config.clone(),
            variables: Vec::new(),
            activations: self.activations,
        })
    }

    /// A network of its own with these weights in BF16, for mixed precision: passes keep BF16, too, and every operation
    /// computes in f32. Weights stay in f32 memory, so that their gradients do, which are sums over many rows.
    pub fn half(&self) -> Result<Self> {
        let weights = self.variables.iter().map(|(name, variable)| {
            let values = variable.flatten_all()?.to_vec1::<f32>()?.into_iter();
            let values = values.map(|value| bf16::from_f32(value).to_f32());
            Ok((name.clone(), values.collect()))
        });
        let weights = weights.collect::<Result<_>>()?;
        let half = Self::from_weights(self.config.clone(), weights, self.device())?;
        Ok(half.keeping_half())
    }

    /// The same network, of whose passes BF16 is kept.
    #[must_use]
    pub fn keeping_half(mut self) -> Self {
        self.activations = DType::BF16;
        self
    }

    /// The trainable weights by name, always in the same order.
    #[must_use]
    pub fn variables(&self) -> &[(String, Var)] {
        &self.variables
    }

    /// Where the weights live.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.embedding().device()
    }

    fn embedding(&self) -> &Tensor {
        match &self.network {
            Network::Transformer(network) => &network.embedding,
            Network::Rwkv7(network) => &network.embedding,
            Network::LatentThought(network) => &network.embedding,
        }
    }

    /// The rows of the embedding for these tokens.
    pub fn embed(&self, ids: &[u32]) -> Result<Stream> {
        let ids = Tensor::from_slice(ids, ids.len(), self.device())?;
        let x = self
            .embedding()
            .index_select(&ids, 0)?
            .to_dtype(self.activations)?;
        Ok(Stream {
            x,
            first_values: None,
        })
    }

    /// Sends the rows of a pack through a range of layers.
    pub fn layers(
        &self,
        stream: Stream,
        range: Range<usize>,
        context: Context<'_>,
    ) -> Result<Stream> {
        match &self.network {
            Network::Transformer(network) => {
                let x = network.layers(stream.x, range, context.pack)?;
                Ok(Stream { x, ..stream })
            }
            Network::Rwkv7(network) => network.layers(stream, range, context.pack),
            Network::LatentThought(network) => {
                let latents = context.latents.context("latent vectors are missing")?;
                let x = network.layers(stream.x, range, context.pack, latents)?;
                Ok(Stream { x, ..stream })
            }
        }
    }

    /// Logits of the rows at the given positions, counted over the whole pack: `[positions, vocabulary]`.
    pub fn head(&self, x: &Tensor, positions: &[u32]) -> Result<Tensor> {
        let positions = Tensor::from_slice(positions, positions.len(), x.device())?;
        // Losses are sums over the vocabulary.
        let chosen = x.index_select(&positions, 0)?.to_dtype(DType::F32)?;
        match &self.network {
            Network::Transformer(network) => network.head(&chosen),
            Network::Rwkv7(network) => network.head(&chosen),
            Network::LatentThought(network) => network.head(&chosen),
        }
    }

    /// Logits at the given positions: the three stages in a row.
    pub fn logits<'a>(
        &self,
        ids: &[u32],
        context: impl Into<Context<'a>>,
        positions: &[u32],
    ) -> Result<Tensor> {
        let context = context.into();
        ensure!(
            context.pack.rows() == ids.len(),
            "the pack has {} rows for {} tokens",
            context.pack.rows(),
            ids.len()
        );
        let stream = self.layers(self.embed(ids)?, 0..self.config.layers(), context)?;
        self.head(&stream.x, positions)
    }
}

impl Network {
    fn new(config: &ModelConfig, tensors: &[Tensor]) -> Result<Self> {
        let mut tensors = Tensors(tensors.iter());
        Ok(match config {
            ModelConfig::Transformer(config) => {
                Self::Transformer(Transformer::new(config, &mut tensors)?)
            }
            ModelConfig::Rwkv7(config) => Self::Rwkv7(Rwkv7::new(config, &mut tensors)?),
            ModelConfig::LatentThought(config) => {
                Self::LatentThought(LatentThought::new(config, &mut tensors)?)
            }
        })
    }
}

/// The tensors of a network in the order of its shape.
struct Tensors<'a>(slice::Iter<'a, Tensor>);

impl Tensors<'_> {
    fn next(&mut self) -> Result<Tensor> {
        self.0
            .next()
            .cloned()
            .context("the shape lists too few tensors")
    }
}
