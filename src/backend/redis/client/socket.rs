//! The sockets to a server: TCP, TLS over TCP, and Unix sockets.
//!
//! Each socket notes when bytes last moved, for a connection is silent only if none do. A reply of
//! many megabytes may take longer than the command time-out, and so may the replies behind it.
//!
//! It also joins the commands that become ready together in one write. The replies to many commands
//! come in one read and wake their callers, which send their next commands one after the other. The
//! first of these commands wakes the connection's driver, which would write that one alone. A write
//! costs more than the rest of a command. So while commands are unanswered, the driver lets the
//! other tasks that are ready run first, once for each write.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{FutureExt, future::select_ok, task::AtomicWaker};
use redis::{ConnectionAddr, ErrorKind, RedisError};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, lookup_host},
    task::unconstrained,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::settings::ConnectTarget;
use crate::time::after;

/// How much of a large command the socket takes before its peer has some of it.
///
/// With more, a command would seem to be sent long before it is.
#[cfg(any(target_os = "android", target_os = "linux"))]
const UNSENT_LIMIT: u32 = 256 << 10;

/// A write of this size that the socket does not take at once is watched.
///
/// A socket takes small commands for long after its peer is gone, which shows nothing.
const LARGE_WRITE: usize = 16 << 10;

/// The pauses in which the driver may take its turn. The first takes a part of the limit, and each
/// one twice as long as the one before it.
///
/// Together they are 16 limits. With less, a burst of tasks that holds up the driver counts as a
/// silence. With more, a runtime that stands still holds up the callers of others for longer.
const PAUSES: u32 = 9;
const FIRST_PAUSE: u32 = 32;

/// When bytes last moved on one connection. Times are in microseconds since `begun`.
pub(super) struct Progress {
    begun: Instant,
    moved: AtomicU64,
    /// When something was written first since the last read. Zero if nothing was.
    unanswered: AtomicU64,
    /// How often the driver has ended a turn: it has read what there was, and has written.
    turns: AtomicU64,
    /// The task that reads from the connection.
    driver: AtomicWaker,
    /// Cancelled when the driver has ended. It has then dropped all commands that it had.
    pub(super) ended: CancellationToken,
}

impl Progress {
    pub(super) fn new() -> Arc<Self> {
        let [moved, unanswered, turns] = [0; 3].map(AtomicU64::new);
        let (driver, ended) = (AtomicWaker::new(), CancellationToken::new());
        Arc::new(Self { begun: Instant::now(), moved, unanswered, turns, driver, ended })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX).max(1)
    }

    fn at(&self, micros: u64) -> Instant {
        after(self.begun, Duration::from_micros(micros))
    }

    fn note(&self) {
        self.moved.store(self.now(), Ordering::Relaxed);
        self.unanswered.store(0, Ordering::Relaxed);
    }

    fn is_unanswered(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) != 0
    }

    /// Returns for how long something is unanswered while nothing has moved.
    pub(super) fn silence(&self) -> Duration {
        match self.unanswered.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_micros(self.now().saturating_sub(since)),
        }
    }

    /// Returns for how long nothing has moved.
    pub(super) fn unmoved(&self) -> Duration {
        Duration::from_micros(self.now().saturating_sub(self.moved.load(Ordering::Relaxed)))
    }

    /// Runs the driver, and notes its turns.
    pub(super) async fn drive<T>(&self, driver: impl Future<Output = T>) -> T {
        let _ended = self.ended.clone().drop_guard();
        let mut driver = pin!(driver);
        poll_fn(|cx| {
            self.driver.register(cx.waker());
            let poll = driver.as_mut().poll(cx);
            self.turns.fetch_add(1, Ordering::Relaxed);
            poll
        })
        .await
    }

    /// Waits for a reply. Returns `None` if the connection is silent for this long before.
    ///
    /// While bytes move, the reply is on its way, or a large command is.
    pub(super) async fn reply<T>(
        &self,
        mut sending: Pin<&mut impl Future<Output = Result<T, RedisError>>>,
        limit: Duration,
        begun: Instant,
    ) -> Option<Result<T, RedisError>> {
        tokio::select! {
            biased;
            reply = sending.as_mut() => return Some(reply),
            () = self.silent_for(limit, begun) => {}
        }
        // If the driver has ended, its last reply may have come since. There will be no other.
        let ended = || Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        let last = || unconstrained(sending).now_or_never().unwrap_or_else(ended);
        self.ended.is_cancelled().then(last)
    }

    /// Completes when nothing has moved for this long, and this long after `begun`, or when the
    /// driver has ended.
    ///
    /// Only what the driver has seen counts. A busy process may not have run it for so long, while
    /// replies lie in the socket.
    async fn silent_for(&self, limit: Duration, begun: Instant) {
        let end = || {
            let moved = self.moved.load(Ordering::Relaxed);
            // The driver may have written late.
            let since = moved.max(self.unanswered.load(Ordering::Relaxed));
            after(self.at(since).max(begun), limit)
        };
        let silent = async {
            loop {
                let expected = end();
                sleep_until(expected).await;
                // Something may have moved since.
                if end() != expected {
                    continue;
                }
                // Only the second turn has begun after this.
                let has_turned = self.turn(limit).await && self.turn(limit).await;
                if !has_turned || end() == expected {
                    return;
                }
            }
        };
        tokio::select! {
            () = self.ended.cancelled() => {}
            () = silent => {}
        }
    }

    /// Waits until the driver ends a turn. Returns `false` if it stands still.
    async fn turn(&self, limit: Duration) -> bool {
        let before = self.turns.load(Ordering::Relaxed);
        self.driver.wake();
        for pause in 0..PAUSES {
            sleep(limit * (1 << pause) / FIRST_PAUSE).await;
            if self.turns.load(Ordering::Relaxed) != before {
                return true;
            }
        }
        false
    }
}

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A socket that notes its progress and batches its writes.
pub(super) struct Socket {
    stream: Box<dyn Stream>,
    progress: Arc<Progress>,
    /// The socket did not take all of a large write.
    is_full: bool,
    /// The other tasks have run before the next write.
    has_yielded: bool,
}

