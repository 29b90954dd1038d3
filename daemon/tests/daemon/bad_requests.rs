//! Requests that cannot be done: the right code, a message with the figures, a daemon that
//! lives on.

use sluice_proto::{client::CallError, v1};
use tonic::Code;

use crate::support::{Daemon, RequestOptions, chat, checkpoints, done, generate, tokens, within};

/// The refusal, as code, reason and message.
async fn refused(daemon: &Daemon, request: v1::GenerateRequest) -> (Code, String, String) {
    let error = generate(daemon, request).await.unwrap_err();
    (error.code, error.reason.unwrap_or_default(), error.message)
}

#[tokio::test]
async fn each_wrong_request_is_explained_and_the_daemon_lives_on() {
    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let base = || tokens(&[1, 2, 3], 32);
    let pin = |position, ids: &[u32]| v1::CanvasPin {
        position,
        content: Some(v1::canvas_pin::Content::Tokens(v1::TokenIds {
            ids: ids.to_vec(),
        })),
        anywhere: false,
    };
    let long_prompt = vec![1; 300];
    for (request, reason, message) in [
        (
            v1::GenerateRequest::default(),
            "INVALID_FIELD",
            "input: is missing",
        ),
        (chat(""), "INVALID_FIELD", "chat: the prompt is empty"),
        (tokens(&[], 8), "INVALID_FIELD", "tokens: has no ids"),
        (
            tokens(&long_prompt, 8),
            "CONTEXT_EXCEEDED",
            "a prompt of 300 tokens and a length of 8 exceed the model's context length of 256",
        ),
        (
            v1::GenerateRequest {
                length: None,
                ..tokens(&long_prompt, 1)
            },
            "CONTEXT_EXCEEDED",
            "a prompt of 300 tokens and a length of 1 exceed the model's context length of 256",
        ),
        (
            tokens(&[1], u32::MAX),
            "CONTEXT_EXCEEDED",
            "a prompt of 1 tokens and a length of 4294967295 exceed the model's context length of 256",
        ),
        (
            tokens(&[1], 0),
            "INVALID_FIELD",
            "length: must be at least 1, not 0",
        ),
        (
            v1::GenerateRequest {
                block_length: Some(33),
                ..base()
            },
            "BLOCK_TOO_LONG",
            "block length 33 exceeds the 32 positions to fill",
        ),
        (
            base().sampled(|sampling| sampling.temperature = Some(f64::NAN)),
            "INVALID_FIELD",
            "sampling.temperature: must be a finite number of at least 0, not NaN",
        ),
        (
            base().diffused(|diffusion| diffusion.guidance = Some(f64::INFINITY)),
            "INVALID_FIELD",
            "diffusion.guidance: must be a finite number of at least 0, not inf",
        ),
        (
            base().diffused(|diffusion| diffusion.pins = vec![pin(31, &[1, 2])]),
            "PIN_OUTSIDE",
            "a pin of 2 tokens at position 31 exceeds the length of 32",
        ),
        (
            base().diffused(|diffusion| diffusion.pins = vec![pin(1, &[1, 2]), pin(2, &[3])]),
            "PIN_TWICE",
            "two pins overlap at position 2 of the length of 32",
        ),
        (
            tokens(&[256], 8),
            "UNKNOWN_TOKEN",
            "token id 256 is outside of the vocabulary of 256 tokens",
        ),
        (
            tokens(&[250], 8),
            "MASK_GIVEN",
            "token id 250 is the mask token; give the number of positions to fill as the length",
        ),
    ] {
        let expected = (Code::InvalidArgument, reason.to_owned(), message.to_owned());
        assert_eq!(refused(&daemon, request).await, expected);
    }

    let refused_so_far = daemon.snapshot().await.totals.unwrap().refused_requests;
    assert_eq!(refused_so_far, 14);
    let events = generate(&daemon, base()).await.unwrap();
    assert_eq!(done(&events).token_ids.len(), 32);
}

#[tokio::test]
async fn text_without_a_tokenizer_is_refused_with_the_way_out() {
    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let error = generate(&daemon, chat("hello")).await.unwrap_err();
    assert_eq!(error.code, Code::FailedPrecondition);
    assert_eq!(error.reason.as_deref(), Some("NO_TOKENIZER"));
    assert!(error.hint.unwrap().contains("--tokens"));
}

#[tokio::test]
async fn a_message_beyond_the_bounds_is_refused() {
    let daemon = Daemon::embedded().await;
    // More than the text bound, less than the message bound; then more than both.
    let (code, reason, _) = refused(&daemon, chat(&"x".repeat(2 << 20))).await;
    assert_eq!((code, reason.as_str()), (Code::InvalidArgument, "TOO_LONG"));
    let (code, reason, _) = refused(&daemon, chat(&"x".repeat(5 << 20))).await;
    assert_eq!(code, Code::ResourceExhausted);
    assert_eq!(reason, "MESSAGE_TOO_LARGE");
    assert!(generate(&daemon, chat("Hello.")).await.is_ok());
}

/// As the schema's request, but with bytes where it has text.
#[derive(Clone, PartialEq, prost::Message)]
struct RawBytes {
    #[prost(bytes = "vec", tag = "2")]
    raw_text: Vec<u8>,
}

#[tokio::test]
async fn bytes_that_are_no_text_are_refused_as_the_callers_mistake() {
    let daemon = Daemon::embedded().await;
    let mut client = tonic::client::Grpc::new(daemon.channel().await);
    client.ready().await.unwrap();
    let path = "/sluice.v1.GenerationService/Generate".parse().unwrap();
    let codec: tonic_prost::ProstCodec<RawBytes, ()> = tonic_prost::ProstCodec::default();
    let message = RawBytes {
        raw_text: vec![0xff, 0xfe],
    };
    let answer = client.server_streaming(tonic::Request::new(message), path, codec);
    let error = CallError::from(answer.await.unwrap_err());
    assert_eq!(error.code, Code::InvalidArgument);
    assert_eq!(error.reason.as_deref(), Some("MALFORMED_MESSAGE"));
    assert!(
        error.message.contains("GenerateRequest") && error.message.contains("UTF-8"),
        "{error}"
    );
}

#[tokio::test]
async fn a_crowd_of_empty_messages_is_answered_soon() {
    let daemon = Daemon::embedded().await;
    let crowd = |count: usize| {
        let mut request = chat("hello");
        if let Some(v1::generate_request::Input::Chat(chat)) = &mut request.input {
            let empty = v1::ChatMessage {
                role: v1::ChatRole::User.into(),
                content: String::new(),
                ..Default::default()
            };
            chat.messages.splice(0..0, vec![empty; count - 1]);
        }
        request
    };
    // As many as may be: each has its share of the template, so no context holds them.
    let (_, reason, _) = within("a refusal", refused(&daemon, crowd(4096))).await;
    assert_eq!(reason, "CONTEXT_EXCEEDED");
    let (_, reason, message) = refused(&daemon, crowd(4097)).await;
    assert_eq!(reason, "INVALID_FIELD");
    assert_eq!(message, "chat: has 4097 messages, more than 4096");
}
