//! Where the daemon listens and the client connects: one rule for both.

use std::{
    ffi::OsString,
    net::{IpAddr, Ipv6Addr},
    path::{Path, PathBuf},
};

/// The socket that the systemd unit makes.
pub const SYSTEM_SOCKET: &str = "/run/sluice/sluice.sock";

/// What the rule depends on, so that it can be tested without a machine.
pub struct Surroundings<'a> {
    /// Reads an environment variable; `None` where it is not set.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// Whether a path exists.
    pub exists: &'a dyn Fn(&Path) -> bool,
    /// The folder for temporary files.
    pub temporary: PathBuf,
    /// The user's numeric id.
    pub user_id: u32,
}

/// The socket's path: the flag, else `$SLUICE_SOCKET`, else the system's socket if it
/// exists, else one in `$XDG_RUNTIME_DIR`, else one in a private folder under the
/// temporary directory, named by user id.
#[must_use]
pub fn socket_path(flag: Option<&Path>, around: &Surroundings<'_>) -> PathBuf {
    // An empty variable counts as not set, as shells leave them.
    let variable = |name: &str| (around.variable)(name).filter(|value| !value.is_empty());
    if let Some(path) = flag {
        return path.to_owned();
    }
    if let Some(path) = variable("SLUICE_SOCKET") {
        return path.into();
    }
    // Before the user's own runtime folder: a system-wide daemon serves all users of the machine.
    if (around.exists)(Path::new(SYSTEM_SOCKET)) {
        return SYSTEM_SOCKET.into();
    }
    if let Some(runtime) = variable("XDG_RUNTIME_DIR") {
        return Path::new(&runtime).join("sluice").join("sluice.sock");
    }
    // The user id keeps the folders of several users apart; whoever makes the folder checks its owner.
    around
        .temporary
        .join(format!("sluice-{}", around.user_id))
        .join("sluice.sock")
}

/// Where a client finds a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DaemonAddress {
    /// A Unix socket.
    Socket(PathBuf),
    /// A port.
    Port {
        /// A name or an address; of IPv6 without brackets.
        host: String,
        /// Its number.
        port: u16,
        /// Whether it speaks TLS.
        is_tls: bool,
    },
}

/// What addresses of ports begin with, whether those speak TLS, and the port where none is named.
const SCHEMES: [(&str, bool, u16); 2] = [("https://", true, 443), ("http://", false, 80)];

