//! What requests ask for: a form.

use sluice_proto::v1::GenerateRequest;

/// What requests ask for. What is not set is left to the daemon.
#[derive(Debug, Default)]
pub struct Options {
    /// The selected field.
    pub field: usize,
}

impl Options {
    /// Writes what is set into a request.
    pub fn apply(&self, _request: &mut GenerateRequest) {}
}
