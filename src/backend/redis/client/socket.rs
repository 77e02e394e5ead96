//! The sockets to a server, with TLS where the server wants TLS.
//!
//! Each socket notes when bytes last moved. If a reply is due and no byte moves for the command
//! time-out, the connection is silent, and ends with all its commands. So a reply of many megabytes
//! may take longer than the command time-out.
//!
//! A write costs more than the rest of a command, and the replies to many commands wake their
//! callers together. So before a write behind an unanswered write, the driver lets the other tasks
//! run that are ready. The commands of these tasks then go out in the same write.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::FutureExt;
#[cfg(feature = "tls")]
use redis::ConnectionAddr;
use redis::{ConnectionInfo, RedisError};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    task::{unconstrained, yield_now},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    settings::RedisConfig,
    stream::{self, Stream},
};
use crate::{sync::lock, time::after};

/// A write of this size or more counts as on its way for a second for each megabyte.
///
/// Buffers on the way take a large write long before the server has the write. They also take small
/// writes long after the server is gone, so a small write does not end a silence.
const LARGE_WRITE: usize = 16 << 10;

/// How long large writes count as on their way at most: what the buffer of a socket takes. With
/// more, puts to a dead server would hide its silence for longer.
const LONGEST_WAY: Duration = Duration::from_secs(4);

/// How many command time-outs a caller waits for a driver that stands still. With less, a burst of
/// tasks that holds up the driver counts as a silence.
const PATIENCE: u32 = 8;

/// When bytes last moved on one connection.
pub(super) struct Progress {
    last_move: Mutex<LastMove>,
    /// Asks the driver whether the connection is silent.
    asked: Notify,
    /// Each caller that has asked the driver, and still waits, has a clone.
    askers: Arc<()>,
    /// The connection has ended because of a silence.
    is_silent: AtomicBool,
    /// Cancelled when the driver has ended, and has dropped all its commands.
    pub(super) ended: CancellationToken,
}

#[derive(Clone, Copy)]
struct LastMove {
    /// In the future while a large write is on its way.
    at: Instant,
    /// If so, a reply is due, although the caller of the command may have left.
    written_since_read: bool,
}

