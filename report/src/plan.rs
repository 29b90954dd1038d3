//! A plan as people read it.

use sluice_proto::v1::{
    Compression, LayerPlan, MemoryKind, Plan, PlannedModel, StagingBuffers, SwitchEstimate, Tier,
    WeightGroupPlan,
};
use sluice_shared::units;

/// The plan in lines: what it is for, what it comes to, memory by kind, layers grouped where they are alike, notes.
#[must_use]
pub fn lines(plan: &Plan) -> Vec<String> {
    let workload = plan.workload.unwrap_or_default();
    let mut lines = vec![format!(
        "{} at level {} within {}; canvas {}, block {}, {}",
        plan.model,
        plan.level(),
        units::bytes(plan.budget_bytes),
        workload.canvas_length(),
        workload.block_length(),
        units::several(workload.batch_requests().into(), "request"),
    )];
    let mut fact = |name: &str, value: String| lines.push(format!("{name:<12} {value}"));
    // Compressed sizes are estimates until a copy has been written.
    let about = if plan.is_estimate { "about " } else { "" };
    fact("peak", format!("{about}{}", units::bytes(plan.peak_bytes)));
    fact("pass", pass(plan));
    if let Some(first) = plan.first_pass_ms {
        let first = units::duration_ms(first);
        fact(
            "first pass",
            format!("about {first}, with nothing of the files in the system's cache"),
        );
    }
    fact("streamed", streamed(plan));
    if let Some(experts) = experts(plan) {
        fact("experts", experts);
    }
    if let Some(cpu) = cpu_experts(plan) {
        fact("on the CPU", cpu);
    }
    if let Some(time) = &plan.switch_estimate {
        fact("switch", switch_estimate(time));
    }
    for memory in &plan.memory {
        fact(
            &memory_label(memory.kind()),
            format!("{:>8}", units::bytes(memory.bytes)),
        );
    }
    lines.push(String::new());
    lines.extend(layers(&plan.layers));
    let refusal = (!plan.is_loadable).then_some(&plan.not_loadable_reason);
    let notes: Vec<_> = refusal.into_iter().chain(&plan.notes).collect();
    if !notes.is_empty() {
        lines.push(String::new());
        lines.extend(notes.iter().map(|note| format!("note: {note}")));
    }
    lines
}

/// How models share a budget, in lines: what each takes, and which go for which.
#[must_use]
pub fn together(models: &[PlannedModel], budget_bytes: u64) -> Vec<String> {
    let mut lines = vec![format!(
        "{} within {}, loaded one after another",
        units::several(models.len() as u64, "model"),
        units::bytes(budget_bytes)
    )];
    let width = models.iter().map(|model| model.model.chars().count()).max();
    let width = width.unwrap_or(0);
    let name = |place: &u32| {
        let model = models.get(*place as usize);
        model.map_or("?", |model| model.model.as_str())
    };
    for model in models {
        let padded = format!("{:<width$}", model.model);
        let pinned = if model.is_pinned { ", pinned" } else { "" };
        lines.push(match &model.plan {
            Some(plan) => format!(
                "{padded}  level {}, {} on the device, {}, a pass {}{pinned}",
                plan.level(),
                units::bytes(plan.peak_bytes),
                match plan.streamed_bytes_per_pass {
                    0 => "nothing streamed".to_owned(),
                    bytes => format!("{} streamed per pass", units::bytes(bytes)),
                },
                pass(plan),
            ),
            None => format!("{padded}  is not loaded: {}", model.problem),
        });
        if !model.evicted.is_empty() {
            let names: Vec<_> = model.evicted.iter().map(name).collect();
            lines.push(format!("{:<width$}  {} goes for it", "", names.join(", ")));
        }
    }
    let evicted = models.iter().flat_map(|model| &model.evicted);
    let gone: Vec<u32> = evicted.copied().collect();
    let stay = (0..models.len() as u32).filter(|place| {
        let is_loaded = models[*place as usize].plan.is_some();
        is_loaded && !gone.contains(place)
    });
    let stay: Vec<_> = stay.collect();
    let claimed = |place: &u32| models[*place as usize].claimed_bytes;
    let claimed_bytes: u64 = stay.iter().map(claimed).sum();
    let names: Vec<_> = stay.iter().map(name).collect();
    // Each plan has what is common to all; it is taken once.
    let common = models.iter().find_map(|model| {
        let peak = model.plan.as_ref()?.peak_bytes;
        Some(peak.saturating_sub(model.claimed_bytes))
    });
    let peak_bytes = claimed_bytes + common.unwrap_or_default();
    lines.push(match names.is_empty() {
        true => "none is loaded in the end".to_owned(),
        false => format!(
            "in the end: {}; at most {} together",
            names.join(", "),
            units::bytes(peak_bytes)
        ),
    });
    lines
}

