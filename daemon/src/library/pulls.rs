//! The downloads under way, by the name of what is downloaded.

use std::{
    collections::BTreeMap,
    fs::Metadata,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
};

use sluice_checkpoint::{FileDigest, VerifiedFiles};
use sluice_hub::{Client, HashedFile, Patience, Pull, PullEvent, REVISION_DEFAULT, Token};
use sluice_proto::v1;
use sluice_shared::units;
use tokio_util::sync::CancellationToken;

use super::Library;
use crate::{
    caller::Caller,
    failure::Failure,
    operations::{
        Detail, Operation, OperationDescription, Operations, Outcome, RunningOperation, progress,
    },
    role::Role,
};

/// The downloads under way.
#[derive(Debug)]
pub struct Pulls {
    library: Arc<Library>,
    operations: Arc<Operations>,
    /// Files whose digests were compared, here or by a load.
    verified: VerifiedFiles,
    active: Mutex<BTreeMap<String, ActivePull>>,
}

#[derive(Debug, Clone)]
struct ActivePull {
    /// The requested revision.
    revision: String,
    /// What opens the hub for it.
    token: Option<Token>,
    operation: Arc<Operation>,
}

impl Pulls {
    /// Without any download.
    #[must_use]
    pub fn new(
        library: Arc<Library>,
        operations: Arc<Operations>,
        verified: VerifiedFiles,
    ) -> Self {
        Self {
            library,
            operations,
            verified,
            active: Mutex::default(),
        }
    }

    /// Begins a download, or joins the one of the same name, revision and token. It goes on when nobody listens any more.
    /// `budget_bytes` is what weights are compared with, for advice.
    ///
    /// # Errors
    /// When there is no place for it, too many are under way, or another revision is, or the same with another token.
    pub fn begin(
        self: &Arc<Self>,
        pull: Pull,
        token: Option<Token>,
        caller: Caller,
        budget_bytes: u64,
    ) -> Result<Arc<Operation>, Failure> {
        let folder = self.library.folder()?.to_owned();
        let key = match &pull.file {
            Some(file) => format!("{}:{file}", pull.name),
            None => pull.name.to_string(),
        };
        let named = pull.revision.clone();
        let revision = named.unwrap_or_else(|| REVISION_DEFAULT.to_owned());
        let mut access = self.library.access().clone();
        // A client's token is for this download alone. The hub's address stays the daemon's: no client chooses whom it calls.
        // Its own token opens what its administrator may see, and that is nobody else's.
        let own = access.token.take().filter(|_| caller.may(Role::Admin));
        access.token = token.or(own);
        let mut active = self.lock();
        if let Some(known) = active.get(&key) {
            // Two revisions would be written to the same folder.
            if known.revision != revision {
                let revision = known.revision.clone();
                return Err(Failure::PullingAnother {
                    model: key,
                    revision,
                });
            }
            // It tells what only its token may see: names of files, their sizes, and whether there is a model at all.
            if known.token != access.token {
                return Err(Failure::PullingWithAnotherToken { model: key });
            }
            return Ok(known.operation.clone());
        }
        let cancel = CancellationToken::new();
        let cancels = cancel.clone();
        let description = OperationDescription {
            kind: v1::OperationKind::Pull,
            model: key.clone(),
            caller: Some(caller),
            ..Default::default()
        };
        let running = self
            .operations
            .begin(description, Some(Box::new(move || cancels.cancel())))?;
        let operation = running.operation();
        let known = ActivePull {
            revision,
            token: access.token.clone(),
            operation: operation.clone(),
        };
        active.insert(key.clone(), known);
        drop(active);
        let pulls = self.clone();
        tokio::spawn(async move {
            let client = Client::new(access, Patience::default());
            let mut report = reporter(&running, &folder, budget_bytes);
            let verified = &pulls.verified;
            let is_known = |metadata: &Metadata, hash: &str| {
                FileDigest::of_hex(hash).is_some_and(|digest| verified.has(metadata, &digest))
            };
            let pulled = tokio::select! {
                pulled = pull.run(&client, &folder, &is_known, &mut report) => pulled.map_err(Failure::from),
                () = cancel.cancelled() => Err(Failure::PullCancelled { model: key }),
            };
            drop(report);
            let model = match pulled {
                Ok(pulled) => pulls.done(&pulled.name.to_string(), pulled.hashed).await,
                Err(failure) => Err(failure),
            };
            let result = model.map(|model| v1::PullResult { model: Some(model) });
            // The end gives memory back to the system, which takes some milliseconds.
            let end = move || running.finish(result.map(Outcome::Pull));
            drop(tokio::task::spawn_blocking(end).await);
        });
        Ok(operation)
    }

    /// Those under way, as a list of models shows them.
    #[must_use]
    pub fn list(&self) -> Vec<v1::Model> {
        let active = self.lock();
        let models = active.iter().map(|(key, pull)| {
            let operation = pull.operation.to_wire();
            let (name, path) = match operation.detail {
                Some(Detail::PullPlan(plan)) => (plan.name, plan.folder),
                _ => (key.clone(), String::new()),
            };
            v1::Model {
                name,
                path,
                state: v1::ModelState::Pulling.into(),
                origin: v1::ModelOrigin::Pulled.into(),
                operation_id: Some(operation.operation_id),
                ..Default::default()
            }
        });
        models.collect()
    }

