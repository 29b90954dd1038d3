//! The arena of a GPU's memory: against the stand-in, each test in a process with the environment it needs.

use sluice_cuda::{ArenaUse, CudaError, Gpu, GpuMemory};
use testkit::apart;

const MIB: usize = 1 << 20;
const PIECE: usize = 2 * MIB;

fn free(gpu: &Gpu) -> u64 {
    gpu.memory().unwrap().free_bytes
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn the_driver_counts_what_is_in_use_to_a_piece() {
    apart::run("the_driver_counts_what_is_in_use_to_a_piece", &[], || {
        let gpu = Gpu::open(0).unwrap();
        let before = free(&gpu);
        let none = ArenaUse {
            piece_bytes: PIECE as u64,
            mapped_bytes: 0,
            used_bytes: 0,
        };
        assert_eq!(gpu.arena(), Some(none));

        let parts: Vec<GpuMemory> = (1..40)
            .map(|i| gpu.allocate_part(i * 100_003).unwrap())
            .collect();
        let used: usize = parts.iter().map(|part| part.span().bytes()).sum();
        let arena = gpu.arena().unwrap();
        assert_eq!(arena.used_bytes, used as u64);
        assert_eq!(before - free(&gpu), arena.mapped_bytes);
        assert!(arena.mapped_bytes < (used + PIECE) as u64, "{arena:?}");

        // Every other one goes, and what comes takes their places.
        let mut parts: Vec<Option<GpuMemory>> = parts.into_iter().map(Some).collect();
        parts.iter_mut().step_by(2).for_each(|part| *part = None);
        let arena = gpu.arena().unwrap();
        assert_eq!(before - free(&gpu), arena.mapped_bytes);
        let again = gpu.allocate_part(50_000).unwrap();
        assert_eq!(gpu.arena().unwrap().mapped_bytes, arena.mapped_bytes);
        drop(again);
        drop(parts);
        assert_eq!((gpu.arena(), free(&gpu)), (Some(none), before));
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn parts_hold_what_is_written_to_them_while_others_come_and_go() {
    apart::run(
        "parts_hold_what_is_written_to_them_while_others_come_and_go",
        &[],
        || {
            let gpu = Gpu::open(0).unwrap();
            let mut parts: Vec<(u8, GpuMemory)> = Vec::new();
            for round in 0..60_u8 {
                let part = gpu
                    .allocate_part(usize::from(round % 7 + 1) * 700_001)
                    .unwrap();
                gpu.fill(part.span(), round).unwrap();
                parts.push((round, part));
                if round % 3 == 2 {
                    parts.remove(usize::from(round) * 5 % parts.len());
                }
            }
            for (round, part) in &parts {
                let mut bytes = vec![0; part.span().bytes()];
                gpu.download(part.span(), &mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| byte == round), "part {round}");
            }
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_part_stays_until_work_on_it_has_ended() {
    apart::run("a_part_stays_until_work_on_it_has_ended", &[], || {
        let gpu = Gpu::open(0).unwrap();
        let kept = gpu.allocate(4 * MIB).unwrap();
        let part = gpu.allocate_part(4 * MIB).unwrap();
        gpu.fill(part.span(), 7).unwrap();
        gpu.copy(kept.span(), part.span()).unwrap();
        // Nobody has waited: the copy reads the part when something does.
        drop(part);
        let mut back = vec![0; 4 * MIB];
        gpu.download(kept.span(), &mut back).unwrap();
        assert!(back.iter().all(|&byte| byte == 7));
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_part_that_finds_no_room_half_way_leaves_all_as_it_was() {
    // The first is cuBLAS's workspace, the second the arena's own trial, the third the part that stays.
    let settings = [("STAND_IN_FAIL_ALLOCATION", "6")];
    apart::run(
        "a_part_that_finds_no_room_half_way_leaves_all_as_it_was",
        &settings,
        || {
            let gpu = Gpu::open(0).unwrap();
            let kept = gpu.allocate_part(MIB).unwrap();
            let (before, arena) = (free(&gpu), gpu.arena());
            let refused = gpu.allocate_part(20 * MIB).unwrap_err();
            let CudaError::OutOfMemory {
                needed_bytes,
                free_bytes: Some(free_bytes),
            } = refused
            else {
                panic!("{refused}");
            };
            assert_eq!(needed_bytes, 20 * MIB as u64);
            assert!(free_bytes < before, "as it was when it was refused");
            assert_eq!((free(&gpu), gpu.arena()), (before, arena));
            let _there = gpu.allocate_part(20 * MIB).unwrap();
            drop(kept);
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_part_that_the_gpu_has_no_room_for_is_refused_with_the_figures() {
    let settings = [("STAND_IN_MEMORY", "0x40000000")];
    apart::run(
        "a_part_that_the_gpu_has_no_room_for_is_refused_with_the_figures",
        &settings,
        || {
            let gpu = Gpu::open(0).unwrap();
            let before = free(&gpu);
            // More than its addresses, and more than its memory.
            for bytes in [1 << 34, 1 << 30] {
                assert_eq!(
                    gpu.allocate_part(bytes).unwrap_err(),
                    CudaError::OutOfMemory {
                        needed_bytes: bytes as u64,
                        free_bytes: Some(before)
                    }
                );
            }
            assert_eq!(free(&gpu), before);
            // All that there is can be had, whatever was where before.
            let parts: Vec<_> = (0..10).map(|_| gpu.allocate_part(80 * MIB)).collect();
            drop(parts);
            let all = usize::try_from(before).unwrap() / PIECE * PIECE;
            let _all = gpu.allocate_part(all).unwrap();
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_gpu_that_cannot_map_memory_allocates_it() {
    let settings = [("STAND_IN_RANGES", "0")];
    apart::run(
        "a_gpu_that_cannot_map_memory_allocates_it",
        &settings,
        || {
            let gpu = Gpu::open(0).unwrap();
            let before = free(&gpu);
            assert_eq!(gpu.arena(), None);
            let part = gpu.allocate_part(12345).unwrap();
            assert_eq!(before - free(&gpu), 12345);
            drop(part);
            assert_eq!(free(&gpu), before);
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_part_keeps_its_gpu() {
    apart::run("a_part_keeps_its_gpu", &[], || {
        let gpu = Gpu::open(0).unwrap();
        let before = free(&gpu);
        let (nothing, part) = (
            gpu.allocate_part(0).unwrap(),
            gpu.allocate_part(MIB).unwrap(),
        );
        assert_eq!(nothing.span().bytes(), 0);
        drop(gpu);
        drop(part);
        drop(nothing);
        assert_eq!(free(&Gpu::open(0).unwrap()), before);
    });
}
