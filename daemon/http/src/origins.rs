//! From which web pages requests are taken: browsers say it in `Origin`.

use std::time::Duration;

use hyper::{
    HeaderMap, StatusCode,
    header::{
        ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
        ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, HeaderValue, ORIGIN, VARY,
    },
};

use sluice_shared::origin::Origin;

use crate::failure::Failure;

/// Time for which a browser need not ask again. An origin that is allowed no more is refused at its request, whatever was said before.
const PREFLIGHT_AGE: Duration = Duration::from_secs(10 * 60);

/// The page's origin, where a page of an allowed one sent the request.
///
/// # Errors
/// When it is not allowed.
pub(crate) fn check(
    allowed: &[Origin],
    headers: &HeaderMap,
) -> Result<Option<HeaderValue>, Failure> {
    let Some(origin) = headers.get(ORIGIN) else {
        return Ok(None);
    };
    match (allowed.iter()).any(|allowed| origin.as_bytes() == allowed.as_str().as_bytes()) {
        true => Ok(Some(origin.clone())),
        false => Err(Failure::new(
            StatusCode::FORBIDDEN,
            "origin_not_allowed",
            "web pages of this origin may not call this daemon\nhint: the administrator allows origins by \
             `http_origins` in sluiced.toml",
        )),
    }
}

/// Lets the page read an answer.
pub(crate) fn allow(origin: HeaderValue, headers: &mut HeaderMap) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(VARY, HeaderValue::from_static("Origin"));
    let names = HeaderValue::from_static("x-request-id, retry-after, x-should-retry");
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, names);
}

/// Answers a browser that asks beforehand what it may send.
pub(crate) fn allow_requests(headers: &mut HeaderMap) {
    let methods = HeaderValue::from_static("GET, POST");
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    // Clients send headers of their own, such as `x-stainless-lang`, and none of them means anything here. The star is for all but
    // `authorization`, which has to be named (Fetch standard, CORS-preflight fetch).
    let names = HeaderValue::from_static("authorization, *");
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names);
    let seconds = HeaderValue::from(PREFLIGHT_AGE.as_secs());
    headers.insert(ACCESS_CONTROL_MAX_AGE, seconds);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_another_origin_is_refused() {
        let origins = ["https://chat.example".parse().unwrap()];
        let checked = |origin: Option<&'static str>| {
            let origin = origin.map(|origin| (ORIGIN, HeaderValue::from_static(origin)));
            check(&origins, &origin.into_iter().collect())
        };
        assert_eq!(checked(None), Ok(None));
        assert!(checked(Some("https://chat.example")).unwrap().is_some());
        for other in ["https://chat.example.evil", "http://chat.example", "null"] {
            assert!(checked(Some(other)).is_err(), "{other}");
        }
    }
}
