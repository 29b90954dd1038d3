use super::*;
use crate::{caller::User, role::Role};

fn caller(uid: u32) -> Caller {
    Caller {
        user: User::Unix { uid },
        role: Some(Role::Generate),
        ..Caller::DAEMON
    }
}

fn saved(elements: usize) -> SavedState {
    SavedState {
        model: StateModel {
            fingerprint: "f".to_owned(),
            shape: StateShape {
                layers: 1,
                hidden_size: 64,
            },
        },
        read_tokens: 3,
        unread_token: None,
        is_lossless: true,
        values: (0..elements).map(|at| at as f32).collect(),
    }
}

#[test]
fn users_are_bounded_and_what_is_dropped_is_free() {
    let account = Arc::new(StateAccount::default());
    let most = USER_STATES_BYTES_MAX as u64;
    let one = account.take(caller(1), most).unwrap();
    assert!(matches!(
        account.take(caller(1), 1),
        Err(Failure::StatesFull)
    ));
    let other = account.take(caller(2), most).unwrap();
    assert!(matches!(
        account.take(caller(3), 1),
        Err(Failure::StatesFull)
    ));
    drop(one);
    drop(account.take(caller(3), most).unwrap());
    for bytes in [most + 1, u64::MAX] {
        let refused = account.take(caller(3), bytes);
        assert!(matches!(refused, Err(Failure::StateTooLarge { .. })));
    }
    drop(other);
    assert!(account.take(caller(2), most).is_ok());
}

#[test]
fn chunks_may_cut_elements() {
    let state = saved(50);
    let bytes: Vec<u8> = (state.values.iter())
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let account = Arc::new(StateAccount::default());
    for size in [1, 2, 3, 5, 8, 200] {
        let mut arriving = ArrivingState {
            state: saved(0),
            begun: Vec::new(),
            missing: bytes.len(),
            held: account.take(caller(1), bytes.len() as u64).unwrap(),
        };
        for chunk in bytes.chunks(size) {
            arriving.push(chunk).unwrap();
        }
        assert!(arriving.push(&[0]).is_err());
        // The refused byte is of no state.
        arriving.missing = 0;
        assert_eq!(arriving.finish().unwrap().0, state, "by {size}");
    }
}

#[tokio::test]
async fn a_state_goes_out_in_chunks_whole() {
    let returned = ReturnedState::new();
    let elements = CHUNK_BYTES / 2 + 3;
    returned.put(saved(elements));
    let parts: Vec<_> = parts(Some(returned)).collect().await;
    assert_eq!(parts.len(), 1 + 3);
    let bytes = parts
        .into_iter()
        .skip(1)
        .flat_map(|part| match part.unwrap().part {
            Some(ResponsePart::StateChunk(chunk)) => chunk,
            other => panic!("no chunk: {other:?}"),
        });
    let bytes: Vec<u8> = bytes.collect();
    let values: Vec<f32> = bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect();
    assert_eq!(values, saved(elements).values);
    assert_eq!(super::parts(None).count().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_state_that_nobody_reads_is_dropped_in_time() {
    let account = Arc::new(StateAccount::default());
    let most = USER_STATES_BYTES_MAX as u64;
    let returned = ReturnedState::new();
    returned.lock().held = Some(account.take(caller(1), most).unwrap());
    returned.put(saved(CHUNK_BYTES));
    let mut parts = Box::pin(parts(Some(Arc::clone(&returned))));
    assert!(parts.next().await.unwrap().is_ok() && parts.next().await.unwrap().is_ok());
    assert!(account.take(caller(1), 1).is_err());
    time::sleep(STATE_TIMEOUT * 2).await;
    account.take(caller(1), most).unwrap();
    let status = parts.next().await.unwrap().unwrap_err();
    assert_eq!(status.message(), "the state was not read within 120 s");
}

/// A model whose states take more than half of what a user may have, and what it takes.
fn large_model() -> (StateModel, usize) {
    let shape = StateShape {
        layers: 5000,
        hidden_size: 64,
    };
    let bytes = shape.elements() * size_of::<f32>();
    assert!(bytes * 2 > USER_STATES_BYTES_MAX && bytes < USER_STATES_BYTES_MAX);
    let fingerprint = "f".to_owned();
    (StateModel { fingerprint, shape }, bytes)
}

#[tokio::test]
async fn a_request_that_is_made_again_reserves_once() {
    let account = Arc::new(StateAccount::default());
    let (model, bytes) = large_model();
    let returned = ReturnedState::new();
    let states = CallStates {
        start: None,
        returned: Some(Arc::downgrade(&returned)),
    };
    let free = || {
        let rest = (USER_STATES_BYTES_MAX - bytes) as u64;
        account.take(caller(1), rest + 1).is_ok()
    };
    for _ in 0..3 {
        states.reserve(&account, caller(1), Some(&model)).unwrap();
        assert!(!free());
    }
    // Another model came meanwhile, whose states would not fit beside those.
    let mut other = model.clone();
    other.shape.layers += 1;
    states.reserve(&account, caller(1), Some(&other)).unwrap();
    states.reserve(&account, caller(1), Some(&model)).unwrap();
    // The engine's queue is full.
    states.release();
    assert!(free());
    states.reserve(&account, caller(1), Some(&model)).unwrap();
    drop(returned);
    assert!(free());
    // Its caller went away.
    states.reserve(&account, caller(1), Some(&model)).unwrap();
    assert!(free());
}

#[test]
fn a_state_that_came_is_free_once_the_engine_has_begun() {
    let account = Arc::new(StateAccount::default());
    let most = USER_STATES_BYTES_MAX as u64;
    let held = account.take(caller(1), most).unwrap();
    let state = Arc::new(saved(4));
    let weak = Arc::downgrade(&state);
    let states = CallStates {
        start: Some((state, Arc::new(held))),
        returned: None,
    };
    let mut sink = states.sink();
    assert!(account.take(caller(1), 1).is_err() && weak.upgrade().is_some());
    sink(StateEvent::Begun);
    assert!(account.take(caller(1), most).is_ok() && weak.upgrade().is_none());
}

#[test]
fn administrators_have_no_more_than_others() {
    let account = Arc::new(StateAccount::default());
    let most = USER_STATES_BYTES_MAX as u64;
    let admin = Caller {
        role: Some(Role::Admin),
        ..caller(0)
    };
    let _held = account.take(admin, most).unwrap();
    let refused = account.take(admin, 1);
    assert!(matches!(refused, Err(Failure::StatesFull)));
    let _other = account.take(caller(1), most).unwrap();
    let second = Caller {
        user: User::Unix { uid: 2 },
        ..admin
    };
    assert!(account.take(second, 1).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_state_whose_header_is_read_too_late_is_an_error() {
    let returned = ReturnedState::new();
    returned.put(saved(4));
    time::sleep(STATE_TIMEOUT * 2).await;
    let parts: Vec<_> = parts(Some(returned)).collect().await;
    assert_eq!(parts.len(), 1);
    let status = parts[0].as_ref().unwrap_err();
    assert_eq!(status.message(), "the state was not read within 120 s");
    // A request that gave none, as one that was cancelled, ends without.
    let none = super::parts(Some(ReturnedState::new()));
    assert_eq!(none.count().await, 0);
}
