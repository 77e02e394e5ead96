//! The task that keeps a connection for commands: connect, serve until it breaks, and connect
//! again.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::{
    runtime::{self, Handle},
    sync::{Notify, watch},
    time::{Instant, sleep_until, timeout},
};
use tracing::{info, warn};

use super::{
    clock::ServerClock,
    config::RedisConfig,
    connect::connect,
    endpoint::{Endpoint, EndpointWatch},
    events::NodeEvents,
    handshake::prepare,
    stream::Connected,
    timeout_wheel::TimeoutWheel,
};
use crate::{
    error::{BackendError, Chain},
    time::{Pauses, after},
};

/// A connection that lived this long is replaced almost without a pause.
const LONG_LIVED: Duration = Duration::from_secs(1);
/// The longest pauses behind a break: of a connection that lived long, and of one that did not.
/// They do not grow, since each connection may serve those that wait for one.
const AFTER_BREAK: Duration = Duration::from_millis(10);
const AFTER_SHORT_LIFE: Duration = Duration::from_millis(20);
/// The least pause behind an attempt that failed.
const AFTER_FAILURE: Duration = Duration::from_millis(20);

/// A connection and its state, shared by the senders of commands and the task.
pub(super) struct KeptConnection {
    pub(super) endpoint: Endpoint,
    pub(super) config: RedisConfig,
    pub(super) state: watch::Sender<ConnectionState>,
    pub(super) timeouts: Arc<TimeoutWheel>,
    pub(super) events: NodeEvents,
}

#[derive(Clone)]
pub(super) enum ConnectionState {
    /// The task does not run.
    Idle,
    /// An attempt is under way, for which commands wait. A round trip took this long before.
    Connecting(Duration),
    Established(Arc<Established>),
    /// The last attempt failed. The task makes the next one.
    Failed(BackendError),
}

pub(super) struct Established {
    pub(super) connected: Connected,
    /// Asks the task to replace this connection, but not a later one.
    pub(super) broken: Arc<Notify>,
    /// Asks the task to test this connection with a `PING`.
    pub(super) suspected: Notify,
    /// The runtime of the task.
    pub(super) runtime: runtime::Id,
    /// How long the connection may be silent while a command is under way.
    pub(super) silence_limit: Duration,
    /// The clock of the server.
    pub(super) clock: ServerClock,
}

/// How a round of the task has ended.
pub(super) enum Round {
    /// The sentinels named another server meanwhile.
    Moved,
    /// The attempt to connect failed.
    Failed,
    /// There was a connection, which lived this long.
    Broke(Duration),
}

impl KeptConnection {
    /// Replaces a connection. Commands that begin from now on wait for the next one.
    pub(super) fn give_up(&self, broken: &Arc<Notify>) {
        self.state.send_if_modified(|state| match state {
            ConnectionState::Established(current) if Arc::ptr_eq(&current.broken, broken) => {
                *state = ConnectionState::Connecting(current.connected.round_trip);
                true
            }
            _ => false,
        });
        broken.notify_one();
    }

    /// Connects, and serves until the connection breaks. `watch` belongs to the last server found.
    async fn connect_and_serve(&self, watch: &mut EndpointWatch) -> Round {
        let (begun, broken) = (Instant::now(), Arc::new(Notify::new()));
        let on_end = self.on_end(&broken);
        match connect(&self.endpoint, watch, &self.config, on_end, |_| ()).await {
            Ok(None) => Round::Moved,
            Ok(Some(connected)) => {
                let is_late = self.is_failed() || begun.elapsed() > self.config.command_timeout;
                let (since, round_trip) = (Instant::now(), connected.round_trip);
                let current = self.establish(connected, broken);
                if is_late {
                    // Each waiter asks in vain at the moment, with pauses.
                    self.events.wake();
                }
                self.serve(current, watch).await;
                self.broke();
                // Commands wait for the first attempt after a break, and fail during later ones.
                self.state.send_replace(ConnectionState::Connecting(round_trip));
                Round::Broke(since.elapsed())
            }
            Err(error) => {
                self.failed(error);
                Round::Failed
            }
        }
    }

    /// Hands a new connection to the commands.
    fn establish(&self, connected: Connected, broken: Arc<Notify>) -> Arc<Established> {
        let silence_limit = self.config.silence_limit(connected.round_trip);
        let (suspected, clock) = (Notify::new(), ServerClock::default());
        let runtime = Handle::current().id();
        let current = Established { connected, broken, suspected, runtime, silence_limit, clock };
        let current = Arc::new(current);
        self.state.send_replace(ConnectionState::Established(current.clone()));
        self.events.new_connections.send_replace(());
        if let Some(away) = self.events.outage.ends() {
            info!(server = %self.endpoint.shown(), ?away, "connected to Redis again");
        }
        current
    }

