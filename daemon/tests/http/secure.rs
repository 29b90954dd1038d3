//! A daemon that other machines could reach, by gRPC and by HTTP, over TLS.

use std::{net::SocketAddr, path::Path};

use sluice_daemon::role::Role;
use testkit::certificates::{SignedCertificate, Validity};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

use crate::{
    client::{Answer, port},
    support::{
        Daemon,
        tls::{NAMES, ReachableDaemon, TlsClient, token},
        within,
    },
};

/// Its ports, a token for each role, and the files that it was told of.
pub(crate) struct SecureDaemon {
    pub(crate) reachable: ReachableDaemon,
    pub(crate) http: SocketAddr,
}

/// What has the daemon serve HTTP as well.
pub(crate) const HTTP: [&str; 2] = ["--http", "0.0.0.0:0"];

impl SecureDaemon {
    /// One with a model, ready to generate.
    pub(crate) async fn with_model(model: &Path, more: &[&str]) -> Self {
        let more = [&HTTP, more].concat();
        Self::of(ReachableDaemon::with_model(model, &more).await)
    }

    /// One whose model may be loading.
    pub(crate) async fn start() -> Self {
        let (files, authority, flags) = ReachableDaemon::files(&NAMES, Validity::Now);
        let http = HTTP.map(str::to_owned);
        let daemon = Daemon::start(&[&flags[..], &http].concat()).await;
        Self::of(ReachableDaemon::of(daemon, authority, files))
    }

    pub(crate) fn of(reachable: ReachableDaemon) -> Self {
        let port = port(&reachable.daemon.log()).port();
        Self {
            reachable,
            http: SocketAddr::from(([127, 0, 0, 1], port)),
        }
    }

    /// A connection to the HTTP port, with nothing said.
    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.http).await.unwrap()
    }

    /// The same after the handshake.
    pub(crate) async fn secured(&self) -> TlsStream<TcpStream> {
        self.secured_as(None).await
    }

    /// The same of somebody with a certificate, which the daemon may refuse afterwards.
    pub(crate) async fn secured_as(&self, own: Option<&SignedCertificate>) -> TlsStream<TcpStream> {
        let client = TlsClient {
            protocol: "http/1.1",
            name: "localhost",
            ca: &self.reachable.file("ca.crt"),
            own,
        };
        let handshake = client.begin(self.connect().await);
        within("a handshake", handshake).await.unwrap()
    }

    /// Sends a request under a token, if any, and leaves its answer to be read.
    pub(crate) async fn ask(
        &self,
        token: Option<&str>,
        line: &str,
        body: &str,
    ) -> TlsStream<TcpStream> {
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let request = format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\n{}Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
            token.unwrap_or_default(),
            body.len()
        );
        let mut stream = self.secured().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// Sends a request, and reads its answer to the end.
    pub(crate) async fn send(&self, token: Option<&str>, line: &str, body: &str) -> Answer {
        read(&mut self.ask(token, line, body).await).await
    }

    /// The same of somebody with this role.
    pub(crate) async fn send_as(&self, role: Role, line: &str, body: &str) -> Answer {
        self.send(Some(&token(role)), line, body).await
    }
}

/// An answer to its end, which TLS has to tell: it might have been cut.
pub(crate) async fn read(stream: &mut TlsStream<TcpStream>) -> Answer {
    let mut answer = Vec::new();
    within("the answer", stream.read_to_end(&mut answer))
        .await
        .unwrap();
    Answer::read(&String::from_utf8(answer).unwrap())
}
