//! States of recurrent models over the wire: they go out with an answer and come back with a request, whole or not at all.

use crate::support::{Daemon, RequestOptions, checkpoints, done, generate, tokens, within};
use futures_util::{Stream, StreamExt, stream};
use sluice_proto::{
    client::CallError,
    v1::{
        self, GenerateWithStateRequest, generate_with_state_request::Part as RequestPart,
        generate_with_state_response::Part as ResponsePart, generation_event::Event,
    },
};

/// A state's header and its bytes.
type State = (v1::SequenceState, Vec<u8>);

fn part(part: RequestPart) -> GenerateWithStateRequest {
    GenerateWithStateRequest { part: Some(part) }
}

fn begin(
    request: v1::GenerateRequest,
    state: Option<v1::SequenceState>,
) -> GenerateWithStateRequest {
    part(RequestPart::Begin(v1::GenerateWithStateBegin {
        request: Some(request),
        state,
        return_state: true,
    }))
}

/// What a client sends of a state, in chunks of this size.
fn sent(
    request: v1::GenerateRequest,
    state: &State,
    chunk: usize,
) -> Vec<GenerateWithStateRequest> {
    let chunks = state
        .1
        .chunks(chunk)
        .map(|chunk| part(RequestPart::StateChunk(chunk.to_vec())));
    [begin(request, Some(state.0.clone()))]
        .into_iter()
        .chain(chunks)
        .collect()
}

/// The events of a call and the state after it.
async fn call(
    daemon: &Daemon,
    messages: impl Stream<Item = GenerateWithStateRequest> + Send + 'static,
) -> Result<(Vec<Event>, Option<State>), CallError> {
    let mut client = daemon.generation().await;
    let answer = within("an answer", client.generate_with_state(messages)).await?;
    let mut parts = answer.into_inner();
    let (mut events, mut state) = (Vec::new(), None::<State>);
    while let Some(message) = within("a part", parts.message()).await? {
        match message.part.expect("a part") {
            ResponsePart::Event(event) => events.push(event.event.expect("an event")),
            ResponsePart::State(header) => {
                assert!(matches!(events.last(), Some(Event::Done(_))));
                state = Some((header, Vec::new()));
            }
            ResponsePart::StateChunk(chunk) => {
                assert!(!chunk.is_empty() && chunk.len() <= 256 << 10);
                state
                    .as_mut()
                    .expect("a header comes first")
                    .1
                    .extend(chunk);
            }
        }
    }
    Ok((events, state))
}

fn request(ids: &[u32], length: u32) -> v1::GenerateRequest {
    tokens(ids, length).sampled(|sampling| {
        sampling.eos_policy = v1::EosPolicy::Suppress.into();
        sampling.greedy = true;
    })
}

/// A request that says nothing but the state's own last token.
fn nothing_more(length: u32) -> v1::GenerateRequest {
    v1::GenerateRequest {
        input: None,
        ..request(&[1], length)
    }
}

async fn rwkv7() -> Daemon {
    Daemon::with_model(&checkpoints::fixture("rwkv7-tiny"), &[]).await
}

#[tokio::test]
async fn two_halves_over_the_wire_are_the_whole() {
    let daemon = rwkv7().await;
    let prompt: Vec<u32> = (3..30).collect();
    let whole = generate(&daemon, request(&prompt, 20)).await.unwrap();
    let whole = &done(&whole).token_ids;
    let first = stream::iter([begin(request(&prompt, 8), None)]);
    let (events, state) = call(&daemon, first).await.unwrap();
    assert_eq!(done(&events).token_ids, whole[..8]);
    let state = state.expect("asked for");
    assert_eq!(
        (state.0.layers, state.0.hidden_size, state.0.head_size),
        (2, 128, 64)
    );
    assert_eq!(state.0.read_tokens, 27 + 7);
    assert_eq!(state.0.unread_token, Some(whole[7]));
    assert_eq!(state.1.len(), 2 * 128 * (2 + 64) * 4);

    // A daemon that has never seen the beginning, and chunks that cut elements.
    let other = rwkv7().await;
    for chunk in [state.1.len(), 4096, 1021] {
        let messages = stream::iter(sent(nothing_more(12), &state, chunk));
        let (events, after) = call(&other, messages).await.unwrap();
        let Event::Started(started) = &events[1] else {
            panic!("the second event is {:?}", events[1]);
        };
        assert_eq!(started.prompt_tokens, 1);
        assert_eq!(done(&events).token_ids, whole[8..]);
        assert_eq!(after.unwrap().0.read_tokens, 27 + 19);
    }
    let chunks = stream::iter(sent(request(&[9, 8], 4), &state, 5000));
    let (events, _) = call(&other, chunks).await.unwrap();
    let longer = [&prompt[..], &whole[..8], &[9, 8]].concat();
    let expected = generate(&daemon, request(&longer, 4)).await.unwrap();
    assert_eq!(done(&events).token_ids, done(&expected).token_ids);
}

