//! Findings of `doctor`, which both programs make and print.

use serde_json::Value;
use sluice_proto::v1::{ExamineResponse, Finding, FindingState};

/// All is well.
#[must_use]
pub fn ok(subject: &str, found: impl Into<String>) -> Finding {
    finding(FindingState::Ok, subject, found.into(), None)
}

/// It works, but not as well as it could.
#[must_use]
pub fn warning(subject: &str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
    let advice = Some(advice.into());
    finding(FindingState::Warning, subject, found.into(), advice)
}

/// Something does not work.
#[must_use]
pub fn problem(subject: &str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
    let advice = Some(advice.into());
    finding(FindingState::Problem, subject, found.into(), advice)
}

/// Advice that is empty is none.
fn finding(state: FindingState, subject: &str, found: String, advice: Option<String>) -> Finding {
    let advice = advice.filter(|advice| !advice.is_empty());
    Finding {
        state: state.into(),
        subject: subject.to_owned(),
        found,
        advice,
    }
}

/// Whether something does not work.
#[must_use]
pub fn has_problem(findings: &[Finding]) -> bool {
    count(findings, FindingState::Problem) > 0
}

fn count(findings: &[Finding], state: FindingState) -> usize {
    let of_state = findings.iter().filter(|finding| finding.state() == state);
    of_state.count()
}

/// A line for each finding, what to do about it below, and how many there are of which kind at the end.
#[must_use]
pub fn lines(findings: &[Finding]) -> Vec<String> {
    let mut lines = Vec::new();
    for finding in findings {
        let Finding { subject, found, .. } = finding;
        let mut parts = found.lines();
        let first = parts.next().unwrap_or_default();
        lines.push(format!(
            "{:<8} {subject:<17} {first}",
            finding.state().to_string()
        ));
        let hint = finding
            .advice
            .iter()
            .map(|advice| format!("hint: {advice}"));
        let rest = parts.map(str::to_owned).chain(hint);
        lines.extend(rest.map(|line| format!("{:26} {line}", "")));
    }
    let counted = |state, noun: &str| match count(findings, state) {
        0 => format!("no {noun}s"),
        1 => format!("1 {noun}"),
        more => format!("{more} {noun}s"),
    };
    lines.push(format!(
        "{}, {}",
        counted(FindingState::Problem, "problem"),
        counted(FindingState::Warning, "warning")
    ));
    lines
}

/// The findings as one JSON object.
#[must_use]
pub fn json(findings: Vec<Finding>) -> Value {
    serde_json::to_value(ExamineResponse { findings }).expect("findings have text for keys")
}

/// Reads what [`json`] made.
///
/// # Errors
/// When the text is something else.
pub fn of_json(text: &str) -> serde_json::Result<Vec<Finding>> {
    serde_json::from_str(text).map(|ExamineResponse { findings }| findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Vec<Finding> {
        vec![
            ok("memory", "1.00 GiB free"),
            warning("GPU", "no GPU is used:\nit is hidden", "unset it"),
            problem("models", "/m cannot be written to", "give it away"),
        ]
    }

    #[test]
    fn each_finding_has_a_line_and_advice_stands_below() {
        assert_eq!(
            lines(&findings()),
            [
                "ok       memory            1.00 GiB free",
                "warning  GPU               no GPU is used:",
                "                           it is hidden",
                "                           hint: unset it",
                "problem  models            /m cannot be written to",
                "                           hint: give it away",
                "1 problem, 1 warning",
            ]
        );
        assert_eq!(lines(&findings()[..1])[1], "no problems, no warnings");
    }

    #[test]
    fn only_a_problem_is_one() {
        assert!(has_problem(&findings()));
        assert!(!has_problem(&findings()[..2]));
    }

    #[test]
    fn what_one_program_writes_the_other_reads() {
        let text = json(findings()).to_string();
        assert!(
            text.starts_with(r#"{"findings":[{"state":"ok","subject":"memory""#),
            "{text}"
        );
        assert_eq!(of_json(&text).unwrap(), findings());
        assert!(of_json("no JSON").is_err());
    }
}
