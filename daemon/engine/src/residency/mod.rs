//! Where weights live and how computing gets them: [`Residency::acquire`] gives a guard over a unit, resident or
//! streamed, and nothing that computes knows which.

mod change;
mod convert;
mod link;
mod pace;
mod reader;
mod stream;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::AtomicBool},
};

use sluice_cuda::Span;
use sluice_formats::Format;
use sluice_machine::{
    Kind, Profile,
    page::{PAGE_BYTES, Page},
};
use sluice_ops::{
    device::{Device, DeviceBuffer},
    ledger::Ledger,
};
use sluice_plan::{Plan, Slots};
use sluice_weights::{Data, Part, Storage, Tier, Unit, UnitPlan, Weight, layout};

pub(crate) use self::change::Preparation;
use self::{
    link::Link,
    reader::Loaded,
    stream::{Remains, Slot, Stream},
};
pub use self::{reader::Reader, stream::StreamStats};
use crate::error::EngineError;

/// All weights of a loaded model, or of one that is rehearsed.
#[derive(Debug)]
pub struct Residency {
    held: Vec<Held>,
    index: HashMap<Unit, usize>,
    slots: Slots,
    stream: Option<Stream>,
    /// The way to a card, while no stream has it.
    link: Option<Link>,
    /// Memory on a card that weights are decoded into.
    decoded: Option<DeviceBuffer<Page>>,
    /// None in a rehearsal.
    reader: Option<Arc<Reader>>,
    device: Device,
    ledger: Ledger,
    epoch: u64,
}

/// A unit, and what there is of it.
#[derive(Debug)]
struct Held {
    plan: UnitPlan,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// In the device's memory.
    Resident(Loaded),
    /// Read in every pass; its place in the stream's cycle.
    Streamed(usize),
    /// Row by row from the checkpoint.
    Rows,
    /// Counted, not there: a rehearsal.
    Rehearsed,
}

/// A unit as it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitState {
    /// Which.
    pub unit: Unit,
    /// Where its bytes live between passes.
    pub tier: Tier,
    /// How its largest tensor is kept.
    pub storage: Storage,
    /// Bytes as kept for computing.
    pub bytes: u64,
    /// Whether it is on its way through a slot.
    pub in_flight: bool,
}

/// How a load went.
pub enum LoadOutcome<T> {
    /// It is there.
    Done(T),
    /// Somebody stopped it.
    Cancelled,
}

impl Residency {
    /// Reads what the plan wants on the device, unit by unit, and starts to stream the rest. `progress` is told the
    /// units done.
    ///
    /// # Errors
    /// A tensor that can't be read, or memory that can't be had.
    pub fn load(
        plan: &Plan,
        reader: Arc<Reader>,
        device: &Device,
        ledger: &Ledger,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(usize),
    ) -> Result<LoadOutcome<Self>, EngineError> {
        let mut residency = Self {
            held: Vec::with_capacity(plan.units.len()),
            index: index(&plan.units),
            slots: plan.slots,
            stream: None,
            link: None,
            decoded: None,
            reader: Some(reader),
            device: device.clone(),
            ledger: ledger.clone(),
            epoch: 0,
        };
        for (number, unit) in plan.units.iter().enumerate() {
            progress(number);
            let place = match unit.tier {
                Tier::Device => match residency.bring(unit, device, cancel)? {
                    LoadOutcome::Done(loaded) => Place::Resident(loaded),
                    LoadOutcome::Cancelled => return Ok(LoadOutcome::Cancelled),
                },
                Tier::Host | Tier::Disk => Place::Rows,
            };
            residency.held.push(Held {
                plan: unit.clone(),
                place,
            });
        }
        residency.start_stream()?;
        progress(plan.units.len());
        Ok(LoadOutcome::Done(residency))
    }

    /// Units that are counted and not there: a pass over them tells what memory it takes besides weights.
    #[must_use]
    pub fn rehearsal(units: &[UnitPlan]) -> Self {
        let held = units.iter().map(|unit| Held {
            plan: unit.clone(),
            place: Place::Rehearsed,
        });
        Self {
            held: held.collect(),
            index: index(units),
            slots: Slots::default(),
            stream: None,
            link: None,
            decoded: None,
            reader: None,
            device: Device::rehearsal(Profile::cpu(0)),
            ledger: Ledger::rehearsal(),
            epoch: 0,
        }
    }

