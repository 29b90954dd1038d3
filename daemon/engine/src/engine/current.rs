//! The loaded model, and the plans that can be made for it.

use std::sync::Arc;

use sluice_shared::level::Level;

use super::switch::Switch;
use crate::{
    checkpoint::{Checkpoint, disk_rate},
    decode::Vocabulary,
    error::EngineError,
    model::{
        llada::{Config, Llada, MLP_ROWS},
        rehearse::Rehearsal,
        shape::Shape,
    },
    plan::{self, Machine, Plan, Question, SourceTensor, Working, Workload},
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
    /// For a model with these tensors.
    pub(super) fn new(shape: Shape, sources: Vec<SourceTensor>, machine: Machine) -> Self {
        Self {
            rehearsal: Rehearsal::new(&shape, &sources, machine.threads),
            shape,
            sources,
            machine,
        }
    }

    /// For a checkpoint, whose headers are checked, and whose disk is tried for a moment.
    pub(super) fn of_checkpoint(
        checkpoint: &Checkpoint,
        config: &Config,
        machine: Machine,
    ) -> Result<Self, EngineError> {
        let shape = Shape::of(config);
        let sources = plan::sources(checkpoint, shape.tensors())?;
        let machine = Machine {
            disk_bytes_per_s: disk_rate(checkpoint),
            ..machine
        };
        Ok(Self::new(shape, sources, machine))
    }

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
    /// What weights are read with.
    pub(super) reader: Arc<Reader>,
    /// In force, or being put there.
    pub(super) plan: Arc<Plan>,
    pub(super) switch: Option<Switch>,
    /// Rows that go through an MLP together: fewer when memory ran short.
    pub(super) mlp_rows: usize,
}

impl Current {
    /// Memory that a request takes besides weights and slots.
    pub(super) fn working(&self, workload: &Workload) -> Result<Working, EngineError> {
        self.planner.rehearsal.working(workload, self.mlp_rows)
    }

    pub(super) fn set_mlp_rows(&mut self, rows: usize) {
        self.mlp_rows = rows;
        self.model.set_mlp_rows(rows);
    }

    /// The present state as a plan: in the middle of a transition it is neither of the two.
    pub(super) fn as_it_stands(&self) -> Plan {
        Plan {
            units: self.weights.unit_plans(),
            slots: self.weights.slots(),
            ..Plan::clone(&self.plan)
        }
    }
}
