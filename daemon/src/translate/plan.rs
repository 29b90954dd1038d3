//! Plans, and what came of them, as the wire has them.

use std::time::Duration;

use sluice_engine::{
    Engine, EngineError,
    residency::{ExpertStats, WeightGroupState},
    runtime::{PassTotals, SwitchProgress, default_canvas},
};
use sluice_machine::BUSY_SHARE;
use sluice_plan::{PassTime, Plan, PlanError, SwitchEstimate, Workload};
use sluice_proto::{model, v1};
use sluice_weights::{Storage, TensorPart, TensorPlan, Tier, WeightGroup, WeightGroupPlan};

use super::format;
use crate::failure::Failure;

/// A plan for the model of this name.
#[must_use]
pub fn plan(plan: &Plan, model: &str) -> v1::Plan {
    v1::Plan {
        layers: layers(
            plan.groups
                .iter()
                .map(|group| (group.group, weight_group_plan(group))),
        )
        .map(|(name, units)| v1::LayerPlan {
            name,
            groups: merged(units, |sum, next| {
                let one = |group: &v1::WeightGroupPlan| (group.kind, group.tier, group.format);
                if one(sum) != one(next) {
                    return false;
                }
                sum.bytes += next.bytes;
                sum.weights += next.weights;
                *sum.count.get_or_insert(1) += 1;
                true
            }),
        })
        .collect(),
        ..summary(plan, model)
    }
}

/// A plan without its layers: with all of them it would be large, and pictures are sent often.
#[must_use]
pub fn summary(plan: &Plan, model: &str) -> v1::Plan {
    let pass_ms =
        |seconds: fn(&PassTime) -> f64| plan.pass.as_ref().map(|pass| seconds(pass) * 1000.0);
    let memory = plan.bytes_by_kind().into_iter();
    v1::Plan {
        model: model.to_owned(),
        level: v1::Level::from(plan.level).into(),
        budget_bytes: plan.budget_bytes,
        workload: Some(v1::Workload {
            canvas_length: Some(plan.workload.canvas_length as u32),
            block_length: Some(plan.workload.block_length as u32),
            batch_requests: Some(plan.workload.batch_requests as u32),
        }),
        peak_bytes: plan.peak_bytes(),
        pass_ms: pass_ms(|pass| pass.total_s()),
        compute_ms: pass_ms(|pass| pass.compute_s),
        copy_ms: pass_ms(|pass| pass.copy_s),
        disk_ms: pass_ms(|pass| pass.disk_s),
        first_pass_ms: plan.pass.and_then(first_pass_ms),
        streamed_bytes_per_pass: plan.streamed_bytes(),
        resident_bytes: plan.resident_bytes(),
        staging_buffers: Some(v1::StagingBuffers {
            count: plan.staging.count as u32,
            bytes_each: plan.staging.bytes_each,
            decompress_bytes: plan.staging.decompress_bytes,
            expert_buffers: plan.staging.expert_buffers as u32,
            expert_buffer_bytes: plan.staging.expert_buffer_bytes,
        }),
        experts: plan.expert_figures().map(|figures| v1::PlannedExperts {
            count: figures.count as u32,
            touched: figures.touched,
            read: figures.read,
            is_measured: figures.is_measured,
            computed_by_cpu: figures.of_cpu,
            gpu_experts: plan.cpu_experts.map(|split| split.on_gpu as u32),
            cpu_rows_max: plan.cpu_experts.map(|split| split.rows_max as u32),
            cpu_bytes: plan.cpu_expert_bytes(),
        }),
        memory: memory
            .filter(|(kind, bytes)| super::gpu::is_known(*kind, *bytes))
            .map(|(kind, bytes)| v1::PlannedMemory {
                kind: format::memory_kind(kind).into(),
                bytes,
            })
            .collect(),
        // Sums of the CPU are others than the GPU's.
        is_lossless: is_lossless(plan) && plan.cpu_experts.is_none(),
        is_loadable: true,
        not_loadable_reason: String::new(),
        notes: notes(plan),
        kv_cache_format: plan
            .working
            .kv_cache_format
            .map_or(v1::KvCacheFormat::Unspecified, format::kv_cache_format)
            .into(),
        pinned_host_bytes: plan.pinned_bytes,
        is_estimate: plan.is_estimate(),
        equal_levels: (plan.equal_levels.iter())
            .map(|level| v1::Level::from(*level).into())
            .collect(),
        pass_correction: plan.pass.as_ref().and_then(correction),
        switch_estimate: None,
        layers: Vec::new(),
    }
}

