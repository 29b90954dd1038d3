//! The fields of each event, as they stand on its line.

use std::collections::HashMap;

use serde::Deserialize;
use sluice_proto::v1::{
    BlockDone, CanvasToken, Done, FinishReason, PassDone, Phases, Policy, ResolvedSetting, Started,
    Switch, TokenState,
};

use super::at_most;

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct QueuedLine {
    pub(super) request_id: u64,
    pub(super) ahead: u32,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct StartedLine {
    request_id: u64,
    prompt_tokens: u32,
    length: u32,
    block_length: u32,
    blocks: u32,
    steps: u32,
    seed: u64,
    policy: Option<PolicyLine>,
    model: String,
    pinned: Vec<TokenLine>,
    exact: bool,
    prompt_text: String,
    level: String,
    warnings: Vec<String>,
    estimated_ms: Option<f64>,
    dial: String,
    cache: String,
    window: Option<u32>,
    growth: String,
    speculation: String,
    sampling: Vec<SettingLine>,
    seed_drawn: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SettingLine {
    name: String,
    value: String,
    origin: String,
}

impl SettingLine {
    fn setting(self) -> ResolvedSetting {
        ResolvedSetting {
            name: self.name,
            value: self.value,
            origin: self.origin,
        }
    }
}

impl StartedLine {
    pub(super) fn started(self) -> Result<Started, String> {
        at_most("length", self.length as usize)?;
        Ok(Started {
            request_id: self.request_id,
            prompt_tokens: self.prompt_tokens,
            length: self.length,
            block_length: self.block_length,
            blocks: self.blocks,
            steps: self.steps,
            seed: self.seed,
            policy: self.policy.map(PolicyLine::policy),
            model: self.model,
            pinned: tokens(self.pinned)?,
            exact: self.exact,
            prompt_text: self.prompt_text.into_bytes(),
            level: self.level,
            warnings: self.warnings,
            estimated_ms: self.estimated_ms.map(time),
            dial: self.dial,
            cache: self.cache,
            window: self.window,
            growth: self.growth,
            speculation: self.speculation,
            sampling: self
                .sampling
                .into_iter()
                .map(SettingLine::setting)
                .collect(),
            seed_drawn: self.seed_drawn,
        })
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PolicyLine {
    name: String,
    parameters: HashMap<String, f64>,
}

impl PolicyLine {
    fn policy(self) -> Policy {
        Policy {
            name: self.name,
            parameters: self.parameters,
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct PassLine {
    request_id: u64,
    pass: u32,
    block: u32,
    pass_in_block: u32,
    tokens: Vec<TokenLine>,
    committed: u32,
    stable_text: String,
    rows: u32,
    head_rows: u32,
    pass_ms: f64,
    elapsed_ms: f64,
    device_bytes: u64,
    epoch: u64,
    exact: bool,
    waited_ms: f64,
    streamed_bytes: u64,
    requests: u32,
    level: String,
    phases: Option<PhasesLine>,
    switch: Option<SwitchLine>,
}

impl PassLine {
    pub(super) fn pass(self) -> Result<PassDone, String> {
        Ok(PassDone {
            request_id: self.request_id,
            passes: self.pass,
            block: self.block,
            pass_in_block: self.pass_in_block,
            tokens: tokens(self.tokens)?,
            committed: self.committed,
            stable_text: self.stable_text.into_bytes(),
            rows: self.rows,
            head_rows: self.head_rows,
            pass_ms: time(self.pass_ms),
            elapsed_ms: time(self.elapsed_ms),
            device_bytes: self.device_bytes,
            epoch: self.epoch,
            exact: self.exact,
            waited_ms: time(self.waited_ms),
            streamed_bytes: self.streamed_bytes,
            requests: self.requests,
            level: self.level,
            phases: self.phases.map(PhasesLine::phases),
            switching: self
                .switch
                .map(|SwitchLine { done, steps }| Switch { done, steps }),
        })
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SwitchLine {
    done: u32,
    steps: u32,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PhasesLine {
    attention_ms: f64,
    multiply_ms: f64,
    decode_ms: f64,
    head_ms: f64,
    other_ms: f64,
    copy_ms: f64,
}

impl PhasesLine {
    fn phases(self) -> Phases {
        Phases {
            attention_ms: time(self.attention_ms),
            multiply_ms: time(self.multiply_ms),
            decode_ms: time(self.decode_ms),
            head_ms: time(self.head_ms),
            other_ms: time(self.other_ms),
            copy_ms: time(self.copy_ms),
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct BlockDoneLine {
    request_id: u64,
    block: u32,
    passes: u32,
    tokens: Vec<TokenLine>,
}

impl BlockDoneLine {
    pub(super) fn block_done(self) -> Result<BlockDone, String> {
        Ok(BlockDone {
            request_id: self.request_id,
            block: self.block,
            passes: self.passes,
            tokens: tokens(self.tokens)?,
        })
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct NoticeLine {
    pub(super) request_id: u64,
    pub(super) text: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct LoadingLine {
    pub(super) model: String,
    pub(super) loaded_bytes: u64,
    pub(super) total_bytes: u64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct DoneLine {
    request_id: u64,
    finish_reason: String,
    tokens: Vec<u32>,
    text: Option<String>,
    text_tokens: u32,
    /// Runs that were saved by earlier versions tell neither this nor the next.
    generated_tokens: Option<u32>,
    filled_positions: Option<u32>,
    passes: u32,
    ms: f64,
    peak_device_bytes: u64,
    seed: u64,
    exact: bool,
    pass_ms: f64,
    waited_ms: f64,
    phases: Option<PhasesLine>,
    cut: bool,
}

impl DoneLine {
    pub(super) fn done(self) -> Result<Done, String> {
        at_most("tokens", self.tokens.len())?;
        let reason = format!("FINISH_REASON_{}", self.finish_reason.to_uppercase());
        let reason = FinishReason::from_str_name(&reason).unwrap_or_default();
        Ok(Done {
            request_id: self.request_id,
            finish_reason: reason.into(),
            tokens: self.tokens,
            text: self.text,
            passes: self.passes,
            elapsed_ms: time(self.ms),
            peak_device_bytes: self.peak_device_bytes,
            seed: self.seed,
            exact: self.exact,
            text_tokens: self.text_tokens,
            generated_tokens: self.generated_tokens.unwrap_or(self.text_tokens),
            filled_positions: self.filled_positions.unwrap_or(self.text_tokens),
            pass_ms: time(self.pass_ms),
            waited_ms: time(self.waited_ms),
            phases: self.phases.map(PhasesLine::phases),
            cut: self.cut,
        })
    }
}

#[derive(Deserialize)]
struct TokenLine {
    position: u32,
    id: Option<u32>,
    #[serde(default)]
    piece: String,
    bytes: Option<Vec<u8>>,
    confidence: Option<f32>,
    state: String,
    #[serde(default)]
    fresh: bool,
}

/// Milliseconds as they are shared out and added up elsewhere: a number, and none below zero.
fn time(ms: f64) -> f64 {
    if ms.is_finite() { ms.max(0.0) } else { 0.0 }
}

fn tokens(lines: Vec<TokenLine>) -> Result<Vec<CanvasToken>, String> {
    at_most("tokens", lines.len())?;
    lines.into_iter().map(TokenLine::token).collect()
}

impl TokenLine {
    fn token(self) -> Result<CanvasToken, String> {
        at_most("position", self.position as usize)?;
        let state = format!("TOKEN_STATE_{}", self.state.to_uppercase());
        let state = TokenState::from_str_name(&state).unwrap_or_default();
        Ok(CanvasToken {
            position: self.position,
            id: self.id,
            piece: self.bytes.unwrap_or_else(|| self.piece.into_bytes()),
            confidence: self.confidence.filter(|p| (0.0..=1.0).contains(p)),
            state: state.into(),
            fresh: self.fresh,
        })
    }
}
