//! Watches for another master, once for all connections of a backend.
//!
//! Each sentinel announces a failover that it takes part in, and is then asked at once. In case an
//! announcement is lost, the sentinels are also asked every second. A master that they have
//! replaced may live on and accept writes that will be lost, and its connections do not break.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, future::join_all};
use redis::{RedisError, aio::PubSub};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::info;

use super::{super::stream::open_pubsub, HostPort, known::KnownSentinels};

/// How often the sentinels are asked.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long it may take to listen to a sentinel.
const LISTEN_LIMIT: Duration = Duration::from_secs(1);
/// The announcements of a failover. A replica that was promoted is the master already, although the
/// sentinels announce the switch only when the other replicas follow it.
const ANNOUNCEMENTS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// A run of the task. When it ends with its runtime, the next connection starts it again.
pub(super) struct WatchRun(pub(super) Arc<KnownSentinels>);

impl Drop for WatchRun {
    fn drop(&mut self) {
        self.0.seen.send_replace(None);
    }
}

pub(super) async fn keep_watching(run: WatchRun) {
    let known = &run.0;
    let asks = async {
        loop {
            sleep(ASK_EVERY).await;
            if let Ok((address, _)) = known.locate().await {
                known.look_at(address).await;
            }
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
            if let Ok(Ok(address)) = timeout(LISTEN_LIMIT, self.ask(sentinel)).await {
                self.look_at(address).await;
            }
        }
        Ok(())
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
pub(in super::super) struct MasterWatch {
    sentinels: Arc<KnownSentinels>,
    seen: watch::Receiver<Option<HostPort>>,
    address: HostPort,
    named_by: usize,
}

impl MasterWatch {
    pub(super) fn new(
        sentinels: Arc<KnownSentinels>,
        seen: watch::Receiver<Option<HostPort>>,
        address: HostPort,
        named_by: usize,
    ) -> Self {
        Self { sentinels, seen, address, named_by }
    }

    /// Completes when the sentinels name another server, and that server is a master.
    ///
    /// The connection stays while no sentinel replies, or the server that is named cannot be used.
    pub(in super::super) async fn outdated(mut self) {
        while self.seen.changed().await.is_ok() {
            let now = self.seen.borrow_and_update().clone();
            if let Some((host, port)) = now.filter(|now| *now != self.address) {
                info!(%host, port, "the sentinels name another master");
                return;
            }
        }
        std::future::pending().await
    }

    /// Reports that the server could not be used, so that the next sentinel is asked first.
    pub(in super::super) fn report_failure(self) {
        self.sentinels.distrust(self.named_by);
    }
}
