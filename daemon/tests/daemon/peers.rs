//! Rude clients: they say nothing, never end a message, or read nothing. The others are served, and memory is bounded.

use std::time::Duration;

use futures_util::future::join_all;
use sluice_daemon::limits::{
    ADMIN_MESSAGES_BYTES, CLOSING_MAX, CONNECTIONS_MAX, CONTROL_FRAMES_PER_S, MESSAGES_BYTES_MAX,
    UNREAD_BYTES_MAX, WAITING_BYTES_MAX,
};
use sluice_proto::{
    client::CallError,
    v1::{self, generation_event::Event},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use crate::support::{
    Daemon, checkpoints, done, generate,
    http2::{
        DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, SETTINGS, WINDOW_UPDATE, frame,
    },
    long, many_descriptors, next, rest, tokens, until, within,
};

const MIB: u64 = 1 << 20;

/// The headers of a call of `Generate`, without compression.
fn headers(stream: u32) -> Vec<u8> {
    headers_of(stream, "/sluice.v1.GenerationService/Generate")
}

fn headers_of(stream: u32, path: &str) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        block.push(0);
        for text in [name, value] {
            block.push(text.len() as u8);
            block.extend(text.as_bytes());
        }
    }
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// A connection that begins so and then says nothing.
async fn silent(daemon: &Daemon, beginning: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(&daemon.socket).await.unwrap();
    // It may have been closed already.
    let _ = stream.write_all(beginning).await;
    stream
}

async fn resident(daemon: &Daemon) -> u64 {
    loop {
        match daemon.try_snapshot().await {
            Ok(snapshot) => return snapshot.host.unwrap().resident_bytes.unwrap(),
            // Of other calls there may be too many for a while: that is what these tests are about.
            Err(status) if status.code() == tonic::Code::ResourceExhausted => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(status) => panic!("{status}"),
        }
    }
}

#[tokio::test]
async fn silent_connections_leave_room_for_others() {
    many_descriptors();
    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let alone = generate(&daemon, tokens(&[1], 8)).await.unwrap();
    let settings = frame(SETTINGS, 0, 0, &[]);
    let never_ending = [
        PREFACE,
        &settings,
        &headers(1),
        &frame(DATA, 0, 1, &[0, 0, 1, 0, 0]),
    ]
    .concat();
    let beginnings = [&[][..], &PREFACE[..9], PREFACE, &never_ending];
    let mut peers = Vec::new();
    for count in [64, 65, 500, CONNECTIONS_MAX + 100] {
        while peers.len() < count {
            peers.push(silent(&daemon, beginnings[peers.len() % beginnings.len()]).await);
        }
        let served = generate(&daemon, tokens(&[1], 8)).await.unwrap();
        assert_eq!(done(&served).token_ids, done(&alone).token_ids, "{count}");
    }
}

#[tokio::test]
#[ignore = "seconds of both cores: cargo ci"]
async fn what_was_begun_has_to_come_to_its_end() {
    let daemon = Daemon::embedded().await;
    let mut half = silent(&daemon, &PREFACE[..9]).await;
    let mut nothing = Vec::new();
    within("the end of half a preface", half.read_to_end(&mut nothing))
        .await
        .unwrap();
    let mut flood = silent(&daemon, PREFACE).await;
    let pings = frame(PING, 0, 0, &[7; 8]).repeat(2 * CONTROL_FRAMES_PER_S as usize + 2);
    // It may be closed in the middle of it.
    let _ = flood
        .write_all(&[&frame(SETTINGS, 0, 0, &[])[..], &pings].concat())
        .await;
    let _ = within("the end of a flood", flood.read_to_end(&mut nothing)).await;
    assert!(daemon.log().contains("a flood of control frames"));
}

