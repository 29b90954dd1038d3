//! Where the time of passes goes: shares of its phases, and the bottleneck in words.

use std::fmt;

use sluice_proto::v1::{GenerationDone, GenerationPass, PassPhases, Tier};

/// The time of one pass, or of several together.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PassTime {
    /// Total time in milliseconds.
    pub ms: f64,
    /// Time spent waiting for streamed weights, in milliseconds.
    pub waited_ms: f64,
    /// The time of the other phases; `None` where it is not known.
    pub phases: Option<PassPhases>,
}

impl From<&GenerationPass> for PassTime {
    fn from(pass: &GenerationPass) -> Self {
        Self {
            ms: pass.pass_ms,
            waited_ms: pass.waited_ms,
            phases: pass.phases,
        }
    }
}

impl From<&GenerationDone> for PassTime {
    fn from(done: &GenerationDone) -> Self {
        Self {
            ms: done.pass_ms,
            waited_ms: done.waited_ms,
            phases: done.phases,
        }
    }
}

impl PassTime {
    /// The time of both together. Phases are known only if both know them.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        let sum = |(a, b): (PassPhases, PassPhases)| PassPhases {
            attention_ms: a.attention_ms + b.attention_ms,
            matmul_ms: a.matmul_ms + b.matmul_ms,
            decompress_ms: a.decompress_ms + b.decompress_ms,
            lm_head_ms: a.lm_head_ms + b.lm_head_ms,
            other_ms: a.other_ms + b.other_ms,
            copy_ms: a.copy_ms + b.copy_ms,
        };
        Self {
            ms: self.ms + other.ms,
            waited_ms: self.waited_ms + other.waited_ms,
            phases: self.phases.zip(other.phases).map(sum),
        }
    }

    /// The parts that add up to the total, by name, in milliseconds; `None` for parts that are not known.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, Option<f64>); 6] {
        let part = |part: fn(&PassPhases) -> f64| self.phases.as_ref().map(part);
        [
            ("wait", (self.ms > 0.0).then_some(self.waited_ms)),
            ("decompress", part(|phases| phases.decompress_ms)),
            ("matmul", part(|phases| phases.matmul_ms)),
            ("attention", part(|phases| phases.attention_ms)),
            ("lm_head", part(|phases| phases.lm_head_ms)),
            ("other", part(|phases| phases.other_ms)),
        ]
    }

    /// A time in milliseconds as a share of the total; `None` if the total is 0.
    #[must_use]
    pub fn share(&self, ms: f64) -> Option<f64> {
        (self.ms > 0.0).then(|| ms / self.ms)
    }

    /// The parts in words: `wait 0 %, decompress 0 %, matmul 66 %`, and so on; parts that are not known are `-`.
    #[must_use]
    pub fn shares(&self) -> String {
        let part = |(name, ms): (&str, Option<f64>)| {
            let share = ms.and_then(|ms| self.share(ms));
            share.map_or_else(
                || format!("{name} -"),
                |share| format!("{name} {}", percent(share)),
            )
        };
        self.parts().map(part).join(", ")
    }

    /// The phase that takes the most time. Where only the waiting is known, it must take at least half of the time. `from` is the
    /// tier that weights are streamed from.
    #[must_use]
    pub fn bottleneck(&self, from: Option<Tier>) -> Option<Bottleneck> {
        let bound = match from {
            Some(Tier::Host) => Bound::Bus,
            Some(Tier::Disk) => Bound::Disk,
            Some(Tier::Device | Tier::Unspecified) | None => Bound::Transfer,
        };
        let waits = (bound, self.waited_ms);
        let (bound, ms) = match &self.phases {
            None => Some(waits).filter(|(_, ms)| *ms >= self.ms / 2.0)?,
            Some(phases) => [
                (Bound::Compute, phases.matmul_ms + phases.attention_ms),
                (Bound::LmHead, phases.lm_head_ms),
                (Bound::Decompress, phases.decompress_ms),
                (Bound::Overhead, phases.other_ms),
            ]
            .into_iter()
            .fold(
                waits,
                |most, next| if next.1 > most.1 { next } else { most },
            ),
        };
        let share = self.share(ms)?;
        Some(Bottleneck { bound, share })
    }
}

/// The phase that takes the most time of a pass. Its `Display` is a sentence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bottleneck {
    /// The kind of bottleneck.
    pub bound: Bound,
    /// Its share of a pass, from 0 to 1.
    pub share: f64,
}

