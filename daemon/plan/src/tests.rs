//! Plans for published shapes and for random ones.

mod cpu_experts;

use std::collections::HashSet;

use proptest::prelude::*;
use sluice_checkpoint::family::PublishedShape;
use sluice_codec::Scheme;
use sluice_formats::{DType, Format};
use sluice_machine::{DiskBandwidth, GpuProfile, LinearRate, MemoryStats, Profile, Rates};
use sluice_shared::options::PlanSettings;
use sluice_weights::{
    CompressedRange, LatentShape, LayerKind, TensorNaming, TensorPart, WeightGroup,
    compression::with_assumed_compression,
};

use super::*;

const GIB: u64 = 1 << 30;

pub(crate) fn sources_of(shape: &Shape) -> Vec<SourceTensor> {
    let tensors = shape.tensors().into_iter();
    let sources = tensors
        .map(|spec| SourceTensor {
            spec,
            format: Format::Bf16,
            compressed: None,
            compressed_copy: None,
            mixed: None,
        })
        .collect();
    with_assumed_compression(sources)
}

fn machine(cache_bytes: u64) -> Machine {
    Machine::unmeasured(Profile::cpu(2), cache_bytes)
}

fn plan(shape: &Shape, level: Level, budget_bytes: u64) -> Result<Plan, PlanError> {
    plan_with_kv_cache(shape, level, budget_bytes, 0)
}

fn plan_with_kv_cache(
    shape: &Shape,
    level: Level,
    budget_bytes: u64,
    cache_bytes: u64,
) -> Result<Plan, PlanError> {
    Plan::new(&PlanInput {
        shape,
        sources: &sources_of(shape),
        choices: level.into(),
        budget_bytes,
        workload: Workload::new(64, BLOCK_DEFAULT, 1),
        working: WorkingMemory {
            activation_bytes: 4 << 20,
            ..WorkingMemory::default()
        },
        machine: &machine(cache_bytes),
    })
}

fn llada_8b() -> Shape {
    PublishedShape::find("llada-8b").unwrap().shape().clone()
}

#[test]
fn levels_of_llada_8b_take_what_the_design_says() {
    let off = plan(&llada_8b(), Level::Off, u64::MAX).unwrap();
    for (level, gigabytes) in [
        (Level::Off, 16.0),
        (Level::Standard, 15.0),
        (Level::Mild, 11.3),
        (Level::Moderate, 8.0),
        (Level::Aggressive, 4.3),
    ] {
        let plan = plan(&llada_8b(), level, u64::MAX).unwrap();
        let found = plan.peak_bytes() as f64 / 1e9;
        assert!((found - gigabytes).abs() < 0.1, "{level}: {found} GB");
        assert_eq!(plan.staging, StagingBuffers::default(), "{level}");
        assert!(plan.peak_bytes() <= off.peak_bytes());
    }
}

#[test]
fn what_the_budget_has_no_room_for_is_streamed_evenly() {
    let plan = plan(&llada_8b(), Level::Standard, 8 * GIB).unwrap();
    assert!(plan.peak_bytes() <= 8 * GIB);
    // As much as the staging buffers leave is resident.
    let smallest = plan.streamed().map(WeightGroupPlan::bytes).min().unwrap();
    assert!(
        plan.peak_bytes() + smallest > 8 * GIB,
        "{}",
        plan.peak_bytes()
    );
    assert_eq!(plan.staging.count, 4);
    // Any third of the pass streams about a third of the bytes.
    let inner: Vec<&WeightGroupPlan> = plan
        .groups
        .iter()
        .filter(|group| group.group.layer().is_some())
        .collect();
    let streamed = |groups: &[&WeightGroupPlan]| -> u64 {
        let streamed = groups.iter().filter(|group| group.is_streamed());
        streamed.map(|group| group.bytes()).sum()
    };
    let all = streamed(&inner);
    for third in inner.chunks(inner.len() / 3) {
        let share = streamed(third) as f64 / all as f64;
        assert!((share - 1.0 / 3.0).abs() < 0.05, "{share}");
    }
}

#[test]
fn what_the_plan_takes_itself_is_no_cache() {
    let with_cache = |cache_bytes| {
        plan_with_kv_cache(&llada_8b(), Level::Standard, 8 * GIB, cache_bytes).unwrap()
    };
    let tiers =
        |plan: &Plan| -> HashSet<&str> { plan.streamed().map(|group| group.tier.name()).collect() };
    let host = with_cache(u64::MAX);
    assert_eq!(tiers(&host), HashSet::from([Tier::Host.name()]));
    assert_eq!(host.staging.count, 3);
    let least_bytes = host.streamed_bytes() + host.peak_bytes();
    assert!(with_cache(least_bytes) == host);
    // Enough for what is streamed, not for the plan beside it.
    for cache_bytes in [host.streamed_bytes(), least_bytes - 1] {
        let disk = with_cache(cache_bytes);
        assert_eq!(tiers(&disk), HashSet::from([Tier::Disk.name()]));
    }
}

