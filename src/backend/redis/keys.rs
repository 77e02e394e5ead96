//! The names of Redis keys and channels.
//!
//! All keys of one [`Name`](crate::key::Name) share one cluster slot:
//! `namespace:family:{name}:suffix`. Each script names the keys that it touches in its `KEYS`.
//!
//! | suffix | type | holds |
//! |---|---|---|
//! | `e` | string, PX | the [entry](crate::backend::Entry); `e1`, `e2`, … those of other schemas |
//! | `t` and an owner | string, PX | a large entry on its way to `e`, for 10 s at most |
//! | `l` | string, PX | the lease: `owner:fence`, and the ids of processes that wait for a load |
//! | `lp` | set, PX | the ids for which `l` has no room |
//! | `b` | string, PX | the failed loads after which a name backs off |
//! | `f` | string, PX | the last fence granted or burnt; `:c` follows a committed one |
//! | `q` | sorted set | the queue of a mutex: the tickets of claims that are held to their order |
//! | `u` | sorted set | the same of the other claims |
//! | `m` | string, PX | stands if a process that may not publish holds the lock or waits for it |
//! | `d` | sorted set | until when each process keeps its entries in `q`, `u`; `look` beside `m` |
//! | `w` | string, PX | the writer's lease, as `l` |
//! | `r` | sorted set | the readers, and the deadline of each |
//! | `rq`, `rd` | sorted sets | the queue of a read-write lock, as `q` and `d` |
//! | `i` | sorted set | the tickets of the writers in that queue |
//! | `p` | sorted set | the permits that are out, and the deadline of each |
//! | `o` | string, PX | the label of a process; its name is the first half of its owner ids |
//! | `pq`, `pd` | sorted sets | the queue for permits, as `q` and `d`, of `owner:count:limit` |
//! | `n` | hash, PX | a latch: what is left, its id, its time to live, and the ids of its steps |
//! | `c` | channel | wake-ups and results; `c@3` for database 3, because databases share channels |
//! | `s` | channel | the same in a cluster, as a shard channel |
//!
//! A sorted set expires with its last member.
//!
//! At a single server, a process has one channel for all locks of one namespace and family:
//! `namespace:family:p:` and the first half of its owner ids, or `p@3:` for database 3. A backend
//! has one for all entries of one namespace, which ends with an id of its own. All backends share
//! `namespace:c:p:all`, and none listens to `namespace:c:p:rights`. Messages on them begin with the
//! [prefix](crate::key::Name::prefix) of the name. In a cluster, a process has a channel for each
//! name: `s:` and the first half of its owner ids.

use std::sync::{Arc, PoisonError, RwLock, atomic::AtomicBool};

use hashbrown::HashMap;

use crate::{backend::Owner, key::Name};

pub(super) const STAGED: &str = "t";
pub(super) const LEASE: &str = "l";
pub(super) const PROCESSES: &str = "lp";
pub(super) const FAILURE: &str = "b";
pub(super) const FENCE: &str = "f";
pub(super) const QUEUE: &str = "q";
pub(super) const UNORDERED: &str = "u";
pub(super) const DEADLINES: &str = "d";
pub(super) const WRITER: &str = "w";
pub(super) const READERS: &str = "r";
pub(super) const RW_QUEUE: &str = "rq";
pub(super) const RW_DEADLINES: &str = "rd";
pub(super) const WAITING_WRITERS: &str = "i";
pub(super) const PERMITS: &str = "p";
pub(super) const PERMIT_QUEUE: &str = "pq";
pub(super) const PERMIT_DEADLINES: &str = "pd";
pub(super) const LATCH: &str = "n";

/// Returns the suffix of channels at a single server.
pub(super) fn channel(database: i64) -> String {
    match database {
        0 => "c".to_owned(),
        database => format!("c@{database}"),
    }
}

/// Returns the suffix of channels in a cluster, by which the scripts know that they are shard
/// channels.
pub(super) fn shard_channel() -> String {
    "s".to_owned()
}