    async fn done(&self, name: &str, hashed: Vec<HashedFile>) -> Result<v1::Model, Failure> {
        let (library, name) = (self.library.clone(), name.to_owned());
        let verified = self.verified.clone();
        let look = move || {
            // So that a load needn't read them to compare the same again.
            for HashedFile { metadata, hash } in hashed {
                if let Some(digest) = FileDigest::of_hex(&hash) {
                    verified.add(&metadata, &digest);
                }
            }
            library.find(&name)
        };
        let found = tokio::task::spawn_blocking(look).await?;
        found.map(|entry| entry.to_wire())
    }

    /// The downloads that have not ended, however they ended: a panic in one must not keep its place.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, ActivePull>> {
        let mut active = self.active.lock().expect("nothing panics under this lock");
        active.retain(|_, pull| pull.operation.is_active());
        active
    }
}

/// A callback that writes a download's events into its operation.
fn reporter(
    running: &RunningOperation,
    folder: &Path,
    budget_bytes: u64,
) -> impl FnMut(PullEvent) + Send {
    let (downloading, bytes) = (v1::OperationStage::Downloading, v1::ProgressUnit::Bytes);
    let mut step = progress(downloading, bytes, 0, 0);
    move |event| {
        match event {
            PullEvent::Resolved {
                name,
                files,
                total_bytes,
                present_bytes,
                weight_bytes,
            } => {
                if weight_bytes > budget_bytes {
                    running.notice(format!(
                        "the weights take {} and the budget is {}: weights that don't fit will be streamed in every pass; \
                         `sluice plan --model {name}` tells more once it is here",
                        units::bytes(weight_bytes),
                        units::bytes(budget_bytes)
                    ));
                }
                running.detail(Detail::PullPlan(v1::PullPlan {
                    folder: folder.join(name.folder()).to_string_lossy().into_owned(),
                    name: name.to_string(),
                    files: files as u32,
                    total_bytes,
                    present_bytes,
                    weight_bytes,
                }));
                step = progress(downloading, bytes, present_bytes, total_bytes);
            }
            PullEvent::File { name } => step.item = name,
            PullEvent::Hashing { done_bytes } => {
                step.set_stage(v1::OperationStage::Verifying);
                step.done = done_bytes;
            }
            PullEvent::Progress { done_bytes } => {
                step.set_stage(downloading);
                step.done = done_bytes;
            }
            PullEvent::Retry { reason, pause } => {
                let pause = units::duration_ms(pause.as_secs_f64() * 1000.0);
                running.notice(format!("{reason}; trying again in {pause}"));
            }
        }
        running.progress(step.clone());
    }
}

#[cfg(test)]
mod tests {
    use sluice_hub::Access;

    use super::*;
    use crate::{caller::User, operations::ChangeNotifier};

    fn without_network(folder: &Path, token: Option<Token>) -> Arc<Pulls> {
        let offline = Access::new("http://127.0.0.1:1", token, true).unwrap();
        let library = Library::new(Some(folder.to_owned()), None, offline, Arc::default());
        Arc::new(Pulls::new(
            Arc::new(library),
            Arc::new(Operations::new(ChangeNotifier::default())),
            VerifiedFiles::new(None),
        ))
    }

    fn pull() -> Pull {
        Pull {
            name: "o/m".parse().unwrap(),
            file: None,
            revision: None,
        }
    }

    #[tokio::test]
    async fn a_download_is_joined_with_the_same_token_alone() {
        let folder = tempfile::tempdir().unwrap();
        let own = Token::new("hf_own");
        let pulls = without_network(folder.path(), own.clone());
        let operator = Caller {
            user: User::Token(1),
            connection: 1,
            role: Some(Role::Operate),
        };
        let begin = |caller, token| pulls.begin(pull(), token, caller, 0);
        // The administrator's goes with the daemon's own token. Nothing here gives it a turn to end.
        let first = begin(Caller::DAEMON, None).unwrap();
        for token in [None, Token::new("hf_other")] {
            let refused = begin(operator, token).unwrap_err();
            assert!(matches!(refused, Failure::PullingWithAnotherToken { .. }));
        }
        for (caller, token) in [(Caller::DAEMON, None), (operator, own)] {
            let joined = begin(caller, token).unwrap();
            assert_eq!(joined.id(), first.id());
        }
    }

    #[tokio::test]
    async fn a_download_that_panics_does_not_keep_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let pulls = without_network(folder.path(), None);
        let operations = pulls.operations.clone();
        let running = operations
            .begin(OperationDescription::default(), None)
            .unwrap();
        let lost = ActivePull {
            revision: "other".to_owned(),
            token: None,
            operation: running.operation(),
        };
        pulls.lock().insert("o/m".to_owned(), lost);
        assert_eq!(pulls.list().len(), 1);
        // As a panic does.
        drop(running);
        assert!(pulls.list().is_empty());
        pulls.begin(pull(), None, Caller::DAEMON, 0).unwrap();
    }
}
