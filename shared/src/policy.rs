//! The registry of policies: how a pass chooses which positions to commit.
//!
//! The engine implements them; command line, configuration, wire and screen read this
//! table, so a name or a default stands in one place.

use std::{fmt, str::FromStr};

/// A policy's name, parameters and properties.
#[derive(Debug)]
pub struct PolicyInfo {
    /// As written on the command line and on the wire.
    pub name: &'static str,
    /// One line for help texts.
    pub summary: &'static str,
    /// Its parameters, in the order in which they are shown.
    pub parameters: &'static [ParameterInfo],
    /// Whether the committed tokens are those of the reference sampler.
    pub exact: bool,
    /// Whether committed tokens of the open block may become masks, or other tokens.
    pub takes_back: bool,
}

/// A numeric parameter of a policy.
#[derive(Debug)]
pub struct ParameterInfo {
    /// The key in `name:key=value`.
    pub name: &'static str,
    /// One line for help texts.
    pub summary: &'static str,
    /// The value if it is not given.
    pub default: f64,
    /// Least allowed value.
    pub min: f64,
    /// Greatest allowed value.
    pub max: f64,
}

/// Most passes that policy allows a canvas.
pub const STEPS_MAX: f64 = 1e6;

/// The policy of models that denoise canvases of random tokens.
pub const RENOISE: &str = "renoise";

/// The name of an option that nearly all policies share; see [`PolicyChoice::apart`].
pub const APART_NAME: &str = "apart";

/// Positions that are filled in one pass do not know of each other. Where a word's position is uncertain by one or two,
/// both positions predict it, each rightly for itself, and it stands there twice. The published policies have no such
/// rule, so it is off by default.
const APART: ParameterInfo = ParameterInfo {
    // Presets take 1: values of 2 to 8 change no more (docs/benchmarks.md).
    name: APART_NAME,
    summary: "positions within which a pass commits no token twice, the end apart; 0: any",
    default: 0.0,
    min: 0.0,
    max: 64.0,
};

