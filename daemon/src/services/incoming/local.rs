//! A tower layer that answers calls without TLS on a port only under a name of this machine's loopback interface.
//!
//! A web page may resolve its own name to 127.0.0.1 and have a browser send requests there (DNS rebinding); the name it came
//! under gives it away. With TLS the browser would ask for a certificate of that name.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::future::{Either, Ready, ready};
use tonic::{
    Status,
    codegen::http::{Request, Response, header::HOST, uri::Authority},
};
use tower::{Layer, Service};

use super::Peer;

/// The layer that refuses calls without TLS on a port under any name but the loopback interface's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalNames;

/// A service behind [`LocalNames`].
#[derive(Debug, Clone)]
pub(crate) struct UnderLocalNames<S>(S);

impl<S> Layer<S> for LocalNames {
    type Service = UnderLocalNames<S>;

    fn layer(&self, inner: S) -> UnderLocalNames<S> {
        UnderLocalNames(inner)
    }
}

impl<S, B, R> Service<Request<B>> for UnderLocalNames<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Default,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<S::Response, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let peer: Option<&Arc<Peer>> = request.extensions().get();
        let is_checked = peer.is_some_and(|peer| peer.needs_local_name);
        let name = name(&request);
        if is_checked && !name.as_ref().is_some_and(is_loopback) {
            let name = name.map_or_else(|| "no name".to_owned(), |name| format!("`{name}`"));
            let refused = Status::permission_denied(format!(
                "this port answers to localhost, 127.0.0.1 and [::1], not to {name}"
            ));
            return Either::Right(ready(Ok(refused.into_http())));
        }
        Either::Left(self.0.call(request))
    }
}

/// The host name that the caller addressed: `:authority`, or else `Host`.
fn name<B>(request: &Request<B>) -> Option<Authority> {
    let in_header = || request.headers().get(HOST)?.to_str().ok()?.parse().ok();
    request.uri().authority().cloned().or_else(in_header)
}

fn is_loopback(name: &Authority) -> bool {
    let host = name.host();
    let inner = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || host.parse().is_ok_and(|host: Ipv4Addr| host.is_loopback())
        || inner.parse().is_ok_and(|host: Ipv6Addr| host.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_loopback_interface_are_local() {
        for local in [
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1:50051",
            "127.8.9.1",
            "[::1]:1",
        ] {
            assert!(is_loopback(&local.parse().unwrap()), "{local}");
        }
        for other in [
            "evil.example",
            "localhost.evil.example:1",
            "10.0.0.1",
            "[::2]:1",
            "1.127.0.0.1.nip.io",
        ] {
            assert!(!is_loopback(&other.parse().unwrap()), "{other}");
        }
    }
}
