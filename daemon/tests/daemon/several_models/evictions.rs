//! What becomes of requests and loads when one model is to be unloaded for another, and somebody leaves meanwhile.

use super::*;
use crate::support::long;

fn long_for(model: &str) -> v1::GenerateRequest {
    v1::GenerateRequest {
        model: model.to_owned(),
        ..long()
    }
}

impl Setting {
    /// The load of a model that waits for the requests of another one.
    async fn waiting_load(&self, model: &str, busy: &str) -> v1::Operation {
        let notice = format!("waiting for requests of the model {busy} to end");
        let wait = async {
            loop {
                let operations = self.daemon.snapshot().await.operations.into_iter();
                let mut loads = operations.filter(|one| one.model == model);
                if let Some(load) = loads.find(|load| load.notices.contains(&notice)) {
                    break load;
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        within("the load to wait", wait).await
    }

    async fn stream(&self, request: v1::GenerateRequest) -> Streaming<v1::GenerateResponse> {
        let mut client = self.daemon.generation().await;
        client.generate(request).await.unwrap().into_inner()
    }

    async fn until_waiting(&self, count: u32) {
        until("the line", || async {
            self.daemon.snapshot().await.queue.unwrap().waiting == count
        })
        .await;
    }
}

/// The first notice of a request.
async fn first_notice(stream: &mut Streaming<v1::GenerateResponse>) -> String {
    loop {
        match within("a notice", next(stream)).await.unwrap() {
            Some(Event::Notice(notice)) => return notice.text,
            Some(_) => {}
            None => panic!("it ended without a notice"),
        }
    }
}

#[tokio::test]
async fn who_leaves_the_line_of_a_model_that_is_to_go_keeps_it_for_nobody() {
    let arguments = ["--loaded-models", "1", "--parallel", "1", "--queue", "1"];
    let setting = Setting::new(&arguments).await;
    let (_, running) = setting.daemon.running(long_for("one")).await;
    let in_queue = setting.stream(long_for("one")).await;
    setting.until_waiting(1).await;
    // The engine's queue is full, so this one waits with the daemon.
    let in_line = setting.stream(asking("one")).await;
    setting.until_waiting(2).await;
    let mut two = setting.stream(asking("two")).await;
    setting.waiting_load("two", "one").await;
    drop(in_line);
    setting.until_waiting(2).await;
    drop(in_queue);
    setting.until_waiting(1).await;
    // There is room with the engine, but the other model has waited for longer.
    let mut late = setting.stream(asking("one")).await;
    let notice = first_notice(&mut late).await;
    assert!(notice.contains("another model needs its place"), "{notice}");
    drop(running);
    let events = rest(&mut two).await.unwrap();
    assert_eq!(done(&events).token_ids.len(), 8);
    let events = rest(&mut late).await.unwrap();
    assert_eq!(done(&events).token_ids.len(), 8);
}

#[tokio::test]
async fn nobody_is_evicted_for_requests_that_have_left() {
    let setting = Setting::new(&["--loaded-models", "1"]).await;
    let (_, running) = setting.daemon.running(long_for("one")).await;
    let two = setting.stream(asking("two")).await;
    let load = setting.waiting_load("two", "one").await;
    drop(two);
    until("the load's end", || async {
        let operations = setting.daemon.snapshot().await.operations;
        let is_load = |one: &v1::Operation| one.operation_id == load.operation_id;
        !operations
            .iter()
            .any(|one| is_load(one) && one.state() == v1::OperationState::Running)
    })
    .await;
    // While it still runs, the model takes others again.
    assert_eq!(setting.ids(asking("one")).await.len(), 8);
    assert_eq!(setting.names().await, ["one"]);
    drop(running);
    assert_eq!(setting.ids(asking("two")).await.len(), 8);
    assert_eq!(setting.names().await, ["two"]);
}

#[tokio::test]
async fn a_model_that_is_unloaded_on_demand_does_not_come_back_for_those_who_waited() {
    let setting = Setting::new(&["--parallel", "1", "--queue", "1"]).await;
    let (_, running) = setting.daemon.running(long_for("one")).await;
    let mut in_queue = setting.stream(asking("one")).await;
    setting.until_waiting(1).await;
    let mut in_line = setting.stream(asking("one")).await;
    setting.until_waiting(2).await;
    let unload = tokio::spawn({
        let mut client = setting.daemon.models().await;
        async move {
            let model = "one".to_owned();
            let answer = client.unload_model(v1::UnloadModelRequest { model }).await;
            answer.unwrap().into_inner().model
        }
    });
    // Once the engine has the unload, so that it comes before those who wait.
    until("the unload to wait", || async {
        let log = setting.daemon.log();
        log.contains("unloading once the running requests have ended")
    })
    .await;
    drop(running);
    assert_eq!(within("the unload", unload).await.unwrap(), "one");
    for stream in [&mut in_queue, &mut in_line] {
        let error = rest(stream).await.unwrap_err();
        assert_eq!(error.reason.as_deref(), Some("MODEL_UNLOADED"), "{error:?}");
    }
    assert!(setting.names().await.is_empty());
    // Who comes later has it loaded again.
    assert_eq!(setting.ids(asking("one")).await.len(), 8);
}

#[tokio::test]
async fn what_a_model_left_during_a_load_is_taken_after_it() {
    let (folder, budget) = {
        let (folder, one) = budget_for(1).await;
        // With room for one and a part of another.
        let one: u64 = one.parse().unwrap();
        (folder, (one + one * 2 / 5).to_string())
    };
    let arguments = ["--loaded-models", "2", "--budget", &budget];
    let setting = Setting::in_folder(folder, &arguments).await;
    setting.load("one", true).await.unwrap();
    setting.load("two", false).await.unwrap();
    let streamed = || async {
        let loaded = setting.loaded().await;
        let two = loaded
            .iter()
            .find(|loaded| loaded.model.as_ref().unwrap().name == "two");
        two.unwrap().plan.as_ref().unwrap().streamed_bytes_per_pass
    };
    assert!(streamed().await > 0, "it has less than it takes");
    let (_, running) = setting.daemon.running(long_for("two")).await;
    let three = setting.stream(asking("three")).await;
    setting.waiting_load("three", "two").await;
    assert_eq!(setting.unload("one").await, "one");
    assert!(streamed().await > 0, "a load is under way");
    drop(three);
    until("the weights to become resident", || async {
        streamed().await == 0
    })
    .await;
    drop(running);
}
