//! All logits of some rows, for samplers that need more of them than a running maximum.

use std::ops::Range;

use sluice_cuda::GpuSpan;
use sluice_machine::MemoryKind;
use sluice_weights::Weight;

use super::{Activation, Backend, Ops, Phase, cpu::Product};
use crate::{OpsError, device::DeviceBuffer, ledger::HostBuffer};

/// Memory for some rows' logits over the whole LM head, and for the ids of one row: rows are sampled one after another.
pub struct LogitsRows {
    count: usize,
    lm_head_rows: usize,
    /// On the CPU row after row. On a GPU part after part of the LM head, as the matmul writes them, and in each part
    /// row after row.
    on_device: DeviceBuffer<f32>,
    /// One row's logits, downloaded from a GPU; empty on the CPU.
    host: Vec<f32>,
    /// The parts of the LM head whose logits are on a GPU.
    parts: Vec<Range<usize>>,
    order: Order,
}

/// In the ledger where that counts this process's memory.
enum Order {
    Device(HostBuffer<u32>),
    Host(Vec<u32>),
}

impl LogitsRows {
    /// How many rows there is memory for.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }
}

impl Ops {
    /// Allocates memory for the logits of `count` rows over an LM head of `lm_head_rows` rows.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn logits_rows(&self, count: usize, lm_head_rows: usize) -> Result<LogitsRows, OpsError> {
        let (device, ledger) = (&self.device, &self.ledger);
        let on_host = if device.gpu().is_some() {
            lm_head_rows
        } else {
            0
        };
        Ok(LogitsRows {
            count,
            lm_head_rows,
            on_device: DeviceBuffer::new(device, ledger, MemoryKind::Logits, count * lm_head_rows)?,
            host: vec![0.0; on_host],
            parts: Vec::new(),
            order: match device.is_gpu() {
                true => Order::Host(vec![0; on_host]),
                false => Order::Device(ledger.buffer(MemoryKind::Logits, lm_head_rows)?),
            },
        })
    }

    /// Computes the logits of the rows of `x`, after the final norm, by a part of the LM head whose first row is
    /// `first` of the vocabulary.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When there are more rows than there is memory for, or the part lies outside.
    pub fn take_logits(
        &self,
        rows: &mut LogitsRows,
        x: &Activation,
        part: &Weight<'_>,
        first: usize,
    ) -> Result<(), OpsError> {
        assert!(x.len() <= rows.count && first + part.rows <= rows.lm_head_rows);
        let _timed = self.timed(Phase::LmHead);
        match &self.backend {
            Backend::Cpu(cpu) => {
                let stride = rows.lm_head_rows;
                let logits = &mut rows.on_device.host_mut()[first..];
                let product = Product {
                    stride,
                    ..Product::new(part, logits, false)
                };
                cpu.gemm(x, [product]);
            }
            Backend::Gpu(gpu) => {
                let columns = first..first + part.rows;
                // Part after part, since a matmul writes its output without gaps; on the CPU it writes with a stride.
                let there = rows.device_span(&columns);
                let bytes = x.len() * part.rows * size_of::<f32>();
                gpu.logits(x, part, there.part(0, bytes))?;
                // Memory is used again for the next pass, whose parts are the same.
                if !rows.parts.contains(&columns) {
                    rows.parts.push(columns);
                }
            }
            Backend::DryRun => {}
        }
        Ok(())
    }

    /// The logits of one of the rows, once all parts were taken, and memory for as many ids.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn read_logits<'a>(
        &self,
        rows: &'a mut LogitsRows,
        index: usize,
    ) -> Result<(&'a mut [f32], &'a mut [u32]), OpsError> {
        assert!(index < rows.count);
        if let Backend::Gpu(gpu) = &self.backend {
            // A row is scattered over the parts; only the one that is sampled is downloaded.
            for columns in &rows.parts {
                let bytes = columns.len() * size_of::<f32>();
                let there = rows.device_span(columns).part(index * bytes, bytes);
                gpu.download(there, &mut rows.host[columns.clone()])?;
            }
        }
        let head_rows = rows.lm_head_rows;
        let logits = match &self.backend {
            Backend::Cpu(_) => &mut rows.on_device.host_mut()[index * head_rows..][..head_rows],
            Backend::Gpu(_) | Backend::DryRun => &mut rows.host[..],
        };
        let order = match &mut rows.order {
            Order::Device(order) => &mut order[..],
            Order::Host(order) => &mut order[..],
        };
        Ok((logits, order))
    }
}

impl LogitsRows {
    /// Where a GPU has these columns of all rows.
    fn device_span(&self, columns: &Range<usize>) -> GpuSpan {
        let column_bytes = self.count * size_of::<f32>();
        let span = self.on_device.span();
        span.part(columns.start * column_bytes, columns.len() * column_bytes)
    }
}

#[cfg(test)]
mod tests {

    use sluice_formats::{DType, Format, noise::Noise};
    use sluice_weights::WeightData;

    use super::*;
    use crate::{device::Device, ledger::Ledger};

    const WIDTH: usize = 32;
    const HEAD_ROWS: usize = 300;

    #[test]
    fn each_row_lies_together_over_all_parts() {
        let ledger = Ledger::default();
        let ops = Ops::new(Device::cpu(2).unwrap(), ledger.clone()).unwrap();
        let numbers = |count: usize, seed: u64| -> Vec<f32> {
            let noise = Noise::new(seed);
            let place = |place: usize| noise.uniform(0, place as u64, 0) as f32 - 0.5;
            (0..count).map(place).collect()
        };
        let values = numbers(3 * WIDTH, 1);
        for format in [Format::F32, Format::Q8_0] {
            let mut bytes = vec![0u64; format.bytes(HEAD_ROWS * WIDTH).div_ceil(8)];
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut bytes);
            let bytes = &mut bytes[..format.bytes(HEAD_ROWS * WIDTH)];
            format.quantize(&numbers(HEAD_ROWS * WIDTH, 2), bytes);
            let head = Weight {
                format,
                rows: HEAD_ROWS,
                width: WIDTH,
                data: WeightData::Host(bytes),
                weights_version: 0,
            };
            let take = |logits: &mut LogitsRows, x: &[f32]| {
                let x = ops.matrix(x.len() / WIDTH, WIDTH, x, DType::F32).unwrap();
                for (from, to) in [(0, 130), (130, HEAD_ROWS)] {
                    let part = head.rows(from, to);
                    ops.take_logits(logits, &x, &part, from).unwrap();
                }
            };
            let before = ledger.report().kinds[MemoryKind::Logits as usize].bytes;
            let mut several = ops.logits_rows(4, HEAD_ROWS).unwrap();
            let used = ledger.report().kinds[MemoryKind::Logits as usize].bytes - before;
            assert_eq!(used, (5 * HEAD_ROWS * 4) as u64);
            // Fewer rows than there is memory for, and then others in their place.
            take(&mut several, &values[WIDTH..]);
            take(&mut several, &values);
            let mut one = ops.logits_rows(1, HEAD_ROWS).unwrap();
            for (index, x) in values.chunks_exact(WIDTH).enumerate() {
                take(&mut one, x);
                let (expected, _) = ops.read_logits(&mut one, 0).unwrap();
                let (found, order) = ops.read_logits(&mut several, index).unwrap();
                assert_eq!((found.len(), order.len()), (HEAD_ROWS, HEAD_ROWS));
                for (found, expected) in found.iter().zip(expected) {
                    assert!((found - *expected).abs() < 1e-5, "{found} for {expected}");
                }
            }
        }
    }
}