/// All policies, the default first.
pub const POLICIES: &[PolicyInfo] = &[
    PolicyInfo {
        name: "reference",
        summary: "LLaDA's reference schedule: a fixed number of tokens per pass",
        parameters: &[],
        exact: true,
        takes_back: false,
    },
    PolicyInfo {
        name: "dynamic",
        summary: "every token surer than t, or as many as the schedule has (SDAR, LLaDA2.0)",
        parameters: &[
            ParameterInfo {
                name: "t",
                summary: "confidence that is exceeded",
                default: 0.9,
                min: 0.0,
                max: 1.0,
            },
            APART,
        ],
        exact: false,
        takes_back: false,
    },
    PolicyInfo {
        name: "sequential",
        summary: "from left to right, as many tokens per pass as the schedule has (SDAR)",
        parameters: &[APART],
        exact: false,
        takes_back: false,
    },
    PolicyInfo {
        // The model card's quality mode; its speed mode is t=0.5, edit=0.
        name: "edit",
        summary: "tokens surer than t; written ones are replaced by surer ones (LLaDA2.1)",
        parameters: &[
            ParameterInfo {
                name: "t",
                summary: "confidence that is exceeded",
                default: 0.7,
                min: 0.0,
                max: 1.0,
            },
            ParameterInfo {
                name: "edit",
                summary: "confidence that another token exceeds to replace a written one",
                default: 0.5,
                min: 0.0,
                max: 1.0,
            },
            ParameterInfo {
                name: "post",
                summary: "most passes of a block with nothing masked",
                default: 16.0,
                min: 0.0,
                max: 1024.0,
            },
        ],
        exact: false,
        takes_back: true,
    },
    PolicyInfo {
        name: "deadline",
        summary: "tokens at least t sure, the best, and all in the last step (Nemotron)",
        parameters: &[
            ParameterInfo {
                name: "t",
                summary: "least confidence",
                default: 0.9,
                min: 0.0,
                max: 1.0,
            },
            APART,
        ],
        exact: false,
        takes_back: false,
    },
    PolicyInfo {
        name: "autoregressive",
        summary: "from left to right, each token by what stands before it (Nemotron)",
        parameters: &[],
        exact: true,
        takes_back: false,
    },
    PolicyInfo {
        // SGLang drafts 32 positions, mlx-vlm 8 to 32.
        name: "verify",
        summary: "autoregressive's tokens, several a pass, drafted and confirmed",
        parameters: &[
            ParameterInfo {
                name: "window",
                summary: "most positions of a draft",
                default: 32.0,
                min: 1.0,
                max: 256.0,
            },
            ParameterInfo {
                name: "least",
                summary: "positions of the first draft, and where drafts are wrong",
                default: 8.0,
                min: 1.0,
                max: 256.0,
            },
        ],
        exact: true,
        takes_back: false,
    },
    PolicyInfo {
        // The published generation's values.
        name: RENOISE,
        summary: "accepts the surest tokens and redraws all others at random (DiffusionGemma)",
        parameters: &[
            ParameterInfo {
                name: "bound",
                summary: "entropy of surer tokens up to which a token is accepted",
                default: 0.1,
                min: 0.0,
                max: 1e3,
            },
            ParameterInfo {
                name: "tmin",
                summary: "temperature that a canvas would end with",
                default: 0.4,
                min: 1e-3,
                max: 1e3,
            },
            ParameterInfo {
                name: "tmax",
                summary: "temperature of a canvas's first pass",
                default: 0.8,
                min: 1e-3,
                max: 1e3,
            },
            ParameterInfo {
                name: "sure",
                summary: "mean entropy below which an unchanged canvas is finished",
                default: 0.005,
                min: 0.0,
                max: 1e3,
            },
            ParameterInfo {
                name: "steps",
                summary: "most passes of a canvas",
                default: 48.0,
                min: 1.0,
                max: STEPS_MAX,
            },
        ],
        exact: true,
        takes_back: false,
    },
    PolicyInfo {
        // At 0.9, Fast-dLLM scores change by -1.0 to +2.4 points at 2.5 to 5.8 times the speed (arXiv 2505.22618, table
        // 1).
        name: "threshold",
        summary: "every token at least this confident, and always the best (Fast-dLLM)",
        parameters: &[
            ParameterInfo {
                name: "t",
                summary: "least confidence",
                default: 0.9,
                min: 0.0,
                max: 1.0,
            },
            APART,
        ],
        exact: false,
        takes_back: false,
    },
    PolicyInfo {
        name: "factor",
        summary: "the most confident n while the n-th reaches 1 - f/(n+1) (Fast-dLLM)",
        parameters: &[
            ParameterInfo {
                name: "f",
                summary: "larger commits more",
                default: 1.0,
                min: 0.0,
                max: 1e6,
            },
            APART,
        ],
        exact: false,
        takes_back: false,
    },
    PolicyInfo {
        name: "dream",
        summary: "Dream's time schedule: a step commits the share of masks given by its times",
        parameters: &[ParameterInfo {
            name: "eps",
            summary: "time at the end",
            default: 1e-3,
            min: 1e-6,
            max: 0.5,
        }],
        exact: true,
        takes_back: false,
    },
    PolicyInfo {
        name: "rnd1",
        summary: "RND1's schedule: the positions of highest entropy stay masked longest",
        parameters: &[],
        exact: true,
        takes_back: false,
    },
    PolicyInfo {
        name: "margin",
        summary: "every token whose probability margin over the next is large, and always the best",
        parameters: &[
            ParameterInfo {
                name: "m",
                summary: "least margin",
                default: 0.8,
                min: 0.0,
                max: 1.0,
            },
            APART,
        ],
        exact: false,
        takes_back: false,
    },
    PolicyInfo {
        // Streaming-dLLM takes an alpha of 0.3 to 0.6, by task.
        name: "decay",
        summary: "a threshold that falls as the block fills (Streaming-dLLM)",
        parameters: &[
            ParameterInfo {
                name: "t",
                summary: "least confidence in an empty block",
                default: 0.9,
                min: 0.0,
                max: 1.0,
            },
            ParameterInfo {
                name: "alpha",
                summary: "share by which the threshold falls until the block is full",
                default: 0.3,
                min: 0.0,
                max: 1.0,
            },
            APART,
        ],
        exact: false,
        takes_back: false,
    },
    PolicyInfo {
        // dInfer's documentation has 0.62 for `low`, its code 0.4 by default.
        name: "hierarchical",
        summary: "every token at least this confident, and the best of each run of masks (dInfer)",
        parameters: &[
            ParameterInfo {
                name: "high",
                summary: "least confidence",
                default: 0.92,
                min: 0.0,
                max: 1.0,
            },
            ParameterInfo {
                name: "low",
                summary: "least confidence of a run's best",
                default: 0.62,
                min: 0.0,
                max: 1.0,
            },
            APART,
        ],
        exact: false,
        takes_back: false,
    },
    PolicyInfo {
        name: "local",
        summary: "a threshold, and a lower one near certain tokens (LocalLeap)",
        parameters: &[
            ParameterInfo {
                name: "t",
                summary: "least confidence",
                default: 0.9,
                min: 0.0,
                max: 1.0,
            },
            ParameterInfo {
                name: "relaxed",
                summary: "least confidence near certain tokens",
                default: 0.75,
                min: 0.0,
                max: 1.0,
            },
            ParameterInfo {
                name: "radius",
                summary: "distance in positions that counts as near",
                default: 4.0,
                min: 0.0,
                max: 1024.0,
            },
            APART,
        ],
        exact: false,
        takes_back: false,
    },
    PolicyInfo {
        // Published values of gamma go from 0.001 to 0.35; quantized weights need other ones than plain weights.
        name: "entropy",
        summary: "the most certain positions while their entropies fit a budget (EB-Sampler)",
        parameters: &[
            ParameterInfo {
                name: "gamma",
                summary: "entropy that a pass may spend",
                default: 0.1,
                min: 0.0,
                max: 1e3,
            },
            APART,
        ],
        exact: false,
        takes_back: false,
    },
    PolicyInfo {
        // The paper's values for LLaDA on HumanEval; on other tasks it takes 0.6 to 0.7 and 0.01 to 0.015.
        name: "klass",
        summary: "every token this confident whose distribution is stable (KLASS)",
        parameters: &[
            ParameterInfo {
                name: "t",
                summary: "least confidence",
                default: 0.9,
                min: 0.0,
                max: 1.0,
            },
            ParameterInfo {
                name: "eps",
                summary: "greatest KL divergence between consecutive passes",
                default: 0.01,
                min: 0.0,
                max: 1e3,
            },
            ParameterInfo {
                name: "n",
                summary: "passes for which the divergence must be small",
                default: 2.0,
                min: 1.0,
                max: 64.0,
            },
            APART,
        ],
        exact: false,
        takes_back: false,
    },
    PolicyInfo {
        // Decay, power and weight as published (arXiv 2510.06133).
        name: "credit",
        summary: "a threshold, with a bonus for tokens favoured in earlier passes (CreditDecoding)",
        parameters: &[
            ParameterInfo {
                name: "t",
                summary: "least confidence",
                default: 0.9,
                min: 0.0,
                max: 1.0,
            },
            ParameterInfo {
                name: "decay",
                summary: "share of a token's credit kept from pass to pass",
                default: 0.8,
                min: 0.0,
                max: 1.0,
            },
            ParameterInfo {
                name: "power",
                summary: "exponent of the top token's probability in its new credit",
                default: 0.2,
                min: 0.0,
                max: 10.0,
            },
            ParameterInfo {
                name: "weight",
                summary: "weight of the credit relative to the logit",
                default: 0.7,
                min: 0.0,
                max: 10.0,
            },
            APART,
        ],
        exact: false,
        takes_back: false,
    },
    PolicyInfo {
        // WINO drafts from 0.6 to 0.8 by task, commits at most 20 tokens or 70 % of the masks, and takes back below
        // 0.9.
        name: "revoke",
        summary: "commits many tokens and revokes those that a verification rejects (WINO)",
        parameters: &[
            ParameterInfo {
                name: "t",
                summary: "least confidence",
                default: 0.6,
                min: 0.0,
                max: 1.0,
            },
            ParameterInfo {
                name: "keep",
                summary: "least confidence at verification",
                default: 0.9,
                min: 0.0,
                max: 1.0,
            },
            ParameterInfo {
                name: "share",
                summary: "of the masks that a pass may commit",
                default: 0.7,
                min: 0.0,
                max: 1.0,
            },
            ParameterInfo {
                name: "most",
                summary: "tokens that a pass may commit",
                default: 20.0,
                min: 1.0,
                max: 1e6,
            },
        ],
        exact: false,
        takes_back: true,
    },
];

