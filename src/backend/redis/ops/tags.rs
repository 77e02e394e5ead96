//! The tags of a namespace. All of their keys are in one cluster slot.

use std::sync::Arc;

use redis::Value;

use super::{super::RedisBackend, millis, replies};
use crate::{
    backend::{
        TAG_LIFE, TagEnd, TagEnds,
        redis::{
            keys,
            scripts::{Call, SCRIPTS, write_key},
        },
    },
    error::BackendError,
    key::Name,
};

impl RedisBackend {
    /// Returns the last tag number. A namespace without one begins to count.
    pub(super) async fn last_tag_number(&self, tags: &Name) -> Result<u64, BackendError> {
        let key = tags.suffixed(keys::TAG_NUMBER);
        let last = self.0.servers.run(redis::cmd("GET").arg(&key), &key).await?;
        let number = match &last {
            Value::BulkString(text) => {
                std::str::from_utf8(text).ok().and_then(|it| it.parse().ok())
            }
            _ => None,
        };
        match number {
            Some(number) => Ok(number),
            None => {
                let call = Call::new(&SCRIPTS.end_tag, 1)
                    .keys(tags, &[keys::TAG_NUMBER])
                    .arg(millis(TAG_LIFE));
                self.checked(replies::fence(self.0.servers.call(call).await?))
            }
        }
    }

    pub(super) async fn ends_of_tags(
        &self,
        tags: &Name,
        which: &[Arc<str>],
    ) -> Result<Vec<TagEnds>, BackendError> {
        let mut read = redis::cmd("MGET");
        for tag in which {
            write_key(&mut read, tags, &keys::tag(tag));
        }
        // What cannot be read may be an end.
        let unread = TagEnds { ended: u64::MAX, expired: 0 };
        let ends = |value: &Value| match value {
            Value::BulkString(text) => TagEnds::decode(text).unwrap_or(unread),
            _ => TagEnds::default(),
        };
        match self.0.servers.run(&read, tags.prefix()).await? {
            Value::Array(values) if values.len() == which.len() => {
                Ok(values.iter().map(ends).collect())
            }
            other => self.checked(Err(replies::unreadable(&other))),
        }
    }

    pub(super) async fn give_next_number(
        &self,
        tags: &Name,
        tag: &str,
        end: TagEnd,
    ) -> Result<u64, BackendError> {
        let call = Call::new(&SCRIPTS.end_tag, 2)
            .keys(tags, &[keys::TAG_NUMBER, &keys::tag(tag)])
            .arg(millis(TAG_LIFE))
            .arg(u8::from(end == TagEnd::Expired))
            .arg(self.tiers(tags))
            .arg(format!("{}i", tags.prefix_of_sibling(tag)));
        self.checked(replies::fence(self.0.servers.call(call).await?))
    }
}
