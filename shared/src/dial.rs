//! The dial: one word for how much of the reference is given up for speed, in place of a policy, a cache, a window and a
//! growth that must be known and suit each other. What a word stands for is said here alone.

use std::{fmt, str::FromStr};

use crate::{
    decoding::{BRANCHES_DEFAULT, Decoding, Speculation},
    policy::PolicyChoice,
};

/// How much is given up for speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dial {
    /// Nothing: what the reference does.
    #[default]
    Exact,
    /// What costs little.
    Quality,
    /// In between.
    Balanced,
    /// What most answers bear.
    Fast,
    /// [`Dial::Balanced`] where computing takes the time; where passes wait for streamed weights, several orders in whole ones.
    Auto,
}

/// A row of the table: what a position of the dial stands for, as people would write it.
#[derive(Debug)]
pub struct DialInfo {
    /// Which.
    pub dial: Dial,
    /// As people type it.
    pub name: &'static str,
    /// One line for help texts.
    pub summary: &'static str,
    /// As after `--policy`.
    pub policy: &'static str,
    /// As after `--cache`.
    pub caching: &'static str,
    /// As after `--window`; unset: none.
    pub window: Option<u32>,
    /// As after `--grow`.
    pub growth: &'static str,
}

/// All positions, the default first. Where rows cost nothing, `exact` guesses passes ahead besides; the row of [`Dial::Auto`] is
/// what it stands for where they do ([`Dial::resolve`]).
pub const DIALS: &[DialInfo] = &[
    DialInfo {
        dial: Dial::Exact,
        name: "exact",
        summary: "the reference's schedule, and whole passes",
        policy: "reference",
        caching: "none",
        window: None,
        growth: "fixed",
    },
    DialInfo {
        dial: Dial::Quality,
        name: "quality",
        summary: "the sure tokens of a pass at once; what stands before a block is kept",
        policy: "threshold:t=0.95,apart=1",
        caching: "prefix:behind=64",
        window: Some(64),
        growth: "fixed",
    },
    DialInfo {
        dial: Dial::Balanced,
        name: "balanced",
        summary: "the likely tokens of a pass at once; all around a block is kept",
        policy: "threshold:t=0.8,apart=1",
        caching: "dual:behind=32",
        window: Some(64),
        growth: "fixed",
    },
    DialInfo {
        dial: Dial::Fast,
        name: "fast",
        summary: "as balanced, with more tokens a pass",
        policy: "factor:f=1,apart=1",
        caching: "dual:behind=32",
        window: Some(64),
        growth: "fixed",
    },
    DialInfo {
        dial: Dial::Auto,
        name: "auto",
        summary: "balanced; where passes wait for streamed weights, several orders in whole ones",
        policy: "threshold:t=0.8,apart=1",
        caching: "dual:behind=32",
        window: Some(64),
        growth: "fixed",
    },
];

/// What a position of the dial comes to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bundle {
    /// Which positions a pass commits.
    pub policy: PolicyChoice,
    /// What passes compute.
    pub decoding: Decoding,
}

impl Dial {
    /// Its row of the table.
    #[must_use]
    pub fn info(self) -> &'static DialInfo {
        let row = DIALS.iter().find(|row| row.dial == self);
        row.expect("the table has a row for each")
    }

    /// The name that people type.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// What it comes to. `is_bus_bound` tells whether passes with such a bundle wait for streamed weights longer than they
    /// compute; only `exact` and `auto` ask. Then rows cost nothing: leaving them out saves nothing, and further canvases may be
    /// tried beside the first: with `exact` guesses of the passes ahead, which give the same tokens in fewer passes, with `auto`
    /// other orders, which give more.
    #[must_use]
    pub fn resolve(self, is_bus_bound: impl Fn(&Bundle) -> bool) -> Bundle {
        let bundle = self.info().bundle();
        let whole = Bundle {
            decoding: Decoding::default(),
            ..bundle
        };
        let speculating = |bundle, speculation| Bundle {
            decoding: Decoding {
                speculation,
                ..Decoding::default()
            },
            ..bundle
        };
        let drafted = speculating(bundle, DRAFT);
        let explored = speculating(Self::Quality.info().bundle(), EXPLORE);
        match self {
            Self::Exact if is_bus_bound(&drafted) => drafted,
            Self::Auto if is_bus_bound(&explored) => explored,
            Self::Auto if is_bus_bound(&whole) => whole,
            _ => bundle,
        }
    }
}