fn pass(plan: &Plan) -> String {
    let Some(total) = plan.pass_ms else {
        return "unknown".to_owned();
    };
    let parts = [
        ("computing", plan.compute_ms),
        ("copying", plan.copy_ms),
        ("reading", plan.disk_ms),
    ];
    let parts = parts.into_iter().filter_map(|(name, ms)| {
        let ms = ms.filter(|ms| *ms > 0.0)?;
        Some(format!("{name} {}", units::duration_ms(ms)))
    });
    let parts: Vec<_> = parts.collect();
    let mut words = match parts.len() {
        // A single part is the whole, which needs no second figure.
        0 | 1 => format!("about {}", units::duration_ms(total)),
        _ => format!("about {} ({})", units::duration_ms(total), parts.join(", ")),
    };
    if let Some(correction) = plan.pass_correction {
        words +=
            &format!("; {correction:.2} times the first prediction, corrected by measured passes");
    }
    words
}

/// How long a switch takes, and what of: `about 4.1 s to convert 210 M weights, up to 25 s while requests run`.
#[must_use]
pub fn switch_estimate(time: &SwitchEstimate) -> String {
    let work = match (time.converted_weights, time.read_bytes) {
        (0, 0) => return "nothing to convert or to read".to_owned(),
        (0, bytes) => format!("to read {}", units::bytes(bytes)),
        (weights, _) => format!("to convert {:.1} M weights", weights as f64 / 1e6),
    };
    let idle = units::duration_ms(time.idle_ms);
    let busy = units::duration_ms(time.busy_ms);
    // Compared as shown: a difference that rounding hides is not worth a word.
    match idle == busy {
        true => format!("about {idle} {work}"),
        false => format!("about {idle} {work}, up to {busy} while requests run"),
    }
}

fn streamed(plan: &Plan) -> String {
    let has_any = |slots: &StagingBuffers| slots.count > 0 || slots.expert_buffers > 0;
    let Some(slots) = plan.staging_buffers.filter(has_any) else {
        return "nothing".to_owned();
    };
    let kept = match plan.pinned_host_bytes {
        0 => String::new(),
        bytes => format!(", from {} of pinned memory", units::bytes(bytes)),
    };
    format!(
        "{} per pass, through {}{kept}",
        units::bytes(plan.streamed_bytes_per_pass),
        staging_buffers(&slots)
    )
}

/// Buffers that streamed weights pass through: `3 staging buffers of 120 MiB`.
#[must_use]
pub fn staging_buffers(slots: &StagingBuffers) -> String {
    let mut parts = Vec::new();
    if slots.count > 0 {
        let bytes = units::bytes(slots.bytes_each);
        parts.push(format!("{} staging buffers of {bytes}", slots.count));
    }
    if slots.expert_buffers > 0 {
        let bytes = units::bytes(slots.expert_buffer_bytes);
        let slots = units::count(slots.expert_buffers.into());
        parts.push(format!("a cache of {slots} experts of {bytes}"));
    }
    parts.join(" and ")
}

/// What a pass is expected to touch of a mixture's experts and to read; `None` without a mixture.
#[must_use]
pub fn experts(plan: &Plan) -> Option<String> {
    let experts = plan.experts.as_ref()?;
    let source = match experts.is_measured {
        true => "measured",
        false => "by figures published for LLaDA2.0-mini",
    };
    let by_cpu = match experts.gpu_experts {
        Some(_) => format!(", has the CPU compute {:.1}", experts.computed_by_cpu),
        None => String::new(),
    };
    Some(format!(
        "a pass touches {:.1} of a layer's {} experts{by_cpu} and reads {:.1} ({source})",
        experts.touched, experts.count, experts.read
    ))
}

/// Which experts the CPU computes beside a GPU, and in how much host memory; `None`: none.
#[must_use]
pub fn cpu_experts(plan: &Plan) -> Option<String> {
    let experts = plan.experts.as_ref()?;
    let (on_gpu, rows) = (experts.gpu_experts?, experts.cpu_rows_max.unwrap_or(0));
    Some(format!(
        "a layer's experts beyond {on_gpu} that have at most {}, in {} of host memory; answers are not exact",
        units::several(rows.into(), "row"),
        units::bytes(experts.cpu_bytes)
    ))
}

