use std::{
    future::{pending, poll_fn},
    pin::pin,
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    task::{coop::consume_budget, yield_now},
    time::{Instant, sleep, timeout_at},
};

use super::{board::Board, error::BodyError, shared::SharedBody};
use crate::time::after;

/// How much of a body that is always ready is collected before its readers have a turn.
const TURN: u64 = 64 << 10;

/// How long a body is without a reader before it counts as unread. The callers that wait for it
/// have their turns meanwhile.
const UNREAD: Duration = Duration::from_millis(50);

/// When a body is no longer collected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimits {
    /// The largest body, in bytes.
    pub(crate) size: u64,
    /// The longest time without progress.
    pub(crate) idle: Duration,
    /// The longest time in all.
    pub(crate) total: Duration,
    /// Whether a body that has no reader is collected to its end.
    pub(crate) finish_unread: bool,
}

/// How the collection of a body ended.
pub(crate) enum Collected {
    /// The body is complete.
    Whole(Bytes),
    /// The body is too large or too slow, or it has trailers. Its readers go on.
    Unfit,
    /// The body has no reader, and is not to be finished.
    Unread,
    /// The body broke off, for all its readers.
    Broken(BodyError),
}

/// Collects a body within its limits, while others read it.
pub(crate) async fn collect(body: &SharedBody, limits: &BodyLimits) -> Collected {
    let mut collecting = body.collecting();
    let (board, end) = (body.board(), after(Instant::now(), limits.total));
    let mut unread = pin!(unread(board, limits));
    let mut next_turn = TURN;
    loop {
        match board.ended() {
            Some(Ok(Some(_trailers))) => return Collected::Unfit,
            Some(Err(error)) => return Collected::Broken(error),
            _ if board.received() > limits.size => return Collected::Unfit,
            Some(Ok(None)) => return board.whole().map_or(Collected::Unfit, Collected::Whole),
            None => {}
        }
        let until = after(Instant::now(), limits.idle).min(end);
        tokio::select! {
            biased;
            more = timeout_at(until, collecting.more()) => if more.is_err() {
                return Collected::Unfit;
            },
            () = &mut unread => return Collected::Unread,
        }
        // A body that is always ready lets its readers read it meanwhile. The first turn is that of
        // the callers which wait for its head. A small body is settled before that.
        if board.ended().is_none() && board.received() >= next_turn {
            next_turn = board.received().saturating_add(TURN);
            yield_now().await;
        }
        consume_budget().await;
    }
}

/// Completes when a body has no reader any more, and is not to be finished.
async fn unread(board: &Board, limits: &BodyLimits) {
    if limits.finish_unread {
        return pending().await;
    }
    let mut readers = None;
    loop {
        let left = poll_fn(|cx| board.poll_left(cx)).await;
        if readers.replace(left) == Some(left) {
            return;
        }
        sleep(UNREAD).await;
    }
}
