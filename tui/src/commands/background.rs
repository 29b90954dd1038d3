//! Starting a daemon in the background where none runs, and stopping one.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    os::{
        fd::OwnedFd,
        unix::{fs::OpenOptionsExt, net::UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt::socket_peercred,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal},
};
use serde_json::json;
use sluice_proto::v1::GetSnapshotRequest;
use sluice_shared::{address::DaemonAddress, exit};

use super::{follow, offline, present};
use crate::{
    connection::{DaemonConnection, TOKEN_FILE},
    output::{Failure, ProgressLine, StandardOutput, dim},
    user_folders,
};

/// How long a daemon may take to answer; a GPU's driver takes seconds.
const START_WAIT: Duration = Duration::from_secs(60);
/// How long a daemon may take to end; requests that run get ten seconds by default.
const END_WAIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(25);
/// Bytes of the log's end that a failure to start shows.
const TAIL_BYTES: u64 = 2 << 10;
/// Variables with paths that the daemon reads; they are made absolute, since it starts in another folder.
const PATH_VARIABLES: [&str; 5] = [
    "SLUICE_SOCKET",
    "SLUICE_MODELS",
    "SLUICE_MODEL",
    "SLUICE_WEIGHT_CACHE",
    "SLUICE_CONFIG",
];

/// Connects to the daemon on a socket; starts one where nobody listens.
pub(super) async fn daemon(
    socket: PathBuf,
    flag: Option<&Path>,
) -> Result<DaemonConnection, Failure> {
    match DaemonConnection::connect(socket.clone()).await {
        Err(failure) if failure.code() != exit::UNREACHABLE || is_address(&socket) => Err(failure),
        Err(_) if !has_listener(&socket) => start(&socket, flag).await,
        // Another may have started one since.
        Err(_) => DaemonConnection::connect(socket).await,
        connected => connected,
    }
}

/// Whether `socket` is an address, such as `http://127.0.0.1:7777`, or was meant for one, and not a path.
pub(super) fn is_address(socket: &Path) -> bool {
    !matches!(DaemonAddress::read(socket), Ok(DaemonAddress::Socket(_)))
}

/// Whether a process listens on the socket. One that refuses this user counts: starting another daemon would not help.
pub(super) fn has_listener(socket: &Path) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound};

    !UnixStream::connect(socket)
        .is_err_and(|error| matches!(error.kind(), NotFound | ConnectionRefused))
}

async fn start(socket: &Path, flag: Option<&Path>) -> Result<DaemonConnection, Failure> {
    let log = user_folders::state(|name| env::var_os(name))
        .map(|folder| folder.join("sluiced.log"))
        .ok_or_else(|| {
            Failure::new("no daemon runs, and there is no folder for its log")
                .with_hint("set $HOME or $XDG_STATE_HOME, or start `sluiced` yourself")
        })?;
    let (mut child, begin) = spawn(&log, flag)?;
    dim(&format!(
        "starting sluiced in the background; `sluice stop --daemon` ends it, its log is {}",
        log.display()
    ));
    let mut interrupts = follow::interrupts()?;
    let deadline = Instant::now() + START_WAIT;
    let mut has_ended = false;
    let interrupted = || Failure::interrupted("the daemon starts anyway");
    loop {
        // A call must succeed, not only the connection: the daemon listens before its engine has started, which may fail.
        let answer = async {
            let daemon = DaemonConnection::connect(socket.to_owned()).await?;
            present::list(&daemon).await.map(|_| daemon)
        };
        tokio::select! {
            answer = tokio::time::timeout_at(deadline.into(), answer) => {
                if let Ok(Ok(daemon)) = answer {
                    return Ok(daemon);
                }
            }
            _ = interrupts.recv() => return Err(interrupted()),
        }
        has_ended |= matches!(child.try_wait(), Ok(Some(_)) | Err(_));
        // No lock is needed: if two clients start a daemon at once, the second daemon finds the first and ends, and its
        // client waits for the first one here.
        if has_ended && !has_listener(socket) {
            return Err(failed("sluiced ended at its start", &log, begin));
        }
        if Instant::now() > deadline {
            return Err(failed(
                "sluiced was started but doesn't answer",
                &log,
                begin,
            ));
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            _ = interrupts.recv() => return Err(interrupted()),
        }
    }
}

/// Starts `sluiced`. Returns the process, and the offset in the log at which its output begins.
fn spawn(log: &Path, flag: Option<&Path>) -> Result<(Child, u64), Failure> {
    let refused = |error: io::Error| {
        Failure::new(format!(
            "no daemon runs, and {} cannot be written: {error}",
            log.display()
        ))
    };
    log.parent()
        .map_or(Ok(()), user_folders::make_private)
        .map_err(refused)?;
    // Appended, since an earlier daemon may still write to the same log.
    let file = File::options()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(log)
        .map_err(refused)?;
    let begin = fs::metadata(log).map_or(0, |facts| facts.len());
    let program = offline::sibling(env::current_exe());
    let mut command = Command::new(&program);
    command.arg("--background").arg(log);
    if let Some(socket) = flag {
        command.arg("--socket").arg(absolute(socket.as_os_str()));
    }
    for name in PATH_VARIABLES {
        if let Some(path) = env::var_os(name).filter(|path| !path.is_empty()) {
            command.env(name, absolute(&path));
        }
    }
    let child = command
        // It names this user's own token; the daemon would take the file for one of everybody's.
        .env_remove(TOKEN_FILE)
        // A daemon that kept the current folder would block unmounting it.
        .current_dir("/")
        .stdin(Stdio::null())
        // Errors before the daemon opens its log, such as a wrong configuration, are in the same file for the hint.
        .stdout(file.try_clone().map_err(refused)?)
        .stderr(file)
        .spawn();
    let child = child.map_err(|error| offline::missing(&program, &error))?;
    Ok((child, begin))
}

