//! Layers, places and messages of the configuration.

use std::path::Path;

use clap::Parser;
use sluice_engine::{PARALLEL_DEFAULT, PlanSettings};
use sluice_machine::{InstructionSet, Instructions};
use sluice_shared::{address, level::Level, preset::Preset};
use tempfile::TempDir;

use super::*;
use crate::cli::Arguments;

/// An environment of its own in a folder of its own.
struct Fixture {
    folder: TempDir,
    environment: Environment,
}

impl Fixture {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let environment = Environment {
            variables: BTreeMap::new(),
            current_folder: folder.path().to_owned(),
            temporary: folder.path().join("tmp"),
            system_file: folder.path().join("system.toml"),
            user_id: 1000,
            cores: 6,
        };
        Self {
            folder,
            environment,
        }
    }

    fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.variables.insert(name.into(), value.into());
        self
    }

    fn file(self, name: &str, content: impl AsRef<[u8]>) -> Self {
        std::fs::write(self.folder.path().join(name), content).unwrap();
        self
    }

    fn resolve(&self, line: &[&str]) -> Result<Config, String> {
        let arguments = Arguments::parse_from(["sluiced"].iter().chain(line));
        // Messages name files by their full path; the folder's is of no interest.
        arguments.resolve(&self.environment).map_err(|error| {
            let folder = format!("{}/", self.folder.path().display());
            error.to_string().replace(&folder, "")
        })
    }
}

fn set<T>(value: T, source: SettingSource) -> Setting<T> {
    Setting { value, source }
}

#[test]
fn each_layer_gives_way_to_the_next() {
    let fixture = Fixture::new();
    let threads = |fixture: &Fixture, line: &[&str]| fixture.resolve(line).unwrap().threads;
    assert_eq!(
        threads(&fixture, &[]),
        set(Within(6), SettingSource::Default)
    );

    let fixture = fixture.file("system.toml", "threads = 2\nqueue = 3\n");
    let system = SettingSource::File(fixture.environment.system_file.clone());
    assert_eq!(threads(&fixture, &[]), set(Within(2), system.clone()));

    let fixture = fixture.variable("SLUICE_THREADS", "4");
    let variable = SettingSource::Variable("SLUICE_THREADS");
    assert_eq!(threads(&fixture, &[]), set(Within(4), variable));

    let line = ["--threads", "5"];
    assert_eq!(
        threads(&fixture, &line),
        set(Within(5), SettingSource::Flag("--threads"))
    );
    assert_eq!(
        fixture.resolve(&line).unwrap().queue,
        set(Within(3), system)
    );
}

#[test]
fn the_users_file_hides_the_systems_and_a_named_one_hides_both() {
    let fixture = Fixture::new()
        .file("system.toml", "queue = 1")
        .file("named.toml", "queue = 3");
    std::fs::create_dir_all(fixture.folder.path().join("home/.config/sluice")).unwrap();
    let home = fixture.folder.path().join("home").display().to_string();
    let fixture = fixture
        .file("home/.config/sluice/sluiced.toml", "queue = 2")
        .variable("HOME", &home);
    assert_eq!(fixture.resolve(&[]).unwrap().queue.value.get(), 2);
    let named = fixture.resolve(&["--config", "named.toml"]).unwrap();
    assert_eq!(named.queue.value.get(), 3);
    let fixture = fixture.variable("SLUICE_CONFIG", "named.toml");
    assert_eq!(fixture.resolve(&[]).unwrap().queue.value.get(), 3);
}

#[test]
fn a_wrong_file_is_named_with_line_and_column() {
    let problem = |content: &[u8]| {
        let fixture = Fixture::new().file("f.toml", content);
        fixture.resolve(&["--config", "f.toml"]).unwrap_err()
    };
    let unknown = problem(b"queue = 1\n  thread = 2\n");
    assert!(
        unknown.starts_with("f.toml:2:3: unknown key `thread`; did you mean `threads`?"),
        "{unknown}"
    );
    let utf8 = problem(b"queue = 1\nlog = \"\xff\"\n");
    assert_eq!(utf8, "f.toml:2:8: is not valid UTF-8");
    let device = problem(b"device = \"gpu\"\n");
    assert!(
        device.starts_with("f.toml:1:10: device: 'gpu' is none of auto"),
        "{device}"
    );
    let range = problem(b"threads = 0\n");
    assert_eq!(
        range,
        "f.toml:1:11: threads: must be between 1 and 1024, not 0"
    );
    let absent = Fixture::new()
        .resolve(&["--config", "none.toml"])
        .unwrap_err();
    assert!(
        absent.starts_with("cannot read the configuration none.toml"),
        "{absent}"
    );
}

