use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};

use tokio::net::TcpSocket;

/// A port of the loopback interface that is held until this is dropped.
///
/// A socket that is bound and does not listen keeps Linux from giving the port to any program that
/// asks for a free one. A server that asks for the port by its number, and reuses addresses, gets
/// it, as often as it starts. Elsewhere the port is free at the first moment only.
pub struct Port {
    number: u16,
    _held: Option<TcpSocket>,
}

impl Port {
    pub fn free() -> Self {
        Self::bind().expect("a port of the loopback interface")
    }

    fn bind() -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let number = socket.local_addr()?.port();
        let held = if cfg!(target_os = "linux") { Some(socket) } else { None };
        Ok(Self { number, _held: held })
    }

    pub fn number(&self) -> u16 {
        self.number
    }
}
