//! How a model is pruned, as people ask for it: names and limits.

use std::{fmt, str::FromStr};

/// What a unit's score is: a KV head's or an MLP channel's. Those with the lowest go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PruneScore {
    /// The root of the sum of the squares of its weights.
    #[default]
    L2,
    /// The sum of the magnitudes of its weights.
    Magnitude,
    /// Magnitudes times the roots of the inputs' mean squares (Wanda, arXiv 2306.11695).
    Wanda,
    /// Squares times the inputs' variances: what it adds beyond a constant (FLAP, arXiv 2312.11983).
    Flap,
    /// What its removal costs after the others make up for it, given those that are gone (Optimal Brain Surgeon).
    Obs,
}

impl PruneScore {
    /// All scores, the default first.
    pub const ALL: [Self; 5] = [
        Self::L2,
        Self::Magnitude,
        Self::Wanda,
        Self::Flap,
        Self::Obs,
    ];

    /// The name that people type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::L2 => "l2",
            Self::Magnitude => "magnitude",
            Self::Wanda => "wanda",
            Self::Flap => "flap",
            Self::Obs => "obs",
        }
    }

    /// Whether it needs the statistics of a calibration, and not only weights.
    #[must_use]
    pub fn needs_calibration(self) -> bool {
        !matches!(self, Self::L2 | Self::Magnitude)
    }
}

impl fmt::Display for PruneScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PruneScore {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|score| score.name() == text);
        found.ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("unknown score '{text}'; known are {known}")
        })
    }
}

/// The largest share of KV heads that is removed without a warning.
pub const HEAD_SHARE_USUAL: f64 = 0.3;
/// The largest share of MLP channels that is removed without a warning.
pub const CHANNEL_SHARE_USUAL: f64 = 0.2;

/// A share to remove, checked.
///
/// # Errors
/// When it is not at least 0 and below 1.
pub fn check_share(share: f64) -> Result<f64, String> {
    // NaN lies in no range.
    match (0.0..1.0).contains(&share) {
        true => Ok(share),
        false => Err(format!("must be at least 0 and below 1, not {share}")),
    }
}

/// A share to remove, parsed and checked.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse();
    check_share(share.map_err(|_| format!("{text:?} is not a number, such as 0.2"))?)
}

/// What to tell whoever removes so much of a model.
#[must_use]
pub fn warnings(head_share: f64, channel_share: f64) -> Vec<String> {
    let warning = |what: &str, share: f64, usual: f64| {
        (share > usual).then(|| {
            format!(
                "removing {:.0} % of the {what} is more than the usual limit of {:.0} %: expect worse answers, and measure them with \
                 `sluice fidelity`",
                share * 100.0,
                usual * 100.0
            )
        })
    };
    let heads = warning("attention heads", head_share, HEAD_SHARE_USUAL);
    let channels = warning("feed-forward channels", channel_share, CHANNEL_SHARE_USUAL);
    heads.into_iter().chain(channels).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_leave_something() {
        for (text, share) in [("0", 0.0), ("0.2", 0.2), ("0.999", 0.999)] {
            assert_eq!(parse_share(text), Ok(share));
        }
        for (text, problem) in [
            ("1", "must be at least 0 and below 1, not 1"),
            ("-0.1", "must be at least 0 and below 1, not -0.1"),
            ("nan", "must be at least 0 and below 1, not NaN"),
            ("inf", "must be at least 0 and below 1, not inf"),
            ("20%", "\"20%\" is not a number, such as 0.2"),
        ] {
            assert_eq!(parse_share(text), Err(problem.to_owned()));
        }
    }

    #[test]
    fn more_than_usual_is_told() {
        assert!(warnings(HEAD_SHARE_USUAL, CHANNEL_SHARE_USUAL).is_empty());
        let told = warnings(0.4, 0.5);
        assert!(told[0].starts_with("removing 40 % of the attention heads"));
        assert!(told[1].starts_with("removing 50 % of the feed-forward channels"));
    }

    #[test]
    fn scores_have_the_names_that_people_type() {
        for score in PruneScore::ALL {
            assert_eq!(score.to_string().parse(), Ok(score));
        }
        assert!("taylor".parse::<PruneScore>().unwrap_err().contains("l2"));
    }
}
