//! Requests to a hub: connections, redirects, and timeouts.

use std::{error::Error, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode, Uri,
    header::{AUTHORIZATION, LOCATION, RANGE, RETRY_AFTER, USER_AGENT},
};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client as Pool, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::time::timeout;

use crate::{Access, HubError, Patience, patience::Attempts};

/// Most redirects of a request; the hub itself needs one or two.
const REDIRECTS_MAX: usize = 6;

type Connections<C> = Pool<C, Empty<Bytes>>;

/// A client of one hub.
#[derive(Debug, Clone)]
pub struct Client {
    plain: Connections<HttpConnector>,
    /// `None` where the system has no root certificates.
    secure: Option<Connections<HttpsConnector<HttpConnector>>>,
    access: Access,
    patience: Patience,
}

/// An answer whose body has not been read yet.
pub(crate) struct HubResponse {
    /// The host that answered.
    pub(crate) host: String,
    /// Whether that is the hub itself.
    pub(crate) is_hub: bool,
    stall: Duration,
    response: Response<Incoming>,
}

impl Client {
    /// A client of a hub. It doesn't connect yet.
    #[must_use]
    pub fn new(access: Access, patience: Patience) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(patience.connect));
        // The outer connector checks the scheme; this one also serves as its transport for https.
        connector.enforce_http(false);
        // The system's certificates, which an administrator can extend for a hub of their own.
        let roots = HttpsConnectorBuilder::new().with_native_roots();
        let secure = roots.map(|builder| {
            let connector = builder
                .https_only()
                .enable_http1()
                .wrap_connector(connector.clone());
            Pool::builder(TokioExecutor::new()).build(connector)
        });
        Self {
            plain: Pool::builder(TokioExecutor::new()).build(connector),
            secure: secure.ok(),
            access,
            patience,
        }
    }

    /// The hub's access settings.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// A new series of attempts.
    pub(crate) fn attempts(&self) -> Attempts {
        Attempts::new(self.patience)
    }

    /// Requests the bytes at a path of the hub from `from` on, and follows redirects. Error statuses are returned as
    /// answers.
    pub(crate) async fn get(&self, path: &str, from: u64) -> Result<HubResponse, HubError> {
        if self.access.is_offline {
            return Err(HubError::Offline {
                what: path.trim_start_matches('/').to_owned(),
            });
        }
        let hub = self.uri(&self.access.endpoint)?;
        let mut uri = self.uri(&format!("{}{path}", self.access.endpoint))?;
        let mut is_hub = true;
        // Redirects are followed here, because only this code knows who may see the token.
        for _ in 0..=REDIRECTS_MAX {
            let host = host(&uri);
            let answer = self
                .ask(&uri, from, is_hub && may_carry_token(&uri))
                .await?;
            let Some(next) = redirect(&answer) else {
                return Ok(HubResponse {
                    host,
                    is_hub,
                    stall: self.patience.stall,
                    response: answer,
                });
            };
            uri =
                follow(&uri, next).map_err(|problem| HubError::WrongResponse { host, problem })?;
            // Once a request has left the hub's origin, nobody gets the token, even if a redirect leads back.
            is_hub = is_hub && origin(&uri) == origin(&hub);
        }
        Err(HubError::WrongResponse {
            host: host(&uri),
            problem: format!("more than {REDIRECTS_MAX} redirects"),
        })
    }

    /// Requests a small body, and tries again after failures that may pass.
    pub(crate) async fn get_small(
        &self,
        path: &str,
        bytes_max: usize,
        refused: impl Fn(&HubResponse) -> HubError,
        tell: &mut (dyn FnMut(&HubError, Duration) + Send),
    ) -> Result<Vec<u8>, HubError> {
        let mut attempts = self.attempts();
        loop {
            let result = async {
                let answer = self.get(path, 0).await?;
                match answer.status() {
                    StatusCode::OK => answer.bytes(bytes_max).await,
                    _ => Err(refused(&answer)),
                }
            };
            match result.await {
                Ok(bytes) => return Ok(bytes),
                Err(error) => attempts.after(error, tell).await?,
            }
        }
    }

    async fn ask(
        &self,
        uri: &Uri,
        from: u64,
        with_token: bool,
    ) -> Result<Response<Incoming>, HubError> {
        let unreachable = |cause: String| HubError::Unreachable {
            host: host(uri),
            cause,
        };
        let mut request = Request::get(uri.clone());
        let headers = request
            .headers_mut()
            .expect("an address that was parsed makes no wrong request");
        headers.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("sluice/", env!("CARGO_PKG_VERSION"))),
        );
        if from > 0 {
            let range = HeaderValue::from_str(&format!("bytes={from}-"));
            headers.insert(RANGE, range.expect("digits are a header"));
        }
        if let Some(token) = self.access.token.as_ref().filter(|_| with_token) {
            let value = HeaderValue::from_str(&format!("Bearer {}", token.secret()));
            let mut value = value.expect("a token is printable");
            // Keeps the value out of debug output.
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let request = request.body(Empty::new()).expect("its parts were checked");
        let answer = match (uri.scheme_str(), &self.secure) {
            (Some("http"), _) => self.plain.request(request),
            (_, Some(secure)) => secure.request(request),
            (_, None) => {
                return Err(unreachable(
                    "this system has no trusted root certificates".to_owned(),
                ));
            }
        };
        // A timeout for the whole answer's head. The body has one for each piece, so that slow but steady downloads go
        // on.
        let answer = timeout(self.patience.connect + self.patience.stall, answer).await;
        let answer = answer.map_err(|_| HubError::Stalled {
            host: host(uri),
            seconds: self.patience.stall.as_secs(),
        })?;
        answer.map_err(|error| unreachable(innermost(&error)))
    }

    fn uri(&self, text: &str) -> Result<Uri, HubError> {
        text.parse().map_err(|_| HubError::Endpoint {
            endpoint: self.access.endpoint.clone(),
        })
    }
}

