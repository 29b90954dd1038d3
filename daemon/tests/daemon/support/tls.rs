//! A daemon that other machines could reach, and who comes to it.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use sluice_daemon::role::Role;
use sluice_proto::client::{self, CallError, ConnectError, ConnectOptions, TlsFiles};
use tempfile::TempDir;
use testkit::certificates::{Authority, SignedCertificate, Validity, write};
use tokio::{net::TcpStream, time::sleep};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        self, ClientConfig, RootCertStore,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};
use tonic::{Request, Status, client::Grpc, codegen::http::uri::PathAndQuery, transport::Channel};
use tonic_prost::ProstCodec;

use super::{Daemon, within};

/// A daemon with a port for the whole machine: with a certificate for `localhost`, a token for each role, and clients'
/// certificates by the same authority.
pub(crate) struct ReachableDaemon {
    pub(crate) daemon: Daemon,
    pub(crate) port: u16,
    pub(crate) authority: Authority,
    /// What the settings name.
    pub(crate) files: TempDir,
}

/// The token of a role.
pub(crate) fn token(role: Role) -> String {
    format!("{role}-0123456789abcdef")
}

/// The lines of the token file.
pub(crate) fn token_lines() -> String {
    Role::ALL
        .map(|role| format!("{role} {}\n", token(role)))
        .concat()
}

/// Names of the daemon in its certificate.
pub(crate) const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

impl ReachableDaemon {
    pub(crate) async fn with_model(model: &Path, more: &[&str]) -> Self {
        let (files, authority, flags) = Self::files(&NAMES, Validity::Now);
        let flags: Vec<&str> = flags
            .iter()
            .map(String::as_str)
            .chain(more.iter().copied())
            .collect();
        let daemon = Daemon::with_model(model, &flags).await;
        Self::of(daemon, authority, files)
    }

    /// One whose model may be loading, with a certificate like this.
    pub(crate) async fn start(names: &[&str], validity: Validity) -> Self {
        let (files, authority, flags) = Self::files(names, validity);
        let daemon = Daemon::start(&flags).await;
        Self::of(daemon, authority, files)
    }

    /// The files, whom certificates are by, and the settings that name them.
    pub(crate) fn files(names: &[&str], validity: Validity) -> (TempDir, Authority, Vec<String>) {
        let (folder, authority) = (TempDir::new().unwrap(), Authority::new());
        let (certificate, key) = authority
            .server(names, validity)
            .write(folder.path(), "tls");
        let ca = write(&folder.path().join("ca.crt"), &authority.certificate);
        let tokens = write(&folder.path().join("tokens"), &token_lines());
        let mut flags = vec!["--listen".to_owned(), "0.0.0.0:0".to_owned()];
        for (flag, path) in [
            ("--tls-certificate", certificate),
            ("--tls-key", key),
            ("--tls-client-ca", ca),
            ("--token-file", tokens),
        ] {
            flags.extend([flag.to_owned(), path.to_str().unwrap().to_owned()]);
        }
        (folder, authority, flags)
    }

    pub(crate) fn of(daemon: Daemon, authority: Authority, files: TempDir) -> Self {
        let log = daemon.log();
        let port = log.split("port=0.0.0.0:").nth(1).unwrap();
        let port: String = port.chars().take_while(char::is_ascii_digit).collect();
        Self {
            daemon,
            port: port.parse().unwrap(),
            authority,
            files,
        }
    }

    /// Puts another certificate in place, one file after the other: meanwhile they don't fit each other.
    pub(crate) async fn renew(&self) -> SignedCertificate {
        let renewed = self.authority.server(&NAMES, Validity::Now);
        write(&self.file("tls.key"), &renewed.key);
        sleep(Duration::from_millis(50)).await;
        write(&self.file("tls.crt"), &renewed.certificate);
        renewed
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// Connects as somebody with this certificate, if any, who trusts the daemon's authority.
    pub(crate) async fn connect(
        &self,
        certificate: Option<&SignedCertificate>,
    ) -> Result<Channel, ConnectError> {
        let folder = TempDir::new().unwrap();
        let paths = certificate.map(|own| own.write(folder.path(), "own"));
        let (certificate, key) = paths.unzip();
        let tls = TlsFiles {
            ca: Some(self.file("ca.crt")),
            certificate,
            key,
        };
        self.connect_with(tls).await
    }

    pub(crate) async fn connect_with(&self, tls: TlsFiles) -> Result<Channel, ConnectError> {
        let address = format!("https://localhost:{}", self.port);
        let options = ConnectOptions {
            tls,
            ..Default::default()
        };
        let connecting = client::connect_with(Path::new(&address), options);
        within("a connection", connecting).await
    }
}

/// A request by whoever has this token.
pub(crate) fn by<T>(token: Option<&str>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        let header = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", header);
    }
    request
}

/// Makes a call of Sluice's with an empty message; what becomes of it.
pub(crate) async fn call(channel: &Channel, token: Option<&str>, call: &str) -> Result<(), Status> {
    call_path(channel, token, &format!("/sluice.v1.{call}")).await
}

/// The same of any service.
pub(crate) async fn call_path(
    channel: &Channel,
    token: Option<&str>,
    path: &str,
) -> Result<(), Status> {
    let mut client = Grpc::new(channel.clone());
    client
        .ready()
        .await
        .map_err(|error| Status::from_error(error.into()))?;
    let path = PathAndQuery::try_from(path).unwrap();
    let codec: ProstCodec<(), ()> = ProstCodec::default();
    let answer = client.server_streaming(by(token, ()), path, codec).await?;
    within("an answer", answer.into_inner().message())
        .await
        .map(drop)
}

/// The stable name of what went wrong.
pub(crate) fn reason(status: Status) -> Option<String> {
    CallError::from(status).reason
}

/// Begins TLS by hand for gRPC, without a client's certificate.
pub(crate) async fn secured(
    stream: TcpStream,
    name: &str,
    ca: &Path,
) -> io::Result<TlsStream<TcpStream>> {
    let client = TlsClient {
        protocol: "h2",
        name,
        ca,
        own: None,
    };
    client.begin(stream).await
}

/// What a client of TLS brings.
pub(crate) struct TlsClient<'a> {
    /// What is spoken within.
    pub(crate) protocol: &'a str,
    /// The server's.
    pub(crate) name: &'a str,
    /// The authority that it trusts.
    pub(crate) ca: &'a Path,
    /// A certificate of its own.
    pub(crate) own: Option<&'a SignedCertificate>,
}

impl TlsClient<'_> {
    /// Makes the handshake. Whether the server takes the client's certificate is told afterwards.
    pub(crate) async fn begin(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(self.ca).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match self.own {
            Some(own) => {
                let certificate = CertificateDer::from_pem_slice(own.certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes());
                config
                    .with_client_auth_cert(vec![certificate.unwrap()], key.unwrap())
                    .unwrap()
            }
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![self.protocol.as_bytes().to_vec()];
        let name = ServerName::try_from(self.name.to_owned()).unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    }
}