    /// Returns what is to be done when the connection has ended.
    fn on_end(&self, broken: &Arc<Notify>) -> impl FnOnce() + Send + use<> {
        let (broken, timeouts) = (broken.clone(), self.timeouts.clone());
        move || {
            timeouts.wake_all();
            broken.notify_one();
        }
    }

    fn broke(&self) {
        let server = self.endpoint.shown();
        info!(%server, "the connection to Redis broke; connecting again");
        self.events.outage.begins();
        self.events.trouble.notify_one();
    }

    fn is_failed(&self) -> bool {
        matches!(&*self.state.borrow(), ConnectionState::Failed(_))
    }

    fn failed(&self, error: BackendError) {
        let (is_known, server) = (self.is_failed(), self.endpoint.shown());
        if !is_known {
            warn!(%server, error = %Chain(&error), "no connection to Redis; trying again");
            self.events.outage.begins();
        } else if let Some(away) = self.events.outage.lasts() {
            warn!(%server, ?away, error = %Chain(&error), "still no connection to Redis");
        }
        self.state.send_replace(ConnectionState::Failed(error));
        self.events.trouble.notify_one();
        if !is_known {
            self.events.wake();
        }
    }

    /// Returns when the connection is broken, or another server is the master.
    async fn serve(&self, current: Arc<Established>, watch: &mut EndpointWatch) {
        let mut preparing = current.connected.connection.clone();
        let prepare = async {
            let _ = timeout(self.config.connect_timeout, prepare(&mut preparing)).await;
            drop(preparing);
            std::future::pending::<()>().await
        };
        let tests = async {
            loop {
                current.suspected.notified().await;
                if !echoes(&current.connected, current.silence_limit).await {
                    return;
                }
            }
        };
        tokio::select! {
            () = current.broken.notified() => {}
            () = tests => {}
            () = prepare => {}
            () = watch.outdated() => {}
        }
    }
}

/// A run of the task. When it ends with its runtime, there is no connection any more.
pub(super) struct ReconnectRun(pub(super) Arc<KeptConnection>);

impl Drop for ReconnectRun {
    fn drop(&mut self) {
        self.0.state.send_replace(ConnectionState::Idle);
    }
}

/// When the next attempt to connect comes.
#[derive(Default)]
pub(super) struct Pacing(Pauses);

impl Pacing {
    /// Pauses after a round that began then. Another master ends the pause.
    pub(super) async fn rest(&mut self, begun: Instant, round: &Round, watch: &mut EndpointWatch) {
        let now = Instant::now();
        let until = match round {
            Round::Moved => now,
            Round::Broke(lived) => {
                self.0 = Pauses::default();
                let most = if *lived > LONG_LIVED { AFTER_BREAK } else { AFTER_SHORT_LIFE };
                after(now, most.mul_f64(fastrand::f64()))
            }
            // An attempt that hung until its time-out was a pause itself.
            Round::Failed => after(begun, self.0.next()).max(after(now, AFTER_FAILURE)),
        };
        tokio::select! {
            () = sleep_until(until) => {}
            () = watch.outdated() => {}
        }
    }
}

pub(super) async fn keep_connected(run: ReconnectRun) {
    let kept = &run.0;
    let connections = async {
        let (mut pacing, mut watch) = (Pacing::default(), EndpointWatch::Never);
        loop {
            let begun = Instant::now();
            let round = kept.connect_and_serve(&mut watch).await;
            pacing.rest(begun, &round, &mut watch).await;
        }
    };
    tokio::select! {
        () = connections => {}
        // Runs beside the connections, for commands on a replaced connection time out as well.
        () = kept.timeouts.run() => {}
    }
}

/// Sends a random word, and returns whether it comes back before the connection falls silent.
async fn echoes(connected: &Connected, limit: Duration) -> bool {
    let word = fastrand::u64(..).to_string();
    let mut ping = redis::cmd("PING");
    ping.arg(&word);
    let mut connection = connected.connection.clone();
    let silence = connected.progress.silent_for(limit, Instant::now());
    tokio::select! {
        reply = connection.send_packed_command(&ping) => match reply {
            Ok(Value::BulkString(echo)) => echo == word.as_bytes(),
            // An ACL may forbid PING, but the refusal is a reply as well.
            Ok(Value::ServerError(_)) => true,
            Err(error) => error.code().is_some(),
            _ => false,
        },
        () = silence => false,
    }
}
