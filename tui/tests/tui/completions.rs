//! Completion in shells: the script in a real shell, with values from a daemon.

use std::process::Command;

use crate::{
    daemon::Daemon,
    support::{code, sluice, stderr, stdout},
};

/// What bash offers for the last of these words.
fn offered(daemon: &Daemon, words: &[&str]) -> Vec<String> {
    let program = env!("CARGO_BIN_EXE_sluice");
    let folder = std::path::Path::new(program).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let script = r#"
        source <(sluice completions bash)
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _clap_complete_sluice sluice "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" 2>&1
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let output = Command::new("bash")
        .args(["-c", script, "bash", "sluice"])
        .args(words)
        .env("PATH", format!("{}:{path}", folder.display()))
        .env("SLUICE_SOCKET", &daemon.socket)
        .output()
        .expect("run bash");
    stdout(&output).lines().map(str::to_owned).collect()
}

#[test]
fn a_shell_offers_commands_and_what_the_daemon_has() {
    let daemon = Daemon::start();
    assert!(offered(&daemon, &["qu"]).contains(&"quantize".to_owned()));
    assert!(offered(&daemon, &["inspect", "sluice-"]).contains(&"sluice-demo".to_owned()));
    assert_eq!(
        offered(&daemon, &["generate", "--preset", "bal"]),
        ["balanced"]
    );
    let ids = |offered: Vec<String>| -> Vec<u64> {
        let ids = offered.iter().filter_map(|word| word.parse().ok());
        ids.collect()
    };
    // Where there is no value, options may be offered.
    assert!(ids(offered(&daemon, &["watch", ""])).is_empty());
    let answer = daemon.run(&["generate", "Tell me a story.", "--length", "4"]);
    assert_eq!(code(&answer), 0, "{}", stderr(&answer));
    assert_eq!(ids(offered(&daemon, &["watch", ""])).len(), 1);
}

#[test]
fn each_shell_has_its_script_and_packages_get_all_manual_pages() {
    for (shell, words) in [
        ("bash", "complete -o"),
        ("zsh", "#compdef sluice"),
        ("fish", "complete --keep-order"),
    ] {
        let script = stdout(
            &sluice(&["completions", shell])
                .output()
                .expect("run sluice"),
        );
        assert!(
            script.contains(words) && script.contains("SLUICE_COMPLETE"),
            "{script}"
        );
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pages = folder.path().join("man1");
    let output = sluice(&["man", "--folder", pages.to_str().expect("UTF-8")]).output();
    assert_eq!(code(&output.expect("run sluice")), 0);
    for page in ["sluice.1", "sluice-doctor.1", "sluice-jobs-watch.1"] {
        let page = std::fs::read_to_string(pages.join(page)).expect(page);
        assert!(page.contains(".SH SYNOPSIS"), "{page}");
    }
}
