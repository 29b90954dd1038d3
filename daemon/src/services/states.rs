//! States of recurrent models on their way in, before a request begins, and on their way out, after its end. A call owns
//! them: nothing is kept once it is over, and nothing for longer than [`STATE_TIMEOUT`].

use std::{
    iter,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use futures_util::{Stream, StreamExt, stream};
use sluice_engine::saved_state::{SavedState, StateModel, StateOptions, check_model};
use sluice_ops::StateShape;
use sluice_proto::{
    model::{Generation, InvalidField, ModelRef},
    v1::{
        self, generate_with_state_request::Part as RequestPart,
        generate_with_state_response::Part as ResponsePart,
    },
};
use sluice_weights::RWKV7_HEAD_DIM;
use tokio::{sync::Notify, time};
use tonic::{Status, Streaming};

use super::{Daemon, messages::CountedBytes};
use crate::{
    caller::Caller,
    events::{StateEvent, StateSink},
    failure::Failure,
    limits::{STATE_TIMEOUT, STATES_BYTES_MAX, USER_STATES_BYTES_MAX},
};

/// Bytes of a state that are sent at once.
const CHUNK_BYTES: usize = 256 << 10;

/// Bytes of the states of all calls.
#[derive(Debug, Default)]
pub(super) struct StateAccount(Mutex<CountedBytes>);

impl StateAccount {
    /// Takes the bytes of a state, which may be yet to come.
    fn take(self: &Arc<Self>, caller: Caller, bytes: u64) -> Result<HeldBytes, Failure> {
        let (all, of_user) = (STATES_BYTES_MAX, USER_STATES_BYTES_MAX);
        let held = usize::try_from(bytes).ok().filter(|held| *held <= of_user);
        let held = held.ok_or(Failure::StateTooLarge {
            bytes,
            max: of_user,
        })?;
        let mut counted = self.lock();
        if !counted.has_room(caller.user, held, all, of_user) {
            return Err(Failure::StatesFull);
        }
        counted.add(caller.user, held);
        Ok(HeldBytes {
            account: Arc::clone(self),
            caller,
            bytes: held,
        })
    }

    fn lock(&self) -> MutexGuard<'_, CountedBytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of a state; given back when dropped.
#[derive(Debug)]
pub(super) struct HeldBytes {
    account: Arc<StateAccount>,
    caller: Caller,
    bytes: usize,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.account.lock().remove(self.caller.user, self.bytes);
    }
}

/// What a request has to do with states, as its caller has sent it.
#[derive(Clone, Default)]
pub(super) struct CallStates {
    /// The state that it goes on from, and what that counts.
    start: Option<(Arc<SavedState>, Arc<HeldBytes>)>,
    /// Where the state goes in the end, if it is wanted.
    returned: Option<Weak<ReturnedState>>,
}

impl CallStates {
    /// The same for the engine.
    pub(super) fn options(&self) -> StateOptions {
        StateOptions {
            start: (self.start.as_ref()).map(|(state, _)| Arc::clone(state)),
            returns_state: self.returned.is_some(),
        }
    }

    /// The checked request.
    pub(super) fn check(&self, message: v1::GenerateRequest) -> Result<Generation, InvalidField> {
        match self.start {
            Some(_) => Generation::after_state(message),
            None => Generation::try_from(message),
        }
    }

    /// Takes the bytes of the state in the end, which is as large as any of the model's. A request that is made again keeps
    /// what it has.
    pub(super) fn reserve(
        &self,
        account: &Arc<StateAccount>,
        caller: Caller,
        model: Option<&StateModel>,
    ) -> Result<(), Failure> {
        if let (Some(returned), Some(model)) = (&self.returned, model)
            && let Some(returned) = returned.upgrade()
        {
            let bytes = model.shape.elements() * size_of::<f32>();
            let mut slot = returned.lock();
            if (slot.held.as_ref()).is_none_or(|held| held.bytes != bytes) {
                // Given back first, or there might be no room beside it.
                slot.held = None;
                slot.held = Some(account.take(caller, bytes as u64)?);
            }
        }
        Ok(())
    }

    /// Gives those bytes back: the engine did not take the request, which may wait for long before it is made again.
    pub(super) fn release(&self) {
        if let Some(returned) = self.returned.as_ref().and_then(Weak::upgrade) {
            returned.lock().held = None;
        }
    }

    /// Takes the state in the end. Holds the one that the request goes on from, and what that counts, until the engine has
    /// its copy.
    pub(super) fn sink(self) -> StateSink {
        let Self {
            mut start,
            returned,
        } = self;
        Box::new(move |event| match event {
            StateEvent::Begun => drop(start.take()),
            StateEvent::Ended(state) => {
                if let Some(returned) = returned.as_ref().and_then(Weak::upgrade) {
                    returned.put(state);
                }
            }
        })
    }
}

/// The state after a request, for the call that asked for it. Owned by the stream that answers it.
#[derive(Default)]
pub(super) struct ReturnedState {
    slot: Mutex<StateSlot>,
    /// Told when it is there, and when nobody wants it any more.
    told: Arc<Notify>,
}

#[derive(Default)]
struct StateSlot {
    held: Option<HeldBytes>,
    state: Option<SavedState>,
    /// Whether it was there, and nobody read it in time.
    is_expired: bool,
}

impl ReturnedState {
    /// One that is dropped [`STATE_TIMEOUT`] after it came, read or not.
    fn new() -> Arc<Self> {
        let returned = Arc::new(Self::default());
        let (told, weak) = (Arc::clone(&returned.told), Arc::downgrade(&returned));
        tokio::spawn(async move {
            told.notified().await;
            if weak.strong_count() > 0 {
                time::sleep(STATE_TIMEOUT).await;
            }
            if let Some(returned) = weak.upgrade() {
                *returned.lock() = StateSlot {
                    is_expired: true,
                    ..StateSlot::default()
                };
            }
        });
        returned
    }

    fn lock(&self) -> MutexGuard<'_, StateSlot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, state: SavedState) {
        self.lock().state = Some(state);
        self.told.notify_one();
    }

    /// The header and the number of chunks; `None` if the request gave no state.
    fn header(&self) -> Option<Result<(v1::SequenceState, usize), Failure>> {
        let slot = self.lock();
        if slot.is_expired {
            return Some(Err(Failure::StateTimeout { what: "read" }));
        }
        let state = slot.state.as_ref()?;
        let shape = state.model.shape;
        let header = v1::SequenceState {
            checkpoint: state.model.fingerprint.clone(),
            layers: shape.layers as u32,
            hidden_size: shape.hidden_size as u32,
            head_size: RWKV7_HEAD_DIM as u32,
            read_tokens: state.read_tokens,
            unread_token: state.unread_token,
            is_lossless: state.is_lossless,
        };
        Some(Ok((header, state.values.len().div_ceil(CHUNK_BYTES / 4))))
    }

    fn chunk(&self, index: usize) -> Result<Vec<u8>, Failure> {
        let slot = self.lock();
        let chunks = slot
            .state
            .iter()
            .flat_map(|state| state.values.chunks(CHUNK_BYTES / 4));
        let values = chunks.into_iter().nth(index);
        let values = values.ok_or(Failure::StateTimeout { what: "read" })?;
        Ok(values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect())
    }
}

