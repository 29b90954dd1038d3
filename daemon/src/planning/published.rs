//! `sluiced plan --all`: how each published shape would run within one budget.

use std::{cmp::Reverse, num::NonZero, sync::Mutex, thread};

use serde::Serialize;
use sluice_checkpoint::family::{PUBLISHED_SHAPES, PublishedShape};
use sluice_engine::runtime::ModelOutline;
use sluice_plan::{Machine, Plan};
use sluice_proto::model;
use sluice_shared::{level::Level, options::PlanSettings, units};

use crate::{failure::Failure, translate};

/// Levels at which a whole model may be resident, the most faithful first, with the fewest bits that a weight of a bf16
/// checkpoint takes there: what cannot fit by these is not planned.
const LEVELS: [(Level, f64); 4] = [
    (Level::Standard, 16.0),
    (Level::Mild, 10.0),
    (Level::Moderate, 8.0),
    (Level::Aggressive, 4.0),
];

/// What a pass writes where nothing was published of it: preset `exact`, and each autoregressive model.
const TOKENS_PER_PASS: f64 = 1.0;

/// All published shapes within one budget, the best first.
#[derive(Debug, Serialize)]
pub(super) struct PublishedPlans {
    budget_bytes: u64,
    shapes: Vec<PublishedPlan>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// How one of them would run.
#[derive(Debug, Serialize)]
struct PublishedPlan {
    shape: &'static str,
    source: &'static str,
    license: Option<&'static str>,
    parameters: u64,
    fit: ShapeFit,
    level: Option<&'static str>,
    is_lossless: Option<bool>,
    peak_bytes: Option<u64>,
    streamed_bytes_per_pass: Option<u64>,
    pass_ms: Option<f64>,
    tokens_per_pass: f64,
    tokens_per_second: Option<f64>,
    problem: Option<String>,
}

/// Whether a shape fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum ShapeFit {
    /// All weights stay on the device.
    Resident,
    /// Weights are streamed in each pass.
    Streamed,
    /// It cannot run.
    Refused,
}

/// What all shapes are planned with.
pub(super) struct Terms {
    pub(super) machine: Machine,
    pub(super) settings: PlanSettings,
    /// Whether the level was asked for; else the most faithful one is taken at which the model fits.
    pub(super) has_level: bool,
    pub(super) budget_bytes: u64,
    pub(super) workload: model::Workload,
    pub(super) note: Option<String>,
}

impl Terms {
    /// Plans all published shapes, several at once.
    pub(super) fn plan_all(self) -> PublishedPlans {
        let queue = Mutex::new(PUBLISHED_SHAPES.iter());
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let take = || queue.lock().ok()?.next();
        let work = || {
            let shapes = std::iter::from_fn(take);
            shapes.map(|shape| self.row(shape)).collect::<Vec<_>>()
        };
        let mut shapes: Vec<_> = thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let rows = workers.into_iter().map(|worker| worker.join());
            rows.flat_map(|rows| rows.expect("plans don't panic"))
                .collect()
        });
        shapes.sort_by_key(PublishedPlan::place);
        PublishedPlans {
            budget_bytes: self.budget_bytes,
            shapes,
            note: self.note,
        }
    }

    fn row(&self, shape: &'static PublishedShape) -> PublishedPlan {
        let published = shape.published();
        let mut row = PublishedPlan {
            shape: shape.name,
            source: published.full,
            license: published.licence,
            parameters: shape.shape().parameters(),
            fit: ShapeFit::Refused,
            level: None,
            is_lossless: None,
            peak_bytes: None,
            streamed_bytes_per_pass: None,
            pass_ms: None,
            tokens_per_pass: published.tokens_per_pass.unwrap_or(TOKENS_PER_PASS),
            tokens_per_second: None,
            problem: None,
        };
        let plan = match self.plan(shape) {
            Ok(plan) => plan,
            Err(failure) => {
                row.problem = Some(failure.to_string());
                return row;
            }
        };
        row.level = Some(plan.level.name());
        let plan = translate::plan::summary(&plan, shape.name);
        row.fit = match plan.streamed_bytes_per_pass {
            0 => ShapeFit::Resident,
            _ => ShapeFit::Streamed,
        };
        row.is_lossless = Some(plan.is_lossless);
        row.peak_bytes = Some(plan.peak_bytes);
        row.streamed_bytes_per_pass = Some(plan.streamed_bytes_per_pass);
        row.pass_ms = plan.pass_ms;
        let pass_s = plan.pass_ms.map(|ms| ms / 1000.0).filter(|s| *s > 0.0);
        row.tokens_per_second = pass_s.map(|s| row.tokens_per_pass / s);
        row
    }

    /// The plan at the level that was asked for, else at the most faithful one at which all weights are resident, else at the
    /// one that `auto` chooses.
    fn plan(&self, shape: &PublishedShape) -> Result<Plan, Failure> {
        let outline = ModelOutline::of_published_shape(shape, self.machine.clone());
        let workload = translate::plan::workload(self.workload, outline.context_length())?;
        let at = |level: Level| {
            let settings = PlanSettings {
                level,
                ..self.settings
            };
            outline.plan(settings, self.budget_bytes, workload)
        };
        if self.has_level {
            return Ok(at(self.settings.level)?);
        }
        let sizes = shape.shape();
        // Rows of the embedding may be read from the host.
        let embedding = (sizes.padded_vocab_size * sizes.hidden_size) as u64;
        let weights = sizes.parameters().saturating_sub(embedding) as f64;
        for (level, bits) in LEVELS {
            if weights * bits / 8.0 > self.budget_bytes as f64 {
                continue;
            }
            // Weights that fit may leave too little room for a canvas.
            if let Ok(plan) = at(level)
                && plan.streamed_bytes() == 0
            {
                return Ok(plan);
            }
        }
        Ok(at(Level::Auto)?)
    }
}

