//! The connection for pushes.
//!
//! One task owns it and keeps the server's subscriptions in step with what [`Channels`] wants
//! ([`Subscriptions`]). Subscribing is never the work of a caller's future, which may be dropped. It connects
//! when the first channel opens, and after a break everyone is told to look again once the subscriptions are
//! restored.
//!
//! It is a connection of its own because a subscribed one falls under the server's output limit for
//! pub/sub, and is cut when large replies queue up.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use redis::{PushInfo, PushKind, RedisError, Value};
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};
use tracing::debug;

use super::{
    RedisOptions,
    connect::{Backoff, connect},
    node::Signs,
    subscribe::{Leaving, Subscriptions},
    target::{Place, Target},
    task::Task,
};
use crate::{
    backend::{Change, Channels},
    error::{BackendError, BackendErrorKind},
};

/// How often a silent connection is asked whether it lives. Waiters rely on it without a sign that it is
/// dead; with the time for the answer and for a new connection, that is over within two seconds.
const PING_EVERY: Duration = Duration::from_secs(1);
/// How soon a subscription that is not to be had at the moment is asked for again.
const AGAIN: Duration = Duration::from_millis(50);

pub(super) struct Push {
    target: Target,
    options: RedisOptions,
    signs: Signs,
    /// The last attempt to connect failed.
    down: Arc<AtomicBool>,
    task: Task,
}

impl Push {
    pub(super) fn new(target: Target, options: RedisOptions, signs: Signs) -> Self {
        Self { target, options, signs, down: Arc::default(), task: Task::default() }
    }

    /// Starts the task on the present runtime, if none runs.
    ///
    /// Fails if the last attempt to connect failed; the next one comes by itself.
    pub(super) fn start(&self) -> Result<(), BackendError> {
        self.task.start(|| {
            let run = Run { signs: self.signs.clone(), down: self.down.clone() };
            keep_subscribed(self.target.clone(), self.options.clone(), run)
        });
        if self.down.load(Ordering::Relaxed) {
            let why = "the last attempt to connect failed";
            return Err(BackendError::new(BackendErrorKind::Unavailable, why));
        }
        Ok(())
    }
}

/// A run of the task. When it ends, with its runtime, no subscription is in place any more.
struct Run {
    signs: Signs,
    down: Arc<AtomicBool>,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.down.store(false, Ordering::Relaxed);
        self.signs.forget_answers();
        self.signs.wake();
    }
}

async fn keep_subscribed(target: Target, options: RedisOptions, run: Run) {
    let signs = &run.signs;
    let down = |down| run.down.store(down, Ordering::Relaxed);
    let mut turns = signs.channels.turns();
    let mut backoff = Backoff::new();
    let mut refused = false;
    loop {
        // While it is down nobody listens for long, so it goes on by itself.
        let any = || signs.channels.any(|channel| signs.scope.has(channel));
        let wanted = |_: &u64| any() || run.down.load(Ordering::Relaxed);
        if turns.wait_for(wanted).await.is_err() {
            return;
        }
        let (broken, leaving) = (Arc::new(Notify::new()), Leaving::default());
        let asks = options.replicas.is_some();
        let on_push = receive(signs.channels.clone(), broken.clone(), leaving.clone(), asks);
        match connect(&target, &options, broken.clone(), on_push).await {
            Ok((connected, place)) => {
                down(false);
                backoff = Backoff::new();
                let subscriptions =
                    Subscriptions::new(connected, &options, signs, leaving, &mut refused);
                let end = serve(subscriptions, &mut turns, &broken, place).await;
                signs.forget_answers();
                // The server may be gone for long: whoever waits looks at once, and finds out.
                signs.wake();
                if let Err(error) = end {
                    debug!(error = %crate::error::Chain(&error), "the push connection to Redis broke; connecting again");
                }
            }
            Err(error) => {
                down(true);
                debug!(error = %crate::error::Chain(&error), "no push connection to Redis; trying again");
            }
        }
        signs.trouble.notify_one();
        tokio::select! {
            () = sleep(backoff.pause()) => {}
            () = signs.connected.notified() => {}
        }
    }
}

/// Keeps the subscriptions in step; returns when the connection is broken, or the master is elsewhere. What is still
/// asked on it then is not waited for: those who listen must be told.
async fn serve(
    subscriptions: Subscriptions<'_>,
    turns: &mut watch::Receiver<u64>,
    broken: &Notify,
    place: Place,
) -> Result<(), RedisError> {
    tokio::select! {
        end = keep_in_step(subscriptions, turns) => end,
        () = broken.notified() => Ok(()),
        () = place.left() => Ok(()),
    }
}

async fn keep_in_step(
    mut subscriptions: Subscriptions<'_>,
    turns: &mut watch::Receiver<u64>,
) -> Result<(), RedisError> {
    turns.mark_unchanged();
    let mut complete = subscriptions.reconcile().await?;
    loop {
        tokio::select! {
            changed = turns.changed() => match changed {
                Ok(()) => complete = subscriptions.reconcile().await?,
                Err(_) => return Ok(()),
            },
            () = sleep(AGAIN), if !complete => complete = subscriptions.reconcile().await?,
            () = sleep(PING_EVERY) => subscriptions.ping().await?,
        }
    }
}

/// Hands each push to those who wait for it. Who must have replicas confirm what he is granted `asks` for it.
fn receive(
    channels: Channels,
    broken: Arc<Notify>,
    leaving: Leaving,
    asks: bool,
) -> impl Fn(PushInfo) + Send + Sync + 'static {
    move |push| {
        let mut data = push.data.into_iter();
        match push.kind {
            PushKind::Message | PushKind::SMessage => {
                if let (Some(Value::BulkString(channel)), Some(Value::BulkString(message))) =
                    (data.next(), data.next())
                    && let Ok(channel) = std::str::from_utf8(&channel)
                {
                    let change = match Change::decode(&Bytes::from(message)) {
                        Change::Granted(handover) if asks => Change::Turn(handover.owner),
                        change => change,
                    };
                    channels.push(channel, change);
                }
            }
            // Unasked for, it says that the channel's slot is somewhere else now. The client library takes
            // it for the answer to something, so this connection is of no use any more.
            PushKind::SUnsubscribe => {
                let asked_for = matches!(data.next(), Some(Value::BulkString(channel)) if leaving.take(&channel));
                if !asked_for {
                    broken.notify_one();
                }
            }
            _ => {}
        }
    }
}
