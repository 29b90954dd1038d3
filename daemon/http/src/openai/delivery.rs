//! How an answer is handed over: whole, or as events, and what these have beside the text.

use crate::{failure::Failure, fields::fields, sampling::Sampling};

fields! {
    /// What a stream has beside the text.
    pub(crate) struct StreamOptions {
        honoured include_usage: bool = "a last event with the tokens",
        accepted "include_obfuscation" = "lengths of events are what they are",
    }
}

/// How an answer is handed over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delivery {
    /// As events.
    pub(super) is_streamed: bool,
    /// Whether the last event tells the tokens.
    pub(super) includes_usage: bool,
    /// Whether there are pictures of the canvas between the texts.
    pub(super) shows_canvas: bool,
}

impl Delivery {
    /// # Errors
    /// When what only events can have is asked for without them.
    pub(super) fn new(
        stream: Option<bool>,
        options: Option<StreamOptions>,
        sampling: &Sampling,
    ) -> Result<Self, Failure> {
        let delivery = Self {
            is_streamed: stream.unwrap_or_default(),
            includes_usage: (options.and_then(|options| options.include_usage)).unwrap_or_default(),
            shows_canvas: sampling.shows_canvas(),
        };
        for (name, is_asked) in [
            ("stream_options", delivery.includes_usage),
            ("sluice.canvas", delivery.shows_canvas),
        ] {
            if is_asked && !delivery.is_streamed {
                return Err(Failure::field(name, "goes with `\"stream\": true`"));
            }
        }
        Ok(delivery)
    }
}