/// Where rows cost nothing. More canvases bring little more.
const DRAFT: Speculation = Speculation::Draft {
    branches: BRANCHES_DEFAULT,
};
/// The same for who gives something up: 3.6 tokens a pass of the demonstration model, where guessing ahead comes to 2.6.
const EXPLORE: Speculation = Speculation::Explore { branches: 3 };

impl DialInfo {
    fn bundle(&self) -> Bundle {
        Bundle {
            policy: self.policy.parse().expect("a test parses every row"),
            decoding: Decoding {
                caching: (self.caching.parse()).expect("a test parses every row"),
                window: self.window,
                growth: self.growth.parse().expect("a test parses every row"),
                speculation: Speculation::None,
            },
        }
    }
}

/// No such position of the dial.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown dial '{0}'; known are {known}", known = known_dials())]
pub struct UnknownDial(String);

fn known_dials() -> String {
    let names: Vec<_> = DIALS.iter().map(|row| row.name).collect();
    names.join(", ")
}

impl FromStr for Dial {
    type Err = UnknownDial;

    fn from_str(text: &str) -> Result<Self, UnknownDial> {
        let row = DIALS.iter().find(|row| row.name == text);
        row.map(|row| row.dial)
            .ok_or_else(|| UnknownDial(text.to_owned()))
    }
}

impl fmt::Display for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_one_of_the_dial_and_parses() {
        let all = [
            Dial::Exact,
            Dial::Quality,
            Dial::Balanced,
            Dial::Fast,
            Dial::Auto,
        ];
        assert_eq!(DIALS.len(), all.len());
        for dial in all {
            assert_eq!(dial.to_string().parse(), Ok(dial));
            let info = dial.info();
            let Bundle { policy, decoding } = dial.resolve(|_| false);
            // As shown in help texts, so nothing is left to defaults.
            assert_eq!(policy.to_string(), info.policy);
            assert_eq!(decoding.caching.to_string(), info.caching);
            assert_eq!(decoding.growth.to_string(), info.growth);
            assert_eq!(decoding.window, info.window);
        }
    }

    #[test]
    fn exact_is_what_the_reference_does() {
        let exact = Dial::default();
        let Bundle { policy, decoding } = exact.resolve(|_| false);
        assert!(policy == PolicyChoice::default() && decoding == Decoding::default());
        let Bundle { policy, decoding } = exact.resolve(|_| true);
        assert!(policy == PolicyChoice::default() && decoding.is_exact());
        assert_eq!(decoding.speculation, DRAFT);
        for approximate in [Dial::Quality, Dial::Balanced, Dial::Fast] {
            let bundle = approximate.resolve(|_| true);
            assert!(!bundle.policy.info().exact && !bundle.decoding.is_exact());
        }
    }

    #[test]
    fn auto_takes_whole_passes_where_rows_cost_nothing() {
        let balanced = Dial::Balanced.resolve(|_| true);
        assert_eq!(Dial::Auto.resolve(|_| false), balanced);
        let bound = Dial::Auto.resolve(|_| true);
        assert_eq!(bound.policy, Dial::Quality.resolve(|_| true).policy);
        assert_eq!(bound.decoding.speculation, EXPLORE);
        assert_eq!(bound.decoding.caching, Decoding::default().caching);
        // Where rows of one canvas cost nothing, but those of several do.
        let one = |bundle: &Bundle| bundle.decoding.speculation == Speculation::None;
        assert_eq!(Dial::Auto.resolve(one).decoding, Decoding::default());
        assert_eq!(Dial::Exact.resolve(one).decoding, Decoding::default());
    }

    #[test]
    fn an_unknown_position_is_told_with_the_known_ones() {
        let error = "slow".parse::<Dial>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown dial 'slow'; known are exact, quality, balanced, fast, auto"
        );
    }
}
