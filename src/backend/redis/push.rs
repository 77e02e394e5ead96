//! The connection for pushes.
//!
//! One task owns it and keeps the server's subscriptions in step with what [`Channels`] wants: whatever
//! opened or closed meanwhile is one command, and where the server refuses that, one command each, for it
//! refuses all when one is forbidden. Subscribing is never the work of a caller's future, which
//! may be dropped. It connects when the first channel opens, and after a break everyone is told to look
//! again once the subscriptions are restored.
//!
//! It is a connection of its own because a subscribed one falls under the server's output limit for
//! pub/sub, and is cut when large replies queue up.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use redis::{Cmd, PushInfo, PushKind, RedisError, Value, aio::MultiplexedConnection};
use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use super::{
    RedisOptions,
    connect::{Backoff, connect},
    target::{Place, Target},
    task::Task,
};
use crate::{
    backend::{Change, Channels, channels::Subscription},
    error::{BackendError, BackendErrorKind},
};

/// How often a silent connection is asked whether it lives. Waiters rely on it without a sign that it is
/// dead; with the time for the answer and for a new connection, that is over within two seconds.
const PING_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Push {
    target: Target,
    options: RedisOptions,
    channels: Channels,
    /// The last attempt to connect failed.
    down: Arc<AtomicBool>,
    /// Told when the other connection is there again: then it is time to try.
    retry: Arc<Notify>,
    task: Task,
}

impl Push {
    pub(super) fn new(target: Target, options: RedisOptions) -> Self {
        Self {
            target,
            options,
            channels: Channels::default(),
            down: Arc::default(),
            retry: Arc::default(),
            task: Task::default(),
        }
    }

    pub(super) fn channels(&self) -> &Channels {
        &self.channels
    }

    pub(super) fn retry(&self) -> &Arc<Notify> {
        &self.retry
    }

    /// Whether the last attempt to connect failed; the next one comes by itself.
    pub(super) fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// Starts the task on the present runtime, if none runs.
    pub(super) fn start(&self) {
        self.task.start(|again| {
            let run = Run {
                channels: self.channels.clone(),
                down: self.down.clone(),
                retry: self.retry.clone(),
            };
            // Who listened while the last task was gone with its runtime may have missed something.
            keep_subscribed(self.target.clone(), self.options.clone(), run, again)
        });
    }
}

/// A run of the task. When it ends, with its runtime, no subscription is in place any more.
struct Run {
    channels: Channels,
    down: Arc<AtomicBool>,
    retry: Arc<Notify>,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.channels.forget_answers();
        self.down.store(false, Ordering::Relaxed);
    }
}

async fn keep_subscribed(target: Target, options: RedisOptions, run: Run, mut missed: bool) {
    let channels = &run.channels;
    let down = |down| run.down.store(down, Ordering::Relaxed);
    let mut turns = channels.turns();
    let mut backoff = Backoff::new();
    let mut refused = false;
    loop {
        // While it is down nobody listens for long, so it goes on by itself.
        let wanted = |_: &u64| !channels.is_empty() || run.down.load(Ordering::Relaxed);
        if turns.wait_for(wanted).await.is_err() {
            return;
        }
        let broken = Arc::new(Notify::new());
        match connect(&target, &options, receive(channels.clone(), broken.clone())).await {
            Ok((connection, place)) => {
                down(false);
                backoff = Backoff::new();
                let link = Link {
                    connection,
                    options: &options,
                    subscribed: HashSet::new(),
                    refused: &mut refused,
                };
                let end = link.serve(channels, &mut turns, &broken, place, missed).await;
                channels.forget_answers();
                missed = true;
                // The server may be gone for long: whoever waits looks at once, and finds out.
                channels.wake();
                if let Err(error) = end {
                    debug!(%error, "the push connection to Redis broke; connecting again");
                }
            }
            Err(error) => {
                down(true);
                debug!(%error, "no push connection to Redis; trying again");
            }
        }
        tokio::select! {
            () = sleep(backoff.pause()) => {}
            () = run.retry.notified() => {}
        }
    }
}

