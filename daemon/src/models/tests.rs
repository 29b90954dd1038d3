//! The models, with loads that fail, that tests control, or of the demonstration model.

use std::path::Path;

use sluice_engine::{EngineOptions, ShareKey};

use super::*;
use crate::{limits::WANTED_MODELS_MAX, model_name::EMBEDDED_NAME};

fn with(engines: Weak<Engines>) -> Models {
    let changes = ChangeNotifier::default();
    let operations = Arc::new(Operations::new(changes.clone()));
    Models::new(engines, Arc::default(), operations, changes)
}

fn without_engine() -> Models {
    with(Weak::new())
}

fn engines() -> Arc<Engines> {
    let options = EngineOptions {
        threads: 1,
        ..EngineOptions::default()
    };
    Arc::new(Engines::new(Arc::new(Engine::start(options).unwrap())))
}

async fn over(pending: PendingModel) -> String {
    let Pending::Wanted(wanted) = pending.pending else {
        panic!("it is wanted")
    };
    let mut progress = wanted.subscribe();
    let ended = progress.wait_for(|now| matches!(now, WantedProgress::Ended(_)));
    match &*ended.await.unwrap() {
        WantedProgress::Ended(Err(reason)) => reason.clone(),
        _ => panic!("it fails"),
    }
}

fn asleep(models: &Models) -> Vec<String> {
    let known = models.lock();
    let asleep = known.asleep.iter();
    asleep.map(|asleep| asleep.name.name.clone()).collect()
}

#[test]
fn while_one_loads_callers_are_told_to_come_back() {
    let models = without_engine();
    let load = models.load_by_hand(ModelName::embedded());
    assert!(matches!(
        models.serving(),
        Err(Failure::ModelLoading { .. })
    ));
    let present = models.present().unwrap();
    assert_eq!(present.state(), v1::ModelState::Loading);
    assert_eq!(present.operation_id, Some(load.id()));
    assert_eq!(models.list().len(), 1);
}

#[tokio::test]
async fn a_model_that_could_not_be_had_back_is_tried_again() {
    let engines = engines();
    let models = Arc::new(with(Arc::downgrade(&engines)));
    let name = ModelName::at(Path::new("/nowhere/m"));
    {
        let mut known = models.lock();
        known.present = Some(name.clone());
        known.asleep.push(SleepingModel {
            name: name.clone(),
            settings: EngineSettings::default(),
        });
    }
    let _request = models.uses().stand_in_line(&name);
    for _ in 0..2 {
        let pending = models
            .pending(&MeantModel::Present, ShareKey::default())
            .unwrap();
        over(pending.expect("it sleeps")).await;
        assert_eq!(asleep(&models), ["m"]);
    }
    let list = models.list();
    let shown: Vec<_> = list.iter().filter(|model| model.name == "m").collect();
    assert!(matches!(&shown[..], [model] if model.state() == v1::ModelState::Failed));
    // Another that fails takes nothing from it.
    let other = LoadRequest::of(ModelName::at(Path::new("/nowhere/other")));
    let load = models.load(other, Requester::Client).unwrap();
    assert!(load.ended().await.error().is_some());
    assert_eq!(asleep(&models), ["m"]);
    // Who wants its memory ends that.
    models.unload(None, UnloadReason::Requested).await.unwrap();
    assert!(asleep(&models).is_empty());
    assert!(matches!(
        models.serving(),
        Err(Failure::Engine(EngineError::NoModel))
    ));
}

#[tokio::test]
async fn wanted_models_are_loaded_in_the_order_in_which_they_were_wanted() {
    let engines = engines();
    let models = Arc::new(with(Arc::downgrade(&engines)));
    let names = ["one", "two"].map(|name| ModelName::at(&Path::new("/nowhere").join(name)));
    let _requests = names.each_ref().map(|name| models.uses().begin(name));
    let pending = |name: &ModelName| {
        let meant = MeantModel::Named(name.clone());
        models
            .pending(&meant, ShareKey::default())
            .unwrap()
            .expect("it is wanted")
    };
    let [one, two] = names.each_ref().map(pending);
    // Who wants the same waits for the same.
    let again = pending(&names[0]);
    assert_eq!(models.lock().wanted.len(), 2);
    let one = over(one).await;
    assert_eq!(over(again).await, one);
    over(two).await;
    let loads: Vec<_> = (models.operations.all().iter())
        .map(|load| load.description().model.clone())
        .collect();
    assert_eq!(loads, ["one", "two"]);
    // The reason is for those who asked; the list has nothing of it.
    assert_eq!(models.list().len(), 1);
}

