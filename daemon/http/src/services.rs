//! The daemon's gRPC services, as one HTTP request calls them.

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use hyper::{
    HeaderMap,
    header::{AUTHORIZATION, HOST, HeaderValue},
    http::Extensions,
};
use sluice_proto::{
    client::MESSAGE_BYTES_MAX,
    v1::{
        generation_service_client::GenerationServiceClient,
        model_service_client::ModelServiceClient, telemetry_service_client::TelemetryServiceClient,
    },
};
use tonic::{
    body::Body,
    codegen::http::{Request, Response},
};
use tonic_health::pb::health_client::HealthClient;
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

    /// The same under the loopback interface's own name, and for nobody.
    pub(crate) fn local(&self) -> Self {
        Self {
            host: Some(HeaderValue::from_static("localhost")),
            token: None,
            ..self.clone()
        }
    }

    pub(crate) fn generation(&self) -> GenerationServiceClient<Self> {
        GenerationServiceClient::new(self.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    pub(crate) fn models(&self) -> ModelServiceClient<Self> {
        ModelServiceClient::new(self.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    pub(crate) fn telemetry(&self) -> TelemetryServiceClient<Self> {
        TelemetryServiceClient::new(self.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    pub(crate) fn health(&self) -> HealthClient<Self> {
        HealthClient::new(self.clone())
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
        for (name, value) in [(HOST, &self.host), (AUTHORIZATION, &self.token)] {
            if let Some(value) = value {
                call.headers_mut().insert(name, value.clone());
            }
        }
        call.extensions_mut().extend(self.connection.clone());
        self.inner.call(call)
    }
}
