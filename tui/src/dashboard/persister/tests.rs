//! What is kept, how the file is read with care, and what is restored.

use std::os::unix::fs::PermissionsExt;

use super::{
    super::{
        chat::{
            AnswerLimit, AnswerOrigin, CONVERSATION_BYTES_MAX, CONVERSATIONS_MAX, Chat, Speaker,
            Turn,
        },
        levels::LevelFidelity,
        persist::{FILE_BYTES_MAX, PROMPT_BYTES_MAX, PROMPTS_BYTES_MAX, path, save},
        state::LineHistory,
    },
    *,
};
use crate::paint::{Glyphs, Paint, Theme};

fn state() -> DashboardState {
    let paint = Paint::new(Theme::Terminal, Glyphs::Braille, true);
    DashboardState::new("/s".into(), paint)
}

fn turns(prompt: &str, answer: &str) -> Vec<Turn> {
    let origin = AnswerOrigin {
        request_id: 7,
        seed: u64::MAX,
        exact: true,
        tokens: 3,
        passes: 2,
        elapsed_ms: Some(12.5),
        is_cut: false,
        limit: Some(AnswerLimit::Length),
        context: Some(30),
        memory: Some(2),
    };
    let answer = Turn {
        origin: Some(origin),
        ..Turn::new(Speaker::Assistant, answer.to_owned())
    };
    vec![Turn::new(Speaker::User, prompt.to_owned()), answer]
}

/// A state with something of everything.
fn lived_in() -> DashboardState {
    let mut state = state();
    let conversations = vec![turns("one", "a\u{1b}\n"), turns("two", "b"), Vec::new()];
    state.chat = Chat::restored(conversations);
    state.prompts.push("one");
    state.prompts.push("two");
    state.commands.push("theme dark");
    state.options.set("length", "64").unwrap();
    state.paint.theme = Theme::Dark;
    state.chosen_looks.theme = Some(Theme::Dark);
    state.chosen_looks.mouse = Some(false);
    state.mouse = false;
    state.fidelity.push(LevelFidelity {
        model: "m".into(),
        parameters: 1,
        level: sluice_shared::level::Level::Moderate,
        mean_kl_nats: 0.01,
        top_agreement: 0.99,
        rows: 12,
    });
    state
}

fn file() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state/sluice/dashboard.json");
    (folder, path)
}

#[test]
fn what_is_written_is_restored() {
    let (_folder, path) = file();
    assert_eq!(load(&path), Ok(None));
    let before = lived_in();
    save(&path, &PersistedState::of(&before)).unwrap();
    let mut after = state();
    let kept = load(&path).unwrap().unwrap();
    kept.restore(&mut after, FixedLooks::default());
    assert_eq!(PersistedState::of(&after), PersistedState::of(&before));
    assert!(after.chat.conversation().turns.is_empty());
    assert_eq!(after.prompts.step("", -1).unwrap(), "two");
    assert_eq!((after.paint.theme, after.mouse), (Theme::Dark, false));
}

#[test]
fn only_the_owner_can_read_it_and_nothing_else_is_left() {
    let (_folder, path) = file();
    save(&path, &PersistedState::of(&lived_in())).unwrap();
    save(&path, &PersistedState::of(&lived_in())).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let folder = path.parent().unwrap();
    assert_eq!((mode(&path), mode(folder)), (0o600, 0o700));
    assert_eq!(fs::read_dir(folder).unwrap().count(), 1);
}

fn begun(path: &Path, state: &mut DashboardState) -> Option<Persister> {
    let (sender, _events) = tokio::sync::mpsc::channel(1);
    Persister::begin(path.to_owned(), FixedLooks::default(), state, sender)
}

fn runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.build().unwrap()
}

