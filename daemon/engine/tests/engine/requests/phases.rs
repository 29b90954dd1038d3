//! Where the time of passes goes: the parts come to the whole, and what a pass does takes time.

use std::{sync::atomic::AtomicBool, time::Duration};

use sluice_checkpoint::{
    Source,
    coded::{Compression, How, Lossless, compress},
};
use sluice_engine::{
    Generate, Settings,
    event::{PassReport, Phases},
};
use sluice_shared::level::Level;

use super::world::World;
use crate::checkpoints::{demonstration, fixture};

/// The phases of a request's passes together.
fn phases(world: &World) -> Phases {
    let request = Generate::greedy(world.model.id, vec![1, 2, 3], 16);
    let (_, passes) = world.run(&[request]).remove(0);
    assert!(!passes.is_empty());
    let mut all = Phases::default();
    for PassReport { cost, .. } in passes {
        let phases = cost.phases.expect("the CPU is timed");
        let Phases {
            attention,
            multiply,
            decode,
            head,
            other,
            copy,
        } = phases;
        let known = attention + multiply + decode + head + cost.waited;
        assert_eq!(known + other, cost.time);
        assert_eq!(copy > Duration::ZERO, cost.streamed_bytes > 0);
        all += phases;
    }
    for part in [all.attention, all.multiply, all.head, all.other] {
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
        let all = phases(&World::new(&folder, 1, Settings::default()));
        assert_eq!((all.decode, all.copy), Default::default(), "{folder:?}");
    }
}

#[test]
fn streamed_weights_are_copied() {
    let roomy = World::diffusion(1);
    let plan = roomy.engine.in_force().unwrap().plan;
    let settings = Settings {
        budget_bytes: Some(plan.peak_bytes() - plan.resident_bytes() / 3),
        ..Settings::default()
    };
    let all = phases(&World::new(&demonstration(), 1, settings));
    assert!(all.copy > Duration::ZERO);
}

#[test]
fn coded_weights_are_decoded() {
    let folder = tempfile::tempdir().unwrap();
    for (name, how, level) in [
        (
            "huffman.sluice",
            How::Lossless(Lossless::Huffman),
            Level::Mild,
        ),
        (
            "rate.sluice",
            How::Rate(sluice_codec::Target::Bits(6.0)),
            Level::Standard,
        ),
    ] {
        let path = folder.path().join(name);
        let options = Compression {
            how,
            tile: 256,
            keep: Vec::new(),
            all: false,
            threads: 2,
            replace: false,
        };
        let never = AtomicBool::new(false);
        let source = Source::Folder(demonstration());
        compress(&source, &path, &options, &never, &mut |_, _| {}).unwrap();
        let settings = Settings {
            level,
            ..Settings::default()
        };
        let all = phases(&World::new(&path, 1, settings));
        assert!(all.decode > Duration::ZERO, "{name}");
    }
}