/// Why a plan cannot be loaded although it fits: its converted weights have no folder to be written to.
#[must_use]
pub fn not_loadable(plan: &Plan, engine: &Engine) -> Option<String> {
    let has_place = !plan.is_estimate() || engine.weight_cache().is_some();
    (!has_place).then(|| PlanError::NotCompressed { level: plan.level }.to_string())
}

/// How long it takes to get to a plan.
#[must_use]
pub fn switch_estimate(time: SwitchEstimate) -> v1::SwitchEstimate {
    v1::SwitchEstimate {
        idle_ms: time.idle_s * 1000.0,
        busy_ms: time.busy_s * 1000.0,
        converted_weights: time.converted_weights,
        read_bytes: time.read_bytes,
    }
}

/// The first pass's time, where it differs.
fn first_pass_ms(pass: PassTime) -> Option<f64> {
    let first_s = pass.first_s().filter(|first| *first > pass.total_s());
    first_s.map(|seconds| seconds * 1000.0)
}

/// Whether its weights are the checkpoint's own, bit for bit.
#[must_use]
pub fn is_lossless(plan: &Plan) -> bool {
    let is_own = |tensor: &TensorPlan| match tensor.storage {
        Storage::Plain(format) => {
            format == tensor.source && tensor.compressed.is_none_or(|coding| coding.is_lossless())
        }
        Storage::Compressed(coding) => coding.is_lossless(),
    };
    plan.groups
        .iter()
        .flat_map(|group| &group.tensors)
        .all(is_own)
}

/// The weights as they stand, and what the last pass touched of each layer's experts.
#[must_use]
pub fn layer_statuses(
    units: &[WeightGroupState],
    experts: &[(usize, ExpertStats)],
) -> Vec<v1::LayerStatus> {
    let group = |group: &WeightGroupState| v1::WeightGroupStatus {
        kind: format::weight_group_kind(group.group).into(),
        tier: format::tier(group.tier).into(),
        format: Some(format::weight_format(group.storage.weight_format())),
        bytes: group.bytes,
        is_in_flight: group.in_flight,
        count: None,
    };
    layers(units.iter().map(|state| (state.group, group(state))))
        .map(|(name, units)| {
            let visit = experts.iter().find(|(layer, _)| layer.to_string() == name);
            v1::LayerStatus {
                experts: visit.and_then(|(_, visit)| expert_counts(visit)),
                name,
                groups: merged(units, |sum, next| {
                    let one = |group: &v1::WeightGroupStatus| {
                        (group.kind, group.tier, group.format, group.is_in_flight)
                    };
                    if one(sum) != one(next) {
                        return false;
                    }
                    sum.bytes += next.bytes;
                    *sum.count.get_or_insert(1) += 1;
                    true
                }),
            }
        })
        .collect()
}

/// A layer's groups, with those added up that are alike: of a mixture, hundreds of experts are.
fn merged<T>(groups: Vec<T>, add: impl Fn(&mut T, &T) -> bool) -> Vec<T> {
    let mut merged: Vec<T> = Vec::new();
    for group in groups {
        if !merged.iter_mut().any(|sum| add(sum, &group)) {
            merged.push(group);
        }
    }
    merged
}

