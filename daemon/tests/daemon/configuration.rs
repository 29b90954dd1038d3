//! What the command line and the configuration answer before anything is served.

use std::{fs, process::Output};

use sluice_shared::exit;
use tempfile::TempDir;

use crate::support::run;

fn code(output: &Output) -> u8 {
    output.status.code().unwrap() as u8
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn wrong_usage_and_wrong_configuration_have_codes_of_their_own() {
    let folder = TempDir::new().unwrap();
    let run = async |arguments: &[&str]| run(folder.path(), arguments).await;
    assert_eq!(code(&run(&["--help"]).await), exit::OK);
    assert_eq!(code(&run(&["--version"]).await), exit::OK);
    assert_eq!(code(&run(&["--sideways"]).await), exit::USAGE);
    assert_eq!(code(&run(&["--threads", "0"]).await), exit::USAGE);
    let instructions = run(&["--instructions", "sse9"]).await;
    assert_eq!(code(&instructions), exit::USAGE);
    assert!(stderr(&instructions).contains("none of auto, portable, avx2"));

    // No machine has so many GPUs, and most that run this have no driver.
    let gpu = run(&["--device", "cuda:99"]).await;
    assert_eq!(code(&gpu), exit::FAILURE);
    let message = stderr(&gpu);
    assert!(
        message.contains("NVIDIA") && message.contains("hint:"),
        "{message}"
    );

    let absent = run(&["--model", "/nowhere"]).await;
    assert_eq!(code(&absent), exit::CONFIG);
    assert!(stderr(&absent).contains("/nowhere does not exist"));
}

#[tokio::test]
async fn a_wrong_file_is_named_with_line_and_column() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("sluiced.toml");
    for (content, place) in [
        (
            &b"queue = 2\nquue = 3\n"[..],
            "sluiced.toml:2:1: unknown key `quue`; did you mean `queue`?",
        ),
        (
            b"queue = 2\nlog = \"\xff\"\n",
            "sluiced.toml:2:8: is not valid UTF-8",
        ),
        (b"queue = = 2\n", "sluiced.toml:1:9: "),
    ] {
        fs::write(&file, content).unwrap();
        let output = run(
            folder.path(),
            &["--config", "sluiced.toml", "--check-config"],
        )
        .await;
        assert_eq!(code(&output), exit::CONFIG);
        assert!(stderr(&output).contains(place), "{}", stderr(&output));
    }
}

#[tokio::test]
async fn the_configuration_is_printed_with_its_sources() {
    let folder = TempDir::new().unwrap();
    let place = folder.path().join("config/sluice");
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("sluiced.toml"), "drain_seconds = 3\n").unwrap();
    let output = run(folder.path(), &["--queue", "5", "--print-config"]).await;
    assert_eq!(code(&output), exit::OK);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("# --queue\nqueue = 5\n"), "{printed}");
    assert!(
        printed.contains("sluiced.toml\ndrain_seconds = 3\n"),
        "{printed}"
    );
    assert!(
        printed.contains("# default\ndevice = \"auto\"\n"),
        "{printed}"
    );
    let checked = run(folder.path(), &["--check-config"]).await;
    assert_eq!(code(&checked), exit::OK);
}