#[test]
fn a_budget_below_the_working_set_names_the_least_that_works() {
    let error = plan(&llada_8b(), Level::Standard, GIB / 2).unwrap_err();
    let PlanError::BudgetTooSmall { least_bytes, .. } = error else {
        panic!("{error}")
    };
    assert!(least_bytes > GIB / 2 && least_bytes < GIB, "{least_bytes}");
    let least = plan(&llada_8b(), Level::Standard, least_bytes).unwrap();
    assert_eq!(least.peak_bytes(), least_bytes);
    assert!(plan(&llada_8b(), Level::Standard, least_bytes - 1).is_err());
    // At `off`, all of it is the least.
    let error = plan(&llada_8b(), Level::Off, 8 * GIB).unwrap_err();
    assert!(
        matches!(error, PlanError::BudgetTooSmall { least_bytes, .. } if least_bytes > 14 * GIB)
    );
}

#[test]
fn a_gpu_keeps_keys_and_values_in_its_own_dtype_alone() {
    let profile = gpu_machine(0, 0).device;
    for asked in KvCacheFormat::ALL {
        let kept = resolve_kv_cache_format(asked, &profile);
        match asked {
            KvCacheFormat::Auto | KvCacheFormat::Bf16 => assert_eq!(kept.unwrap(), Format::Bf16),
            _ => assert_eq!(
                kept.unwrap_err().to_string(),
                format!("this GPU computes in bf16 and cannot hold a KV cache in {asked}")
            ),
        }
    }
}

/// A machine with a GPU, with so much pinnable host memory, and so much for the system's cache.
fn gpu_machine(pin_limit_bytes: u64, cache_bytes: u64) -> Machine {
    let card = GpuProfile {
        total_bytes: 12 * GIB,
        dtype: DType::Bf16,
        context_bytes: 0,
        workspace_bytes: 0,
    };
    let device = Profile {
        gpu: Some(card),
        ..Profile::cpu(2)
    };
    Machine {
        pinned_memory_limit_bytes: pin_limit_bytes,
        ..Machine::unmeasured(device, cache_bytes)
    }
}

fn plan_on_gpu(level: Level, budget_bytes: u64, machine: &Machine) -> Result<Plan, PlanError> {
    let shape = llada_8b();
    Plan::new(&PlanInput {
        shape: &shape,
        sources: &sources_of(&shape),
        choices: level.into(),
        budget_bytes,
        workload: Workload::default(),
        working: WorkingMemory::default(),
        machine,
    })
}

#[test]
fn a_gpu_streams_what_it_has_no_room_for() {
    for budget in [4 * GIB, 6 * GIB, 8 * GIB, 12 * GIB] {
        let plan = plan_on_gpu(Level::Standard, budget, &gpu_machine(u64::MAX, u64::MAX)).unwrap();
        assert!(plan.peak_bytes() <= budget);
        // Within one weight group of it.
        assert!(plan.peak_bytes() + GIB / 4 > budget);
        assert_eq!(plan.staging.count, 3);
        assert!(plan.streamed().all(|group| group.tier == Tier::Host));
        let kept: u64 = plan.streamed().map(WeightGroupPlan::staging_bytes).sum();
        assert_eq!(
            plan.pinned_bytes, kept,
            "all of it is kept where it is copied from"
        );
    }
    let error = plan_on_gpu(Level::Off, 8 * GIB, &gpu_machine(u64::MAX, u64::MAX)).unwrap_err();
    assert!(matches!(error, PlanError::BudgetTooSmall { .. }), "{error}");
}

#[test]
fn what_a_host_has_no_pinned_memory_for_is_read_in_every_pass() {
    let tiers = |pin_limit, cache| {
        let plan = plan_on_gpu(Level::Standard, 4 * GIB, &gpu_machine(pin_limit, cache)).unwrap();
        assert!(plan.pinned_bytes <= pin_limit);
        let bytes = |tier| {
            let groups = plan.streamed().filter(|group| group.tier == tier);
            groups.map(WeightGroupPlan::bytes).sum::<u64>()
        };
        assert_eq!(
            plan.staging.count, 3,
            "a fourth one is in the host's memory"
        );
        (plan.pinned_bytes, bytes(Tier::Host), bytes(Tier::Disk))
    };
    // The system's cache holds the rest, or it does not.
    let (pinned, host, disk) = tiers(6 * GIB, 20 * GIB);
    assert!(pinned > 5 * GIB && host > 10 * GIB && disk == 0);
    let (pinned, host, disk) = tiers(6 * GIB, 8 * GIB);
    assert!(pinned > 5 * GIB && host < 6 * GIB && disk > 4 * GIB);
    let (pinned, host, disk) = tiers(0, 8 * GIB);
    assert!(pinned == 0 && host == 0 && disk > 10 * GIB);
}

