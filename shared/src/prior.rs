//! How latents are drawn from the learned prior of a latent thought model. Command line, wire and engine name it alike.

use std::{fmt, str::FromStr};

/// Most steps of a sampler.
pub const PRIOR_STEPS_MAX: u32 = 1000;

/// The sampler, and its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PriorSampling {
    /// The solver of the diffusion's equation.
    pub solver: PriorSolver,
    /// Steps from noise to latents; of [`PriorSolver::AdaptiveHeun`] those whose evaluations bound its own.
    pub steps: u32,
}

/// Solvers of the probability flow ordinary differential equation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PriorSolver {
    /// Heun's method, of second order with two evaluations a step (Karras et al. 2022, EDM).
    Heun,
    /// The second order multistep method with one evaluation a step (Lu et al. 2022, DPM-Solver++).
    DpmSolverPp2m,
    /// Heun's method with steps as long as its error allows.
    AdaptiveHeun,
    /// No sampler: latents are drawn from N(0, I).
    None,
}

impl PriorSolver {
    /// All solvers.
    pub const ALL: [Self; 4] = [
        Self::Heun,
        Self::DpmSolverPp2m,
        Self::AdaptiveHeun,
        Self::None,
    ];

    /// The name in flags and settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Heun => "heun",
            Self::DpmSolverPp2m => "dpm-solver-pp-2m",
            Self::AdaptiveHeun => "adaptive-heun",
            Self::None => "none",
        }
    }
}

impl Default for PriorSampling {
    /// The method that takes the fewest evaluations, with the fewest steps that follow the equation closely.
    fn default() -> Self {
        Self::of(PriorSolver::DpmSolverPp2m)
    }
}

impl PriorSampling {
    /// Why no sampler takes so many steps; `None` where it does.
    #[must_use]
    pub fn problem(self) -> Option<String> {
        let steps = self.steps;
        (self.solver != PriorSolver::None && !(1..=PRIOR_STEPS_MAX).contains(&steps)).then(|| {
            format!(
                "must have between 1 and {PRIOR_STEPS_MAX} steps, not {steps}; 20 to 50 are usual"
            )
        })
    }

    /// A solver with its usual number of steps.
    #[must_use]
    pub fn of(solver: PriorSolver) -> Self {
        Self { solver, steps: 25 }
    }
}

impl fmt::Display for PriorSampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.solver {
            PriorSolver::None => f.write_str(self.solver.name()),
            solver => write!(f, "{}:{}", solver.name(), self.steps),
        }
    }
}

impl FromStr for PriorSampling {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, steps) = match text.split_once(':') {
            Some((name, rest)) => (name, Some(rest)),
            None => (text, None),
        };
        let solver = PriorSolver::ALL.into_iter().find(|it| it.name() == name);
        let solver = solver.ok_or_else(|| {
            let known = PriorSolver::ALL.map(PriorSolver::name).join(", ");
            format!("unknown solver {name:?}; known are {known}")
        })?;
        let all = Self::of(solver);
        let Some(steps) = steps else {
            return Ok(all);
        };
        let steps = steps.strip_prefix("steps=").unwrap_or(steps).parse();
        match steps {
            Ok(steps) if solver != PriorSolver::None => Ok(Self { solver, steps }),
            _ => Err(format!(
                "expected SOLVER or SOLVER:STEPS, such as heun:30, found {text:?}"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for solver in PriorSolver::ALL {
            let sampling = PriorSampling::of(solver);
            assert_eq!(sampling.to_string().parse(), Ok(sampling));
            assert_eq!(solver.name().parse(), Ok(sampling));
        }
        for text in ["heun:40", "heun:steps=40"] {
            let heun: PriorSampling = text.parse().unwrap();
            assert_eq!((heun.solver, heun.steps), (PriorSolver::Heun, 40));
        }
        for wrong in ["euler", "heun:", "heun:-1", "heun:steps=", "none:3", ""] {
            assert!(wrong.parse::<PriorSampling>().is_err(), "{wrong}");
        }
    }
}