impl Socket {
    pub(super) fn new(stream: impl Stream + 'static, progress: Arc<Progress>) -> Self {
        Self { stream: Box::new(stream), progress, is_full: false, has_yielded: false }
    }

    /// Reaches the server, without TLS.
    pub(super) async fn reach(
        target: &ConnectTarget,
        progress: Arc<Progress>,
    ) -> Result<Self, RedisError> {
        match target.info().addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Ok(Self::new(connect_tcp(host, *port).await?, progress))
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                Ok(Self::new(tokio::net::UnixStream::connect(path).await?, progress))
            }
            _ => {
                let why = "the address needs a feature that is not compiled in";
                Err(RedisError::from((ErrorKind::InvalidClientConfig, why)))
            }
        }
    }

    /// Does the TLS handshake, if the server wants it.
    pub(super) async fn secure(self, target: &ConnectTarget) -> Result<Box<dyn Stream>, io::Error> {
        match target.info().addr() {
            #[cfg(feature = "tls")]
            ConnectionAddr::TcpTls { host, .. } => {
                Ok(Box::new(tls::connect(target, host, self).await?))
            }
            _ => Ok(Box::new(self)),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        if into.filled().len() > before {
            self.progress.note();
        }
        Poll::Ready(Ok(()))
    }
}

