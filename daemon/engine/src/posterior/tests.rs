//! Bounds by brute force: a linear Gaussian model of one latent, whose evidence is known.

use super::*;

/// `x_i = w_i z + noise` with a standard normal `z` and noise of this variance.
pub(crate) struct Linear {
    w: Vec<f64>,
    x: Vec<f64>,
    variance: f64,
}

impl Linear {
    pub(crate) fn new() -> Self {
        let w: Vec<f64> = (0..12).map(|i| 0.5 + f64::from(i % 5) * 0.4).collect();
        let x = (w.iter().enumerate())
            .map(|(i, w)| 1.3 * w + 0.3 * f64::from(i as i32 % 3 - 1))
            .collect();
        Self {
            w,
            x,
            variance: 0.2,
        }
    }

    /// `−log p(x | z)`, and its derivative.
    pub(crate) fn nll(&self, z: f64) -> (f64, f64) {
        let terms = self.w.iter().zip(&self.x).map(|(w, x)| {
            let rest = x - w * z;
            let norm = (2.0 * PI * self.variance).ln();
            (
                0.5 * (rest * rest / self.variance + norm),
                -rest * w / self.variance,
            )
        });
        terms.fold((0.0, 0.0), |(a, b), (c, d)| (a + c, b + d))
    }

    /// `−log p(x)`, by summing over the latent.
    pub(crate) fn exact(&self) -> f64 {
        let step = 1e-3;
        let density = (-8000..8000).map(|at| {
            let z = f64::from(at) * step;
            (-self.nll(z).0 - 0.5 * (z * z + (2.0 * PI).ln())).exp()
        });
        -(density.sum::<f64>() * step).ln()
    }

    /// The negative bound's estimate from so many draws of noise.
    fn bound(&self, posterior: &Posterior, noise: impl Iterator<Item = f32>) -> f64 {
        let values: Vec<f64> = noise
            .map(|noise| self.nll(f64::from(posterior.at(&[noise])[0])).0)
            .collect();
        values.iter().sum::<f64>() / values.len() as f64 + posterior.kl()
    }

    fn fit(&self, steps: usize, noise: impl Fn(usize) -> f32) -> Posterior {
        let options = FitOptions {
            steps,
            learning_rate: 0.34,
            weight_decay: 0.0,
            kl_weight: 1.0,
        };
        let mut fit = PosteriorFit::new(Posterior::start(1, -5.0, 3), options);
        for step in 0..steps {
            let noise = [noise(step)];
            let z = fit.posterior.at(&noise)[0];
            let (_, slope) = self.nll(f64::from(z));
            fit.step(&noise, &[slope as f32]);
        }
        fit.posterior
    }
}

fn draws(seed: u64, count: u64) -> impl Iterator<Item = f32> {
    (0..count).map(move |draw| latent_noise(1, seed, draw)[0])
}

/// The bound from fresh noise is above the exact value, and close to it once the posterior is fitted.
#[test]
fn the_bound_from_fresh_noise_is_a_bound() {
    let model = Linear::new();
    let exact = model.exact();
    let fitted = model.fit(400, |step| latent_noise(1, 11, step as u64)[0]);
    let bound = model.bound(&fitted, draws(99, 20_000));
    assert!(bound > exact && bound < exact + 0.05, "{bound} of {exact}");
    let unfitted = model.bound(&Posterior::start(1, -5.0, 3), draws(99, 20_000));
    assert!(unfitted > exact + 1.0, "{unfitted} of {exact}");
}

/// With one noise for fitting and for the figure, the deviation grows without a price: the figure falls below the exact
/// value, so it is no bound. Nothing reports it.
#[test]
fn the_figure_of_noise_that_was_fitted_on_is_none() {
    let model = Linear::new();
    let exact = model.exact();
    // A noise that is unlikely enough that the posterior would rather move by the deviation.
    let noise = 2.5;
    let fitted = model.fit(4000, |_| noise);
    let figure = model.bound(&fitted, std::iter::once(noise));
    assert!(figure < exact - 0.3, "{figure} of {exact}");
    let honest = model.bound(&fitted, draws(99, 20_000));
    assert!(honest > exact, "{honest} of {exact}");
}

#[test]
fn divergences_are_those_of_gaussians() {
    assert_eq!(Posterior::prior(5).kl(), 0.0);
    let posterior = Posterior {
        mu: vec![1.0, -2.0],
        log_var: vec![0.0, 2.0],
    };
    let expected = 0.5 * (1.0 + 4.0 + 2f64.exp() - 1.0 - 2.0);
    assert!((posterior.kl() - expected).abs() < 1e-6);
    assert!(posterior.is_sound());
    let broken = Posterior {
        log_var: vec![0.0, f32::INFINITY],
        ..posterior
    };
    assert!(!broken.is_sound());
}