#[test]
fn a_broken_file_is_told_once_and_moved_aside_when_something_changes() {
    let (_folder, path) = file();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let huge = " ".repeat(FILE_BYTES_MAX + 1);
    let deep = format!("{{\"version\":1,\"x\":{}", "[".repeat(100_000));
    let broken = [
        ("", "EOF"),
        ("{\"version\":1,\"prompts\":3}", "invalid type"),
        ("{\"version\":9}", "has version 9, not 1"),
        ("\u{0}\u{1b}[2J", "expected value"),
        (&deep, "EOF while parsing"),
        (&huge, "more than 2097152 bytes"),
    ];
    for (number, (text, words)) in (1..).zip(broken) {
        fs::write(&path, text).unwrap();
        let mut state = state();
        let keeper = begun(&path, &mut state).unwrap();
        let told = state.message.clone().unwrap();
        assert!(told.is_error && told.text.contains(words), "{told:?}");
        let unread = path.with_file_name(match number {
            1 => "dashboard.json.unread".to_owned(),
            _ => format!("dashboard.json.unread{number}"),
        });
        assert!(told.text.contains(unread.to_str().unwrap()), "{told:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        state.prompts.push("new");
        runtime().block_on(keeper.end(&state)).unwrap();
        let kept = load(&path).unwrap().unwrap();
        assert_eq!(kept.prompts, ["new"]);
        assert_eq!(fs::read_to_string(&unread).unwrap(), text);
    }
}

#[test]
fn a_second_dashboard_reads_and_writes_nothing() {
    let (_folder, path) = file();
    save(&path, &PersistedState::of(&lived_in())).unwrap();
    let mut first = state();
    let keeper = begun(&path, &mut first).unwrap();
    assert_eq!(first.message, None);
    let lock = fs::metadata(path.with_file_name("dashboard.lock")).unwrap();
    assert_eq!(lock.permissions().mode() & 0o777, 0o600);

    let mut second = state();
    assert!(begun(&path, &mut second).is_none() && second.persist_schedule.is_none());
    assert_eq!(second.message.clone().unwrap().text, NOT_OURS);
    assert_eq!(second.prompts.lines, ["one", "two"]);
    second.prompts.push("lost");
    second.now_ms = 9 * PERSIST_INTERVAL_MS;
    assert_eq!(due(&mut second), None);

    runtime().block_on(keeper.end(&first)).unwrap();
    drop(first);
    assert!(begun(&path, &mut state()).is_some());
}

#[test]
fn a_write_that_failed_is_tried_again() {
    let (_folder, path) = file();
    let folder = path.parent().unwrap();
    let mut state = state();
    let mut keeper = begun(&path, &mut state).unwrap();
    let runtime = runtime();
    let attempt = |state: &mut DashboardState, keeper: &mut Persister| {
        let kept = due(state).expect("not written yet");
        runtime.block_on(async {
            keeper.persist(*kept);
            keeper.rest().await;
        });
    };
    // Where the folder was is a file.
    fs::rename(folder, folder.with_file_name("moved")).unwrap();
    fs::write(folder, "").unwrap();
    state.prompts.push("one");
    state.now_ms = PERSIST_INTERVAL_MS;
    attempt(&mut state, &mut keeper);
    state.now_ms += PERSIST_INTERVAL_MS;
    attempt(&mut state, &mut keeper);
    fs::remove_file(folder).unwrap();
    state.now_ms += PERSIST_INTERVAL_MS;
    attempt(&mut state, &mut keeper);
    assert_eq!(load(&path).unwrap().unwrap().prompts, ["one"]);
    state.now_ms += PERSIST_INTERVAL_MS;
    assert_eq!(due(&mut state), None);

    // At the end, too.
    fs::remove_dir_all(folder).unwrap();
    fs::write(folder, "").unwrap();
    state.prompts.push("two");
    state.now_ms += PERSIST_INTERVAL_MS;
    attempt(&mut state, &mut keeper);
    fs::remove_file(folder).unwrap();
    runtime.block_on(keeper.end(&state)).unwrap();
    assert_eq!(load(&path).unwrap().unwrap().prompts, ["one", "two"]);
}

#[test]
fn a_new_start_is_a_new_conversation_and_what_was_said_can_be_reached() {
    let mut state = state();
    PersistedState::of(&lived_in()).restore(&mut state, FixedLooks::default());
    assert!(state.chat.conversation().turns.is_empty());
    state.chat.step(-1);
    assert_eq!(state.chat.conversation().title().unwrap(), "two");
    state.chat.step(-1);
    assert_eq!(state.chat.conversation().title().unwrap(), "one");
}

#[test]
fn odd_contents_are_left_out_and_unknown_fields_ignored() {
    let text = r#"{"version":1,"later":{},"open":99,
        "conversations":[[],[{"speaker":"assistant","text":"x"}],
            [{"speaker":"user","text":"p"},{"speaker":"assistant","text":"q","more":1}]],
        "options":{"length":"many","dial":"fast","socket":"/x"},"theme":"pink"}"#;
    let (_folder, path) = file();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    let mut state = state();
    let kept = load(&path).unwrap().unwrap();
    kept.restore(&mut state, FixedLooks::default());
    assert_eq!((state.chat.conversations.len(), state.chat.open), (2, 1));
    let flags = state.options.flags();
    assert_eq!(flags.as_deref(), Some("--preset fast"));
    assert_eq!(state.paint.theme, Theme::Terminal);
}