impl Drop for ReturnedState {
    fn drop(&mut self) {
        self.told.notify_one();
    }
}

/// The messages in which a state goes to its caller, each made when it is asked for.
pub(super) fn parts(
    returned: Option<Arc<ReturnedState>>,
) -> impl Stream<Item = Result<v1::GenerateWithStateResponse, Status>> + Send {
    let response = |part| v1::GenerateWithStateResponse { part: Some(part) };
    // Not before somebody asks: the state comes with the last event.
    stream::once(async move {
        let found = returned.and_then(|returned| Some((returned.header()?, returned)));
        let parts = found.into_iter().flat_map(move |(found, returned)| {
            let (header, chunks) = match found {
                Ok((header, chunks)) => (Ok(response(ResponsePart::State(header))), chunks),
                Err(failure) => (Err(failure.into()), 0),
            };
            let chunks = (0..chunks).map(move |index| {
                let chunk = returned.chunk(index)?;
                Ok(response(ResponsePart::StateChunk(chunk)))
            });
            iter::once(header).chain(chunks)
        });
        stream::iter(parts)
    })
    .flatten()
}

/// What a call of `GenerateWithState` asks for.
pub(super) struct ReceivedCall {
    pub(super) request: v1::GenerateRequest,
    pub(super) states: CallStates,
    /// Where the state will be, if it is wanted.
    pub(super) returned: Option<Arc<ReturnedState>>,
}

impl Daemon {
    /// Reads a request and its state to the end of both.
    pub(super) async fn receive(
        self: &Arc<Self>,
        caller: Caller,
        messages: Streaming<v1::GenerateWithStateRequest>,
    ) -> Result<ReceivedCall, Status> {
        time::timeout(STATE_TIMEOUT, self.receive_slowly(caller, messages))
            .await
            .unwrap_or_else(|_| Err(Failure::StateTimeout { what: "sent" }.into()))
    }

