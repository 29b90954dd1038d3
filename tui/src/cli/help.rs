//! The parts of the help that teach by example, and the policies from their registry.

use sluice_shared::{
    dial::{DIALS, Dial, DialInfo},
    level::Level,
    names::SHORT_NAMES,
    policy::{APART_NAME, POLICIES, ParameterInfo, PolicyInfo},
};

pub(super) const PROGRAM: &str = "\
Without a command, `sluice` opens the dashboard.

Examples:
  sluice run demo
  sluice run smollm2 \"Why is the sky blue?\"
  sluice generate \"Tell me a story.\"
  sluice generate --json --seed 1 \"Tell me a story.\" | tail -n 1
  sluice edit \"One sunny day, Mia took her red kite to the park.\" --replace \"red kite\"
  sluice chat
  sluice status
  sluice pull GSAI-ML/LLaDA-8B-Instruct
  sluice compress GSAI-ML/LLaDA-8B-Instruct --output llada-8b.sluice
  sluice plan --preset llada-8b --level moderate --budget 4GiB
  sluice level moderate
  sluice fidelity stories.txt --level all
  sluice bench --dial exact,balanced,fast

Exit codes: 0 done, 1 failed, 64 wrong usage, 69 the daemon can't be reached, 130 Ctrl-C ended it. With --json,
what fails is one object on the last line of standard error: error, hint, reason (the daemon's, such as QUEUE_FULL) and
exit_code; standard output has results alone. Keys of results are the fields of the schema's messages; what is unknown
is null.
NO_COLOR, set and not empty, turns colour off.

The dashboard reads $XDG_CONFIG_HOME/sluice/client.toml (else ~/.config/sluice/client.toml): theme = \"dark\",
glyphs = \"ascii\", mouse = false, and styles of roles such as warning = \"yellow bold\" below [roles]. What it keeps between
runs is in $XDG_STATE_HOME/sluice/dashboard.json (else ~/.local/state/sluice/dashboard.json).";

pub(super) const SCORE: &str = "\
Examples:
  sluice score \"What is the sky?\" \"Blue.\" --draws 64 --seed 1
  sluice score --tokens 1,2 --answer-tokens 3,4 --json";

pub(super) const LOAD: &str = "\
Examples:
  sluice load GSAI-ML/LLaDA-8B-Instruct --default
  sluice load ~/models/LLaDA-8B-Instruct --level moderate --budget 4GiB

Ctrl-C cancels the load. With --json each line is an object whose \"event\" is plan, conversion, progress, notice or
model.";

pub(super) const REPLAY: &str = "\
Examples:
  sluice generate --json \"Tell me a story.\" > story.jsonl
  sluice replay story.jsonl

On a terminal the dashboard plays the run; no daemon is needed. Elsewhere the text is printed, or as much of it
as was certain where the run was cut off. A line that is no event is told with its number; events and fields that
are not known are skipped.";

pub(super) const PULL: &str = "\
Examples:
  sluice pull GSAI-ML/LLaDA-8B-Instruct
  sluice pull bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M

The daemon downloads, into its folder of models (sluiced --models): what is needed and nothing else,
never a pickle. The size is known first, and whether the disk has room. Every file is checked by the
hash that the hub has of it, and the model appears when all of it is there. A download that was cut, cancelled or killed
goes on where it was when the same command is given again.

Ctrl-C cancels the download; it goes on when this program dies otherwise, and `sluice list` shows it.

A private or gated model needs a token: HF_TOKEN here goes along with this one download, and only to the
hub; the daemon's own is read as the hub's programs do. HF_ENDPOINT and HF_HUB_OFFLINE are the daemon's.

With --json each line is an object whose \"event\" is plan, progress, notice or model.";

pub(super) const REMOVE: &str = "\
Examples:
  sluice rm GSAI-ML/LLaDA-8B-Instruct
  sluice rm --converted llada-8b

A model that was used by its path is only listed no more; its files are yours and stay.
Only what `sluice pull` brought is deleted, or what there is of it. A model in the cache of the hub's own
programs, or that somebody put beside the others, stays; the demonstration model is a part of sluiced.";

pub(super) const STOP: &str = "\
Examples:
  sluice stop
  sluice stop smollm2
  sluice stop --daemon

The load of one that is on its way is cancelled. The next `sluice run`, or `sluice load`, brings a model back. A daemon that
`sluice run` started goes on until `sluice stop --daemon`, and holds no model after 15 minutes without requests.";

pub(super) const INSPECT: &str = "\
Examples:
  sluice inspect GSAI-ML/LLaDA-8B-Instruct
  sluice inspect ~/models/LLaDA-8B-Instruct --json
  sluice inspect llada-8b.sluice

The exit code is 1 where the checkpoint can't be loaded; the reason is told.";

pub(super) const COMPRESS: &str = "\
Examples:
  sluice compress ~/models/LLaDA-8B-Instruct --output llada-8b.sluice
  sluice compress GSAI-ML/LLaDA-8B-Instruct --output llada-8b.sluice --bits 4.5

One file is the model: weights, configuration, tokenizer. The daemon makes it, as the user that it runs
as, beside what it generates, with half of the cores; one job runs at a time. The file has another name
until it is whole, and one that exists is never replaced.

Ctrl-C cancels the job; what is done is kept, and the same command goes on with it. With --detach, or when
this program dies otherwise, the job goes on: `sluice jobs` shows it. Where no daemon runs, `sluiced compress`
does the same as you.

With --json each line is an object whose \"event\" is job, progress or result.";

pub(super) const DECOMPRESS: &str = "\
Example:
  sluice decompress llada-8b.sluice --output LLaDA-8B-Instruct

The very files that the coded one was made of, byte by byte, unless numbers were coded to a rate. Every
checksum is compared on the way. Ctrl-C cancels the job, and nothing is left of it. Where no daemon runs,
`sluiced decompress` does the same as you.

With --json each line is an object whose \"event\" is job, progress or result.";

pub(super) const VERIFY: &str = "\
Example:
  sluice verify llada-8b.sluice

Every byte is compared with its checksums; damage is told with tensor and tile, and then the exit code is 1.
Ctrl-C cancels the job. Where no daemon runs, `sluiced verify` does the same as you.

With --json each line is an object whose \"event\" is job, progress or result.";

pub(super) const BUDGET: &str = "\
Examples:
  sluice budget 4GiB
  sluice budget default

What the budget has no room for is streamed through a few slots in every pass: any budget from the
least that works gives the same text, only slower. Where one is too small, the error names the least.

The predicted effect comes first, the measured one last. Ctrl-C stops the watching, not the switch.
With --json each line is an object whose \"event\" is planned, conversion, progress, notice or applied.";

pub(super) const SWITCH: &str = "\
Goes back to the level, the budget and all else that the daemon was started with, or the model that is loaded
was loaded with. `--to source` goes to the checkpoint's own weights: level off, or standard where the
budget has no room for all of them.

The predicted effect comes first, the measured one last. Ctrl-C stops the watching, not the switch.
With --json each line is an object whose \"event\" is planned, conversion, progress, notice or applied.";

pub(super) fn plan() -> String {
    format!(
        "\
Examples:
  sluice plan --level moderate
  sluice plan --preset llada-8b --level mild --budget 4GiB --canvas 512
  sluice plan ~/models/LLaDA-8B-Instruct --budget 6GiB --json

Without a model or --preset the plan is for the loaded model. It is for the device that the daemon
computes on. Where no daemon runs, `sluiced plan` makes it, for the first card that can be used, else
the CPU; its --device and --compute choose another.

{}

With --json: peak_bytes, pass_ms, streamed_bytes_per_pass, layers and the other names of the schema's
Plan; what is not known is null.",
        levels()
    )
}

pub(super) fn level() -> String {
    format!(
        "\
Examples:
  sluice level moderate
  sluice level auto --budget 4GiB

{}

Requests that run go on: weights change between their passes. The predicted effect comes first, the
measured one last. Ctrl-C stops the watching, not the switch. With --json each line is an object whose
\"event\" is planned, conversion, progress, notice or applied.",
        levels()
    )
}

pub(super) fn fidelity() -> String {
    format!(
        "\
Examples:
  sluice fidelity daemon/model/sample.txt --level all
  sluice fidelity --level moderate --level aggressive --seed 1 < stories.txt
  sluice fidelity notes.txt --samples 16 --json

Some tokens of each line are masked, and the model says what may stand there: once at the level,
once with the checkpoint's own weights. The same seed masks the same tokens. A model that writes from
left to right is asked for what follows instead, with keys and values kept as `--kv` of the daemon
says, and as f32 beside the checkpoint's own weights; its bounds are the likelihoods themselves.

  mean KL        how far the level's probabilities are from the checkpoint's; 0 is no difference
  same top       how often both have the same most probable token
  source, level  upper bounds of a token's negative log-likelihood, with the checkpoint's own
                 weights and with the level's
  peak, a pass   most memory of the device and the time of a pass, as planned

KL and bounds are in nats a token. They depend on the text: take one that the model should know but
was not trained on. Lines are cut to 256 tokens. Other requests wait meanwhile. Ctrl-C stops the
measurement; what was in force is again afterwards.

{}

With --json: level, equal_to, samples, rows, mean_kl_nats, top_agreement (0 to 1), source_bound_nats,
level_bound_nats, seed, ms, request_id, peak_bytes, pass_ms. A level whose weights have the numbers of
one that was measured names that in equal_to, and its figures are null.",
        levels()
    )
}

fn levels() -> String {
    let mut help = String::from("Levels:");
    for level in Level::ALL {
        help += &format!("\n  {:<10}  {}", level.name(), level.about());
    }
    help
}

pub(super) fn generate() -> String {
    format!(
        "\
Examples:
  sluice generate \"Tell me a story.\"
  sluice generate --system \"Answer in one sentence.\" \"What is a sluice?\"
  sluice generate --raw --length 64 --block 16 \"Once upon a time\"
  sluice generate --policy threshold:t=0.8 --temperature 0.7 --seed 1 \"Tell me a story.\"
  sluice generate --dial balanced \"Tell me a story.\"
  sluice generate --pin \"0:The end\" \"How do stories begin?\"
  sluice generate --tokens 1,2,3 --length 32 --json
  fortune | sluice generate -

{}

On a terminal the canvas resolves in place: '{mask}' is masked, dim italics a guess, underlined
pinned; what a pass just committed is bold: red below 0.3 confidence, yellow below 0.7, else
green. Elsewhere the text alone is printed, as far as it is final; where the model has no
tokenizer, the ids at the end.",
        decoding(),
        mask = crate::canvas::MASK_MARK,
    )
}

pub(super) fn edit() -> String {
    format!(
        "\
Examples:
  sluice edit \"One sunny day, Mia took her red kite to the park.\" --replace \"red kite\"
  sluice edit \"One sunny day, Mia took her red kite to the park.\" --span 4..9 --tokens 1
  sluice edit - --replace \"TODO\" --prompt \"Write a haiku.\" < draft.txt

{}",
        decoding()
    )
}

pub(super) fn bench() -> String {
    format!(
        "\
Examples:
  sluice bench
  sluice bench --dial exact,balanced,fast --length 256
  sluice bench prompts.txt --concurrent 4 --repeat 3 --dial fast
  sluice bench --tokens 1,2,3 --policy threshold:t=0.7 --json

Each prompt is answered with the same seed in every row. What counts are tokens before the end of the
text, and time on this side of the socket.

  tokens/s      of all requests together
  passes        of all requests; then tokens a pass
  ms, least     median and shortest time of a pass
  waited        share of the passes' time that they waited for streamed weights
  rows, head    positions that a pass computed of a request, and those that the head read
  peak          most memory of the device
  first         median time until the first token of an answer was certain
  same          tokens that are those of the first row

Below each row stands where the time of its passes went, and what takes the most of it:

  wait          for streamed weights
  decode        decoding coded weights
  multiply      products with the layers' matrices
  attention     attention, with rotary embedding and what is kept of keys and values
  head          products with the head, and the choice of tokens
  other         the rest

What is not known is '-'. Times and rows of single passes are those of the passes that were seen, of
which a slow reader misses some.

{}

With --json: dial, policy, cache, window, growth, speculation, exact, model, level, block_length,
requests, tokens, ms, tokens_per_second, passes, tokens_per_pass, pass_ms_median, pass_ms_min,
waited_share, phases_ms_per_pass (wait, decode, multiply, attention, head, other; and copy, which runs
beside them), bottleneck (bound, share, words), rows_per_pass, head_rows_per_pass, peak_device_bytes,
first_text_ms, same_tokens.",
        decoding()
    )
}

pub(super) fn chat() -> String {
    format!(
        "\
On a terminal, lines are edited (arrows, Ctrl-A, Ctrl-E, Ctrl-R, Tab for commands) and remembered in
$XDG_STATE_HOME/sluice/chat_history (else ~/.local/state/sluice/chat_history), unless --private says not to; a line that
begins with a blank is not. A line that ends with \\ goes on in the next one, and so does a text between \"\"\" and \"\"\".
Ctrl-C stops an answer; twice at the prompt, or Ctrl-D, it ends the conversation. /help lists the commands: /system,
/model, /set, /retry, /save, /reset, /quit. In a pipe, each line is a turn, and the answers alone come out.

{}",
        decoding()
    )
}

pub(super) fn run() -> String {
    let mut names = String::new();
    for row in SHORT_NAMES {
        names += &format!("\n  {:<14} {}", row.short, row.full);
    }
    format!(
        "\
Examples:
  sluice run demo
  sluice run smollm2 \"Why is the sky blue?\"
  sluice run llada --level moderate --budget 8GiB
  sluice run ~/models/LLaDA-8B-Instruct.Q4_K_M.gguf
  git diff | sluice run qwen2.5 --system \"Write a commit message for this diff.\"
  cat notes.txt | sluice run smollm2 \"Summarise this:\"

A pipe beside a PROMPT is not waited for if it brings nothing within 2 seconds; with `-` behind the words it is. In a loop that
reads from a file, `< /dev/null` leaves the rest of the file to the loop.

Where no daemon answers, `sluiced` is started in the background, with the same socket; two at once come to share one.
It goes on until `sluice stop --daemon`, holds no model after 15 minutes without requests (its configuration may say
otherwise), and logs to $XDG_STATE_HOME/sluice/sluiced.log (else ~/.local/state/sluice/sluiced.log), up to 4 MiB.
A model that is not here is downloaded: its size is said first, Ctrl-C stops that, and the same command goes on with it.
It is loaded in the present model's place. Then PROMPT is answered, or on a terminal a conversation begins, as with
`sluice chat`: see `sluice chat --help`.

Short names, which other commands take, too:
  demo           the small demonstration model inside sluiced{names}

With --json each line of the answer is an object, as of `sluice generate`."
    )
}

/// All ways of decoding: the dial, and what it is made of.
pub(super) fn decoding() -> String {
    format!("{}\n\n{}\n\n{WAYS}", dial(), policies())
}

/// The dial's table as help text.
fn dial() -> String {
    let mut help = String::from("The dial (--dial NAME), each with the flags that it stands for:");
    for row in DIALS {
        help += &format!("\n  {:<12} {}", row.name, row.summary);
        if row.dial != Dial::Auto {
            help += &format!("\n    {}", flags(row));
        }
    }
    help
}

fn flags(row: &DialInfo) -> String {
    let window = row.window.map(|masks| format!(" --window {masks}"));
    format!(
        "--policy {} --cache {}{} --grow {}",
        row.policy,
        row.caching,
        window.unwrap_or_default(),
        row.growth
    )
}

const WAYS: &str = "\
Caches (--cache NAME, or NAME:key=value,…), of keys and values that are kept between passes:
  none         whole passes; exact
  prefix       those before the open block (Fast-dLLM)
  dual         those before and after it (Fast-dLLM)
  vicinity     those away from it (dInfer)
    around     positions on each side that vicinity computes [default: 16]
    refresh    passes in a block after which all is computed anew [default: when the next block opens]
    behind     positions before a block that are computed anew when it opens [default: all]
    keep       share of the keys outside of the block that its later passes see [default: 1]

A window (--window N) leaves the masks out that are further behind the open block.

Growth (--grow NAME):
  fixed        as long as was asked for, from the first pass on; exact
  append       up to the open block; the next one is added when it is done
  insert       short at first; longer until the model sees an end, and where it is unsure (DAEDAL)

Speculation (--speculate NAME, or NAME:branches=N, 3 where nobody says):
  none         one order alone; exact
  explore      so many canvases more, each with one more position filled; the surest goes on (LoPA)
  draft        so many passes ahead are guessed and checked in one (SSD); exact";

/// The registry as help text, so that a new policy needs no new words here.
fn policies() -> String {
    let mut help = String::from("Policies (--policy NAME, or NAME:key=value,…):");
    for policy in POLICIES {
        let exact = if policy.exact { "; exact" } else { "" };
        help += &format!("\n  {:<12} {}{exact}", policy.name, policy.summary);
        let own = policy.parameters.iter();
        for parameter in own.filter(|parameter| parameter.name != APART_NAME) {
            help += &line(parameter);
        }
    }
    let has_no_option = |policy: &&PolicyInfo| {
        let mut names = policy.parameters.iter().map(|parameter| parameter.name);
        !names.any(|name| name == APART_NAME)
    };
    let without: Vec<&str> = (POLICIES.iter().filter(has_no_option))
        .map(|policy| policy.name)
        .collect();
    help += &format!("\n  and with each but {}:", without.join(", "));
    let mut all = POLICIES.iter().flat_map(|policy| policy.parameters);
    let option = all.find(|parameter| parameter.name == APART_NAME);
    help += &option.map(line).unwrap_or_default();
    help
}

fn line(parameter: &ParameterInfo) -> String {
    format!(
        "\n    {:<10} {}, {} to {} [default: {}]",
        parameter.name, parameter.summary, parameter.min, parameter.max, parameter.default
    )
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
        for row in DIALS {
            assert!(help.contains(row.summary), "{help}");
        }
        assert!(help.contains(&flags(Dial::Fast.info())), "{help}");
        assert_eq!(help.matches("\n    apart ").count(), 1, "{help}");
        assert!(
            help.contains("and with each but reference, dream, revoke:"),
            "{help}"
        );
    }

    #[test]
    fn help_lists_every_level() {
        for help in [plan(), level(), fidelity()] {
            for level in Level::ALL {
                assert!(help.contains(level.about()), "{help}");
            }
        }
    }
}
