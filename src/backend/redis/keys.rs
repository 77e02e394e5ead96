//! The names of Redis keys and channels.
//!
//! `docs/redis.md` lists the keys and for how long they live, `docs/decisions/pushes.md` the
//! channels. No server ever has the keys `s` (units of a mutex), `pl` (a sole holder of permits),
//! and `x`, which a server that takes no writes refuses to remove.
//!
//! At a single server, a process has one channel for all locks of one namespace and family, and a
//! backend one for all entries of one namespace. Messages on them begin with the
//! [prefix](crate::key::Name::prefix) of the name. A backend sends itself `h` and a time on its own
//! channel, for its local tiers. In a cluster, a process has a channel for each name.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    backend::{ProcessId, SemaphoreKind, stripe_of},
    key::Name,
};

pub(super) const STAGED: &str = "t";
pub(super) const LEASE: &str = "l";
pub(super) const FAILURE: &str = "b";
pub(super) const FENCE: &str = "f";
pub(super) const MARK: &str = "m";
pub(super) const LATCH: &str = "n";
pub(super) const TAG_NUMBER: &str = "n";
/// The suffix of a key that is never there.
pub(super) const UNUSED: &str = "x";
/// The suffix of the channel on which processes answer `bellwether top`.
pub(super) const ANSWERS: &str = "a";

pub(super) fn tag(tag: &str) -> String {
    format!("g{tag}")
}

/// Returns the suffixes of the keys of a semaphore: its sole holder, its shared holders, its queue,
/// and the deadlines of the processes in that. The fence belongs to the name.
pub(super) fn semaphore(kind: SemaphoreKind) -> [&'static str; 4] {
    match kind {
        SemaphoreKind::Mutex => [LEASE, "s", "q", "d"],
        SemaphoreKind::ReadWrite => ["w", "r", "rq", "rd"],
        SemaphoreKind::Permits => ["pl", "p", "pq", "pd"],
    }
}

/// Returns the prefix of the name and the kind of the lock that a key is a part of.
pub(super) fn lock_at(key: &str) -> Option<(&str, SemaphoreKind)> {
    let (prefix, suffix) = key.split_at(key.rfind("}:")? + 2);
    let is_of = |kind: &SemaphoreKind| semaphore(*kind)[..3].contains(&suffix);
    Some((prefix, SemaphoreKind::ALL.into_iter().find(is_of)?))
}

pub(super) struct ChannelNames {
    /// The suffix of the channel of a name. The scripts know shard channels of a cluster by `s`.
    pub(super) suffix: String,
    /// What the channels of processes have behind their scope. It is empty in a cluster, as all
    /// names are that only a single server has.
    process: String,
    /// The id of the backend, which claims of entries register.
    pub(super) id: String,
}

impl ChannelNames {
    /// Returns the names at a single server with this database, or in a cluster.
    pub(super) fn new(database: Option<i64>) -> Self {
        let Some(database) = database else {
            return Self { suffix: "s".to_owned(), process: String::new(), id: String::new() };
        };
        let at = if database == 0 { String::new() } else { format!("@{database}") };
        let id = ProcessId::fresh().to_string();
        Self { suffix: format!("c{at}"), process: format!("p{at}:"), id }
    }

    /// Returns a channel of processes, for the names of a scope.
    fn of_scope(&self, scope: &str, rest: &str) -> String {
        if self.process.is_empty() { String::new() } else { [scope, &self.process, rest].concat() }
    }

    /// Returns the channel on which the local tiers of all processes hear of changes of a name.
    pub(super) fn of_tiers(&self, name: &Name) -> String {
        self.of_scope(name.scope(), &format!("t{}", stripe_of(&name.prefix)))
    }

    /// Returns the channel on which they hear of ended tags, in the namespace of a name.
    pub(super) fn of_tags(&self, name: &Name) -> String {
        let namespace = name.scope().trim_end_matches(':').rsplit_once(':');
        self.of_scope(&format!("{}:t:", namespace.unwrap_or_default().0), "t")
    }

    /// Returns the channel of a process for claims in a queue. Scripts find it by the owner of a
    /// claim. In a cluster it belongs to the channel of the name.
    pub(super) fn queued(&self, name: &Name, process: ProcessId) -> Arc<str> {
        if self.process.is_empty() {
            format!("{}:{process}", name.suffixed(&self.suffix)).into()
        } else {
            self.of_scope(name.scope(), &process.to_string()).into()
        }
    }

    /// Returns the channel for claims of entries, which register the id of their backend.
    pub(super) fn registered(&self, name: &Name) -> Arc<str> {
        self.of_scope(name.scope(), &self.id).into()
    }
}

/// Returns the moment from which the times in messages of this process to itself count.
fn origin() -> Instant {
    #[cfg(bellwether_sim)]
    return crate::sim::origin();
    #[cfg(not(bellwether_sim))]
    {
        use std::sync::LazyLock;
        static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
        *ORIGIN
    }
}

/// Returns the message that a backend sends to itself now.
pub(super) fn heartbeat() -> String {
    let origin = origin();
    format!("h{}", origin.elapsed().as_micros())
}

/// Returns when the backend sent a message to itself, if it is one. The time is rounded down.
pub(super) fn heartbeat_sent(message: &[u8]) -> Option<Instant> {
    let micros = std::str::from_utf8(message.strip_prefix(b"h")?).ok()?.parse().ok()?;
    origin().checked_add(Duration::from_micros(micros))
}

/// Returns the prefix of the name that a message is about, and where the change begins. A message
/// on a channel of a name is the change. One on the channel of a process begins with the prefix.
pub(super) fn split_message<'m>(channel: &'m str, message: &'m [u8]) -> Option<(&'m str, usize)> {
    let prefix_in = |text: &[u8]| Some(text.windows(2).position(|pair| pair == b"}:")? + 2);
    if channel.contains('{') {
        return Some((&channel[..prefix_in(channel.as_bytes())?], 0));
    }
    let end = prefix_in(message)?;
    Some((std::str::from_utf8(&message[..end]).ok()?, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Family, Key, Namespace};

    #[test]
    fn a_heartbeat_tells_when_it_was_sent() {
        let message = heartbeat();
        let after = Instant::now();
        let sent = heartbeat_sent(message.as_bytes());
        assert!(sent.is_some_and(|sent| sent <= after && sent.elapsed() < Duration::from_secs(1)));
        assert_eq!(heartbeat_sent(b"hour"), None);
        assert_eq!(heartbeat_sent(b"w"), None);
    }

    #[test]
    fn a_message_of_a_process_begins_with_the_prefix_of_a_name() -> Result<(), crate::Error> {
        for key in ["k", "a{b}:c%", "}:", "ü"] {
            let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from(key), 512)?;
            for database in [0, 3] {
                let channel = ChannelNames::new(Some(database)).queued(&name, ProcessId::of_this());
                let message = format!("{}w}}:", &name.prefix);
                let (topic, at) = split_message(&channel, message.as_bytes()).unwrap_or_default();
                assert_eq!((topic, &message[at..]), (&*name.prefix, "w}:"));
            }
            let channel = name.suffixed(&ChannelNames::new(Some(0)).suffix);
            assert_eq!(split_message(&channel, b"w"), Some((&*name.prefix, 0)));
            let channel = ChannelNames::new(None).queued(&name, ProcessId::of_this());
            assert_eq!(split_message(&channel, b"w"), Some((&*name.prefix, 0)));
        }
        assert_eq!(split_message("bellwether:l:p:0123456789abcdef", b"w"), None);
        Ok(())
    }
}