/// Not vectored: the client library writes from one buffer, and a plain write costs less.
impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let is_large = bytes.len() >= LARGE_WRITE;
        if self.progress.is_unanswered() && !self.has_yielded && !is_large {
            self.has_yielded = true;
            // Puts this task at the end of the scheduler's queue.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let write = poll_fn(|cx| Pin::new(&mut self.stream).poll_write(cx, bytes));
        // A driver that takes many commands in one turn has no budget left to write them.
        let poll = pin!(unconstrained(write)).poll(cx);
        let Poll::Ready(Ok(written)) = poll else {
            self.is_full |= poll.is_pending() && is_large;
            return poll;
        };
        self.has_yielded = false;
        // A full socket takes more only after its peer took some.
        if self.is_full {
            self.progress.note();
        }
        self.is_full = bytes.len() - written >= if self.is_full { 1 } else { LARGE_WRITE };
        if !self.progress.is_unanswered() {
            self.progress.unanswered.store(self.progress.now(), Ordering::Relaxed);
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Connects to the address of the host that answers first.
async fn connect_tcp(host: &str, port: u16) -> Result<TcpStream, RedisError> {
    let addresses = lookup_host((host, port)).await?;
    let attempts: Vec<_> = addresses.map(|address| Box::pin(TcpStream::connect(address))).collect();
    if attempts.is_empty() {
        return Err(RedisError::from((ErrorKind::InvalidClientConfig, "the host has no address")));
    }
    let (socket, _others) = select_ok(attempts).await?;
    socket.set_nodelay(true)?;
    let options = SockRef::from(&socket);
    options.set_tcp_keepalive(&keepalive())?;
    #[cfg(any(target_os = "android", target_os = "linux"))]
    options.set_tcp_notsent_lowat(UNSENT_LIMIT)?;
    Ok(socket)
}

/// Detects a peer that swallows packets after about 15 s, also while nothing is sent.
fn keepalive() -> TcpKeepalive {
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(3));
    #[cfg(not(any(target_os = "openbsd", target_os = "windows")))]
    let keepalive = keepalive.with_retries(3);
    keepalive
}

/// TLS with rustls, and the roots of the system unless a configuration is given.
#[cfg(feature = "tls")]
mod tls {
    use std::{io, sync::Arc};

    use tokio::task::spawn_blocking;
    use tokio_rustls::{TlsConnector, client::TlsStream, rustls};

    use super::{ConnectTarget, Socket};

    pub(super) async fn connect(
        target: &ConnectTarget,
        host: &str,
        socket: Socket,
    ) -> Result<TlsStream<Socket>, io::Error> {
        let name = rustls::pki_types::ServerName::try_from(host).map_err(io::Error::other)?;
        let config = match &target.access.tls {
            Some(config) => config.clone(),
            // The roots are files.
            None => Arc::new(spawn_blocking(trusting_the_system).await??),
        };
        TlsConnector::from(config).connect(name.to_owned(), socket).await
    }

    /// Passes over roots that cannot be read, for the others may suffice.
    fn trusting_the_system() -> Result<rustls::ClientConfig, io::Error> {
        let mut found = rustls_native_certs::load_native_certs();
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        match found.errors.pop() {
            Some(error) if roots.is_empty() => Err(io::Error::other(error)),
            _ => {
                let config = rustls::ClientConfig::builder().with_root_certificates(roots);
                Ok(config.with_no_client_auth())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        time::{advance, timeout},
    };

    use super::*;

    const LIMIT: Duration = Duration::from_millis(250);

    #[tokio::test(start_paused = true)]
    async fn bytes_that_arrive_end_the_silence() -> io::Result<()> {
        let (here, mut there) = duplex(64);
        let progress = Progress::new();
        let mut socket = Socket::new(here, progress.clone());
        socket.write_all(b"x").await?;
        for _ in 0..3 {
            advance(LIMIT * 4 / 5).await;
            there.write_all(b"x").await?;
            socket.read_exact(&mut [0]).await?;
            assert_eq!(progress.silence(), Duration::ZERO);
        }
        let begun = Instant::now();
        progress.silent_for(LIMIT, begun).await;
        assert!(begun.elapsed() >= LIMIT && begun.elapsed() <= LIMIT * 17);
        Ok(())
    }

    /// The driver did not run for a while, as behind thousands of tasks that were spawned at once.
    #[tokio::test(start_paused = true)]
    async fn bytes_that_lie_in_the_socket_are_read_before_a_silence() -> io::Result<()> {
        let (here, mut there) = duplex(64);
        let progress = Progress::new();
        let mut socket = Socket::new(here, progress.clone());
        there.write_all(b"x").await?;
        advance(LIMIT).await;
        let ours = progress.clone();
        let driver = tokio::spawn(async move {
            let mut all = Vec::new();
            ours.drive(socket.read_to_end(&mut all)).await.map(|_| all)
        });
        let begun = Instant::now();
        progress.silent_for(LIMIT, Instant::now() - LIMIT).await;
        assert!(begun.elapsed() >= LIMIT, "{:?}", begun.elapsed());
        drop(there);
        assert_eq!(driver.await??, b"x");
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_driver_is_silent_at_once() {
        let progress = Progress::new();
        let begun = Instant::now();
        tokio::join!(progress.silent_for(LIMIT, begun), async { progress.ended.cancel() });
        progress.silent_for(LIMIT, begun).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    /// Each caller gives up early, so no command comes to its time-out.
    #[tokio::test(start_paused = true)]
    async fn the_silence_begins_with_the_first_write_that_is_unanswered() -> io::Result<()> {
        let (here, _there) = duplex(64);
        let progress = Progress::new();
        let mut socket = Socket::new(here, progress.clone());
        advance(LIMIT).await;
        assert_eq!(progress.silence(), Duration::ZERO);
        for commands in 0..3 {
            assert_eq!(progress.silence(), commands * LIMIT);
            socket.write_all(b"a command").await?;
            advance(LIMIT).await;
        }
        Ok(())
    }

    /// A peer that is gone takes what its socket still has room for, and nothing more.
    #[tokio::test(start_paused = true)]
    async fn only_a_full_socket_shows_by_a_write_that_its_peer_reads() -> io::Result<()> {
        let (here, mut there) = duplex(LARGE_WRITE);
        let progress = Progress::new();
        let mut socket = Socket::new(here, progress.clone());
        advance(LIMIT).await;
        socket.write_all(b"a small command").await?;
        advance(LIMIT).await;
        socket.write_all(b"a small command").await?;
        assert!(progress.silence() >= LIMIT, "a write that fits says nothing");
        let large = vec![0; 3 * LARGE_WRITE];
        assert!(timeout(LIMIT, socket.write_all(&large)).await.is_err());
        assert!(progress.silence() >= LIMIT * 2, "the peer has read nothing");
        there.read_exact(&mut vec![0; LARGE_WRITE / 2]).await?;
        assert!(timeout(LIMIT, socket.write_all(&large)).await.is_err());
        assert!(progress.silence() <= LIMIT * 2, "the peer has read");
        Ok(())
    }

    #[tokio::test]
    async fn only_a_write_behind_an_unanswered_one_yields_first() -> io::Result<()> {
        let (here, mut there) = duplex(64);
        let mut socket = Socket::new(here, Progress::new());
        let mut byte = [0];
        for _ in 0..2 {
            assert!(poll!(Box::pin(socket.write_all(b"a"))).is_ready());
            assert!(poll!(Box::pin(socket.write_all(b"b"))).is_pending());
            assert!(poll!(Box::pin(socket.write_all(b"b"))).is_ready());
            assert!(poll!(Box::pin(socket.write_all(b"c"))).is_pending());
            there.write_all(b"!").await?;
            socket.read_exact(&mut byte).await?;
        }
        let mut written = [0; 4];
        there.read_exact(&mut written).await?;
        assert_eq!(&written, b"abab");
        Ok(())
    }
}
