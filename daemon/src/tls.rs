//! TLS on the port: the daemon's certificate, and whom clients' certificates are signed by.

use std::{path::Path, sync::Arc};

use tokio_rustls::rustls::{
    self, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{NoServerSessionStorage, WebPkiClientVerifier},
};

use crate::{
    config::Config,
    credential_file::{CredentialError, CredentialKind},
    reread::Reread,
};

/// Largest of the files.
const FILE_BYTES_MAX: u64 = 1 << 20;

const CERTIFICATE: CredentialKind = CredentialKind {
    name: "certificate",
    bytes_max: FILE_BYTES_MAX,
    is_secret: false,
};
const KEY: CredentialKind = CredentialKind {
    name: "private key",
    is_secret: true,
    ..CERTIFICATE
};
const CLIENT_CA: CredentialKind = CredentialKind {
    name: "file of clients' authorities",
    ..CERTIFICATE
};

/// What a port serves, which clients are told as they shake hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortProtocol {
    /// HTTP/2.
    Grpc,
    /// HTTP/1.1.
    Http,
}

/// What ports' connections are encrypted by; follows its files.
#[derive(Debug, Clone)]
pub struct Tls(Arc<Reread<Servers>>);

/// The same for each protocol.
#[derive(Debug)]
struct Servers {
    grpc: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
}

impl Tls {
    /// That of a configuration; `None` where it has no certificate.
    ///
    /// # Errors
    /// When a file can't be used.
    pub fn of(config: &Config) -> Result<Option<Self>, CredentialError> {
        let (Some(certificate), Some(key)) = (
            config.tls_certificate.value.0.clone(),
            config.tls_key.value.0.clone(),
        ) else {
            return Ok(None);
        };
        let client_ca = config.tls_client_ca.value.0.clone();
        let mut paths = vec![certificate.clone(), key.clone()];
        paths.extend(client_ca.clone());
        let read = move |_: Option<&_>| {
            let server = server(&certificate, &key, client_ca.as_deref())?;
            let serving = |protocol: &[u8]| {
                let mut server = server.clone();
                server.alpn_protocols = vec![protocol.to_vec()];
                Arc::new(server)
            };
            Ok(Servers {
                grpc: serving(b"h2"),
                http: serving(b"http/1.1"),
            })
        };
        Ok(Some(Self(Arc::new(Reread::new(paths, read)?))))
    }

    /// What a connection that begins now is encrypted by.
    pub(crate) fn server(&self, protocol: PortProtocol) -> Arc<ServerConfig> {
        let servers = self.0.current();
        match protocol {
            PortProtocol::Grpc => servers.grpc.clone(),
            PortProtocol::Http => servers.http.clone(),
        }
    }

    /// Looks whether the files changed.
    pub(crate) fn look(&self) {
        self.0.look();
    }

    /// Why the files that are there now are not in force, if they are not.
    pub(crate) fn problem(&self) -> Option<String> {
        self.0.problem()
    }
}

fn server(
    certificate: &Path,
    key: &Path,
    client_ca: Option<&Path>,
) -> Result<ServerConfig, CredentialError> {
    let chain = certificates(CERTIFICATE, certificate)?;
    let private = PrivateKeyDer::from_pem_slice(&KEY.read(key)?)
        .map_err(|error| KEY.wrong(key, format!("it holds no private key as PEM: {error}")))?;
    let provider = Arc::new(ring::default_provider());
    let verifier = match client_ca {
        // Who brings none may have a token; a call by whoever has neither is refused in words.
        Some(path) => authorities(path, provider.clone())?,
        None => WebPkiClientVerifier::no_client_auth(),
    };
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| CERTIFICATE.wrong(certificate, error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, private)
        .map_err(|error| CERTIFICATE.wrong(certificate, unusable(&error, key)))?;
    // A connection that goes on from an earlier one would not be asked for its certificate again.
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    Ok(server)
}

fn authorities(
    path: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, CredentialError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(CLIENT_CA, path)? {
        roots
            .add(certificate)
            .map_err(|error| CLIENT_CA.wrong(path, error))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .allow_unauthenticated()
        .build()
        .map_err(|error| CLIENT_CA.wrong(path, error))
}

fn certificates(
    kind: CredentialKind,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, CredentialError> {
    let bytes = kind.read(path)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match read {
        Ok(certificates) if certificates.is_empty() => {
            Err(kind.wrong(path, "it holds no certificate as PEM"))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(kind.wrong(path, error)),
    }
}

fn unusable(error: &rustls::Error, key: &Path) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            format!("it is of another key than that in {}", key.display())
        }
        error => error.to_string(),
    }
}
