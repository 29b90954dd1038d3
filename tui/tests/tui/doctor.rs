//! `sluice doctor`, with a daemon and without one.

use serde_json::Value;

use crate::{
    daemon::Daemon,
    support::{code, sluice, stderr, stdout},
};

#[test]
fn a_daemon_that_runs_is_examined_with_its_version_and_the_users_role() {
    let daemon = Daemon::start();
    let output = daemon.run(&["doctor"]);
    let text = stdout(&output);
    let version = env!("CARGO_PKG_VERSION");
    for part in [
        &format!("sluice            {version} with protocol"),
        &format!("the daemon is {version} with protocol"),
        "daemon            ready at ",
        "device            the CPU computes, as configured",
        "your role         admin",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // What is wrong with the tester's machine is not this test's to judge.
    assert_eq!(code(&output) == 0, !text.contains("\nproblem "), "{text}");
}

#[test]
fn without_a_daemon_the_machine_is_examined_by_the_daemons_program() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let mut command = sluice(&["--socket", socket.to_str().unwrap(), "doctor", "--json"]);
    let output = command.env("HOME", folder.path()).output().unwrap();
    let text = stdout(&output);
    let found: Value = serde_json::from_str(&text).unwrap();
    let of = |subject: &str| {
        let mut all = found["findings"].as_array().unwrap().iter();
        let finding = all.find(|finding| finding["subject"] == subject);
        finding
            .unwrap_or_else(|| panic!("nothing of {subject}: {text}"))
            .clone()
    };
    let daemon = of("daemon");
    assert_eq!(daemon["state"], "warning");
    assert!(daemon["found"].as_str().unwrap().contains("no such socket"));
    assert!(
        daemon["advice"]
            .as_str()
            .unwrap()
            .contains("sluice run NAME")
    );
    assert_eq!(of("configuration")["state"], "ok");
    let models = folder.path().join(".local/share/sluice/models");
    let found = of("models")["found"].clone();
    assert!(found.as_str().unwrap().contains(models.to_str().unwrap()));
}

#[test]
fn a_configuration_that_is_wrong_is_a_problem_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("sluiced.toml");
    std::fs::write(&config, "quue = 2\n").unwrap();
    let socket = folder.path().join("s");
    let mut command = sluice(&["--socket", socket.to_str().unwrap(), "doctor"]);
    let output = command.env("SLUICE_CONFIG", &config).output().unwrap();
    assert_eq!(code(&output), 1);
    let text = stdout(&output);
    assert!(text.contains("problem  configuration"), "{text}");
    assert!(text.contains("sluiced.toml:1:1"), "{text}");
    assert!(stderr(&output).contains("something does not work"));
}
