//! TLS to a daemon: whom the client trusts, who it is, and what went wrong in words.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        self, AlertDescription, CertificateError, ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};

/// Largest of the files.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Files for TLS, as PEM. They are read for each connection: those that were renewed count at the next.
#[derive(Debug, Clone, Default)]
pub struct TlsFiles {
    /// Certificates of authorities that are trusted beside the system's.
    pub ca: Option<PathBuf>,
    /// The client's own certificate, and those that sign it.
    pub certificate: Option<PathBuf>,
    /// The private key of that.
    pub key: Option<PathBuf>,
}

impl TlsFiles {
    /// Begins TLS on a connection to this host.
    pub(super) async fn shake_hands(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            wrong(&format!(
                "`{host}` is no name that a certificate can be for"
            ))
        })?;
        let connector = TlsConnector::from(Arc::new(self.config()?));
        match connector.connect(name, stream).await {
            // As where a connection without TLS is closed before anything was said: it is tried again.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(io::ErrorKind::ConnectionReset.into())
            }
            shaken => shaken,
        }
    }

    fn config(&self) -> io::Result<ClientConfig> {
        let mut roots = RootCertStore::empty();
        // Those of the system that can't be read or used are not trusted, which is told when one is missed.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if let Some(path) = &self.ca {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| of(path, &error))?;
            }
        }
        let trusting = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots);
        let mut config = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let private =
                    PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| of(key, &error))?;
                trusting
                    .with_client_auth_cert(certificates(certificate)?, private)
                    .map_err(|error| of(certificate, &error))?
            }
            (None, None) => trusting.with_no_client_auth(),
            _ => {
                return Err(wrong(
                    "a client's certificate needs its private key, and the key its certificate",
                ));
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let bytes = read(path)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let certificates = read.map_err(|error| of(path, &error))?;
    match certificates.is_empty() {
        true => Err(of(path, &"it holds no certificate as PEM")),
        false => Ok(certificates),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    read.map_err(|error| of(path, &error))?;
    match bytes.len() as u64 > FILE_BYTES_MAX {
        true => Err(of(
            path,
            &format!("it has more than {FILE_BYTES_MAX} bytes"),
        )),
        false => Ok(bytes),
    }
}

fn of(path: &Path, problem: &dyn std::fmt::Display) -> io::Error {
    wrong(&format!("{}: {problem}", path.display()))
}

fn wrong(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, problem)
}

/// A client without TLS came to a port that speaks nothing else.
#[derive(Debug, thiserror::Error)]
#[error("it takes TLS alone there")]
struct TlsWanted;

/// Whether a server that speaks HTTP/2 begins by turning away whoever comes without TLS: a frame of no settings, and one that
/// ends the connection with the code INADEQUATE_SECURITY.
pub(super) fn is_wanted(first: &[u8]) -> bool {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    /// Behind length and kind of the frame: flags, streams, code.
    const REASON: [u8; 13] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xc];
    const GOAWAY: u8 = 7;
    let rest = first.strip_prefix(&SETTINGS);
    matches!(rest, Some([_, _, _, GOAWAY, reason @ ..]) if reason.starts_with(&REASON))
}

/// The error of such a connection.
pub(super) fn wanted() -> io::Error {
    io::Error::other(TlsWanted)
}

/// What went wrong with TLS, and what to do; `None` where it was something else.
pub(super) fn told(error: &io::Error) -> Option<(String, Option<String>)> {
    let error = error.get_ref()?;
    if error.is::<TlsWanted>() {
        let hint = "use https:// instead of http://";
        return Some((error.to_string(), Some(hint.to_owned())));
    }
    let error = error.downcast_ref::<rustls::Error>()?;
    let (cause, hint) = match error {
        rustls::Error::InvalidCertificate(certificate) => of_daemon(certificate),
        rustls::Error::AlertReceived(alert) => of_client(*alert)?,
        rustls::Error::InvalidMessage(_) => (
            "it does not speak TLS there".to_owned(),
            "sluiced without a certificate is at http://HOST:PORT, and only on its own machine",
        ),
        error => return Some((format!("TLS failed: {error}"), None)),
    };
    Some((cause, Some(hint.to_owned())))
}

/// What is wrong with the daemon's certificate.
fn of_daemon(error: &CertificateError) -> (String, &'static str) {
    use CertificateError as E;

    match error {
        E::Expired | E::ExpiredContext { .. } => (
            "its certificate has expired".to_owned(),
            "its administrator renews it; check this machine's clock, too",
        ),
        E::NotValidYet | E::NotValidYetContext { .. } => (
            "its certificate is not valid yet".to_owned(),
            "check the clocks of both machines",
        ),
        E::UnknownIssuer => (
            "its certificate is signed by nobody whom this machine trusts".to_owned(),
            "name a file with the certificate of who signed it: $SLUICE_CA_FILE",
        ),
        E::NotValidForName => (
            "its certificate is for another name".to_owned(),
            "call it by a name that its certificate has",
        ),
        E::NotValidForNameContext { presented, .. } => (
            format!("its certificate is for other names: {}", plain(presented)),
            "call it by one of these names",
        ),
        error => (
            format!("its certificate cannot be trusted: {error}"),
            "its administrator has to replace it",
        ),
    }
}

/// Names of a certificate, which rustls tells as `DnsName("a.example")`.
fn plain(presented: &[String]) -> String {
    let inner = |name: &str| -> String {
        let (_, name) = name.split_once('(').unwrap_or(("", name));
        name.trim_matches(['"', ')']).to_owned()
    };
    let names: Vec<_> = presented.iter().map(|name| inner(name)).collect();
    names.join(", ")
}

/// What the daemon holds against the client's certificate.
fn of_client(alert: AlertDescription) -> Option<(String, &'static str)> {
    const RENEW: &str = "$SLUICE_CLIENT_CERTIFICATE and $SLUICE_CLIENT_KEY name it and its key: renew it, or leave both out and \
        bring a token";
    let cause = match alert {
        AlertDescription::CertificateExpired => "it refuses your certificate, which has expired",
        AlertDescription::UnknownCA => {
            "it refuses your certificate, which is signed by nobody whom it trusts"
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateUnknown
        | AlertDescription::DecryptError => "it refuses your certificate",
        _ => return None,
    };
    Some((cause.to_owned(), RENEW))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_as_people_write_them() {
        let presented = ["DnsName(\"a.example\")", "IpAddress(127.0.0.1)"].map(str::to_owned);
        assert_eq!(plain(&presented), "a.example, 127.0.0.1");
    }

    #[test]
    fn a_port_that_takes_tls_alone_is_told_from_others() {
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let end = |code| [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, code];
        assert!(is_wanted(&[&settings[..], &end(0xc), b"why"].concat()));
        for other in [&end(0xb)[..], &end(0xc)[..16], &[]] {
            assert!(!is_wanted(&[&settings[..], other].concat()));
        }
        assert!(!is_wanted(&end(0xc)));
    }
}