impl DaemonAddress {
    /// What people write: `http://HOST:PORT`, `https://HOST:PORT`, or a path. Whatever else has `://` is no address.
    ///
    /// # Errors
    /// When it begins like an address, and is none.
    pub fn read(text: &Path) -> Result<Self, String> {
        let shown = text.display();
        let Some(address) = text.to_str().filter(|text| text.contains("://")) else {
            return Ok(Self::Socket(text.to_owned()));
        };
        let wrong =
            || format!("`{shown}` is no address: write http://HOST:PORT or https://HOST:PORT");
        let of_scheme = SCHEMES.into_iter().find_map(|(scheme, is_tls, port)| {
            let (begin, rest) = address.split_at_checked(scheme.len())?;
            begin
                .eq_ignore_ascii_case(scheme)
                .then_some((rest, is_tls, port))
        });
        let (rest, is_tls, usual_port) = of_scheme.ok_or_else(wrong)?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
                host.parse::<Ipv6Addr>().map_err(|_| wrong())?;
                let port = match port.strip_prefix(':') {
                    None if port.is_empty() => None,
                    None => return Err(wrong()),
                    port => port,
                };
                (host, port)
            }
            None => match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            },
        };
        let is_name = |host: &str| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            !host.is_empty() && host.bytes().all(is_plain)
        };
        if !rest.starts_with('[') && !is_name(host) {
            return Err(wrong());
        }
        let port = port.map(|port| port.parse().map_err(|_| wrong()));
        Ok(Self::Port {
            host: host.to_owned(),
            port: port.transpose()?.unwrap_or(usual_port),
            is_tls,
        })
    }

    /// Whether what is sent there stays on this machine or is encrypted, so that others don't read along.
    #[must_use]
    pub fn is_private(&self) -> bool {
        match self {
            Self::Socket(_) | Self::Port { is_tls: true, .. } => true,
            Self::Port { host, .. } => {
                let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
                host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_loopback)
            }
        }
    }

    /// Host and port as addresses have them; `None` for a socket.
    #[must_use]
    pub fn authority(&self) -> Option<String> {
        match self {
            Self::Socket(_) => None,
            Self::Port { host, port, .. } if host.contains(':') => Some(format!("[{host}]:{port}")),
            Self::Port { host, port, .. } => Some(format!("{host}:{port}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(flag: Option<&str>, variables: &[(&str, &str)], system: bool) -> String {
        let around = Surroundings {
            variable: &|name| {
                variables
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| OsString::from(value))
            },
            exists: &|_| system,
            temporary: "/tmp".into(),
            user_id: 1000,
        };
        socket_path(flag.map(Path::new), &around)
            .display()
            .to_string()
    }

    #[test]
    fn each_layer_gives_way_to_the_one_above() {
        let all = [("SLUICE_SOCKET", "/s"), ("XDG_RUNTIME_DIR", "/run/user/1")];
        assert_eq!(path(Some("/f"), &all, true), "/f");
        assert_eq!(path(None, &all, true), "/s");
        assert_eq!(path(None, &all[1..], true), SYSTEM_SOCKET);
        assert_eq!(
            path(None, &all[1..], false),
            "/run/user/1/sluice/sluice.sock"
        );
        assert_eq!(path(None, &[], false), "/tmp/sluice-1000/sluice.sock");
    }

    #[test]
    fn an_empty_variable_is_none() {
        let empty = [("SLUICE_SOCKET", ""), ("XDG_RUNTIME_DIR", "")];
        assert_eq!(path(None, &empty, false), "/tmp/sluice-1000/sluice.sock");
    }

    fn read(text: &str) -> Result<DaemonAddress, String> {
        DaemonAddress::read(Path::new(text))
    }

    #[test]
    fn addresses_are_told_from_paths() {
        for (text, host, port, is_tls, authority) in [
            ("http://127.0.0.1:7", "127.0.0.1", 7, false, "127.0.0.1:7"),
            ("HTTPS://a.example:7/", "a.example", 7, true, "a.example:7"),
            ("https://a.example", "a.example", 443, true, "a.example:443"),
            ("http://[::1]:7", "::1", 7, false, "[::1]:7"),
            ("https://[::1]", "::1", 443, true, "[::1]:443"),
        ] {
            let expected = DaemonAddress::Port {
                host: host.to_owned(),
                port,
                is_tls,
            };
            assert_eq!(expected.authority().as_deref(), Some(authority));
            assert_eq!(read(text), Ok(expected));
        }
        for path in ["/run/sluice/sluice.sock", "s", "a:b//c"] {
            assert_eq!(read(path), Ok(DaemonAddress::Socket(path.into())));
        }
        for neither in [
            "ftp://a:7",
            "https://",
            "https://:7",
            "https://a:x",
            "https://a:7/b",
            "https://[::1",
            "https://[a]:7",
            "https://[::1]7",
            "https://u@a:7",
            "https://a b:7",
        ] {
            let error = read(neither).unwrap_err();
            assert!(error.contains("https://HOST:PORT"), "{neither}: {error}");
        }
    }

    #[test]
    fn what_others_could_read_is_told() {
        for private in [
            "/s",
            "http://localhost:7",
            "http://127.8.9.1:7",
            "http://[::1]:7",
            "http://[::ffff:127.0.0.1]:7",
            "https://a.example:7",
        ] {
            assert!(read(private).unwrap().is_private(), "{private}");
        }
        for open in ["http://a.example:7", "http://10.0.0.1:7", "http://[::2]:7"] {
            assert!(!read(open).unwrap().is_private(), "{open}");
        }
    }
}