#[tokio::test]
async fn each_broken_state_is_explained_and_the_daemon_lives_on() {
    let daemon = rwkv7().await;
    let first = stream::iter([begin(request(&[1, 2, 3], 4), None)]);
    let (_, state) = call(&daemon, first).await.unwrap();
    let state = state.unwrap();
    let refused = async |messages: Vec<GenerateWithStateRequest>| {
        call(&daemon, stream::iter(messages))
            .await
            .unwrap_err()
            .message
    };
    let with = async |change: fn(&mut State)| {
        let mut other = state.clone();
        change(&mut other);
        refused(sent(request(&[5], 2), &other, 10_000)).await
    };
    assert_eq!(
        with(|state| state.0.head_size = 32).await,
        "state.head_size: has heads of 32; RWKV-7's have 64"
    );
    assert_eq!(
        with(|state| state.1.truncate(70)).await,
        "state: 67514 of its 67584 bytes are missing"
    );
    assert_eq!(
        with(|state| state.1.push(0)).await,
        "state_chunk: the state's sizes say that it has 67584 bytes"
    );
    assert_eq!(
        with(|state| state.1[400..404].copy_from_slice(&f32::NAN.to_le_bytes())).await,
        "state: its element 100 is no finite number"
    );
    assert!(
        with(|state| state.0.unread_token = Some(999))
            .await
            .contains("outside of the vocabulary")
    );
    let chunk = || part(RequestPart::StateChunk(vec![0; 8]));
    let header = Some(state.0.clone());
    for (messages, expected) in [
        (Vec::new(), "begin: is missing; it comes first"),
        (vec![chunk()], "begin: is missing; it comes first"),
        (
            vec![begin(request(&[5], 2), None), chunk()],
            "state_chunk: there is no begin.state",
        ),
        (
            vec![begin(request(&[5], 2), None), begin(request(&[5], 2), None)],
            "begin: comes once",
        ),
        (
            vec![
                begin(request(&[5], 2), header),
                part(RequestPart::StateChunk(Vec::new())),
            ],
            "state_chunk: is empty",
        ),
        (vec![begin(nothing_more(2), None)], "input: is missing"),
    ] {
        assert_eq!(refused(messages).await, expected);
    }
    assert!(generate(&daemon, request(&[5], 2)).await.is_ok());
}

#[tokio::test]
async fn another_models_state_is_refused_at_its_header() {
    let daemon = rwkv7().await;
    let first = stream::iter([begin(request(&[1, 2, 3], 4), None)]);
    let (_, state) = call(&daemon, first).await.unwrap();
    let ours = state.unwrap().0;
    let bigger = v1::SequenceState {
        layers: u32::MAX,
        hidden_size: u32::MAX,
        ..ours.clone()
    };
    let other = v1::SequenceState {
        checkpoint: "0123456789abcdef".to_owned(),
        ..ours.clone()
    };
    for header in [bigger, other] {
        // Its bytes never come.
        let messages = stream::iter([begin(request(&[5], 2), Some(header))]);
        let error = call(&daemon, messages.chain(stream::pending()))
            .await
            .unwrap_err();
        assert!(
            error.message.contains("the state of another model"),
            "{error}"
        );
        assert_eq!(error.reason.as_deref(), Some("SAMPLING"));
        assert!(error.hint.unwrap().contains("at any level"));
    }
    // Where no model serves, the size alone says that it will never do.
    let none = Daemon::embedded().await;
    let mut models = none.models().await;
    models
        .unload_model(v1::UnloadModelRequest::default())
        .await
        .unwrap();
    let bigger = v1::SequenceState {
        layers: 1000,
        hidden_size: 4096,
        ..ours.clone()
    };
    let messages = stream::iter([begin(request(&[5], 2), Some(bigger))]);
    let error = call(&none, messages.chain(stream::pending()))
        .await
        .unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("STATE_TOO_LARGE"), "{error}");
    // As does that of two: it gives another back.
    let half = v1::SequenceState {
        layers: 5000,
        hidden_size: 64,
        ..ours.clone()
    };
    let messages = stream::iter([begin(request(&[5], 2), Some(half))]);
    let error = call(&none, messages.chain(stream::pending()))
        .await
        .unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("STATE_TOO_LARGE"), "{error}");
    assert!(error.hint.unwrap().contains("count together"));

    let llama = Daemon::with_model(&checkpoints::fixture("llama-tiny"), &[]).await;
    for (header, field) in [(Some(ours), "state"), (None, "return_state")] {
        let messages = stream::iter([begin(request(&[5], 2), header)]);
        let error = call(&llama, messages).await.unwrap_err();
        assert_eq!(error.reason.as_deref(), Some("ONLY_RECURRENT"));
        assert!(error.message.starts_with(&format!("{field}: ")), "{error}");
    }
}
