//! Watches for another master, once for all connections that look for the same one.
//!
//! Each sentinel announces a failover that it takes part in, and is then asked at once. In case an
//! announcement is lost, the sentinels are also asked every second. A master that they have
//! replaced may live on and accept writes that will be lost, and its connections do not break.
//!
//! The watch runs on the runtime of the connection that started it. That runtime may end, and those
//! of other connections go on. So a connection that sees no look for a while starts the watch
//! again. If that does not help, because the runtime stands still, the connection looks by itself.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, future::join_all};
use redis::{RedisError, aio::PubSub};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::info;

use super::{
    super::{stream::open_pubsub, task::OnDemandTask},
    HostPort,
    known::KnownSentinels,
};

/// How often the sentinels are asked.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// After this time without a look, a connection does not rely on the watch.
const SILENCE: Duration = Duration::from_secs(4);
/// How long it may take to listen to a sentinel.
const LISTEN_LIMIT: Duration = Duration::from_secs(1);
/// The announcements of a failover. A replica that was promoted is the master already, although the
/// sentinels announce the switch only when the other replicas follow it.
const ANNOUNCEMENTS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// The sentinels, and the task that watches what they say. It ends when this is dropped.
pub(super) struct SharedWatch {
    known: Arc<KnownSentinels>,
    task: OnDemandTask,
}

impl SharedWatch {
    pub(super) fn new(known: KnownSentinels) -> Self {
        Self { known: Arc::new(known), task: OnDemandTask::default() }
    }

    pub(super) fn known(&self) -> &KnownSentinels {
        &self.known
    }

    /// Starts the task on the current runtime, unless it runs.
    pub(super) fn start(&self) {
        self.task.start(|| keep_watching(WatchRun(self.known.clone())));
    }
}

/// A run of the task. When it ends with its runtime, a connection of another one starts it again.
struct WatchRun(Arc<KnownSentinels>);

impl Drop for WatchRun {
    fn drop(&mut self) {
        self.0.seen.send_replace(None);
    }
}

async fn keep_watching(run: WatchRun) {
    let known = &run.0;
    let asks = async {
        loop {
            sleep(ASK_EVERY).await;
            known.look().await;
        }
    };
    let listens = join_all((0..known.targets.len()).map(async |sentinel| {
        loop {
            // A sentinel that cannot be listened to may be asked all the same.
            let _ = known.listen(sentinel).await;
            sleep(ASK_EVERY.mul_f64(0.5 + fastrand::f64())).await;
        }
    }));
    tokio::join!(asks, listens);
}

impl KnownSentinels {
    /// Listens to a sentinel until its connection ends.
    async fn listen(&self, sentinel: usize) -> Result<(), RedisError> {
        let listening = async {
            let mut pubsub: PubSub = open_pubsub(&self.targets[sentinel]).await?;
            pubsub.subscribe(&ANNOUNCEMENTS[..]).await?;
            Ok::<_, RedisError>(pubsub)
        };
        let Ok(pubsub) = timeout(LISTEN_LIMIT, listening).await else { return Ok(()) };
        let mut messages = pubsub?.into_on_message();
        while let Some(message) = messages.next().await {
            let text: String = message.get_payload().unwrap_or_default();
            if !text.split(' ').any(|word| word == self.master_name()) {
                continue;
            }
            if let Ok(address) = self.ask(sentinel, LISTEN_LIMIT).await {
                self.look_at(address).await;
            }
        }
        Ok(())
    }

    /// Asks for the master, and tells that the watch is alive.
    async fn look(&self) {
        match self.locate().await {
            Ok((address, _)) => self.look_at(address).await,
            Err(_) => self.seen.send_modify(|_| ()),
        }
    }

    /// Makes an address that a sentinel named known, if the server there is a master.
    async fn look_at(&self, address: HostPort) {
        let is_known = self.seen.borrow().as_ref() == Some(&address);
        if is_known || self.is_master(address.clone()).await {
            self.seen.send_replace(Some(address));
        }
    }
}

/// Reports when a connection must go to another master.
#[derive(Clone)]
pub(in super::super) struct MasterWatch {
    shared: Arc<SharedWatch>,
    seen: watch::Receiver<Option<HostPort>>,
    address: HostPort,
    named_by: usize,
}

impl MasterWatch {
    pub(super) fn new(
        shared: Arc<SharedWatch>,
        seen: watch::Receiver<Option<HostPort>>,
        address: HostPort,
        named_by: usize,
    ) -> Self {
        Self { shared, seen, address, named_by }
    }

    /// Completes when the sentinels name another server, and that server is a master.
    ///
    /// The connection stays while no sentinel replies, or the server that is named cannot be used.
    /// Nothing is lost if a call is dropped.
    pub(in super::super) async fn outdated(&mut self) {
        loop {
            self.look().await;
            let now = self.seen.borrow_and_update().clone();
            match now {
                Some((host, port)) if (&*host, port) != (&*self.address.0, self.address.1) => {
                    info!(%host, port, "the sentinels name another master");
                    return;
                }
                Some(_) => {}
                // The runtime of the watch may have ended.
                None => self.shared.start(),
            }
        }
    }

    /// Waits for a look of the watch. Looks by itself if there is none.
    async fn look(&mut self) {
        // The sender lives as long as this.
        if timeout(SILENCE, self.seen.changed()).await.is_err() {
            self.shared.start();
            self.shared.known.look().await;
        }
    }

    /// Reports that the server could not be used, so that the next sentinel is asked first.
    pub(in super::super) fn report_failure(&self) {
        self.shared.known.distrust(self.named_by);
    }
}
