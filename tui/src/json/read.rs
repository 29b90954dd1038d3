//! Parses events of a generation from the lines that [`event`](super::event) writes.
//!
//! The file may be edited or come from somebody else, so nothing in it is trusted. Unknown events and fields are skipped, so
//! that a file of a later version shows as much as this version knows.

use std::{
    fmt,
    io::{self, BufRead, Read},
    str::FromStr,
};

use serde::{Deserialize, de::DeserializeOwned};
use sluice_proto::{
    model::DecodingChoice,
    v1::{
        CanvasToken, CommitPolicy, DiffusionOptions, GenerationDone, GenerationStarted,
        generation_event::Event,
    },
};

/// Most bytes of a file: enough for more than a thousand passes over a thousand positions.
pub const BYTES_MAX: u64 = 256 << 20;
/// Most bytes of a line, so that a file without newlines is not read whole.
pub const LINE_BYTES_MAX: u64 = 8 << 20;
/// Most positions of a canvas: far beyond any model's context.
pub const POSITIONS_MAX: usize = 1 << 16;

/// Why a line could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadError {
    /// The line's number, counted from 1.
    pub line: u64,
    /// What is wrong with the line.
    pub message: String,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for ReadError {}

/// Iterator over the events of a file; an error is its last item.
#[derive(Debug)]
pub struct Events<R> {
    reader: R,
    line: u64,
    bytes: u64,
    bounds: RunBounds,
    has_ended: bool,
}

impl<R: BufRead> Events<R> {
    /// Reads events from `reader`.
    pub fn new(reader: R) -> Self {
        Self {
            reader,
            line: 0,
            bytes: 0,
            bounds: RunBounds::default(),
            has_ended: false,
        }
    }

    /// The number of the line that was read last, counted from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The next event of a known kind; `None` at the end.
    fn event(&mut self) -> Result<Option<Event>, String> {
        let mut line = Vec::new();
        loop {
            self.line += 1;
            line.clear();
            let mut limited = (&mut self.reader).take(LINE_BYTES_MAX + 1);
            let read = limited.read_until(b'\n', &mut line);
            let bytes = read.map_err(|error| unreadable(&error))? as u64;
            self.bytes += bytes;
            if bytes == 0 {
                self.line = (self.line - 1).max(1);
                return Ok(None);
            }
            if bytes > LINE_BYTES_MAX {
                return Err(format!("is longer than {} MiB", LINE_BYTES_MAX >> 20));
            }
            if self.bytes > BYTES_MAX {
                return Err(format!("more than {} MiB", BYTES_MAX >> 20));
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            match parse(&line) {
                Ok(Some(kind)) => {
                    self.bounds.count(&kind)?;
                    return Ok(Some(kind));
                }
                Ok(None) => {}
                // The last line has no newline: its writer was stopped in the middle of it. The lines before it are a run.
                Err(LineError::Torn(_)) if line.last() != Some(&b'\n') && self.line > 1 => {
                    return Ok(None);
                }
                Err(LineError::Torn(message) | LineError::Said(message)) => return Err(message),
            }
        }
    }
}

/// Bounds the memory that the events of a request take, from a file or a daemon.
#[derive(Debug, Default)]
pub struct RunBounds {
    /// Positions of blocks that are done, since the last `Queued`.
    positions: usize,
    /// Steps of inference, since the last `Queued`.
    thoughts: usize,
}

impl RunBounds {
    /// Counts one more event. Blocks that are done stay in memory, so all together may be no longer than a canvas.
    ///
    /// # Errors
    /// What exceeds [`POSITIONS_MAX`].
    pub fn count(&mut self, kind: &Event) -> Result<(), String> {
        match kind {
            Event::Queued(_) => *self = Self::default(),
            Event::Started(started) => {
                at_most("length", started.length as usize)?;
                tokens_at_most(&started.pinned)?;
            }
            Event::PassDone(pass) => tokens_at_most(&pass.tokens)?,
            Event::BlockDone(done) => {
                self.positions += done.tokens.len().max(1);
                at_most("tokens of all blocks", self.positions)?;
                tokens_at_most(&done.tokens)?;
            }
            Event::Done(done) => at_most("tokens", done.token_ids.len())?,
            Event::Thought(_) => {
                self.thoughts += 1;
                at_most("steps of inference", self.thoughts)?;
            }
            Event::Placed(placed) => {
                at_most("texts", placed.texts.len())?;
                let texts = placed.texts.iter();
                texts
                    .map(|text| &text.tokens[..])
                    .try_for_each(tokens_at_most)?;
            }
            Event::Notice(_) | Event::Loading(_) => {}
        }
        Ok(())
    }
}

fn tokens_at_most(tokens: &[CanvasToken]) -> Result<(), String> {
    at_most("tokens", tokens.len())?;
    let mut positions = tokens.iter().map(|token| token.position as usize);
    positions.try_for_each(|position| at_most("position", position))
}

impl<R: BufRead> Iterator for Events<R> {
    type Item = Result<Event, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let next = self.event();
        self.has_ended = !matches!(next, Ok(Some(_)));
        let line = self.line;
        next.map_err(|message| ReadError { line, message })
            .transpose()
    }
}