/// Hands each push to those who wait for it.
fn receive(
    channels: Channels,
    broken: Arc<Notify>,
) -> impl Fn(PushInfo) -> Result<(), ()> + Send + Sync + 'static {
    move |push| {
        match push.kind {
            PushKind::Disconnection => broken.notify_one(),
            PushKind::Message | PushKind::SMessage => {
                let mut data = push.data.into_iter();
                if let (Some(Value::BulkString(channel)), Some(Value::BulkString(message))) =
                    (data.next(), data.next())
                    && let Ok(channel) = std::str::from_utf8(&channel)
                {
                    channels.push(channel, Change::decode(&Bytes::from(message)));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

struct Link<'a> {
    connection: MultiplexedConnection,
    options: &'a RedisOptions,
    subscribed: HashSet<Arc<str>>,
    /// The server refuses subscriptions, and that was told.
    refused: &'a mut bool,
}

impl Link<'_> {
    /// Keeps the subscriptions in step; returns when the connection is broken, or the master is elsewhere.
    async fn serve(
        mut self,
        channels: &Channels,
        turns: &mut watch::Receiver<u64>,
        broken: &Notify,
        place: Place,
        missed: bool,
    ) -> Result<(), RedisError> {
        turns.mark_unchanged();
        self.reconcile(channels).await?;
        if missed {
            channels.wake();
        }
        let mut left = std::pin::pin!(place.left());
        loop {
            tokio::select! {
                changed = turns.changed() => match changed {
                    Ok(()) => self.reconcile(channels).await?,
                    Err(_) => return Ok(()),
                },
                () = broken.notified() => return Ok(()),
                () = &mut left => return Ok(()),
                () = sleep(PING_EVERY) => self.send(&redis::cmd("PING")).await?,
            }
        }
    }

    async fn reconcile(&mut self, channels: &Channels) -> Result<(), RedisError> {
        let wanted = channels.not_refused();
        let opened: Vec<_> =
            wanted.iter().filter(|channel| !self.subscribed.contains(*channel)).cloned().collect();
        if !opened.is_empty() && self.subscribe(&opened).await?.is_some() {
            for channel in opened {
                if let Some(refusal) = self.subscribe(std::slice::from_ref(&channel)).await? {
                    if !std::mem::replace(self.refused, true) {
                        warn!(error = %refusal, "Redis refuses subscriptions; waiting by timers alone");
                    }
                    let refusal = BackendError::new(BackendErrorKind::Refused, refusal);
                    channels.answer(&channel, Subscription::Refused(refusal));
                }
            }
        }
        for channel in wanted.iter().filter(|channel| self.subscribed.contains(*channel)) {
            channels.answer(channel, Subscription::Confirmed);
        }
        let closed: Vec<_> =
            self.subscribed.iter().filter(|channel| !channels.wants(channel)).cloned().collect();
        if !closed.is_empty() {
            let connection = &mut self.connection;
            let leaving =
                timeout(self.options.connect_timeout, connection.unsubscribe(texts(&closed)));
            leaving.await.unwrap_or_else(|_| Err(timed_out()))?;
            for channel in &closed {
                self.subscribed.remove(channel);
            }
        }
        Ok(())
    }

    /// Subscribes; an answer of the server that refuses it is returned, and no answer is an error.
    async fn subscribe(&mut self, opened: &[Arc<str>]) -> Result<Option<RedisError>, RedisError> {
        let subscribing = self.connection.subscribe(texts(opened));
        let answer = timeout(self.options.connect_timeout, subscribing).await;
        match answer.unwrap_or_else(|_| Err(timed_out())) {
            Ok(()) => {
                self.subscribed.extend(opened.iter().cloned());
                *self.refused = false;
                Ok(None)
            }
            Err(error) if error.code().is_some() => Ok(Some(error)),
            // It may be in place or not. A new connection begins with none.
            Err(error) => Err(error),
        }
    }

    async fn send(&mut self, command: &Cmd) -> Result<(), RedisError> {
        let sending = self.connection.send_packed_command(command);
        let answer = timeout(2 * self.options.command_timeout, sending).await;
        answer.unwrap_or_else(|_| Err(timed_out())).map(drop)
    }
}

fn texts(channels: &[Arc<str>]) -> Vec<&str> {
    channels.iter().map(AsRef::as_ref).collect()
}

fn timed_out() -> RedisError {
    RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut))
}