/// Layers that are alike stand together, with what one of them takes.
fn layers(layers: &[LayerPlan]) -> Vec<String> {
    let mut groups: Vec<(Vec<&str>, &[WeightGroupPlan])> = Vec::new();
    for layer in layers {
        // Not only neighbours: streamed layers are spread evenly, so layers that are alike alternate with others.
        match groups.iter_mut().find(|(_, units)| *units == layer.groups) {
            Some((names, _)) => names.push(&layer.name),
            None => groups.push((vec![&layer.name], &layer.groups)),
        }
    }
    let mut rows = vec![["layers", "weights", "format", "place", "bytes"].map(str::to_owned)];
    for (names, units) in groups {
        let mut name = ranges(&names);
        for group in merged_groups(units) {
            rows.push([
                // Layers that are alike are named in their first row alone.
                std::mem::take(&mut name),
                match group.count {
                    Some(count) => format!("{count} {}s", group.kind()),
                    None => group.kind().to_string(),
                },
                format(&group),
                placement(&group),
                units::bytes(group.bytes),
            ]);
        }
    }
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: [usize; 5] = std::array::from_fn(width);
    let line = |[names, kind, format, place, bytes]: &[String; 5]| {
        format!(
            "{names:<0$}  {kind:<1$}  {format:<2$}  {place:<3$}  {bytes:>4$}",
            widths[0], widths[1], widths[2], widths[3], widths[4]
        )
    };
    rows.iter().map(line).collect()
}

/// Units of a layer that differ in size alone, such as the head's parts, as one.
fn merged_groups(groups: &[WeightGroupPlan]) -> Vec<WeightGroupPlan> {
    let mut merged: Vec<WeightGroupPlan> = Vec::new();
    for group in groups {
        let is_alike = |known: &&mut WeightGroupPlan| {
            let unsized_group = |group: &WeightGroupPlan| WeightGroupPlan {
                bytes: 0,
                weights: 0,
                ..*group
            };
            unsized_group(known) == unsized_group(group)
        };
        match merged.iter_mut().find(is_alike) {
            Some(known) => {
                known.bytes += group.bytes;
                known.weights += group.weights;
            }
            None => merged.push(*group),
        }
    }
    merged
}

/// The format, with the bits per weight where groups of one format differ in these.
fn format(group: &WeightGroupPlan) -> String {
    let format = group.format.unwrap_or_default();
    let has_rates = matches!(
        format.compression(),
        Compression::Trellis | Compression::Columns
    );
    match has_rates && group.weights > 0 {
        true => format!(
            "{format} {:.2}",
            group.bytes as f64 * 8.0 / group.weights as f64
        ),
        false => format.to_string(),
    }
}

fn placement(group: &WeightGroupPlan) -> String {
    match (group.is_streamed, group.tier()) {
        (true, tier) => format!("streamed from {tier}"),
        (false, Tier::Device) => "device".to_owned(),
        (false, tier) => format!("rows from {tier}"),
    }
}

/// A kind of memory in a word or two: `staging`, `kv cache`.
#[must_use]
pub fn memory_label(kind: MemoryKind) -> String {
    let kind = kind.to_string();
    kind.trim_end_matches("_buffers").replace('_', " ")
}

