use super::*;

/// What goes on of a connection that begins with the preface, as frames behind it.
fn forwarded(pieces: &[&[u8]]) -> Vec<u8> {
    let mut authorities = Authorities::new();
    let mut out = Vec::new();
    authorities.feed(PREFACE, &mut out);
    for piece in pieces {
        authorities.feed(piece, &mut out);
    }
    out.split_off(PREFACE.len())
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A literal header that goes into the dynamic table.
fn literal(name: &[u8], value: &[u8]) -> Vec<u8> {
    [&[0x40, name.len() as u8], name, &[value.len() as u8], value].concat()
}

/// As gRPC's C core writes a call.
fn call(authority: &[u8]) -> Vec<u8> {
    [
        literal(b":path", b"/sluice.v1.TelemetryService/GetSnapshot"),
        literal(b":authority", authority),
        vec![0x83, 0x86],
        literal(b"te", b"trailers"),
    ]
    .concat()
}

#[test]
fn a_percent_encoded_path_becomes_hyphens_of_the_same_length() {
    let sent = frame(HEADERS, END_HEADERS, 1, &call(b"tmp%2Fx.sock"));
    let expected = frame(HEADERS, END_HEADERS, 1, &call(b"------------"));
    assert_eq!(forwarded(&[&sent]), expected);
}

#[test]
fn it_is_the_same_however_the_bytes_arrive() {
    let data = frame(0, END_STREAM, 1, &[0; 5]);
    let sent = [
        frame(4, 0, 0, &[]),
        frame(HEADERS, END_HEADERS, 1, &call(b"tmp%2Fx.sock")),
        data,
        frame(HEADERS, END_HEADERS, 3, &[0xc3, 0x83]),
    ]
    .concat();
    let whole = forwarded(&[&sent]);
    assert_ne!(whole, sent);
    for at in 0..sent.len() {
        assert_eq!(forwarded(&[&sent[..at], &sent[at..]]), whole, "cut at {at}");
    }
    let single: Vec<&[u8]> = sent.chunks(1).collect();
    assert_eq!(forwarded(&single), whole);
}

#[test]
fn the_name_may_be_indexed_or_coded_and_so_may_the_value() {
    // "tmp%2Fx.sock" and ":authority" with Huffman's code.
    let value = [0x89, 0x4d, 0x35, 0xaa, 0x2c, 0x3e, 0x57, 0x41, 0xc9, 0xd7];
    let name = [0x88, 0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
    for begin in [
        &[0x41][..],
        &[0x01],
        &[0x11],
        &[&[0x40][..], &name].concat(),
    ] {
        let sent = frame(HEADERS, END_HEADERS, 1, &[begin, &value].concat());
        let expected = [begin, &[12], b"------------"].concat();
        let expected = frame(HEADERS, END_HEADERS, 1, &expected);
        assert_eq!(forwarded(&[&sent]), expected, "{begin:x?}");
    }
}

#[test]
fn an_empty_authority_is_left_out() {
    let sent = frame(
        HEADERS,
        END_HEADERS,
        1,
        &[0x83, 0x81, 0x86, 0x01, 0x00, 0x84],
    );
    let expected = frame(HEADERS, END_HEADERS, 1, &[0x83, 0x86, 0x84]);
    assert_eq!(forwarded(&[&sent]), expected);
}

#[test]
fn padding_priority_and_continuations_are_understood() {
    let block = call(b"tmp%2Fx.sock");
    let priority = [0, 0, 0, 0, 16];
    let (first, rest) = block.split_at(60);
    let (second, third) = rest.split_at(3);
    let padded = [&[4][..], &priority, first, &[0; 4]].concat();
    let flags = PADDED | PRIORITY | END_STREAM;
    let sent = [
        frame(HEADERS, flags, 5, &padded),
        frame(CONTINUATION, 0, 5, second),
        frame(CONTINUATION, 0, 5, &[]),
        frame(CONTINUATION, END_HEADERS, 5, third),
    ]
    .concat();
    let payload = [&priority[..], &call(b"------------")].concat();
    let flags = PRIORITY | END_STREAM | END_HEADERS;
    assert_eq!(forwarded(&[&sent]), frame(HEADERS, flags, 5, &payload));
}

#[test]
fn a_block_that_grows_beyond_a_frame_is_cut_anew() {
    let long = literal(b"x", &[b'a'; 100]);
    let mut block = vec![0x41, 0x82, 0xff, 0xff];
    // Two bytes of ones are no code: nothing is changed.
    assert_eq!(
        crate::services::incoming::hpack::with_neutral_authority(&block),
        None
    );
    // Twelve symbols in nine bytes come to thirteen bytes.
    block = vec![
        0x41, 0x89, 0x4d, 0x35, 0xaa, 0x2c, 0x3e, 0x57, 0x41, 0xc9, 0xd7,
    ];
    while block.len() + long.len() <= FRAME_BYTES_MAX {
        block.extend(&long);
    }
    while block.len() < FRAME_BYTES_MAX {
        block.push(0x83);
    }
    let out = forwarded(&[&frame(HEADERS, END_HEADERS, 1, &block)]);
    let (first, second) = out.split_at(HEAD_BYTES + FRAME_BYTES_MAX);
    assert_eq!(first[..5], [0, 0x40, 0, HEADERS, 0]);
    assert_eq!(second[..5], [0, 0, 3, CONTINUATION, END_HEADERS]);
    assert_eq!(second[HEAD_BYTES..], [0x83; 3]);
}

#[test]
fn what_is_not_understood_goes_on_as_it_came() {
    let broken = [
        // No preface.
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ];
    for sent in broken {
        let mut out = Vec::new();
        Authorities::new().feed(&sent, &mut out);
        assert_eq!(out, sent);
    }
    let call = call(b"a%2Fb");
    let huge = frame(HEADERS, END_HEADERS, 1, &vec![0x83; FRAME_BYTES_MAX + 1]);
    let floods = (0..100)
        .flat_map(|_| frame(CONTINUATION, 0, 1, &[]))
        .collect();
    for sent in [
        // A string that ends behind the block, a padding longer than the frame, another stream's continuation.
        frame(HEADERS, END_HEADERS, 1, &call[..call.len() - 1]),
        frame(HEADERS, END_HEADERS | PADDED, 1, &[9, 1, 2]),
        [
            frame(HEADERS, 0, 1, &call),
            frame(CONTINUATION, END_HEADERS, 3, &[]),
        ]
        .concat(),
        // Another frame within a block, a frame that is too long, and continuations without end.
        [frame(HEADERS, 0, 1, &call), frame(6, 0, 0, &[0; 8])].concat(),
        huge,
        [frame(HEADERS, 0, 1, &call), floods].concat(),
        frame(CONTINUATION, END_HEADERS, 1, &call),
    ] {
        assert_eq!(forwarded(&[&sent]), sent);
    }
}
