//! Clients of all kinds: what they send for `:authority`, and the port beside the socket.

use std::{path::Path, time::Duration};

use sluice_proto::{
    client,
    v1::{self, telemetry_service_client::TelemetryServiceClient},
};
use tempfile::TempDir;
use testkit::not_run;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
};
use tonic::Code;

use crate::support::{
    Daemon,
    http2::{DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, RESET, SETTINGS, frame},
    run, until, within,
};

/// A header that goes into the dynamic table, name and all, as gRPC's C core writes it.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut header = vec![0x40];
    for text in [name, value] {
        header.push(text.len() as u8);
        header.extend(text.as_bytes());
    }
    header
}

/// A call without arguments; `authority` is the encoded pseudo-header.
fn call(stream: u32, authority: &[u8]) -> Vec<u8> {
    let block = [
        literal(":path", "/sluice.v1.TelemetryService/GetSnapshot"),
        authority.to_vec(),
        // POST, http.
        vec![0x83, 0x86],
        literal("content-type", "application/grpc"),
        literal("te", "trailers"),
    ];
    let empty = [0; 5];
    [
        frame(HEADERS, END_HEADERS, stream, &block.concat()),
        frame(DATA, END_STREAM, stream, &empty),
    ]
    .concat()
}

/// What came back for a call: its frames' kinds up to the one that ends it.
async fn answer(wire: &mut (impl AsyncRead + Unpin), stream: u32) -> Vec<u8> {
    let mut kinds = Vec::new();
    loop {
        let mut head = [0; 9];
        within("a frame", wire.read_exact(&mut head)).await.unwrap();
        let bytes = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; bytes as usize];
        wire.read_exact(&mut payload).await.unwrap();
        let (kind, flags) = (head[3], head[4]);
        if head[5..] == stream.to_be_bytes() {
            kinds.push(kind);
            if kind == RESET || flags & END_STREAM != 0 {
                return kinds;
            }
        }
    }
}

async fn open(daemon: &Daemon) -> UnixStream {
    let mut wire = UnixStream::connect(&daemon.socket).await.unwrap();
    let begin = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    wire.write_all(&begin).await.unwrap();
    wire
}

const ANSWERED: [u8; 3] = [HEADERS, DATA, HEADERS];

#[tokio::test]
async fn whatever_a_client_sends_for_an_authority_is_answered_on_the_socket() {
    let daemon = Daemon::start(&[""; 0]).await;
    let mut authorities: Vec<Vec<u8>> = [
        // gRPC's C core sends the socket's path like this, others send one of the rest.
        "run%2Fuser%2F1000%2Fsluice%2Fsluice.sock",
        "/run/sluice/sluice.sock",
        "unix:///run/sluice/sluice.sock",
        "localhost",
        "127.0.0.1:50051",
        "a:b:c:d:e:f:g:h:i:j",
        "[",
        "user@",
    ]
    .map(|authority| literal(":authority", authority))
    .to_vec();
    // None, an empty one, and `tmp%2Fx.sock` with Huffman's code.
    authorities.push(Vec::new());
    authorities.push(vec![0x81]);
    authorities.push(b"\x41\x89\x4d\x35\xaa\x2c\x3e\x57\x41\xc9\xd7".to_vec());
    for authority in authorities {
        let mut wire = open(&daemon).await;
        wire.write_all(&call(1, &authority)).await.unwrap();
        let told = String::from_utf8_lossy(&authority).into_owned();
        assert_eq!(answer(&mut wire, 1).await, ANSWERED, "{told}");
    }
}

#[tokio::test]
async fn a_connections_later_calls_find_what_earlier_ones_put_into_the_table() {
    let daemon = Daemon::start(&[""; 0]).await;
    let mut wire = open(&daemon).await;
    let authority = literal(":authority", "tmp%2Fsluice.sock");
    wire.write_all(&call(1, &authority)).await.unwrap();
    assert_eq!(answer(&mut wire, 1).await, ANSWERED);
    // The latest entry is 62: te, content-type, authority, path.
    let block = [0xc1, 0xc0, 0x83, 0x86, 0xbf, 0xbe];
    for stream in [3, 5] {
        let again = [
            frame(HEADERS, END_HEADERS, stream, &block),
            frame(DATA, END_STREAM, stream, &[0; 5]),
        ];
        wire.write_all(&again.concat()).await.unwrap();
        assert_eq!(answer(&mut wire, stream).await, ANSWERED);
    }
    // So many others that the table drops what it had, on both sides at the same entry.
    for index in 0..40_u32 {
        let stream = 7 + 2 * index;
        let authority = literal(":authority", &format!("tmp%2F{index:_<100}"));
        wire.write_all(&call(stream, &authority)).await.unwrap();
        assert_eq!(answer(&mut wire, stream).await, ANSWERED, "{index}");
    }
    let block = [0xc1, 0xc0, 0x83, 0x86, 0xbf, 0xbe];
    let last = [
        frame(HEADERS, END_HEADERS, 101, &block),
        frame(DATA, END_STREAM, 101, &[0; 5]),
    ];
    wire.write_all(&last.concat()).await.unwrap();
    assert_eq!(answer(&mut wire, 101).await, ANSWERED);
}

