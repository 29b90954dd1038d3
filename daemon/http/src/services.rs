//! The daemon's gRPC services, as one HTTP request calls them.

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use hyper::{
    HeaderMap, Uri,
    header::{AUTHORIZATION, HOST, HeaderValue},
    http::Extensions,
};
use sluice_proto::{
    client::MESSAGE_BYTES_MAX,
    v1::{
        embedding_service_client::EmbeddingServiceClient,
        generation_service_client::GenerationServiceClient,
        model_service_client::ModelServiceClient, telemetry_service_client::TelemetryServiceClient,
    },
};
use tonic::{
    body::Body,
    codegen::http::{Request, Response},
};
use tower::{Service, util::BoxCloneSyncService};

/// All services behind what counts calls and checks who makes them.
pub(crate) type GrpcServices = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// The services for one HTTP request: each call goes under the name and the token that the request came with, and with what
/// the daemon knows of its connection.
#[derive(Debug, Clone)]
pub(crate) struct Services {
    inner: GrpcServices,
    connection: Extensions,
    host: Option<HeaderValue>,
    token: Option<HeaderValue>,
}

impl Services {
    /// Those for a request with these headers.
    pub(crate) fn new(
        inner: &GrpcServices,
        connection: &Extensions,
        headers: &HeaderMap,
        passes_tokens: bool,
    ) -> Self {
        let token = headers.get(AUTHORIZATION).filter(|_| passes_tokens);
        Self {
            inner: inner.clone(),
            connection: connection.clone(),
            host: headers.get(HOST).cloned(),
            token: token.cloned(),
        }
    }

    /// The head of a call to this path, for who asks whether it may be made.
    pub(crate) fn head(&self, path: &'static str) -> Request<()> {
        let mut head = Request::new(());
        *head.uri_mut() = Uri::from_static(path);
        self.sign(&mut head);
        head
    }

    /// Says who makes a call.
    fn sign<B>(&self, call: &mut Request<B>) {
        for (name, value) in [(HOST, &self.host), (AUTHORIZATION, &self.token)] {
            if let Some(value) = value {
                call.headers_mut().insert(name, value.clone());
            }
        }
        call.extensions_mut().extend(self.connection.clone());
    }

    pub(crate) fn generation(&self) -> GenerationServiceClient<Self> {
        GenerationServiceClient::new(self.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    pub(crate) fn embedding(&self) -> EmbeddingServiceClient<Self> {
        EmbeddingServiceClient::new(self.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    pub(crate) fn models(&self) -> ModelServiceClient<Self> {
        ModelServiceClient::new(self.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    pub(crate) fn telemetry(&self) -> TelemetryServiceClient<Self> {
        TelemetryServiceClient::new(self.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }
}

impl Service<Request<Body>> for Services {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = <GrpcServices as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut call: Request<Body>) -> Self::Future {
        self.sign(&mut call);
        self.inner.call(call)
    }
}
