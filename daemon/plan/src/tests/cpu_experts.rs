//! Experts that the CPU computes beside a GPU: where that is faster, and how many.

use sluice_machine::{LinearRate, Rates};
use sluice_shared::{
    level::CpuExperts,
    options::{PlanOptions, PlanSettings},
};

use super::*;
use crate::ExpertSplit;

/// A GPU behind a bus of so many GB/s, beside a CPU whose memory has so many.
fn rates(bus: f64, memory: f64) -> Rates {
    let read = |format: Format, rate: f64| {
        format.bytes(1 << 20) as f64 / f64::from(1 << 20) / (rate * 1e9)
    };
    // 400 GFLOP/s.
    let rows_s = |rows: usize| rows as f64 * 2.0 / 4e11;
    let rate = |format, bandwidth, compute_s: &dyn Fn(usize) -> f64| LinearRate {
        format,
        points: [1, 8, 64].map(|rows| (rows, compute_s(rows).max(read(format, bandwidth)))),
    };
    Rates {
        link_bytes_per_s: Some(bus * 1e9),
        linear: Format::ALL
            .map(|format| rate(format, 500.0, &|_| 0.0))
            .to_vec(),
        host_linear: (Format::ALL.map(|format| rate(format, memory, &rows_s))).to_vec(),
        ..bus_rates()
    }
}

struct Asked {
    model: &'static str,
    level: Level,
    gib: u64,
    rows: usize,
    rates: Rates,
    pin_limit: u64,
    cpu_experts: CpuExperts,
}

/// LLaDA2.0-mini in 8 bits at 8 GiB, in blocks of 32.
fn asked(bus: f64, memory: f64) -> Asked {
    Asked {
        model: "llada2-mini",
        level: Level::Moderate,
        gib: 8,
        rows: 32,
        rates: rates(bus, memory),
        pin_limit: u64::MAX,
        cpu_experts: CpuExperts::Auto,
    }
}

fn planned(asked: &Asked) -> Plan {
    let shape = PublishedShape::find(asked.model).unwrap().shape();
    let workload = match shape.causal {
        true => Workload::new(256, 1, asked.rows),
        false => Workload::new(256, 32, 1).in_blocks(asked.rows),
    };
    let settings: PlanSettings = PlanOptions {
        level: Some(asked.level),
        cpu_experts: Some(asked.cpu_experts),
        ..PlanOptions::default()
    }
    .into();
    let plan = Plan::new(&PlanInput {
        shape,
        sources: &sources_of(shape),
        choices: settings.resolved(),
        budget_bytes: asked.gib * GIB,
        workload,
        working: WorkingMemory {
            activation_bytes: 256 << 20,
            ..WorkingMemory::default()
        },
        machine: &Machine {
            rates: Some(asked.rates.clone()),
            ..gpu_machine(asked.pin_limit, u64::MAX)
        },
    });
    plan.unwrap()
}

fn seconds(plan: &Plan) -> f64 {
    plan.pass.unwrap().total_s()
}