#[test]
fn what_the_engine_has_pinned_is_there_for_what_comes_in_its_place() {
    let device = gpu_machine(0, 0).device;
    let half_of_all = MemoryStats::read().total_bytes.unwrap() / 2;
    let alone = Machine::here(device, None, 0);
    assert!(alone.pinned_memory_limit_bytes <= half_of_all);
    let beside = Machine::here(device, None, 1 << 50);
    assert_eq!(beside.pinned_memory_limit_bytes, half_of_all);
    assert!(beside.page_cache_bytes >= 1 << 50);
    let cpu = Machine::here(Profile::cpu(1), None, 1 << 50);
    assert_eq!(cpu.pinned_memory_limit_bytes, 0);
}

/// Rates of a GPU behind a bus of 16 GB/s.
fn bus_rates() -> Rates {
    let linear = [Format::F32, Format::Bf16].map(|format| LinearRate {
        format,
        points: [(1, 1e-12), (64, 2e-12), (512, 1e-11)],
    });
    Rates {
        copy_bytes_per_s: 8e9,
        link_bytes_per_s: Some(16e9),
        linear: linear.to_vec(),
        host_linear: Vec::new(),
        decompress: Vec::new(),
        others_share: 0.0,
        compress_s: 0.0,
        convert: Vec::new(),
    }
}

#[test]
fn copies_to_a_gpu_run_beside_its_work() {
    let machine = |pin_limit| Machine {
        rates: Some(bus_rates()),
        ..gpu_machine(pin_limit, u64::MAX)
    };
    let plan = plan_on_gpu(Level::Standard, 4 * GIB, &machine(u64::MAX)).unwrap();
    let pass = plan.pass.unwrap();
    let copies_s = |plan: &Plan| plan.streamed_bytes() as f64 / 16e9;
    let is = |seconds: f64, expected: f64| (seconds - expected).abs() < 1e-6 * expected;
    assert!(is(pass.copy_s, copies_s(&plan)));
    assert_eq!(pass.total_s(), pass.copy_s.max(pass.compute_s));
    assert!(pass.waits());
    // What has to be copied to pinned memory first takes longer than the bus.
    let staged = plan_on_gpu(Level::Standard, 4 * GIB, &machine(0)).unwrap();
    assert!(is(staged.pass.unwrap().total_s(), 2.0 * copies_s(&staged)));
    // What is pinned has page tables in the GPU's memory.
    let tables = page_table_bytes(plan.pinned_bytes);
    assert!(plan.peak_bytes() + tables + allocation_slack_bytes(&machine(0)) <= 4 * GIB);
    assert!(plan.resident_bytes() < staged.resident_bytes());
}

#[test]
fn of_experts_a_gpu_copies_what_the_cache_lacks() {
    let shape = PublishedShape::find("llada2-mini").unwrap().shape();
    let machine = |pin_limit| Machine {
        rates: Some(bus_rates()),
        disk: DiskBandwidth {
            direct_bytes_per_s: Some(2e9),
            cold_bytes_per_s: Some(1e9),
        },
        ..gpu_machine(pin_limit, u64::MAX)
    };
    let plan = |budget_bytes, machine: &Machine| {
        let plan = Plan::new(&PlanInput {
            shape,
            sources: &sources_of(shape),
            choices: Level::Standard.into(),
            budget_bytes,
            workload: Workload::new(32, BLOCK_DEFAULT, 1),
            working: WorkingMemory::default(),
            machine,
        });
        plan.unwrap()
    };
    let is = |seconds: f64, expected: f64| (seconds - expected).abs() < 1e-6 * expected;
    let all = machine(u64::MAX);
    // With room for some experts alone, and with less than what comes in every pass takes.
    for budget in [10 * GIB, GIB] {
        let kept = plan(budget, &all);
        assert_eq!(kept.staging.count > 0, budget == GIB);
        let pass = kept.pass.unwrap();
        assert!(is(pass.copy_s, kept.streamed_bytes() as f64 / 16e9));
        assert_eq!(pass.reader_s, pass.copy_s, "nothing is read");
        // The first pass finds the cache empty, and reads what it touches.
        let of_experts = |is_expert: bool| -> f64 {
            let groups = kept.streamed();
            let groups = groups.filter(|group| group.group.is_expert() == is_expert);
            groups.map(WeightGroupPlan::bytes).sum::<u64>() as f64
        };
        let figures = kept.expert_figures().unwrap();
        let touched = figures.touched / figures.count as f64;
        let first = of_experts(false) + touched * of_experts(true);
        assert!(is(pass.cold_s.unwrap(), first / 1e9));
        assert!(figures.read < figures.touched);

        let staged = plan(budget, &machine(0));
        let pass = staged.pass.unwrap();
        assert!(is(pass.reader_s, staged.streamed_bytes() as f64 / 8e9));
    }
}