fn unreadable(error: &io::Error) -> String {
    format!("cannot be read: {error}")
}

/// Why a line could not be parsed.
enum LineError {
    /// It is not JSON, perhaps since its end is missing.
    Torn(String),
    /// It is JSON, but not an event.
    Said(String),
}

impl From<String> for LineError {
    fn from(message: String) -> Self {
        Self::Said(message)
    }
}

/// Parses one line; `None` for an unknown event.
fn parse(line: &[u8]) -> Result<Option<Event>, LineError> {
    let event = json::<EventLine>(line)?.event;
    Ok(Some(match event.as_str() {
        "queued" => Event::Queued(json(line)?),
        "started" => Event::Started(started(line)?),
        // Earlier versions wrote "pass".
        "pass_done" | "pass" => Event::PassDone(json(line)?),
        "block_done" => Event::BlockDone(json(line)?),
        "notice" => Event::Notice(json(line)?),
        "thought" => Event::Thought(json(line)?),
        "placed" => Event::Placed(json(line)?),
        "done" => Event::Done(done(line)?),
        "loading" => Event::Loading(json(line)?),
        _ => return Ok(None),
    }))
}

/// Parses `started`. Earlier versions wrote the options of masked diffusion models beside the other fields, as words.
fn started(line: &[u8]) -> Result<GenerationStarted, LineError> {
    #[derive(Deserialize)]
    struct Former {
        steps: Option<u32>,
        policy: Option<CommitPolicy>,
        dial: Option<String>,
        cache: Option<String>,
        window: Option<u32>,
        growth: Option<String>,
        speculation: Option<String>,
    }
    fn parsed<T: FromStr>(word: Option<String>) -> Option<T> {
        word?.parse().ok()
    }
    let mut started: GenerationStarted = json(line)?;
    let former: Former = json(line)?;
    // For an autoregressive model earlier versions wrote an empty preset.
    let is_former = former.policy.is_some() && former.dial.as_deref() != Some("");
    if started.diffusion.is_none() && is_former {
        let mut options = DiffusionOptions {
            steps: former.steps,
            ..Default::default()
        };
        let choice = DecodingChoice {
            preset: parsed(former.dial),
            policy: None,
            kv_cache: parsed(former.cache),
            suffix_window: former.window,
            canvas_growth: parsed(former.growth),
            speculation: parsed(former.speculation),
        };
        choice.write(&mut options);
        options.policy = former.policy;
        started.diffusion = Some(options);
    }
    Ok(started)
}