impl Progress {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            last_move: Mutex::new(LastMove { at: Instant::now(), written_since_read: false }),
            asked: Notify::new(),
            askers: Arc::new(()),
            is_silent: AtomicBool::new(false),
            ended: CancellationToken::new(),
        })
    }

    fn has_read(&self) {
        let mut last = lock(&self.last_move);
        // A large write may still be on its way.
        last.at = last.at.max(Instant::now());
        last.written_since_read = false;
    }

    fn has_written(&self, bytes: usize) {
        let is_large = bytes >= LARGE_WRITE;
        let mut last = lock(&self.last_move);
        if !is_large && last.written_since_read {
            return;
        }
        let now = Instant::now();
        // A write behind an unanswered write does not begin a new time. A large one extends it.
        let from = if last.written_since_read { last.at } else { now };
        let way = Duration::from_micros(if is_large { bytes as u64 } else { 0 });
        let until = (from + way).min(now + LONGEST_WAY);
        last.at = last.at.max(until);
        last.written_since_read = true;
    }

    /// Runs the driver until its connection ends, or was silent for this long. The commands of the
    /// driver then fail at once.
    ///
    /// A busy process may not have run the driver for so long, while replies lie in the socket and
    /// commands in the queue. So the driver has two turns before the connection counts as silent.
    /// In the first turn the driver reads, and may yield before a write. In the second turn the
    /// driver writes.
    pub(super) async fn drive(&self, driver: impl Future<Output = ()>, limit: Duration) {
        let _ended = self.ended.clone().drop_guard();
        let mut driver = pin!(driver);
        loop {
            let last = *lock(&self.last_move);
            let from = if last.written_since_read { last.at } else { Instant::now() };
            let is_asked = tokio::select! {
                biased;
                () = driver.as_mut() => return,
                () = self.asked.notified() => true,
                // The callers may have left, so that none asks.
                () = sleep_until(after(from, limit)) => false,
            };
            let before = *lock(&self.last_move);
            for _turn in 0..2 {
                tokio::select! {
                    biased;
                    () = driver.as_mut() => return,
                    () = yield_now() => {}
                }
            }
            let has_moved = lock(&self.last_move).at != before.at;
            // The client library does not send the command of a caller that left before the write.
            // A caller that is not polled has asked once, and does not ask again.
            let has_askers = Arc::strong_count(&self.askers) > 1;
            let is_due = before.written_since_read || is_asked && has_askers;
            if is_due && !has_moved && after(before.at, limit) <= Instant::now() {
                self.is_silent.store(true, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Waits for a reply. Returns `None` if the connection was silent for this long.
    ///
    /// After a silence of this time, the caller asks the driver to look. Only the driver ends the
    /// connection, because only the driver knows whether bytes lie in the socket. The caller asks
    /// again after each such time, and gives up after [`PATIENCE`], because the runtime of the
    /// driver may stand still.
    pub(super) async fn reply<T>(
        &self,
        mut sending: Pin<&mut impl Future<Output = Result<T, RedisError>>>,
        limit: Duration,
    ) -> Option<Result<T, RedisError>> {
        let begun = Instant::now();
        let mut wait = limit;
        let mut asker = None;
        let reply = loop {
            let from = lock(&self.last_move).at.max(begun);
            tokio::select! {
                biased;
                reply = sending.as_mut() => break reply,
                // A command that was sent at the same moment lies in a queue that no task reads.
                () = self.ended.cancelled() => {
                    // The reply may have come since the first branch. No later reply comes.
                    let ended = || Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
                    break unconstrained(sending).now_or_never().unwrap_or_else(ended);
                }
                () = sleep_until(after(from, wait)) => {}
            }
            if lock(&self.last_move).at.max(begun) != from {
                wait = limit;
            } else if wait < limit.saturating_mul(PATIENCE) {
                asker.get_or_insert_with(|| self.askers.clone());
                self.asked.notify_one();
                wait = wait.saturating_add(limit);
            } else {
                return None;
            }
        };
        let is_cut_off = reply.is_err() && self.is_silent.load(Ordering::Relaxed);
        (!is_cut_off).then_some(reply)
    }
}

/// A socket that notes its progress and batches its writes.
pub(super) struct Socket {
    stream: Box<dyn Stream>,
    progress: Arc<Progress>,
    /// The driver has let the other tasks run before the next write.
    has_yielded: bool,
}

impl Socket {
    pub(super) fn new(stream: Box<dyn Stream>, progress: Arc<Progress>) -> Self {
        Self { stream, progress, has_yielded: false }
    }

    /// Reaches the server, without TLS.
    pub(super) async fn reach(
        server: &ConnectionInfo,
        progress: Arc<Progress>,
    ) -> Result<Self, RedisError> {
        Ok(Self::new(stream::open(server.addr()).await?, progress))
    }

    /// Does the TLS handshake, if the server wants TLS.
    pub(super) async fn secure(
        self,
        server: &ConnectionInfo,
        #[cfg_attr(not(feature = "tls"), allow(unused_variables))] config: &RedisConfig,
    ) -> Result<Box<dyn Stream>, io::Error> {
        match server.addr() {
            #[cfg(feature = "tls")]
            ConnectionAddr::TcpTls { host, .. } => {
                Ok(Box::new(tls::connect(config, host, self).await?))
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
            self.progress.has_read();
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
        let is_small = bytes.len() < LARGE_WRITE;
        if !self.has_yielded && lock(&self.progress.last_move).written_since_read && is_small {
            self.has_yielded = true;
            // Puts this task at the end of the scheduler's queue.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let write = poll_fn(|cx| Pin::new(&mut self.stream).poll_write(cx, bytes));
        // A driver that takes many commands in one turn has no budget left to write them.
        let written = ready!(pin!(unconstrained(write)).poll(cx))?;
        self.has_yielded = false;
        self.progress.has_written(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// TLS with rustls, and the roots of the system unless a configuration is given.
#[cfg(feature = "tls")]
mod tls {
    use std::{io, sync::Arc};

    use rustls::{
        ClientConfig, RootCertStore,
        crypto::{CryptoProvider, ring},
        pki_types::ServerName,
    };
    use tokio::task::spawn_blocking;
    use tokio_rustls::{TlsConnector, client::TlsStream};

    use super::{RedisConfig, Socket};
    use crate::backend::redis::client::settings::Secret;

    pub(super) async fn connect(
        config: &RedisConfig,
        host: &str,
        socket: Socket,
    ) -> Result<TlsStream<Socket>, io::Error> {
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let config = match &config.tls {
            Some(Secret(config)) => config.clone(),
            // The roots are files.
            None => Arc::new(spawn_blocking(trusting_the_system).await??),
        };
        TlsConnector::from(config).connect(name.to_owned(), socket).await
    }

    /// Passes over roots that cannot be read, for the others may suffice. Uses *ring*, unless the
    /// process has installed another provider.
    fn trusting_the_system() -> Result<ClientConfig, io::Error> {
        let mut found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        match found.errors.pop() {
            Some(error) if roots.is_empty() => Err(io::Error::other(error)),
            _ => {
                let ring = || Arc::new(ring::default_provider());
                let provider = CryptoProvider::get_default().cloned().unwrap_or_else(ring);
                let config = ClientConfig::builder_with_provider(provider)
                    .with_safe_default_protocol_versions()
                    .map_err(io::Error::other)?;
                Ok(config.with_root_certificates(roots).with_no_client_auth())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::{join, poll};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
        time::{advance, timeout},
    };

    use super::*;

    const LIMIT: Duration = Duration::from_millis(250);

    fn pair() -> (Socket, DuplexStream, Arc<Progress>) {
        let (here, there) = duplex(1 << 20);
        let progress = Progress::new();
        (Socket::new(Box::new(here), progress.clone()), there, progress)
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_that_arrive_end_the_silence() -> io::Result<()> {
        let (mut socket, mut there, progress) = pair();
        for _ in 0..3 {
            socket.write_all(b"x").await?;
            advance(LIMIT * 4 / 5).await;
            there.write_all(b"xx").await?;
            socket.read_exact(&mut [0]).await?;
            assert_eq!(lock(&progress.last_move).at, Instant::now());
        }
        let begun = Instant::now();
        let reply = pin!(pending::<Result<(), _>>());
        let ((), reply) = join!(progress.drive(pending(), LIMIT), progress.reply(reply, LIMIT));
        assert!(reply.is_none());
        assert_eq!(begun.elapsed(), LIMIT);
        Ok(())
    }

    /// Each caller has left before the connection is silent.
    #[tokio::test(start_paused = true)]
    async fn a_command_whose_caller_left_is_due_too() -> io::Result<()> {
        let (mut socket, _there, progress) = pair();
        socket.write_all(b"x").await?;
        timeout(LIMIT * 2, progress.drive(pending(), LIMIT)).await?;
        Ok(())
    }

    /// The runtime of the driver stands still. A caller of another runtime asks for the end of a
    /// silence, and leaves. The driver then skips the command, so no reply is due.
    #[tokio::test(start_paused = true)]
    async fn a_caller_that_asked_and_left_ends_no_idle_connection() {
        let progress = Progress::new();
        let sending = pin!(pending::<Result<(), _>>());
        assert!(timeout(LIMIT * 3 / 2, progress.reply(sending, LIMIT)).await.is_err());
        assert!(timeout(LIMIT * 2, progress.drive(pending(), LIMIT)).await.is_err());
    }

    /// The caller has asked, and has its reply. It is not polled again, so it has not left.
    #[tokio::test(start_paused = true)]
    async fn a_caller_that_does_not_read_its_reply_ends_no_idle_connection() {
        let progress = Progress::new();
        let sending = pin!(pending::<Result<(), _>>());
        let mut reply = pin!(progress.reply(sending, LIMIT));
        assert!(timeout(LIMIT * 3 / 2, reply.as_mut()).await.is_err());
        progress.has_read();
        assert!(timeout(LIMIT * 2, progress.drive(pending(), LIMIT)).await.is_err());
    }

    /// The socket takes the puts to a dead server. They must not begin the silence anew for ever.
    #[tokio::test(start_paused = true)]
    async fn large_writes_to_a_dead_server_do_not_end_the_silence() -> io::Result<()> {
        let (mut socket, _there, progress) = pair();
        for _ in 0..20 {
            socket.write_all(&[0; LARGE_WRITE]).await?;
            advance(LIMIT / 2).await;
        }
        let silence = lock(&progress.last_move).at.elapsed();
        assert!(silence > LIMIT * 8, "{silence:?}");
        Ok(())
    }

    /// The driver does not run for a while, as behind thousands of tasks that were spawned at once.
    #[tokio::test(start_paused = true)]
    async fn bytes_that_lie_in_the_socket_are_read_before_a_silence() -> io::Result<()> {
        let (mut socket, mut there, progress) = pair();
        socket.write_all(b"x").await?;
        there.write_all(b"x").await?;
        let driver = async {
            advance(LIMIT * 2).await;
            drop(socket.read_exact(&mut [0]).await);
            pending().await
        };
        assert!(timeout(LIMIT * 9, progress.drive(driver, LIMIT)).await.is_err());
        Ok(())
    }

    #[tokio::test]
    async fn only_a_write_behind_an_unanswered_one_yields_first() -> io::Result<()> {
        let (mut socket, mut there, _progress) = pair();
        for _ in 0..2 {
            assert!(poll!(Box::pin(socket.write_all(b"a"))).is_ready());
            assert!(poll!(Box::pin(socket.write_all(b"b"))).is_pending());
            assert!(poll!(Box::pin(socket.write_all(b"b"))).is_ready());
            assert!(poll!(Box::pin(socket.write_all(b"c"))).is_pending());
            there.write_all(b"!").await?;
            socket.read_exact(&mut [0]).await?;
        }
        let mut written = [0; 4];
        there.read_exact(&mut written).await?;
        assert_eq!(&written, b"abab");
        Ok(())
    }
}
