//! stand-in until the probes are merged
#![allow(missing_docs)]
use crate::{error::EngineError, format::Format, ops::Ops};
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    pub copy_bytes_per_s: f64,
    pub linear: Vec<LinearRate>,
}
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearRate {
    pub format: Format,
    pub per_weight_s: f64,
    pub per_weight_row_s: f64,
}
impl LinearRate {
    pub fn seconds(&self, weights: u64, rows: usize) -> f64 {
        weights as f64 * (self.per_weight_s + self.per_weight_row_s * rows as f64)
    }
}
impl Rates {
    pub fn linear_rate(&self, format: Format) -> Option<LinearRate> {
        self.linear
            .iter()
            .copied()
            .find(|rate| rate.format == format)
    }
}
pub fn measure(_ops: &Ops) -> Result<Rates, EngineError> {
    Ok(Rates {
        copy_bytes_per_s: 5e9,
        linear: Format::ALL
            .map(|format| LinearRate {
                format,
                per_weight_s: 1e-10,
                per_weight_row_s: 2e-11,
            })
            .to_vec(),
    })
}