#[test]
fn experts_and_what_every_pass_brings_have_pinned_staging_buffers_each() {
    let shape = PublishedShape::find("llada2-mini").unwrap().shape();
    let plan = |pin_limit, cache| {
        let plan = Plan::new(&PlanInput {
            shape,
            sources: &sources_of(shape),
            choices: Level::Standard.into(),
            budget_bytes: GIB,
            workload: Workload::default(),
            working: WorkingMemory::default(),
            machine: &gpu_machine(pin_limit, cache),
        });
        plan.unwrap()
    };
    let whole = plan(u64::MAX, u64::MAX);
    let all: u64 = whole.streamed().map(WeightGroupPlan::staging_bytes).sum();
    assert_eq!(whole.pinned_bytes, all);
    let buffers = |plan: &Plan| {
        PINNED_STAGING_BUFFERS as u64 * (plan.staging.bytes_each + plan.staging.expert_buffer_bytes)
    };
    // The last bytes of the limit stay free where they are too few for the next group.
    let smallest = whole.staging.expert_buffer_bytes;
    for limit in [GIB, 4 * GIB, all - GIB] {
        let some = plan(limit, u64::MAX);
        let planned = some.pinned_bytes + buffers(&some);
        assert!(planned <= limit && planned + smallest > limit, "{planned}");
    }
    // What is read from the disk in every pass needs staging buffers, however much may be pinned.
    let from_disk = plan(all, 4 * GIB);
    assert!(from_disk.streamed().any(|group| group.tier == Tier::Disk));
    let budget = PinnedBudget::new(all, from_disk.streamed());
    assert!(budget.has_staging());
    assert!(from_disk.pinned_bytes + buffers(&from_disk) <= 4 * GIB);
}

#[test]
fn the_head_is_cut_by_the_shape_alone() {
    let cuts = |level, budget| -> Vec<(WeightGroup, usize)> {
        let plan = plan(&llada_8b(), level, budget).unwrap();
        let heads = plan
            .groups
            .iter()
            .filter(|group| matches!(group.group, WeightGroup::LmHead(_)));
        heads
            .map(|group| (group.group, group.tensors[0].first_row))
            .collect()
    };
    let cut = cuts(Level::Off, u64::MAX);
    assert!(cut.len() > 3);
    assert_eq!(cut, cuts(Level::Aggressive, 2 * GIB));
    assert_eq!(cut, cuts(Level::Standard, GIB));
}

#[test]
fn a_row_length_that_blocks_cannot_divide_is_told() {
    let shape = PublishedShape::find("llada-1b").unwrap().shape();
    let plan = plan(shape, Level::Aggressive, u64::MAX).unwrap();
    let told: HashSet<_> = plan
        .exceptions()
        .iter()
        .map(|(tensor, usual)| (tensor.width, usual.name(), tensor.storage.name()))
        .collect();
    let odd = !shape.intermediate_size.is_multiple_of(256);
    assert_eq!(!told.is_empty(), odd, "{told:?}");
}

#[test]
fn mild_is_an_estimate_until_weights_are_compressed_and_auto_leaves_it_alone() {
    let shape = llada_8b();
    let all = plan(&shape, Level::Mild, u64::MAX).unwrap();
    assert!(all.is_estimate());
    // Where it is the only one that loses nothing and needs no reading.
    let budget_bytes = all.peak_bytes() + GIB;
    let auto = plan(&shape, Level::Auto, budget_bytes).unwrap();
    assert!(auto.level != Level::Mild && !auto.is_estimate());
    assert!(
        !plan(&shape, Level::Standard, u64::MAX)
            .unwrap()
            .is_estimate()
    );
}

