//! The state of a name at a server, for a user who looks for the cause of an incident.

use redis::Value;

use super::{super::RedisBackend, replies};
use crate::{
    backend::{
        BackOff, Claimed, Failure, Holding, SemaphoreKind,
        redis::{
            keys,
            scripts::{Call, SCRIPTS},
        },
    },
    error::BackendError,
    key::{Family, Name, Namespace},
};

impl RedisBackend {
    /// Reads who holds a semaphore or loads an entry.
    pub(super) async fn look_into(
        &self,
        name: &Name,
        kind: SemaphoreKind,
    ) -> Result<Holding, BackendError> {
        let (keys, is_entry) = (keys::semaphore(kind), name.family() == Family::Cache);
        let call = Call::new(&SCRIPTS.inspect, 3)
            .keys(name, &[keys.sole, keys.shared, keys.queue])
            .arg(u8::from(is_entry));
        self.checked(replies::held(self.0.servers.call(call).await?))
    }

    /// Searches the keys of locks.
    pub(super) async fn search_locks(
        &self,
        namespace: &Namespace,
    ) -> Result<Vec<(Name, SemaphoreKind)>, BackendError> {
        let pattern = format!("{}:l:{{*", namespace.as_str());
        let keys = self.0.servers.scan(&pattern, |key| lock_at(key).is_some()).await?;
        let named =
            |(prefix, kind)| Some((Name::from_prefix(namespace, Family::Lock, prefix)?, kind));
        Ok(keys.iter().filter_map(|key| lock_at(key)).filter_map(named).collect())
    }

    /// Publishes what this process does, to any client that subscribed.
    pub(super) async fn publish_answer(&self, name: &Name, text: &str) -> Result<(), BackendError> {
        let channel = name.suffixed(keys::ANSWERS);
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(&channel).arg(text);
        self.0.servers.run(&publish, &channel).await.map(drop)
    }

    pub(super) async fn record_of_failures(
        &self,
        name: &Name,
    ) -> Result<Option<(BackOff, Failure)>, BackendError> {
        let call = Call::new(&SCRIPTS.back_off, 1).keys(name, &[keys::FAILURE]);
        match self.0.servers.call(call).await? {
            Value::Nil => Ok(None),
            reply => match self.checked(replies::claimed(reply))? {
                Some(Claimed::BacksOff(back_off, failure)) => Ok(Some((back_off, failure))),
                other => self.checked(Err(replies::unreadable(&other))),
            },
        }
    }
}

/// Returns the prefix of the name and the kind of the lock that a key is a part of.
fn lock_at(key: &str) -> Option<(&str, SemaphoreKind)> {
    let (prefix, suffix) = key.split_at(key.rfind("}:")? + 2);
    let is_of = |kind: &SemaphoreKind| {
        let keys = keys::semaphore(*kind);
        [keys.sole, keys.shared, keys.queue].contains(&suffix)
    };
    Some((prefix, SemaphoreKind::ALL.into_iter().find(is_of)?))
}