/// A policy of the registry with a value for each of its parameters.
#[derive(Clone, Copy)]
pub struct PolicyChoice {
    info: &'static PolicyInfo,
    values: [f64; MAX_PARAMETERS],
}

/// The most parameters that a policy of the registry has.
const MAX_PARAMETERS: usize = 5;

impl PolicyChoice {
    /// Looks `name` up and checks `parameters`; those not given take their defaults.
    ///
    /// # Errors
    /// The unknown policy or parameter, or the value out of range.
    pub fn new<'a>(
        name: &str,
        parameters: impl IntoIterator<Item = (&'a str, f64)>,
    ) -> Result<Self, PolicyError> {
        let info = POLICIES
            .iter()
            .find(|policy| policy.name == name)
            .ok_or_else(|| PolicyError::UnknownPolicy(name.to_owned()))?;
        let mut values = [0.0; MAX_PARAMETERS];
        for (value, parameter) in values.iter_mut().zip(info.parameters) {
            *value = parameter.default;
        }
        for (key, value) in parameters {
            let index = info
                .parameters
                .iter()
                .position(|parameter| parameter.name == key)
                .ok_or_else(|| PolicyError::UnknownParameter {
                    policy: info.name,
                    key: key.to_owned(),
                })?;
            let parameter = &info.parameters[index];
            // Written so that NaN fails.
            if !(parameter.min..=parameter.max).contains(&value) {
                return Err(PolicyError::OutOfRange {
                    policy: info.name,
                    parameter: parameter.name,
                    min: parameter.min,
                    max: parameter.max,
                    value,
                });
            }
            values[index] = value;
        }
        Ok(Self { info, values })
    }

