//! Watches a connection's frames go by: whether one was begun and never ends, and whether too many carry nothing.
//!
//! The HTTP/2 library waits for ever for the rest of a frame, and answers every ping and every change of settings.

use std::time::Duration;

use tokio::time::Instant;

use crate::limits::CONTROL_FRAMES_PER_S;

/// Bytes of HTTP/2's preface.
const PREFACE_BYTES: usize = 24;
/// Length, kind, flags and stream of a frame.
const HEAD_BYTES: usize = 9;
/// Over which control frames are counted.
const WINDOW: Duration = Duration::from_secs(1);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;

/// The frames of one connection, from the client.
#[derive(Debug)]
pub(super) struct Frames {
    /// Bytes that are still to come of the preface, or of a frame's payload.
    left: usize,
    head: [u8; HEAD_BYTES],
    /// Bytes of `head` that have come; 0 between frames and within a payload.
    head_bytes: usize,
    /// The last header frame wasn't the last of its block.
    in_header_block: bool,
    /// Control frames since then.
    control: u32,
    since: Instant,
}

/// What bytes brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// A frame, or a header block, was begun in them.
    Begun,
    /// They belong to what was begun before.
    Same,
}

/// The peer sent more control frames than [`CONTROL_FRAMES_PER_S`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flood;

impl Frames {
    pub(super) fn new() -> Self {
        Self {
            left: PREFACE_BYTES,
            head: [0; HEAD_BYTES],
            head_bytes: 0,
            in_header_block: false,
            control: 0,
            since: Instant::now(),
        }
    }

    /// Whether something was begun whose rest is still to come: the preface, a frame, a header block.
    pub(super) fn is_unfinished(&self) -> bool {
        self.left > 0 || self.head_bytes > 0 || self.in_header_block
    }

    /// Looks at bytes that came; whether the last thing that was begun was begun in them.
    pub(super) fn see(&mut self, mut came: &[u8]) -> Result<Progress, Flood> {
        let mut progress = Progress::Same;
        while !came.is_empty() {
            if self.left > 0 {
                let now = self.left.min(came.len());
                self.left -= now;
                came = &came[now..];
                continue;
            }
            // All frames of a header block are one thing.
            if self.head_bytes == 0 && !self.in_header_block {
                progress = Progress::Begun;
            }
            let now = (HEAD_BYTES - self.head_bytes).min(came.len());
            self.head[self.head_bytes..][..now].copy_from_slice(&came[..now]);
            self.head_bytes += now;
            came = &came[now..];
            if self.head_bytes == HEAD_BYTES {
                self.head_bytes = 0;
                self.begin()?;
            }
        }
        Ok(progress)
    }

    fn begin(&mut self) -> Result<(), Flood> {
        let [high, middle, low, kind, flags, ..] = self.head;
        self.left = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        match kind {
            HEADERS | CONTINUATION => self.in_header_block = flags & END_HEADERS == 0,
            DATA => {}
            _ => return self.count(),
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), Flood> {
        if self.since.elapsed() >= WINDOW {
            self.since = Instant::now();
            self.control = 0;
        }
        self.control += 1;
        match self.control > CONTROL_FRAMES_PER_S {
            true => Err(Flood),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING: u8 = 6;

    fn frame(kind: u8, flags: u8, bytes: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, bytes, kind, flags, 0, 0, 0, 1];
        frame.resize(HEAD_BYTES + usize::from(bytes), 7);
        frame
    }

    #[tokio::test]
    async fn whatever_is_begun_is_unfinished_until_its_last_byte() {
        let mut frames = Frames::new();
        let block = [
            frame(HEADERS, 0, 3),
            frame(CONTINUATION, 0, 0),
            frame(CONTINUATION, END_HEADERS, 2),
        ];
        for unit in [
            vec![b'P'; PREFACE_BYTES],
            frame(DATA, 0, 20),
            block.concat(),
        ] {
            let (last, begin) = unit.split_last().unwrap();
            for byte in begin {
                frames.see(&[*byte]).unwrap();
                assert!(frames.is_unfinished());
            }
            frames.see(&[*last]).unwrap();
            assert!(!frames.is_unfinished());
        }
        frames.see(&frame(DATA, 0, 0)).unwrap();
        assert!(!frames.is_unfinished());
    }

    #[tokio::test]
    async fn each_frame_has_its_own_time_and_a_header_block_one() {
        let mut frames = Frames::new();
        assert_eq!(frames.see(&[b'P'; PREFACE_BYTES]), Ok(Progress::Same));
        let two = frame(DATA, 0, 20).repeat(2);
        assert_eq!(frames.see(&two[..40]), Ok(Progress::Begun));
        assert_eq!(frames.see(&two[40..45]), Ok(Progress::Same));
        // The end of one and the beginning of the next in one read.
        let more = [&two[45..], &frame(HEADERS, 0, 3)[..]].concat();
        assert_eq!(frames.see(&more), Ok(Progress::Begun));
        let rest = frame(CONTINUATION, 0, 2);
        assert_eq!(frames.see(&rest), Ok(Progress::Same));
    }

    #[tokio::test(start_paused = true)]
    async fn only_frames_that_carry_nothing_are_a_flood() {
        let mut frames = Frames::new();
        frames.see(&[b'P'; PREFACE_BYTES]).unwrap();
        let pings = |count: u32| frame(PING, 0, 8).repeat(count as usize);
        for _ in 0..3 * CONTROL_FRAMES_PER_S {
            frames.see(&frame(DATA, 0, 1)).unwrap();
        }
        for _ in 0..3 {
            frames.see(&pings(CONTROL_FRAMES_PER_S)).unwrap();
            tokio::time::advance(WINDOW).await;
        }
        frames.see(&pings(1)).unwrap();
        assert_eq!(frames.see(&pings(CONTROL_FRAMES_PER_S)), Err(Flood));
    }
}
