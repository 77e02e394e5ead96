//! The connection for commands.
//!
//! A loop keeps it: connect, serve until it breaks, connect again, without end. Whoever sends a command
//! takes the present connection; if there is none because the last attempt failed, the command fails at
//! once; if an attempt is under way, it waits for that within its own time-out. So nothing queues up while
//! the server is away.
//!
//! A connection on which one command was not answered in time gets no further ones. It may be dead, and then
//! a second try must not go the way of the first; or it lost an answer, and then every later one would go to
//! the wrong command. What is under way on it may still be answered. A command that its caller gave up
//! earlier puts the connection to the question: a word is sent, and must come back.

use std::{sync::Arc, time::Duration};

use redis::{
    Cmd, ErrorKind, PushKind, RedisError, RetryMethod, ServerErrorKind, Value,
    aio::MultiplexedConnection,
};
use tokio::{
    runtime::{self, Handle},
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tracing::{info, warn};

use super::{
    RedisOptions,
    connect::{Backoff, connect, prepare},
    patience::Patience,
    script::Call,
    target::{Place, Target},
    task::Task,
};
use crate::{
    backend::Channels,
    error::{BackendError, BackendErrorKind},
};

/// A connection that has lived so long is replaced without a pause.
const LONG_LIVED: Duration = Duration::from_secs(1);

pub(super) struct Commands {
    shared: Arc<Shared>,
    task: Task,
}

struct Shared {
    target: Target,
    options: RedisOptions,
    link: watch::Sender<Link>,
    patience: Patience,
    /// Who waits for a push learns from here that the server is gone.
    channels: Channels,
    /// Told when there is a connection again.
    connected: Arc<Notify>,
}

#[derive(Clone)]
enum Link {
    /// No loop runs.
    Idle,
    /// An attempt is under way.
    Connecting,
    Up(Arc<Up>),
    /// The last attempt failed; the next one comes by itself.
    Down(BackendError),
}

struct Up {
    connection: MultiplexedConnection,
    /// Asks the loop for a new connection in place of this one, and of no later one.
    broken: Arc<Notify>,
    /// Asks the loop whether it still answers.
    doubted: Notify,
    /// Where the loop runs.
    runtime: runtime::Id,
}

impl Commands {
    pub(super) fn new(
        target: Target,
        options: RedisOptions,
        channels: Channels,
        connected: Arc<Notify>,
    ) -> Self {
        let patience = Patience::new(options.command_timeout);
        let link = watch::Sender::new(Link::Idle);
        let shared = Shared { target, options, link, patience, channels, connected };
        Self { shared: Arc::new(shared), task: Task::default() }
    }

    /// Runs a script, and sends it along if the server does not know it.
    pub(super) async fn call(&self, call: Call<'_>) -> Result<Value, BackendError> {
        let deadline = self.deadline();
        match self.send(&call.by_digest(), deadline, true).await {
            Err(Failed { no_script: true, .. }) => {
                Ok(Box::pin(self.send(&call.with_source(), deadline, false)).await?)
            }
            answer => Ok(answer?),
        }
    }

    pub(super) async fn run(&self, command: &Cmd) -> Result<Value, BackendError> {
        Ok(self.send(command, self.deadline(), true).await?)
    }

    /// Gives the present connection up: an answer of it was not one to what was asked.
    pub(super) fn out_of_step(&self) {
        if let Some(up) = self.present() {
            self.shared.give_up(&up.broken);
        }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.shared.options.command_timeout
    }

    /// Sends a command; `whole`, if it has all of its time until the deadline.
    async fn send(&self, command: &Cmd, deadline: Instant, whole: bool) -> Result<Value, Failed> {
        let (up, since, whole) = match self.present() {
            Some(up) => (up, deadline - self.shared.options.command_timeout, whole),
            // In a box, so that the way of a command that need not wait stays small.
            None => (Box::pin(self.up(deadline)).await?, Instant::now(), false),
        };
        let mut connection = up.connection.clone();
        let unanswered = Unanswered { shared: &self.shared, up: &up, since };
        let sending = connection.send_packed_command(command);
        let over = async {
            // A loop on another runtime may stand still while this one goes on.
            match whole && Handle::current().id() == up.runtime {
                true => self.shared.patience.over().await,
                false => Box::pin(sleep_until(deadline)).await,
            }
        };
        tokio::select! {
            biased;
            answer = sending => {
                unanswered.answered();
                answer
                    .and_then(Value::extract_error)
                    .map_err(|error| self.failed(error, &up.broken))
            }
            () = over => {
                let words = "no answer within the time of a command";
                Err(BackendError::new(BackendErrorKind::Unknown, words).into())
            }
        }
    }

    /// What an error says of its command; and the connection is given up if it says that it must be.
    fn failed(&self, error: RedisError, broken: &Arc<Notify>) -> Failed {
        let no_script = error.kind() == ErrorKind::Server(ServerErrorKind::NoScript);
        let replace = matches!(
            error.retry_method(),
            RetryMethod::Reconnect | RetryMethod::ReconnectFromInitialConnections
        );
        if replace || matches!(error.code(), Some("READONLY" | "NOAUTH" | "MASTERDOWN")) {
            self.shared.give_up(broken);
        }
        let kind = match error.code() {
            Some("FOREIGN" | "WRONGTYPE") => BackendErrorKind::Foreign,
            Some(_) if !replace => BackendErrorKind::Refused,
            _ => BackendErrorKind::Unknown,
        };
        Failed { no_script, error: BackendError::new(kind, error) }
    }

    /// The present connection, if there is one.
    fn present(&self) -> Option<Arc<Up>> {
        match &*self.shared.link.borrow() {
            Link::Up(up) => Some(up.clone()),
            _ => None,
        }
    }

    /// The present connection, or the one that the attempt under way makes.
    async fn up(&self, deadline: Instant) -> Result<Arc<Up>, BackendError> {
        let mut link = self.shared.link.subscribe();
        loop {
            // Not looked at in place: what starts the loop writes what is looked at.
            let now = link.borrow_and_update().clone();
            match now {
                Link::Up(up) => return Ok(up),
                Link::Down(error) => return Err(error),
                Link::Connecting => {}
                Link::Idle => self.task.start(|_| keep(Run(self.shared.clone()))),
            }
            match timeout_at(deadline, link.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(closed)) => {
                    return Err(BackendError::new(BackendErrorKind::Unavailable, closed));
                }
                Err(elapsed) => {
                    return Err(BackendError::new(BackendErrorKind::Unavailable, elapsed));
                }
            }
        }
    }
}