#[tokio::test]
async fn who_wants_many_models_does_not_keep_others_from_theirs() {
    let engines = engines();
    let models = Arc::new(with(Arc::downgrade(&engines)));
    let mut requests = Vec::new();
    let mut want = |user: u64, index: usize| {
        let name = ModelName::at(Path::new(&format!("/nowhere/{user}-{index}")));
        requests.push(models.uses().begin(&name));
        let share = ShareKey {
            user,
            connection: user,
        };
        models.pending(&MeantModel::Named(name), share)
    };
    let many = (0..)
        .map_while(|index| want(1, index).ok().flatten())
        .count();
    assert_eq!(many, WANTED_MODELS_MAX - WANTED_MODELS_MAX / 4);
    assert!(matches!(
        want(1, many),
        Err(Failure::TooManyWanted {
            max: WANTED_MODELS_MAX
        })
    ));
    let other = want(2, 0).unwrap().expect("it is wanted");
    over(other).await;
    // Turns go round: only one of the others' came before.
    let loads = models.operations.all();
    let mut loads: Vec<_> = loads.iter().map(|load| load.model()).collect();
    loads.truncate(2);
    assert_eq!(loads, ["1-0", "2-0"]);
}

#[tokio::test]
async fn nothing_is_loaded_that_nobody_waits_for_any_more() {
    let engines = engines();
    let models = Arc::new(with(Arc::downgrade(&engines)));
    let name = ModelName::at(Path::new("/nowhere/m"));
    let request = models.uses().begin(&name);
    let pending = models
        .pending(&MeantModel::Named(name), ShareKey::default())
        .unwrap();
    drop(request);
    let reason = over(pending.expect("it is wanted")).await;
    assert_eq!(reason, "nobody waits for it any more");
    assert!(models.operations.all().is_empty());
}

/// The demonstration model, from inside the program or from its folder.
async fn load_demonstration(models: &Arc<Models>, engines: &Engines) -> ModelName {
    let name = ModelName::embedded();
    let request = LoadRequest::of(name.clone());
    let load = models.load(request, Requester::Client).unwrap();
    assert_eq!(load.ended().await.error().map(ToString::to_string), None);
    assert!(engines.first().model().is_some());
    name
}

#[tokio::test]
async fn nobody_waits_for_the_end_of_a_job() {
    let engines = engines();
    let models = Arc::new(with(Arc::downgrade(&engines)));
    let loaded = load_demonstration(&models, &engines).await;
    let job = models.uses().begin_job(&loaded);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("model");
    let other = ModelName::at(&folder);
    let _request = models.uses().begin(&other);
    let wanted = || {
        let meant = MeantModel::Named(other.clone());
        let pending = models.pending(&meant, ShareKey::default());
        pending.unwrap().expect("it is wanted")
    };
    let reason = over(wanted()).await;
    assert!(reason.contains("have a job"), "{reason}");
    drop(job);
    let Pending::Wanted(pending) = wanted().pending else {
        panic!("it is wanted")
    };
    let mut progress = pending.subscribe();
    let ended = progress.wait_for(|now| matches!(now, WantedProgress::Ended(_)));
    assert!(matches!(
        &*ended.await.unwrap(),
        WantedProgress::Ended(Ok(()))
    ));
    assert!(models.loaded_as("model").is_some());
    // An engine without a model is used again, and one beside the first ends with its model.
    assert_eq!((engines.all().len(), models.all_loaded().len()), (2, 1));
    models
        .unload(Some(&other), UnloadReason::Requested)
        .await
        .unwrap();
    assert_eq!(engines.all().len(), 1);
    engines.stop();
}

#[tokio::test]
async fn a_pinned_model_stays_until_it_is_unloaded() {
    let engines = engines();
    let models = Arc::new(with(Arc::downgrade(&engines)));
    let loaded = load_demonstration(&models, &engines).await;
    let id = models.serving().unwrap().loaded.id;
    let pin = LoadRequest {
        pin: true,
        ..LoadRequest::of(loaded.clone())
    };
    let pinned = models.load(pin, Requester::Client).unwrap();
    assert_eq!(pinned.ended().await.error().map(ToString::to_string), None);
    let serving = models.serving().unwrap();
    assert!(models.is_pinned(&serving));
    assert_eq!(serving.loaded.id, id, "it was not read again");
    // With room for one model, too.
    let other = LoadRequest::of(ModelName::at(Path::new("/nowhere/other")));
    let refused = models.load(other, Requester::Client).err().unwrap();
    assert!(matches!(
        refused,
        Failure::Engine(EngineError::NoPlace { max: 1 })
    ));
    engines.stop();
}

#[test]
fn an_idle_model_that_went_for_another_still_sleeps() {
    let models = without_engine();
    let name = ModelName::at(Path::new("/nowhere/m"));
    let mut known = models.lock();
    known.asleep.push(SleepingModel {
        name: name.clone(),
        settings: EngineSettings::default(),
    });
    // Whoever unloads it as well finds that it has gone already.
    known.stays_awake(&name);
    assert!(known.sleeping(&name).is_some());
}

#[test]
fn without_a_model_the_embedded_one_is_available() {
    let models = without_engine();
    let list = models.list();
    assert_eq!(list.len(), 1);
    assert_eq!(list[0].name, EMBEDDED_NAME);
    assert_eq!(list[0].state(), v1::ModelState::Available);
    assert_eq!(list[0].family, "llada");
    assert_eq!(list[0].parameters, Some(3_934_976));
    assert!(list[0].disk_bytes > 7_000_000);
    assert!(models.present().is_none());
    assert!(models.serving().is_err());
}