#[test]
fn the_embedding_is_where_it_is_wanted() {
    let shape = llada_8b();
    let planned = |level, embedding| {
        let settings = PlanSettings {
            level,
            embedding,
            ..PlanSettings::default()
        };
        let question = PlanInput {
            shape: &shape,
            sources: &sources_of(&shape),
            choices: settings.resolved(),
            budget_bytes: 8 * GIB,
            workload: Workload::default(),
            working: WorkingMemory::default(),
            machine: &machine(0),
        };
        Plan::new(&question)
    };
    let place = |level, embedding| planned(level, embedding).unwrap().groups[0].tier;
    use sluice_shared::level::EmbeddingPlacement::{Auto, Device, Host};
    assert_eq!(place(Level::Standard, Auto), Tier::Host);
    assert_eq!(place(Level::Standard, Device), Tier::Device);
    assert_eq!(place(Level::Moderate, Host), Tier::Host);
    let streamed = |embedding| {
        planned(Level::Standard, embedding)
            .unwrap()
            .streamed_bytes()
    };
    assert!(streamed(Device) > streamed(Host), "it takes others' room");
}

#[test]
fn without_rates_auto_is_the_most_faithful_that_fits() {
    let auto = |budget| plan(&llada_8b(), Level::Auto, budget).unwrap().level;
    assert_eq!(auto(20 * GIB), Level::Off);
    assert_eq!(auto(8 * GIB), Level::Standard);
}

fn small_shape(layers: usize, width: usize, mlp: usize, rows: usize) -> Shape {
    Shape {
        naming: TensorNaming::Llada,
        layers,
        hidden_size: 64 * width,
        attention_heads: width,
        kv_heads: width,
        head_dim: 64,
        intermediate_size: 32 * mlp,
        padded_vocab_size: 256 * rows,
        context_length: 512,
        causal: false,
        tied: false,
        biases: false,
        qk_norms: false,
        layer_kind: LayerKind::Attention,
    }
}

