//! Latent thought models beside the reference: evidence bounds with their gradients, and runs of posterior inference with
//! recorded noise.

use std::{ops::Range, path::Path, sync::atomic::AtomicBool};

use safetensors::SafeTensors;
use serde_json::Value;
use sluice_formats::DType;
use sluice_ops::Ops;
use sluice_weights::LayerKind;

use super::{
    CheckResult,
    fixtures::{FixtureModel, PlanFor, broken, cases, expected, failed, floats, ids, read},
    worse,
};
use crate::{
    error::EngineError,
    model::network::{LatentGradient, LatentText},
    posterior::{FitOptions, Posterior, PosteriorFit},
};

/// How far gradients and relative losses may be from the reference's in `f32`.
const TOLERANCE: f64 = 1e-4;
/// How far latents may be after a run of inference.
const LATENT_TOLERANCE: f64 = 1e-3;

/// Compares bounds, gradients and runs of inference with the reference's. In 16 bits runs are left out: a step goes by a
/// gradient's sign as much as by its size. Other models have nothing to compare.
///
/// # Errors
/// When the folder is not such a fixture, or a pass fails.
pub fn fixture_latents(
    folder: &Path,
    ops: &Ops,
    plan_for: &PlanFor<'_>,
) -> Result<Vec<CheckResult>, EngineError> {
    let Some(model) = FixtureModel::load(folder, ops, plan_for)? else {
        return Ok(Vec::new());
    };
    if !matches!(model.shape.layer_kind, LayerKind::LatentThought(_)) {
        return Ok(Vec::new());
    }
    let bytes = read(&folder.join("expected.safetensors"))?;
    let fixture = Fixture {
        tensors: SafeTensors::deserialize(&bytes).map_err(|_| broken(folder))?,
        folder,
        ops,
        model,
    };
    let told = expected(folder)?;
    let mut checks = Vec::new();
    for case in cases(&told, "elbo", folder)? {
        checks.extend(fixture.bound(case)?);
    }
    if ops.device().dtype() == DType::F32 {
        for case in cases(&told, "posterior", folder)? {
            checks.extend(fixture.run(case)?);
        }
    }
    Ok(checks)
}

struct Fixture<'a> {
    tensors: SafeTensors<'a>,
    folder: &'a Path,
    ops: &'a Ops,
    model: FixtureModel,
}