#[test]
fn an_old_name_is_answered_with_the_new_one() {
    let file = Fixture::new().file("f.toml", "queue = 1\n auto_factor = 2\n");
    assert_eq!(
        file.resolve(&["--config", "f.toml"]).unwrap_err(),
        "f.toml:2:2: `auto_factor` is now `max_slowdown`"
    );
    let variable = Fixture::new().variable("SLUICE_DIAL", "fast");
    assert_eq!(
        variable.resolve(&["--preset", "fast"]).unwrap_err(),
        "`SLUICE_DIAL` is now `SLUICE_PRESET`"
    );
    // As with other variables, an empty one counts as unset.
    let empty = Fixture::new().variable("SLUICE_DIAL", "");
    assert!(empty.resolve(&[]).is_ok());
    for row in ROWS.iter() {
        assert_eq!(renames::key(row.key), None, "{} is in use", row.key);
    }
    for (_, new) in renames::variables() {
        assert!(ROWS.iter().any(|row| row.variable == new), "{new}");
    }
}

#[test]
fn the_preset_is_exact_unless_somebody_says_otherwise() {
    let preset =
        |fixture: Fixture, line: &[&str]| fixture.resolve(line).map(|config| config.preset);
    assert_eq!(
        preset(Fixture::new(), &[]),
        Ok(set(Preset::Exact, SettingSource::Default))
    );
    let variable = Fixture::new().variable("SLUICE_PRESET", "fast");
    let source = SettingSource::Variable("SLUICE_PRESET");
    assert_eq!(preset(variable, &[]), Ok(set(Preset::Fast, source)));
    let file = Fixture::new().file("system.toml", "preset = \"quick\"");
    let error = preset(file, &[]).unwrap_err();
    assert!(
        error.contains("unknown preset 'quick'; known are exact"),
        "{error}"
    );
}

#[test]
fn small_memory_is_a_default_that_all_else_wins_over() {
    let level = |fixture: Fixture, line: &[&str]| fixture.resolve(line).map(|config| config.level);
    let small = || set(Level::Aggressive, SettingSource::SmallMemory);
    assert_eq!(level(Fixture::new(), &["--small-memory"]), Ok(small()));
    let file = || Fixture::new().file("system.toml", "small_memory = true");
    assert_eq!(level(file(), &[]), Ok(small()));
    let variable = Fixture::new().variable("SLUICE_SMALL_MEMORY", "true");
    assert_eq!(level(variable, &[]), Ok(small()));
    let mild = set(Level::Mild, SettingSource::Flag("--level"));
    assert_eq!(level(file(), &["--level", "mild"]), Ok(mild));
    let usual = set(Level::Standard, SettingSource::Default);
    assert_eq!(level(file(), &["--small-memory=false"]), Ok(usual));
    let shown = file().resolve(&[]).unwrap().to_string();
    assert!(
        shown.contains("# small_memory\nlevel = \"aggressive\""),
        "{shown}"
    );
}

#[test]
fn a_file_that_is_wrong_is_refused_even_where_a_flag_outweighs_it() {
    for (text, problem) in [
        ("queue = 0", "f.toml:1:9: queue: must be between 1 and"),
        (
            "queue = \"2\"",
            "f.toml:1:9: queue: must be a number, not of type string",
        ),
        (
            "queue = 2.5",
            "f.toml:1:9: queue: \"2.5\" is not a whole number",
        ),
        (
            "weight_cache = 2",
            "f.toml:1:16: weight_cache: must be a string, not of type integer",
        ),
        (
            "level = true",
            "f.toml:1:9: level: must be a string, not of type boolean",
        ),
        (
            "keep_converted = 1",
            "f.toml:1:18: keep_converted: must be a boolean",
        ),
        (
            "nonsense = 1",
            "f.toml:1:1: unknown key `nonsense`; `sluiced --print-config`",
        ),
        ("queue = 1\nqueue = 1", "f.toml:2:1: duplicate key"),
    ] {
        let fixture = Fixture::new().file("f.toml", text);
        let line = ["--config", "f.toml", "--queue", "2", "--level", "off"];
        let error = fixture.resolve(&line).unwrap_err();
        assert!(error.starts_with(problem), "{error}");
    }
    let fixture = Fixture::new().file("f.toml", "max_slowdown = 2");
    let config = fixture.resolve(&["--config", "f.toml"]).unwrap();
    assert_eq!(config.max_slowdown.value.0, 2.0);
}

