//! The loaded model, and the plans that can be made for it.

use std::sync::Arc;

use sluice_shared::level::Level;

use super::switch::Switch;
use crate::{
    decode::Vocabulary,
    error::EngineError,
    model::{
        llada::{Llada, MLP_ROWS},
        rehearse::Rehearsal,
        shape::Shape,
    },
    plan::{Machine, Plan, Question, SourceTensor, Workload},
    request::ModelId,
    residency::{Reader, Residency},
};

/// What plans for a model are made from.
#[derive(Debug)]
pub(super) struct Planner {
    pub(super) shape: Shape,
    pub(super) sources: Vec<SourceTensor>,
    pub(super) machine: Machine,
    pub(super) rehearsal: Rehearsal,
}

impl Planner {
    /// A plan for the loaded model.
    pub(super) fn plan(
        &self,
        level: Level,
        budget_bytes: u64,
        workload: Workload,
    ) -> Result<Plan, EngineError> {
        self.plan_with(level, budget_bytes, workload, MLP_ROWS)
    }

    /// The same, with fewer rows at once in an MLP.
    pub(super) fn plan_with(
        &self,
        level: Level,
        budget_bytes: u64,
        workload: Workload,
        mlp_rows: usize,
    ) -> Result<Plan, EngineError> {
        Ok(Plan::new(&Question {
            shape: &self.shape,
            sources: &self.sources,
            level,
            budget_bytes,
            working: self.rehearsal.working(&workload, mlp_rows)?,
            workload,
            machine: &self.machine,
        })?)
    }
}

/// The loaded model.
pub(super) struct Current {
    pub(super) id: ModelId,
    pub(super) model: Llada,
    pub(super) weights: Residency,
    pub(super) vocabulary: Vocabulary,
    pub(super) planner: Arc<Planner>,
    /// What weights are read with, before any derivative is known.
    pub(super) reader: Arc<Reader>,
    /// In force, or being put there.
    pub(super) plan: Arc<Plan>,
    pub(super) switch: Option<Switch>,
    /// Rows that go through an MLP together: fewer when memory ran short.
    pub(super) mlp_rows: usize,
}
