//! The sockets to a server, with TLS where it wants that.
//!
//! Each socket notes when bytes last moved. A connection on which none do is silent, and ends with
//! all its commands. A reply of many megabytes may take longer than the command time-out.
//!
//! A write costs more than the rest of a command, and the replies to many commands wake their
//! callers together. So while commands are unanswered, the driver lets the other tasks that are
//! ready run before each write, and writes their commands with it.

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

/// A write of this size or more takes its time on the way: a second for each megabyte.
///
/// The socket and other buffers on the way take it long before its peer has it. They take small
/// commands for long after the peer is gone, so these prove nothing.
const LARGE_WRITE: usize = 16 << 10;

/// How long large writes may be on their way: what the buffer of a socket takes at most. With more,
/// puts to a dead server would hide its silence for longer.
const LONGEST_WAY: Duration = Duration::from_secs(4);

/// How many command time-outs a caller waits for a driver that stands still. With less, a burst of
/// tasks that holds up the driver counts as a silence.
const PATIENCE: u32 = 8;

/// When bytes last moved on one connection.
pub(super) struct Progress {
    quiet: Mutex<Quiet>,
    /// Asks the driver whether the connection is silent.
    asked: Notify,
    /// The connection has ended because it was silent.
    is_silent: AtomicBool,
    /// Cancelled when the driver has ended. It has then dropped all commands that it had.
    pub(super) ended: CancellationToken,
}

#[derive(Clone, Copy)]
struct Quiet {
    /// Since when nothing has moved.
    since: Instant,
    /// Something was written since the last read. Its caller may have left.
    is_unanswered: bool,
}

impl Progress {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            quiet: Mutex::new(Quiet { since: Instant::now(), is_unanswered: false }),
            asked: Notify::new(),
            is_silent: AtomicBool::new(false),
            ended: CancellationToken::new(),
        })
    }

    fn has_read(&self) {
        let mut quiet = lock(&self.quiet);
        *quiet = Quiet { since: quiet.since.max(Instant::now()), is_unanswered: false };
    }

    fn has_written(&self, bytes: usize) {
        let (mut quiet, is_large) = (lock(&self.quiet), bytes >= LARGE_WRITE);
        if !is_large && quiet.is_unanswered {
            return;
        }
        let now = Instant::now();
        // Writes behind an unanswered one extend its time, and do not begin it anew.
        let from = if quiet.is_unanswered { quiet.since } else { now };
        let way = Duration::from_micros(if is_large { bytes as u64 } else { 0 });
        let until = (from + way).min(now + LONGEST_WAY);
        *quiet = Quiet { since: quiet.since.max(until), is_unanswered: true };
    }

    /// Runs the driver until its connection ends, or was silent for this long. With it, all
    /// commands that it has fail at once.
    ///
    /// A busy process may not have run it for so long, while replies lie in the socket and commands
    /// in its queue. So it has two turns before: it reads in the first, and may yield before it
    /// writes in the second.
    pub(super) async fn drive(&self, driver: impl Future<Output = ()>, limit: Duration) {
        let _ended = self.ended.clone().drop_guard();
        let mut driver = pin!(driver);
        loop {
            let quiet = *lock(&self.quiet);
            let from = if quiet.is_unanswered { quiet.since } else { Instant::now() };
            let is_asked = tokio::select! {
                biased;
                () = driver.as_mut() => return,
                () = self.asked.notified() => true,
                // The callers may have left.
                () = sleep_until(after(from, limit)) => false,
            };
            let before = *lock(&self.quiet);
            for _turn in 0..2 {
                tokio::select! {
                    biased;
                    () = driver.as_mut() => return,
                    () = yield_now() => {}
                }
            }
            let has_moved = lock(&self.quiet).since != before.since;
            let is_due = is_asked || before.is_unanswered;
            if is_due && !has_moved && after(before.since, limit) <= Instant::now() {
                self.is_silent.store(true, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Waits for a reply. Returns `None` if the connection was silent for this long before.
    ///
    /// A caller has the driver end a silence, and waits for that for a while, because the runtime
    /// of the driver may stand still. A caller that is not polled ends nothing.
    pub(super) async fn reply<T>(
        &self,
        mut sending: Pin<&mut impl Future<Output = Result<T, RedisError>>>,
        limit: Duration,
    ) -> Option<Result<T, RedisError>> {
        let (begun, mut wait) = (Instant::now(), limit);
        let reply = loop {
            let from = lock(&self.quiet).since.max(begun);
            tokio::select! {
                biased;
                reply = sending.as_mut() => break reply,
                // A command that was sent in the same moment lies in a queue that is not read.
                () = self.ended.cancelled() => {
                    // The last reply may have come since. There will be no other.
                    let ended = || Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
                    break unconstrained(sending).now_or_never().unwrap_or_else(ended);
                }
                () = sleep_until(after(from, wait)) => {}
            }
            if lock(&self.quiet).since.max(begun) != from {
                wait = limit;
            } else if wait < limit.saturating_mul(PATIENCE) {
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
    /// The other tasks have run before the next write.
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

    /// Does the TLS handshake, if the server wants it.
    pub(super) async fn secure(
        self,
        server: &ConnectionInfo,
        _config: &RedisConfig,
    ) -> Result<Box<dyn Stream>, io::Error> {
        match server.addr() {
            #[cfg(feature = "tls")]
            ConnectionAddr::TcpTls { host, .. } => {
                Ok(Box::new(tls::connect(_config, host, self).await?))
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
        if !self.has_yielded && lock(&self.progress.quiet).is_unanswered && is_small {
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
        let ((here, there), progress) = (duplex(1 << 20), Progress::new());
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
            assert_eq!(lock(&progress.quiet).since, Instant::now());
        }
        let (begun, reply) = (Instant::now(), pin!(pending::<Result<(), _>>()));
        let ((), reply) = join!(progress.drive(pending(), LIMIT), progress.reply(reply, LIMIT));
        assert!(reply.is_none());
        assert_eq!(begun.elapsed(), LIMIT);
        Ok(())
    }

    /// Each caller gave up before the connection was silent.
    #[tokio::test(start_paused = true)]
    async fn a_command_whose_caller_left_is_due_too() -> io::Result<()> {
        let (mut socket, _there, progress) = pair();
        socket.write_all(b"x").await?;
        timeout(LIMIT * 2, progress.drive(pending(), LIMIT)).await?;
        Ok(())
    }

    /// The socket takes the puts to a dead server, and each began its silence anew.
    #[tokio::test(start_paused = true)]
    async fn large_writes_to_a_dead_server_do_not_end_the_silence() -> io::Result<()> {
        let (mut socket, _there, progress) = pair();
        for _ in 0..20 {
            socket.write_all(&[0; LARGE_WRITE]).await?;
            advance(LIMIT / 2).await;
        }
        let silence = lock(&progress.quiet).since.elapsed();
        assert!(silence > LIMIT * 8, "{silence:?}");
        Ok(())
    }

    /// The driver did not run for a while, as behind thousands of tasks that were spawned at once.
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