/// What passes touched of a mixture's experts; `None` where nothing was counted.
#[must_use]
pub fn expert_counts(stats: &ExpertStats) -> Option<v1::ExpertCounts> {
    (stats.touched > 0).then_some(v1::ExpertCounts {
        touched: stats.touched,
        hits: stats.hits,
        fetched_ahead: stats.fetched_ahead,
        missed: stats.missed,
        computed_by_cpu: stats.computed_by_cpu,
        cpu_bytes: stats.cpu_bytes,
    })
}

/// What passes took; nothing is known of them before the first.
#[must_use]
pub fn pass_statistics(measured: &PassTotals) -> v1::PassStatistics {
    let has_run = measured.passes > 0;
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    v1::PassStatistics {
        count: measured.passes,
        mean_ms: has_run.then(|| ms(measured.pass_time) / measured.passes as f64),
        last_ms: has_run.then(|| ms(measured.last_pass_time)),
        last_rows: measured.last_rows as u32,
        waited_ms: ms(measured.waited),
        streamed_bytes: measured.streamed_bytes,
        peak_bytes: has_run.then_some(measured.peak_bytes),
        experts: expert_counts(&measured.experts),
    }
}

/// How far a transition is.
#[must_use]
pub fn weight_switch(state: SwitchProgress) -> v1::WeightSwitch {
    v1::WeightSwitch {
        done_steps: state.done_steps as u32,
        total_steps: state.total_steps as u32,
    }
}

/// What a plan is asked for with, in the engine's terms. A longer canvas is refused here, since a pass is rehearsed
/// before it is planned.
///
/// # Errors
/// A canvas beyond the model's context.
pub fn workload(asked: model::Workload, context_length: usize) -> Result<Workload, Failure> {
    let usual = Workload::default();
    let or = |asked: Option<u32>, usual: usize| asked.map_or(usual, |asked| asked as usize);
    let canvas = or(asked.canvas_length, default_canvas(context_length));
    if canvas > context_length {
        let context = context_length;
        return Err(EngineError::from(PlanError::CanvasTooLong { canvas, context }).into());
    }
    let block = or(asked.block_length, usual.block_length);
    let requests = or(asked.batch_requests, usual.batch_requests);
    Ok(Workload::new(canvas, block, requests))
}

fn weight_group_plan(group: &WeightGroupPlan) -> v1::WeightGroupPlan {
    v1::WeightGroupPlan {
        kind: format::weight_group_kind(group.group).into(),
        tier: format::tier(group.tier).into(),
        format: Some(format::weight_format(group.storage().weight_format())),
        bytes: group.bytes(),
        is_streamed: group.is_streamed(),
        weights: group.tensors.iter().map(TensorPlan::elements).sum(),
        count: None,
    }
}

/// Units gathered by the layer that people see them in.
fn layers<T>(
    groups: impl Iterator<Item = (WeightGroup, T)>,
) -> impl Iterator<Item = (String, Vec<T>)> {
    let mut layers: Vec<(String, Vec<T>)> = Vec::new();
    for (group, of_unit) in groups {
        let name = match group {
            WeightGroup::Embedding | WeightGroup::EmbeddingEnd | WeightGroup::SelfConditioning => {
                "embedding".to_owned()
            }
            WeightGroup::Attention(layer)
            | WeightGroup::CrossAttention(layer)
            | WeightGroup::GateUp(layer)
            | WeightGroup::Down(layer)
            | WeightGroup::Router(layer)
            | WeightGroup::SharedExpert(layer)
            | WeightGroup::Expert(layer, _)
            | WeightGroup::LayerEnd(layer) => layer.to_string(),
            WeightGroup::FinalNorm | WeightGroup::LmHead(_) => "lm_head".to_owned(),
        };
        match layers.last_mut() {
            Some((last, groups)) if *last == name => groups.push(of_unit),
            _ => layers.push((name, vec![of_unit])),
        }
    }
    layers.into_iter()
}

