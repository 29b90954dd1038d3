//! Asking a hub: connections, redirects, and how long an answer is waited for.

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

/// The hub itself refers to one or two others.
const REDIRECTS_MAX: usize = 6;

type Connections<C> = Pool<C, Empty<Bytes>>;

/// Asks one hub.
#[derive(Debug, Clone)]
pub struct Client {
    plain: Connections<HttpConnector>,
    /// `None` where the system has no certificates to know anybody by.
    secure: Option<Connections<HttpsConnector<HttpConnector>>>,
    access: Access,
    patience: Patience,
}

/// An answer whose body has not been read.
pub(crate) struct HubResponse {
    /// Who gave it.
    pub(crate) host: String,
    /// Whether that is the hub itself.
    pub(crate) is_hub: bool,
    stall: Duration,
    response: Response<Incoming>,
}

impl Client {
    /// A client of a hub. Nothing is asked yet.
    #[must_use]
    pub fn new(access: Access, patience: Patience) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(patience.connect));
        // The outer connector has looked at the scheme.
        connector.enforce_http(false);
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

    /// How the hub is reached.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// A new row of attempts.
    pub(crate) fn attempts(&self) -> Attempts {
        Attempts::new(self.patience)
    }

    /// Asks for the rest of what lies at a path of the hub, from a byte on, following redirects. Answers that are no
    /// success are given back too.
    pub(crate) async fn get(&self, path: &str, from: u64) -> Result<HubResponse, HubError> {
        if self.access.is_offline {
            return Err(HubError::Offline {
                what: path.trim_start_matches('/').to_owned(),
            });
        }
        let hub = self.uri(&self.access.endpoint)?;
        let mut uri = self.uri(&format!("{}{path}", self.access.endpoint))?;
        let mut is_hub = true;
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
            // Who was referred to is trusted with nothing, even where it refers back.
            is_hub = is_hub && origin(&uri) == origin(&hub);
        }
        Err(HubError::WrongResponse {
            host: host(&uri),
            problem: format!("more than {REDIRECTS_MAX} redirects"),
        })
    }

    /// A small answer, asked for again where that may help.
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

    /// A header that is plain text.
    pub(crate) fn header(&self, name: impl http::header::AsHeaderName) -> Option<&str> {
        self.headers().get(name)?.to_str().ok()
    }

    /// What an answer that is none of the hub's own refusals means.
    pub(crate) fn failure(&self) -> HubError {
        let host = self.host.clone();
        let seconds = self.header(RETRY_AFTER).and_then(|text| text.parse().ok());
        match self.status() {
            StatusCode::TOO_MANY_REQUESTS => HubError::TooMany { host, seconds },
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
                // Trailers.
                Some(Err(_)) => {}
                None => return Ok(None),
            }
        }
    }

    /// The whole body, if it has no more than `max` bytes.
    pub(crate) async fn bytes(mut self, max: usize) -> Result<Vec<u8>, HubError> {
        let mut bytes = Vec::new();
        while let Some(part) = self.next().await? {
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

/// Where an answer refers to.
fn redirect(answer: &Response<Incoming>) -> Option<&HeaderValue> {
    let is_redirect = [301, 302, 303, 307, 308].contains(&answer.status().as_u16());
    answer.headers().get(LOCATION).filter(|_| is_redirect)
}

/// The address that a redirect leads to.
fn follow(from: &Uri, location: &HeaderValue) -> Result<Uri, String> {
    let unreadable = || "a redirect with an invalid address".to_owned();
    let location = location.to_str().map_err(|_| unreadable())?;
    let to: Uri = match location.strip_prefix('/') {
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
        (Some("https"), Some("http")) => Err("a redirect from https to http".to_owned()),
        _ => Err(unreadable()),
    }
}

/// Scheme, host and port.
fn origin(uri: &Uri) -> (Option<&str>, Option<&str>) {
    (
        uri.scheme_str(),
        uri.authority().map(http::uri::Authority::as_str),
    )
}

fn host(uri: &Uri) -> String {
    uri.authority().map(ToString::to_string).unwrap_or_default()
}

/// Not where everybody on the way could read it.
fn may_carry_token(uri: &Uri) -> bool {
    let is_here = uri.host().is_some_and(|host| {
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    });
    uri.scheme_str() == Some("https") || is_here
}

/// The deepest cause has the system's own words.
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
