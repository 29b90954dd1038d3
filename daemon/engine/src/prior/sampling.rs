//! Samplers: from noise to normalised latents along dx/dσ = (x − D(x; σ))/σ, a step at a time, so that passes of other
//! requests come in between.
//!
//! Papers: Karras et al. 2022 (EDM, arXiv 2206.00364), algorithm 1 without churn, for Heun's method and the schedule; Lu et
//! al. 2022 (DPM-Solver++, arXiv 2211.01095), algorithm 2, with αₜ = 1 and −ln σ for λ, for the multistep method; step
//! control by the difference of the Euler and the Heun step, as in Jolicoeur-Martineau et al. 2021 (arXiv 2105.14080).

use sluice_shared::prior::{PriorSampling, PriorSolver};

/// Largest and least standard deviation of noise, and the schedule's exponent.
const SIGMA_MAX: f64 = 80.0;
const SIGMA_MIN: f64 = 0.002;
const RHO: f64 = 7.0;

/// Largest root mean square error of an adaptive step, relative to an element's size or to 1, the size of normalised
/// latents.
const TOLERANCE: f64 = 0.005;
/// What a step is shortened by beyond what its error asks for, and the limits of one change.
const SAFETY: f64 = 0.9;
const CHANGE: [f64; 2] = [0.2, 4.0];
/// The first adaptive step, as a share of the schedule.
const FIRST_STEP: f64 = 1.0 / 16.0;

/// What computes D(x; σ).
type Denoise<'a, E> = &'a mut dyn FnMut(&[f32], f64) -> Result<Vec<f32>, E>;

/// A sample on its way.
#[derive(Debug, Clone)]
pub struct Sampler {
    x: Vec<f32>,
    sampling: PriorSampling,
    /// Steps that were taken.
    step: usize,
    /// Calls of the network.
    evaluations: usize,
    /// D of the step before, for the multistep method.
    before: Option<Vec<f32>>,
    /// Where an adaptive step begins in the schedule, from 0 to 1, how long it is, and the slope there, once known.
    place: f64,
    length: f64,
    slope: Option<Vec<f32>>,
    is_done: bool,
}

impl Sampler {
    /// Begins at standard normal noise.
    ///
    /// # Panics
    /// With a sampling of no steps.
    #[must_use]
    pub fn new(noise: &[f32], sampling: PriorSampling) -> Self {
        assert!(sampling.steps > 0, "the request was checked");
        Self {
            x: noise
                .iter()
                .map(|&noise| (SIGMA_MAX * f64::from(noise)) as f32)
                .collect(),
            sampling,
            step: 0,
            evaluations: 0,
            before: None,
            place: 0.0,
            length: FIRST_STEP,
            slope: None,
            is_done: sampling.solver == PriorSolver::None,
        }
    }

    /// Whether all steps were taken.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Evaluations of D so far.
    #[must_use]
    pub fn evaluations(&self) -> usize {
        self.evaluations
    }

