//! The stand-in itself: that it computes right, keeps a GPU's rules, and ends a program that breaks them.

use std::process::{Command, Output};

use sluice_cuda::devices;
use testkit::{here, stand_in};

/// Runs one test of one of its test programs.
fn run(program: &str, test: &str, environment: &[(&str, &str)]) -> Output {
    let libraries = stand_in::build();
    // It finds the stand-in as if it were installed; the environment gives the GPU other shapes.
    Command::new(libraries.join(program))
        .env("LD_LIBRARY_PATH", libraries)
        .arg(test)
        .envs(environment.iter().copied())
        .output()
        .expect("run the test program")
}

fn passes(program: &str, test: &str, environment: &[(&str, &str)]) {
    let output = run(program, test, environment);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test} {environment:?}: {text}");
}

/// It ends with a signal, having said this.
fn is_stopped(program: &str, test: &str, environment: &[(&str, &str)], says: &str) {
    let output = run(program, test, environment);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), None, "{test}: {text}");
    assert!(text.contains(says), "{test}: {text}");
}

const ORDERS: [[(&str, &str); 1]; 2] = [
    [("STAND_IN_ORDER", "forward")],
    [("STAND_IN_ORDER", "backward")],
];

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn kernels_compute_as_on_a_gpu() {
    for order in ORDERS {
        for test in [
            "barrier",
            "every_thread_once",
            "shuffle",
            "matrix",
            "shared_memory",
            "permuted_bytes",
            "half_precision",
            "bfloat_precision",
        ] {
            passes("kernel_test", test, &order);
        }
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn threads_that_part_at_a_barrier_are_named() {
    for order in ORDERS {
        for (test, says) in [
            (
                "leaves_before_barrier",
                "kernel leaves_early, block (0, 0, 0), thread (40, 0, 0): has left",
            ),
            ("leaves_before_shuffle", "thread (5, 0, 0): has left"),
            ("different_barriers", "waits at __syncthreads"),
            ("partial_mask", "knows full warps only"),
            ("misaligned_matrix", "wants 32-byte"),
            ("shared_memory_overrun", ""),
        ] {
            let one_thread = ("STAND_IN_THREADS", "1");
            // Which of the blocks comes first depends on the order.
            let says = match order[0].1 {
                "backward" => &says.replace("block (0, 0, 0)", "block (2, 0, 0)"),
                _ => says,
            };
            is_stopped("kernel_test", test, &[order[0], one_thread], says);
        }
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn the_driver_keeps_a_gpus_rules() {
    for test in [
        "kernel_runs",
        "work_waits",
        "streams_wait_for_events",
        "memory_is_counted",
        "fresh_memory_is_poison",
        "copies_stay_inside",
        "ranges_have_memory_where_it_is_mapped",
        "stale_ptx_is_refused",
        "launches_have_bounds",
        "matrices_multiply",
        "contexts_end",
    ] {
        passes("library_test", test, &[]);
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn streams_take_the_order_that_they_are_told() {
    for (test, order) in [
        ("work_waits", "lazy"),
        ("work_runs_at_once", "eager"),
        ("work_runs_in_any_order_that_events_allow", "random:1"),
    ] {
        passes("library_test", test, &[("STAND_IN_STREAMS", order)]);
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_simulated_clock_tells_what_runs_beside_what() {
    let settings = [
        ("STAND_IN_CLOCK", "simulated"),
        ("STAND_IN_LINK_BYTES_PER_S", "1000000000"),
        ("STAND_IN_KERNEL_NS", "3000000"),
    ];
    for test in [
        "kernel_runs",
        "copies_run_beside_kernels",
        "streams_share_what_a_gpu_has_one_of",
        "work_begins_after_what_the_host_has_waited_for",
    ] {
        passes("library_test", test, &settings);
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn the_environment_makes_things_fail() {
    for (test, name, value) in [
        ("second_allocation_fails", "STAND_IN_FAIL_ALLOCATION", "2"),
        (
            "failure_comes_at_the_wait_and_stays",
            "STAND_IN_FAIL_KERNEL",
            "1",
        ),
        ("no_gpus", "STAND_IN_DEVICES", "0"),
        ("no_gpus", "CUDA_VISIBLE_DEVICES", ""),
        ("no_gpus", "CUDA_VISIBLE_DEVICES", "1"),
    ] {
        passes("library_test", test, &[(name, value)]);
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn accesses_outside_of_an_allocation_are_named() {
    for (test, says) in [
        (
            "kernel_reads_far",
            "a bad access at 0x200000002000: 4096 bytes from the start of an allocation of 4000",
        ),
        ("kernel_reads_freed", "kernel convert_f32"),
        (
            "kernel_reads_unmapped",
            "nothing is mapped there, 2097152 bytes from the start of a range",
        ),
        (
            "kernel_writes_a_little_far",
            "something has written beside the 4000 bytes",
        ),
    ] {
        is_stopped("library_test", test, &[], says);
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn this_process_finds_it() {
    here::open_stand_in();

    let devices = devices().expect("the stand-in's card");

    assert_eq!(devices.len(), 1);
    assert_eq!(devices[0].name, "Stand-in (CPU)");
    assert_eq!(devices[0].capability, (8, 6));
}
