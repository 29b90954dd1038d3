//! All logits of one row, for choices that need more of them than a running maximum.

use super::{Activation, Body, Ops};
use crate::{
    device::DeviceBuffer,
    error::EngineError,
    ledger::{Buffer, Kind},
    residency::Weight,
};

/// Memory for one row's logits over the whole head, and for as many ids.
pub struct LogitsRow {
    on_device: DeviceBuffer<f32>,
    /// Where the choice is made; on the CPU the logits are there already.
    host: Vec<f32>,
    order: Order,
}

/// In the device's account where that is this process's memory.
enum Order {
    Device(Buffer<u32>),
    Host(Vec<u32>),
}

impl Ops {
    /// Memory for a row's logits over a head of so many rows.
    ///
    /// # Errors
    /// When it can't be had.
    pub fn logits_row(&self, head_rows: usize) -> Result<LogitsRow, EngineError> {
        let (device, ledger) = (&self.device, &self.ledger);
        let is_card = device.is_card();
        Ok(LogitsRow {
            on_device: DeviceBuffer::new(device, ledger, Kind::Head, head_rows)?,
            host: vec![0.0; if device.gpu().is_some() { head_rows } else { 0 }],
            order: match is_card {
                true => Order::Host(vec![0; if device.gpu().is_some() { head_rows } else { 0 }]),
                false => Order::Device(ledger.buffer(Kind::Head, head_rows)?),
            },
        })
    }

    /// Puts the logits of `x`, one row after the final norm, by a part of the head, whose first row is `first` of the
    /// vocabulary, in their place.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When there is another number of rows, or the part lies outside.
    pub fn take_logits(
        &self,
        row: &mut LogitsRow,
        x: &Activation,
        part: &Weight<'_>,
        first: usize,
    ) -> Result<(), EngineError> {
        assert_eq!(x.len(), 1);
        match &self.body {
            Body::Cpu(cpu) => {
                let logits = &mut row.on_device.host_mut()[first..first + part.rows];
                cpu.multiply(x, part, logits, false);
            }
            Body::Card(card) => {
                let place = row.on_device.span().part(first * 4, part.rows * 4);
                card.logits(x, part, place)?;
            }
            Body::Rehearsal => {}
        }
        Ok(())
    }

    /// The logits, once all parts were taken, and room for as many ids.
    ///
    /// # Errors
    /// When the device fails.
    pub fn read_logits<'a>(
        &self,
        row: &'a mut LogitsRow,
    ) -> Result<(&'a mut [f32], &'a mut [u32]), EngineError> {
        let LogitsRow {
            on_device,
            host,
            order,
        } = row;
        let order = match order {
            Order::Device(order) => &mut order[..],
            Order::Host(order) => &mut order[..],
        };
        match &self.body {
            Body::Card(card) => {
                card.download(on_device.span(), host)?;
                Ok((host, order))
            }
            Body::Cpu(_) | Body::Rehearsal => Ok((on_device.host_mut(), order)),
        }
    }
}