    /// Steps that were taken: in the end as many as asked for, of an adaptive method at most so many.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.step
    }

    /// The standard deviation of the noise that is left, relative to normalised latents.
    #[must_use]
    pub fn noise_level(&self) -> f64 {
        match (self.is_done, self.sampling.solver) {
            (true, _) => 0.0,
            (false, PriorSolver::AdaptiveHeun) => sigma_at(self.place),
            (false, _) => sigma_of(self.step, self.sampling.steps as usize),
        }
    }

    /// The normalised latents, in the end.
    #[must_use]
    pub fn sample(&self) -> &[f32] {
        &self.x
    }

    /// Takes a step, of at most two evaluations. One that fails may be tried again.
    ///
    /// # Errors
    /// That of an evaluation.
    pub fn step<E>(&mut self, denoise: Denoise<'_, E>) -> Result<(), E> {
        let steps = self.sampling.steps as usize;
        match self.sampling.solver {
            PriorSolver::None => {}
            PriorSolver::Heun => {
                let [from, to] = [self.step, self.step + 1].map(|step| sigma_of(step, steps));
                let first = self.slope(&self.x, from, denoise)?;
                let euler = moved(&self.x, &first, to - from);
                self.x = if to > 0.0 {
                    let second = self.slope(&euler, to, denoise)?;
                    self.evaluations += 1;
                    moved(&self.x, &mean(&first, &second), to - from)
                } else {
                    euler
                };
                self.advance();
            }
            PriorSolver::DpmSolverPp2m => {
                let [from, to] = [self.step, self.step + 1].map(|step| sigma_of(step, steps));
                let clean = denoise(&self.x, from)?;
                self.x = self.multistep(&clean, [from, to]);
                self.before = Some(clean);
                self.advance();
            }
            PriorSolver::AdaptiveHeun => self.adaptive_step(denoise)?,
        }
        Ok(())
    }

    /// Counts a step, and its first evaluation.
    fn advance(&mut self) {
        self.evaluations += 1;
        self.step += 1;
        self.is_done = self.step == self.sampling.steps as usize;
    }

    fn slope<E>(&self, x: &[f32], sigma: f64, denoise: Denoise<'_, E>) -> Result<Vec<f32>, E> {
        let clean = denoise(x, sigma)?;
        let each = x.iter().zip(&clean);
        Ok(each
            .map(|(x, clean)| ((f64::from(*x) - f64::from(*clean)) / sigma) as f32)
            .collect())
    }

    /// x at the next noise level, by D here and, if known, at the level before.
    fn multistep(&self, clean: &[f32], [from, to]: [f64; 2]) -> Vec<f32> {
        // −expm1(−h), with h = ln from − ln to.
        let share = 1.0 - to / from;
        let steps = self.sampling.steps as usize;
        let ahead = match &self.before {
            // The last step is to no noise at all: infinitely long in ln σ, so of the first order.
            Some(before) if to > 0.0 => {
                let last = (sigma_of(self.step - 1, steps) / from).ln();
                Some((before, (from / to).ln() / (2.0 * last)))
            }
            _ => None,
        };
        let each = self.x.iter().zip(clean).enumerate();
        each.map(|(at, (x, clean))| {
            let clean = f64::from(*clean);
            let clean = match ahead {
                Some((before, by)) => clean + by * (clean - f64::from(before[at])),
                None => clean,
            };
            (to / from * f64::from(*x) + share * clean) as f32
        })
        .collect()
    }

    /// Tries a step: it is taken where its error is small enough, or evaluations run out.
    fn adaptive_step<E>(&mut self, denoise: Denoise<'_, E>) -> Result<(), E> {
        let from = sigma_at(self.place);
        let first = match self.slope.take() {
            Some(slope) => slope,
            None => {
                let slope = self.slope(&self.x, from, denoise)?;
                self.evaluations += 1;
                slope
            }
        };
        if self.place >= 1.0 {
            self.x = moved(&self.x, &first, -from);
            self.step += 1;
            self.is_done = true;
            return Ok(());
        }
        // A step takes two evaluations, a refused one another; the last, to no noise, takes the slope's.
        let left = (2 * self.sampling.steps as usize).saturating_sub(self.evaluations);
        let steps_left = (left / 2).max(1);
        let rest = 1.0 - self.place;
        let least = rest / steps_left as f64;
        let is_forced = self.length <= least || left <= 2;
        let length = self.length.max(least).min(rest);
        let to_place = match length >= rest {
            true => 1.0,
            false => self.place + length,
        };
        let to = sigma_at(to_place);
        let euler = moved(&self.x, &first, to - from);
        let second = match self.slope(&euler, to, denoise) {
            Ok(second) => second,
            Err(error) => {
                self.slope = Some(first);
                return Err(error);
            }
        };
        self.evaluations += 1;
        let heun = moved(&self.x, &mean(&first, &second), to - from);
        let error = error_of(&self.x, &euler, &heun) / TOLERANCE;
        // The error of a step of the first order grows with the square of its length.
        let change = (SAFETY / error.max(1e-9).sqrt()).clamp(CHANGE[0], CHANGE[1]);
        if error <= 1.0 || is_forced {
            self.x = heun;
            self.place = to_place;
            self.step += 1;
        } else {
            self.slope = Some(first);
        }
        self.length = length * change;
        Ok(())
    }
}

/// Noise at a place of the schedule from 0 to 1.
fn sigma_at(place: f64) -> f64 {
    let ends = [SIGMA_MAX, SIGMA_MIN].map(|sigma| sigma.powf(1.0 / RHO));
    (ends[0] + place * (ends[1] - ends[0])).powf(RHO)
}

/// Noise before a step; none after the last.
fn sigma_of(step: usize, steps: usize) -> f64 {
    match step == steps {
        true => 0.0,
        false => sigma_at(step as f64 / (steps.max(2) - 1) as f64),
    }
}

fn moved(x: &[f32], slope: &[f32], by: f64) -> Vec<f32> {
    let each = x.iter().zip(slope);
    each.map(|(x, slope)| (f64::from(*x) + by * f64::from(*slope)) as f32)
        .collect()
}

fn mean(first: &[f32], second: &[f32]) -> Vec<f32> {
    let each = first.iter().zip(second);
    each.map(|(first, second)| 0.5 * (first + second)).collect()
}

/// The root mean square difference of two steps from `x`, relative to each element's size or to 1.
fn error_of(x: &[f32], euler: &[f32], heun: &[f32]) -> f64 {
    let each = x.iter().zip(euler).zip(heun);
    let squares = each.map(|((x, euler), heun)| {
        let size = f64::from(x.abs().max(heun.abs()).max(1.0));
        (f64::from(euler - heun) / size).powi(2)
    });
    (squares.sum::<f64>() / x.len().max(1) as f64).sqrt()
}
