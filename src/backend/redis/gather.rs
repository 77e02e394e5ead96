//! Commands that are ready together go to the server in one write.
//!
//! The answers to many commands come in one read and wake their callers, who send their next commands one
//! after the other. The first of them wakes the connection's driver, which would write that one alone; and a
//! write costs more than all else of a command. So while commands are unanswered, whoever else is about to
//! run goes first, once for each write. Where there is one command at a time, nothing waits.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(super) struct Gathering<S> {
    stream: S,
    /// Something was written since anything was read.
    unanswered: bool,
    /// Others went first.
    waited: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Gathering<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, unanswered: false, waited: false }
    }

    /// Ready when the others have gone first.
    fn poll_others(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.unanswered && !self.waited {
            self.waited = true;
            // To the end of the queue.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

/// Not vectored: the client writes from one buffer, and a plain write costs less.
impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Gathering<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_others(cx));
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        self.unanswered = true;
        self.waited = false;
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Gathering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        self.unanswered = false;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn only_a_write_behind_an_unanswered_one_lets_others_go_first() -> io::Result<()> {
        let (here, mut there) = duplex(64);
        let mut gathering = Gathering::new(here);
        let mut byte = [0];
        for _ in 0..2 {
            assert!(poll!(Box::pin(gathering.write_all(b"a"))).is_ready());
            assert!(poll!(Box::pin(gathering.write_all(b"b"))).is_pending());
            assert!(poll!(Box::pin(gathering.write_all(b"b"))).is_ready());
            assert!(poll!(Box::pin(gathering.write_all(b"c"))).is_pending());
            there.write_all(b"!").await?;
            gathering.read_exact(&mut byte).await?;
        }
        let mut written = [0; 4];
        there.read_exact(&mut written).await?;
        assert_eq!(&written, b"abab");
        Ok(())
    }
}
