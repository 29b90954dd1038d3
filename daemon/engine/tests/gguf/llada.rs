//! The fixtures as GGUF files in both dialects: the reference's logits and tokens come out of them, too, whether weights
//! are resident or streamed.

use std::{fs, path::Path};

use sluice_engine::{
    Options,
    check::{fixture_logits, fixture_tokens},
    checkpoint::{Checkpoint, Source},
    device::{Device, Profile},
    format::Format,
    ledger::Ledger,
    model::shape::Shape,
    ops::Ops,
    plan::{Machine, Plan, PlanError, Question, SourceTensor, Tier, Working, Workload},
};
use sluice_shared::level::{Choices, Level};
use tempfile::TempDir;

use crate::writer::{File, Value};

/// Who would have written the file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Dialect {
    LlamaCpp,
    DiffuseCpp,
}

/// A LLaDA in a folder as the GGUF file that a program would have made of it, with matrices in this format where their
/// width allows it.
pub(crate) fn converted(folder: &Path, dialect: Dialect, format: Format) -> File {
    let checkpoint = Checkpoint::open(&Source::Folder(folder.to_owned())).unwrap();
    let config = checkpoint.config().unwrap();
    let size = |key: &str| config[key].as_u64().unwrap() as usize;
    let architecture = match dialect {
        Dialect::LlamaCpp => "llada",
        Dialect::DiffuseCpp => "diffuse",
    };
    let mut file = File::new(architecture);
    let (heads, kv_heads) = (size("n_heads"), size("n_kv_heads"));
    for (name, value) in [
        ("block_count", size("n_layers")),
        ("embedding_length", size("d_model")),
        ("feed_forward_length", size("mlp_hidden_size")),
        ("attention.head_count", heads),
        ("attention.head_count_kv", kv_heads),
        ("context_length", size("max_sequence_length")),
        ("vocab_size", size("vocab_size")),
    ] {
        file.set(&format!("{architecture}.{name}"), Value::U32(value as u32));
    }
    let float = |key: &str| Value::F32(config[key].as_f64().unwrap() as f32);
    file.set(
        &format!("{architecture}.rope.freq_base"),
        float("rope_theta"),
    );
    let key = "attention.layer_norm_rms_epsilon";
    file.set(&format!("{architecture}.{key}"), float("rms_norm_eps"));
    let mask = Value::U32(size("mask_token_id") as u32);
    match dialect {
        Dialect::LlamaCpp => {
            file.set("tokenizer.ggml.mask_token_id", mask);
            let end = Value::U32(size("eos_token_id") as u32);
            file.set("tokenizer.ggml.eos_token_id", end);
            file.set("llada.attention.causal", Value::Bool(false));
            file.set("diffusion.shift_logits", Value::Bool(false));
        }
        Dialect::DiffuseCpp => {
            file.set("diffuse.mask_token_id", mask);
            file.set("diffuse.model_type", "llada".into());
        }
    }
    let mut add = |from: &str, to: &str, heads: Option<usize>| {
        let entry = checkpoint.tensor(from).unwrap();
        let source = entry.format.clone().unwrap();
        let count: usize = entry.shape.iter().product();
        let mut bytes = vec![0; source.bytes(count)];
        let all = 0..bytes.len() as u64;
        checkpoint.read_part(entry, all, &mut bytes).unwrap();
        let mut numbers = vec![0.0; count];
        source.widen(&bytes, &mut numbers);
        let width = *entry.shape.last().unwrap();
        if let (Some(heads), Dialect::LlamaCpp) = (heads, dialect) {
            numbers = interleaved(&numbers, heads, width);
        }
        let format = match entry.shape.len() {
            2 => format.for_width(width),
            _ => Format::F32,
        };
        let mut stored = vec![0; format.bytes(count)];
        format.store(&numbers, &mut stored);
        file.add(to, &entry.shape, format, stored);
    };
    add("model.transformer.wte.weight", "token_embd.weight", None);
    for layer in 0..size("n_layers") {
        for (from, to, heads) in [
            ("attn_norm", "attn_norm", None),
            ("q_proj", "attn_q", Some(heads)),
            ("k_proj", "attn_k", Some(kv_heads)),
            ("v_proj", "attn_v", None),
            ("attn_out", "attn_output", None),
            ("ff_norm", "ffn_norm", None),
            ("ff_proj", "ffn_gate", None),
            ("up_proj", "ffn_up", None),
            ("ff_out", "ffn_down", None),
        ] {
            let from = format!("model.transformer.blocks.{layer}.{from}.weight");
            add(&from, &format!("blk.{layer}.{to}.weight"), heads);
        }
    }
    add("model.transformer.ln_f.weight", "output_norm.weight", None);
    add("model.transformer.ff_out.weight", "output.weight", None);
    file
}

