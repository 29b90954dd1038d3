//! The registry of policies: how a pass chooses which positions to commit.
//!
//! The engine implements them; command line, configuration, wire and screen read this
//! table, so a name or a default stands in one place.

use std::{fmt, str::FromStr};

/// A policy's name, parameters and what it costs.
#[derive(Debug)]
pub struct PolicyInfo {
    /// As written on the command line and on the wire.
    pub name: &'static str,
    /// One line for help texts.
    pub summary: &'static str,
    /// Parameters, in the order in which they are shown.
    pub parameters: &'static [ParameterInfo],
    /// The committed tokens are those of the reference sampler.
    pub exact: bool,
}

/// One number that a policy takes.
#[derive(Debug)]
pub struct ParameterInfo {
    /// The key in `name:key=value`.
    pub name: &'static str,
    /// One line for help texts.
    pub summary: &'static str,
    /// Value when not given.
    pub default: f64,
    /// Least allowed value.
    pub min: f64,
    /// Greatest allowed value.
    pub max: f64,
}

/// All policies, the default first.
pub const POLICIES: &[PolicyInfo] = &[
    PolicyInfo {
        name: "reference",
        summary: "the schedule of the LLaDA reference: a fixed number of tokens each pass",
        parameters: &[],
        exact: true,
    },
    PolicyInfo {
        name: "threshold",
        summary: "every token at least this confident, and always the best (Fast-dLLM)",
        parameters: &[ParameterInfo {
            name: "t",
            summary: "least confidence",
            default: 0.9,
            min: 0.0,
            max: 1.0,
        }],
        exact: false,
    },
    PolicyInfo {
        name: "factor",
        summary: "the most confident n while the n-th reaches 1 - f/(n+1) (Fast-dLLM)",
        parameters: &[ParameterInfo {
            name: "f",
            summary: "larger commits more",
            default: 1.0,
            min: 0.0,
            max: 1e6,
        }],
        exact: false,
    },
    PolicyInfo {
        name: "dream",
        summary: "the schedule of Dream: of the masks what its time passes",
        parameters: &[ParameterInfo {
            name: "eps",
            summary: "time at the end",
            default: 1e-3,
            min: 1e-6,
            max: 0.5,
        }],
        exact: true,
    },
];

/// A policy of the registry with a value for each of its parameters.
#[derive(Clone, Copy)]
pub struct PolicyChoice {
    info: &'static PolicyInfo,
    values: [f64; MAX_PARAMETERS],
}

/// No policy of the registry has more parameters.
const MAX_PARAMETERS: usize = 4;

impl PolicyChoice {
    /// Looks `name` up and checks `parameters`; those not given take their defaults.
    ///
    /// # Errors
    /// Names the unknown policy or parameter, or the value out of range.
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

    /// The registry's row.
    #[must_use]
    pub fn info(&self) -> &'static PolicyInfo {
        self.info
    }

    /// The policy's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.info.name
    }

    /// Names and values of the parameters, in the registry's order.
    pub fn parameters(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        self.info
            .parameters
            .iter()
            .zip(self.values)
            .map(|(parameter, value)| (parameter.name, value))
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
        self.info.name == other.info.name && self.values == other.values
    }
}

/// Why a policy was not understood.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PolicyError {
    /// No such row in the registry.
    #[error("unknown policy '{0}'; known are {known}", known = known_policies())]
    UnknownPolicy(String),
    /// The policy has no parameter of that name.
    #[error("policy '{policy}' has no parameter '{key}'")]
    UnknownParameter {
        /// Name of the policy.
        policy: &'static str,
        /// What was given.
        key: String,
    },
    /// The value lies outside the parameter's range, or is not a number.
    #[error("{parameter} of policy '{policy}' must lie between {min} and {max}, not {value}")]
    OutOfRange {
        /// Name of the policy.
        policy: &'static str,
        /// Name of the parameter.
        parameter: &'static str,
        /// Least allowed value.
        min: f64,
        /// Greatest allowed value.
        max: f64,
        /// What was given.
        value: f64,
    },
    /// Not of the form `key=number`.
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
        for text in ["reference", "threshold:t=0.9", "factor:f=0.5"] {
            assert_eq!(text.parse::<PolicyChoice>().unwrap().to_string(), text);
        }
        let default: PolicyChoice = "threshold".parse().unwrap();
        assert_eq!(default.to_string(), "threshold:t=0.9");
    }

    #[test]
    fn wrong_text_is_explained() {
        let error = |text: &str| text.parse::<PolicyChoice>().unwrap_err().to_string();
        assert_eq!(
            error("fast"),
            "unknown policy 'fast'; known are reference, threshold, factor, dream"
        );
        assert_eq!(error("factor:t=1"), "policy 'factor' has no parameter 't'");
        assert_eq!(
            error("threshold:t=NaN"),
            "t of policy 'threshold' must lie between 0 and 1, not NaN"
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
