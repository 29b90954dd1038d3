//! The machine's rates, measured by a short probe: plans predict times from them.

mod busy;
mod gpu;
mod sample;

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    time::{Duration, Instant},
};

use rustix::fs::MemfdFlags;
use sluice_codec::{CompressedMatrix, Encoded, Scheme};
use sluice_cuda::{CudaError, Gpu};
use sluice_formats::{DType, Format, interleaved::ROWS};
use sluice_machine::{
    LinearRate, MemoryKind, MemoryStats, POINTS, Rates, last_level_cache_bytes,
    mapped::MappedBuffer,
};
use sluice_weights::{InterleavedRows, Weight, WeightData, compression::compress};

use self::busy::CpuTicks;
pub use self::sample::{CompressedSample, GpuSample};
use crate::{Ops, OpsError, device::DeviceBuffer, ledger::Ledger};

const POINT_ROWS: [usize; POINTS] = [1, 8, 64];

/// Least and most rounds over all formats and rows. The fastest run of each counts: slower ones met other programs'
/// work, which a later round rarely meets at the same place.
const ROUNDS_MIN: usize = 2;
const ROUNDS_MAX: usize = 8;
/// No round beyond the least number starts later than this.
const ROUNDS_TIME: Duration = Duration::from_millis(75);
/// Bytes copied out of a file, and below how often.
const COPY_BYTES: usize = 16 << 20;
const COPIES: usize = 12;
/// A matrix for the matmul of a single row, whose time is mostly reading the weights. The next one lies in other memory,
/// until the caches have forgotten the first.
const LARGE_BYTES: usize = 32 << 20;
/// That memory is so many times as large as the caches, at most so many bytes, and at most a part of what is free.
const CACHES: u64 = 4;
const MEMORY_BYTES_MAX: u64 = 256 << 20;
const OF_FREE: u64 = 8;
const LARGE_WIDTH: usize = 4096;
/// Sides of the matrix for more rows, whose time is mostly arithmetic: a few milliseconds.
const SMALL_SIDE: usize = 1024;
/// The matrix that decompression is timed with: small, since the allocator may not return its memory to the system.
const DECOMPRESS_ROWS: usize = 64;
const DECOMPRESS_WIDTH: usize = 1024;
/// Rows that are decompressed at a time, or columns with as many elements.
const DECOMPRESS_PIECE: usize = 16;
/// Formats that levels convert to, and below the weights that conversion is timed with: a thread's share.
const CONVERTED: [Format; 3] = [Format::Q8_0, Format::Q6K, Format::Q4K];
const CONVERTED_WEIGHTS: usize = 1 << 15;
/// The rows in which as many weights are compressed.
const COMPRESSED_ROWS: usize = 32;
/// A byte that makes a finite value in every format, as element, scale and code alike.
pub const FILL_BYTE: u8 = 0x3C;