    /// Reads a unit into memory of its own.
    fn bring(
        &self,
        unit: &UnitPlan,
        device: &Device,
        cancel: &AtomicBool,
    ) -> Result<LoadOutcome<Loaded>, EngineError> {
        let pages = layout::resident(unit.sizes()).bytes as usize / PAGE_BYTES;
        let memory = DeviceBuffer::new(device, &self.ledger, Kind::Weights, pages)?;
        let loaded = self.reader().load(unit, memory, device, cancel)?;
        Ok(match loaded {
            Some(loaded) => LoadOutcome::Done(loaded),
            None => LoadOutcome::Cancelled,
        })
    }

    /// A unit as another plan keeps it, in memory of its own, beside the one in force.
    pub(crate) fn converted(
        &self,
        unit: &UnitPlan,
        device: &Device,
        cancel: &AtomicBool,
    ) -> Result<LoadOutcome<Loaded>, EngineError> {
        self.bring(unit, device, cancel)
    }

    /// Streams what is neither on the device nor read row by row, beginning with the first of it. Slots of the right
    /// size are used on.
    fn start_stream(&mut self) -> Result<(), EngineError> {
        let mut cycle = Vec::new();
        for held in &mut self.held {
            if held.plan.is_streamed() {
                held.place = Place::Streamed(cycle.len());
                cycle.push(held.plan.clone());
            }
        }
        // Where memory can't be had from here on, whoever computes next tries again.
        let mut slots = self.end_stream();
        self.fit_decoded()?;
        let is_same = slots.len() == self.slots.count
            && slots.iter().all(|slot| slot.bytes() == self.slots.bytes);
        if cycle.is_empty() {
            self.link = None;
            return Ok(());
        }
        if !is_same {
            drop(slots);
            slots = Stream::slots(self.slots, &self.device, &self.ledger)?;
        }
        let reader = Arc::clone(self.reader());
        let mut link = match (self.link.take(), self.device.gpu()) {
            (None, Some(gpu)) => {
                let limit_bytes = reader.pin_limit_bytes();
                Some(Link::new(gpu, limit_bytes, &self.ledger)?)
            }
            (link, _) => link,
        };
        if let Some(link) = &mut link {
            link.fit(&cycle);
        }
        self.stream = Some(Stream::start(reader, cycle, slots, link)?);
        Ok(())
    }

    /// Takes or gives back memory that weights are decoded into, as the slots in force say.
    fn fit_decoded(&mut self) -> Result<(), EngineError> {
        let bytes = self.slots.decoded_bytes;
        if self.decoded_bytes() == bytes {
            return Ok(());
        }
        // Before more is taken.
        self.decoded = None;
        if bytes > 0 {
            let pages = bytes as usize / PAGE_BYTES;
            self.decoded = Some(DeviceBuffer::new(
                &self.device,
                &self.ledger,
                Kind::Slots,
                pages,
            )?);
        }
        Ok(())
    }

    fn decoded_bytes(&self) -> u64 {
        self.decoded.as_ref().map_or(0, DeviceBuffer::bytes)
    }

    /// Where weights are decoded into; nowhere but on a card.
    fn decoded(&self) -> Span {
        let decoded = self.decoded.as_ref();
        decoded.map_or_else(Span::default, DeviceBuffer::on_card)
    }

    /// Ends the stream; its slots, with nothing on its way to or from them. The way to a card stays for the next one.
    fn end_stream(&mut self) -> Vec<DeviceBuffer<Page>> {
        let Remains { slots, link } = self.stream.take().map(Stream::end).unwrap_or_default();
        self.link = link.or(self.link.take());
        slots
    }

    /// Starts the stream again where its slots, or what weights are decoded into, could not be had before.
    pub(crate) fn ensure_stream(&mut self) -> Result<(), EngineError> {
        let is_streamed = |held: &Held| held.plan.is_streamed();
        let lacks_stream = self.stream.is_none() && self.held.iter().any(is_streamed);
        match lacks_stream || self.decoded_bytes() != self.slots.decoded_bytes {
            true => self.start_stream(),
            false => Ok(()),
        }
    }

    fn no_slots(&self) -> EngineError {
        (self.ledger.refusal(Kind::Slots, self.slots.total_bytes())).into()
    }

