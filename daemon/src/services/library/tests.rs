//! Models on disk and in memory, as callers of every role meet them.

use std::path::Path;

use futures_util::FutureExt;
use sluice_engine::{Engine, EngineOptions};
use sluice_hub::Access;
use sluice_shared::preset::Preset;

use super::*;
use crate::{
    caller::User,
    library::Library,
    limits::{LISTING_LINE_MAX, LISTING_MAX, UNLOADING_LINE_MAX},
    role::Role,
    settings::ModelSettings,
};

/// With this folder of models.
fn daemon(models: Option<&Path>) -> Arc<Daemon> {
    let options = EngineOptions {
        threads: 1,
        ..EngineOptions::default()
    };
    let engine = Arc::new(Engine::start(options).unwrap());
    let access = Access::new("http://127.0.0.1:1", None, true).unwrap();
    let library = Library::new(models.map(Path::to_owned), None, access, Arc::default());
    let (settings, dial) = (ModelSettings::default(), Preset::default());
    let daemon = Daemon::new(engine, library, settings, "s".into(), dial);
    Arc::new(daemon)
}

fn caller(user: u32, role: Role) -> Caller {
    Caller {
        user: User::Token(user),
        connection: user.into(),
        role: Some(role),
    }
}

#[tokio::test]
async fn lists_are_made_few_at_a_time_and_wait_in_a_bounded_line() {
    let daemon = daemon(None);
    let [one, other] = [1, 2].map(|user| caller(user, Role::Observe));
    let mut inside = Vec::new();
    for _ in 0..LISTING_MAX {
        inside.push(daemon.listing.enter(other.share()).await.unwrap());
    }
    let mut waiting = Vec::new();
    let refused = loop {
        let mut list = Box::pin(daemon.list(one));
        match list.as_mut().now_or_never() {
            None => waiting.push(list),
            Some(refused) => break refused.unwrap_err(),
        }
        assert!(waiting.len() <= LISTING_LINE_MAX);
    };
    assert!(matches!(
        refused,
        Failure::PreparingFull {
            max: LISTING_LINE_MAX
        }
    ));
    drop(inside);
    for list in futures_util::future::join_all(waiting).await {
        assert_eq!(list.unwrap().models.len(), 1);
    }
}

#[tokio::test]
async fn unloads_wait_in_a_bounded_line_that_the_idle_unload_does_not_stand_in() {
    let daemon = daemon(None);
    let [one, other] = [1, 2].map(|user| caller(user, Role::Operate));
    let inside = daemon.unloading.enter(other.share()).await.unwrap();
    let mut waiting = Vec::new();
    let refused = loop {
        let mut unload = Box::pin(daemon.unload(one));
        match unload.as_mut().now_or_never() {
            None => waiting.push(unload),
            Some(refused) => break refused.unwrap_err(),
        }
        assert!(waiting.len() <= UNLOADING_LINE_MAX);
    };
    assert!(matches!(
        refused,
        Failure::PreparingFull {
            max: UNLOADING_LINE_MAX
        }
    ));
    let mut others = Box::pin(daemon.unload(other));
    assert!(others.as_mut().now_or_never().is_none());
    let idle = daemon.models.unload(&daemon.engine, UnloadReason::Idle);
    assert_eq!(idle.await.unwrap(), None);
    drop(inside);
    // Not behind all of the first user's: they take turns.
    let (turns, _) = tokio::join!(others, waiting.remove(0));
    turns.unwrap();
}
