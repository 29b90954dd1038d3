//! Models on disk and in memory, as callers of every role meet them.

use std::{fs, os::unix::fs::symlink, path::Path};

use futures_util::FutureExt;
use sluice_engine::{Engine, EngineOptions};
use sluice_hub::Access;
use sluice_shared::preset::Preset;

use super::*;
use crate::{
    access::AccessRules,
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
    let (settings, preset) = (ModelSettings::default(), Preset::default());
    let daemon = Daemon::new(engine, library, settings, "s".into(), preset);
    let rules = AccessRules::default().with_folders(models.into_iter().map(Path::to_owned));
    Arc::new(daemon.with_access(rules))
}

fn caller(user: u32, role: Role) -> Caller {
    Caller {
        user: User::Token(user.into()),
        connection: user.into(),
        role: Some(role),
    }
}

/// A folder that is a model at a glance.
fn put_model(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("config.json"), r#"{"model_type":"llada"}"#).unwrap();
    fs::write(folder.join("model.safetensors"), "").unwrap();
}

/// A daemon whose administrator has loaded a model from elsewhere, and which has a link in its folder of models.
fn with_elsewhere(place: &Path) -> Arc<Daemon> {
    let models = place.join("models");
    put_model(&models.join("own"));
    put_model(&place.join("elsewhere/remembered"));
    put_model(&place.join("elsewhere/linked"));
    symlink(place.join("elsewhere/linked"), models.join("linked")).unwrap();
    let daemon = daemon(Some(&models));
    let remembered = daemon.library.new_path(&place.join("elsewhere/remembered"));
    let saved = (daemon.library.state()).save(|state| remembered.unwrap().put_in(state));
    saved.unwrap();
    daemon
}

#[tokio::test]
async fn a_name_leads_no_further_than_a_path() {
    let place = tempfile::tempdir().unwrap();
    let daemon = with_elsewhere(place.path());
    let admin = caller(1, Role::Admin);
    let resolve = |caller, name: &str| daemon.resolve_now(caller, ModelRef::Name(name.to_owned()));
    let listed = |caller| {
        let models = daemon.list_now(caller).models;
        let mut names: Vec<_> = models.into_iter().map(|model| model.name).collect();
        names.retain(|name| name != EMBEDDED_NAME);
        names
    };
    for name in ["own", "linked", "remembered"] {
        resolve(admin, name).unwrap();
    }
    assert_eq!(listed(admin), ["linked", "own", "remembered"]);
    for role in [Role::Observe, Role::Operate] {
        let other = caller(2, role);
        resolve(other, "own").unwrap();
        let refused = resolve(other, "linked").unwrap_err();
        assert!(matches!(refused, Failure::PathNotAllowed { .. }));
        // Neither what nearly is its name.
        for name in ["remembered", "rememberd"] {
            let unknown = resolve(other, name).unwrap_err();
            assert!(
                matches!(&unknown, Failure::UnknownModel { near, .. } if near.is_empty()),
                "{unknown:?}"
            );
        }
        assert_eq!(listed(other), ["linked", "own"]);
    }
    // The present model is everybody's to know.
    let remembered = resolve(admin, "remembered").unwrap();
    let load = daemon.models.load_by_hand(remembered.clone());
    let observer = caller(2, Role::Observe);
    assert_eq!(resolve(observer, "remembered").unwrap(), remembered);
    assert_eq!(listed(observer), ["remembered", "linked", "own"]);
    daemon.models.end_by_hand(&load);
}

#[tokio::test]
async fn what_was_checked_is_opened_and_not_where_a_link_leads_later() {
    let place = tempfile::tempdir().unwrap();
    let daemon = with_elsewhere(place.path());
    let models = place.path().join("models");
    let own = models.join("own").canonicalize().unwrap();
    let link = models.join("alias");
    symlink(&own, &link).unwrap();
    let operator = caller(2, Role::Operate);
    let resolve = |caller, model| daemon.resolve_now(caller, model).unwrap();
    let by_path = resolve(operator, ModelRef::Path(link.clone()));
    let by_name = resolve(operator, ModelRef::Name("alias".to_owned()));
    let output = [link.join("new.sluice")];
    let output = daemon.check_paths(operator, output).await.unwrap();
    fs::remove_file(&link).unwrap();
    symlink(place.path().join("elsewhere/linked"), &link).unwrap();
    assert_eq!(by_path.place(), Some(&*own));
    assert_eq!(by_name.place(), Some(&*own));
    // Settings and lists know it by the path that it has there.
    assert_eq!(by_name.path, Some(link.clone()));
    assert_eq!(output, [own.join("new.sluice")]);
    let refused = daemon.resolve_now(operator, ModelRef::Path(link.clone()));
    assert!(matches!(refused, Err(Failure::PathNotAllowed { .. })));
    // An administrator's is taken as it is.
    let by_admin = resolve(caller(1, Role::Admin), ModelRef::Path(link.clone()));
    assert_eq!(by_admin.place(), Some(&*link));
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
        let mut unload = Box::pin(daemon.unload(one, String::new()));
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
    let mut others = Box::pin(daemon.unload(other, String::new()));
    assert!(others.as_mut().now_or_never().is_none());
    let idle = daemon.models.unload(None, UnloadReason::Idle);
    assert_eq!(idle.await.unwrap(), None);
    drop(inside);
    // Not behind all of the first user's: they take turns.
    let (turns, _) = tokio::join!(others, waiting.remove(0));
    turns.unwrap();
}