/// In each head, the rows of its halves in turn.
fn interleaved(rows: &[f32], heads: usize, width: usize) -> Vec<f32> {
    let head_rows = rows.len() / width / heads;
    let row = |head: usize, row: usize| &rows[(head * head_rows + row) * width..][..width];
    let mut out = Vec::with_capacity(rows.len());
    for head in 0..heads {
        for place in 0..head_rows / 2 {
            out.extend_from_slice(row(head, place));
            out.extend_from_slice(row(head, place + head_rows / 2));
        }
    }
    out
}

pub(crate) fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// A folder with the fixture as a GGUF file and its expected outputs.
fn folder(name: &str, dialect: Dialect) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let file = converted(&fixture(name), dialect, Format::F32);
    fs::write(folder.path().join("model.gguf"), file.bytes()).unwrap();
    for name_of in ["expected.json", "expected.safetensors"] {
        fs::copy(fixture(name).join(name_of), folder.path().join(name_of)).unwrap();
    }
    folder
}

/// A plan for this share of what all weights take.
fn plan(shape: &Shape, sources: &[SourceTensor], share: f64, cache: u64) -> Option<Plan> {
    let machine = Machine::unmeasured(Profile::cpu(2), cache);
    let mut question = Question {
        shape,
        sources,
        choices: Choices::from(Level::Standard),
        budget_bytes: u64::MAX,
        workload: Workload {
            canvas: 16,
            ..Workload::default()
        },
        working: Working::default(),
        machine: &machine,
    };
    let whole = Plan::new(&question).unwrap().peak_bytes();
    question.budget_bytes = (whole as f64 * share) as u64;
    match Plan::new(&question) {
        Ok(plan) => Some(plan),
        Err(PlanError::BudgetTooSmall { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

fn check_logits(name: &str, dialect: Dialect) {
    let folder = folder(name, dialect);
    let mut tiers = Vec::new();
    for (share, cache) in [(1.0, 0), (0.7, u64::MAX), (0.7, 0)] {
        let ops = Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap();
        let met = std::cell::RefCell::new(Vec::new());
        let plan_for = |shape: &Shape, sources: &[_]| {
            let plan = plan(shape, sources, share, cache)?;
            met.borrow_mut()
                .extend(plan.units.iter().map(|unit| unit.tier));
            Some(plan)
        };
        for check in fixture_logits(folder.path(), &ops, &plan_for).unwrap() {
            assert!(check.passes(), "{dialect:?} {share}: {check:?}");
        }
        tiers.extend(met.into_inner());
    }
    for tier in [Tier::Device, Tier::Host, Tier::Disk] {
        assert!(tiers.contains(&tier), "nothing was read for {tier:?}");
    }
}

fn check_tokens(name: &str, dialect: Dialect) {
    let options = Options {
        threads: 2,
        ..Options::default()
    };
    let checks = fixture_tokens(folder(name, dialect).path(), options).unwrap();
    assert_eq!(checks.len(), 17);
    for check in checks {
        assert!(check.passes(), "{dialect:?}: {check:?}");
    }
}

#[test]
fn logits_of_rows_in_turn_are_those_of_the_reference() {
    check_logits("llada-tiny", Dialect::LlamaCpp);
}

#[test]
fn logits_of_rows_in_order_are_those_of_the_reference() {
    check_logits("llada-tiny", Dialect::DiffuseCpp);
}

#[test]
fn logits_of_fewer_key_heads_in_turn_are_those_of_the_reference() {
    check_logits("llada-tiny-bf16", Dialect::LlamaCpp);
}

#[test]
fn tokens_of_both_dialects_are_those_of_the_reference() {
    check_tokens("llada-tiny", Dialect::LlamaCpp);
    check_tokens("llada-tiny-bf16", Dialect::DiffuseCpp);
}