/// A daemon with a port, and the port's address.
async fn listening(arguments: &[&str]) -> (Daemon, String) {
    let daemon = Daemon::start(arguments).await;
    const TOLD: &str = "every user of this machine";
    until("the port", || async { daemon.log().contains(TOLD) }).await;
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains(TOLD));
    let port = line.unwrap().split("port=").nth(1).unwrap();
    (daemon, port.split_whitespace().next().unwrap().to_owned())
}

#[tokio::test]
async fn a_port_beside_the_socket_has_the_same_services() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        if let Err(error) = std::net::TcpListener::bind(address) {
            not_run(&format!("{address} cannot be had here: {error}"));
            continue;
        }
        let (daemon, port) = listening(&["--listen", address]).await;
        assert!(!port.ends_with(":0"), "{port}");
        let url = format!("http://{port}");
        let channel = client::connect(Path::new(&url)).await.unwrap();
        let mut telemetry = TelemetryServiceClient::new(channel);
        let snapshot = telemetry.get_snapshot(v1::GetSnapshotRequest {}).await;
        let server = snapshot.unwrap().into_inner().snapshot.unwrap().daemon;
        assert_eq!(server.unwrap().socket_path, daemon.socket.to_str().unwrap());
        daemon.snapshot().await;
    }
}

#[tokio::test]
async fn a_port_answers_only_under_names_of_its_own_machine() {
    let (_daemon, port) = listening(&["--listen", "127.0.0.1:0"]).await;
    let ask = async |name: String| {
        let port = port.clone();
        let connect = tower::service_fn(move |_| {
            let port = port.clone();
            async move {
                TcpStream::connect(port)
                    .await
                    .map(hyper_util::rt::TokioIo::new)
            }
        });
        let endpoint = tonic::transport::Endpoint::from_shared(name).unwrap();
        let channel = endpoint.connect_with_connector(connect).await.unwrap();
        let mut client = TelemetryServiceClient::new(channel);
        let answer = client.get_snapshot(v1::GetSnapshotRequest {}).await;
        answer
            .map(|_| ())
            .map_err(|status| (status.code(), status.message().to_owned()))
    };
    ask("http://localhost".to_owned()).await.unwrap();
    let (code, message) = ask("http://evil.example:50051".to_owned())
        .await
        .unwrap_err();
    assert_eq!(code, Code::PermissionDenied);
    assert!(message.contains("not to `evil.example:50051`"), "{message}");
}

#[tokio::test]
async fn a_port_that_other_machines_reach_is_refused() {
    let folder = TempDir::new().unwrap();
    for address in ["0.0.0.0:50051", "[::]:50051", "192.0.2.1:50051"] {
        let output = run(folder.path(), &["--listen", address]).await;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        assert!(
            told.contains(
                "is reachable from other machines, and there is no TLS and nothing tells who calls"
            ),
            "{told}"
        );
        assert!(told.contains("listen on 127.0.0.1:50051"), "{told}");
    }
}

#[tokio::test]
async fn a_port_in_use_is_told_before_anything_is_served() {
    let folder = TempDir::new().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(folder.path(), &["--socket", "s", "--listen", &address]).await;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        told.contains(&format!("cannot listen on {address}")),
        "{told}"
    );
    assert!(told.contains("choose another port"), "{told}");
}

#[tokio::test]
async fn callers_that_speak_something_else_are_turned_away_with_one_line_in_the_log() {
    let (daemon, port) = listening(&["--listen", "127.0.0.1:0"]).await;
    let mut hello = vec![0x16, 0x03, 0x01, 0x00, 0xff, 0x01];
    hello.resize(300, 7);
    let settings = frame(SETTINGS, 0, 0, &[]);
    let broken: [Vec<u8>; 5] = [
        hello,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        vec![0xff; 4096],
        // Header blocks that end in the middle, and one that never ends.
        [
            PREFACE,
            &settings,
            &frame(HEADERS, END_HEADERS, 1, &[0x40, 0x7f, 0xff]),
        ]
        .concat(),
        [
            PREFACE,
            &settings,
            &frame(HEADERS, 0, 1, &[0x83]),
            &frame(9, 0, 1, &[]).repeat(1000),
        ]
        .concat(),
    ];
    for bytes in &broken {
        turned_away(
            &mut UnixStream::connect(&daemon.socket).await.unwrap(),
            bytes,
        )
        .await;
        turned_away(&mut TcpStream::connect(&port).await.unwrap(), bytes).await;
    }
    daemon.snapshot().await;
    let log = daemon.log();
    let told: Vec<_> = log
        .lines()
        .filter(|line| line.contains("turned away"))
        .collect();
    assert_eq!(told.len(), 1, "{log}");
    assert!(told[0].contains("spoken=\"TLS\""), "{log}");
    assert!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
}

/// Sends it and reads until the daemon has closed the connection.
async fn turned_away(wire: &mut (impl AsyncRead + AsyncWrite + Unpin), bytes: &[u8]) {
    // It may close before all was written.
    let _ = wire.write_all(bytes).await;
    let _ = wire.shutdown().await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(60), wire.read_to_end(&mut answer)).await;
    let _ = read.expect("the daemon leaves the connection open");
}