    async fn receive_slowly(
        self: &Arc<Self>,
        caller: Caller,
        mut messages: Streaming<v1::GenerateWithStateRequest>,
    ) -> Result<ReceivedCall, Status> {
        let first = messages.message().await?.and_then(|message| message.part);
        let Some(RequestPart::Begin(begin)) = first else {
            return Err(invalid("begin", "is missing; it comes first").into());
        };
        let request = begin
            .request
            .ok_or_else(|| invalid("begin.request", "is missing"))?;
        let mut arriving = match begin.state {
            Some(header) => {
                let model = ModelRef::of_request(request.model.clone()).map_err(Failure::from)?;
                let model = self.meant(caller, model).await?;
                let loaded = self.models.serving_as(&model).ok();
                let loaded = loaded
                    .as_ref()
                    .map(|serving| serving.loaded.info.state.as_ref());
                Some(self.begin_state(caller, header, loaded, begin.return_state)?)
            }
            None => None,
        };
        while let Some(message) = messages.message().await? {
            let Some(RequestPart::StateChunk(chunk)) = message.part else {
                return Err(invalid("begin", "comes once").into());
            };
            match &mut arriving {
                Some(arriving) => arriving.push(&chunk)?,
                None => return Err(invalid("state_chunk", "there is no begin.state").into()),
            }
        }
        let start = arriving.map(ArrivingState::finish).transpose()?;
        let returned = begin.return_state.then(ReturnedState::new);
        let states = CallStates {
            start: start.map(|(state, held)| (Arc::new(state), Arc::new(held))),
            returned: returned.as_ref().map(Arc::downgrade),
        };
        Ok(ReceivedCall {
            request,
            states,
            returned,
        })
    }

    /// Checks a state's header against the model, if that is loaded, and takes its bytes. Without one the rest is checked once there
    /// is one. `is_returned`:
    /// whether the request gives back another, of the same size.
    fn begin_state(
        &self,
        caller: Caller,
        header: v1::SequenceState,
        loaded: Option<Option<&StateModel>>,
        is_returned: bool,
    ) -> Result<ArrivingState, Failure> {
        if header.head_size as usize != RWKV7_HEAD_DIM {
            let problem = format!(
                "has heads of {}; RWKV-7's have {RWKV7_HEAD_DIM}",
                header.head_size
            );
            return Err(invalid("state.head_size", problem));
        }
        let model = StateModel {
            fingerprint: header.checkpoint,
            shape: StateShape {
                layers: header.layers as usize,
                hidden_size: header.hidden_size as usize,
            },
        };
        if let Some(loaded) = loaded {
            check_model(&model, loaded).map_err(sluice_engine::EngineError::from)?;
        }
        // Of any two numbers: the shape's own sum is for sizes that were checked.
        let row = u64::from(header.hidden_size) * 4 * (2 + RWKV7_HEAD_DIM as u64);
        let bytes = u64::from(header.layers).saturating_mul(row);
        let (together, max) = (bytes.saturating_mul(2), USER_STATES_BYTES_MAX);
        if is_returned && together > max as u64 {
            // Both are held until the engine has begun, so there is never room for the second.
            let bytes = together;
            return Err(Failure::StateTooLarge { bytes, max });
        }
        let held = self.states.take(caller, bytes)?;
        Ok(ArrivingState {
            missing: held.bytes,
            state: SavedState {
                model,
                read_tokens: header.read_tokens,
                unread_token: header.unread_token,
                is_lossless: header.is_lossless,
                values: Vec::with_capacity(held.bytes / 4),
            },
            begun: Vec::new(),
            held,
        })
    }
}

/// A state of which some chunks have come.
struct ArrivingState {
    state: SavedState,
    /// Bytes of an element whose others are yet to come.
    begun: Vec<u8>,
    /// Bytes that are yet to come.
    missing: usize,
    held: HeldBytes,
}

impl ArrivingState {
    fn push(&mut self, chunk: &[u8]) -> Result<(), Failure> {
        if chunk.is_empty() {
            return Err(invalid("state_chunk", "is empty"));
        }
        self.missing = self.missing.checked_sub(chunk.len()).ok_or_else(|| {
            let problem = format!(
                "the state's sizes say that it has {} bytes",
                self.held.bytes
            );
            invalid("state_chunk", problem)
        })?;
        let head = chunk.len().min((4 - self.begun.len()) % 4);
        let (head, rest) = chunk.split_at(head);
        self.begun.extend(head);
        if let Ok(bytes) = <[u8; 4]>::try_from(&self.begun[..]) {
            self.state.values.push(f32::from_le_bytes(bytes));
            self.begun.clear();
        }
        let (whole, begun) = rest.as_chunks::<4>();
        (self.state.values).extend(whole.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        self.begun.extend(begun);
        Ok(())
    }

    fn finish(self) -> Result<(SavedState, HeldBytes), Failure> {
        match self.missing {
            0 => Ok((self.state, self.held)),
            missing => {
                let problem = format!("{missing} of its {} bytes are missing", self.held.bytes);
                Err(invalid("state", problem))
            }
        }
    }
}

fn invalid(field: &'static str, problem: impl Into<String>) -> Failure {
    let problem = problem.into();
    InvalidField { field, problem }.into()
}

#[cfg(test)]
mod tests;
