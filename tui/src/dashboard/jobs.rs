//! Jobs that run, and the models that there are.

use sluice_proto::v1::Model;

/// Jobs and models.
#[derive(Debug, Default)]
pub struct Jobs {
    /// Models, as the daemon last listed them.
    pub models: Option<Vec<Model>>,
    /// The selected row.
    pub selected: usize,
    /// How far a measurement of fidelity is: its request, passes done, of so many.
    pub measuring: Option<(u64, u32, u32)>,
}
