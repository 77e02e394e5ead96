//! The task that keeps a connection for commands: connect, serve until it breaks, and connect
//! again.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::{
    runtime::{self, Handle},
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use super::{
    attempts::Attempts,
    clock::ServerClock,
    config::RedisConfig,
    connect::connect,
    endpoint::{Endpoint, EndpointWatch},
    events::NodeEvents,
    handshake::prepare,
    pacer::after_break,
    replacements::LastMaster,
    round_trip::MeasuredRoundTrip,
    stream::Connected,
    timeout_wheel::TimeoutWheel,
};
use crate::error::{BackendError, Chain};

/// A connection that lived this long is replaced almost without a pause.
const LONG_LIVED: Duration = Duration::from_secs(1);

/// A connection and its state, shared by the senders of commands and the task.
pub(super) struct KeptConnection {
    pub(super) endpoint: Endpoint,
    pub(super) config: RedisConfig,
    pub(super) state: watch::Sender<ConnectionState>,
    pub(super) timeouts: Arc<TimeoutWheel>,
    pub(super) events: NodeEvents,
    pub(super) last_master: LastMaster,
    pub(super) round_trip: MeasuredRoundTrip,
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

/// The outcome of an attempt to connect.
struct EndedAttempt {
    connected: Result<Option<Connected>, BackendError>,
    /// The watch of the server that was found.
    watch: EndpointWatch,
    broken: Arc<Notify>,
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

    /// Waits for the end of an attempt to connect, and serves until the connection breaks. Returns
    /// how long it lasted, or `None` if there was none. `watch` is that of the server found last.
    async fn connect_and_serve<'a>(
        &'a self,
        attempts: &mut Attempts<'a, EndedAttempt>,
        watch: &mut EndpointWatch,
    ) -> Option<Duration> {
        let pacer = &self.events.pacer;
        if let Some(error) = pacer.error().filter(|_| !self.is_failed()) {
            // Another connection has failed, so commands need not wait for this one.
            self.failed(error);
        }
        let found = watch.clone();
        let begin = || self.connect(found.clone());
        let (attempt, ended) = attempts.next(watch.outdated(), begin).await;
        let EndedAttempt { connected, broken, .. } = ended;
        *watch = ended.watch;
        match connected {
            Ok(None) => {
                // The others may be on their way to the same server.
                attempts.end();
                None
            }
            Ok(Some(connected)) => {
                attempt.succeeded();
                let is_late = attempts.end() || self.is_failed();
                if watch.found().is_some_and(|master| self.last_master.moves_to(master)) {
                    self.events.replacements.add();
                }
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
                Some(since.elapsed())
            }
            Err(error) => {
                attempt.failed(error.clone());
                self.failed(error);
                None
            }
        }
    }

    async fn connect(&self, mut watch: EndpointWatch) -> EndedAttempt {
        let broken = Arc::new(Notify::new());
        let on_end = self.on_end(&broken);
        let connected = connect(&self.endpoint, &mut watch, &self.config, on_end, |_| ()).await;
        EndedAttempt { connected, watch, broken }
    }

    /// Hands a new connection to the commands.
    fn establish(&self, connected: Connected, broken: Arc<Notify>) -> Arc<Established> {
        self.round_trip.measured(connected.round_trip);
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
        let is_known = self.is_failed();
        if !is_known {
            let server = self.endpoint.shown();
            warn!(%server, error = %Chain(&error), "no connection to Redis; trying again");
            self.events.outage.begins();
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
                let asked = Instant::now();
                if !echoes(&current.connected, current.silence_limit).await {
                    return;
                }
                // The callers that gave up did so because the link has become slow.
                self.round_trip.measured(asked.elapsed());
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

pub(super) async fn keep_connected(run: ReconnectRun) {
    let kept = &run.0;
    let connections = async {
        let mut attempts = Attempts::new(&kept.events.pacer);
        let mut watch = EndpointWatch::Never;
        loop {
            let lived = kept.connect_and_serve(&mut attempts, &mut watch).await;
            let Some(lived) = lived else { continue };
            // The command that broke has a second try to make, so the first attempt comes at once,
            // unless the server accepts connections only to break them.
            sleep(after_break(lived <= LONG_LIVED)).await;
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