impl PublishedPlans {
    /// The table, with what it takes for granted below.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut rows = vec![HEADINGS.map(str::to_owned)];
        rows.extend(self.shapes.iter().map(PublishedPlan::cells));
        let width = |column: usize| {
            let widths = rows.iter().map(|row| row[column].chars().count());
            widths.max().unwrap_or(0)
        };
        let widths: [usize; COLUMNS] = std::array::from_fn(width);
        let line = |cells: &[String; COLUMNS]| {
            let padded =
                cells
                    .iter()
                    .enumerate()
                    .map(|(column, cell)| match RIGHT.contains(&column) {
                        true => format!("{cell:>0$}", widths[column]),
                        false => format!("{cell:<0$}", widths[column]),
                    });
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let budget = units::bytes(self.budget_bytes);
        let mut lines = vec![format!("published shapes within {budget}")];
        lines.extend(rows.iter().map(line));
        lines.push(String::new());
        lines.push(
            "note: tokens a pass are those that a model's authors publish of their sampler, or one: autoregressive models write \
             one, and so does preset exact with any"
                .to_owned(),
        );
        lines.push(
            "note: levels standard and mild compute with the published weights; what moderate and aggressive lose, `sluice \
             fidelity` measures"
                .to_owned(),
        );
        if self
            .shapes
            .iter()
            .any(|row| row.fit == ShapeFit::Streamed && row.pass_ms.is_none())
        {
            lines.push(
                "note: how long a pass waits for streamed weights depends on the disk, which is measured where a model lies"
                    .to_owned(),
            );
        }
        lines.extend(self.note.iter().map(|note| format!("note: {note}")));
        lines
    }
}

const COLUMNS: usize = 10;
const HEADINGS: [&str; COLUMNS] = [
    "SHAPE",
    "PARAMETERS",
    "FITS",
    "LEVEL",
    "PEAK",
    "STREAMED",
    "A PASS",
    "TOKENS/PASS",
    "TOKENS/S",
    "LICENCE",
];
/// Columns of figures.
const RIGHT: [usize; 6] = [1, 4, 5, 6, 7, 8];

impl PublishedPlan {
    /// Its place among others: of those that fit the largest come first, of those that wait for weights the quickest, or where
    /// that is not known those that wait for the least.
    fn place(&self) -> (ShapeFit, Reverse<u64>, u64, &'static str) {
        let speed = (self.tokens_per_second.unwrap_or(0.0) * 1e6) as u64;
        let first = match self.fit {
            ShapeFit::Resident => self.parameters,
            ShapeFit::Streamed | ShapeFit::Refused => speed,
        };
        let streamed_bytes = self.streamed_bytes_per_pass.unwrap_or(0);
        (self.fit, Reverse(first), streamed_bytes, self.shape)
    }

    fn cells(&self) -> [String; COLUMNS] {
        let dash = || "-".to_owned();
        let bytes = |bytes: Option<u64>| match bytes {
            None | Some(0) => dash(),
            Some(bytes) => units::bytes(bytes),
        };
        let fits = match self.fit {
            ShapeFit::Resident => "yes",
            ShapeFit::Streamed => "streamed",
            ShapeFit::Refused => "no",
        };
        let licence = self.license.unwrap_or("not known");
        [
            self.shape.to_owned(),
            format!("{:.1} B", self.parameters as f64 / 1e9),
            fits.to_owned(),
            self.level.map_or_else(dash, str::to_owned),
            bytes(self.peak_bytes),
            bytes(self.streamed_bytes_per_pass),
            self.pass_ms.map_or_else(dash, units::duration_ms),
            format!("{:.1}", self.tokens_per_pass),
            self.tokens_per_second
                .map_or_else(dash, |rate| format!("{rate:.1}")),
            match &self.problem {
                Some(problem) => format!("{licence}; {problem}"),
                None => licence.to_owned(),
            },
        ]
    }
}
