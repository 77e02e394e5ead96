//! The last time at which bytes moved on a connection.
//!
//! A connection is silent when nothing has arrived for the command time-out. A reply of many
//! megabytes may take longer than that, and so may the replies behind it.
//!
//! A busy process may not have run the driver of the connection for so long, while replies lie in
//! the socket. So the driver looks once more before a connection counts as silent.

use std::{
    io::{self, IoSlice},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};

use crate::time::after;

/// A write of this size that the socket does not take at once is watched.
///
/// A socket takes small commands for long after its peer is gone, which shows nothing.
const LARGE_WRITE: usize = 16 << 10;

/// The number of pauses in which the driver may look once more.
const PAUSES: u32 = 16;

/// When bytes last moved on one connection.
pub(super) struct Progress {
    begun: Instant,
    /// In microseconds since `begun`.
    moved: AtomicU64,
    /// The task that reads from the connection.
    driver: AtomicWaker,
    /// The driver is to tell when it has found nothing more to read.
    is_look_wanted: AtomicBool,
    looked: Notify,
    has_ended: AtomicBool,
    ended: Notify,
}

impl Progress {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            begun: Instant::now(),
            moved: AtomicU64::new(0),
            driver: AtomicWaker::new(),
            is_look_wanted: AtomicBool::new(false),
            looked: Notify::new(),
            has_ended: AtomicBool::new(false),
            ended: Notify::new(),
        })
    }

    /// Notes that the driver has ended. It has dropped all commands that it had.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        self.ended.notify_waiters();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    fn note(&self) {
        let micros = self.begun.elapsed().as_micros();
        self.moved.store(u64::try_from(micros).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn moved_at(&self) -> Instant {
        after(self.begun, Duration::from_micros(self.moved.load(Ordering::Relaxed)))
    }

    /// Returns for how long nothing has moved.
    pub(super) fn silence(&self) -> Duration {
        self.moved_at().elapsed()
    }

    /// Completes when nothing has moved for this long, and this long after `begun`, or when the
    /// driver has ended.
    pub(super) async fn silent_for(&self, limit: Duration, begun: Instant) {
        let ended = self.ended.notified();
        if self.has_ended() {
            return;
        }
        tokio::select! {
            () = ended => {}
            () = self.silent(limit, begun) => {}
        }
    }

    async fn silent(&self, limit: Duration, begun: Instant) {
        loop {
            let end = after(self.moved_at().max(begun), limit);
            if Instant::now() < end {
                sleep_until(end).await;
                continue;
            }
            self.look(limit / 2).await;
            if self.silence() >= limit {
                return;
            }
        }
    }

    /// Completes when the driver has read what there is. A driver that stands still does not
    /// answer, so this also ends after the limit.
    ///
    /// The limit comes in short pauses. In a busy process each takes as long as the turn of the
    /// driver takes to come.
    async fn look(&self, limit: Duration) {
        let mut looked = pin!(self.looked.notified());
        looked.as_mut().enable();
        self.is_look_wanted.store(true, Ordering::SeqCst);
        self.driver.wake();
        for _ in 0..PAUSES {
            if timeout(limit / PAUSES, looked.as_mut()).await.is_ok() {
                return;
            }
        }
    }

    /// Notes that there is nothing more to read.
    fn nothing_left(&self, driver: &Context<'_>) {
        self.driver.register(driver.waker());
        if self.is_look_wanted.load(Ordering::SeqCst)
            && self.is_look_wanted.swap(false, Ordering::SeqCst)
        {
            self.looked.notify_waiters();
        }
    }
}

/// A socket that notes its progress.
pub(super) struct Watched<S> {
    stream: S,
    progress: Arc<Progress>,
    /// The socket did not take all of a large write.
    is_full: bool,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, progress: Arc<Progress>) -> Self {
        Self { stream, progress, is_full: false }
    }

    /// Notes a write of `length` bytes. A full socket takes more only after its peer took some.
    fn written(&mut self, poll: Poll<io::Result<usize>>, length: usize) -> Poll<io::Result<usize>> {
        match &poll {
            Poll::Pending => self.is_full |= length >= LARGE_WRITE,
            Poll::Ready(Ok(written)) if self.is_full => {
                self.is_full = *written < length;
                self.progress.note();
            }
            Poll::Ready(Ok(written)) => self.is_full = length - written >= LARGE_WRITE,
            Poll::Ready(Err(_)) => {}
        }
        poll
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(cx, into);
        if poll.is_pending() {
            self.progress.nothing_left(cx);
        } else if into.filled().len() > before {
            self.progress.note();
        }
        poll
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(poll, bytes.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        let length = slices.iter().map(|slice| slice.len()).sum();
        self.written(poll, length)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
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
        let mut watched = Watched::new(here, progress.clone());
        for _ in 0..3 {
            advance(LIMIT * 4 / 5).await;
            there.write_all(b"x").await?;
            watched.read_exact(&mut [0]).await?;
            assert_eq!(progress.silence(), Duration::ZERO);
        }
        let begun = Instant::now();
        progress.silent_for(LIMIT, begun).await;
        assert!(begun.elapsed() >= LIMIT && begun.elapsed() <= LIMIT * 2);
        Ok(())
    }

    /// The driver did not run for a while, as behind thousands of tasks that were spawned at once.
    #[tokio::test(start_paused = true)]
    async fn bytes_that_lie_in_the_socket_are_read_before_a_silence() -> io::Result<()> {
        let (here, mut there) = duplex(64);
        let progress = Progress::new();
        let mut watched = Watched::new(here, progress.clone());
        there.write_all(b"x").await?;
        advance(LIMIT).await;
        let driver = tokio::spawn(async move {
            let mut all = Vec::new();
            watched.read_to_end(&mut all).await.map(|_| all)
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
        tokio::join!(progress.silent_for(LIMIT, begun), async { progress.end() });
        progress.silent_for(LIMIT, begun).await;
        assert!(progress.has_ended());
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    /// A peer that is gone takes what its socket still has room for, and nothing more.
    #[tokio::test(start_paused = true)]
    async fn only_a_full_socket_shows_by_a_write_that_its_peer_reads() -> io::Result<()> {
        let (here, mut there) = duplex(LARGE_WRITE);
        let progress = Progress::new();
        let mut watched = Watched::new(here, progress.clone());
        advance(LIMIT).await;
        watched.write_all(b"a small command").await?;
        assert!(progress.silence() >= LIMIT, "a write that fits says nothing");
        let large = vec![0; 3 * LARGE_WRITE];
        assert!(timeout(LIMIT, watched.write_all(&large)).await.is_err());
        assert!(progress.silence() >= LIMIT * 2, "the peer has read nothing");
        there.read_exact(&mut vec![0; LARGE_WRITE / 2]).await?;
        assert!(timeout(LIMIT, watched.write_all(&large)).await.is_err());
        assert!(progress.silence() <= LIMIT * 2, "the peer has read");
        Ok(())
    }
}
