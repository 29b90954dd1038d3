//! The handshake of versions: a client that says which protocol it speaks is served by a daemon that speaks the same.

use sluice_proto::{PROTOCOL, PROTOCOL_HEADER};
use tonic::codegen::http::HeaderMap;

use crate::failure::Failure;

/// The call that every client may make: it tells the daemon's version, and the process that `sluice stop --daemon` ends.
const OPEN: &str = "/sluice.v1.TelemetryService/GetSnapshot";

/// Refuses a call of a client that speaks another protocol. Health and reflection are of other protocols than ours.
pub(super) fn check(headers: &HeaderMap, path: &str) -> Result<(), Failure> {
    let Some(said) = headers.get(PROTOCOL_HEADER) else {
        return Ok(());
    };
    // What is no number is none of ours: protocols are counted from 1.
    let client = said.to_str().ok().and_then(|said| said.parse().ok());
    let client = client.unwrap_or(0);
    match client == PROTOCOL || path == OPEN || !path.starts_with("/sluice.v1.") {
        true => Ok(()),
        false => Err(Failure::OtherProtocol { client }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(protocol: Option<String>, path: &str) -> Result<(), Failure> {
        let mut headers = HeaderMap::new();
        if let Some(protocol) = protocol {
            headers.insert(PROTOCOL_HEADER, protocol.parse().unwrap());
        }
        check(&headers, path)
    }

    #[test]
    fn clients_of_another_protocol_are_refused_all_but_the_call_that_tells_versions() {
        let call = "/sluice.v1.GenerationService/Generate";
        checked(None, call).unwrap();
        checked(Some(PROTOCOL.to_string()), call).unwrap();
        for other in [(PROTOCOL + 1).to_string(), "1".into(), "x".into()] {
            let refused = checked(Some(other.clone()), call).unwrap_err();
            assert!(matches!(refused, Failure::OtherProtocol { .. }), "{other}");
            checked(Some(other.clone()), OPEN).unwrap();
            checked(Some(other), "/grpc.health.v1.Health/Check").unwrap();
        }
    }

    #[test]
    fn whoever_is_older_is_told_to_upgrade() {
        let hint = |client| {
            let status = tonic::Status::from(Failure::OtherProtocol { client });
            let failed = sluice_proto::client::CallError::from(status);
            failed.hint.unwrap()
        };
        assert!(hint(PROTOCOL - 1).contains("upgrade the client"));
        assert!(hint(PROTOCOL + 1).contains("upgrade sluiced"));
    }
}
