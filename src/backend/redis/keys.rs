//! The names of Redis keys and channels.
//!
//! `docs/redis.md` lists the keys and their lives, and `docs/decisions/pushes.md` lists the
//! channels. No server ever has the keys `s` (units of a mutex), `pl` (a sole holder of permits)
//! and `x`. A script removes `x` to find out whether the server permits writes.
//!
//! At a single server, a process has one channel for all locks of one namespace and family. A
//! backend has one channel for all entries of one namespace. Messages on these channels begin with
//! the [prefix](crate::key::Name::prefix) of the name. A backend sends `h` and a time on its own
//! channel to itself, for its local tiers. In a cluster, a process has a channel for each name.

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

/// Returns the suffixes of the keys of a semaphore: the sole holder, the shared holders, the queue,
/// and the deadlines of the processes in the queue. The fence is a key of the name.
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
    for kind in SemaphoreKind::ALL {
        let [sole, shared, queue, _] = semaphore(kind);
        if [sole, shared, queue].contains(&suffix) {
            return Some((prefix, kind));
        }
    }
    None
}

/// The names of the channels of one backend.
pub(super) struct ChannelNames {
    /// The suffix of the channel of a name. The scripts recognise the shard channels of a cluster
    /// by `s`.
    pub(super) suffix: String,
    /// The text between the scope and the rest of a process channel. Empty in a cluster, where the
    /// names of all channels of processes are empty.
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

    /// Returns the name of a process channel for a scope.
    fn of_scope(&self, scope: &str, rest: &str) -> String {
        if self.process.is_empty() { String::new() } else { [scope, &self.process, rest].concat() }
    }

    /// Returns the channel on which the local tiers of all processes receive the changes of a name.
    pub(super) fn of_tiers(&self, name: &Name) -> String {
        self.of_scope(name.scope(), &format!("t{}", stripe_of(&name.prefix)))
    }

    /// Returns the channel on which the local tiers receive the invalidated tags of the name's
    /// namespace.
    pub(super) fn of_tags(&self, name: &Name) -> String {
        let scope = name.scope().trim_end_matches(':');
        let (namespace, _family) = scope.rsplit_once(':').unwrap_or_default();
        self.of_scope(&format!("{namespace}:t:"), "t")
    }

    /// Returns the channel of a process for claims in a queue. Scripts derive its name from the
    /// owner of a claim. In a cluster, its name begins with the channel of the name.
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

/// Returns the moment from which the times in heartbeats count.
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

/// Returns the heartbeat that a backend sends to itself at this moment.
pub(super) fn heartbeat() -> String {
    let origin = origin();
    format!("h{}", origin.elapsed().as_micros())
}

/// Returns when the backend sent this heartbeat. Returns `None` for any other message. The time is
/// rounded down.
pub(super) fn heartbeat_sent(message: &[u8]) -> Option<Instant> {
    let digits = std::str::from_utf8(message.strip_prefix(b"h")?).ok()?;
    let micros = digits.parse().ok()?;
    origin().checked_add(Duration::from_micros(micros))
}

/// Returns the prefix of the name that a message is about, and where the change begins. On a
/// channel of a name, the whole message is the change. On the channel of a process, the message
/// begins with the prefix.
pub(super) fn split_message<'m>(channel: &'m str, message: &'m [u8]) -> Option<(&'m str, usize)> {
    if channel.contains('{') {
        let end = prefix_end(channel.as_bytes())?;
        return Some((&channel[..end], 0));
    }
    let end = prefix_end(message)?;
    let prefix = std::str::from_utf8(&message[..end]).ok()?;
    Some((prefix, end))
}

/// Returns where the prefix of a name at the begin of a text ends.
fn prefix_end(text: &[u8]) -> Option<usize> {
    let brace = text.windows(2).position(|pair| pair == b"}:")?;
    Some(brace + 2)
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