    /// The policy's row in the registry.
    #[must_use]
    pub fn info(&self) -> &'static PolicyInfo {
        self.info
    }

    /// The policy's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.info.name
    }

    /// Names and values of the parameters, in the registry's order, without an option that is off.
    pub fn parameters(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        self.info
            .parameters
            .iter()
            .zip(self.values)
            .map(|(parameter, value)| (parameter.name, value))
            .filter(|&(name, value)| name != APART_NAME || value > 0.0)
    }

    /// Within how many positions a pass commits no token twice; 0: equal tokens may be adjacent.
    #[must_use]
    pub fn apart(&self) -> usize {
        let mut parameters = self.parameters();
        let apart = parameters.find(|&(name, _)| name == APART_NAME);
        apart.map_or(0, |(_, positions)| positions as usize)
    }

    /// Value of the parameter at `index` in the registry's order.
    #[must_use]
    pub fn value(&self, index: usize) -> f64 {
        self.values[index]
    }
}

impl Default for PolicyChoice {
    fn default() -> Self {
        Self {
            info: &POLICIES[0],
            // The reference has no parameters, so nothing but zeros is its values.
            values: [0.0; MAX_PARAMETERS],
        }
    }
}

impl FromStr for PolicyChoice {
    type Err = PolicyError;

    /// Reads `name` or `name:key=value,key=value`.
    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut parameters = Vec::new();
        // An empty part is skipped, so `name:` and a comma at the end are accepted.
        for part in rest.split(',').filter(|part| !part.is_empty()) {
            let malformed = || PolicyError::Malformed(part.to_owned());
            let (key, value) = part.split_once('=').ok_or_else(malformed)?;
            parameters.push((key.trim(), value.trim().parse().map_err(|_| malformed())?));
        }
        Self::new(name.trim(), parameters)
    }
}

