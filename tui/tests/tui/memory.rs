//! `sluice memory`, and what of it goes into prompts, against a daemon that plays a script.

use std::fs;

use fake_daemon::{ChangeScript, FakeDaemon, ScriptStep, generation_events, hits};
use serde_json::Value;
use sluice_proto::v1::{
    CanvasToken, GenerationPlaced, GenerationStarted, MemoryOptions, MemoryRanking, MemoryReader,
    MemorySourceKind, PlacedText, PromptMemory, UsedPiece, generate_request::Decoding,
    generation_event::Event, remove_sources_request::What,
};

use crate::daemon::Daemon;
use crate::support::{Client, code, interrupt, run_with_input, said, stderr, stdout};

fn fake() -> FakeDaemon {
    FakeDaemon::start(Vec::new())
}

/// An answer to a prompt that took two pieces along.
fn answer_with_memory() -> Vec<ScriptStep> {
    let mut script = generation_events("well");
    let pieces = hits().into_iter().zip(1..).map(|(hit, label)| UsedPiece {
        hit: Some(hit),
        label,
        tokens: 40 + label,
    });
    let memory = PromptMemory {
        pieces: pieces.collect(),
        tokens: 90,
        ranking: MemoryRanking::Hybrid.into(),
        elapsed_ms: 2.0,
        ..Default::default()
    };
    let started = script.iter_mut().find_map(|step| match step {
        ScriptStep::Send(Event::Started(started)) => Some(started),
        _ => None,
    });
    match started {
        Some(started) => started.memory = Some(memory),
        None => script.insert(
            0,
            ScriptStep::Send(Event::Started(GenerationStarted {
                memory: Some(memory),
                ..Default::default()
            })),
        ),
    }
    script
}

#[test]
fn files_and_a_note_are_sent_and_what_came_of_them_is_told() {
    let fake = fake();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pool.md"), "# Pool\n").unwrap();
    fs::write(folder.path().join(".hidden"), "x").unwrap();
    fs::write(folder.path().join("picture"), "x\0").unwrap();
    let at = folder.path().to_str().unwrap();
    let line = [
        "memory",
        "add",
        at,
        "-",
        "--note",
        "Bicycle",
        "--collection",
        "own",
        "--readers",
        "admin",
    ];
    let output = run_with_input(fake.sluice(&line), b"The lock opens with 4711.");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(
        stdout(&output),
        "own: 2 sources in 4 pieces, 1 skipped, in 1.5 s\n"
    );
    let told = stderr(&output);
    assert!(
        told.contains("note: left out: 1 hidden, 1 binary"),
        "{told}"
    );
    assert!(told.contains("note: skipped: /odd"), "{told}");
    assert!(!told.contains('\x1b'), "{told:?}");

    let seen = fake.seen.lock().unwrap();
    let begin = &seen.imports[0];
    assert_eq!((&*begin.collection, begin.total_bytes), ("own", 0));
    assert_eq!(begin.reader(), MemoryReader::Admin);
    let [(file, content), (note, words)] = &seen.imported[..] else {
        panic!("two sources");
    };
    assert!(file.name.starts_with('/') && file.name.ends_with("/pool.md"));
    assert!(file.kind() == MemorySourceKind::File && content == b"# Pool\n");
    assert_eq!(
        (&*note.name, note.kind()),
        ("Bicycle", MemorySourceKind::Note)
    );
    assert_eq!(words, b"The lock opens with 4711.");
}

#[test]
fn what_git_leaves_out_everywhere_is_left_out_of_a_folder() {
    let fake = fake();
    let folder = tempfile::tempdir().unwrap();
    let (config, notes) = (folder.path().join("config"), folder.path().join("notes"));
    fs::create_dir_all(config.join("git")).unwrap();
    fs::write(config.join("git/ignore"), "*.orig\n").unwrap();
    fs::create_dir(&notes).unwrap();
    for name in ["pool.md", "pool.md.orig"] {
        fs::write(notes.join(name), "# Pool\n").unwrap();
    }
    for (more, names) in [
        (None, &["pool.md"][..]),
        (Some("--no-ignore"), &["pool.md", "pool.md.orig"]),
    ] {
        fake.seen.lock().unwrap().imported.clear();
        let mut command = fake.sluice(&["memory", "add", notes.to_str().unwrap()]);
        command.args(more).env("XDG_CONFIG_HOME", &config);
        let output = command.output().unwrap();
        let told = stderr(&output);
        assert_eq!(code(&output), 0, "{told}");
        assert_eq!(
            told.contains("left out: 1 ignored"),
            more.is_none(),
            "{told}"
        );
        let seen = fake.seen.lock().unwrap();
        let sent = seen.imported.iter().map(|(source, _)| &source.name);
        let sent: Vec<_> = sent.filter_map(|name| name.rsplit('/').next()).collect();
        assert_eq!(sent, names);
    }
}

