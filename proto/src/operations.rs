//! What all operations have in common, on either side of the wire.

use crate::v1::{self, Operation, OperationKind};

impl OperationKind {
    /// Requests, which compute with the loaded model and belong to the call that made them.
    pub const REQUESTS: [Self; 4] = [
        Self::Generate,
        Self::Score,
        Self::MeasureFidelity,
        Self::Embed,
    ];
    /// Work on a model's files.
    pub const MODEL_FILES: [Self; 6] = [
        Self::Compress,
        Self::Decompress,
        Self::Verify,
        Self::Prune,
        Self::Calibrate,
        Self::Optimize,
    ];
    /// Work on files: a model's, and those that go into memory.
    pub const FILES: [Self; 7] = [
        Self::Compress,
        Self::Decompress,
        Self::Verify,
        Self::Prune,
        Self::Calibrate,
        Self::Optimize,
        Self::Remember,
    ];

    /// Changes of the plan in force.
    pub const CHANGES: [Self; 2] = [Self::Apply, Self::Restore];

    /// Whether it is work on files.
    #[must_use]
    pub fn is_on_files(self) -> bool {
        Self::FILES.contains(&self)
    }

    /// Whether it is a request.
    #[must_use]
    pub fn is_request(self) -> bool {
        Self::REQUESTS.contains(&self)
    }

    /// A word for a request, in which people read of it.
    #[must_use]
    pub fn request_word(self) -> &'static str {
        match self {
            Self::Generate => "generate",
            Self::Score => "score",
            Self::MeasureFidelity => "fidelity",
            Self::Embed => "embed",
            _ => "request",
        }
    }
}

impl v1::Model {
    /// How far its load or download is, which one of these operations may be.
    #[must_use]
    pub fn progress_in<'a>(
        &self,
        operations: &'a [Operation],
    ) -> Option<&'a v1::OperationProgress> {
        let id = self.operation_id?;
        let mut all = operations.iter();
        all.find(|operation| operation.operation_id == id)?
            .progress
            .as_ref()
    }
}

impl v1::Snapshot {
    /// Requests that wait or run.
    pub fn requests(&self) -> impl Iterator<Item = &Operation> {
        let all = self.operations.iter();
        all.filter(|operation| operation.kind().is_request())
    }

    /// Work on files that runs.
    pub fn jobs(&self) -> impl Iterator<Item = &Operation> {
        let all = self.operations.iter();
        all.filter(|operation| operation.kind().is_on_files())
    }
}

impl From<String> for v1::OperationError {
    fn from(message: String) -> Self {
        Self {
            message,
            ..Default::default()
        }
    }
}

impl Operation {
    /// Whether it waits or runs.
    #[must_use]
    pub fn is_active(&self) -> bool {
        matches!(
            self.state(),
            v1::OperationState::Queued | v1::OperationState::Running
        )
    }

    /// What is known of a request; nothing of another operation.
    #[must_use]
    pub fn request_detail(&self) -> v1::RequestDetail {
        match self.detail {
            Some(v1::operation::Detail::Request(request)) => request,
            _ => v1::RequestDetail::default(),
        }
    }

    /// Why it ended without a result; empty where it did not.
    #[must_use]
    pub fn error_message(&self) -> &str {
        self.error.as_ref().map_or("", |error| &error.message)
    }
}

/// A response whose one field is the picture of an operation.
pub trait OperationResponse: Send + 'static {
    /// The response with this picture.
    fn of(operation: Operation) -> Self;

    /// The picture in it.
    fn into_operation(self) -> Option<Operation>;
}

macro_rules! operation_responses {
    ($($name:ident),+) => {
        $(impl OperationResponse for v1::$name {
            fn of(operation: Operation) -> Self {
                Self {
                    operation: Some(operation),
                }
            }

            fn into_operation(self) -> Option<Operation> {
                self.operation
            }
        })+
    };
}

// Each call that starts an operation streams its pictures, so that a client needs one loop and no second call
// (docs/decisions/2026-11-23-wire.md).
operation_responses!(
    WatchOperationResponse,
    ScoreResponse,
    MeasureFidelityResponse,
    LoadModelResponse,
    PullModelResponse,
    ApplyResponse,
    RestoreResponse,
    CompressResponse,
    DecompressResponse,
    VerifyResponse,
    PruneResponse,
    CalibrateResponse,
    ImportSourcesResponse,
    OptimizeResponse
);