#[test]
fn without_a_layer_all_is_as_the_engine_has_it() {
    let config = Fixture::new().resolve(&[]).unwrap();
    assert_eq!(config.engine_settings(), PlanSettings::default());
    assert_eq!(config.parallel.value.get(), PARALLEL_DEFAULT);
    assert_eq!(config.shown().count(), ROWS.len());
}

/// The width of the sample file.
const SAMPLE_COLUMNS: usize = 110;

/// The keys of the sample file, each commented out below its description.
fn sample() -> String {
    let mut sample = String::new();
    for row in ROWS.iter() {
        let sentences = row.paragraphs();
        let sentences = sentences.map(|text| format!("{}. ", text.trim_end_matches('.')));
        let mut about: String = sentences.collect();
        if row.default != row.example {
            about += &format!("Default: {}.", row.default);
        }
        sample.push('\n');
        let mut line = "#".to_owned();
        for word in about.split_whitespace() {
            if line.len() + 1 + word.len() > SAMPLE_COLUMNS {
                sample += &(std::mem::replace(&mut line, "#".to_owned()) + "\n");
            }
            line = line + " " + word;
        }
        sample += &format!("{line}\n#{}\n", row.line(row.example));
    }
    sample
}

#[test]
fn the_sample_shows_every_key() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../systemd/sluiced.toml");
    let shown = std::fs::read_to_string(path).unwrap();
    let (head, _) = shown.split_once("\n\n").expect("lines before the keys");
    let expected = format!("{head}\n{}", sample());
    if shown != expected && std::env::var_os("SLUICE_WRITE_SAMPLE").is_some() {
        std::fs::write(path, &expected).unwrap();
        return;
    }
    assert!(
        shown == expected,
        "systemd/sluiced.toml differs from the table; `SLUICE_WRITE_SAMPLE=1 cargo test the_sample_shows_every_key` writes it:\n\
         {expected}"
    );
}

#[test]
fn a_wrong_value_names_its_layer() {
    let fixture = Fixture::new().variable("SLUICE_QUEUE", "many");
    let error = fixture.resolve(&[]).unwrap_err();
    assert_eq!(
        error,
        "queue (from $SLUICE_QUEUE): \"many\" is not a whole number"
    );

    let error = Fixture::new().resolve(&["--model", "nowhere"]).unwrap_err();
    assert!(
        error.starts_with("model (from --model): nowhere does not exist"),
        "{error}"
    );

    let long = format!("/{}", "x".repeat(107));
    let error = Fixture::new().resolve(&["--socket", &long]).unwrap_err();
    assert!(
        error.contains("has 108 bytes; a socket's path may have 107"),
        "{error}"
    );
}

#[test]
fn levels_and_budgets_come_from_every_layer() {
    let fixture = Fixture::new();
    let config = fixture.resolve(&[]).unwrap();
    assert_eq!(config.level, set(Level::Standard, SettingSource::Default));
    assert_eq!(config.budget.value.bytes(), None);

    let fixture = fixture.file("system.toml", "level = \"mild\"\nbudget = \"1GiB\"\n");
    let config = fixture.resolve(&[]).unwrap();
    assert_eq!(config.level.value, Level::Mild);
    assert_eq!(config.budget.value.bytes(), Some(1 << 30));

    let fixture = fixture
        .variable("SLUICE_LEVEL", "auto")
        .variable("SLUICE_BUDGET", "default");
    let config = fixture.resolve(&["--level", "aggressive"]).unwrap();
    assert_eq!(config.level.value, Level::Aggressive);
    assert_eq!(config.budget.value.bytes(), None);
    assert_eq!(
        config.budget.source,
        SettingSource::Variable("SLUICE_BUDGET")
    );
}