impl Shared {
    /// Has a connection replaced. From here on nobody takes it any more: who asks waits for the next one.
    fn give_up(&self, broken: &Arc<Notify>) {
        self.link.send_if_modified(|link| match link {
            Link::Up(up) if Arc::ptr_eq(&up.broken, broken) => {
                *link = Link::Connecting;
                true
            }
            _ => false,
        });
        broken.notify_one();
    }
}

/// A run of the loop. When it ends, with its runtime, there is no connection any more.
struct Run(Arc<Shared>);

impl Drop for Run {
    fn drop(&mut self) {
        self.0.link.send_replace(Link::Idle);
    }
}

async fn keep(run: Run) {
    let shared = &run.0;
    tokio::select! {
        () = keep_connected(shared) => {}
        // Also for what is under way on a connection that was given up.
        () = shared.patience.tell() => {}
    }
}

async fn keep_connected(shared: &Shared) {
    let mut backoff = Backoff::new();
    loop {
        let broken = Arc::new(Notify::new());
        let disconnected = broken.clone();
        let on_push = move |push: redis::PushInfo| {
            if push.kind == PushKind::Disconnection {
                disconnected.notify_one();
            }
            Ok(())
        };
        match connect(&shared.target, &shared.options, on_push).await {
            Ok((connection, place)) => {
                let since = Instant::now();
                let runtime = Handle::current().id();
                let up = Up { connection, broken, doubted: Notify::new(), runtime };
                serve(shared, Arc::new(up), place).await;
                info!("the connection to Redis broke; connecting again");
                // Callers wait for the first attempt after a break, and fail at once during later ones.
                shared.link.send_replace(Link::Connecting);
                backoff = Backoff::new();
                // Somebody has a second try to make. But a server that accepts connections and breaks them
                // must not make us spin.
                if since.elapsed() > LONG_LIVED {
                    continue;
                }
            }
            Err(error) => {
                let told = matches!(&*shared.link.borrow(), Link::Down(_));
                if !told {
                    warn!(%error, "no connection to Redis; trying again");
                }
                shared.link.send_replace(Link::Down(error));
                if !told {
                    shared.channels.wake();
                }
            }
        }
        sleep(backoff.pause()).await;
    }
}

/// Returns when the connection is broken, or the master is elsewhere.
async fn serve(shared: &Shared, up: Arc<Up>, place: Place) {
    let mut preparing = up.connection.clone();
    let mut asked = up.connection.clone();
    shared.link.send_replace(Link::Up(up.clone()));
    shared.connected.notify_waiters();
    let limit = shared.options.connect_timeout;
    let prepare = async {
        let _ = timeout(limit, prepare(&mut preparing)).await;
        drop(preparing);
        std::future::pending::<()>().await
    };
    let questions = async {
        loop {
            up.doubted.notified().await;
            if !answers(&mut asked, shared.options.command_timeout).await {
                return;
            }
        }
    };
    tokio::select! {
        () = up.broken.notified() => {}
        () = questions => {}
        () = prepare => {}
        () = place.left() => {}
    }
}

/// Whether a word that is sent comes back.
async fn answers(connection: &mut MultiplexedConnection, limit: Duration) -> bool {
    let word = fastrand::u64(..).to_string();
    let mut ping = redis::cmd("PING");
    ping.arg(&word);
    match timeout(limit, connection.send_packed_command(&ping)).await {
        Ok(Ok(Value::BulkString(echo))) => echo == word.as_bytes(),
        // Forbidden, perhaps; but an answer.
        Ok(Ok(Value::ServerError(_))) => true,
        Ok(Err(error)) => error.code().is_some(),
        _ => false,
    }
}

/// A command that is on its way. Dropped, it was not answered: its time was over, or its caller's patience,
/// which may be the shorter one.
struct Unanswered<'a> {
    shared: &'a Shared,
    up: &'a Up,
    since: Instant,
}

impl Unanswered<'_> {
    fn answered(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        // Callers have the same limit, and theirs may end a moment earlier.
        if self.since.elapsed() >= self.shared.options.command_timeout.mul_f64(0.9) {
            self.shared.give_up(&self.up.broken);
        } else {
            self.up.doubted.notify_one();
        }
    }
}

/// A command that failed.
struct Failed {
    /// The server does not know the script that the command named.
    no_script: bool,
    error: BackendError,
}

impl From<BackendError> for Failed {
    fn from(error: BackendError) -> Self {
        Self { no_script: false, error }
    }
}

impl From<Failed> for BackendError {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}
