//! Models from GGUF files, loaded and run.

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use sluice_checkpoint::{Checkpoint, Source};
use sluice_engine::{
    model::network::{Interrupt, Network, Sequence, VisibleKeys, logits},
    residency::{LoadOutcome, Residency, WeightReader},
};
use sluice_formats::Format;
use sluice_machine::Profile;
use sluice_ops::{Activation, KvCacheShape, Ops, device::Device, ledger::Ledger};
use sluice_plan::{Machine, Plan, PlanInput, WorkingMemory, Workload};
use sluice_shared::{level::Level, options::ResolvedPlanSettings};

/// A model with its weights.
pub(crate) struct Loaded {
    ops: Ops,
    model: Network,
    weights: Residency,
    kv_cache: KvCacheShape,
}

impl Loaded {
    /// All of it in this share of the memory that its weights take.
    pub(crate) fn new(path: &Path, share: f64) -> Self {
        Self::at_level(path, share, Level::Standard)
    }

    /// The same at another level.
    pub(crate) fn at_level(path: &Path, share: f64, level: Level) -> Self {
        let checkpoint = Checkpoint::open(&Source::Folder(path.to_owned())).unwrap();
        let config = checkpoint.model().unwrap();
        let shape = config.shape.clone();
        let ops = Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap();
        let model = Network::new(config, &ops).unwrap();
        let sources = checkpoint.sources(shape.tensors()).unwrap();
        let machine = Machine::unmeasured(Profile::cpu(2), u64::MAX);
        let mut question = PlanInput {
            shape: &shape,
            sources: &sources,
            choices: ResolvedPlanSettings::from(level),
            budget_bytes: u64::MAX,
            workload: Workload::default(),
            working: WorkingMemory::default(),
            machine: &machine,
        };
        let whole = Plan::new(&question).unwrap();
        question.budget_bytes = (whole.peak_bytes() as f64 * share) as u64;
        let plan = Plan::new(&question).unwrap();
        assert_eq!(plan.streamed().next().is_some(), share < 1.0);
        let reader = Arc::new(WeightReader::new(Arc::new(checkpoint), &sources));
        let never = AtomicBool::new(false);
        let (device, ledger) = (ops.device(), ops.ledger());
        let loaded = Residency::load(&plan, reader, device, ledger, &never, &mut |_| {});
        let LoadOutcome::Done(weights) = loaded.unwrap() else {
            unreachable!("nobody cancels");
        };
        Self {
            kv_cache: KvCacheShape::of(&shape, Format::F32),
            ops,
            model,
            weights,
        }
    }

    /// The logits of all positions of a canvas.
    pub(crate) fn logits(&self, tokens: &[u32]) -> Vec<f32> {
        let wanted: Vec<usize> = (0..tokens.len()).collect();
        let canvas = Sequence {
            tokens,
            positions: &wanted,
            wanted: &wanted,
            sees: VisibleKeys::Each { checks: 0 },
        };
        let never = AtomicBool::new(false);
        self.lm_head(
            self.model
                .forward(&self.ops, &self.weights, &mut [canvas], &never),
        )
    }

    fn lm_head(&self, hidden: Result<Activation, Interrupt>) -> Vec<f32> {
        let hidden = hidden.unwrap_or_else(|interrupt| match interrupt {
            Interrupt::Failed(error) => panic!("{error}"),
            Interrupt::Cancelled => unreachable!("nobody cancels"),
        });
        let hidden = self.model.final_norm(&self.ops, &self.weights, &hidden);
        logits(&self.ops, &self.weights, &hidden.unwrap()).unwrap()
    }

    /// The logits behind the prompt, and the likeliest tokens after it.
    pub(crate) fn continued(&self, prompt: &[u32], tokens: usize) -> (Vec<f32>, Vec<u32>) {
        let never = AtomicBool::new(false);
        let mut cache = self
            .ops
            .kv_cache(self.kv_cache, prompt.len() + tokens)
            .unwrap();
        let mut next = |tokens: &[u32]| {
            let last = [tokens.len() - 1];
            let (ops, weights) = (&self.ops, &self.weights);
            let positions: Vec<_> = (cache.len()..cache.len() + tokens.len()).collect();
            let cache = &mut cache;
            let next = Sequence {
                tokens,
                positions: &positions,
                wanted: &last,
                sees: VisibleKeys::Before { cache },
            };
            self.lm_head(self.model.forward(ops, weights, &mut [next], &never))
        };
        let first = next(prompt);
        let mut answer = vec![best(&first)];
        while answer.len() < tokens {
            let found = next(&answer[answer.len() - 1..]);
            answer.push(best(&found));
        }
        (first, answer)
    }
}

fn best(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.expect("there is a vocabulary").0 as u32
}
