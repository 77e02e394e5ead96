//! Sends the commands that become ready together in one write.
//!
//! The replies to many commands come in one read and wake their callers, which send their next
//! commands one after the other. The first of these commands wakes the connection's driver, which
//! would write that one alone. A write costs more than the rest of a command. So while commands are
//! unanswered, the driver lets the other tasks that are ready run first, once for each write. Where
//! there is one command at a time, nothing waits.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(super) struct WriteBatcher<S> {
    stream: S,
    /// Something was written since the last read.
    is_unanswered: bool,
    /// The other tasks have run before the next write.
    has_yielded: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WriteBatcher<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, is_unanswered: false, has_yielded: false }
    }

    /// Completes when the other tasks have run, if the write must wait for them.
    fn poll_yield(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_unanswered && !self.has_yielded {
            self.has_yielded = true;
            // Puts this task at the end of the scheduler's queue.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

/// Not vectored: the client library writes from one buffer, and a plain write costs less.
impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WriteBatcher<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_yield(cx));
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        self.is_unanswered = true;
        self.has_yielded = false;
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WriteBatcher<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        self.is_unanswered = false;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn only_a_write_behind_an_unanswered_one_yields_first() -> io::Result<()> {
        let (here, mut there) = duplex(64);
        let mut batcher = WriteBatcher::new(here);
        let mut byte = [0];
        for _ in 0..2 {
            assert!(poll!(Box::pin(batcher.write_all(b"a"))).is_ready());
            assert!(poll!(Box::pin(batcher.write_all(b"b"))).is_pending());
            assert!(poll!(Box::pin(batcher.write_all(b"b"))).is_ready());
            assert!(poll!(Box::pin(batcher.write_all(b"c"))).is_pending());
            there.write_all(b"!").await?;
            batcher.read_exact(&mut byte).await?;
        }
        let mut written = [0; 4];
        there.read_exact(&mut written).await?;
        assert_eq!(&written, b"abab");
        Ok(())
    }
}
