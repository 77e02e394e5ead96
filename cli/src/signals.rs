//! The signals of a screen: those that end it, and the one of a terminal that has a new size.
//!
//! Other systems than Unix have Ctrl-C alone, and no signal of a new size.

use std::io;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end the screen. Each of them would leave the terminal as it is.
pub(crate) struct Ends {
    #[cfg(unix)]
    signals: [Signal; 4],
}

#[cfg(unix)]
impl Ends {
    pub(crate) fn new() -> io::Result<Self> {
        let signals = [
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
            signal(SignalKind::quit())?,
        ];
        Ok(Self { signals })
    }

    pub(crate) async fn next(&mut self) {
        let signals = self.signals.iter_mut().map(|signal| Box::pin(signal.recv()));
        futures_util::future::select_all(signals).await;
    }
}

#[cfg(not(unix))]
impl Ends {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {})
    }

    pub(crate) async fn next(&mut self) {
        // Without this signal, Ctrl-C ends the process as usual.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The signal of a terminal that has a new size.
pub(crate) struct Resizes {
    #[cfg(unix)]
    signal: Signal,
}

#[cfg(unix)]
impl Resizes {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { signal: signal(SignalKind::window_change())? })
    }

    pub(crate) async fn next(&mut self) {
        self.signal.recv().await;
    }
}

#[cfg(not(unix))]
impl Resizes {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {})
    }

    pub(crate) async fn next(&mut self) {
        std::future::pending().await
    }
}