/// What is not as the level's name promises, and what cannot be foretold.
fn notes(plan: &Plan) -> Vec<String> {
    let mut exceptions: Vec<(Storage, Storage, usize, Vec<&str>)> = Vec::new();
    for (tensor, usual) in plan.exceptions() {
        let name = weight_group_kind(tensor.part);
        let is_same = |(from, to, width, _): &&mut (Storage, Storage, usize, Vec<&str>)| {
            (*from, *to, *width) == (usual, tensor.storage, tensor.width)
        };
        match exceptions.iter_mut().find(is_same) {
            Some((.., parts)) => parts.push(name),
            None => exceptions.push((usual, tensor.storage, tensor.width, vec![name])),
        }
    }
    let exceptions = exceptions
        .into_iter()
        .map(|(usual, storage, width, parts)| {
            let (usual, storage, parts) = (usual.name(), storage.name(), parts.join(", "));
            format!("{usual} -> {storage}: {parts}, rows of {width}")
        });
    let reads_disk = plan.streamed().any(|group| group.tier == Tier::Disk);
    let unknown = (plan.pass.is_none() && reads_disk).then(|| {
        "the time of a pass is unknown: there is no file to measure the disk's bandwidth with"
            .to_owned()
    });
    let estimate = plan.is_estimate().then(|| {
        "sizes are estimates from a sample of the weights, which are not compressed yet".to_owned()
    });
    exceptions
        .chain(unknown)
        .chain(prediction_note(plan))
        .chain(estimate)
        .chain(equal_levels(plan))
        .collect()
}

/// Which levels change nothing for this model, and why.
fn equal_levels(plan: &Plan) -> Option<String> {
    let (last, others) = plan.equal_levels.split_last()?;
    let mut tensors: Vec<&TensorPlan> = plan
        .groups
        .iter()
        .flat_map(|group| &group.tensors)
        .collect();
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.elements()));
    // Tables are in nobody's way: no level changes them.
    let largest = tensors.iter().find(|tensor| !tensor.part.is_table());
    let stored = largest.map(|tensor| match tensor.compressed {
        Some(coding) => Storage::Compressed(coding).name(),
        None => tensor.source.name(),
    });
    let mut names = last.name().to_owned();
    if !others.is_empty() {
        let others: Vec<&str> = others.iter().map(|level| level.name()).collect();
        names = format!("{} and {names}", others.join(", "));
    }
    let stored = stored.unwrap_or("they are");
    Some(format!(
        "this file's weights are stored as {stored}: {names} would use the same weights as {}",
        plan.level
    ))
}

/// What to know of a time that was predicted from rates of a busy machine, and that nothing has corrected yet.
#[must_use]
pub fn prediction_note(plan: &Plan) -> Option<String> {
    let pass = plan.pass.filter(|pass| correction(pass).is_none())?;
    (pass.others_share >= BUSY_SHARE).then(|| {
        format!(
            "other programs used {:.0} % of the CPU while this machine's speed was measured; measured passes will correct the prediction",
            pass.others_share * 100.0
        )
    })
}

/// How many times as long as the rates say a pass is, where passes have shown that.
fn correction(pass: &PassTime) -> Option<f64> {
    Some(pass.correction).filter(|correction| *correction != 1.0)
}