#[test]
fn a_bus_slower_than_memory_has_the_cpu_compute_some() {
    let cases = [
        ("llada2-mini", Level::Standard, 32, (12.0, 40.0), Some(55)),
        ("llada2-mini", Level::Standard, 32, (25.0, 60.0), Some(60)),
        ("llada2-mini", Level::Standard, 32, (55.0, 60.0), Some(65)),
        ("llada2-mini", Level::Moderate, 32, (12.0, 40.0), Some(61)),
        // So little is missed that waking the CPU costs as much as it gains.
        ("llada2-mini", Level::Moderate, 32, (55.0, 60.0), None),
        ("llada2-mini", Level::Aggressive, 32, (12.0, 40.0), None),
        ("qwen3-30b-a3b", Level::Moderate, 1, (12.0, 40.0), Some(7)),
        ("qwen3-30b-a3b", Level::Moderate, 8, (12.0, 40.0), Some(24)),
        ("qwen3-30b-a3b", Level::Moderate, 8, (25.0, 40.0), Some(27)),
    ];
    for (model, level, rows, (bus, memory), on_gpu) in cases {
        let asked = Asked {
            model,
            level,
            rows,
            ..asked(bus, memory)
        };
        let plan = planned(&asked);
        let off = planned(&Asked {
            cpu_experts: CpuExperts::Off,
            ..asked
        });
        let split = plan.cpu_experts;
        assert_eq!(
            split.map(|split| split.on_gpu),
            on_gpu,
            "{model} {level} {rows} {bus}"
        );
        assert_eq!(off.cpu_experts, None);
        let shape = PublishedShape::find(model).unwrap().shape();
        let machine = Machine {
            rates: Some(rates(bus, memory)),
            ..gpu_machine(u64::MAX, u64::MAX)
        };
        assert_eq!(plan.without_cpu_experts(shape, &machine), off);
        assert_eq!(plan.groups, off.groups);
        let [with, without] = [&plan, &off].map(|plan| plan.expert_figures().unwrap());
        assert_eq!(with.touched, without.touched);
        match split {
            None => assert_eq!(plan, off),
            Some(split) => {
                let gone = with.touched - split.on_gpu as f64;
                assert!((with.of_cpu - gone).abs() < 1e-9 && with.read < without.read);
                assert!(seconds(&plan) < 0.95 * seconds(&off));
                // No other number is better.
                for on_gpu in 0..=with.touched as usize + 1 {
                    let other = Plan {
                        cpu_experts: Some(ExpertSplit { on_gpu, ..split }),
                        ..plan.clone()
                    };
                    let other = other.time(shape, &plan.workload, &machine).unwrap();
                    assert!(other.total_s() >= seconds(&plan), "{on_gpu}");
                }
            }
        }
    }
}

#[test]
fn the_cpu_gets_no_more_rows_than_it_multiplies_sooner_than_the_bus_copies() {
    let bf16 = |bus, memory| {
        let plan = planned(&Asked {
            level: Level::Standard,
            ..asked(bus, memory)
        });
        plan.cpu_experts.unwrap().rows_max
    };
    // 2 bytes a weight at 12 GB/s are 67 FLOPs at 400 GFLOP/s.
    assert_eq!(bf16(12.0, 40.0), 32);
    assert!(bf16(25.0, 40.0) < 32 && bf16(55.0, 60.0) < bf16(25.0, 40.0));
    // Of a prompt's pass each expert has more: they are all copied.
    let plan = planned(&asked(12.0, 40.0));
    let experts = plan.experts.unwrap();
    assert!(experts.of_cpu(32, plan.cpu_experts) > 0.0);
    assert_eq!(experts.of_cpu(4096, plan.cpu_experts), 0.0);
}

#[test]
fn the_cpu_computes_none_unless_it_is_asked_and_has_all_of_them() {
    let split = |asked: Asked| planned(&asked).cpu_experts;
    let usual = || asked(12.0, 40.0);
    assert!(split(usual()).is_some());
    let off = Asked {
        cpu_experts: CpuExperts::Off,
        ..usual()
    };
    assert_eq!(split(off), None);
    // Some would be read from disk, or from the system's cache, in every pass.
    let unpinned = Asked {
        pin_limit: 4 * GIB,
        ..usual()
    };
    assert_eq!(split(unpinned), None);
    // All are on the GPU.
    let resident = Asked { gib: 32, ..usual() };
    assert_eq!(split(resident), None);
    let unmeasured = Asked {
        rates: Rates {
            host_linear: Vec::new(),
            ..rates(12.0, 40.0)
        },
        ..usual()
    };
    assert_eq!(split(unmeasured), None);
    // Slower than the bus.
    assert_eq!(split(asked(25.0, 12.0)), None);
    // The CPU would have to decompress them.
    let compressed = Asked {
        level: Level::Mild,
        ..usual()
    };
    assert_eq!(split(compressed), None);
}
