//! The driver, memory and cuBLAS: against the stand-in, each test in a process with the environment it needs.

use std::thread;

use sluice_cuda::{CudaError, Gpu, GpuSpan, GpuUnavailable, HostMemory, LAPS_MAX, Matmul, devices};
use sluice_formats::DType;
use testkit::apart;

const MIB: usize = 1 << 20;

/// The refusal that both ways in give.
fn refusal() -> GpuUnavailable {
    let refusal = Gpu::open(0).expect_err("no card to be had");
    assert!(!refusal.hint().is_empty());
    assert_eq!(Gpu::open(0).expect_err("still none"), refusal);
    refusal
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_driver_that_cannot_be_opened_is_said() {
    apart::run_without(
        &["libcuda.so.1"],
        "a_driver_that_cannot_be_opened_is_said",
        &[],
        || {
            let refusal = refusal();
            assert!(
                matches!(&refusal, GpuUnavailable::NoDriver { reason } if reason.contains("libcuda.so.1"))
            );
            assert_eq!(devices().unwrap_err(), refusal);
            assert!(
                refusal
                    .to_string()
                    .starts_with("cannot use NVIDIA's driver: ")
            );
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn an_old_driver_is_refused() {
    let settings = [("STAND_IN_DRIVER_VERSION", "11080")];
    apart::run("an_old_driver_is_refused", &settings, || {
        let refusal = refusal();
        assert_eq!(
            refusal,
            GpuUnavailable::DriverTooOld {
                found: (11, 8),
                needed: (12, 0)
            }
        );
        assert_eq!(
            refusal.to_string(),
            "NVIDIA's driver is too old: it supports CUDA 11.8, and 12.0 is required"
        );
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn the_toolkits_stand_in_for_linking_is_named() {
    let settings = [("STAND_IN_VERSION_FAILS", "34")];
    apart::run(
        "the_toolkits_stand_in_for_linking_is_named",
        &settings,
        || {
            let refusal = refusal();
            assert!(
                refusal
                    .to_string()
                    .contains("CUDA driver is a stub library"),
                "{refusal}"
            );
            assert!(refusal.hint().contains("stubs"), "{}", refusal.hint());
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_machine_without_a_gpu_is_refused() {
    let settings = [("STAND_IN_DEVICES", "0")];
    apart::run("a_machine_without_a_gpu_is_refused", &settings, || {
        assert_eq!(refusal(), GpuUnavailable::NoDevice);
        assert_eq!(devices().unwrap_err(), GpuUnavailable::NoDevice);
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn gpus_that_are_hidden_are_told_from_none() {
    let settings = [("CUDA_VISIBLE_DEVICES", "")];
    apart::run("gpus_that_are_hidden_are_told_from_none", &settings, || {
        let refusal = refusal();
        let visible = String::new();
        assert_eq!(refusal, GpuUnavailable::Hidden { visible });
        assert_eq!(
            refusal.to_string(),
            "CUDA_VISIBLE_DEVICES=\"\" hides every NVIDIA GPU"
        );
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_gpu_that_is_named_and_not_found_is_not_hidden() {
    let settings = [("CUDA_VISIBLE_DEVICES", "0"), ("STAND_IN_DEVICES", "0")];
    apart::run_without(
        &["libnvidia-ml.so.1"],
        "a_gpu_that_is_named_and_not_found_is_not_hidden",
        &settings,
        || {
            let refusal = refusal();
            assert_eq!(refusal, GpuUnavailable::NoDevice);
            assert!(refusal.hint().contains("/dev/nvidia*"));
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_value_that_names_no_gpu_hides_all_whoever_counts_them() {
    let settings = [("CUDA_VISIBLE_DEVICES", "-1")];
    apart::run_without(
        &["libnvidia-ml.so.1"],
        "a_value_that_names_no_gpu_hides_all_whoever_counts_them",
        &settings,
        || {
            let visible = "-1".to_owned();
            assert_eq!(refusal(), GpuUnavailable::Hidden { visible });
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_gpu_that_is_not_there_is_refused_with_the_number_of_those_that_are() {
    let settings = [("STAND_IN_DEVICES", "2")];
    apart::run(
        "a_gpu_that_is_not_there_is_refused_with_the_number_of_those_that_are",
        &settings,
        || {
            let refusal = Gpu::open(2).unwrap_err();
            assert_eq!(
                refusal,
                GpuUnavailable::NoSuchDevice {
                    ordinal: 2,
                    count: 2
                }
            );
            assert_eq!(
                refusal.to_string(),
                "there is no NVIDIA GPU 2: the driver lists 2, numbered from 0"
            );
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn an_old_gpu_is_refused() {
    let settings = [("STAND_IN_CAPABILITY", "7.0")];
    apart::run("an_old_gpu_is_refused", &settings, || {
        let refusal = refusal();
        assert!(matches!(
            &refusal,
            GpuUnavailable::TooOld {
                capability: (7, 0),
                needed: (7, 5),
                ..
            }
        ));
        assert!(
            refusal
                .to_string()
                .ends_with("is too old: its compute capability is 7.0, and 7.5 is required")
        );
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_full_gpu_is_refused() {
    let settings = [
        ("STAND_IN_MEMORY", "0x40000000"),
        ("STAND_IN_HELD", "0x3f000000"),
    ];
    apart::run("a_full_gpu_is_refused", &settings, || {
        let refusal = refusal();
        assert!(matches!(
            refusal,
            GpuUnavailable::TooLittleMemory {
                free_bytes: Some(0x0100_0000),
                ..
            }
        ));
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_gpu_that_is_held_alone_is_refused() {
    let settings = [
        ("STAND_IN_CONTEXT_FAILS", "46"),
        ("STAND_IN_COMPUTE_MODE", "3"),
    ];
    apart::run("a_gpu_that_is_held_alone_is_refused", &settings, || {
        let refusal = refusal();
        assert!(matches!(
            &refusal,
            GpuUnavailable::Busy {
                prohibited: false,
                ..
            }
        ));
        assert!(
            refusal
                .to_string()
                .ends_with("is held by another process alone")
        );
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_gpu_that_is_set_to_accept_nothing_is_refused() {
    let settings = [
        ("STAND_IN_CONTEXT_FAILS", "46"),
        ("STAND_IN_COMPUTE_MODE", "2"),
    ];
    apart::run(
        "a_gpu_that_is_set_to_accept_nothing_is_refused",
        &settings,
        || {
            let refusal = refusal();
            assert!(refusal.to_string().ends_with("is set to accept no work"));
            assert!(refusal.hint().contains("nvidia-smi -c DEFAULT"));
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_driver_of_another_version_than_its_module_is_named() {
    let settings = [("STAND_IN_INIT_FAILS", "803")];
    apart::run(
        "a_driver_of_another_version_than_its_module_is_named",
        &settings,
        || {
            let refusal = refusal();
            assert!(
                refusal
                    .to_string()
                    .contains("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")
            );
            assert!(refusal.hint().contains("restart the machine"));
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_gpu_that_may_not_be_opened_is_named() {
    let settings = [("STAND_IN_CONTEXT_FAILS", "800")];
    apart::run("a_gpu_that_may_not_be_opened_is_named", &settings, || {
        let refusal = refusal();
        assert_eq!(
            refusal.to_string(),
            "cannot open Stand-in (CPU): operation not permitted (CUDA_ERROR_NOT_PERMITTED)"
        );
        assert!(refusal.hint().contains("/dev/nvidia*"));
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_code_that_nobody_knows_is_an_error_like_others() {
    let settings = [("STAND_IN_INIT_FAILS", "31337")];
    apart::run(
        "a_code_that_nobody_knows_is_an_error_like_others",
        &settings,
        || {
            assert_eq!(
                refusal().to_string(),
                "cannot initialize NVIDIA's driver: unknown error (code 31337)"
            );
        },
    );
}

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
            assert_eq!(laps.take_intervals().unwrap(), []);
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
            assert_eq!(laps.take_intervals().unwrap(), []);
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn cublas_multiplies() {
    apart::run("cublas_multiplies", &[], || {
        const ROWS: usize = 5;
        const OUTPUTS: usize = 7;
        const WIDTH: usize = 12;
        let gpu = Gpu::open(0).unwrap();
        let blas = gpu.blas().expect("the stand-in has one");
        assert!(blas.name().starts_with("libcublas.so.12 ("));
        assert_eq!(blas.workspace_bytes(), 4 * MIB);

        // Small integers, which every dtype holds exactly, and their sums too.
        let whole = |count: usize, factor: usize| -> Vec<f32> {
            (0..count)
                .map(|i| ((i * factor) % 7) as f32 - 3.0)
                .collect()
        };
        let (x, weights) = (whole(ROWS * WIDTH, 5), whole(OUTPUTS * WIDTH, 3));
        let wanted: Vec<f32> = (0..ROWS * OUTPUTS)
            .map(|i| {
                let x = &x[i / OUTPUTS * WIDTH..][..WIDTH];
                let weights = &weights[i % OUTPUTS * WIDTH..][..WIDTH];
                x.iter().zip(weights).map(|(x, weight)| x * weight).sum()
            })
            .collect();
        for number in DType::ALL {
            let put = |numbers: &[f32]| {
                let bytes = encode(number, numbers);
                let memory = gpu.allocate(bytes.len()).unwrap();
                gpu.upload(memory.span(), &bytes).unwrap();
                memory
            };
            let (x, weights) = (put(&x), put(&weights));
            for (out_is_f32, accumulate) in [(true, false), (true, true), (false, false)] {
                let out_number = if out_is_f32 { DType::F32 } else { number };
                let out = gpu.allocate(wanted.len() * out_number.bytes()).unwrap();
                let before = if accumulate { 2.0 } else { f32::NAN };
                gpu.upload(out.span(), &encode(out_number, &vec![before; wanted.len()]))
                    .unwrap();
                blas.gemm(
                    number,
                    Matmul {
                        out: out.span(),
                        out_is_f32,
                        x: x.span(),
                        weights: weights.span(),
                        rows: ROWS,
                        outputs: OUTPUTS,
                        out_stride: OUTPUTS,
                        width: WIDTH,
                        accumulate,
                    },
                )
                .unwrap();
                let mut found = vec![0; out.span().bytes()];
                gpu.download(out.span(), &mut found).unwrap();
                let plus = if accumulate { 2.0 } else { 0.0 };
                let wanted: Vec<f32> = wanted.iter().map(|sum| sum + plus).collect();
                assert_eq!(
                    found,
                    encode(out_number, &wanted),
                    "{number:?} {out_is_f32} {accumulate}"
                );
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn without_cublas_there_is_a_reason() {
    apart::run_without(
        &["libcublas.so.13", "libcublas.so.12", "libcublas.so.11"],
        "without_cublas_there_is_a_reason",
        &[],
        || {
            let gpu = Gpu::open(0).unwrap();
            assert!(gpu.blas().is_none());
            assert!(gpu.blas_absence().unwrap().contains("libcublas.so.12"));
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_cublas_that_cannot_compute_is_passed_over() {
    apart::run(
        "a_cublas_that_cannot_compute_is_passed_over",
        &[("STAND_IN_BLAS_FAILS", "12")],
        || {
            let gpu = Gpu::open(0).unwrap();
            let name = gpu.blas().expect("the older one").name();
            assert_eq!(name, "libcublas.so.11 (110902)");
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_cublas_that_cannot_compute_leaves_our_own_kernels() {
    apart::run_without(
        &["libcublas.so.11"],
        "a_cublas_that_cannot_compute_leaves_our_own_kernels",
        &[("STAND_IN_BLAS_FAILS", "12")],
        || {
            let gpu = Gpu::open(0).unwrap();
            assert!(gpu.blas().is_none());
            let why = gpu.blas_absence().unwrap();
            assert!(why.contains("CUBLAS_STATUS_NOT_SUPPORTED"), "{why}");
            let free = gpu.memory().unwrap().free_bytes;
            drop(gpu);
            // Nothing of the one that was tried stays.
            let gpu = Gpu::open(0).unwrap();
            assert_eq!(gpu.memory().unwrap().free_bytes, free);
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn cublas_works_in_memory_that_stays() {
    apart::run("cublas_works_in_memory_that_stays", &[], || {
        let gpu = Gpu::open(0).unwrap();
        // Another user of the GPU opens it too, and lets it go.
        drop(Gpu::open(0).unwrap());
        let memory = gpu.allocate(3 * 64 * 64 * 4).unwrap();
        let part = |index: usize| memory.span().part(index * 64 * 64 * 4, 64 * 64 * 4);
        gpu.fill(memory.span(), 0).unwrap();
        let product = Matmul {
            out: part(0),
            out_is_f32: true,
            x: part(1),
            weights: part(2),
            rows: 64,
            outputs: 64,
            out_stride: 64,
            width: 64,
            accumulate: false,
        };
        gpu.matmul(DType::F32, sluice_formats::Format::F32, product)
            .unwrap();
        let mut found = vec![1; 64 * 64 * 4];
        gpu.download(part(0), &mut found).unwrap();
        assert!(found.iter().all(|&byte| byte == 0));
    });
}

/// Bytes without a pattern.
fn elements(count: usize) -> Vec<u8> {
    (0..count as u64)
        .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

fn encode(number: DType, numbers: &[f32]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|&value| match number {
            DType::F32 => value.to_le_bytes().to_vec(),
            DType::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
            DType::Bf16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
        })
        .collect()
}
