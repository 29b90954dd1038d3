//! The driver, and machines that have none that is of use: against the stand-in, each test in a process with the environment it
//! needs.

use sluice_cuda::{Gpu, GpuUnavailable, devices};
use testkit::apart;

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
