//! Makes the `:authority` of every call on a Unix socket one that the HTTP/2 library takes.
//!
//! There the pseudo-header says nothing, and clients send what they like: gRPC's C core (Python, Ruby, PHP, C++) the socket's
//! path with its slashes percent-encoded, others the path itself. The library answers both with a stream error before any of
//! our code sees the call (hyperium/h2#487). So the bytes are changed on their way to it: the value of `:authority` becomes as
//! many hyphens as it has characters.
//!
//! The length is what keeps this free of state. HPACK's dynamic table counts decoded lengths, so both ends still put in and
//! drop the same entries, and a later call that names the entry by its index finds the hyphens. Nothing is decoded but
//! lengths, and whatever isn't understood goes on as it came, for the library to judge.

/// What every HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length, kind, flags and stream of a frame.
const HEAD_BYTES: usize = 9;
/// Longest frame that this daemon takes: the protocol's own default, which it doesn't raise.
const FRAME_BYTES_MAX: usize = 16 << 10;
/// Most bytes held back of a header block that comes in many frames; the library's own limit is smaller.
const BLOCK_BYTES_MAX: usize = 64 << 10;
/// Most frames of a header block. Frames may be empty, so the bound on bytes does not bound them.
const BLOCK_FRAMES_MAX: usize = 32;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// What a frame with [`PRIORITY`] begins with.
const PRIORITY_BYTES: usize = 5;

/// The bytes of one connection, from the client to the library.
#[derive(Debug)]
pub(super) struct Authorities {
    state: FrameState,
    /// The frame that is being gathered: its head, and for headers all of it.
    frame: Vec<u8>,
    /// The frames of a header block whose end hasn't come yet, as they came.
    held: Vec<u8>,
    /// How many they are.
    held_frames: usize,
}

#[derive(Debug)]
enum FrameState {
    /// So many bytes of the preface were seen.
    Preface(usize),
    /// Between frames, or within a frame's head.
    Head,
    /// So many bytes of a frame's payload go on as they are.
    Passing(usize),
    /// So many bytes of a header frame's payload are still to come.
    Gathering(usize),
    /// Everything passes unchanged from now on.
    Through,
}

impl Authorities {
    pub(super) fn new() -> Self {
        Self {
            state: FrameState::Preface(0),
            frame: Vec::new(),
            held: Vec::new(),
            held_frames: 0,
        }
    }

    /// Takes received bytes and appends those for the library to `out`.
    pub(super) fn feed(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() {
            match self.state {
                FrameState::Through => {
                    out.extend_from_slice(input);
                    return;
                }
                FrameState::Preface(seen) => {
                    let (now, rest) = split(input, PREFACE.len() - seen);
                    out.extend_from_slice(now);
                    input = rest;
                    let seen = seen + now.len();
                    self.state = match () {
                        () if !PREFACE[..seen].ends_with(now) => FrameState::Through,
                        () if seen < PREFACE.len() => FrameState::Preface(seen),
                        () => FrameState::Head,
                    };
                }
                FrameState::Head => {
                    let (now, rest) = split(input, HEAD_BYTES - self.frame.len());
                    self.frame.extend_from_slice(now);
                    input = rest;
                    if self.frame.len() == HEAD_BYTES {
                        self.begin_frame(out);
                    }
                }
                FrameState::Passing(left) => {
                    let (now, rest) = split(input, left);
                    out.extend_from_slice(now);
                    input = rest;
                    self.state = match left - now.len() {
                        0 => FrameState::Head,
                        left => FrameState::Passing(left),
                    };
                }
                FrameState::Gathering(left) => {
                    let (now, rest) = split(input, left);
                    self.frame.extend_from_slice(now);
                    input = rest;
                    match left - now.len() {
                        0 => self.end_header_frame(out),
                        left => self.state = FrameState::Gathering(left),
                    }
                }
            }
        }
    }

    fn begin_frame(&mut self, out: &mut Vec<u8>) {
        let bytes = frame_bytes(&self.frame);
        let kind = self.frame[3];
        // Nothing may come between the frames of a header block.
        let expected = if self.held.is_empty() {
            HEADERS
        } else {
            CONTINUATION
        };
        if kind == expected && bytes <= FRAME_BYTES_MAX {
            match bytes {
                0 => self.end_header_frame(out),
                bytes => self.state = FrameState::Gathering(bytes),
            }
        } else if kind == HEADERS || !self.held.is_empty() {
            self.give_up(out);
        } else {
            out.append(&mut self.frame);
            self.state = match bytes {
                0 => FrameState::Head,
                bytes => FrameState::Passing(bytes),
            };
        }
    }

    fn end_header_frame(&mut self, out: &mut Vec<u8>) {
        let is_last = self.frame[4] & END_HEADERS != 0;
        self.held.append(&mut self.frame);
        self.held_frames += 1;
        self.state = FrameState::Head;
        if is_last {
            match rewritten(&self.held) {
                Some(frames) => out.extend_from_slice(&frames),
                None => out.extend_from_slice(&self.held),
            }
            self.held.clear();
            self.held_frames = 0;
        } else if self.held.len() > BLOCK_BYTES_MAX || self.held_frames >= BLOCK_FRAMES_MAX {
            self.give_up(out);
        }
    }

    /// Passes this and everything after it unchanged: the library judges what this parser does not understand.
    fn give_up(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.held);
        out.append(&mut self.frame);
        self.state = FrameState::Through;
    }
}

fn split(input: &[u8], most: usize) -> (&[u8], &[u8]) {
    input.split_at(most.min(input.len()))
}

/// The length of the payload, by the frame's head.
fn frame_bytes(head: &[u8]) -> usize {
    usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])
}

/// The frames of one header block with another authority; `None` where there is nothing to change, or nothing to understand.
fn rewritten(frames: &[u8]) -> Option<Vec<u8>> {
    let (first, mut rest) = frames.split_at_checked(HEAD_BYTES + frame_bytes(frames))?;
    let (head, mut payload) = first.split_at(HEAD_BYTES);
    let (flags, stream) = (head[4], &head[5..]);
    if flags & PADDED != 0 {
        let (padding, padded) = payload.split_first()?;
        payload = padded.get(..padded.len().checked_sub(usize::from(*padding))?)?;
    }
    let priority_bytes = if flags & PRIORITY != 0 {
        PRIORITY_BYTES
    } else {
        0
    };
    let (priority, fragment) = payload.split_at_checked(priority_bytes)?;
    let mut block = fragment.to_vec();
    while !rest.is_empty() {
        let (frame, behind) = rest.split_at_checked(HEAD_BYTES + frame_bytes(rest))?;
        if &frame[5..HEAD_BYTES] != stream {
            return None;
        }
        block.extend_from_slice(&frame[HEAD_BYTES..]);
        rest = behind;
    }

    let block = super::hpack::with_neutral_authority(&block)?;
    let payload = [priority, &block].concat();
    let mut made = Vec::with_capacity(payload.len() + HEAD_BYTES);
    let mut parts = payload.chunks(FRAME_BYTES_MAX).peekable();
    let (mut kind, mut kept) = (HEADERS, flags & (END_STREAM | PRIORITY));
    while let Some(part) = parts.next() {
        let end = if parts.peek().is_none() {
            END_HEADERS
        } else {
            0
        };
        made.extend_from_slice(&(part.len() as u32).to_be_bytes()[1..]);
        made.extend_from_slice(&[kind, kept | end]);
        made.extend_from_slice(stream);
        made.extend_from_slice(part);
        (kind, kept) = (CONTINUATION, 0);
    }
    Some(made)
}

#[cfg(test)]
mod tests;
