//! How a single server tells local tiers of the changes of entries, as
//! `docs/decisions/local-tier.md` explains. In a cluster, tiers are told nothing.
//!
//! While nothing changes, a tier must know that nothing is on its way. So the backend publishes to
//! itself at intervals, in a script that also writes: a server that refuses writes is not trusted.

use std::{
    sync::{Arc, Mutex, OnceLock, atomic::Ordering},
    time::Duration,
};

use tokio::time::sleep;
use tracing::warn;

use super::super::{
    RedisBackend, RedisInner,
    client::OnDemandTask,
    keys,
    scripts::{Call, SCRIPTS},
};
use crate::{
    error::{BackendErrorKind, Chain},
    key::Name,
    sync::lock,
};

/// The messages of a backend to itself.
#[derive(Default)]
pub(in super::super) struct Heartbeat {
    task: OnDemandTask,
    /// The shortest interval that a tier asked for.
    every: Mutex<Option<Duration>>,
    /// Any name of the scope whose channel is in use.
    name: OnceLock<Name>,
}

impl Heartbeat {
    /// Sets the interval for a new tier, unless it is shorter already.
    pub(super) fn shorten(&self, every: Duration) {
        let mut shortest = lock(&self.every);
        *shortest = Some(shortest.map_or(every, |shortest| shortest.min(every)));
    }
}

impl RedisBackend {
    /// Returns whether the changes of a name are heard. Has its channel opened if it is to be.
    pub(super) fn hears_of(&self, name: &Name, begins: bool) -> bool {
        if !self.0.servers.is_single() {
            return true;
        }
        let (names, channels) = (&self.0.channel_names, &self.0.servers.events.channels);
        let wanted = [names.of_tags(name), names.of_tiers(name)];
        let is_heard = wanted.iter().all(|channel| channels.is_confirmed(channel));
        if !is_heard {
            if !begins || wanted.iter().all(|channel| channels.wants(channel)) {
                return false;
            }
            channels.open(&names.registered(name));
            self.0.heartbeat.name.get_or_init(|| name.clone());
            wanted.into_iter().for_each(|channel| channels.open(&channel.into()));
        }
        // Publishes to this backend, unless a task does so already. It ends with the tiers.
        let inner = Arc::downgrade(&self.0);
        self.0.heartbeat.task.start(|| async move {
            let has_tier = |it: &Arc<RedisInner>| it.servers.events.channels.tell_taps(|_| ());
            while let Some(inner) = inner.upgrade().filter(has_tier)
                && let Some(name) = inner.heartbeat.name.get()
            {
                let call = Call::new(&SCRIPTS.beat, name, &[keys::UNUSED])
                    .arg(&*inner.channel_names.registered(name))
                    .arg(keys::heartbeat());
                if let Err(error) = inner.servers.call(&call).await
                    && error.kind() == BackendErrorKind::Refused
                    && !inner.publish_refused.swap(true, Ordering::Relaxed)
                {
                    let error = Chain(&error);
                    warn!(%error, "Redis refuses DEL or PUBLISH, so local tiers serve little");
                }
                let every = lock(&inner.heartbeat.every).unwrap_or(Duration::from_millis(250));
                drop((call, inner));
                sleep(every).await;
            }
        });
        is_heard
    }
}
