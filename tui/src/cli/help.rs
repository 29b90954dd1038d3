//! The parts of the help that teach by example, and the policies from their registry.

use sluice_shared::policy::POLICIES;

pub(super) const PROGRAM: &str = "\
Without a command, `sluice` opens the dashboard.

Examples:
  sluice generate \"Tell me a story.\"
  sluice generate --json --seed 1 \"Tell me a story.\" | tail -n 1
  sluice edit \"The cat sat on the mat.\" --replace \"cat sat\"
  sluice chat
  sluice status

Exit codes: 0 done, 1 failed, 64 wrong usage, 69 the daemon can't be reached.
NO_COLOR, set and not empty, turns colour off.";

pub(super) const SCORE: &str = "\
Examples:
  sluice score \"What is the sky?\" \"Blue.\" --draws 64 --seed 1
  sluice score --tokens 1,2 --answer-tokens 3,4 --json";

pub(super) fn generate() -> String {
    format!(
        "\
Examples:
  sluice generate \"Tell me a story.\"
  sluice generate --system \"Answer in one sentence.\" \"What is a sluice?\"
  sluice generate --raw --length 64 --block 16 \"Once upon a time\"
  sluice generate --policy threshold:t=0.8 --temperature 0.7 --seed 1 \"Tell me a story.\"
  sluice generate --pin \"0:The end\" \"How do stories begin?\"
  sluice generate --tokens 1,2,3 --length 32 --json
  fortune | sluice generate -

{}

On a terminal the canvas resolves in place: '{mask}' is masked, dim italics a guess, underlined
pinned; what a pass just committed is bold: red below 0.3 confidence, yellow below 0.7, else
green. Elsewhere only the final text is printed, or the ids where the model has no tokenizer.",
        policies(),
        mask = crate::canvas::MASK_MARK,
    )
}

pub(super) fn edit() -> String {
    format!(
        "\
Examples:
  sluice edit \"The cat sat on the mat.\" --replace \"cat sat\"
  sluice edit \"The cat sat on the mat.\" --span 4..7 --tokens 3
  sluice edit - --replace \"TODO\" --prompt \"Write a haiku.\" < draft.txt

{}",
        policies()
    )
}

/// The registry as help text, so that a new policy needs no new words here.
pub(super) fn policies() -> String {
    let mut help = String::from("Policies (--policy NAME, or NAME:key=value,…):");
    for policy in POLICIES {
        let exact = if policy.exact { "; exact" } else { "" };
        help += &format!("\n  {:<12} {}{exact}", policy.name, policy.summary);
        for parameter in policy.parameters {
            help += &format!(
                "\n    {:<10} {}, {} to {} [default: {}]",
                parameter.name, parameter.summary, parameter.min, parameter.max, parameter.default
            );
        }
    }
    help
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn help_lists_every_policy_of_the_registry() {
        let mut command = Cli::command();
        let generate = command.find_subcommand_mut("generate").expect("exists");
        let help = generate.render_long_help().to_string();
        for policy in POLICIES {
            assert!(help.contains(policy.summary), "{help}");
        }
    }
}
