//! The loop that keeps the connection for commands: connect, serve until it breaks, connect again, without end.

use std::{sync::Arc, time::Duration};

use redis::{Value, aio::MultiplexedConnection};
use tokio::{
    runtime::{self, Handle},
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use super::{
    RedisOptions,
    connect::{Backoff, Connected, connect, prepare},
    node::Signs,
    patience::Patience,
    target::{Place, Target},
};
use crate::error::BackendError;

/// A connection that has lived so long is replaced without a pause.
const LONG_LIVED: Duration = Duration::from_secs(1);

/// A connection that is kept, as those who send by it and the loop share it.
pub(super) struct Shared {
    pub(super) target: Target,
    pub(super) options: RedisOptions,
    pub(super) link: watch::Sender<Link>,
    pub(super) patience: Patience,
    pub(super) signs: Signs,
}

#[derive(Clone)]
pub(super) enum Link {
    /// No loop runs.
    Idle,
    /// An attempt is under way.
    Connecting,
    Up(Arc<Up>),
    /// The last attempt failed; the next one comes by itself.
    Down(BackendError),
}

pub(super) struct Up {
    pub(super) connected: Connected,
    /// Asks the loop for a new connection in place of this one, and of no later one.
    pub(super) broken: Arc<Notify>,
    /// Asks the loop whether it still answers.
    pub(super) doubted: Notify,
    /// Where the loop runs.
    pub(super) runtime: runtime::Id,
}

impl Shared {
    /// Has a connection replaced. From here on nobody takes it any more: who asks waits for the next one.
    pub(super) fn give_up(&self, broken: &Arc<Notify>) {
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
pub(super) struct Run(pub(super) Arc<Shared>);

impl Drop for Run {
    fn drop(&mut self) {
        self.0.link.send_replace(Link::Idle);
    }
}

pub(super) async fn keep(run: Run) {
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
        match connect(&shared.target, &shared.options, broken.clone(), |_| ()).await {
            Ok((connected, place)) => {
                let since = Instant::now();
                let runtime = Handle::current().id();
                let up = Up { connected, broken, doubted: Notify::new(), runtime };
                serve(shared, Arc::new(up), place).await;
                info!("the connection to Redis broke; connecting again");
                shared.signs.trouble.notify_one();
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
                    warn!(error = %crate::error::Chain(&error), "no connection to Redis; trying again");
                }
                shared.link.send_replace(Link::Down(error));
                shared.signs.trouble.notify_one();
                if !told {
                    shared.signs.wake();
                }
            }
        }
        sleep(backoff.pause()).await;
    }
}

/// Returns when the connection is broken, or the master is elsewhere.
async fn serve(shared: &Shared, up: Arc<Up>, place: Place) {
    let mut preparing = up.connected.connection.clone();
    let mut asked = up.connected.connection.clone();
    shared.link.send_replace(Link::Up(up.clone()));
    shared.signs.connected.notify_waiters();
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