/// `0-3, 5`: runs of consecutive numbers as such, other names as they are.
fn ranges(names: &[&str]) -> String {
    let mut parts: Vec<(String, Option<(u32, u32)>)> = Vec::new();
    for name in names {
        let number = name.parse::<u32>().ok();
        match (parts.last_mut(), number) {
            (Some((_, Some((_, last)))), Some(number)) if *last + 1 == number => *last = number,
            _ => parts.push(((*name).to_owned(), number.map(|number| (number, number)))),
        }
    }
    let shown = parts.into_iter().map(|(name, run)| match run {
        Some((first, last)) if first < last => format!("{first}-{last}"),
        _ => name,
    });
    shown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sluice_proto::v1::{Dtype, Level, PlannedMemory, WeightGroupKind, Workload};

    use super::*;

    fn group(kind: WeightGroupKind, tier: Tier, bytes: u64) -> WeightGroupPlan {
        WeightGroupPlan {
            kind: kind.into(),
            tier: tier.into(),
            format: Some(Dtype::Bf16.into()),
            bytes,
            is_streamed: tier != Tier::Device && kind != WeightGroupKind::Embedding,
            weights: 0,
            ..Default::default()
        }
    }

    fn layer(name: &str, units: Vec<WeightGroupPlan>) -> LayerPlan {
        LayerPlan {
            name: name.to_owned(),
            groups: units,
        }
    }

    fn plan() -> Plan {
        use WeightGroupKind::{Attention, Embedding, LmHead};

        let resident = || vec![group(Attention, Tier::Device, 2048)];
        let streamed = vec![group(Attention, Tier::Host, 2048)];
        Plan {
            model: "m".to_owned(),
            level: Level::Standard.into(),
            budget_bytes: 1 << 20,
            workload: Some(Workload {
                canvas_length: Some(64),
                block_length: Some(32),
                batch_requests: Some(1),
            }),
            peak_bytes: 1 << 19,
            pass_ms: Some(12.0),
            compute_ms: Some(10.0),
            copy_ms: Some(2.0),
            disk_ms: Some(0.0),
            streamed_bytes_per_pass: 2048,
            staging_buffers: Some(StagingBuffers {
                count: 3,
                bytes_each: 2048,
                decompress_bytes: 0,
                ..Default::default()
            }),
            memory: vec![PlannedMemory {
                kind: MemoryKind::Weights.into(),
                bytes: 4096,
            }],
            layers: vec![
                layer("embedding", vec![group(Embedding, Tier::Host, 1024)]),
                layer("0", resident()),
                layer("1", resident()),
                layer("2", streamed),
                layer("3", resident()),
                layer(
                    "lm_head",
                    vec![
                        group(LmHead, Tier::Device, 512),
                        group(LmHead, Tier::Device, 256),
                    ],
                ),
            ],
            is_lossless: true,
            is_loadable: true,
            notes: vec!["something".to_owned()],
            ..Plan::default()
        }
    }

    #[test]
    fn alike_layers_stand_together() {
        let expected = [
            "m at level standard within 1.00 MiB; canvas 64, block 32, 1 request",
            "peak         512 KiB",
            "pass         about 12 ms (computing 10 ms, copying 2 ms)",
            "streamed     2.00 KiB per pass, through 3 staging buffers of 2.00 KiB",
            "weights      4.00 KiB",
            "",
            "layers     weights    format  place                  bytes",
            "embedding  embedding  bf16    rows from host      1.00 KiB",
            "0-1, 3     attention  bf16    device              2.00 KiB",
            "2          attention  bf16    streamed from host  2.00 KiB",
            "lm_head    lm_head    bf16    device                 768 B",
            "",
            "note: something",
        ];
        assert_eq!(lines(&plan()), expected);
    }

    #[test]
    fn what_is_unknown_or_missing_is_said() {
        let plan = Plan {
            pass_ms: None,
            staging_buffers: None,
            is_loadable: false,
            not_loadable_reason: "not yet".to_owned(),
            ..plan()
        };
        let lines = lines(&plan).join("\n");
        for words in [
            "pass         unknown",
            "streamed     nothing",
            "note: not yet",
        ] {
            assert!(lines.contains(words), "{lines}");
        }
        assert_eq!(json!(plan)["pass_ms"], Value::Null);
        assert!(!lines.contains("first pass"), "{lines}");
        assert_eq!(json!(plan)["first_pass_ms"], Value::Null);
    }

    #[test]
    fn a_first_pass_that_is_slower_has_a_line() {
        let plan = Plan {
            first_pass_ms: Some(31_000.0),
            ..plan()
        };
        let expected = "first pass   about 31.0 s, with nothing of the files in the system's cache";
        assert_eq!(lines(&plan)[3], expected);
        assert_eq!(json!(plan)["first_pass_ms"], 31_000.0);
    }

    #[test]
    fn how_long_it_takes_to_get_there_is_told_where_it_is_known() {
        let time = |converted_weights, busy_ms| SwitchEstimate {
            idle_ms: 4100.0,
            busy_ms,
            converted_weights,
            read_bytes: 3 << 30,
        };
        let plan = Plan {
            switch_estimate: Some(time(210_000_000, 24_600.0)),
            ..plan()
        };
        let expected =
            "switch       about 4.1 s to convert 210.0 M weights, up to 24.6 s while requests run";
        assert_eq!(lines(&plan)[4], expected);
        assert_eq!(
            json!(plan)["switch_estimate"]["converted_weights"],
            210_000_000
        );
        assert_eq!(
            switch_estimate(&time(0, 4100.0)),
            "about 4.1 s to read 3.00 GiB"
        );
        let nothing = SwitchEstimate::default();
        assert_eq!(switch_estimate(&nothing), "nothing to convert or to read");
    }

    #[test]
    fn scripts_find_the_documented_keys() {
        let json = json!(plan());
        assert_eq!(json["peak_bytes"], 1 << 19);
        assert_eq!(json["pass_ms"], 12.0);
        assert_eq!(json["streamed_bytes_per_pass"], 2048);
        assert_eq!(json["layers"][3]["groups"][0]["tier"], "host");
        assert_eq!(json["layers"][3]["name"], "2");
        assert_eq!(
            json["layers"][3]["groups"][0]["format"],
            json!({"dtype": "bf16", "compression": "none"})
        );
    }
}