#[test]
fn instructions_are_those_that_work_here() {
    let chosen = |name: &str| {
        let fixture = Fixture::new().variable("SLUICE_INSTRUCTIONS", name);
        let config = fixture.resolve(&[])?;
        Ok::<_, String>(config.instructions.value.instructions())
    };
    assert_eq!(chosen("auto"), Ok(Instructions::best()));
    for set in InstructionSet::ALL {
        match (chosen(set.name()), Instructions::of(set)) {
            (Ok(found), Some(works)) => assert_eq!(found, works),
            (Err(error), None) => {
                let words = format!("{set} doesn't work on this CPU, which has portable");
                assert!(error.contains(&words), "{error}");
            }
            (found, _) => panic!("{found:?} for {set}"),
        }
    }
    let error = chosen("sse9").unwrap_err();
    assert!(
        error.contains("'sse9' is none of auto, portable, avx2"),
        "{error}"
    );
}

#[test]
fn levels_and_budgets_that_make_no_sense_are_refused() {
    let wrong = |name: &str, value: &str| {
        let fixture = Fixture::new().variable(name, value);
        fixture.resolve(&[]).unwrap_err()
    };
    let level = wrong("SLUICE_LEVEL", "extreme");
    assert!(
        level.starts_with("level (from $SLUICE_LEVEL): unknown level \"extreme\"; known are off"),
        "{level}"
    );
    for (budget, words) in [
        ("-1", "is not an amount of memory"),
        ("0", "leaves no memory"),
        ("lots", "is not an amount of memory"),
        ("999999999TiB", "more than any machine has"),
    ] {
        let error = wrong("SLUICE_BUDGET", budget);
        assert!(error.contains(words), "{error}");
    }
    let fixture = Fixture::new().file("f.toml", "budget = \"4 apples\"\n");
    let file = fixture.resolve(&["--config", "f.toml"]).unwrap_err();
    assert!(
        file.starts_with("f.toml:1:10: budget: \"4 apples\""),
        "{file}"
    );
    let line = ["sluiced", "--budget", "-1"];
    let flag = Arguments::try_parse_from(line).unwrap_err().to_string();
    assert!(flag.contains("write it like 4GiB"), "{flag}");
}

#[test]
fn converted_copies_lie_where_caches_do() {
    let cache =
        |fixture: &Fixture, line: &[&str]| fixture.resolve(line).unwrap().weight_cache.value.0;
    let fixture = Fixture::new();
    assert_eq!(cache(&fixture, &[]), None);
    for (name, value, folder) in [
        ("HOME", "/home/me", "/home/me/.cache/sluice"),
        ("XDG_CACHE_HOME", "/caches", "/caches/sluice"),
        (
            "CACHE_DIRECTORY",
            "/var/cache/sluice:/else",
            "/var/cache/sluice",
        ),
        ("SLUICE_WEIGHT_CACHE", "/given", "/given"),
    ] {
        let fixture = Fixture::new()
            .variable("HOME", "/nowhere")
            .variable(name, value);
        assert_eq!(cache(&fixture, &[]).as_deref(), Some(Path::new(folder)));
    }
    let here = fixture.folder.path().join("copies");
    assert_eq!(cache(&fixture, &["--weight-cache", "copies"]), Some(here));
}

#[test]
fn converted_weights_are_kept_where_there_is_a_folder_unless_a_layer_says_no() {
    let kept = |fixture: &Fixture, line: &[&str]| fixture.resolve(line).unwrap().keep_converted;
    let flag = || SettingSource::Flag("--keep-converted");
    let fixture = Fixture::new();
    let nowhere = fixture.resolve(&["--keep-converted"]).unwrap_err();
    assert!(nowhere.contains("there is no folder"), "{nowhere}");
    assert_eq!(kept(&fixture, &[]), set(false, SettingSource::Default));
    let fixture = fixture.variable("HOME", "/home/me");
    assert_eq!(kept(&fixture, &[]), set(true, SettingSource::Default));
    let line = ["--keep-converted=false"];
    assert_eq!(kept(&fixture, &line), set(false, flag()));

    let fixture = fixture.file("system.toml", "keep_converted = false\n");
    let system = SettingSource::File(fixture.environment.system_file.clone());
    assert_eq!(kept(&fixture, &[]), set(false, system));
    assert_eq!(kept(&fixture, &["--keep-converted"]), set(true, flag()));

    let fixture = fixture.variable("SLUICE_KEEP_CONVERTED", "true");
    let variable = SettingSource::Variable("SLUICE_KEEP_CONVERTED");
    assert_eq!(kept(&fixture, &[]), set(true, variable));
    let fixture = fixture.variable("SLUICE_KEEP_CONVERTED", "perhaps");
    let error = fixture.resolve(&[]).unwrap_err();
    assert!(
        error.starts_with("keep_converted (from $SLUICE_KEEP_CONVERTED): "),
        "{error}"
    );
}

