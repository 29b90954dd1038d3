//! What requests ask for: a form.

use sluice_proto::{model::DecodingChoice, v1::GenerateRequest};
use sluice_shared::dial::Dial;

/// What requests ask for. What is not set is left to the daemon.
#[derive(Debug, Default)]
pub struct Options {
    /// The selected field.
    pub field: usize,
    /// The dial's position.
    pub dial: Option<Dial>,
}

impl Options {
    /// Writes what is set into a request.
    pub fn apply(&self, request: &mut GenerateRequest) {
        let choice = DecodingChoice {
            dial: self.dial,
            ..Default::default()
        };
        choice.write(request);
    }
}
