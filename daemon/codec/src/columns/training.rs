//! How the constants of the classes were made: the search quantizes Gaussian noise with a class's prices, counts what it
//! chose, and learns the class from that, until nothing changes.

use super::{classes::Class, encode::codes_bits, spreads::CLASSES, spreads::Spread};
use crate::{
    simd::SimdPath,
    trellis::{BIT_COST, MIDDLE, PARTS, SECOND, SYMBOLS, ViterbiSearch, ZERO, mark, mean_part},
};

/// The deviation in steps that the first class is for. A narrower column is better off as zeros.
const SPREAD_LEAST: f64 = 0.283;

/// Gaussian noise, by the Box-Muller method.
pub(super) fn gaussian(count: usize, mut state: u64) -> Vec<f32> {
    let mut uniform = move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let bits = state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        (bits as f64 + 0.5) / (1_u64 << 53) as f64
    };
    (0..count)
        .map(|_| {
            let radius = (-2. * uniform().ln()).sqrt();
            (radius * (std::f64::consts::TAU * uniform()).cos()) as f32
        })
        .collect()
}

/// The shares of symbols that a Gaussian of this deviation has, and means in the middle of cells.
fn first(deviation: f64, together: usize) -> Spread {
    let share = |symbol: usize| {
        let at = symbol as f64 - ZERO as f64 + 0.25;
        (-0.5 * (at / deviation).powi(2)).exp() + 1e-9
    };
    let shares: [f64; SYMBOLS] = std::array::from_fn(share);
    spread(together, &shares, &[0; SYMBOLS])
}

fn spread(together: usize, counts: &[f64; SYMBOLS], means: &[i8; SYMBOLS]) -> Spread {
    let all: f64 = counts.iter().sum();
    let share = |symbol: usize| counts[symbol] / all * f64::from(1 << 14);
    let often: Vec<usize> = (0..SYMBOLS)
        .filter(|symbol| share(*symbol) >= 1.5)
        .collect();
    let range = often[0]..=often[often.len() - 1];
    let shares: Vec<u16> = range
        .clone()
        .map(|symbol| share(symbol).round().max(1.) as u16)
        .collect();
    Spread {
        together,
        first: *range.start(),
        shares: shares.leak(),
        means: means[range].to_vec().leak(),
    }
}

/// Bits a weight, and the squared error in squared steps, with what a class should be from there.
fn learn(class: &Class, values: &[f32]) -> (f64, f64, Spread) {
    let path = SimdPath::best();
    let mut search = ViterbiSearch::new();
    let (mut bits, mut error) = (0, 0.);
    let (mut counts, mut sums) = ([0.; SYMBOLS], [0.; SYMBOLS]);
    let mut symbols = [0; 256];
    let mut levels = [0.; 256];
    for values in values.chunks(256) {
        search.choose(path, values, &class.prices, &mut symbols);
        bits += codes_bits(class, &symbols);
        mark(path, &mut symbols);
        class
            .levels
            .scale(path, PARTS.recip(), &symbols, &mut levels);
        for ((value, symbol), level) in values.iter().zip(symbols).zip(levels) {
            error += f64::from(value - level).powi(2);
            let value = if symbol & SECOND == 0 { *value } else { -value };
            counts[usize::from(symbol & !SECOND)] += 1.;
            sums[usize::from(symbol & !SECOND)] += f64::from(value);
        }
    }
    let means = std::array::from_fn(|symbol| {
        // Of few elements a mean is noise.
        match MIDDLE.contains(&symbol) && counts[symbol] > 1000. {
            true => mean_part(symbol, sums[symbol] / counts[symbol]),
            false => 0,
        }
    });
    let count = values.len() as f64;
    let next = spread(class.together, &counts, &means);
    (bits as f64 / count, error / count, next)
}

/// `cargo test -p sluice-codec --release classes_are_learned -- --ignored --nocapture` prints `spreads.rs`.
#[test]
#[ignore = "prints constants"]
fn classes_are_learned() {
    let noise = gaussian(1 << 19, 77);
    for index in 0..CLASSES {
        let deviation = SPREAD_LEAST * (index as f64 / 4.).exp2();
        let values: Vec<f32> = noise.iter().map(|x| x * deviation as f32).collect();
        let found = [1, 2, 4].map(|together| {
            let mut trial = first(deviation, together);
            let mut best = trial;
            let mut cost = (0., 0., f64::INFINITY);
            if trial.shares.len().pow(together as u32) > 1 << 16 {
                return (cost, best);
            }
            for _ in 0..12 {
                let (bits, error, next) = learn(&Class::new(&trial), &values);
                let all = error + f64::from(BIT_COST) * bits;
                if all < cost.2 {
                    (cost, best) = ((bits, error, all), trial);
                }
                trial = next;
            }
            (cost, best)
        });
        let gap =
            |(bits, error, _): (f64, f64, f64)| bits - 0.5 * (deviation.powi(2) / error).log2();
        let by_cost = found
            .iter()
            .min_by(|one, other| one.0.2.total_cmp(&other.0.2));
        let (cost, best) = by_cost.expect("there are three");
        println!(
            "    // {deviation:.2} steps, {:.2} bits, {:.3} above the rate-distortion bound",
            cost.0,
            gap(*cost)
        );
        println!("    {},", format!("{best:?}").replace(": [", ": &["));
    }
}