/// Measures the rates, in about a third of a second and memory that is given back: 16 MiB, and 32 MiB or several times
/// the CPU's caches, up to 256 MiB. On a GPU it takes as long again, the time to compile the kernels, and 224 MiB or
/// several times the GPU's cache. `None` where that memory cannot be allocated: then plans predict no times.
///
/// # Errors
/// When the device fails.
pub fn measure(ops: &Ops) -> Result<Option<Rates>, OpsError> {
    let before = CpuTicks::now();
    match try_measure(ops) {
        Ok(rates) => {
            let ticks = before.zip(CpuTicks::now());
            Ok(Some(Rates {
                others_share: ticks.map_or(0.0, |(before, after)| before.others_until(after)),
                ..rates
            }))
        }
        Err(OpsError::OutOfMemory { .. } | OpsError::Gpu(CudaError::OutOfMemory { .. })) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn try_measure(ops: &Ops) -> Result<Rates, OpsError> {
    let bytes = beyond_caches(last_level_cache_bytes(), MemoryStats::read().free_bytes);
    let memory = MappedBuffer::<u64>::zeroed(bytes / size_of::<u64>());
    let mut memory = memory.ok_or_else(|| no_memory(ops, bytes))?;
    // Pages that were never written are all one zero page, which would stay in the cache.
    bytemuck::cast_slice_mut(&mut memory).fill(FILL_BYTE);
    let copy_bytes_per_s =
        measure_copy(bytemuck::cast_slice_mut(&mut memory)).map_err(OpsError::Probe)?;
    // The same memory serves every format: `FILL_BYTE` makes finite values in each.
    let bytes: &[u8] = bytemuck::cast_slice(&memory);
    if let Some(gpu) = ops.device().gpu() {
        // What the CPU multiplies beside a GPU lies as files have it. Few models have it multiply any, so that what this
        // takes is not kept.
        let host = Ops::new(ops.device().host(), Ledger::default())?;
        let host_linear = measure_linear(&host, bytes, false)?;
        drop(host);
        // A GPU's probe needs its own memory only.
        drop(memory);
        let rates = measure_gpu(ops, gpu, copy_bytes_per_s)?;
        return Ok(Rates {
            host_linear,
            ..rates
        });
    }
    let linear = measure_linear(ops, bytes, ops.device().interleaves_weights())?;
    ops.release();
    Ok(Rates {
        copy_bytes_per_s,
        link_bytes_per_s: None,
        linear,
        host_linear: Vec::new(),
        decompress: measure_decompress(),
        others_share: 0.0,
        convert: measure_convert(),
        compress_s: measure_compress(),
    })
}

fn measure_gpu(ops: &Ops, gpu: &Gpu, copy_bytes_per_s: f64) -> Result<Rates, OpsError> {
    let link = gpu.measure_bandwidth()?;
    let (device, ledger) = (ops.device(), ops.ledger());
    let bytes = gpu.beyond_cache(LARGE_BYTES);
    let memory = DeviceBuffer::<u8>::new(device, ledger, MemoryKind::Scratch, bytes)?;
    gpu.fill(memory.span(), FILL_BYTE)?;
    let decoded = DeviceBuffer::for_decompression(device, ledger)?;
    let linear = gpu::measure_linear(ops, memory.span(), decoded.on_gpu());
    // Before the error of `linear` is returned: a failed probe must not keep the arena.
    ops.release();
    Ok(Rates {
        copy_bytes_per_s,
        link_bytes_per_s: Some(link.pinned_to_device),
        linear: linear?,
        host_linear: Vec::new(),
        decompress: gpu::measure_decompress(ops, gpu, decoded.on_gpu())?,
        others_share: 0.0,
        convert: measure_convert(),
        compress_s: measure_compress(),
    })
}

/// Bytes of memory of which little is still cached when all of it was read, for last-level caches of so many bytes.
fn beyond_caches(cache_bytes: Option<u64>, free_bytes: Option<u64>) -> usize {
    let large = LARGE_BYTES as u64;
    let asked = (CACHES * cache_bytes.unwrap_or(0)).next_multiple_of(large);
    let most = MEMORY_BYTES_MAX.min(free_bytes.unwrap_or(0) / OF_FREE);
    asked.min(most).max(large) as usize
}

fn no_memory(ops: &Ops, bytes: usize) -> OpsError {
    OpsError::OutOfMemory {
        purpose: "measuring the device",
        needed_bytes: bytes as u64,
        used_bytes: ops.ledger().used_bytes(),
        limit_bytes: None,
        free_bytes: None,
    }
}

/// Bytes a second out of a file in the page cache; `memory` is overwritten with what it held.
fn measure_copy(memory: &mut [u8]) -> io::Result<f64> {
    let memory = &mut memory[..COPY_BYTES];
    // An anonymous file in memory: its pages are page cache by construction, and no disk takes part.
    let file = File::from(rustix::fs::memfd_create(
        "sluice-probe",
        MemfdFlags::CLOEXEC,
    )?);
    file.write_all_at(memory, 0)?;
    let mut fastest = f64::INFINITY;
    for _ in 0..COPIES {
        let start = Instant::now();
        file.read_exact_at(memory, 0)?;
        fastest = fastest.min(seconds_since(start));
    }
    Ok(COPY_BYTES as f64 / fastest)
}

/// Seconds that one thread takes to decompress an element, by scheme.
fn measure_decompress() -> Vec<(Scheme, f64)> {
    // In pieces that stay in the cache, as the matmul does it.
    let mut out = vec![0.0; DECOMPRESS_PIECE * DECOMPRESS_WIDTH];
    let measure = |CompressedSample { scheme, encoded }| {
        let Encoded { layout, bytes } = encoded;
        let compressed = CompressedMatrix::new(layout, &bytes).ok()?;
        let mut fastest = f64::INFINITY;
        for _ in 0..COPIES {
            let start = Instant::now();
            for piece in 0..DECOMPRESS_ROWS / DECOMPRESS_PIECE {
                let part = |all: usize| {
                    let each = all * DECOMPRESS_PIECE / DECOMPRESS_ROWS;
                    piece * each..(piece + 1) * each
                };
                match scheme {
                    Scheme::Columns => {
                        compressed.decompress_columns_f32(part(DECOMPRESS_WIDTH), &mut out)
                    }
                    _ => compressed.decompress_rows_f32(part(DECOMPRESS_ROWS), &mut out),
                }
                .ok()?;
            }
            fastest = fastest.min(seconds_since(start));
        }
        Some((
            scheme,
            fastest / (DECOMPRESS_ROWS * DECOMPRESS_WIDTH) as f64,
        ))
    };
    CompressedSample::all(DECOMPRESS_ROWS, DECOMPRESS_WIDTH)
        .filter_map(measure)
        .collect()
}

/// bf16 weights that are distributed like trained ones: most of them small. A quantizer's search ends sooner on equal
/// ones.
fn sample_weights() -> Vec<u8> {
    let noise = sluice_formats::noise::Noise::new(1);
    let weights: Vec<f32> = (0..CONVERTED_WEIGHTS as u64)
        .map(|place| (noise.uniform(0, place, 0) * 2.0 - 1.0).powi(3) as f32 * 0.05)
        .collect();
    let mut bytes = vec![0; Format::Bf16.bytes(CONVERTED_WEIGHTS)];
    Format::Bf16.quantize(&weights, &mut bytes);
    bytes
}

/// Seconds that one thread takes to compress a bf16 weight losslessly.
fn measure_compress() -> f64 {
    let weights = sample_weights();
    let mut fastest = f64::INFINITY;
    for _ in 0..COPIES {
        let start = Instant::now();
        let compressed = compress(
            DType::Bf16,
            COMPRESSED_ROWS,
            CONVERTED_WEIGHTS / COMPRESSED_ROWS,
            &weights,
        );
        if compressed.is_err() {
            return 0.0;
        }
        fastest = fastest.min(seconds_since(start));
    }
    fastest / CONVERTED_WEIGHTS as f64
}

/// Seconds that one thread takes to convert a bf16 weight, by format.
fn measure_convert() -> Vec<(Format, f64)> {
    let source = sample_weights();
    let mut widened = vec![0.0; CONVERTED_WEIGHTS];
    // Dequantizing counts as well: conversion reads bf16 and needs `f32`.
    let measure = |format: Format| {
        let mut out = vec![0; format.bytes(CONVERTED_WEIGHTS)];
        let mut fastest = f64::INFINITY;
        for _ in 0..COPIES {
            let start = Instant::now();
            Format::Bf16.dequantize(&source, &mut widened);
            format.quantize(&widened, &mut out);
            fastest = fastest.min(seconds_since(start));
        }
        (format, fastest / CONVERTED_WEIGHTS as f64)
    };
    CONVERTED.map(measure).to_vec()
}

/// Seconds that a matmul takes for a weight, by format, with rows that lie beside each other where they can.
fn measure_linear(ops: &Ops, bytes: &[u8], interleaves: bool) -> Result<Vec<LinearRate>, OpsError> {
    let mut rates = unknown(POINT_ROWS);
    let mut parts = bytes.chunks_exact(LARGE_BYTES).cycle();
    let start = Instant::now();
    for round in 0..ROUNDS_MAX {
        if round >= ROUNDS_MIN && start.elapsed() > ROUNDS_TIME {
            break;
        }
        for (rate, part) in rates.iter_mut().zip(&mut parts) {
            for (rows, fastest) in &mut rate.points {
                *fastest = fastest.min(time_weight(ops, rate.format, *rows, (part, interleaves))?);
            }
        }
    }
    Ok(rising(rates))
}

/// Rates of all formats before any was measured.
fn unknown(rows: [usize; POINTS]) -> Vec<LinearRate> {
    let unknown = |format| LinearRate {
        format,
        points: rows.map(|rows| (rows, f64::INFINITY)),
    };
    Format::ALL.map(unknown).to_vec()
}

/// Makes a rate no faster for more rows than for fewer: the small matrix of more rows lies in the cache, where reading
/// a large one still takes its time.
fn rising(mut rates: Vec<LinearRate>) -> Vec<LinearRate> {
    for rate in &mut rates {
        for point in 1..POINTS {
            rate.points[point].1 = rate.points[point].1.max(rate.points[point - 1].1);
        }
    }
    rates
}

/// Seconds that a matmul takes for a weight of the format.
fn time_weight(
    ops: &Ops,
    format: Format,
    rows: usize,
    (bytes, interleaves): (&[u8], bool),
) -> Result<f64, OpsError> {
    let (outputs, width) = match rows {
        1 => large(format),
        _ => (SMALL_SIDE, SMALL_SIDE),
    };
    let memory = match interleaves && format.interleaves(width) {
        // Every byte is the same, so that no order has to be made: as weights lie that stay in memory.
        true => WeightData::Interleaved(InterleavedRows {
            bytes: &bytes[..format.bytes(outputs * width)],
            first_row: 0,
        }),
        false => WeightData::Host(bytes),
    };
    let weight = weight(format, (outputs, width), memory);
    let x = ops.probe_rows(rows, &weight)?;
    let seconds = ops.time(1, &mut || ops.linear(&x, &weight).map(drop))?;
    Ok(seconds / (outputs * width) as f64)
}

/// Rows and width of a large matrix.
fn large(format: Format) -> (usize, usize) {
    let rows = LARGE_BYTES / format.bytes(LARGE_WIDTH);
    (rows - rows % ROWS, LARGE_WIDTH)
}

/// A weight of this shape in the first bytes of the memory.
fn weight(format: Format, (rows, width): (usize, usize), memory: WeightData<'_>) -> Weight<'_> {
    let all = Weight {
        format,
        rows,
        width,
        data: memory,
        weights_version: 0,
    };
    all.rows(0, rows)
}

/// Above zero even where the clock stood still, so that no rate is infinite.
fn seconds_since(start: Instant) -> f64 {
    start.elapsed().max(Duration::from_nanos(1)).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn every_rate_is_measured_and_the_memory_given_back() {
        let ledger = Ledger::default();
        let ops = Ops::new(Device::cpu(2).unwrap(), ledger.clone()).unwrap();
        let before = ledger.used_bytes();
        let rates = measure(&ops).unwrap().unwrap();
        // From a slow disk's rate to what no memory reaches.
        assert!((0.0..=1.0).contains(&rates.others_share));
        let copy = rates.copy_bytes_per_s;
        assert!((1e8..1e12).contains(&copy), "{copy} bytes a second");
        let formats: Vec<_> = rates.linear.iter().map(|rate| rate.format).collect();
        assert_eq!(formats, Format::ALL);
        for rate in &rates.linear {
            let one = rate.seconds(1, 1);
            assert!((1e-13..1e-6).contains(&one), "{rate:?}");
            assert!(rate.points.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
        }
        for format in CONVERTED {
            let seconds = rates.convert_s(format).unwrap();
            assert!((1e-11..1e-5).contains(&seconds), "{format:?}: {seconds}");
        }
        assert_eq!(ledger.used_bytes(), before);
    }

    #[test]
    fn memory_is_larger_than_the_caches_where_there_is_enough() {
        const MIB: u64 = 1 << 20;
        let gib = 1 << 30;
        for (caches, free, expected) in [
            (Some(32 * MIB), Some(16 * gib), 128 * MIB),
            (Some(10 * MIB), Some(16 * gib), 64 * MIB),
            (Some(MIB), Some(16 * gib), 32 * MIB),
            (Some(1152 * MIB), Some(1024 * gib), 256 * MIB),
            (Some(32 * MIB), Some(512 * MIB), 64 * MIB),
            (Some(32 * MIB), None, 32 * MIB),
            (None, Some(16 * gib), 32 * MIB),
        ] {
            let found = beyond_caches(caches, free);
            assert_eq!(found as u64, expected, "{caches:?}, {free:?}");
        }
    }
}
