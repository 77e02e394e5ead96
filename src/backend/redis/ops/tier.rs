//! How a single server notifies local tiers of the changes of entries, as
//! `docs/decisions/local-tier.md` explains. A cluster notifies no tier.
//!
//! While no entry changes, a tier must know that no change is on its way. So the backend publishes
//! to itself at intervals. The script that publishes also writes, because a server that refuses
//! writes is not trusted.

use std::{
    sync::{Arc, Mutex, OnceLock, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::time::sleep;
use tracing::warn;

use super::super::{
    RedisBackend, RedisInner,
    client::{OnDemandTask, RunningMark},
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
    /// The shortest interval that a tier needs.
    every: Mutex<Option<Duration>>,
    /// Some name of the scope whose channel is in use.
    name: OnceLock<Name>,
}

impl Heartbeat {
    /// Sets the interval for a new tier, unless the interval is shorter already.
    pub(super) fn shorten(&self, every: Duration) {
        let mut shortest = lock(&self.every);
        *shortest = Some(shortest.map_or(every, |shortest| shortest.min(every)));
    }
}

impl RedisBackend {
    /// Returns whether the local tiers receive the changes of a name. With `begins`, opens the
    /// channels of these changes.
    pub(super) fn hears_of(&self, name: &Name, begins: bool) -> bool {
        if !self.0.servers.is_single() {
            return true;
        }
        let names = &self.0.channel_names;
        let channels = &self.0.servers.events.channels;
        let wanted = [names.of_tags(name), names.of_tiers(name)];
        let is_heard = wanted.iter().all(|channel| channels.is_confirmed(channel));
        if !is_heard {
            if !begins || wanted.iter().all(|channel| channels.is_open(channel)) {
                return false;
            }
            channels.open(&names.registered(name));
            self.0.heartbeat.name.get_or_init(|| name.clone());
            for channel in wanted {
                channels.open(&channel.into());
            }
        }
        // At most one task publishes to this backend.
        let inner = Arc::downgrade(&self.0);
        self.0.heartbeat.task.start(|mark| publish_to_itself(inner, mark));
        is_heard
    }
}

/// Publishes heartbeats at intervals, until the last local tier ends.
async fn publish_to_itself(backend: Weak<RedisInner>, _mark: RunningMark) {
    while let Some(inner) = backend.upgrade() {
        let every = lock(&inner.heartbeat.every).unwrap_or(Duration::from_millis(250));
        if !inner.servers.events.channels.has_taps() {
            return;
        }
        let Some(name) = inner.heartbeat.name.get() else { return };
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
        drop(call);
        // The task must not keep the backend alive while it sleeps.
        drop(inner);
        sleep(every).await;
    }
}
