//! Measures one level: puts it in force, generates, and compares with the checkpoint's own weights.

use sluice_proto::v1::{
    ApplyRequest, EosPolicy, GenerateRequest, MeasureFidelityRequest, Model, OperationProgress,
    Plan, PlanOptions, TokenIds, generate_request::Input, measure_fidelity_request::Samples,
};
use sluice_shared::{decoding::Speculation, level::Level, preset::Preset};

use super::{
    is_masked_diffusion,
    row::{LevelFidelity, LevelFigures, ReportRow},
};
use crate::{
    cli::DecodingDetails,
    commands::{apply, bench, fidelity, operations::owned},
    connection::DaemonConnection,
    output::Failure,
};

/// Text that a model goes on with. What it says matters little: end tokens are never chosen, and each position is a pass.
const PROMPT: &str = "Once upon a time there was a lighthouse, and in it";

/// The request that is measured at every level: as many passes as tokens, and the same ones each time.
pub(super) fn request(model: &Model, length: u32) -> GenerateRequest {
    let has_tokenizer = (model.shape.as_ref()).is_none_or(|shape| shape.has_tokenizer);
    let mut request = GenerateRequest {
        // Raw text, since not every model has a chat template.
        input: Some(match has_tokenizer {
            true => Input::RawText(PROMPT.to_owned()),
            false => Input::Tokens(TokenIds { ids: vec![1; 8] }),
        }),
        length: Some(length),
        ..Default::default()
    };
    let mut details = DecodingDetails {
        greedy: true,
        seed: Some(0),
        ..DecodingDetails::default()
    };
    let preset = is_masked_diffusion(model).then(|| {
        // Guessing ahead would make passes of one level longer than those of another.
        details.speculate = Some(Speculation::None);
        Preset::Exact
    });
    details.apply(preset, &mut request);
    request.sampling_mut().set_eos_policy(EosPolicy::Suppress);
    request
}

/// What levels are measured with.
pub(super) struct Measurer<'a> {
    pub(super) daemon: &'a DaemonConnection,
    pub(super) request: GenerateRequest,
    pub(super) samples: Samples,
    pub(super) samples_max: u32,
    pub(super) seed: u64,
}

impl Measurer<'_> {
    /// The plan of a level that can be put in force.
    ///
    /// # Errors
    /// Why it cannot.
    pub(super) async fn plan(&self, level: Level) -> Result<Plan, Failure> {
        fidelity::plan(self.daemon, Some(level)).await
    }

    /// The row of a level, whose fidelity is taken from an earlier row with equal weights.
    ///
    /// # Errors
    /// When the daemon is gone. What it refuses is in the row.
    pub(super) async fn row(
        &self,
        plan: Plan,
        earlier: &[ReportRow],
    ) -> Result<ReportRow, Failure> {
        let figures = match self.figures(&plan).await {
            Ok(figures) => figures,
            Err(failure) => return ReportRow::refused(plan.level(), failure),
        };
        let equal = earlier.iter().find_map(|row| row.fidelity_of_equal(&plan));
        let fidelity = match equal {
            Some(equal) => Ok(equal),
            None => self.fidelity(&plan).await,
        };
        ReportRow::measured(plan, figures, fidelity)
    }

    async fn figures(&self, plan: &Plan) -> Result<LevelFigures, Failure> {
        let level = plan.level();
        let line = move |step: &OperationProgress| format!("{level}: {}", apply::step_line(step));
        let options = PlanOptions {
            level: plan.level,
            ..Default::default()
        };
        let mut client = self.daemon.optimizer();
        let call = client.apply(ApplyRequest {
            options: Some(options),
            ..Default::default()
        });
        owned(self.daemon, call, line).await?;
        let measured = bench::request(self.daemon, &level.to_string(), &self.request).await?;
        let snapshot = self.daemon.snapshot().await?;
        let in_force = snapshot.plan.unwrap_or_default();
        if in_force.level != plan.level {
            let substitution = snapshot.settings.and_then(|settings| settings.substitution);
            return Err(Failure::new(match substitution {
                Some(substitution) => substitution.reason,
                None => format!("{} is in force, by another client", in_force.level()),
            }));
        }
        Ok(LevelFigures::of(&in_force, &measured))
    }

    async fn fidelity(&self, plan: &Plan) -> Result<LevelFidelity, Failure> {
        let request = MeasureFidelityRequest {
            samples: Some(self.samples.clone()),
            level: plan.level,
            seed: Some(self.seed),
            max_samples: Some(self.samples_max),
        };
        let result = fidelity::measure(self.daemon, request, plan.level()).await?;
        Ok(LevelFidelity {
            result,
            equal_to: None,
        })
    }
}
