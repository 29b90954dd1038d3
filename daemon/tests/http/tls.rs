//! HTTP over TLS.

use std::sync::Arc;

use tempfile::TempDir;
use testkit::certificates::{Authority, Validity};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};

use crate::{
    client::{Answer, HttpDaemon, token_file},
    support::within,
};

/// What a client of HTTP/1.1 asks of a server that this authority signs for.
fn connector(authority: &Authority) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(authority.certificate.as_bytes());
    roots.add(certificate.unwrap()).unwrap();
    let mut client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(client))
}

#[tokio::test]
async fn http_is_served_over_tls_to_who_may() {
    let authority = Authority::new();
    let server = authority.server(&["localhost"], Validity::Now);
    let folder = TempDir::new().unwrap();
    let (certificate, key) = server.write(folder.path(), "server");
    let tokens = token_file(&folder, "observe aaaaaaaaaaaaaaaaaaaa\n");
    let http = HttpDaemon::start(&[
        "--tls-certificate",
        certificate.to_str().unwrap(),
        "--tls-key",
        key.to_str().unwrap(),
        "--token-file",
        &tokens,
        "--roles",
        "generate=@nobody",
    ])
    .await;
    let ask = async |headers: &str| {
        let stream = http.connect().await;
        let name = ServerName::try_from("localhost").unwrap();
        let connecting = connector(&authority).connect(name, stream);
        let mut stream = within("a handshake", connecting).await.unwrap();
        let request = format!("GET /v1/models HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // Without a word of TLS at its end, an answer might have been cut.
        within("the answer", stream.read_to_end(&mut answer))
            .await
            .unwrap();
        Answer::read(&String::from_utf8(answer).unwrap())
    };
    // A browser would have asked for a certificate of that name.
    let host = "Host: sluice.example\r\n";
    let token = "Authorization: Bearer aaaaaaaaaaaaaaaaaaaa\r\n";
    assert_eq!(ask(&format!("{host}{token}")).await.status, 200);
    ask(host).await.refused(403);
    ask(&format!(
        "{host}Authorization: Bearer bbbbbbbbbbbbbbbbbbbb\r\n"
    ))
    .await
    .refused(401);
    let plain = http
        .raw(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await;
    assert!(plain.contains("this port takes TLS alone"), "{plain}");
}
