//! The network and the clock of a simulation. This module exists only under `--cfg bellwether_sim`,
//! which the package `sim` sets.
//!
//! Each schedule of the simulation has a thread of its own, so the state belongs to a thread.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    io,
    pin::Pin,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};

/// A stream to a simulated server.
pub trait SimulatedStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> SimulatedStream for S {}

/// A stream that is being opened.
pub type Opening = Pin<Box<dyn Future<Output = io::Result<Box<dyn SimulatedStream>>> + Send>>;

/// Opens a stream to a host.
type Network = Box<dyn Fn(&str) -> Opening>;

thread_local! {
    static NETWORK: RefCell<Option<Network>> = const { RefCell::new(None) };
    static PLANTED: Cell<&'static str> = const { Cell::new("") };
    static ORIGIN: Instant = Instant::now();
}

/// Begins the simulation of this thread: its randomness, and its network. From the host of a URL,
/// the network knows which process connects to which server.
pub fn begin(seed: u64, network: impl Fn(&str) -> Opening + 'static) {
    fastrand::seed(seed);
    NETWORK.set(Some(Box::new(network)));
}

/// Plants a fault into the code of this thread. A simulation has to find it.
pub fn plant(fault: &'static str) {
    PLANTED.set(fault);
}

/// Returns whether a fault is planted.
pub(crate) fn is_planted(fault: &str) -> bool {
    PLANTED.get() == fault
}

/// Opens a stream by the network of this thread. Without one there is no server.
pub(crate) fn open(host: &str) -> Opening {
    NETWORK.with_borrow(|network| match network {
        Some(network) => network(host),
        None => Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) }),
    })
}

/// Returns the moment from which times count that a process sends to itself.
pub(crate) fn origin() -> Instant {
    ORIGIN.with(|origin| *origin)
}