fn weight_group_kind(part: TensorPart) -> &'static str {
    match part {
        TensorPart::Embedding => "embedding",
        TensorPart::PositionEmbedding => "position embedding",
        TensorPart::TokenTypeEmbedding => "token-type embedding",
        TensorPart::EmbeddingNorm => "embedding norm",
        TensorPart::EmbeddingNormBias => "embedding norm bias",
        TensorPart::AttentionNorm => "attention norm",
        TensorPart::AttentionNormBias => "attention norm bias",
        TensorPart::Query => "query",
        TensorPart::QueryBias => "query bias",
        TensorPart::QueryNorm => "query norm",
        TensorPart::KeyNorm => "key norm",
        TensorPart::Key => "key",
        TensorPart::KeyBias => "key bias",
        TensorPart::Value => "value",
        TensorPart::ValueBias => "value bias",
        TensorPart::AttentionOutput => "attention output",
        TensorPart::AttentionOutputBias => "attention output bias",
        TensorPart::CrossNorm => "cross-attention norm",
        TensorPart::CrossQuery => "cross-attention query",
        TensorPart::CrossKey => "cross-attention key",
        TensorPart::CrossValue => "cross-attention value",
        TensorPart::CrossOutput => "cross-attention output",
        TensorPart::MlpNorm => "MLP norm",
        TensorPart::MlpNormBias => "MLP norm bias",
        TensorPart::Gate => "gate",
        TensorPart::Up => "up",
        TensorPart::UpBias => "up bias",
        TensorPart::Down => "down",
        TensorPart::DownBias => "down bias",
        TensorPart::Router => "router",
        TensorPart::RouterBias => "router bias",
        TensorPart::RouterNorm => "router norm",
        TensorPart::ExpertScales => "expert scales",
        TensorPart::ExpertNorm => "expert norm",
        TensorPart::AttentionPostNorm => "norm behind attention",
        TensorPart::MlpPostNorm => "norm behind the MLP",
        TensorPart::ExpertPostNorm => "norm behind experts",
        TensorPart::LayerPostNorm => "norm behind the layer",
        TensorPart::LayerScale | TensorPart::TextLayerScale => "layer scale",
        TensorPart::FinalNorm => "final norm",
        TensorPart::FinalNormBias => "final norm bias",
        TensorPart::LmHead => "LM head",
        TensorPart::Rwkv7(_) => "time or channel mix",
    }
}

#[cfg(test)]
mod tests {
    use sluice_checkpoint::family::PublishedShape;
    use sluice_engine::runtime::ModelOutline;
    use sluice_machine::Profile;
    use sluice_plan::{BLOCK_DEFAULT, Machine, Workload};
    use sluice_shared::level::Level;

    use super::*;

    fn planned(preset: &str, level: Level, budget_bytes: u64, cache_bytes: u64) -> v1::Plan {
        let machine = Machine::unmeasured(Profile::cpu(2), cache_bytes);
        let outline =
            ModelOutline::of_published_shape(PublishedShape::find(preset).unwrap(), machine);
        let workload = Workload::new(64, BLOCK_DEFAULT, 1);
        plan(
            &outline.plan(level, budget_bytes, workload).unwrap(),
            preset,
        )
    }

    #[test]
    fn a_plan_reaches_the_wire_whole() {
        let wire = planned("llada-8b", Level::Standard, 4 << 30, u64::MAX);
        let names: Vec<_> = wire
            .layers
            .iter()
            .map(|layer| layer.name.as_str())
            .collect();
        assert_eq!(names.len(), 34);
        assert_eq!(
            (names[0], names[1], names[33]),
            ("embedding", "0", "lm_head")
        );
        let groups = wire.layers.iter().flat_map(|layer| &layer.groups);
        let streamed = groups.clone().filter(|group| group.is_streamed);
        let bytes: u64 = streamed.map(|group| group.bytes).sum();
        assert_eq!(bytes, wire.streamed_bytes_per_pass);
        let memory: u64 = wire.memory.iter().map(|kind| kind.bytes).sum();
        assert_eq!(memory, wire.peak_bytes);
        assert!(wire.peak_bytes <= wire.budget_bytes);
        assert!(wire.is_lossless && wire.is_loadable);
        assert_eq!((wire.pass_ms, wire.notes.len()), (None, 0));
        assert_eq!(wire.staging_buffers.unwrap().count, 3);
    }