#[test]
fn what_cannot_be_sent_is_told() {
    let fake = fake();
    let output = fake.output(&["memory", "add", "/nowhere/at/all"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("cannot read /nowhere/at/all"));
    let folder = tempfile::tempdir().unwrap();
    let output = fake.output(&["memory", "add", folder.path().to_str().unwrap()]);
    assert!(stderr(&output).contains("there is no text to remember"));
    let output = fake.output(&["memory", "add", "src", "--note", "Pool"]);
    assert_eq!(code(&output), 64);
    assert!(fake.seen.lock().unwrap().imports.is_empty());
}

#[test]
fn control_c_cancels_an_import_and_tells_what_was_kept() {
    let change = ChangeScript {
        hangs: true,
        ..Default::default()
    };
    let fake = FakeDaemon::with_changes(Vec::new(), change);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pool.md"), "# Pool\n").unwrap();
    let at = folder.path().to_str().unwrap();
    let mut child = fake
        .sluice(&["memory", "add", at, "--json"])
        .spawn()
        .expect("start sluice");
    let begun = said(child.stdout.as_mut().unwrap(), "running");
    assert!(begun.contains(r#""kind":"remember""#), "{begun}");
    let output = interrupt(child);
    assert_eq!(code(&output), 130, "{}", stderr(&output));
    let told = stderr(&output);
    assert!(
        told.contains("the sources that were done are kept"),
        "{told}"
    );
    assert!(told.contains("run the same command again"), "{told}");
    assert_eq!(fake.seen.lock().unwrap().operations_cancelled, [5]);
}

#[test]
fn collections_sources_and_pieces_are_listed_to_their_ends() {
    let fake = fake();
    let output = fake.output(&["memory", "list"]);
    assert_eq!(
        stdout(&output).lines().collect::<Vec<_>>()[..2],
        [
            "COLLECTION                 SOURCES      PIECES       SIZE  READERS",
            "default                          3           4      160 B  generate",
        ]
    );
    let output = fake.output(&["memory", "list", "default"]);
    let told = stdout(&output);
    assert_eq!(told.lines().count(), 4, "{told}");
    assert!(told.contains("2026-01-02  Bicycle"), "{told}");
    let output = fake.output(&["memory", "list", "default", "--json"]);
    let pages: Vec<Value> = (stdout(&output).lines())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(pages[0]["sources"][0]["kind"], "file");
    assert_eq!(pages[1]["sources"][0]["source_id"], 1);

    let output = fake.output(&["memory", "show", "3"]);
    assert_eq!(
        stdout(&output),
        "[0] Pool\nThe pool is in Green Street.\n\n\
         [1] Pool > Opening hours\nIt opens at eight on weekdays\nand at ten on Sundays.\u{fffd}[2J\n"
    );
    let output = fake.output(&["memory", "show", "3", "--piece", "1"]);
    assert!(stdout(&output).starts_with("[1] Pool > Opening hours\n"));
    let output = fake.output(&["memory", "show", "3", "--piece", "2"]);
    assert!(stderr(&output).contains("has no piece 2; it has 2"));
    let output = fake.output(&["memory", "show", "9"]);
    assert!(stderr(&output).contains("there is no source 9"));
}

#[test]
fn a_search_asks_for_what_the_flags_say() {
    let fake = fake();
    let output = fake.output(&["memory", "search", "when does the pool open?"]);
    assert_eq!(
        stdout(&output),
        "  1    0.033  /home/ada/notes/pool.md · Pool > Opening hours (source 3, piece 1)\n     \
         It opens at eight on weekdays and at ten on Sundays.\u{fffd}[2J\n  \
         2    0.032  Bicycle (source 2, piece 0)\n     The bicycle's lock opens with 4711.\n"
    );
    let told = stderr(&output);
    assert!(
        told.contains("note: 2 pieces have no vectors yet"),
        "{told}"
    );
    assert!(told.contains("2 found by hybrid in 2 ms"), "{told}");
    let line = [
        "memory",
        "search",
        "pool",
        "--collection",
        "a",
        "--collection=b",
        "--kind",
        "note",
        "--since",
        "2026-01-02",
        "--ranking",
        "vectors",
        "-n",
        "3",
        "--verbose",
    ];
    let output = fake.output(&line);
    assert!(stdout(&output).contains("words 4.50, vectors 0.750\n"));
    let seen = fake.seen.lock().unwrap();
    let asked = &seen.searched[1];
    assert_eq!(asked.collections, ["a", "b"]);
    assert_eq!(asked.kinds, [i32::from(MemorySourceKind::Note)]);
    assert_eq!(asked.since_unix_s, Some(1_767_312_000));
    assert_eq!(
        (asked.ranking(), asked.max_hits),
        (MemoryRanking::Vectors, 3)
    );
}

#[test]
fn what_is_forgotten_is_asked_about_where_it_is_much() {
    let fake = fake();
    let output = fake.output(&["memory", "rm", "3", "2"]);
    assert_eq!(
        stdout(&output),
        "forgot source 3, 2 pieces\nforgot source 2, 1 piece\n"
    );
    // There is nobody to ask.
    for line in [
        &["memory", "rm", "--collection", "default"][..],
        &["memory", "wipe"],
    ] {
        let output = fake.output(line);
        assert_eq!(code(&output), 64, "{}", stderr(&output));
        assert!(stderr(&output).contains("--yes"));
    }
    assert_eq!(fake.seen.lock().unwrap().wipes, 0);
    let output = fake.output(&["memory", "rm", "--collection", "default", "--yes", "--json"]);
    assert_eq!(
        stdout(&output),
        "{\"source_id\":null,\"collection\":\"default\",\"sources\":3,\"pieces\":4,\"notices\":[\"its text is still in the file: disk full\"]}\n"
    );
    let output = fake.output(&["memory", "rm", "--collection", "default", "--yes"]);
    assert!(stderr(&output).contains("note: its text is still in the file: disk full"));
    let output = fake.output(&["memory", "wipe", "--yes"]);
    assert_eq!(
        stdout(&output),
        "forgot everything, 3 sources in 4 pieces\n"
    );
    let seen = fake.seen.lock().unwrap();
    let default = || What::Collection("default".into());
    assert_eq!(
        seen.forgotten,
        [What::SourceId(3), What::SourceId(2), default(), default()]
    );
    assert_eq!(seen.wipes, 1);
}

#[test]
fn an_export_has_a_line_for_each_source() {
    let fake = fake();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memory.jsonl");
    let output = fake.output(&["memory", "export", "--output", path.to_str().unwrap()]);
    assert!(stderr(&output).contains("3 sources in 4 pieces"));
    let printed = fake.output(&["memory", "export", "default"]);
    assert_eq!(stdout(&printed), fs::read_to_string(&path).unwrap());
    let lines: Vec<Value> = (stdout(&printed).lines())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["pieces"][1]["heading"], "Pool > Opening hours");
    assert_eq!(lines[2]["source"]["kind"], "conversation");
    // What is there stays where the daemon refuses, and nothing is left beside it.
    let refused = fake.output(&[
        "memory",
        "export",
        "none",
        "--output",
        path.to_str().unwrap(),
    ]);
    assert_eq!(code(&refused), 1);
    assert_eq!(fs::read_to_string(&path).unwrap(), stdout(&printed));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_prompt_takes_memory_along_and_says_what() {
    let fake = FakeDaemon::start(answer_with_memory());
    let output = fake.output(&["generate", "--memory", "When does the pool open?"]);
    assert_eq!(stdout(&output), "well\n");
    let told = stderr(&output);
    for line in [
        "memory [1] notes/pool.md · Pool > Opening hours (score 0.033, 41 tokens)",
        "memory [2] Bicycle (score 0.032, 42 tokens)",
    ] {
        assert!(told.lines().any(|found| found == line), "{told}");
    }
    fake.output(&["generate", "hi", "--memory=64", "--memory-collection", "a"]);
    fake.output(&["generate", "hi"]);
    let seen = fake.seen.lock().unwrap();
    let options = |max_tokens, collections: &[&str]| {
        let collections = collections.iter().map(|name| (*name).to_owned()).collect();
        Some(MemoryOptions {
            max_tokens,
            collections,
            pinned_names: 0,
        })
    };
    let asked: Vec<_> = seen.generate.iter().map(|asked| &asked.memory).collect();
    assert_eq!(
        asked,
        [&options(Some(512), &[]), &options(Some(64), &["a"]), &None]
    );
}

#[test]
fn pinned_names_are_asked_for_and_told_with_their_places() {
    let mut script = answer_with_memory();
    let token = |position, piece: &str| CanvasToken {
        position,
        piece: piece.as_bytes().to_vec(),
        ..Default::default()
    };
    let placed = GenerationPlaced {
        texts: vec![PlacedText {
            tokens: vec![token(3, " Anna"), token(4, " Karenina")],
            mean_logprob: -1.5,
            is_name: true,
        }],
        ..Default::default()
    };
    let is_started = |step: &ScriptStep| matches!(step, ScriptStep::Send(Event::Started(_)));
    let started = script.iter().position(is_started).unwrap();
    script.insert(started + 1, ScriptStep::Send(Event::Placed(placed)));
    let fake = FakeDaemon::start(script);
    let output = fake.output(&["generate", "--memory-names", "2", "--pin", "any:lake", "hi"]);
    assert_eq!(stdout(&output), "well\n");
    let line =
        "pinned \"Anna Karenina\" at 3 to 4, mean log-probability -1.50; a name out of memory";
    let told = stderr(&output);
    assert!(told.lines().any(|found| found == line), "{told}");
    let seen = fake.seen.lock().unwrap();
    let asked = &seen.generate[0];
    assert_eq!(asked.memory.as_ref().unwrap().pinned_names, 2);
    let Some(Decoding::Diffusion(diffusion)) = &asked.decoding else {
        panic!("{asked:?}");
    };
    let pin = &diffusion.pins[0];
    assert_eq!((pin.anywhere, pin.position), (true, 0));
}

#[test]
fn a_conversation_switches_memory_and_is_remembered() {
    let fake = FakeDaemon::start(answer_with_memory());
    let line = ["chat", "--remember", "--memory-collection", "own"];
    let input = b"/memory off\nhello\n/memory 64\n/remember the pool opens at 8\nagain\n/sources\n";
    let output = run_with_input(fake.sluice(&line), input);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let told = stdout(&output);
    assert!(
        told.ends_with("[2] Bicycle\nThe bicycle's lock opens with 4711.\n"),
        "{told}"
    );
    assert!(told.contains("[1] /home/ada/notes/pool.md · Pool > Opening hours\n"));
    let seen = fake.seen.lock().unwrap();
    let asked: Vec<_> = (seen.generate.iter())
        .map(|asked| asked.memory.as_ref().and_then(|memory| memory.max_tokens))
        .collect();
    assert_eq!(asked, [None, Some(64)]);
    assert!(seen.imports.iter().all(|begin| begin.collection == "own"));
    let [(note, words), (all, turns)] = &seen.imported[..] else {
        panic!("two sources");
    };
    assert_eq!(words, b"the pool opens at 8");
    assert!(note.name.ends_with(" the pool opens at 8"), "{}", note.name);
    assert_eq!(all.kind(), MemorySourceKind::Conversation);
    assert!(all.name.ends_with(" hello"), "{}", all.name);
    let turns = String::from_utf8_lossy(turns);
    assert!(turns.starts_with("## user\n\nhello\n\n## assistant\n\nwell\n\n## user\n\nagain"));
}

/// docs/remembering.md, with the real daemon.
#[test]
fn the_daemon_remembers_finds_and_forgets() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let text = "# Pool\n\nIt is in Green Street.\n\n## Hours\n\nThe pool opens at eight.\n";
    fs::write(folder.path().join("pool.md"), text).unwrap();
    let at = folder.path().to_str().unwrap();
    let told = |arguments: &[&str]| {
        let output = daemon.run(arguments);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        stdout(&output)
    };
    assert!(told(&["memory", "add", at]).starts_with("default: 1 source in 2 pieces"));
    assert!(told(&["memory", "add", at]).contains(", 1 unchanged"));
    let found = told(&["memory", "search", "when does the pool open?"]);
    assert!(found.contains("The pool opens at eight."), "{found}");
    let line = [
        "generate",
        "--memory",
        "--length",
        "4",
        "When does the pool open?",
    ];
    let output = daemon.run(&line);
    let first = stderr(&output);
    assert!(first.contains("memory [1] "), "{first}");
    assert!(first.contains("/pool.md · Pool"), "{first}");
    let exported: Value = serde_json::from_str(&told(&["memory", "export"])).unwrap();
    let id = exported["source"]["source_id"].to_string();
    assert_eq!(exported["pieces"].as_array().map(Vec::len), Some(2));
    assert!(told(&["memory", "show", &id, "--piece", "1"]).contains("opens at eight"));
    assert_eq!(
        told(&["memory", "rm", &id]),
        format!("forgot source {id}, 2 pieces\n")
    );
    assert!(told(&["memory", "wipe", "--yes"]).starts_with("forgot everything, 0 sources"));
    assert_eq!(told(&["memory", "list"]), "nothing is remembered\n");
}
