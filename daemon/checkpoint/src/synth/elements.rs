//! Fast random weights: 16 random bits select one of 65,536 values drawn beforehand from a normal distribution. There
//! are as many different ones as `bf16` can tell apart, and they are about as hard to compress as trained weights.

use std::f64::consts::TAU;

use half::{bf16, f16};
use sluice_formats::noise::Noise;

use super::{
    SynthDType,
    fresh::FreshTensor,
    layout::{BLOCK_ELEMENTS, ElementBlock},
    routed::SPREAD,
};

const CHOICES: usize = 1 << 16;

/// A generator of weights, fixed by its seed.
pub(super) struct RandomElements {
    noise: Noise,
    table: Table,
}

enum Table {
    Two(Choices<u16>),
    Four(Choices<f32>),
}

struct Choices<T> {
    random: Box<[T; CHOICES]>,
    /// The same before they were rounded.
    exact: Box<[f32; CHOICES]>,
    /// Rounds an element.
    round: fn(f32) -> T,
}

impl RandomElements {
    pub(super) fn new(seed: u64, element: SynthDType) -> Self {
        Self {
            noise: Noise::new(seed),
            table: match element {
                SynthDType::Bf16 => {
                    Table::Two(Choices::new(|value| bf16::from_f32(value).to_bits()))
                }
                SynthDType::F16 => Table::Two(Choices::new(|value| f16::from_f32(value).to_bits())),
                SynthDType::F32 => Table::Four(Choices::new(|value| value)),
            },
        }
    }

    /// A buffer for `count` elements.
    pub(super) fn buffer(&self, count: usize) -> Vec<u64> {
        let bytes = match self.table {
            Table::Two(_) => count * 2,
            Table::Four(_) => count * 4,
        };
        vec![0; bytes.div_ceil(size_of::<u64>())]
    }

    /// Generates a block's elements in the buffer, and returns their bytes.
    pub(super) fn fill<'a>(&self, job: &ElementBlock, buffer: &'a mut [u64]) -> &'a [u8] {
        match &self.table {
            Table::Two(choices) => choices.fill(self.noise, job, buffer),
            Table::Four(choices) => choices.fill(self.noise, job, buffer),
        }
    }
}

impl<T: bytemuck::Pod> Choices<T> {
    /// Tabulates the Box-Muller transform of all pairs of 256 radii and 256 angles. Angles lie a quarter of a step off
    /// the axis, so that no two have the same cosine, and each value's negative is in the table as well.
    fn new(round: fn(f32) -> T) -> Self {
        let number = |index: usize| {
            let (radius, angle) = (index / 256, index % 256);
            let radius = (-2.0 * ((radius as f64 + 0.5) / 256.0).ln()).sqrt();
            let angle = (angle as f64 + 0.25) / 256.0 * TAU;
            // By way of `f32`, so that all dtypes are roundings of the same value.
            (SPREAD * radius * angle.cos()) as f32
        };
        // Drawing from a table is limited by memory, not by logarithms and cosines.
        let exact: Box<[f32]> = (0..CHOICES).map(number).collect();
        let random: Box<[T]> = exact.iter().map(|&number| round(number)).collect();
        Self {
            random: table(random),
            exact: table(exact),
            round,
        }
    }

    fn fill<'a>(&self, noise: Noise, job: &ElementBlock, buffer: &'a mut [u64]) -> &'a [u8] {
        let out: &mut [T] = &mut bytemuck::cast_slice_mut(buffer)[..job.count];
        match job.fresh {
            FreshTensor::Constant(value) => out.fill((self.round)(value)),
            FreshTensor::Rwkv7(vector) => {
                for (channel, element) in out.iter_mut().enumerate() {
                    *element = (self.round)(vector.element(channel));
                }
            }
            FreshTensor::Random => {
                choose(&self.random, noise, job, out);
            }
            FreshTensor::Routed(matrix) => {
                let mut elements = vec![0.0; job.count];
                choose(&self.exact, noise, job, &mut elements);
                matrix.complete(noise, job.block as usize * BLOCK_ELEMENTS, &mut elements);
                for (out, element) in out.iter_mut().zip(elements) {
                    *out = (self.round)(element);
                }
            }
        }
        bytemuck::cast_slice(out)
    }
}

fn table<T>(numbers: Box<[T]>) -> Box<[T; CHOICES]> {
    let table = numbers.try_into();
    table.unwrap_or_else(|_| unreachable!("as many as were counted"))
}

/// Selects elements from a table, four by the bits of one number.
fn choose<T: Copy>(table: &[T; CHOICES], noise: Noise, job: &ElementBlock, out: &mut [T]) {
    // Seeded by the block's place, not by the thread: the order of blocks doesn't matter.
    let mut random = Random(noise.uniform(job.tensor, job.block, 0).to_bits());
    for four in out.chunks_mut(4) {
        let bits = random.next();
        for (index, number) in four.iter_mut().enumerate() {
            *number = table[usize::from((bits >> (16 * index)) as u16)];
        }
    }
}

/// The wyrand generator of Wang Yi: one multiplication for 64 bits.
struct Random(u64);

impl Random {
    #[inline]
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0xA076_1D64_78BD_642F);
        let product = u128::from(self.0) * u128::from(self.0 ^ 0xE703_7ED1_A0B4_28DB);
        (product >> 64) as u64 ^ product as u64
    }
}
