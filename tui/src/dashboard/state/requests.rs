//! Rows of requests, as lists show them.

use std::cmp::Reverse;

use sluice_proto::v1::{
    FinishReason, Operation, OperationKind, OperationState, RequestDetail, Snapshot, operation,
};

use super::{
    super::{keys::Page, requests::EARLIER},
    DashboardState,
};
use crate::{canvas::Canvas, record::Recording};

impl DashboardState {
    /// Requests to list: those that wait or run, then those that ended, the newest first. On the overview only those that match
    /// the filter.
    #[must_use]
    pub fn rows(&self) -> Vec<Operation> {
        let mut rows = self.rows_of(self.snapshot());
        if self.page == Page::Overview && !self.filter.value().is_empty() {
            let wanted = self.filter.value().to_lowercase();
            rows.retain(|row| {
                let state = row.state().to_string();
                let name = self.requests.name(row.operation_id);
                let words = format!("{name} {state} {}", row.error_message());
                words.to_lowercase().contains(&wanted)
            });
        }
        rows
    }

    /// The present requests, even while the screen is frozen or filtered.
    pub(in super::super) fn all_rows(&self) -> Vec<Operation> {
        self.rows_of(self.present())
    }

    fn rows_of(&self, snapshot: Option<&Snapshot>) -> Vec<Operation> {
        let mut rows =
            snapshot.map_or_else(Vec::new, |snapshot| snapshot.requests().cloned().collect());
        let has = |rows: &[Operation], id| rows.iter().any(|row| row.operation_id == id);
        let recordings = &self.requests.recordings;
        let of_recording = |(id, recording): (&u64, &Recording)| {
            let canvas = recording.canvas();
            canvas.has_ended().then(|| ended(*id, canvas))
        };
        let seen = recordings.range(..EARLIER).filter_map(of_recording);
        let mut past: Vec<Operation> = seen.collect();
        for row in &self.requests.ended {
            if !has(&past, row.operation_id) {
                past.push(row.clone());
            }
        }
        past.retain(|row| !has(&rows, row.operation_id));
        past.sort_by_key(|row| Reverse(row.operation_id));
        rows.extend(past);
        rows.extend(recordings.range(EARLIER..).rev().filter_map(of_recording));
        rows
    }

    /// Whether a request is known to be no generation.
    #[must_use]
    pub fn fills_no_canvas(&self, request_id: u64) -> bool {
        let listed = self.present().into_iter().flat_map(Snapshot::requests);
        let mut requests = listed.chain(&self.requests.ended);
        requests.any(|row| row.operation_id == request_id && row.kind() != OperationKind::Generate)
    }

    /// Whether a request of ours waits or runs.
    pub(in super::super) fn own_is_active(&self) -> bool {
        !self.requests.own.is_empty()
    }

    pub(in super::super) fn has_ended(&self, request_id: u64) -> bool {
        let canvas = self.requests.canvas(request_id);
        canvas.is_some_and(Canvas::has_ended)
    }
}

/// A row for an ended request of which only the recording is left.
fn ended(request_id: u64, canvas: &Canvas) -> Operation {
    let started = canvas.started.as_ref();
    let done = canvas.done.as_ref();
    let state = match done {
        Some(done) if done.finish_reason() == FinishReason::Cancelled => OperationState::Cancelled,
        Some(_) => OperationState::Done,
        None => OperationState::Failed,
    };
    let detail = RequestDetail {
        length: started.map_or(0, |started| started.length),
        blocks: started.map_or(0, |started| started.blocks),
        done_blocks: u32::try_from(canvas.blocks.len()).unwrap_or(u32::MAX),
        passes: done.map_or(0, |done| done.passes),
        ..Default::default()
    };
    Operation {
        operation_id: request_id,
        kind: OperationKind::Generate.into(),
        state: state.into(),
        elapsed_ms: done.map_or(0.0, |done| done.elapsed_ms),
        error: canvas.failure.clone().map(Into::into),
        detail: Some(operation::Detail::Request(detail)),
        ..Default::default()
    }
}