impl fmt::Display for PolicyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        for (index, (name, value)) in self.parameters().enumerate() {
            let separator = if index == 0 { ':' } else { ',' };
            write!(f, "{separator}{name}={value}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for PolicyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl PartialEq for PolicyChoice {
    fn eq(&self, other: &Self) -> bool {
        // Values beyond the policy's parameters are zero in both, so comparing whole arrays is right.
        self.info.name == other.info.name && self.values == other.values
    }
}

/// Why a policy cannot be parsed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PolicyError {
    /// No policy of the registry has this name.
    #[error("unknown policy '{0}'; known are {known}", known = known_policies())]
    UnknownPolicy(String),
    /// The policy has no parameter of that name.
    #[error("policy '{policy}' has no parameter '{key}'")]
    UnknownParameter {
        /// Name of the policy.
        policy: &'static str,
        /// The parameter that was given.
        key: String,
    },
    /// The value lies outside the parameter's range, or is NaN.
    #[error("{parameter} of policy '{policy}' must be between {min} and {max}, not {value}")]
    OutOfRange {
        /// Name of the policy.
        policy: &'static str,
        /// Name of the parameter.
        parameter: &'static str,
        /// Least allowed value.
        min: f64,
        /// Greatest allowed value.
        max: f64,
        /// The value that was given.
        value: f64,
    },
    /// A part is not of the form `key=number`.
    #[error("'{0}' is not of the form key=number")]
    Malformed(String),
}

fn known_policies() -> String {
    let names: Vec<_> = POLICIES.iter().map(|policy| policy.name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for text in [
            "reference",
            "threshold:t=0.9",
            "factor:f=0.5",
            "threshold:t=0.8,apart=2",
        ] {
            assert_eq!(text.parse::<PolicyChoice>().unwrap().to_string(), text);
        }
        let default: PolicyChoice = "threshold".parse().unwrap();
        assert_eq!(default.to_string(), "threshold:t=0.9");
    }

    #[test]
    fn an_option_is_told_only_where_it_is_on() {
        let apart = |text: &str| text.parse::<PolicyChoice>().unwrap().apart();
        assert_eq!(apart("factor:f=1,apart=3"), 3);
        assert_eq!((apart("factor"), apart("reference")), (0, 0));
        let off: PolicyChoice = "factor:f=1,apart=0".parse().unwrap();
        assert_eq!(off.to_string(), "factor:f=1");
        // What takes tokens back has a rule of its own for them, and the references have none.
        for policy in POLICIES {
            let has = (policy.parameters.iter()).any(|parameter| parameter.name == APART_NAME);
            assert_eq!(has, !policy.exact && !policy.takes_back, "{}", policy.name);
        }
    }

    #[test]
    fn wrong_text_is_explained() {
        let error = |text: &str| text.parse::<PolicyChoice>().unwrap_err().to_string();
        assert_eq!(
            error("fast"),
            "unknown policy 'fast'; known are reference, dynamic, sequential, edit, deadline, autoregressive, verify, renoise, threshold, factor, dream, rnd1, margin, decay, hierarchical, local, \
             entropy, klass, credit, revoke"
        );
        assert_eq!(error("factor:t=1"), "policy 'factor' has no parameter 't'");
        assert_eq!(
            error("threshold:t=NaN"),
            "t of policy 'threshold' must be between 0 and 1, not NaN"
        );
        assert_eq!(
            error("threshold:0.5"),
            "'0.5' is not of the form key=number"
        );
    }

    #[test]
    fn the_registry_fits_its_own_bounds() {
        for policy in POLICIES {
            assert!(policy.parameters.len() <= MAX_PARAMETERS);
            for parameter in policy.parameters {
                assert!((parameter.min..=parameter.max).contains(&parameter.default));
            }
        }
    }
}