/// The path made absolute: the daemon has another working folder.
fn absolute(path: &OsStr) -> OsString {
    std::path::absolute(path).map_or_else(|_| path.to_owned(), PathBuf::into_os_string)
}

/// A failure whose hint is what the daemon wrote to its log since `begin`, or where the log is.
fn failed(what: &str, log: &Path, begin: u64) -> Failure {
    let failure = Failure::new(what);
    match tail(log, begin) {
        Ok(text) if !text.trim().is_empty() => {
            failure.with_hint(format!("it said:\n{}", text.trim_end()))
        }
        _ => failure.with_hint(format!("its log is {}", log.display())),
    }
}

fn tail(log: &Path, begin: u64) -> io::Result<String> {
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(
        begin.max(length.saturating_sub(TAIL_BYTES)).min(length),
    ))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Stops the daemon that listens on a socket, and waits until its process has ended.
pub(super) async fn end(
    socket: PathBuf,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let daemon = DaemonConnection::connect(socket.clone()).await?;
    if is_address(&socket) {
        return Err(
            Failure::new("a daemon cannot be stopped through an address").with_hint(
                "name its socket with --socket or $SLUICE_SOCKET, or end it where it was started",
            ),
        );
    }
    let answer = daemon.telemetry().get_snapshot(GetSnapshotRequest {}).await;
    let answer = answer.map_err(|status| daemon.failure(status))?;
    let server = answer
        .into_inner()
        .snapshot
        .and_then(|snapshot| snapshot.daemon);
    let claimed = server.map_or(0, |server| server.process_id);
    let elsewhere = || {
        Failure::new("this daemon was started by systemd, or runs in another container").with_hint(
            "end it where it was started, such as with `systemctl stop sluice.socket sluice.service`",
        )
    };
    // The kernel tells the listener's process id in this process's namespace. It is compared with the daemon's own: they
    // differ for a socket of systemd's or of another container, and then the daemon's id may be another process here.
    let stream = UnixStream::connect(&socket).map_err(|error| Failure::new(error.to_string()))?;
    let peer = socket_peercred(&stream).map_err(|_| elsewhere())?.pid;
    let claimed = i32::try_from(claimed).ok().and_then(Pid::from_raw);
    if claimed != Some(peer) {
        return Err(elsewhere());
    }
    // A pidfd stays with the process even if its id is reused. Kernels without pidfds get the signal by id.
    let process = pidfd_open(peer, PidfdFlags::empty()).ok();
    drop(stream);
    let told = match &process {
        Some(process) => pidfd_send_signal(process, Signal::TERM),
        None => kill_process(peer, Signal::TERM),
    };
    told.map_err(|error| {
        Failure::new(format!(
            "cannot end sluiced, process {}: {error}",
            peer.as_raw_nonzero()
        ))
        .with_hint("it may be another user's; `systemctl stop sluice` ends the service")
    })?;
    drop(daemon);
    let mut interrupts = follow::interrupts()?;
    let mut progress = ProgressLine::new();
    progress.show("waiting for requests to finish");
    tokio::select! {
        ended = tokio::time::timeout(END_WAIT, ended(process, &socket)) => ended.map_err(|_| {
            Failure::new("sluiced was asked to stop but is still running")
        })?,
        _ = interrupts.recv() => return Err(Failure::interrupted("sluiced ends anyway")),
    }
    progress.clear();
    match json {
        true => out.json(&json!({"pid": peer.as_raw_nonzero().get(), "ended": true})),
        false => out.line("sluiced has ended"),
    }
}

/// Waits until a process has ended, which is some time after it stops listening. Without a pidfd, waits for the latter.
async fn ended(process: Option<OwnedFd>, socket: &Path) {
    let goes_on = || match &process {
        // A pidfd becomes readable when its process has ended.
        Some(process) => {
            let mut ended = [PollFd::new(process, PollFlags::IN)];
            !matches!(poll(&mut ended, Some(&Timespec::default())), Ok(1..))
        }
        None => has_listener(socket),
    };
    while goes_on() {
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_no_path() {
        for address in ["http://127.0.0.1:7777", "https://h", "HTTP://h", "ftp://h"] {
            assert!(is_address(Path::new(address)), "{address}");
        }
        for path in ["/run/sluice/sluice.sock", "s", "a:b//c"] {
            assert!(!is_address(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn the_end_of_a_process_is_waited_for_and_not_that_of_its_listening() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let process = || Some(pidfd_open(pid, PidfdFlags::empty()).unwrap());
        let nobody = Path::new("/nonexistent/s");
        runtime.block_on(async {
            let mut end = std::pin::pin!(ended(process(), nobody));
            tokio::select! {
                biased;
                _ = &mut end => panic!("it runs"),
                () = std::future::ready(()) => {}
            }
            drop(child.stdin.take());
            end.await;
        });
        child.wait().unwrap();
    }

    #[test]
    fn a_failure_shows_what_the_daemon_wrote_and_not_what_was_there_before() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        fs::write(&log, "old\nnew\n").unwrap();
        assert_eq!(tail(&log, 4).unwrap(), "new\n");
        assert_eq!(tail(&log, 99).unwrap(), "");
        fs::write(&log, "x".repeat(9000)).unwrap();
        assert_eq!(tail(&log, 0).unwrap().len() as u64, TAIL_BYTES);
        let told = format!("{:?}", failed("it ended", &log, 9000));
        assert!(told.contains("its log is"), "{told}");
    }

    #[test]
    fn a_socket_that_nobody_listens_on_is_told_from_one_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        assert!(!has_listener(&path));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(has_listener(&path));
        drop(listener);
        assert!(!has_listener(&path), "it is stale");
    }
}