impl HubResponse {
    pub(crate) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// The value of a header, if it is plain text.
    pub(crate) fn header(&self, name: impl http::header::AsHeaderName) -> Option<&str> {
        self.headers().get(name)?.to_str().ok()
    }

    /// The error for an answer that is none of the hub's own refusals.
    pub(crate) fn failure(&self) -> HubError {
        let host = self.host.clone();
        // `Retry-After` may also be a date; that counts as absent.
        let seconds = self.header(RETRY_AFTER).and_then(|text| text.parse().ok());
        match self.status() {
            StatusCode::TOO_MANY_REQUESTS => HubError::TooMany { host, seconds },
            // A 503 with a time is a rate limit; without one it is a failure, which is retried as well.
            StatusCode::SERVICE_UNAVAILABLE if seconds.is_some() => {
                HubError::TooMany { host, seconds }
            }
            status => HubError::Status {
                host,
                status: status.as_u16(),
            },
        }
    }

    /// The next bytes of the body; `None` at its end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, HubError> {
        loop {
            let frame = timeout(self.stall, self.response.body_mut().frame()).await;
            let frame = frame
                .map_err(|_| HubError::Stalled {
                    host: self.host.clone(),
                    seconds: self.stall.as_secs(),
                })?
                .transpose()
                .map_err(|error| HubError::Unreachable {
                    host: self.host.clone(),
                    cause: innermost(&error),
                })?;
            match frame.map(hyper::body::Frame::into_data) {
                Some(Ok(data)) => return Ok(Some(data)),
                // Trailers carry no data.
                Some(Err(_)) => {}
                None => return Ok(None),
            }
        }
    }

    /// The whole body, if it has at most `max` bytes.
    pub(crate) async fn bytes(mut self, max: usize) -> Result<Vec<u8>, HubError> {
        let mut bytes = Vec::new();
        while let Some(part) = self.next().await? {
            // Compared before the bytes are kept: a hub may send without end.
            if bytes.len() + part.len() > max {
                return Err(HubError::WrongResponse {
                    host: self.host,
                    problem: format!("more than {max} bytes"),
                });
            }
            bytes.extend_from_slice(&part);
        }
        Ok(bytes)
    }
}

/// The target of a redirect, if the answer is one.
fn redirect(answer: &Response<Incoming>) -> Option<&HeaderValue> {
    let is_redirect = [301, 302, 303, 307, 308].contains(&answer.status().as_u16());
    answer.headers().get(LOCATION).filter(|_| is_redirect)
}

/// The absolute address of a redirect's target.
fn follow(from: &Uri, location: &HeaderValue) -> Result<Uri, String> {
    let unreadable = || "a redirect with an invalid address".to_owned();
    let location = location.to_str().map_err(|_| unreadable())?;
    let to: Uri = match location.strip_prefix('/') {
        // `//host/path` is not a path but names another host.
        Some(rest) if !rest.starts_with('/') => {
            let (scheme, authority) = origin(from);
            format!(
                "{}://{}{location}",
                scheme.unwrap_or_default(),
                authority.unwrap_or_default()
            )
        }
        _ => location.to_owned(),
    }
    .parse()
    .map_err(|_| unreadable())?;
    match (from.scheme_str(), to.scheme_str()) {
        (_, Some("https")) | (Some("http"), Some("http")) if to.host().is_some() => Ok(to),
        // Anybody on the way could read and change what comes over http.
        (Some("https"), Some("http")) => Err("a redirect from https to http".to_owned()),
        _ => Err(unreadable()),
    }
}

/// Scheme, host and port of an address.
fn origin(uri: &Uri) -> (Option<&str>, Option<&str>) {
    (
        uri.scheme_str(),
        uri.authority().map(http::uri::Authority::as_str),
    )
}

fn host(uri: &Uri) -> String {
    uri.authority().map(ToString::to_string).unwrap_or_default()
}

/// Whether a token may be sent to this address: only encrypted, or on this machine.
fn may_carry_token(uri: &Uri) -> bool {
    let is_here = uri.host().is_some_and(|host| {
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    });
    uri.scheme_str() == Some("https") || is_here
}

/// The deepest cause, which has the system's own message.
fn innermost(error: &dyn Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followed(from: &str, to: &str) -> Result<String, String> {
        let location = HeaderValue::from_str(to).unwrap();
        follow(&from.parse().unwrap(), &location).map(|uri| uri.to_string())
    }

    #[test]
    fn redirects_lead_on_but_never_out_of_encryption() {
        assert_eq!(
            followed("https://a/x", "/y?z=1"),
            Ok("https://a/y?z=1".to_owned())
        );
        assert_eq!(
            followed("https://a/x", "https://b/y"),
            Ok("https://b/y".to_owned())
        );
        assert_eq!(
            followed("http://a:1/x", "http://b:2/y"),
            Ok("http://b:2/y".to_owned())
        );
        for wrong in [
            "http://a/y",
            "//b/y",
            "y",
            "",
            "ftp://a/y",
            "file:///etc/passwd",
        ] {
            assert!(followed("https://a/x", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_token_goes_over_encrypted_lines_or_none_at_all() {
        let may = |uri: &str| may_carry_token(&uri.parse().unwrap());
        assert!(may("https://huggingface.co/"));
        assert!(
            may("http://127.0.0.1:8080/") && may("http://[::1]:1/") && may("http://localhost/")
        );
        assert!(!may("http://huggingface.co/") && !may("http://10.0.0.1/"));
    }
}