/// Parses `done`. Versions without `generated_tokens` and `filled_positions` only counted the tokens of the text, which was all
/// that they generated.
fn done(line: &[u8]) -> Result<GenerationDone, LineError> {
    #[derive(Deserialize)]
    struct Counts {
        generated_tokens: Option<u32>,
        filled_positions: Option<u32>,
    }
    let counts: Counts = json(line)?;
    let done: GenerationDone = json(line)?;
    Ok(GenerationDone {
        generated_tokens: counts.generated_tokens.unwrap_or(done.text_tokens),
        filled_positions: counts.filled_positions.unwrap_or(done.text_tokens),
        ..done
    })
}

fn json<T: DeserializeOwned>(line: &[u8]) -> Result<T, LineError> {
    serde_json::from_slice(line).map_err(|error| {
        // The parser's own line number is always 1, since it is given one line; `ReadError` has the file's.
        let column = error.column();
        let words = error.to_string();
        let words = words.split(" at line ").next().unwrap_or_default();
        let message = format!("{words}, at column {column}");
        match error.classify() {
            serde_json::error::Category::Data => LineError::Said(message),
            _ => LineError::Torn(message),
        }
    })
}

#[derive(Deserialize)]
struct EventLine {
    event: String,
}

fn at_most(what: &str, count: usize) -> Result<(), String> {
    if count > POSITIONS_MAX {
        return Err(format!("{what}: {count} is more than {POSITIONS_MAX}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::{
        CanvasGrowth, CanvasPin, DecodingPreset, FinishReason, GenerationBlock, GenerationLoading,
        GenerationNotice, GenerationPass, GenerationPlaced, GenerationQueued, KvCacheMode,
        KvCacheReuse, Level, MemoryHit, MemoryPiece, MemoryRanking, MemorySource, MemorySourceKind,
        PassPhases, PlacedText, PromptMemory, ResolvedSetting, Speculation, SpeculationKind,
        TokenIds, TokenLogprobs, TokenState, TopLogprob, UsedPiece, WeightSwitch,
        canvas_pin::Content,
    };

    use super::*;
    use crate::json;

    fn read(text: &[u8]) -> Result<Vec<Event>, ReadError> {
        Events::new(text).collect()
    }

    fn problem(text: &str) -> String {
        read(text.as_bytes()).expect_err("wrong").to_string()
    }

    #[test]
    fn no_time_is_below_zero() {
        let text = r#"{"event":"started","estimated_ms":-1.0}
            {"event":"pass","pass_ms":-5,"waited_ms":-0.5,"elapsed_ms":3,"phases":{"multiply_ms":-80,"copy_ms":2}}
            {"event":"done","ms":-1e300}"#;
        let events = read(text.as_bytes()).unwrap();
        let [
            Event::Started(started),
            Event::PassDone(pass),
            Event::Done(done),
        ] = &events[..]
        else {
            panic!("one of each: {events:?}");
        };
        assert_eq!(started.estimated_ms, Some(0.0));
        let times = (pass.pass_ms, pass.waited_ms, pass.elapsed_ms);
        assert_eq!(times, (0.0, 0.0, 3.0));
        let phases = pass.phases.as_ref().unwrap();
        assert_eq!((phases.matmul_ms, phases.copy_ms), (0.0, 2.0));
        assert_eq!(done.elapsed_ms, 0.0);
    }

    /// One of each, with every field set.
    fn every_event() -> Vec<Event> {
        let token = CanvasToken {
            position: 3,
            id: Some(7),
            piece: b"caf\xc3".to_vec(),
            confidence: Some(0.1),
            state: TokenState::Committed.into(),
            is_fresh: true,
            is_edited: false,
            logprobs: None,
        };
        let phases = PassPhases {
            attention_ms: 1.0,
            matmul_ms: 2.0,
            decompress_ms: 3.0,
            lm_head_ms: 4.0,
            other_ms: 5.0,
            copy_ms: 6.0,
        };
        vec![
            Event::Loading(GenerationLoading {
                model: "tiny".into(),
                loaded_bytes: 1,
                total_bytes: Some(2),
            }),
            Event::Queued(GenerationQueued {
                request_id: 9,
                ahead: 1,
            }),
            Event::Started(GenerationStarted {
                request_id: 9,
                prompt_tokens: 1,
                length: 8,
                block_length: 4,
                blocks: 2,
                seed: u64::MAX,
                model: "tiny".into(),
                pinned: vec![token.clone()],
                is_exact: true,
                prompt_text: b"hi".to_vec(),
                level: Level::Off.into(),
                warnings: vec!["slow".into()],
                estimated_ms: Some(1.5),
                diffusion: Some(DiffusionOptions {
                    preset: DecodingPreset::Exact.into(),
                    steps: Some(8),
                    policy: Some(CommitPolicy {
                        name: "threshold".into(),
                        parameters: [("t".to_owned(), 0.75)].into(),
                    }),
                    kv_cache: Some(KvCacheReuse {
                        mode: KvCacheMode::None.into(),
                        ..Default::default()
                    }),
                    suffix_window: Some(4),
                    canvas_growth: CanvasGrowth::Fixed.into(),
                    speculation: Some(Speculation {
                        kind: SpeculationKind::None.into(),
                        branches: None,
                    }),
                    ..Default::default()
                }),
                settings: vec![ResolvedSetting {
                    name: "temperature".into(),
                    value: "0.7".into(),
                    origin: "built-in".into(),
                }],
                is_seed_drawn: true,
                memory: Some(PromptMemory {
                    pieces: vec![UsedPiece {
                        hit: Some(MemoryHit {
                            source: Some(MemorySource {
                                source_id: 3,
                                collection: "default".into(),
                                kind: MemorySourceKind::File.into(),
                                name: "pool.md".into(),
                                bytes: 20,
                                modified_unix_s: Some(-1),
                                added_unix_s: 2,
                                pieces: 1,
                            }),
                            piece: Some(MemoryPiece {
                                piece_id: 4,
                                number: 1,
                                heading: "Pool".into(),
                                text: "open at 8".into(),
                            }),
                            score: 0.5,
                            bm25: Some(1.5),
                            cosine: Some(0.25),
                        }),
                        label: 1,
                        tokens: 6,
                    }],
                    tokens: 20,
                    ranking: MemoryRanking::Hybrid.into(),
                    elapsed_ms: 1.5,
                    names: vec!["Mia".into()],
                }),
            }),
            Event::Notice(GenerationNotice {
                request_id: 9,
                text: "look".into(),
            }),
            Event::PassDone(GenerationPass {
                request_id: 9,
                passes: 1,
                block: 1,
                passes_in_block: 1,
                tokens: vec![token.clone(), CanvasToken::default()],
                committed_positions: 2,
                stable_text: "é".into(),
                rows: 3,
                lm_head_rows: 4,
                pass_ms: 1.25,
                elapsed_ms: 2.5,
                device_bytes: 5,
                weights_version: 6,
                is_exact: true,
                waited_ms: 0.5,
                streamed_bytes: 7,
                weight_switch: Some(WeightSwitch {
                    done_steps: 1,
                    total_steps: 2,
                }),
                level: Level::Moderate.into(),
                batch_requests: 2,
                phases: Some(phases),
                ..Default::default()
            }),
            Event::BlockDone(GenerationBlock {
                request_id: 9,
                block: 1,
                passes: 4,
                tokens: vec![token],
            }),
            Event::Done(GenerationDone {
                request_id: 9,
                finish_reason: FinishReason::Eos.into(),
                token_ids: vec![1, 2],
                text: Some("a\n\"b\"".into()),
                passes: 8,
                elapsed_ms: 9.5,
                peak_device_bytes: 10,
                edits: 0,
                seed: u64::MAX,
                is_exact: true,
                text_tokens: 2,
                generated_tokens: 1,
                filled_positions: 3,
                is_truncated: true,
                pass_ms: 8.5,
                waited_ms: 0.25,
                phases: Some(phases),
            }),
        ]
    }

    #[test]
    fn what_no_context_holds_is_refused_wherever_it_comes_from() {
        let mut bounds = RunBounds::default();
        let token = CanvasToken {
            position: u32::MAX,
            ..Default::default()
        };
        let started = GenerationStarted {
            length: u32::MAX,
            ..Default::default()
        };
        let pass = GenerationPass {
            tokens: vec![token.clone()],
            ..Default::default()
        };
        let pinned = GenerationStarted {
            pinned: vec![token],
            ..Default::default()
        };
        for kind in [
            Event::Started(started),
            Event::Started(pinned),
            Event::PassDone(pass),
        ] {
            assert!(bounds.count(&kind).is_err(), "{kind:?}");
        }
        let empty = Event::BlockDone(GenerationBlock::default());
        let counted = (0..=POSITIONS_MAX).map(|_| bounds.count(&empty));
        assert!(counted.last().expect("some").is_err());
        assert_eq!(
            bounds.count(&Event::Queued(GenerationQueued::default())),
            Ok(())
        );
        assert_eq!(bounds.count(&empty), Ok(()));
    }

    #[test]
    fn every_field_comes_back() {
        let mut events = every_event();
        let logprobs = TokenLogprobs {
            logprob: -0.25,
            top: vec![TopLogprob {
                id: 7,
                piece: b"\xc3".to_vec(),
                logprob: -0.125,
            }],
        };
        events.push(Event::BlockDone(GenerationBlock {
            tokens: vec![CanvasToken {
                is_edited: true,
                logprobs: Some(logprobs),
                ..Default::default()
            }],
            ..Default::default()
        }));
        events.push(Event::Placed(GenerationPlaced {
            request_id: 9,
            texts: vec![PlacedText {
                tokens: vec![CanvasToken::default()],
                mean_logprob: -1.5,
                is_name: true,
            }],
            without_room: vec!["kite".into()],
        }));
        events.push(Event::Done(GenerationDone {
            edits: 2,
            ..Default::default()
        }));
        let lines: String = (events.iter())
            .map(|kind| format!("{}\n", json::event(kind)))
            .collect();
        assert_eq!(read(lines.as_bytes()).unwrap(), events);
    }

    #[test]
    fn every_option_comes_back() {
        let pin = |content| CanvasPin {
            position: 3,
            content: Some(content),
            anywhere: false,
        };
        let ids = vec![1, 2];
        let started = Event::Started(GenerationStarted {
            diffusion: Some(DiffusionOptions {
                preset: DecodingPreset::Fast.into(),
                steps: Some(4),
                guidance: Some(1.5),
                pins: vec![
                    pin(Content::Text("a".into())),
                    pin(Content::Tokens(TokenIds { ids })),
                    CanvasPin {
                        anywhere: true,
                        ..Default::default()
                    },
                ],
                kv_cache: Some(KvCacheReuse {
                    mode: KvCacheMode::Vicinity.into(),
                    refresh_passes: Some(2),
                    recompute_before: Some(3),
                    recompute_around: Some(4),
                    keep_share: Some(0.5),
                }),
                canvas_growth: CanvasGrowth::Append.into(),
                speculation: Some(Speculation {
                    kind: SpeculationKind::Draft.into(),
                    branches: Some(2),
                }),
                ..Default::default()
            }),
            ..Default::default()
        });
        let line = format!("{}\n", json::event(&started));
        assert_eq!(read(line.as_bytes()).unwrap(), [started], "{line}");
    }

    #[test]
    fn runs_of_earlier_versions_open() {
        let run = include_bytes!("read/first-version.jsonl");
        let mut events = every_event();
        for kind in &mut events {
            if let Event::Started(started) = kind {
                // What later versions added.
                started.memory = None;
            }
        }
        assert_eq!(read(run).unwrap(), events);
        let older = read(b"{\"event\":\"done\",\"text_tokens\":3}\n").unwrap();
        let [Event::Done(done)] = &older[..] else {
            panic!("{older:?}");
        };
        assert_eq!((done.generated_tokens, done.filled_positions), (3, 3));
    }

    #[test]
    fn what_is_not_known_is_skipped() {
        let text = "{\"event\":\"dream\",\"about\":[1]}\n\n\
            {\"event\":\"notice\",\"text\":\"x\",\"mood\":3}\r\n";
        let kinds = read(text.as_bytes()).unwrap();
        let notice = GenerationNotice {
            text: "x".into(),
            ..Default::default()
        };
        assert_eq!(kinds, [Event::Notice(notice)]);
    }

    #[test]
    fn a_line_that_was_cut_off_is_the_end() {
        let whole = "{\"event\":\"notice\",\"text\":\"é\"}\n";
        let two = whole.repeat(2);
        for cut in whole.len()..two.len() {
            let kinds = read(&two.as_bytes()[..cut]).unwrap();
            let only_newline_is_missing = cut == two.len() - 1;
            assert_eq!(
                kinds.len(),
                1 + usize::from(only_newline_is_missing),
                "{cut}"
            );
        }
    }

    #[test]
    fn an_error_names_the_line_and_what_is_wrong() {
        let good = "{\"event\":\"queued\"}\n";
        let wrong = problem(&format!(
            "{good}{good}{{\"event\":\"pass\",\"pass\":\"x\"}}\n"
        ));
        assert!(wrong.starts_with("line 3: invalid type: string"), "{wrong}");
        assert!(wrong.contains("column 26"), "{wrong}");
        assert!(problem("hello\n").starts_with("line 1: expected value"));
        assert!(problem("hello").starts_with("line 1: "));
        assert!(problem("{\"a\":1}\n").contains("missing field `event`"));
        assert!(problem(&format!("{good}[\n{good}")).starts_with("line 2: "));
        let deep = "[".repeat(100_000);
        assert!(problem(&format!("{{\"event\":{deep}\n")).starts_with("line 1: "));
    }

    #[test]
    fn more_than_a_canvas_holds_is_refused() {
        let started = "{\"event\":\"started\",\"length\":4294967295}\n";
        assert!(problem(started).contains("length: 4294967295 is more than 65536"));
        let token = "{\"position\":4000000000,\"state\":\"masked\"}";
        let pass = format!("{{\"event\":\"pass\",\"tokens\":[{token}]}}\n");
        assert!(problem(&pass).contains("position: 4000000000"));
        let blocks: String = (0..=POSITIONS_MAX)
            .map(|block| format!("{{\"event\":\"block_done\",\"block\":{block}}}\n"))
            .collect();
        assert!(problem(&blocks).starts_with("line 65537: tokens of all blocks"));
        let long = format!("{{\"event\":\"{}", "x".repeat(LINE_BYTES_MAX as usize));
        assert_eq!(problem(&long), "line 1: is longer than 8 MiB");
    }

    #[test]
    fn odd_values_become_what_the_screen_can_show() {
        let token = |fields: &str| {
            let line = format!(
                "{{\"event\":\"pass\",\"tokens\":[{{\"position\":0,\"state\":\"glowing\"{fields}}}]}}\n"
            );
            match read(line.as_bytes()).as_deref() {
                Ok([Event::PassDone(pass)]) => pass.tokens[0].clone(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(token("").state(), TokenState::Unspecified);
        assert_eq!(token(",\"confidence\":7").confidence, None);
        assert_eq!(token(",\"confidence\":-1").confidence, None);
        assert_eq!(token(",\"piece\":\"\\u001b\"").piece, b"\x1b");
    }
}
