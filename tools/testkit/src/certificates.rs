//! Certificates for tests of TLS, made on the spot.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// When a certificate counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// From yesterday until tomorrow.
    Now,
    /// Until yesterday.
    Expired,
}

/// Whom certificates are signed by.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate, as PEM.
    pub certificate: String,
}

/// A certificate and its private key, as PEM.
#[derive(Debug, Clone)]
pub struct SignedCertificate {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

impl Authority {
    /// One that nobody knows yet.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each is another")]
    pub fn new() -> Self {
        // Whose name differs is another; with one name for all, a signature would be wrong instead of unknown.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut params = CertificateParams::new([]).expect("no names");
        let name = format!("authority {number} of process {}", std::process::id());
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("signed");
        Self {
            certificate: pem("CERTIFICATE", certificate.der()),
            issuer: Issuer::new(params, key),
        }
    }

    /// A server's, for these names and addresses.
    #[must_use]
    pub fn server(&self, names: &[&str], validity: Validity) -> SignedCertificate {
        self.sign(names, ExtendedKeyUsagePurpose::ServerAuth, validity)
    }

    /// A client's, with these names.
    #[must_use]
    pub fn client(&self, names: &[&str], validity: Validity) -> SignedCertificate {
        self.sign(names, ExtendedKeyUsagePurpose::ClientAuth, validity)
    }

    fn sign(
        &self,
        names: &[&str],
        purpose: ExtendedKeyUsagePurpose,
        validity: Validity,
    ) -> SignedCertificate {
        let names: Vec<_> = names.iter().copied().map(str::to_owned).collect();
        let mut params = CertificateParams::new(names).expect("names");
        let now = SystemTime::now();
        let (begin, end) = match validity {
            Validity::Now => (now - DAY, now + DAY),
            Validity::Expired => (now - 2 * DAY, now - DAY),
        };
        params.not_before = begin.into();
        params.not_after = end.into();
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        SignedCertificate {
            certificate: pem("CERTIFICATE", certificate.der()),
            key: pem("PRIVATE KEY", &key.serialize_der()),
        }
    }
}

impl SignedCertificate {
    /// Writes `NAME.crt` and `NAME.key` in the folder, each at once as programs that renew certificates do; their paths.
    pub fn write(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let [certificate, key] = [("crt", &self.certificate), ("key", &self.key)]
            .map(|(ending, text)| write(&folder.join(format!("{name}.{ending}")), text));
        (certificate, key)
    }
}

/// Writes a file that only its owner may read, in one step for whoever reads it; its path.
pub fn write(path: &Path, text: &str) -> PathBuf {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    fs::write(&new, text).expect("written");
    fs::set_permissions(&new, Permissions::from_mode(0o600)).expect("closed to others");
    fs::rename(&new, path).expect("put in place");
    path.to_owned()
}

/// The bytes as PEM.
fn pem(label: &str, bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in bytes.chunks(48) {
        for three in line.chunks(3) {
            let [first, second, third] = [0, 1, 2].map(|at| three.get(at).copied().unwrap_or(0));
            let bits = u32::from_be_bytes([0, first, second, third]);
            for digit in 0..4 {
                let index = (bits >> (18 - 6 * digit)) as usize & 63;
                text.push(if digit > three.len() {
                    '='
                } else {
                    DIGITS[index].into()
                });
            }
        }
        text.push('\n');
    }
    text + &format!("-----END {label}-----\n")
}