#[test]
fn options_of_earlier_builds_open_by_their_new_names() {
    let text = r#"{"version":1,"options":{"dial":"fast","cache":"dual:behind=32","window":"64",
        "grow":"append","length":"64"}}"#;
    let (_folder, path) = file();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    let mut state = state();
    let kept = load(&path).unwrap().unwrap();
    kept.restore(&mut state, FixedLooks::default());
    let written = PersistedState::of(&state).options.into_iter();
    let written: Vec<_> = written
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    assert_eq!(
        written,
        [
            "canvas-growth append",
            "kv-cache dual:recompute-before=32",
            "length 64",
            "preset fast",
            "suffix-window 64",
        ]
    );
}

#[test]
fn flags_and_settings_win_over_what_was_kept() {
    let mut state = state();
    let fixed = FixedLooks {
        theme: true,
        mouse: true,
        ..FixedLooks::default()
    };
    PersistedState::of(&lived_in()).restore(&mut state, fixed);
    assert_eq!((state.paint.theme, state.mouse), (Theme::Terminal, true));
}

#[test]
fn the_file_is_bounded_by_leaving_out_the_earliest_conversations() {
    let mut state = state();
    let long = "x".repeat(CONVERSATION_BYTES_MAX - 10);
    let all = (0..CONVERSATIONS_MAX).map(|number| turns(&number.to_string(), &long));
    state.chat = Chat::restored(all.collect());
    let (_folder, path) = file();
    save(&path, &PersistedState::of(&state)).unwrap();
    assert!(fs::metadata(&path).unwrap().len() <= FILE_BYTES_MAX as u64);
    let kept = load(&path).unwrap().unwrap();
    assert_eq!(kept.conversations.len(), 7);
    assert_eq!(kept.conversations[6][0].text, "31");
}

#[test]
fn prompts_go_before_conversations_and_long_ones_are_not_kept() {
    let mut state = state();
    let long = "x".repeat(CONVERSATION_BYTES_MAX - 10);
    let all = (0..7).map(|number| turns(&number.to_string(), &long));
    state.chat = Chat::restored(all.collect());
    let prompt = |number: usize| format!("{number:0>PROMPT_BYTES_MAX$}");
    (0..LineHistory::MAX - 1).for_each(|number| state.prompts.push(&prompt(number)));
    state.prompts.push(&"y".repeat(PROMPT_BYTES_MAX + 1));
    let (_folder, path) = file();
    save(&path, &PersistedState::of(&state)).unwrap();
    let kept = load(&path).unwrap().unwrap();
    assert_eq!(kept.conversations.len(), 7);
    assert_eq!(kept.prompts.len(), PROMPTS_BYTES_MAX / PROMPT_BYTES_MAX);
    assert_eq!(kept.prompts.last(), Some(&prompt(LineHistory::MAX - 2)));
    // As long as the dashboard is open, the long one can be had back.
    assert!(state.prompts.step("", -1).unwrap().starts_with('y'));
}

#[test]
fn two_dashboards_leave_one_whole_file() {
    let (_folder, path) = file();
    let kept = PersistedState::of(&lived_in());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..20).for_each(|_| save(&path, &kept).unwrap()));
        }
    });
    assert_eq!(load(&path), Ok(Some(kept)));
}

#[test]
fn a_folder_that_cannot_be_written_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let blocked = folder.path().join("file");
    fs::write(&blocked, "").unwrap();
    let problem = save(&blocked.join("dashboard.json"), &PersistedState::default()).unwrap_err();
    assert!(
        problem.starts_with("cannot save the dashboard's state in"),
        "{problem}"
    );
    assert!(load(folder.path()).unwrap_err().contains("is no file"));
}

#[test]
fn a_change_is_written_after_a_while_and_only_then() {
    let (_folder, path) = file();
    let mut state = state();
    assert_eq!(due(&mut state), None);
    let _keeper = begun(&path, &mut state);
    state.prompts.push("one");
    state.now_ms = PERSIST_INTERVAL_MS - 1;
    assert_eq!(due(&mut state), None);
    state.now_ms = PERSIST_INTERVAL_MS;
    assert_eq!(due(&mut state).unwrap().prompts, ["one"]);
    state.now_ms = 9 * PERSIST_INTERVAL_MS;
    assert_eq!(due(&mut state), None);
}

#[test]
fn nothing_is_kept_where_no_home_is() {
    assert_eq!(path(|_| None), None);
    let home = |name: &str| (name == "HOME").then(|| "/home/a".into());
    let expected = "/home/a/.local/state/sluice/dashboard.json";
    assert_eq!(path(home), Some(PathBuf::from(expected)));
}