/// A kind of bottleneck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Waiting for weights from the host's memory.
    Bus,
    /// Waiting for weights from the disk.
    Disk,
    /// Waiting for weights from a tier that is not known.
    Transfer,
    /// Matmuls of the layers, and attention.
    Compute,
    /// The LM head: logits, and the choice of tokens.
    LmHead,
    /// Decompressing weights.
    Decompress,
    /// Small operations, and the time between operations.
    Overhead,
}

impl Bound {
    /// The name of the bottleneck, such as `bus` or `lm-head`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bus => "bus",
            Self::Disk => "disk",
            Self::Transfer => "transfer",
            Self::Compute => "compute",
            Self::LmHead => "lm-head",
            Self::Decompress => "decompress",
            Self::Overhead => "overhead",
        }
    }
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let goes = match self.bound {
            Bound::Bus | Bound::Disk | Bound::Transfer => "waits for streamed weights",
            Bound::Compute => "is matmul and attention",
            Bound::LmHead => "is the LM head and the choice of tokens",
            Bound::Decompress => "decompresses weights",
            Bound::Overhead => "is small operations and what lies between them",
        };
        let (name, share) = (self.bound.name(), percent(self.share));
        write!(f, "{name}-bound: {share} of a pass {goes}")
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pass of 100 ms; the rest is `other`.
    fn pass([wait, decode, multiply, attention, head]: [f64; 5]) -> PassTime {
        PassTime {
            ms: 100.0,
            waited_ms: wait,
            phases: Some(PassPhases {
                attention_ms: attention,
                matmul_ms: multiply,
                decompress_ms: decode,
                lm_head_ms: head,
                other_ms: 100.0 - wait - decode - multiply - attention - head,
                copy_ms: 90.0,
            }),
        }
    }

    #[test]
    fn a_sentence_names_what_takes_the_most() {
        let words = |parts, from| pass(parts).bottleneck(from).unwrap().to_string();
        for (from, name) in [
            (Some(Tier::Host), "bus"),
            (Some(Tier::Disk), "disk"),
            (None, "transfer"),
        ] {
            assert_eq!(
                words([71.0, 0.0, 20.0, 4.0, 3.0], from),
                format!("{name}-bound: 71 % of a pass waits for streamed weights")
            );
        }
        for (parts, sentence) in [
            // Neither of the two takes as much as the head.
            (
                [0.0, 0.0, 30.0, 25.0, 40.0],
                "compute-bound: 55 % of a pass is matmul and attention",
            ),
            (
                [10.0, 0.0, 20.0, 5.0, 60.0],
                "lm-head-bound: 60 % of a pass is the LM head and the choice of tokens",
            ),
            (
                [10.0, 45.0, 30.0, 5.0, 5.0],
                "decompress-bound: 45 % of a pass decompresses weights",
            ),
            (
                [0.0, 0.0, 20.0, 10.0, 10.0],
                "overhead-bound: 60 % of a pass is small operations and what lies between them",
            ),
        ] {
            assert_eq!(words(parts, None), sentence);
        }
    }

    #[test]
    fn what_is_not_known_is_not_zero() {
        let on_gpu = |waited_ms| PassTime {
            waited_ms,
            phases: None,
            ..pass([0.0; 5])
        };
        assert_eq!(
            on_gpu(25.0).shares(),
            "wait 25 %, decompress -, matmul -, attention -, lm_head -, other -"
        );
        assert_eq!(on_gpu(25.0).bottleneck(None), None);
        let bottleneck = on_gpu(71.0).bottleneck(Some(Tier::Host)).unwrap();
        assert_eq!(bottleneck.bound, Bound::Bus);
        let none = PassTime::default();
        assert_eq!(none.bottleneck(None), None);
        assert!(none.shares().starts_with("wait -, "));
    }

    #[test]
    fn passes_are_told_together_where_all_are_known() {
        let both = pass([0.0, 0.0, 60.0, 20.0, 10.0]).with(pass([50.0, 0.0, 20.0, 10.0, 10.0]));
        assert_eq!(
            both.shares(),
            "wait 25 %, decompress 0 %, matmul 40 %, attention 15 %, lm_head 10 %, other 10 %"
        );
        let unknown = PassTime {
            phases: None,
            ..both
        };
        assert_eq!(both.with(unknown).phases, None);
    }
}