/// Returns the channel of this process for a name in a cluster, which belongs to the channel of the
/// name.
pub(super) fn own_shard_channel(channel: &str) -> Arc<str> {
    format!("{channel}:{}", Owner::process()).into()
}

/// The channels of this process at a single server.
pub(super) struct ProcessChannels {
    /// The text behind the namespace and the family.
    start: String,
    /// The id of the backend.
    pub(super) id: String,
    /// Those that were needed so far, by their namespace and family.
    known: RwLock<HashMap<Box<str>, Arc<ScopeChannels>>>,
}

/// The channels of this process for one namespace and family.
pub(super) struct ScopeChannels {
    /// For claims that wait in a queue: scripts find it by the owner of a claim.
    pub(super) queued: Arc<str>,
    /// For claims of entries, which register the id of their backend.
    pub(super) registered: Arc<str>,
    /// For the claims of entries of all processes, whose registrations may be lost.
    pub(super) common: Arc<str>,
    /// The server was asked for them.
    pub(super) is_wanted: AtomicBool,
}

impl ProcessChannels {
    pub(super) fn new(database: i64) -> Self {
        let start = format!("p{}:", &channel(database)[1..]);
        let id = Owner::fresh().to_string().split_off(16);
        Self { start, id, known: RwLock::default() }
    }

    /// Returns how the channels of all processes begin, for the namespace and family of a name.
    pub(super) fn start(&self, name: &Name) -> String {
        format!("{}{}", scope(name), self.start)
    }

    /// Returns the channels for the namespace and family of a name.
    pub(super) fn of(&self, name: &Name) -> Arc<ScopeChannels> {
        let scope = scope(name);
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(channels) = known.get(scope) {
            return channels.clone();
        }
        drop(known);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.entry(scope.into()).or_insert_with(|| Arc::new(self.named(scope))).clone()
    }

    fn named(&self, scope: &str) -> ScopeChannels {
        let named = |id: &str| format!("{scope}{}{id}", self.start).into();
        ScopeChannels {
            queued: named(&Owner::process()),
            registered: named(&self.id),
            common: named("all"),
            is_wanted: AtomicBool::new(false),
        }
    }
}

/// Returns the namespace and the family of a name, as its prefix begins.
fn scope(name: &Name) -> &str {
    // A namespace has no brace.
    name.prefix().split('{').next().unwrap_or_default()
}

/// Returns the key of the label of a process in the namespace and family of a name.
pub(super) fn label(name: &Name, process: &str) -> String {
    format!("{}{{{process}}}:o", scope(name))
}

/// Splits a message on the channel of a process into the prefix of a name and the change. Returns
/// `None` for a message on a channel of a name, which is the change.
pub(super) fn split_message<'m>(channel: &str, message: &'m [u8]) -> Option<(&'m str, usize)> {
    if channel.contains('{') {
        return None;
    }
    let end = message.windows(2).position(|pair| pair == b"}:")? + 2;
    Some((std::str::from_utf8(&message[..end]).ok()?, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Family, Key, Namespace};

    #[test]
    fn a_message_of_a_process_begins_with_the_prefix_of_a_name() -> Result<(), crate::Error> {
        for key in ["k", "a{b}:c%", "}:", "ü"] {
            let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from(key), 512)?;
            for database in [0, 3] {
                let channel = ProcessChannels::new(database).of(&name).queued.clone();
                let message = format!("{}w}}:", name.prefix());
                let (topic, at) = split_message(&channel, message.as_bytes()).unwrap_or_default();
                assert_eq!((topic, &message[at..]), (&**name.prefix(), "w}:"));
            }
            let channel = name.suffixed(&channel(0));
            assert_eq!(split_message(&channel, b"w"), None);
        }
        assert_eq!(split_message("bellwether:l:p:0123456789abcdef", b"w"), None);
        Ok(())
    }
}
