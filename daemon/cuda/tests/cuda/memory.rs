//! Memory of the GPU and of the host, copies between them, and the time that work takes, on the stand-in.

use std::thread;

use sluice_cuda::{CudaError, Gpu, GpuSpan, HostMemory, LAPS_MAX};
use sluice_formats::DType;
use testkit::apart;

const MIB: usize = 1 << 20;

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn bytes_come_back_as_they_went() {
    apart::run("bytes_come_back_as_they_went", &[], || {
        let gpu = Gpu::open(0).unwrap();
        for bytes in [1, 4096, MIB, 3 * MIB + 5] {
            let numbers = elements(bytes);
            let (one, other) = (
                gpu.allocate(bytes).unwrap(),
                gpu.allocate(bytes + 7).unwrap(),
            );
            let inside = other.span().part(7, bytes);
            let mut back = vec![0; bytes];
            gpu.upload(one.span(), &numbers).unwrap();
            gpu.copy(inside, one.span()).unwrap();
            gpu.fill(one.span(), 0xa5).unwrap();
            gpu.download(inside, &mut back).unwrap();
            assert!(back == numbers, "{bytes} bytes");
            gpu.download(one.span(), &mut back).unwrap();
            assert!(back.iter().all(|&byte| byte == 0xa5));
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_copy_beside_the_work_does_not_wait_for_it() {
    // The work before would end the GPU when it ran, which it does when somebody waits for it.
    let settings = [("STAND_IN_FAIL_KERNEL", "1")];
    apart::run(
        "a_copy_beside_the_work_does_not_wait_for_it",
        &settings,
        || {
            let gpu = Gpu::open(0).unwrap();
            let memory = gpu.allocate(2 * MIB).unwrap();
            let (used, fresh) = (memory.span().part(0, MIB), memory.span().part(MIB, MIB));
            gpu.fill(used, 0).unwrap();
            gpu.add(DType::F32, used, used, 16).unwrap();
            gpu.upload_beside(fresh, &elements(MIB)).unwrap();
            assert!(!gpu.has_failed());
            assert!(gpu.synchronize().is_err() && gpu.has_failed());
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn what_was_uploaded_may_change_at_once() {
    apart::run("what_was_uploaded_may_change_at_once", &[], || {
        const BYTES: usize = 300_000;
        let gpu = Gpu::open(0).unwrap();
        let memory = gpu.allocate(10 * BYTES).unwrap();
        // More than is put aside, so that room is used again; pinned, which the GPU reads when it comes to it.
        let mut from = HostMemory::pinned(&gpu, BYTES).unwrap();
        assert!(from.iter().all(|&byte| byte == 0));
        for (round, byte) in (1..=10).enumerate() {
            from.to_write().unwrap().fill(byte);
            gpu.upload(memory.span().part(round * BYTES, BYTES), &from)
                .unwrap();
        }
        from.to_write().unwrap().fill(0);
        let mut back = vec![0; 10 * BYTES];
        gpu.download(memory.span(), &mut back).unwrap();
        for (byte, part) in (1..=10).zip(back.chunks_exact(BYTES)) {
            assert!(part.iter().all(|&found| found == byte), "round {byte}");
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn nothing_is_fine() {
    apart::run("nothing_is_fine", &[], || {
        let gpu = Gpu::open(0).unwrap();
        let (one, other) = (gpu.allocate(0).unwrap(), gpu.allocate(0).unwrap());
        gpu.upload(one.span(), &[]).unwrap();
        gpu.copy(other.span(), one.span()).unwrap();
        gpu.fill(other.span(), 1).unwrap();
        gpu.download(other.span(), &mut []).unwrap();
        assert!(HostMemory::pinned(&gpu, 0).unwrap().is_empty());
        gpu.synchronize().unwrap();
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
#[should_panic(expected = "exceed a span")]
fn a_part_lies_inside() {
    // No GPU is needed to cut a span of nothing.
    let span: GpuSpan = GpuSpan::default();
    let _ = span.part(0, 1);
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn too_much_is_refused_with_the_figures() {
    let settings = [("STAND_IN_MEMORY", "0x40000000")];
    apart::run("too_much_is_refused_with_the_figures", &settings, || {
        let gpu = Gpu::open(0).unwrap();
        let free_bytes = gpu.memory().unwrap().free_bytes;
        let error = gpu.allocate(1 << 30).unwrap_err();
        assert_eq!(
            error,
            CudaError::OutOfMemory {
                needed_bytes: 1 << 30,
                free_bytes: Some(free_bytes)
            }
        );
        assert_eq!(
            error.to_string(),
            format!("cannot allocate 1073741824 bytes of GPU memory; {free_bytes} are free")
        );
        // It is refused, and nothing else has changed.
        gpu.allocate(MIB).unwrap();
        assert_eq!(gpu.memory().unwrap().free_bytes, free_bytes);
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn pinned_memory_that_cannot_be_had_is_said() {
    // The first is the GPU's own, for small uploads.
    let settings = [("STAND_IN_FAIL_PINNED", "2")];
    apart::run(
        "pinned_memory_that_cannot_be_had_is_said",
        &settings,
        || {
            let gpu = Gpu::open(0).unwrap();
            assert_eq!(
                HostMemory::pinned(&gpu, 12345).unwrap_err(),
                CudaError::OutOfPinnedMemory {
                    needed_bytes: 12345
                }
            );
            HostMemory::pinned(&gpu, 12345).unwrap();
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn all_memory_is_given_back() {
    apart::run("all_memory_is_given_back", &[], || {
        let gpu = Gpu::open(0).unwrap();
        let before = gpu.memory().unwrap();
        {
            let memory: Vec<_> = (1..50).map(|i| gpu.allocate(i * 4321).unwrap()).collect();
            let pinned = HostMemory::pinned(&gpu, 4321).unwrap();
            gpu.upload(memory[0].span(), &pinned).unwrap();
            gpu.start_timer().unwrap();
            assert!(gpu.memory().unwrap().free_bytes < before.free_bytes);
        }
        assert_eq!(gpu.memory().unwrap(), before);

        // Memory keeps its GPU, and the last one closes it.
        let memory = gpu.allocate(MIB).unwrap();
        drop(gpu);
        drop(memory);
        let again = Gpu::open(0).unwrap();
        assert_eq!(again.memory().unwrap(), before);
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_gpu_serves_many_threads() {
    let settings = [("STAND_IN_DEVICES", "2")];
    apart::run("a_gpu_serves_many_threads", &settings, || {
        let before = Gpu::open(0).unwrap().memory().unwrap();
        // A GPU that was closed and opened again is another one for threads that knew it.
        for _ in 0..3 {
            let gpus = [Gpu::open(0).unwrap(), Gpu::open(1).unwrap()];
            thread::scope(|scope| {
                for seed in 0..8 {
                    let gpus = gpus.clone();
                    scope.spawn(move || {
                        for round in 0..20 {
                            let gpu = &gpus[(seed + round) % 2];
                            let numbers = elements(1000 + 100 * seed + round);
                            let memory = gpu.allocate(numbers.len()).unwrap();
                            gpu.upload(memory.span(), &numbers).unwrap();
                            let mut back = vec![0; numbers.len()];
                            gpu.download(memory.span(), &mut back).unwrap();
                            assert_eq!(back, numbers);
                        }
                    });
                }
            });
        }
        assert_eq!(Gpu::open(0).unwrap().memory().unwrap(), before);
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_kernel_that_fails_is_told_by_whoever_waits() {
    let settings = [("STAND_IN_FAIL_KERNEL", "2")];
    apart::run(
        "a_kernel_that_fails_is_told_by_whoever_waits",
        &settings,
        || {
            let gpu = Gpu::open(0).unwrap();
            let memory = gpu.allocate(64).unwrap();
            gpu.fill(memory.span(), 0).unwrap();
            let add = || gpu.add(DType::F32, memory.span(), memory.span(), 16);
            add().unwrap();
            gpu.synchronize().unwrap();
            add().unwrap();
            let error = gpu.download(memory.span(), &mut [0; 64]).unwrap_err();
            assert!(matches!(&error, CudaError::Driver { code: 700, .. }));
            assert!(error.to_string().ends_with(
                ": an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)"
            ));
            // The GPU is lost to this process, and everything says so.
            assert!(error.ends_context() && gpu.has_failed());
            assert!(gpu.allocate(1).is_err() && gpu.memory().is_err());
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn each_generation_gets_its_kernels() {
    for capability in ["7.5", "8.0", "9.0", "12.0"] {
        let settings = [("STAND_IN_CAPABILITY", capability)];
        apart::run("each_generation_gets_its_kernels", &settings, || {
            let gpu = Gpu::open(0).unwrap();
            let numbers = [DType::F32, DType::F16, DType::Bf16];
            let count = if gpu.properties().has_bf16 { 3 } else { 2 };
            for number in &numbers[..count] {
                let x = gpu.allocate(64).unwrap();
                gpu.upload(x.span(), &encode(DType::F32, &[1.0; 16]))
                    .unwrap();
                let y = gpu.allocate(64).unwrap();
                gpu.convert(*number, y.span(), x.span(), 16).unwrap();
                gpu.add(*number, x.span(), y.span(), 16).unwrap();
                let mut sums = [0; 64];
                gpu.download(x.span(), &mut sums).unwrap();
                assert_eq!(sums[..], encode(DType::F32, &[2.0; 16]), "{number:?}");
            }
        });
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn time_on_the_gpu_is_measured() {
    apart::run("time_on_the_gpu_is_measured", &[], || {
        let gpu = Gpu::open(0).unwrap();
        let memory = gpu.allocate(64 * MIB).unwrap();
        let timer = gpu.start_timer().unwrap();
        gpu.fill(memory.span(), 1).unwrap();
        let whole = timer.stop().unwrap();
        let timer = gpu.start_timer().unwrap();
        let nothing = timer.stop().unwrap();
        assert!(nothing < whole, "{nothing:?} {whole:?}");
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn moments_in_a_gpus_work_are_noted_again_and_again() {
    apart::run(
        "moments_in_a_gpus_work_are_noted_again_and_again",
        &[],
        || {
            let gpu = Gpu::open(0).unwrap();
            let memory = gpu.allocate(64 * MIB).unwrap();
            let mut laps = gpu.laps();
            assert!(laps.take_intervals().unwrap().is_empty());
            for _ in 0..2 {
                assert!(laps.mark().unwrap());
                gpu.fill(memory.span(), 1).unwrap();
                assert!(laps.mark().unwrap());
                assert!(laps.mark().unwrap());
                let intervals = laps.take_intervals().unwrap();
                assert_eq!(intervals.len(), 2);
                assert!(intervals[1] < intervals[0], "{intervals:?}");
            }
            for _ in 0..LAPS_MAX {
                assert!(laps.mark().unwrap());
            }
            assert!(!laps.mark().unwrap(), "there is an end to them");
            laps.clear();
            assert!(laps.mark().unwrap());
            assert!(laps.take_intervals().unwrap().is_empty());
        },
    );
}

/// Bytes without a pattern.
fn elements(count: usize) -> Vec<u8> {
    (0..count as u64)
        .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

pub(crate) fn encode(number: DType, numbers: &[f32]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|&value| match number {
            DType::F32 => value.to_le_bytes().to_vec(),
            DType::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
            DType::Bf16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
        })
        .collect()
}