    /// Waits for a unit and holds it until the guard is dropped.
    ///
    /// # Errors
    /// When it is streamed and can't be read, or there was no memory for slots.
    ///
    /// # Panics
    /// When the model has no such unit.
    pub fn acquire(&self, unit: Unit) -> Result<Guard<'_>, EngineError> {
        let held = self.held(unit);
        let bytes = match &held.place {
            Place::Resident(loaded) => Bytes::Resident(loaded),
            Place::Streamed(place) => {
                let stream = self.stream.as_ref().ok_or_else(|| self.no_slots())?;
                let waiting = self.device.wait();
                let slot = stream.take(*place);
                drop(waiting);
                Bytes::Streamed(slot?)
            }
            Place::Rows | Place::Rehearsed => Bytes::None,
        };
        Ok(Guard {
            plan: &held.plan,
            bytes,
            decoded: self.decoded(),
            epoch: self.epoch,
        })
    }

    /// Whether nothing is streamed: all units are there when they are asked for.
    #[must_use]
    pub fn is_resident(&self) -> bool {
        self.stream.is_none()
    }

    /// Parts of the head, in the order of the vocabulary, with the first row of each.
    pub fn head_parts(&self) -> impl Iterator<Item = (Unit, usize)> {
        self.held.iter().filter_map(|held| match held.plan.unit {
            Unit::Head(_) => Some((held.plan.unit, held.plan.tensors[0].first_row)),
            _ => None,
        })
    }

    /// Rows of the largest part of the head.
    #[must_use]
    pub fn head_part_rows(&self) -> usize {
        self.head_parts()
            .map(|(unit, _)| self.held(unit).plan.tensors[0].rows)
            .max()
            .unwrap_or(0)
    }

    /// The embedding, where it is on the device.
    ///
    /// # Errors
    /// As [`Residency::acquire`].
    pub fn embedding(&self) -> Result<Option<Guard<'_>>, EngineError> {
        match self.held(Unit::Embedding).place {
            Place::Resident(_) => self.acquire(Unit::Embedding).map(Some),
            _ => Ok(None),
        }
    }

    /// A row of the embedding, from the file it lies in.
    ///
    /// # Errors
    /// When it can't be read.
    ///
    /// # Panics
    /// When there is no such row, or `out` has another width.
    pub fn embedding_row(&self, id: u32, out: &mut [f32]) -> Result<(), EngineError> {
        let held = self.held(Unit::Embedding);
        let tensor = &held.plan.tensors[0];
        // At most a quarter of a MiB, once for every run of a token in a canvas.
        let mut bytes = vec![0; tensor.source.bytes(tensor.width)];
        self.reader().row(tensor, id as usize, &mut bytes)?;
        tensor.source.widen(&bytes, out);
        Ok(())
    }

    /// Looks whether the files that passes read from are still what they were. Streamed units are looked at as they
    /// are read.
    ///
    /// # Errors
    /// When one has changed.
    pub fn check_unchanged(&self) -> Result<(), EngineError> {
        let embedding = self.held(Unit::Embedding);
        match embedding.place {
            Place::Rows => self.reader().check_unchanged(&embedding.plan.tensors[0]),
            _ => Ok(()),
        }
    }

    /// Number of the weights' state; it changes with every swap of a unit.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What streaming cost since the last plan was put in force.
    #[must_use]
    pub fn stream_stats(&self) -> StreamStats {
        self.stream.as_ref().map(Stream::stats).unwrap_or_default()
    }

    /// Every unit as it stands.
    #[must_use]
    pub fn units(&self) -> Vec<UnitState> {
        let in_flight = self
            .stream
            .as_ref()
            .map_or_else(Vec::new, Stream::in_flight);
        let units = self.held.iter().map(|held| UnitState {
            unit: held.plan.unit,
            tier: held.plan.tier,
            storage: held.plan.storage(),
            bytes: held.plan.bytes(),
            in_flight: matches!(held.place, Place::Streamed(place) if in_flight.contains(&place)),
        });
        units.collect()
    }

    /// Every unit's plan as it stands.
    pub(crate) fn unit_plans(&self) -> Vec<UnitPlan> {
        self.held.iter().map(|held| held.plan.clone()).collect()
    }

    /// The slots as they stand.
    pub(crate) fn slots(&self) -> Slots {
        self.slots
    }

    /// Whether every unit is where its plan says.
    pub(crate) fn is_whole(&self) -> bool {
        let is_missing = |held: &Held| matches!(held.place, Place::Rehearsed);
        !self.held.iter().any(is_missing)
    }

    /// Whether the weights are the checkpoint's own, bit for bit.
    #[must_use]
    pub fn is_lossless(&self) -> bool {
        let mut tensors = self.held.iter().flat_map(|held| &held.plan.tensors);
        tensors.all(|tensor| match tensor.storage {
            Storage::Plain(format) => {
                format == tensor.source && tensor.coded.is_none_or(|coding| coding.is_lossless())
            }
            Storage::Coded(coding) => coding.is_lossless(),
        })
    }

    /// How each tensor is kept for computing: what is computed depends on nothing else of a plan.
    pub(crate) fn storages(&self) -> Vec<Storage> {
        let tensors = self.held.iter().flat_map(|held| &held.plan.tensors);
        tensors.map(|tensor| tensor.storage).collect()
    }

    /// Bytes of all weights as they are kept for computing.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.held.iter().map(|held| held.plan.bytes()).sum()
    }

    /// Formats met, without repetition; of what is coded, in memory or on its way there, how, and in how many bits a weight.
    #[must_use]
    pub fn formats(&self) -> Vec<String> {
        let mut plain: Vec<Format> = Vec::new();
        // Bytes and numbers.
        let mut coded: BTreeMap<(Format, &str), (u64, u64)> = BTreeMap::new();
        for tensor in self.held.iter().flat_map(|held| &held.plan.tensors) {
            match (tensor.storage, tensor.decoded_from()) {
                (Storage::Coded(coding), _) | (_, Some((coding, _))) => {
                    let how = (coding.format, tensor.storage_of_file().name());
                    let (bytes, numbers) = coded.entry(how).or_default();
                    *bytes += coding.bytes;
                    *numbers += tensor.numbers();
                }
                (Storage::Plain(format), None) => plain.push(format),
            }
        }
        plain.sort_unstable();
        plain.dedup();
        let coded = coded
            .into_iter()
            .map(|((format, scheme), (bytes, numbers))| {
                let bits = 8.0 * bytes as f64 / numbers.max(1) as f64;
                match scheme {
                    "rate" => format!("coded to {bits:.1} bits a weight"),
                    _ => {
                        let format = format.name();
                        format!("{format} coded without loss ({scheme}), {bits:.1} bits a weight")
                    }
                }
            });
        let plain = plain.into_iter().map(|format| format.name().to_owned());
        coded.chain(plain).collect()
    }

    fn held(&self, unit: Unit) -> &Held {
        let index = self.index.get(&unit);
        &self.held[*index.expect("a model acquires what its own specification named")]
    }

    fn reader(&self) -> &Arc<Reader> {
        self.reader.as_ref().expect("a rehearsal reads nothing")
    }
}