#[tokio::test]
async fn messages_that_never_end_take_bounded_memory() {
    let daemon = Daemon::embedded().await;
    let before = resident(&daemon).await;
    let opening = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    // A message of 4 MiB less a little.
    let length = (4_u32 << 20) - 100;
    let mut rude = Vec::new();
    for _ in 0..160 {
        let mut stream = silent(&daemon, &opening).await;
        rude.push(tokio::spawn(async move {
            let begin = [&[0][..], &length.to_be_bytes()].concat();
            let _ = stream
                .write_all(&[headers(1), frame(DATA, 0, 1, &begin)].concat())
                .await;
            let piece = frame(DATA, 0, 1, &[0; 15 << 10]);
            for _ in 0..68 {
                // Within HTTP/2's first window; the daemon opens it again as it reads.
                if stream.write_all(&piece.repeat(4)).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }));
    }
    let mut took = 0;
    let begun = std::time::Instant::now();
    // Until a large message finds no room, which shows that they sent as much as may be held.
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        took = took.max(resident(&daemon).await.saturating_sub(before));
        let large = generate(&daemon, tokens(&vec![200_000_000; 3 << 18], 8)).await;
        if large.is_err_and(|error| error.reason.as_deref() == Some("MESSAGES_FULL")) {
            break;
        }
        let waited = begun.elapsed();
        assert!(waited < Duration::from_secs(60), "nobody was refused");
    }
    assert!(generate(&daemon, tokens(&[1], 8)).await.is_ok());
    assert!(took < MESSAGES_BYTES_MAX as u64 * 2, "{} MiB", took / MIB);
    rude.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Descriptors that a daemon has open.
fn descriptors(daemon: &Daemon) -> usize {
    let folder = format!("/proc/{}/fd", daemon.pid().as_raw_nonzero());
    std::fs::read_dir(folder).unwrap().count()
}

/// The beginning of a connection with windows that never close.
fn endless_windows() -> Vec<u8> {
    const INITIAL_WINDOW_SIZE: [u8; 6] = [0, 4, 0x7f, 0xff, 0xff, 0xff];
    let settings = frame(SETTINGS, 0, 0, &INITIAL_WINDOW_SIZE);
    let window = frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0]);
    [PREFACE, &settings, &window].concat()
}

#[tokio::test]
#[ignore = "seconds of both cores: cargo ci"]
async fn who_reads_nothing_is_closed_and_costs_bounded_memory() {
    many_descriptors();
    let daemon = Daemon::embedded().await;
    let (before, open) = (resident(&daemon).await, descriptors(&daemon));
    let watch = |stream: u32| {
        let interval = [0, 0, 0, 0, 2, 8, 50];
        [
            headers_of(stream, "/sluice.v1.TelemetryService/WatchSnapshots"),
            frame(DATA, END_STREAM, stream, &interval),
        ]
        .concat()
    };
    let mut unread = Vec::new();
    for _ in 0..40 {
        let mut peer = silent(&daemon, &endless_windows()).await;
        for call in 0..60 {
            let _ = peer.write_all(&watch(2 * call + 1)).await;
        }
        // Its answer finds no room once the peer's own buffer is full.
        let _ = peer.write_all(&frame(PING, 0, 0, &[7; 8])).await;
        unread.push(peer);
    }
    let mut alone = None;
    let mut took = 0;
    // Snapshots come with each change: requests make some.
    let begun = std::time::Instant::now();
    while !daemon.log().contains("it does not read") {
        let waited = begun.elapsed();
        assert!(
            waited < Duration::from_secs(120),
            "nobody was closed, {} MiB",
            took / MIB
        );
        let served = match generate(&daemon, tokens(&[1], 8)).await {
            Ok(served) => served,
            // On a busy machine, until some of those calls have ended.
            Err(refused) if refused.reason.as_deref() == Some("TOO_MANY_CALLS") => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
            Err(other) => panic!("{other:?}"),
        };
        let found = done(&served).token_ids.clone();
        assert_eq!(alone.get_or_insert_with(|| found.clone()), &found);
        took = took.max(resident(&daemon).await.saturating_sub(before));
    }
    assert!(took < UNREAD_BYTES_MAX as u64 * 3, "{} MiB", took / MIB);
    println!(
        "{} MiB more, {:?} until one was closed",
        took / MIB,
        begun.elapsed()
    );
    // What was closed has given its descriptor back, though it reads nothing.
    until("a descriptor", || async {
        descriptors(&daemon) < open + 40
    })
    .await;
    drop(unread);
    until("all descriptors", || async {
        descriptors(&daemon) <= open + 2
    })
    .await;
}

