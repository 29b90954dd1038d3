//! What a client is told of a request before its first pass: advice, never a change of what was asked.

use sluice_engine::{CanvasSlot, Generate, model::ModelInfo};
use sluice_plan::PassTime;
use sluice_shared::{decoding::Speculation, level::Level, units};

/// Below this nobody needs to be told how long it will take.
const ESTIMATE_MIN_MS: f64 = 30_000.0;

/// The figures of a request that advice is given on.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestSize {
    length: usize,
    block_length: usize,
    steps: usize,
    /// Positions that nothing stands at yet; a pass commits at least one.
    masked_positions: usize,
    /// Passes that find places for texts without a position.
    placing_passes: usize,
    /// How many passes there are and what each computes is fixed by the schedule, not left to a policy, to guesses, to what is
    /// kept or to how long the text becomes.
    is_scheduled: bool,
    /// A level's limits are about masks that are filled together.
    has_limits: bool,
}

impl RequestSize {
    pub(super) fn of(work: &Generate, info: &ModelInfo) -> Self {
        let masked = work
            .canvas
            .iter()
            .filter(|slot| **slot == CanvasSlot::Masked);
        Self {
            length: work.canvas.len(),
            block_length: work.block_length,
            steps: work.steps,
            masked_positions: masked.count(),
            placing_passes: work.placing_passes(),
            is_scheduled: is_scheduled(work) && info.mask.is_some(),
            has_limits: info.mask.is_some(),
        }
    }

    /// Passes, at most.
    fn passes(&self) -> usize {
        let filling = match self.is_scheduled {
            true => self.steps.min(self.masked_positions),
            false => self.masked_positions,
        };
        self.placing_passes + filling
    }

    /// The passes' predicted time, at most.
    pub(super) fn estimated_ms(&self, pass: &PassTime) -> f64 {
        pass.total_s() * 1000.0 * self.passes() as f64
    }

    /// What to know of the request at this level, with the time it is expected to take, if that is known.
    pub(super) fn warnings(&self, level: Level, estimated_ms: Option<f64>) -> Vec<String> {
        let slow = estimated_ms.filter(|ms| *ms > ESTIMATE_MIN_MS);
        let slow = slow.map(|ms| match self.is_scheduled {
            true => format!("this will take about {}", units::about_ms(ms)),
            false => format!("this will take at most {}", units::about_ms(ms)),
        });
        self.beyond_limits(level).into_iter().chain(slow).collect()
    }

    fn beyond_limits(&self, level: Level) -> Option<String> {
        let limits = level.advised_limits().filter(|_| self.has_limits)?;
        let beyond: Vec<_> = [
            ("tokens", self.length, limits.length),
            ("tokens a block", self.block_length, limits.block_length),
            ("steps", self.steps, limits.steps),
        ]
        .into_iter()
        .filter(|&(_, asked, limit)| asked > limit as usize)
        .map(|(what, asked, limit)| format!("{limit} {what} (asked for: {asked})"))
        .collect();
        (!beyond.is_empty()).then(|| {
            format!(
                "level {level} is recommended for at most {}",
                beyond.join(", ")
            )
        })
    }
}

fn is_scheduled(work: &Generate) -> bool {
    work.policy.info().exact
        && work.decoding.is_exact()
        && work.decoding.speculation == Speculation::None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pass that takes so long.
    fn pass(compute_s: f64) -> PassTime {
        PassTime {
            compute_s,
            copy_s: 0.0,
            copies_overlap: false,
            disk_s: 0.0,
            reader_s: 0.0,
            cold_s: None,
            correction: 1.0,
            others_share: 0.0,
        }
    }

    fn request(length: usize, steps: usize) -> RequestSize {
        RequestSize {
            length,
            block_length: 32,
            steps,
            masked_positions: length,
            placing_passes: 0,
            is_scheduled: true,
            has_limits: true,
        }
    }

    #[test]
    fn only_the_aggressive_level_has_limits_and_names_those_passed() {
        let warnings = |level, request: RequestSize| request.warnings(level, Some(10.0));
        assert_eq!(
            warnings(Level::Aggressive, request(128, 64)),
            ["level aggressive is recommended for at most 64 tokens (asked for: 128)"]
        );
        let wide = RequestSize {
            block_length: 64,
            ..request(64, 65)
        };
        assert_eq!(
            warnings(Level::Aggressive, wide),
            [
                "level aggressive is recommended for at most 32 tokens a block (asked for: 64), 64 steps (asked for: 65)"
            ]
        );
        assert!(warnings(Level::Aggressive, request(64, 64)).is_empty());
        assert!(warnings(Level::Moderate, request(512, 512)).is_empty());
        let causal = RequestSize {
            has_limits: false,
            ..request(512, 512)
        };
        assert!(warnings(Level::Aggressive, causal).is_empty());
    }

    #[test]
    fn what_takes_long_is_said_beforehand() {
        let level = Level::Standard;
        let told = |request: RequestSize| {
            let estimated_ms = request.estimated_ms(&pass(3.0));
            request.warnings(level, Some(estimated_ms))
        };
        assert_eq!(told(request(64, 64)), ["this will take about 3 min"]);
        assert_eq!(told(request(64, 9)), [""; 0], "27 s");
        assert_eq!(request(64, 9).estimated_ms(&pass(3.0)), 27_000.0);
        let free = RequestSize {
            is_scheduled: false,
            ..request(64, 9)
        };
        assert_eq!(told(free), ["this will take at most 3 min"]);
        assert!(request(64, 64).warnings(level, None).is_empty());
    }
}
