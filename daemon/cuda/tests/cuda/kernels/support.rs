//! Memory on the GPU with poison around it, and what tests compare with.

use bytemuck::Pod;
use half::{bf16, f16};
use sluice_cuda::{Gpu, GpuMemory, GpuSpan};
use sluice_formats::DType;
use testkit::here;

use super::formats::Random;

/// Bytes around a buffer; they keep it aligned.
pub(crate) const MARGIN: usize = 256;

/// NaN in every float format, and far out of range as an index.
pub(crate) const POISON: u8 = 0xff;

/// Memory on the GPU with poison around it.
pub(crate) struct Buffer {
    memory: GpuMemory,
    len: usize,
}

/// Runs a test where there is a stand-in for the GPU.
pub(crate) fn on_gpu(body: impl FnOnce(&Gpu)) {
    here::open_stand_in();
    body(&Gpu::open(0).unwrap());
}

impl Buffer {
    pub(crate) fn new(gpu: &Gpu, len: usize) -> Self {
        let memory = gpu.allocate(len + 2 * MARGIN).unwrap();
        gpu.fill(memory.span(), POISON).unwrap();
        Self { memory, len }
    }

    pub(crate) fn of<T: Pod>(gpu: &Gpu, values: &[T]) -> Self {
        let bytes = bytemuck::cast_slice(values);
        let buffer = Self::new(gpu, bytes.len());
        gpu.upload(buffer.span(), bytes).unwrap();
        buffer
    }

    /// Values as elements of the compute dtype.
    pub(crate) fn of_elements(gpu: &Gpu, number: DType, values: &[f32]) -> Self {
        match number {
            DType::F32 => Self::of(gpu, values),
            DType::F16 => {
                let values: Vec<u16> = values.iter().map(|&x| f16::from_f32(x).to_bits()).collect();
                Self::of(gpu, &values)
            }
            DType::Bf16 => {
                let values: Vec<u16> = values
                    .iter()
                    .map(|&x| bf16::from_f32(x).to_bits())
                    .collect();
                Self::of(gpu, &values)
            }
        }
    }

    pub(crate) fn span(&self) -> GpuSpan {
        self.memory.span().part(MARGIN, self.len)
    }

    /// What it holds, once nothing around it was found to have changed.
    pub(crate) fn read<T: Pod>(&self, gpu: &Gpu) -> Vec<T> {
        let mut bytes = vec![0; self.len + 2 * MARGIN];
        gpu.download(self.memory.span(), &mut bytes).unwrap();
        let (before, rest) = bytes.split_at(MARGIN);
        let (values, after) = rest.split_at(self.len);
        assert!(
            before.iter().chain(after).all(|&byte| byte == POISON),
            "written outside"
        );
        values
            .chunks_exact(size_of::<T>())
            .map(bytemuck::pod_read_unaligned)
            .collect()
    }

    pub(crate) fn read_elements(&self, gpu: &Gpu, number: DType) -> Vec<f32> {
        match number {
            DType::F32 => self.read(gpu),
            DType::F16 => self
                .read::<u16>(gpu)
                .into_iter()
                .map(|bits| f16::from_bits(bits).to_f32())
                .collect(),
            DType::Bf16 => self
                .read::<u16>(gpu)
                .into_iter()
                .map(|bits| bf16::from_bits(bits).to_f32())
                .collect(),
        }
    }
}

/// The nearest value of the compute dtype; in half precision, values out of range saturate.
pub(crate) fn narrow(number: DType, value: f32) -> f32 {
    match number {
        DType::F32 => value,
        DType::F16 => f16::from_f32(value.clamp(-65504.0, 65504.0)).to_f32(),
        DType::Bf16 => bf16::from_f32(value).to_f32(),
    }
}

/// Half the distance of neighbours at 1.
pub(crate) fn rounding(number: DType) -> f64 {
    match number {
        DType::F32 => 2f64.powi(-24),
        DType::F16 => 2f64.powi(-11),
        DType::Bf16 => 2f64.powi(-8),
    }
}

pub(crate) fn elements(random: &mut Random, number: DType, count: usize) -> Vec<f32> {
    (0..count)
        .map(|_| narrow(number, random.between(-1.0, 1.0)))
        .collect()
}

#[track_caller]
pub(crate) fn assert_close(
    found: f32,
    expected: f64,
    tolerance: f64,
    what: impl FnOnce() -> String,
) {
    let difference = (f64::from(found) - expected).abs();
    assert!(
        difference <= tolerance,
        "{found} for {expected}, {difference} apart: {}",
        what()
    );
}
