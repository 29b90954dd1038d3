//! The expert cache over a small model's file.

use std::{fs, iter, path::Path, sync::atomic::AtomicBool, time::SystemTime};

use proptest::prelude::*;
use sluice_checkpoint::{Checkpoint, Source, family::ModelConfig};
use sluice_weights::{LayerKind, TensorPart, Tier, WeightData, layout, weight_groups};
use tempfile::TempDir;

use super::{slots::AHEAD_SHARE, *};
use crate::residency::{visits::ExpertVisits, weight};

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen3-moe-tiny");

/// A copy of the fixture that can be damaged, its experts, and the device memory that slots for them take.
struct World {
    folder: TempDir,
    experts: Vec<WeightGroupPlan>,
    of_a_layer: usize,
    visits: ExpertVisits,
    reader: Arc<WeightReader>,
    ledger: Ledger,
    slot_bytes: u64,
}

impl World {
    fn new(bytes_per_s: Option<u64>) -> Self {
        let folder = TempDir::new().unwrap();
        for file in fs::read_dir(FIXTURE).unwrap() {
            let path = file.unwrap().path();
            fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
        let source = Source::Folder(folder.path().to_path_buf());
        let checkpoint = Arc::new(Checkpoint::open(&source).unwrap());
        let config = ModelConfig::read(&checkpoint.config().unwrap(), None).unwrap();
        let LayerKind::Mixture(shape) = config.shape.layer_kind else {
            panic!("the fixture is a mixture")
        };
        let sources = checkpoint.sources(config.shape.tensors()).unwrap();
        let mut experts = weight_groups(&sources);
        experts.retain(|group| group.group.is_expert());
        for expert in &mut experts {
            expert.tier = Tier::Host;
        }
        let sizes = experts
            .iter()
            .map(|expert| layout::staging(expert.sizes()).bytes);
        Self {
            slot_bytes: sizes.max().unwrap(),
            reader: Arc::new(WeightReader::new(checkpoint, &sources).with_limit(bytes_per_s)),
            experts,
            of_a_layer: shape.count,
            visits: ExpertVisits::default(),
            folder,
            ledger: Ledger::default(),
        }
    }

    fn cache(&self, slots: usize) -> ExpertCache {
        let staging = StagingBuffers {
            expert_buffers: slots,
            expert_buffer_bytes: self.slot_bytes,
            ..StagingBuffers::default()
        };
        let device = Device::cpu(1).unwrap();
        let (reader, experts) = (Arc::clone(&self.reader), self.experts.clone());
        let slots = ExpertCache::slots(&staging, &device, &self.ledger).unwrap();
        ExpertCache::start(reader, experts, slots, &device, None).unwrap()
    }

    fn layers(&self) -> usize {
        self.experts.len() / self.of_a_layer
    }

    /// Says what a visit of a layer is going to touch; layers count those with experts.
    fn want(&self, cache: &ExpertCache, layer: usize, experts: &[usize]) {
        let layer = self.experts[layer * self.of_a_layer].group.layer().unwrap();
        let experts = experts.iter().copied();
        self.visits.visit(layer, experts.clone());
        cache.want(layer, experts, iter::empty());
    }

    /// A visit of a layer that touches these experts, whose bytes are those of the file.
    fn visit(&self, cache: &ExpertCache, layer: usize, experts: &[usize]) {
        self.want(cache, layer, experts);
        for expert in experts {
            let place = layer * self.of_a_layer + expert;
            let held = cache.try_take(place);
            let held = held.unwrap_or_else(|| cache.take(place).unwrap());
            self.check(place, &held);
        }
    }

    fn check(&self, place: usize, held: &ExpertInUse) {
        let plan = &self.experts[place];
        let pages = self.slot_bytes as usize / PAGE_BYTES;
        let (device, kind) = (Device::cpu(1).unwrap(), MemoryKind::Weights);
        let mut memory = DeviceBuffer::new(&device, &Ledger::default(), kind, pages).unwrap();
        let never = AtomicBool::new(false);
        let starts = self.reader.stream(plan, memory.host_mut(), &never);
        let own = LoadedGroup {
            starts: starts.unwrap().unwrap(),
            memory,
            compressed: vec![None; plan.tensors.len()],
            is_interleaved: false,
        };
        for (tensor, part) in
            (plan.tensors.iter()).zip([TensorPart::Gate, TensorPart::Up, TensorPart::Down])
        {
            let [held, own] = [held.loaded(), &own].map(|loaded| {
                let weight = weight(plan, Some(loaded), part, Default::default(), 0);
                match weight.data {
                    WeightData::Host(bytes) => bytes.to_vec(),
                    WeightData::Interleaved(rows) => {
                        let mut bytes = rows.bytes.to_vec();
                        let format = tensor.storage.format();
                        interleaved::restore(format, tensor.width, &mut bytes, &mut Vec::new());
                        bytes
                    }
                    _ => panic!("neither as the file has it nor interleaved"),
                }
            });
            assert!(held == own);
        }
    }
}

#[test]
fn a_round_hits_as_many_as_there_are_slots_for() {
    let world = World::new(None);
    let (layers, count) = (world.layers(), world.of_a_layer);
    let touched: Vec<usize> = (0..count).step_by(2).collect();
    let round = layers * touched.len();
    for slots in [3, round / 2, round] {
        let cache = world.cache(slots);
        assert!(world.ledger.used_bytes() >= slots as u64 * world.slot_bytes);
        for _ in 0..6 {
            for layer in 0..layers {
                world.visit(&cache, layer, &touched);
            }
        }
        let stats = cache.stats().experts;
        assert_eq!(stats.touched, 6 * round as u64);
        assert_eq!(
            stats.hits + stats.fetched_ahead + stats.missed,
            stats.touched
        );
        // Some slots are read ahead into, and an expert in use gives up none.
        let least = 5 * slots.saturating_sub(2 + (slots / AHEAD_SHARE).max(1));
        assert!(stats.hits >= least as u64, "{slots} slots: {stats:?}");
        let last = cache.last_visits();
        assert!(
            last.iter()
                .all(|(_, visit)| visit.touched == touched.len() as u64)
        );
        if slots == round {
            assert_eq!(stats.missed + stats.fetched_ahead, round as u64);
        }
        drop(cache);
        assert_eq!(world.ledger.used_bytes(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever passes touch, skip and give up, each expert's bytes are the file's, and nothing waits for ever.
    #[test]
    fn whatever_is_touched_comes(
        slots in 3usize..12,
        visits in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), any::<bool>()), 1..40),
    ) {
        let world = World::new(None);
        let cache = world.cache(slots);
        for (layer, bits, is_given_up) in visits {
            let layer = layer.index(world.layers());
            let touched: Vec<usize> = (0..world.of_a_layer).filter(|at| bits >> at & 1 == 1).collect();
            match is_given_up {
                true => world.want(&cache, layer, &touched),
                false => world.visit(&cache, layer, &touched),
            }
            // Out of turn.
            drop(cache.take(layer * world.of_a_layer).unwrap());
        }
    }
}

#[test]
fn whoever_waits_for_what_cannot_be_read_is_told_and_may_try_again() {
    let world = World::new(None);
    let path = weights_file(world.folder.path());
    let (bytes, modified) = (fs::read(&path).unwrap(), modified(&path));
    let cache = world.cache(4);
    world.visit(&cache, 0, &[0, 1]);
    fs::write(&path, b"short").unwrap();
    for _ in 0..2 {
        world.want(&cache, 1, &[2, 3]);
        let error = cache.take(world.of_a_layer + 2).unwrap_err();
        assert!(matches!(error, EngineError::Checkpoint(_)), "{error}");
    }
    fs::write(&path, &bytes).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(modified).unwrap();
    world.visit(&cache, 1, &[2, 3]);
    let held = cache.held().len();
    assert_eq!(cache.shared.monitor.state().free.len() + held, 4);
}

#[test]
fn a_limit_holds_nobody_up_who_wants_the_cache_to_end() {
    let world = World::new(Some(1));
    let cache = world.cache(4);
    world.want(&cache, 0, &[1]);
    let end = Instant::now() + Duration::from_secs(20);
    while cache.shared.monitor.state().filling.is_none() {
        assert!(Instant::now() < end);
        thread::sleep(Duration::from_millis(1));
    }
    drop(cache);
    assert_eq!(world.ledger.used_bytes(), 0);
}

fn weights_file(folder: &Path) -> std::path::PathBuf {
    folder.join("model.safetensors")
}

fn modified(path: &Path) -> SystemTime {
    fs::metadata(path).unwrap().modified().unwrap()
}