#[test]
fn the_sockets_folder_is_ours_only_by_default() {
    let address = |fixture: &Fixture, line: &[&str]| fixture.resolve(line).unwrap().socket.value;
    let fixture = Fixture::new();
    assert_eq!(
        address(&fixture, &["--socket", "s"]).folder,
        SocketFolder::Given
    );
    if !Path::new(address::SYSTEM_SOCKET).exists() {
        assert_eq!(address(&fixture, &[]).folder, SocketFolder::OursInPublic);
        let fixture = fixture.variable("XDG_RUNTIME_DIR", "/run/user/1000");
        assert_eq!(address(&fixture, &[]).folder, SocketFolder::Ours);
    }
}

#[test]
fn the_printed_configuration_reads_back_as_it_is() {
    let fixture = Fixture::new().variable("SLUICE_LOG", "debug");
    let line = [
        "--threads",
        "3",
        "--model",
        ".",
        "--socket",
        "a \"b\\.sock",
        "--budget",
        "1000",
        "--weight-cache",
        "c",
        "--keep-converted",
    ];
    let printed = fixture.resolve(&line).unwrap().to_string();
    assert!(printed.contains("# --threads\nthreads = 3\n"), "{printed}");
    assert!(
        printed.contains("# $SLUICE_LOG\nlog = \"debug\"\n"),
        "{printed}"
    );
    assert!(printed.contains("# default\nqueue = 16\n"), "{printed}");

    let fixture = Fixture::new().file("again.toml", &printed);
    let again = fixture.resolve(&["--config", "again.toml"]).unwrap();
    assert!(again.socket.value.path.ends_with("a \"b\\.sock"));
    assert_eq!(again.log.value.to_string(), "debug");
    assert_eq!(again.level.value, Level::Standard);
    assert_eq!(again.budget.value.bytes(), Some(1000));
    assert!(again.weight_cache.value.0.unwrap().ends_with("c"));
    assert!(again.keep_converted.value);
}

#[test]
fn the_limit_of_the_cache_is_an_amount_or_none() {
    let limit =
        |fixture: &Fixture, line: &[&str]| fixture.resolve(line).unwrap().weight_cache_limit.value;
    let fixture = Fixture::new();
    assert_eq!(limit(&fixture, &[]).to_string(), "32GiB");
    assert_eq!(
        limit(&fixture, &["--weight-cache-limit", "none"]).bytes(),
        None
    );
    let fixture = fixture.file("system.toml", "weight_cache_limit = \"5GiB\"\n");
    assert_eq!(limit(&fixture, &[]).bytes(), Some(5 << 30));
    let fixture = fixture.variable("SLUICE_WEIGHT_CACHE_LIMIT", "0");
    assert_eq!(limit(&fixture, &[]).bytes(), Some(0), "those in use stay");
}

#[test]
fn the_limit_of_pinned_memory_is_an_amount_or_what_suits_the_machine() {
    let limit =
        |fixture: &Fixture, line: &[&str]| fixture.resolve(line).unwrap().pinned_memory_limit.value;
    let fixture = Fixture::new();
    assert_eq!(limit(&fixture, &[]).bytes(), None);
    let fixture = fixture.file("system.toml", "pinned_memory_limit = \"6GiB\"\n");
    assert_eq!(limit(&fixture, &[]).to_string(), "6GiB");
    assert_eq!(
        limit(&fixture, &["--pinned-memory-limit", "0"]).bytes(),
        Some(0)
    );
    assert_eq!(
        limit(&fixture, &["--pinned-memory-limit", "auto"]).to_string(),
        "auto"
    );
    let fixture = Fixture::new().variable("SLUICE_PINNED_MEMORY_LIMIT", "much");
    let error = fixture.resolve(&[]).unwrap_err();
    assert!(
        error.starts_with("pinned_memory_limit (from $SLUICE_PINNED_MEMORY_LIMIT)"),
        "{error}"
    );
}

