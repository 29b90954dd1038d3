//! Recordings in files.

use std::io::BufRead;

use super::Recording;
use crate::json::read::{Events, ReadError};

/// The run that `reader` holds, as `sluice generate --json` printed it or [`Recording::write`] wrote it. It may have been cut
/// off before its end.
///
/// # Errors
/// When a line is no event, too much is in it, or there is no event at all.
pub fn load(reader: impl BufRead) -> Result<Recording, ReadError> {
    let mut recording = Recording::default();
    let mut events = Events::new(reader);
    for kind in &mut events {
        recording.take(kind?);
    }
    let canvas = recording.canvas();
    if canvas.queued.is_none() && canvas.started.is_none() && canvas.pass.is_none() {
        return Err(ReadError {
            line: events.line(),
            message: "it ends without an event of a generation".into(),
        });
    }
    Ok(recording)
}