fn index(units: &[UnitPlan]) -> HashMap<Unit, usize> {
    let numbered = units.iter().enumerate();
    numbered.map(|(index, unit)| (unit.unit, index)).collect()
}

/// A unit of weights, held in place.
pub struct Guard<'a> {
    plan: &'a UnitPlan,
    bytes: Bytes<'a>,
    decoded: Span,
    epoch: u64,
}

enum Bytes<'a> {
    Resident(&'a Loaded),
    Streamed(Slot),
    None,
}

impl Guard<'_> {
    /// One of the unit's weights.
    ///
    /// # Panics
    /// When the part belongs to another unit, or the model has no such part.
    #[must_use]
    pub fn weight(&self, part: Part) -> Weight<'_> {
        let loaded = match &self.bytes {
            Bytes::Resident(loaded) => Some(*loaded),
            Bytes::Streamed(slot) => Some(slot.loaded()),
            Bytes::None => None,
        };
        weight(self.plan, loaded, part, self.decoded, self.epoch)
    }
}

impl Loaded {
    /// One of the weights of the unit that was loaded; of a card, one that is multiplied as it is.
    pub(crate) fn weight<'a>(&'a self, unit: &'a UnitPlan, part: Part) -> Weight<'a> {
        weight(unit, Some(self), part, Span::default(), 0)
    }
}

/// A weight of a unit; without bytes where nothing is loaded.
fn weight<'a>(
    unit: &'a UnitPlan,
    loaded: Option<&'a Loaded>,
    part: Part,
    decoded: Span,
    epoch: u64,
) -> Weight<'a> {
    let tensors = &unit.tensors;
    let index = tensors
        .iter()
        .position(|tensor| tensor.part == part)
        .unwrap_or_else(|| panic!("{part:?} is not in the unit held"));
    let tensor = &tensors[index];
    Weight {
        format: tensor.storage.format(),
        rows: tensor.rows,
        width: tensor.width,
        data: loaded.map_or(Data::None, |loaded| loaded.tensor(index, tensor, decoded)),
        epoch,
    }
}