    #[test]
    fn experts_alike_are_one_entry_and_their_cache_is_told() {
        let wire = planned("llada2-mini", Level::Standard, 8 << 30, u64::MAX);
        let experts = wire.layers[3].groups.iter();
        let experts = experts.filter(|group| group.kind() == v1::WeightGroupKind::Expert);
        let experts: Vec<_> = experts.collect();
        assert_eq!(experts.len(), 1);
        assert_eq!(experts[0].count, Some(256));
        assert_eq!(experts[0].bytes, 256 * 3 * 512 * 2048 * 2);
        let slots = wire.staging_buffers.unwrap();
        assert!(slots.expert_buffers > 500 && slots.count == 0);
        let figures = wire.experts.unwrap();
        assert_eq!((figures.count, figures.is_measured), (256, false));
        assert!((65.0..75.0).contains(&figures.touched) && figures.read < figures.touched);
        assert!(wire.peak_bytes <= wire.budget_bytes);
    }

    #[test]
    fn what_is_not_as_the_level_promises_is_noted() {
        // 5634 numbers in a row of the MLP's second projection: 32 and 256 don't divide it.
        let wire = planned("llada-1b", Level::Aggressive, u64::MAX, u64::MAX);
        assert_eq!(wire.notes, ["q4_k -> bf16: down, rows of 5634"]);
        assert!(!wire.is_lossless);
        let wire = planned("llada-8b", Level::Mild, u64::MAX, u64::MAX);
        assert!(wire.is_estimate && wire.is_lossless);
        assert!(wire.notes[0].contains("sample"), "{:?}", wire.notes);
        assert!(wire.equal_levels.is_empty());
        let wire = planned("llada-8b", Level::Standard, 4 << 30, 0);
        assert!(wire.notes[0].contains("unknown"), "{:?}", wire.notes);
    }

    #[test]
    fn the_first_pass_is_told_where_it_is_slower() {
        let mut pass = PassTime {
            compute_s: 2.0,
            copy_s: 1.0,
            copies_overlap: false,
            disk_s: 0.0,
            reader_s: 0.0,
            cold_s: None,
            correction: 1.0,
            others_share: 0.0,
        };
        assert_eq!(first_pass_ms(pass), None, "not known");
        pass.cold_s = Some(2.5);
        assert_eq!(first_pass_ms(pass), None, "computing takes longer");
        pass.cold_s = Some(9.0);
        assert_eq!(first_pass_ms(pass), Some(9000.0));
        (pass.disk_s, pass.reader_s) = (4.0, 4.0);
        assert_eq!(first_pass_ms(pass), Some(13000.0), "one thread reads both");
    }

    #[test]
    fn a_machine_that_was_busy_is_said_to_be_one_until_passes_have_corrected_it() {
        let machine = Machine::unmeasured(Profile::cpu(2), u64::MAX);
        let outline =
            ModelOutline::of_published_shape(PublishedShape::find("llada-1b").unwrap(), machine);
        let mut plan = outline
            .plan(Level::Standard, u64::MAX, Workload::default())
            .unwrap();
        let mut told = |correction, others_share| {
            plan.pass = Some(PassTime {
                compute_s: 2.0,
                copy_s: 0.0,
                copies_overlap: false,
                disk_s: 0.0,
                reader_s: 0.0,
                cold_s: None,
                correction,
                others_share,
            });
            let wire = super::plan(&plan, "m");
            (wire.notes, wire.pass_correction)
        };
        assert_eq!(told(1.0, 0.05), (vec![], None));
        let (notes, _) = told(1.0, 0.45);
        assert!(
            notes[0].starts_with("other programs used 45 % of the CPU"),
            "{notes:?}"
        );
        assert_eq!(told(2.4, 0.45), (vec![], Some(2.4)));
    }

    #[test]
    fn nothing_is_claimed_of_passes_before_the_first() {
        let none = pass_statistics(&PassTotals::default());
        assert_eq!((none.count, none.mean_ms, none.peak_bytes), (0, None, None));
    }
}