impl Fixture<'_> {
    fn tensor(&self, name: &str) -> Result<Vec<f32>, EngineError> {
        let tensor = self.tensors.tensor(name);
        Ok(floats(tensor.map_err(|_| broken(self.folder))?.data()))
    }

    fn posterior(&self, names: [&str; 2]) -> Result<Posterior, EngineError> {
        Ok(Posterior {
            mu: self.tensor(names[0])?,
            log_var: self.tensor(names[1])?,
        })
    }

    fn number(&self, case: &Value, key: &str) -> Result<f64, EngineError> {
        case[key].as_f64().ok_or_else(|| broken(self.folder))
    }

    /// Cross-entropies of a case's texts, and their gradients, for the targets in a range.
    fn gradients(
        &self,
        case: &Value,
        z: &[f32],
        counted: Range<usize>,
    ) -> Result<Vec<LatentGradient>, EngineError> {
        let rows = |key: &str| -> Vec<Vec<u32>> {
            case[key]
                .as_array()
                .into_iter()
                .flatten()
                .map(ids)
                .collect()
        };
        let (tokens, targets) = (rows("input_ids"), rows("targets"));
        let until = |row: &[u32]| row.len().min(counted.end);
        let of_each = z.len() / tokens.len().max(1);
        let texts: Vec<_> = (tokens.iter().zip(&targets).zip(z.chunks_exact(of_each)))
            .map(|((tokens, targets), z)| LatentText {
                tokens: &tokens[..until(tokens)],
                targets: &targets[..until(targets)],
                first_target: counted.start,
                z,
                wants_gradient: true,
            })
            .collect();
        let never = AtomicBool::new(false);
        let FixtureModel { model, weights, .. } = &self.model;
        let found = model.latent_gradients(self.ops, weights, &texts, &never);
        found.map_err(failed)
    }

    fn check(&self, name: String, error: f64, tolerance: f64) -> CheckResult {
        CheckResult {
            name: format!("ltm {name}"),
            error,
            tolerance,
            cause: None,
        }
    }

    /// The bound of a case with its noise, and its gradients.
    fn bound(&self, case: &Value) -> Result<Vec<CheckResult>, EngineError> {
        let name = case["name"].as_str().ok_or_else(|| broken(self.folder))?;
        let of = |part: &str| format!("elbo.{name}.{part}");
        let posterior = self.posterior([&of("mu"), &of("log_var")])?;
        let noise = self.tensor(&of("eps"))?;
        let z = posterior.at(&noise);
        let found = self.gradients(case, &z, 0..usize::MAX)?;
        let nll: f64 = found.iter().map(|found| found.nll).sum();
        let bound = nll + posterior.kl();
        let expected = self.number(case, "negative_elbo_sum")?;
        let d_z = found.iter().flat_map(|found| &found.d_z);
        let mut gradients = [Vec::new(), Vec::new()];
        for (at, d_z) in d_z.enumerate() {
            let deviation = (0.5 * posterior.log_var[at]).exp();
            gradients[0].push(d_z + posterior.mu[at]);
            let along = d_z * noise[at] * deviation;
            gradients[1].push(0.5 * (along + deviation * deviation - 1.0));
        }
        // In 16 bits about three times what the stand-in for a GPU shows; single elements say little there.
        let is_f32 = self.ops.device().dtype() == DType::F32;
        let [of_bound, of_gradients] = match self.ops.device().dtype() {
            DType::F32 => [TOLERANCE; 2],
            DType::F16 => [1e-4, 1.5e-2],
            DType::Bf16 => [3e-4, 0.09],
        };
        let mut checks = vec![self.check(
            format!("{name}: bound, relative"),
            (bound / expected - 1.0).abs(),
            of_bound,
        )];
        // Each token sees those before it alone, so that parts of a text add up.
        let [earlier, later] =
            [0..PART, PART..usize::MAX].map(|part| self.gradients(case, &z, part));
        let (mut sums, mut wholes) = (Vec::new(), Vec::new());
        let mut of_losses = 0.0;
        for ((whole, earlier), later) in found.iter().zip(earlier?).zip(later?) {
            of_losses = worse(
                of_losses,
                ((earlier.nll + later.nll) / whole.nll - 1.0).abs(),
            );
            sums.extend(earlier.d_z.iter().zip(&later.d_z).map(|(a, b)| a + b));
            wholes.extend_from_slice(&whole.d_z);
        }
        checks.push(self.check(
            format!("{name}: parts of texts, relative"),
            of_losses,
            of_bound,
        ));
        let [d_mu, d_log_var] = &gradients;
        for (part, found, expected) in [
            ("grad_mu", d_mu, self.tensor(&of("grad_mu"))?),
            ("grad_log_var", d_log_var, self.tensor(&of("grad_log_var"))?),
            ("gradients of parts of texts", &sums, wholes),
        ] {
            let (measure, distance) = match is_f32 {
                true => ("", distance(found, &expected)),
                false => (
                    ", root mean square, relative",
                    relative_distance(found, &expected),
                ),
            };
            checks.push(self.check(format!("{name}: {part}{measure}"), distance, of_gradients));
        }
        Ok(checks)
    }

    /// A run of inference, step by step with the recorded noise.
    fn run(&self, case: &Value) -> Result<Vec<CheckResult>, EngineError> {
        let name = case["name"].as_str().ok_or_else(|| broken(self.folder))?;
        let of = |part: &str| format!("posterior.{name}.{part}");
        let start = self.posterior([&of("mu_start"), &of("log_var_start")])?;
        let noise = self.tensor(&of("eps"))?;
        let steps = self.number(&case["params"], "steps")? as usize;
        let mut fit = PosteriorFit::new(
            start,
            FitOptions {
                steps,
                learning_rate: self.number(&case["params"], "learning_rate")?,
                weight_decay: self.number(&case["params"], "weight_decay")?,
                kl_weight: 1.0,
            },
        );
        let told = &case["negative_elbo_before_each_step_and_at_the_end"];
        let told = told.as_array().ok_or_else(|| broken(self.folder))?;
        let mut worst = f64::from(u8::from(told.len() != steps + 1));
        for (step, told) in told.iter().enumerate() {
            let z = fit.posterior.at(&noise);
            let found = self.gradients(case, &z, 0..usize::MAX)?;
            let bound = found[0].nll + fit.posterior.kl();
            let expected = told.as_f64().ok_or_else(|| broken(self.folder))?;
            worst = worse(worst, (bound / expected - 1.0).abs());
            if step < steps {
                fit.step(&noise, &found[0].d_z);
            }
        }
        let z = distance(&fit.posterior.at(&noise), &self.tensor(&of("z"))?);
        Ok(vec![
            self.check(format!("{name}: bounds, relative"), worst, TOLERANCE),
            self.check(format!("{name}: latents"), z, LATENT_TOLERANCE),
        ])
    }
}

/// Targets in the first of two parts of a text.
const PART: usize = 5;

fn distance(found: &[f32], expected: &[f32]) -> f64 {
    if found.len() != expected.len() {
        return f64::NAN;
    }
    let pairs = found.iter().zip(expected);
    let each = pairs.map(|(a, b)| f64::from((a - b).abs()));
    each.fold(0.0, worse)
}

/// The root mean square of the differences, relative to that of what is expected.
fn relative_distance(found: &[f32], expected: &[f32]) -> f64 {
    if found.len() != expected.len() {
        return f64::NAN;
    }
    let square = |value: f32| f64::from(value) * f64::from(value);
    let pairs = found.iter().zip(expected);
    let differences: f64 = pairs.map(|(a, b)| square(a - b)).sum();
    let all: f64 = expected.iter().copied().map(square).sum();
    (differences / all).sqrt()
}
