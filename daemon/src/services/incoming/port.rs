//! A port: whose connections these are, with TLS or without.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use tokio::net::{TcpListener, TcpStream};

use super::{
    Admission,
    handshakes::{Handshakes, TlsConnection},
    peers::Visitor,
    wire::Wire,
};
use crate::{
    access::AccessRules,
    caller::User,
    config,
    tls::{PortProtocol, Tls},
};

/// A port that listens.
#[derive(Debug)]
pub struct Port {
    listener: TcpListener,
    protocol: PortProtocol,
    tls: Option<Tls>,
    /// The user of whoever connects, as long as nothing tells who it is.
    stranger: User,
}

impl Port {
    /// A port that listens at this address.
    #[must_use]
    pub fn new(
        (listener, address): (TcpListener, SocketAddr),
        protocol: PortProtocol,
        tls: Option<Tls>,
    ) -> Self {
        Self {
            listener,
            protocol,
            tls,
            stranger: match config::is_loopback(address) {
                true => User::Tcp,
                false => User::Elsewhere,
            },
        }
    }
}

/// A port, with the handshakes that are under way there.
pub(super) struct Door {
    port: Port,
    access: Arc<AccessRules>,
    handshakes: Handshakes,
}

impl Door {
    pub(super) fn new(port: Port, admission: &Admission) -> Self {
        Self {
            port,
            access: admission.access.clone(),
            handshakes: Handshakes::default(),
        }
    }

    /// The next connection, and whose it is. Those of TLS come when their handshakes are done. Nothing is lost when this is
    /// dropped.
    pub(super) async fn accept(&mut self) -> io::Result<(Wire, Visitor)> {
        loop {
            let (stream, from) = tokio::select! {
                accepted = self.port.listener.accept() => accepted?,
                (connection, from) = self.handshakes.next() => {
                    let visitor = self.of_tls(&connection, from);
                    return Ok((Wire::Tls(connection), visitor));
                }
            };
            // A pass's event is small: Nagle's algorithm would hold it back for the next one.
            stream.set_nodelay(true)?;
            match &self.port.tls {
                Some(tls) => {
                    let server = tls.server(self.port.protocol);
                    self.handshakes.begin(stream, from.ip(), server);
                }
                None => return Ok(self.plain(stream, from.ip())),
            }
        }
    }

    fn plain(&self, stream: TcpStream, from: IpAddr) -> (Wire, Visitor) {
        let visitor = Visitor {
            user: self.port.stranger,
            role: self.access.role(self.port.stranger, &[]),
            from: Some(from),
            needs_local_name: true,
        };
        (Wire::Tcp(stream), visitor)
    }

    fn of_tls(&self, connection: &TlsConnection, from: IpAddr) -> Visitor {
        let (_, session) = connection.get_ref();
        let chain = session.peer_certificates();
        let certificate = chain.and_then(<[_]>::first);
        let (user, role) = self.access.by_certificate(certificate, self.port.stranger);
        Visitor {
            user,
            role,
            from: Some(from),
            needs_local_name: false,
        }
    }
}
