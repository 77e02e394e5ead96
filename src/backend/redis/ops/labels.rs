//! The labels of processes, which tell an operator where a lock is held.

use redis::{Cmd, Value};

use super::{super::RedisBackend, replies};
use crate::{
    backend::{Mode, Need, Owner, redis::keys},
    error::BackendError,
    key::Name,
};

/// How long a label is kept: a day.
const LABEL_MS: u32 = 86_400_000;

impl RedisBackend {
    pub(super) async fn set_label(&self, name: &Name, label: &str) -> Result<(), BackendError> {
        let key = keys::label(name, &Owner::process());
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(label).arg("PX").arg(LABEL_MS);
        self.0.servers.run(&set, &key).await.map(drop)
    }

    /// Reads the holder, and then the label of its process.
    pub(super) async fn label_of_holder(
        &self,
        name: &Name,
        mode: Mode,
    ) -> Result<Option<String>, BackendError> {
        if mode.need() != Need::Sole {
            return Ok(None);
        }
        let sole = keys::semaphore(mode.into()).sole;
        let Some(lease) = self.text_at(&name.suffixed(sole)).await? else { return Ok(None) };
        let Some((owner, _)) = lease.split_once(':') else { return Ok(None) };
        match owner.parse::<Owner>() {
            Ok(_) => self.text_at(&keys::label(name, &owner[..16])).await,
            Err(_) => Ok(None),
        }
    }

    pub(super) async fn text_at(&self, key: &str) -> Result<Option<String>, BackendError> {
        match self.0.servers.run(Cmd::new().arg("GET").arg(key), key).await? {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => Ok(String::from_utf8(bytes).ok()),
            other => self.checked(Err(replies::unreadable(&other))),
        }
    }
}