#[test]
fn the_limit_of_reads_is_a_rate_or_none() {
    let limit =
        |fixture: &Fixture, line: &[&str]| fixture.resolve(line).unwrap().disk_read_limit.value;
    let fixture = Fixture::new();
    assert_eq!(limit(&fixture, &[]).bytes_per_s(), None);
    let fixture = fixture.file("system.toml", "disk_read_limit = \"1GiB/s\"\n");
    assert_eq!(limit(&fixture, &[]).to_string(), "1GiB/s");
    let fixture = fixture.variable("SLUICE_DISK_READ_LIMIT", "500MB/s");
    assert_eq!(limit(&fixture, &[]).bytes_per_s(), Some(500_000_000));
    // As it is shown it is read.
    assert_eq!(limit(&fixture, &[]).to_string(), "500000000/s");
    let line = ["--disk-read-limit", "500000000/s"];
    assert_eq!(limit(&fixture, &line), limit(&fixture, &[]));
    assert_eq!(
        limit(&fixture, &["--disk-read-limit", "none"]).to_string(),
        "none"
    );
    for (wrong, words) in [
        ("0", "lets nothing be read"),
        ("fast", "write it like 500MB/s"),
    ] {
        let fixture = Fixture::new().variable("SLUICE_DISK_READ_LIMIT", wrong);
        let error = fixture.resolve(&[]).unwrap_err();
        assert!(
            error.starts_with("disk_read_limit (from $SLUICE_DISK_READ_LIMIT)"),
            "{error}"
        );
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn models_lie_where_the_system_or_the_user_keeps_such_things() {
    let models = |fixture: &Fixture, line: &[&str]| fixture.resolve(line).unwrap().models.value.0;
    let fixture = Fixture::new();
    assert_eq!(models(&fixture, &[]), None);
    let fixture = fixture.variable("HOME", "/h");
    let usual = Some("/h/.local/share/sluice/models".into());
    assert_eq!(models(&fixture, &[]), usual);
    let fixture = fixture.variable("XDG_DATA_HOME", "/d");
    assert_eq!(models(&fixture, &[]), Some("/d/sluice/models".into()));
    let fixture = fixture.variable("STATE_DIRECTORY", "/var/lib/sluice:/other");
    assert_eq!(models(&fixture, &[]), Some("/var/lib/sluice/models".into()));
    let named = fixture.folder.path().join("m");
    assert_eq!(models(&fixture, &["--models", "m"]), Some(named));
}

#[test]
fn a_model_goes_after_a_time_that_is_named() {
    let idle = |line: &[&str]| Fixture::new().resolve(line).unwrap().idle_unload.value;
    assert_eq!(idle(&[]).after(), None);
    for (text, shown) in [
        ("15m", "15m"),
        ("90s", "90s"),
        ("1.5h", "90m"),
        ("250ms", "250ms"),
        ("never", "never"),
    ] {
        assert_eq!(idle(&["--idle-unload", text]).to_string(), shown);
    }
    for wrong in ["0s", "15", "soon"] {
        let fixture = Fixture::new().variable("SLUICE_IDLE_UNLOAD", wrong);
        let error = fixture.resolve(&[]).unwrap_err();
        assert!(
            error.starts_with("idle_unload (from $SLUICE_IDLE_UNLOAD)"),
            "{error}"
        );
    }
}

#[test]
fn a_port_is_opened_when_a_layer_names_one_and_only_on_the_loopback_interface() {
    let fixture = Fixture::new();
    let listen = |fixture: &Fixture, line: &[&str]| {
        let config = fixture.resolve(line)?;
        Ok::<_, String>(
            config
                .listen
                .value
                .address()
                .map(|address| address.to_string()),
        )
    };
    assert_eq!(listen(&fixture, &[]).unwrap(), None);
    let named = |text| Some(str::to_owned(text));
    let line = ["--listen", "[::1]:0"];
    assert_eq!(listen(&fixture, &line).unwrap(), named("[::1]:0"));
    let fixture = fixture.variable("SLUICE_LISTEN", "localhost:50051");
    assert_eq!(listen(&fixture, &[]).unwrap(), named("127.0.0.1:50051"));
    assert_eq!(listen(&fixture, &["--listen", "none"]).unwrap(), None);
    let printed = fixture.resolve(&[]).unwrap().to_string();
    let expected = "# $SLUICE_LISTEN\nlisten = \"127.0.0.1:50051\"\n";
    assert!(printed.contains(expected), "{printed}");

    for (text, problem) in [
        ("50051", "is no address with a port"),
        ("127.0.0.1", "is no address with a port"),
        ("127.0.0.1:65536", "is no address with a port"),
    ] {
        let fixture = Fixture::new().variable("SLUICE_LISTEN", text);
        let error = listen(&fixture, &[]).unwrap_err();
        assert!(error.contains(problem), "{text}: {error}");
    }
}

#[test]
fn a_port_that_other_machines_reach_takes_tls_and_whom_to_let_in() {
    let certificate = ["--tls-certificate", "/c", "--tls-key", "/k"];
    let (tokens, ca) = (["--token-file", "/t"], ["--tls-client-ca", "/a"]);
    let told = |address: &str, flags: &[&[&str]]| {
        let flags = [&["--listen", address], &*flags.concat()].concat();
        let resolved = Fixture::new().resolve(&flags);
        resolved
            .err()
            .map(|error| error.split(": set ").nth(1).map(str::to_owned))
    };
    for address in [
        "0.0.0.0:1",
        "[::]:1",
        "192.0.2.1:1",
        "[::ffff:10.0.0.1]:1",
        "[2001:db8::1]:1",
    ] {
        let lacks = |flags: &[&[&str]]| {
            let told = told(address, flags)?.expect("what to set is told");
            Some(told.split(';').next().unwrap().to_owned())
        };
        let both = "tls_certificate and tls_key, and token_file or tls_client_ca";
        assert_eq!(lacks(&[]).as_deref(), Some(both), "{address}");
        assert_eq!(
            lacks(&[&tokens]).as_deref(),
            Some("tls_certificate and tls_key")
        );
        assert_eq!(
            lacks(&[&certificate]).as_deref(),
            Some("token_file or tls_client_ca")
        );
        assert_eq!(lacks(&[&certificate, &tokens]), None);
        assert_eq!(lacks(&[&certificate, &ca]), None);
    }
    // Of a port of this machine nothing is asked.
    for address in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert_eq!(told(address, &[]), None, "{address}");
        assert_eq!(told(address, &[&certificate]), None, "{address}");
    }
    // What is named without what belongs to it.
    for (flags, problem) in [
        (&["--tls-certificate", "/c"][..], "needs its private key"),
        (&["--tls-key", "/k"], "needs its certificate"),
        (&ca, "needs tls_certificate and tls_key"),
    ] {
        let error = Fixture::new().resolve(flags).unwrap_err();
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn credentials_of_systemd_are_taken_where_nothing_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let fixture = || Fixture::new().variable("CREDENTIALS_DIRECTORY", path);
    let config = fixture().resolve(&[]).unwrap();
    assert_eq!(config.token_file.value.0, None, "there is none");
    for name in ["tokens", "tls.crt", "tls.key", "client-ca.crt"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let config = fixture().resolve(&["--tls-key", "/k"]).unwrap();
    let there = |name: &str| Some(folder.path().join(name));
    assert_eq!(config.token_file.value.0, there("tokens"));
    assert_eq!(config.tls_certificate.value.0, there("tls.crt"));
    assert_eq!(config.tls_key.value.0, Some("/k".into()));
    assert_eq!(config.tls_client_ca.value.0, there("client-ca.crt"));
}

#[test]
fn a_socket_that_is_an_address_is_refused_with_what_to_do() {
    let fixture = Fixture::new().variable("SLUICE_SOCKET", "http://127.0.0.1:50051");
    let error = fixture.resolve(&[]).unwrap_err();
    assert!(error.contains("a socket is a path"), "{error}");
    assert!(error.contains("--listen 127.0.0.1:PORT"), "{error}");
}

#[test]
fn a_hub_that_is_no_address_is_told_before_a_socket_opens() {
    let fixture = Fixture::new().variable("HF_ENDPOINT", "huggingface");
    let error = fixture.resolve(&[]).unwrap_err();
    assert!(error.starts_with("hub (from $HF_ENDPOINT)"), "{error}");
}
