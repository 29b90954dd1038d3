//! The parts of the help that teach by example, and the policies from their registry.

use sluice_shared::{
    level::Level,
    names,
    policy::{APART_NAME, POLICIES, ParameterInfo, PolicyInfo},
    preset::{PRESETS, Preset, PresetInfo},
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
  sluice plan --shape llada-8b --level moderate --budget 4GiB
  sluice level moderate
  sluice fidelity stories.txt --level all
  sluice report
  sluice calibrate stories.txt
  sluice bench --preset exact,balanced,fast

Exit codes: 0 success, 1 failure, 64 wrong usage, 69 the daemon is unreachable, 130 interrupted by Ctrl-C. With --json,
a failure is one object on the last line of standard error: error, hint, reason (the daemon's, such as QUEUE_FULL) and
exit_code; standard output has only results. Their keys are the fields of the schema's messages; unknown values are
null.
A non-empty NO_COLOR turns colour off.

The dashboard reads $XDG_CONFIG_HOME/sluice/client.toml (else ~/.config/sluice/client.toml): theme = \"dark\",
glyphs = \"ascii\", mouse = false, and styles of roles such as warning = \"yellow bold\" below [roles]. It saves its state
between runs in $XDG_STATE_HOME/sluice/dashboard.json (else ~/.local/state/sluice/dashboard.json).";

pub(super) const DOCTOR: &str = "\
A running daemon examines itself: versions, configuration, GPU, memory, folders, disk, and which role you have. If none runs,
`sluiced doctor` does, as a daemon of your user would find them. Reading from the disk for its rate takes up to a third of a
second. What systemd says of sluice.service and sluice.socket is shown where it has them.

The exit code is 1 if there is a problem; warnings are none. With --json: findings, each with state (ok, warning, problem),
subject, found and advice.";

pub(super) const EMBED: &str = "\
Examples:
  sluice embed \"How many legs has a spider?\" \"Spiders have eight legs.\" \"It rains.\"
  sluice embed --model all-MiniLM-L6-v2 - < lines.txt > vectors.jsonl

Without a terminal each line is a text's vector, a JSON list. With --json the answer is one object.";

pub(super) const MEMORY: &str = "\
Examples:
  sluice memory add ~/notes
  sluice memory search \"when does the pool open?\"
  sluice generate --memory \"When does the pool open?\"

Nothing is remembered and nothing goes into a prompt unless somebody asks for it: with `sluice memory add`, /remember and
--remember of `sluice chat`, and --memory of `generate`, `chat` and `run`.";

pub(super) const MEMORY_ADD: &str = "\
Examples:
  sluice memory add ~/notes README.md
  sluice memory add --collection papers --readers admin ~/papers
  echo \"The pool opens at 8.\" | sluice memory add - --note Pool

A file is named by its absolute path, and takes the place of an earlier one of that name; what is the same stays as it is.
Of folders, hidden files and folders, symbolic links and binary files (which have a NUL in their first 8 KiB; PDFs are none)
are left out, and so is what .gitignore, .ignore, .git/info/exclude and Git's global exclusions name, in a repository or not;
--no-ignore takes that. What is named on the command line is taken in any case.

Ctrl-C cancels it: files that were done stay, and the same command goes on with the rest. With --json each line is a picture
of the operation: its kind, state, progress, notices and more. The last one has the result, \"import\".";

pub(super) const MEMORY_SEARCH: &str = "\
Examples:
  sluice memory search \"when does the pool open?\"
  sluice memory search pool --collection notes --kind note --since 7d -n 3
  sluice memory search \"swimming\" --ranking vectors --verbose

Scores can be compared within one answer: BM25 with --ranking words, a cosine with vectors, and with hybrid what the ranks by
both have in common.";

pub(super) const MEMORY_EXPORT: &str = "\
Examples:
  sluice memory export > memory.jsonl
  sluice memory export notes --output notes.jsonl

Each line is an object for a source: \"source\", and \"pieces\" in their order. The file has a temporary name until it is
complete.";

pub(super) const SCORE: &str = "\
Examples:
  sluice score \"What is the sky?\" \"Blue.\" --draws 64 --seed 1
  sluice score --tokens 1,2 --answer-tokens 3,4 --json";

pub(super) const LOAD: &str = "\
Examples:
  sluice load GSAI-ML/LLaDA-8B-Instruct --default
  sluice load ~/models/LLaDA-8B-Instruct --level moderate --budget 4GiB

Ctrl-C cancels the load. With --json each line is a picture of the operation: its kind, state, progress,
notices and more. The last one has the result, \"load\".";

pub(super) const REPLAY: &str = "\
Examples:
  sluice generate --json \"Tell me a story.\" > story.jsonl
  sluice replay story.jsonl

On a terminal the dashboard plays the run; no daemon is needed. Otherwise the text is printed, up to the last
committed token if the run was cut off. A line that is not an event is reported with its number; unknown events and
fields are skipped.";

pub(super) const PULL: &str = "\
Examples:
  sluice pull GSAI-ML/LLaDA-8B-Instruct
  sluice pull bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M

The daemon downloads only the files that are needed, never a pickle, into its models folder (sluiced --models).
It first checks the size against the free disk space. It verifies every file with the hub's
hash, and lists the model when the download is complete. Run the same command again to resume a download that was
interrupted, cancelled or killed.

Ctrl-C cancels the download. If this program ends in another way, the download continues; `sluice list` shows it.

A private or gated model needs a token: this program's HF_TOKEN is used for this download only and sent only to the
hub; the daemon finds its own token as the hub's programs do. HF_ENDPOINT and HF_HUB_OFFLINE are read by the daemon.

With --json each line is a picture of the operation: its kind, state, progress, notices and more. The last one has
the result, \"pull\".";

pub(super) const REMOVE: &str = "\
Examples:
  sluice rm GSAI-ML/LLaDA-8B-Instruct
  sluice rm --converted llada-8b

A model given by its path is only removed from the list; its files are yours and stay.
Only downloads of `sluice pull` are deleted, complete or partial. Models in the cache of the hub's own
programs, and models that were copied into the folder, stay; the demonstration model is built into sluiced.";

pub(super) const STOP: &str = "\
Examples:
  sluice stop
  sluice stop smollm2
  sluice stop --daemon

A load in progress is cancelled, and its end is waited for. The next `sluice run` or `sluice load` loads a model again. A daemon started by
`sluice run` runs until `sluice stop --daemon`, and unloads the model after 15 minutes without requests.";

pub(super) const INSPECT: &str = "\
Examples:
  sluice inspect GSAI-ML/LLaDA-8B-Instruct
  sluice inspect ~/models/LLaDA-8B-Instruct --json
  sluice inspect llada-8b.sluice

The exit code is 1 if the checkpoint cannot be loaded; the output says why.";

pub(super) const COMPRESS: &str = "\
Examples:
  sluice compress ~/models/LLaDA-8B-Instruct --output llada-8b.sluice
  sluice compress GSAI-ML/LLaDA-8B-Instruct --output llada-8b.sluice --bits 4.5
  sluice compress GSAI-ML/LLaDA-8B-Instruct --output llada-8b.sluice --only '*.ff_*' --min-size 4MiB

The file holds the whole model: weights, configuration, tokenizer. The daemon writes it as its own
user, while it serves requests, with half of the cores; one job runs at a time. The file has a temporary
name until it is complete, and an existing file is never replaced.

Ctrl-C cancels the job; the finished part is kept, and the same command resumes it. With --detach, or if
this program ends in another way, the job continues: `sluice jobs` shows it. If no daemon runs, `sluiced compress`
does the same as your user.

With --json each line is a picture of the operation: its kind, state, progress, notices and more. The last one has
the result, \"compress\".";

pub(super) const PRUNE: &str = "\
Examples:
  sluice prune ~/models/LLaDA-8B-Instruct --output llada-small.sluice --heads 0.1 --channels 0.1
  sluice prune llada-8b.sluice --output llada-small.sluice --channels 0.2

An attention head is a KV head here, with all query heads that share it; of feed-forward channels each
layer loses the same share. Their rows and columns are gone: from the file, from memory and from the matmuls. What is
left is compressed losslessly and is a model like any other; `sluice inspect` says what was removed.

Answers get worse; above 0.3 of the heads or 0.2 of the channels there is a warning. Scores by weights alone are the
weakest way to choose: with a calibration of the model, --score obs and --compensate are better.

The file has a temporary name until it is complete, and an existing file is never replaced. Ctrl-C cancels the job; the
same command resumes it. If no daemon runs, `sluiced prune` does the same as your user.

With --json each line is a picture of the operation: its kind, state, progress, notices and more. The last one has
the result, \"prune\".";

pub(super) const DECOMPRESS: &str = "\
Example:
  sluice decompress llada-8b.sluice --output LLaDA-8B-Instruct

Restores the original files byte for byte, unless weights were trellis-quantized. Every
checksum is verified. Ctrl-C cancels the job and removes its output. If no daemon runs,
`sluiced decompress` does the same as your user.

With --json each line is a picture of the operation: its kind, state, progress, notices and more. The last one has
the result, \"decompress\".";

pub(super) const VERIFY: &str = "\
Example:
  sluice verify llada-8b.sluice

Every checksum is verified. Damage is reported by tensor and tile, and the exit code is then 1.
Ctrl-C cancels the job. If no daemon runs, `sluiced verify` does the same as your user.

With --json each line is a picture of the operation: its kind, state, progress, notices and more. The last one has
the result, \"verify\".";

pub(super) const BUDGET: &str = "\
Examples:
  sluice budget 4GiB
  sluice budget default

Weights that don't fit the budget are streamed through a few staging buffers in every pass. A smaller
budget gives the same text, only slower. If a budget is too small, the error names the minimum.

The predicted effect is shown first, the measured one last. Ctrl-C stops watching, not the switch.
With --json each line is a picture of the operation: its kind, state, progress, notices and more. The last one has
the result, \"apply\".";

pub(super) const SWITCH: &str = "\
Restores the level, the budget and the other settings that the daemon was started with or the loaded model
was loaded with. `--to source` restores the checkpoint's own weights: level off, or standard if they
don't fit the budget.

The predicted effect is shown first, the measured one last. Ctrl-C stops watching, not the switch.
With --json each line is a picture of the operation: its kind, state, progress, notices and more. The last one has
the result, \"apply\".";

pub(super) fn plan() -> String {
    format!(
        "\
Examples:
  sluice plan --level moderate
  sluice plan --shape llada-8b --level mild --budget 4GiB --canvas 512
  sluice plan ~/models/LLaDA-8B-Instruct --budget 6GiB --json
  sluice plan --all --budget 8GiB

Without a model or --shape the plan is for the loaded model. It is for the daemon's
device. If no daemon runs, `sluiced plan` makes it for the first usable GPU, else for
the CPU; its --device and --compute-dtype choose another.

{}

With --json: peak_bytes, pass_ms, streamed_bytes_per_pass, layers and the other names of the schema's
Plan; unknown values are null.",
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

Running requests continue: weights change between passes. The predicted effect is shown first, the
measured one last. Ctrl-C stops watching, not the switch.
With --json each line is a picture of the operation: its kind, state, progress, notices and more. The last one has
the result, \"apply\".",
        levels()
    )
}

pub(super) const OPTIMIZE: &str = "\
Examples:
  sluice optimize --budget 4GiB
  sluice optimize notes.txt letters.txt --budget 2.5GiB
  sluice optimize --budget 6GiB --max-pass-ms 400 -o model-6gib.sluice
  sluice optimize --uncalibrated --no-apply --detach

Finds the most faithful weights that fit a budget: quantizes all matrices to one rate by the model's calibration,
measures what each group of them loses by it, chooses a rate or the checkpoint's own weights for each, quantizes again, and measures the result on
texts that nothing was chosen by. Then it puts the result in force, between the passes of what runs: level optimized.

The result, a mix, stays in the daemon's folder of converted weights. `sluice level optimized` puts the latest in force
again, with --mix another one; `sluice restore --to source` goes back to the checkpoint's own weights.

The first run takes longest: another budget uses the same measurements. Use text like that which the model will work on.
Other requests are served in between. Ctrl-C cancels it; the next run takes up what was done.
With --json each line is a picture of an operation: this one, whose last picture has the result \"optimize\", then the change
of level and, with --output, the compression.";

pub(super) const QUANTIZE: &str = "\
Examples:
  sluice quantize --bits 3.5
  sluice quantize --bits 4 -o model-4.sluice --no-apply
  sluice quantize notes.txt --bits 3 --uncalibrated

Quantizes all matrices of the loaded model to one rate, by its calibration, measures what that loses, and puts the result
in force, between the passes of what runs: level optimized. In as many bytes `sluice optimize` loses less, since it
measures which matrices need more bits than others; this takes less time.

The result, a mix, stays in the daemon's folder of converted weights, as one of `sluice optimize` does. With --output the
model is written to a file as well. Ctrl-C cancels it; the next run takes up what was done.";

pub(super) const CALIBRATE: &str = "\
Examples:
  sluice calibrate
  sluice calibrate notes.txt letters.txt -o notes.calibration.safetensors
  sluice calibrate notes.txt --diagonal --positions 8192 --detach

Runs the loaded model over texts and measures the inputs of each matrix: means, mean squares and second-moment
matrices, apart for masked and clean positions. Quantizing and pruning need them to know which errors matter.

A masked diffusion model continues the texts, and the canvases of its own passes make two thirds of the positions; one
third is text with a random share of it masked. An autoregressive model reads the text. Lines are cut into pieces of
256 tokens. Use text like that which the model will work on, and measure fidelity on another.

Statistics that don't fit in --memory together take several sweeps over the same passes. Other requests are served in
between. Choose a lossless level first: with converted weights it measures what those compute.

Ctrl-C cancels it, and nothing is left. The daemon continues a job whose client ends in another way; `sluice jobs` lists
it. With --json each line is a picture of the operation. The last one has the result, \"calibrate\".";

pub(super) fn report() -> String {
    format!(
        "\
Examples:
  sluice report
  sluice report GSAI-ML/LLaDA-8B-Instruct --text notes.txt
  sluice report --levels standard,moderate,aggressive --json

Each level is put in force in turn. Text of a fixed length is generated, greedily and by the reference's schedule, and
the level is compared with the checkpoint's own weights as `sluice fidelity` does it.

  bits       bits per weight, of all weights, wherever they are
  weights    weights that stay in the device's memory
  peak       most device memory held while text is generated
  a pass     median time of a pass
  tokens/s   tokens per second of the whole answer
  mean KL    how far the level's probabilities are from the checkpoint's, in nats per token; 0 is no difference
  same top   how often both have the same most probable token
  bound      upper bound of a token's negative log-likelihood in nats; of an autoregressive model, the likelihood

A level that cannot be put in force says why. Level optimized is among them if the model has a mix. KL and bound depend
on the text: use one in the model's language that it was not trained on. Other requests are served meanwhile, and make
the times longer. Afterwards the previous level is in force again, also after an error or Ctrl-C.

{}

With --json: level, bits_per_weight, device_weight_bytes, peak_device_bytes, pass_ms, tokens_per_second, equal_to (the level
measured whose weights have the same numbers, so that its fidelity is repeated), fidelity (as of `sluice fidelity`) and
problem (why figures are null).",
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

Some tokens of each line are masked, and the model predicts them: once at the level,
once with the checkpoint's own weights. The same seed masks the same tokens. An autoregressive
model predicts the next token instead, with its KV cache in the daemon's --kv-cache-format,
and in f32 with the checkpoint's own weights; its bounds are the likelihoods themselves.

  mean KL        how far the level's probabilities are from the checkpoint's; 0 is no difference
  same top       how often both have the same most probable token
  source, level  upper bounds of a token's negative log-likelihood, with the checkpoint's own
                 weights and with the level's
  peak, a pass   planned peak of device memory and time of a pass

KL and bounds are in nats per token. They depend on the text: use one in the model's language that it
was not trained on. Lines are truncated to 256 tokens. Other requests wait meanwhile. Ctrl-C stops the
measurement; the previous level is in force again afterwards.

{}

With --json: level, equal_to, peak_bytes, pass_ms, and result with samples, rows, mean_kl_nats, top_agreement (0 to 1),
source_bound_nats, level_bound_nats and seed. A level with the same weights as a measured one names that one in
equal_to, and its result is null.",
        levels()
    )
}

fn levels() -> String {
    let mut help = String::from("Levels:");
    for level in Level::ALL {
        help += &format!("\n  {:<10}  {}", level.name(), level.summary());
        if let Some(alias) = level.alias() {
            help += &format!("; or {alias}");
        }
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
  sluice generate --preset balanced \"Tell me a story.\"
  sluice generate --pin \"0:The end\" \"How do stories begin?\"
  sluice generate --pin \"any:lighthouse\" \"Tell me a story.\"
  sluice generate --tokens 1,2,3 --length 32 --json
  fortune | sluice generate -

{}

On a terminal the canvas is drawn in place: '{mask}' is masked, dim italics is a guess, underlined is
pinned; tokens that the last pass committed are bold: red below 0.3 confidence, yellow below 0.7, else
green. Otherwise only final text is printed; without a tokenizer, the token
ids at the end.",
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
  sluice bench --preset exact,balanced,fast --length 256
  sluice bench prompts.txt --concurrent 4 --repeat 3 --preset fast
  sluice bench --tokens 1,2,3 --policy threshold:t=0.7 --json

Each prompt has the same seed in every row. Tokens are counted up to the end of the
text; time is measured by the client.

  tokens/s      of all requests together
  passes        of all requests; then tokens per pass
  ms, least     median and shortest time of a pass
  waited        share of the passes' time spent waiting for streamed weights
  rows, lm head positions of a request that a pass computed, and those that the LM head computed
  peak          peak of device memory
  first         median time to the first committed token
  same          share of tokens equal to those of the first row

Below each row are the phases of its passes and the largest of them:

  wait          for streamed weights
  decompress    decompressing and dequantizing weights
  matmul        the layers' matmuls
  attention     attention, with RoPE and the KV cache
  lm head       the LM head's matmul and the choice of tokens
  other         the rest

Unknown values are '-'. Times and rows of single passes are those of the observed passes; a slow
client misses some.

{}

With --json: preset, policy, kv_cache, suffix_window, canvas_growth, speculation, exact, model, level, block_length,
requests, tokens, ms, tokens_per_second, passes, tokens_per_pass, pass_ms_median, pass_ms_min,
waited_share, phases_ms_per_pass (wait, decompress, matmul, attention, lm_head, other; and copy, which runs
in parallel), bottleneck (bound, share, words), rows_per_pass, lm_head_rows_per_pass, peak_device_bytes,
first_text_ms, same_tokens.",
        decoding()
    )
}

pub(super) fn chat() -> String {
    format!(
        "\
On a terminal, lines can be edited (arrows, Ctrl-A, Ctrl-E, Ctrl-R, Tab for commands) and are saved in
$XDG_STATE_HOME/sluice/chat_history (else ~/.local/state/sluice/chat_history), except with --private; a line that
begins with a space is not saved. A line that ends with \\ continues on the next one, and so does a text between \"\"\" and \"\"\".
Ctrl-C stops an answer; twice at the prompt, or Ctrl-D, it ends the conversation. /help lists the commands: /system,
/model, /set, /remember, /memory, /sources, /retry, /save, /reset, /quit. In a pipe, each line is a turn, and only the answers are printed.

{}",
        decoding()
    )
}

pub(super) fn run() -> String {
    let mut names = String::new();
    for (short, model) in names::by_model() {
        names += &format!("\n  {:<26} {}", short.join(", "), model.full);
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

With a PROMPT, a pipe that sends nothing within 2 seconds is ignored; with `-` after the words it is waited for. In a loop that
reads from a file, use `< /dev/null` to leave the rest of the file to the loop.

If no daemon answers, `sluiced` is started in the background with the same socket; concurrent starts share one daemon.
It runs until `sluice stop --daemon`, unloads the model after 15 minutes without requests (unless configured
otherwise), and logs to $XDG_STATE_HOME/sluice/sluiced.log (else ~/.local/state/sluice/sluiced.log), up to 4 MiB.
A missing model is downloaded: its size is shown first, Ctrl-C cancels, and the same command resumes the download.
It is loaded in place of the current model. Then PROMPT is answered, or on a terminal a conversation begins, as with
`sluice chat`: see `sluice chat --help`.

Short names, which other commands accept as well:
  demo                       the small demonstration model inside sluiced{names}

With --json each line is an object, as with `sluice generate`."
    )
}

/// Help about decoding: presets, and the settings that they consist of.
pub(super) fn decoding() -> String {
    format!("{}\n\n{}\n\n{WAYS}", presets(), policies())
}

/// The table of presets as help text.
fn presets() -> String {
    let mut help = String::from("Presets (--preset NAME), each with the flags it stands for:");
    for row in PRESETS {
        help += &format!("\n  {:<12} {}", row.name, row.summary);
        if row.preset != Preset::Auto {
            help += &format!("\n    {}", flags(row));
        }
    }
    help
}

fn flags(row: &PresetInfo) -> String {
    let window = row
        .suffix_window
        .map(|masks| format!(" --suffix-window {masks}"));
    let growth = row.canvas_growth;
    let growth = (growth != "fixed").then(|| format!(" --canvas-growth {growth}"));
    format!(
        "--policy {} --kv-cache {}{}{}",
        row.policy,
        row.kv_cache,
        window.unwrap_or_default(),
        growth.unwrap_or_default()
    )
}

const WAYS: &str = "\
KV cache reuse between passes (--kv-cache MODE, or MODE:key=value,…):
  none         full recompute in every pass; exact
  prefix       caches positions before the current block (Fast-dLLM)
  dual         caches positions before and after the current block (Fast-dLLM)
  vicinity     caches all but the positions near the current block (dInfer)
    recompute-around   positions on each side of the block that vicinity recomputes [default: 16]
    refresh            passes in a block between full recomputes [default: when the next block begins]
    recompute-before   positions before a block that are recomputed when it begins [default: all]
    keep               share of the keys outside the block that its later passes attend to [default: 1]

Suffix window (--suffix-window N): masked positions further than N after the current block are left out.

Canvas growth (--canvas-growth NAME):
  fixed        full length from the first pass on; exact
  append       ends with the current block; the next block is appended when it is finished
  insert       short at first; grows until the model predicts an end, and where it is unsure (DAEDAL)

Speculation (--speculate NAME, or NAME:branches=N, default 3):
  none         one canvas; exact
  explore      N more canvases, each with one more position filled; the most certain one continues (LoPA)
  draft        drafts N passes ahead and verifies them in one pass (SSD); exact";

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
        for row in PRESETS {
            assert!(help.contains(row.summary), "{help}");
        }
        assert!(help.contains(&flags(Preset::Fast.info())), "{help}");
        assert_eq!(help.matches("\n    apart ").count(), 1, "{help}");
        assert!(
            help.contains(
                "and with each but reference, edit, autoregressive, verify, renoise, dream, rnd1, revoke:"
            ),
            "{help}"
        );
    }

    #[test]
    fn help_lists_every_level() {
        for help in [plan(), level(), fidelity()] {
            for level in Level::ALL {
                assert!(help.contains(level.summary()), "{help}");
            }
        }
    }
}