fn level() -> impl Strategy<Value = Level> {
    prop::sample::select(vec![
        Level::Off,
        Level::Standard,
        Level::Moderate,
        Level::Aggressive,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever the shape, level and budget: the plan fits, and nothing is streamed that would fit.
    #[test]
    fn plans_keep_to_the_budget(
        layers in 1usize..12, width in 1usize..9, mlp in 1usize..40, rows in 1usize..30,
        level in level(), share in 0.02f64..1.3,
    ) {
        let shape = small_shape(layers, width, mlp, rows);
        let all = plan(&shape, level, u64::MAX).unwrap();
        let budget = (all.peak_bytes() as f64 * share) as u64;
        match plan(&shape, level, budget) {
            Ok(plan) => {
                prop_assert!(plan.peak_bytes() <= budget);
                prop_assert_eq!(plan.streamed().next().is_none(), all.peak_bytes() <= budget);
                prop_assert!(plan.streamed().all(|group| group.staging_bytes() <= plan.staging.bytes_each));
                prop_assert!(plan.staging.count == 0 || plan.staging.count >= 3);
            }
            Err(PlanError::BudgetTooSmall { least_bytes, .. }) => {
                prop_assert!(least_bytes > budget);
                prop_assert!(plan(&shape, level, least_bytes).is_ok());
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    /// Between any two plans, after every step: within what either may take, every streamed group fits the staging
    /// buffers, and in the end the new plan is in force.
    #[test]
    fn every_prefix_of_a_transition_fits(
        layers in 1usize..12, width in 1usize..9, mlp in 1usize..40, rows in 1usize..30,
        levels in (level(), level()), shares in (0.05f64..1.3, 0.05f64..1.3),
    ) {
        let shape = small_shape(layers, width, mlp, rows);
        let whole = plan(&shape, Level::Off, u64::MAX).unwrap().peak_bytes();
        let make = |level, share: f64| plan(&shape, level, (whole as f64 * share) as u64);
        let (Ok(from), Ok(to)) = (make(levels.0, shares.0), make(levels.1, shares.1)) else {
            return Ok(());
        };
        let ceiling = from.peak_bytes().max(to.budget_bytes);
        let working = from.working.total_bytes();
        let mut groups = from.groups.clone();
        let mut slots = from.staging;
        let held = |groups: &[WeightGroupPlan], slots: StagingBuffers| -> u64 {
            groups.iter().map(WeightGroupPlan::resident_bytes).sum::<u64>() + slots.total_bytes() + working
        };
        for step in transition(&from, &to) {
            match step {
                TransitionStep::Bring { group, beside } => {
                    let new = to.groups[group].resident_bytes();
                    prop_assert!(new > 0);
                    if beside {
                        prop_assert!(held(&groups, slots) + new <= ceiling);
                    }
                    groups[group] = to.groups[group].clone();
                }
                TransitionStep::Stream { evicted, staging: new } => {
                    for unit in evicted {
                        groups[unit] = to.groups[unit].clone();
                        prop_assert_eq!(groups[unit].resident_bytes(), 0);
                    }
                    slots = new;
                }
                TransitionStep::Settle { evicted, brought } => {
                    for unit in evicted {
                        groups[unit] = to.groups[unit].clone();
                    }
                    for unit in brought {
                        groups[unit] = to.groups[unit].clone();
                        prop_assert!(held(&groups, StagingBuffers::default()) <= ceiling);
                    }
                    slots = to.staging;
                }
            }
            prop_assert!(held(&groups, slots) <= ceiling, "{} over {}", held(&groups, slots), ceiling);
            for unit in groups.iter().filter(|unit| unit.is_streamed()) {
                prop_assert!(unit.staging_bytes() <= slots.bytes_each && slots.count >= 3);
            }
        }
        prop_assert_eq!(&groups, &to.groups);
        prop_assert_eq!(slots, to.staging);
    }
}

#[test]
fn workloads_add_up() {
    let sums = |workload: &Workload| (workload.rows(), workload.lm_head_rows());
    let (short, long) = (Workload::new(20, 32, 1), Workload::new(100, 8, 1));
    assert_eq!((sums(&short), sums(&long)), ((20, 20), (100, 8)));
    let both = short.with(&long);
    assert_eq!(both, long.with(&short));
    assert_eq!(
        (both.canvas_length, both.block_length, both.batch_requests),
        (100, 32, 2)
    );
    assert_eq!(sums(&both), (120, 28));
    assert!(short.is_uniform() && !both.is_uniform());
    assert_eq!(long.with(&long).with(&long), Workload::new(100, 8, 3));
    // Room for either is less than for both, and enough for each.
    let widest = both.widest(&Workload::new(30, 8, 3));
    assert_eq!(
        (
            widest.canvas_length,
            widest.block_length,
            widest.batch_requests
        ),
        (100, 32, 3)
    );
    assert_eq!(sums(&widest), (120, 28));
    assert_eq!(widest.widest(&both), widest);
}

#[test]
fn a_shared_pass_takes_no_longer_than_as_many_of_the_longest() {
    let shape = llada_8b();
    let linear = Format::ALL.map(|format| LinearRate {
        format,
        points: [(1, 1e-10), (8, 2e-10), (64, 1e-9)],
    });
    let machine = Machine {
        rates: Some(Rates {
            copy_bytes_per_s: 1e9,
            link_bytes_per_s: None,
            linear: linear.to_vec(),
            host_linear: Vec::new(),
            decompress: Vec::new(),
            others_share: 0.0,
            compress_s: 0.0,
            convert: Vec::new(),
        }),
        ..machine(u64::MAX)
    };
    let time = |workload: Workload| {
        let all = weight_groups(&sources_of(&shape));
        let asked = time::TimingInput {
            level: Level::Standard,
            shape: &shape,
            workload: &workload,
            mlp_rows: 512,
            experts: None,
            cached_experts: 0.0,
            cpu_experts: None,
            machine: &machine,
        };
        time::predict(&all, &asked).unwrap().total_s()
    };
    let (short, long) = (Workload::new(64, 32, 1), Workload::new(256, 32, 1));
    let mixed = time(short.with(&long));
    assert!(mixed > time(long) && mixed > time(short));
    assert!(mixed < time(long.with(&long)));
}

#[test]
fn what_is_streamed_takes_as_long_as_the_limit_wants() {
    let shape = llada_8b();
    let linear = [Format::F32, Format::Bf16].map(|format| LinearRate {
        format,
        points: [(1, 1e-10), (8, 2e-10), (64, 1e-9)],
    });
    let machine = |limit| Machine {
        rates: Some(Rates {
            copy_bytes_per_s: 4e9,
            link_bytes_per_s: None,
            linear: linear.to_vec(),
            host_linear: Vec::new(),
            decompress: Vec::new(),
            others_share: 0.0,
            compress_s: 0.0,
            convert: Vec::new(),
        }),
        disk: DiskBandwidth {
            direct_bytes_per_s: Some(2e9),
            cold_bytes_per_s: Some(1e9),
        },
        disk_read_limit_bytes_per_s: limit,
        ..machine(4 * GIB)
    };
    for cache_bytes in [0, u64::MAX] {
        let plan = plan_with_kv_cache(&shape, Level::Standard, 4 * GIB, cache_bytes).unwrap();
        let time = |limit| {
            let time = plan.time(&shape, &plan.workload, &machine(limit));
            time.unwrap()
        };
        let (free, limited) = (time(None), time(Some(500_000_000)));
        let least_s = plan.streamed_bytes() as f64 / 5e8;
        assert!((limited.reader_s - least_s).abs() < 1e-6 * least_s);
        assert_eq!(limited.total_s(), limited.reader_s);
        // Not even reads past the cache are slower than that.
        assert_eq!(limited.first_s(), Some(limited.total_s()));
        // What computing and copying take is what it was, and a limit beyond what the disk can do changes nothing.
        let busy = |time: &PassTime| (time.compute_s, time.copy_s, time.disk_s);
        assert_eq!(busy(&limited), busy(&free));
        assert_eq!(time(Some(u64::MAX)), free);
    }
}

/// The matrices of these groups, compressed.
fn compress(groups: &mut [WeightGroupPlan], scheme: Scheme, index_bytes: u64) {
    for tensor in groups.iter_mut().flat_map(|group| &mut group.tensors) {
        if tensor.rows > 1 && tensor.part != TensorPart::Embedding {
            tensor.storage = Storage::Compressed(CompressedRange {
                scheme,
                start: 0,
                bytes: tensor.bytes() / 3 * 2,
                index_bytes,
                format: tensor.source,
                mix: 0,
                is_estimate: false,
            });
        }
    }
}

#[test]
fn rows_go_through_an_mlp_in_longer_turns_where_a_gpu_decodes_it() {
    let with_blas = |workspace_bytes| {
        let machine = gpu_machine(0, 0);
        let card = machine.device.gpu.map(|card| GpuProfile {
            workspace_bytes,
            ..card
        });
        Profile {
            gpu: card,
            ..machine.device
        }
    };
    let (own, blas) = (with_blas(0), with_blas(32 << 20));
    let stored_as = |format| {
        let sources = sources_of(&llada_8b()).into_iter();
        let sources = sources.map(|source| SourceTensor { format, ..source });
        weight_groups(&sources.collect::<Vec<_>>())
    };
    let compressed = |scheme, index_bytes| {
        let mut groups = stored_as(Format::Bf16);
        compress(&mut groups, scheme, index_bytes);
        // At level standard those with room are decompressed once and for all, the others on their way.
        for tensor in groups.iter_mut().flat_map(|group| &mut group.tensors) {
            if let Storage::Compressed(coding) = tensor.storage {
                tensor.compressed = Some(coding);
                tensor.storage = Storage::Plain(tensor.source);
            }
        }
        groups
    };
    for (groups, rows) in [
        (compressed(Scheme::Huffman, 0), [512, 2048, 2048]),
        (compressed(Scheme::Trellis, 0), [512, 2048, 2048]),
        (compressed(Scheme::Dictionary, 64), [512, 512, 2048]),
        (stored_as(Format::Bf16), [512, 512, 512]),
        (stored_as(Format::Q4K), [512, 512, 2048]),
        (stored_as(Format::Q5K), [512, 2048, 2048]),
    ] {
        let found =
            [Profile::cpu(2), own, blas].map(|profile| decompressed::mlp_rows(&groups, &profile));
        assert_eq!(found, rows, "{:?}", groups[1].tensors[1]);
    }
}

#[test]
fn gradients_go_through_decompressed_weights_on_a_gpu_without_cublas() {
    let decompress_bytes = |layer_kind: LayerKind, level: Level| {
        let shape = Shape {
            naming: TensorNaming::LatentThought,
            causal: true,
            layer_kind,
            ..llada_8b()
        };
        let plan = Plan::new(&PlanInput {
            shape: &shape,
            sources: &sources_of(&shape),
            choices: level.into(),
            budget_bytes: u64::MAX,
            workload: Workload::default(),
            working: WorkingMemory::default(),
            machine: &gpu_machine(0, 0),
        });
        plan.unwrap().staging.decompress_bytes
    };
    let latents = LayerKind::LatentThought(LatentShape {
        latents: 96,
        stride: 10,
        window: 256,
    });
    assert_eq!(decompress_bytes(latents, Level::Off), 0);
    let bytes = decompress_bytes(latents, Level::Aggressive);
    assert_eq!(bytes, sluice_weights::decompressed::BYTES_MAX as u64);
}

#[test]
fn a_summed_head_is_decompressed_on_a_gpu_without_cublas() {
    let gemma = PublishedShape::find("diffusion-gemma-26b-a4b").unwrap();
    let shape = gemma.shape();
    let decompress_bytes = |level: Level| {
        let plan = Plan::new(&PlanInput {
            shape,
            sources: &sources_of(shape),
            choices: level.into(),
            budget_bytes: u64::MAX,
            workload: Workload::default(),
            working: WorkingMemory::default(),
            machine: &gpu_machine(0, 0),
        });
        plan.unwrap().staging.decompress_bytes
    };
    assert_eq!(decompress_bytes(Level::Off), 0);
    let bytes = decompress_bytes(Level::Moderate);
    assert!(bytes > 0 && bytes <= sluice_weights::decompressed::BYTES_MAX as u64);
}

#[test]
fn a_turn_of_2048_rows_decodes_an_mlp_once() {
    let shape = llada_8b();
    let machine = |decode_s| Machine {
        rates: Some(Rates {
            decompress: vec![(Scheme::Huffman, decode_s)],
            ..bus_rates()
        }),
        ..gpu_machine(u64::MAX, u64::MAX)
    };
    let mut groups = weight_groups(&sources_of(&shape));
    compress(&mut groups, Scheme::Huffman, 0);
    // The last layer's is for rows that are read alone.
    let matrices = groups.iter().filter(|group| {
        group
            .group
            .layer()
            .is_some_and(|layer| layer + 1 < shape.layers)
    });
    let numbers = matrices
        .flat_map(|group| &group.tensors)
        .filter(|tensor| tensor.part.is_of_mlp())
        .map(TensorPlan::elements)
        .sum::<u64>() as f64;
    for (canvas, mlp_rows, turns) in [
        (2048, 2048, 1.0),
        (2048, 512, 4.0),
        (4096, 2048, 2.0),
        (2049, 2048, 2.0),
        (256, 512, 1.0),
        (256, 64, 4.0),
        (2048, 0, 1.0),
    ] {
        let workload = Workload::new(canvas, BLOCK_DEFAULT, 1);
        let compute_s = |decode_s, mlp_rows| {
            let asked = time::TimingInput {
                level: Level::Standard,
                shape: &shape,
                workload: &workload,
                mlp_rows,
                experts: None,
                cached_experts: 0.0,
                cpu_experts: None,
                machine: &machine(decode_s),
            };
            time::predict(&groups, &asked).unwrap().compute_s
        };
        // Beside all else, which is decompressed once.
        let decoded = |mlp_rows| compute_s(1e-9, mlp_rows) - compute_s(0.0, mlp_rows);
        let more = (decoded(mlp_rows) - decoded(canvas)) / (1e-9 * numbers);
        assert!((more - (turns - 1.0)).abs() < 1e-6, "{canvas}: {more}");
    }
}

#[test]
fn what_there_is_room_for_is_decoded_where_that_pays() {
    let shape = llada_8b();
    let sources = sources_of(&shape);
    for (decode_s, pays) in [(1e-8, true), (0.0, false)] {
        let linear = [Format::F32, Format::Bf16].map(|format| LinearRate {
            format,
            points: [(1, 1e-10), (8, 2e-10), (64, 1e-9)],
        });
        let machine = Machine {
            rates: Some(Rates {
                copy_bytes_per_s: 1e9,
                link_bytes_per_s: None,
                linear: linear.to_vec(),
                host_linear: Vec::new(),
                decompress: vec![(Scheme::Huffman, decode_s)],
                others_share: 0.0,
                compress_s: 0.0,
                convert: Vec::new(),
            }),
            ..machine(u64::MAX)
        };
        let question = PlanInput {
            shape: &shape,
            sources: &sources,
            choices: Level::Standard.into(),
            budget_bytes: u64::MAX,
            workload: Workload::new(64, BLOCK_DEFAULT, 1),
            working: WorkingMemory::default(),
            machine: &machine,
        };
        let decoded = Plan::new(&question).unwrap();
        let mut plan = decoded.clone();
        compress(&mut plan.groups, Scheme::Huffman, 0);
        let compressed = plan.clone();
        plan.budget_bytes = plan.peak_bytes().midpoint(decoded.peak_bytes());
        plan.decompress_where_it_pays(&question);
        assert!(plan.peak_bytes() <= plan.budget_bytes);
        if !pays {
            assert!(plan.groups == compressed.groups);
            continue;
        }
        // No further group has room, and each costs less now.
        let largest = decoded
            .groups
            .iter()
            .map(WeightGroupPlan::bytes)
            .max()
            .unwrap();
        assert!(plan.peak_bytes() + largest > plan.budget_bytes);
        let [before, now] =
            [&compressed, &plan].map(|plan| plan.time(&shape, &question.workload, &machine));
        assert!(now.unwrap().total_s() < 0.7 * before.unwrap().total_s());
        plan.budget_bytes = u64::MAX;
        plan.decompress_where_it_pays(&question);
        assert!(plan.groups == decoded.groups);
    }
}
