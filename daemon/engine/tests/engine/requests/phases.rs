//! Where the time of passes goes: the parts come to the whole, and what a pass does takes time.

use std::time::Duration;

use sluice_checkpoint::compression::{CompressionMethod, Lossless};
use sluice_engine::{
    Budget, Generate, PlanSettings,
    event::{PassPhases, PassReport},
};
use sluice_shared::level::Level;

use super::world::World;
use crate::checkpoints::{demonstration, fixture, write_container};

/// The phases of a request's passes together.
fn phases(world: &World) -> PassPhases {
    let request = Generate::greedy(world.model.id, vec![1, 2, 3], 16);
    let (_, passes) = world.run(&[request]).remove(0);
    assert!(!passes.is_empty());
    let mut all = PassPhases::default();
    for PassReport { cost, .. } in passes {
        let phases = cost.phases.expect("the CPU is timed");
        let PassPhases {
            attention,
            matmul: multiply,
            decompress: decode,
            lm_head: head,
            other,
            copy,
        } = phases;
        let known = attention + multiply + decode + head + cost.waited;
        assert_eq!(known + other, cost.time);
        assert_eq!(copy > Duration::ZERO, cost.streamed_bytes > 0);
        all += phases;
    }
    for part in [all.attention, all.matmul, all.lm_head, all.other] {
        assert!(part > Duration::ZERO, "{all:?}");
    }
    all
}

#[test]
fn the_parts_of_a_pass_come_to_its_time() {
    for folder in [
        fixture("llada-tiny"),
        fixture("llama-tiny"),
        demonstration(),
    ] {
        let all = phases(&World::new(&folder, 1, PlanSettings::default()));
        assert_eq!((all.decompress, all.copy), Default::default(), "{folder:?}");
    }
}

#[test]
fn streamed_weights_are_copied() {
    let roomy = World::diffusion(1);
    let plan = roomy.engine.in_force().unwrap().plan;
    let settings = PlanSettings {
        budget: Budget::Bytes(plan.peak_bytes() - plan.resident_bytes() / 3),
        ..PlanSettings::default()
    };
    let all = phases(&World::new(&demonstration(), 1, settings));
    assert!(all.copy > Duration::ZERO);
}

#[test]
fn compressed_weights_are_decoded() {
    let folder = tempfile::tempdir().unwrap();
    for (name, how, level) in [
        (
            "huffman.sluice",
            CompressionMethod::Lossless(Lossless::Huffman),
            Level::Mild,
        ),
        (
            "rate.sluice",
            CompressionMethod::Trellis(sluice_codec::TrellisTarget::Bits(6.0)),
            Level::Standard,
        ),
    ] {
        let path = folder.path().join(name);
        write_container(&demonstration(), &path, how, 256);
        let settings = PlanSettings {
            level,
            ..PlanSettings::default()
        };
        let all = phases(&World::new(&path, 1, settings));
        assert!(all.decompress > Duration::ZERO, "{name}");
    }
}