#[tokio::test]
async fn closed_connections_of_those_who_read_nothing_leave_no_descriptors() {
    many_descriptors();
    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let open = descriptors(&daemon);
    let mut peers = Vec::new();
    for index in 0..CONNECTIONS_MAX + 300 {
        // Its own buffer is full of answers to pings that it doesn't read.
        let pings = frame(PING, 0, 0, &[7; 8]).repeat(CONTROL_FRAMES_PER_S as usize / 4);
        let beginning = [&endless_windows()[..], &pings].concat();
        let mut peer = silent(&daemon, &beginning).await;
        if index % 2 == 0 {
            let _ = peer.write_all(&headers(1)[..20]).await;
        }
        peers.push(peer);
    }
    assert!(generate(&daemon, tokens(&[1], 8)).await.is_ok());
    let most = open + CONNECTIONS_MAX + 16 + CLOSING_MAX + 4;
    until("descriptors", || async { descriptors(&daemon) <= most }).await;
}

/// Clients of the crowd.
const CROWD: usize = 500;

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_that_leaves_reads_slowly_and_cancels_is_served_as_alone() {
    many_descriptors();
    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let prompt = |index: usize| tokens(&[1 + index as u32 % 7, 2, 3], 32);
    let mut alone = Vec::new();
    for index in 0..7 {
        let events = generate(&daemon, prompt(index)).await.unwrap();
        alone.push(done(&events).token_ids.clone());
    }
    let before = resident(&daemon).await;
    let clients = (0..CROWD).map(|index| {
        let (daemon, alone) = (&daemon, &alone);
        async move {
            let mut client = daemon.generation().await;
            let mut stream = client.generate(prompt(index)).await.unwrap().into_inner();
            let first = next(&mut stream).await.unwrap();
            match index % 4 {
                // Gone without a word.
                0 => return None,
                1 => {
                    if let Some(Event::Queued(queued)) = first {
                        // It may have ended by then.
                        let _ = daemon.cancel(queued.request_id).await;
                    }
                }
                2 => tokio::time::sleep(Duration::from_millis(2000)).await,
                _ => {}
            }
            let events = rest(&mut stream).await.unwrap();
            let is_whole = done(&events).finish_reason() == v1::FinishReason::Length;
            // Who cancels gets what was written until then.
            let expected = &alone[index % 7];
            match is_whole {
                true => assert_eq!(&done(&events).token_ids, expected, "client {index}"),
                false => assert_eq!(index % 4, 1, "client {index} was not served"),
            }
            Some(is_whole)
        }
    });
    let served = join_all(clients).await;
    let took = resident(&daemon).await.saturating_sub(before);
    let whole = served.iter().filter(|one| **one == Some(true)).count();
    println!("{whole} of {CROWD} whole, {} MiB more", took / MIB);
    // A half stays to the end, and some cancels come too late.
    assert!(whole >= CROWD / 2, "{whole}");
    assert!(took < 128 * MIB, "{} MiB", took / MIB);
    assert_eq!(daemon.snapshot().await.totals.unwrap().refused_requests, 0);
}

#[tokio::test]
#[ignore = "seconds of both cores: cargo ci"]
async fn long_messages_that_wait_in_line_are_counted() {
    let arguments = ["--threads", "1", "--parallel", "1", "--queue", "1"];
    let daemon = Daemon::with_model(checkpoints::slow(), &arguments).await;
    let (_, _running) = daemon.running(long()).await;
    let mut client = daemon.generation().await;
    // One more with the engine, and one in the daemon's line, which others don't pass.
    let mut waiting = vec![
        client.generate(long()).await.unwrap(),
        client.generate(long()).await.unwrap(),
    ];
    let before = resident(&daemon).await;
    // 3 MiB each, all together more than messages may have.
    let large = || tokens(&vec![200_000_000; 3 << 18], 32);
    let mut refused = 0;
    for _ in 0..40 {
        match client.generate(large()).await {
            Ok(stream) => waiting.push(stream),
            Err(status) => {
                let error = CallError::from(status);
                assert_eq!(error.reason.as_deref(), Some("MESSAGES_FULL"), "{error}");
                refused += 1;
            }
        }
    }
    println!("{} wait, {refused} refused", waiting.len());
    assert!(refused > 0);
    let took = resident(&daemon).await.saturating_sub(before);
    assert!(took < 2 * MESSAGES_BYTES_MAX as u64, "{} MiB", took / MIB);
    // The test's user is an administrator, and the engine takes none of them.
    assert!(waiting.len() <= 2 + (WAITING_BYTES_MAX + ADMIN_MESSAGES_BYTES) / (3 << 20));
}
