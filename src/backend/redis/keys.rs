//! The names of Redis keys and channels.
//!
//! All keys of one [`Name`](crate::key::Name) share one cluster slot:
//! `namespace:family:{name}:suffix`. Each script names the keys that it touches in its `KEYS`.
//!
//! | suffix | type | holds |
//! |---|---|---|
//! | `e` | string, PX | the [entry](crate::backend::Entry); `e1`, `e2`, … those of other schemas |
//! | `t` and an owner | string, PX | a large entry on its way to `e`, for 10 s at most |
//! | `l` | string, PX | the lease: `owner:fence` |
//! | `f` | string, PX | the last fence granted or burnt; `:c` follows a committed one |
//! | `q`, `d` | sorted sets | the queue of a mutex: tickets, and the deadline of each queue entry |
//! | `w` | string, PX | the writer's lease, as `l` |
//! | `r` | sorted set | the readers, and the deadline of each |
//! | `rq`, `rd` | sorted sets | the queue of a read-write lock, as `q` and `d` |
//! | `i` | sorted set | the tickets of the writers in that queue |
//! | `p` | sorted set | the permits that are out, and the deadline of each |
//! | `n` | hash, PX | a latch: what is left, its id, its time to live, and the ids of its steps |
//! | `c` | channel | wake-ups and results; `c@3` for database 3, because databases share channels |
//! | `s` | channel | the same in a cluster, as a shard channel |
//!
//! A sorted set expires with its last member. A channel of one process has the suffix of the
//! channel and the first half of the process's owner ids: `c:0123456789abcdef`.

use std::sync::Arc;

use crate::backend::Owner;

pub(super) const STAGED: &str = "t";
pub(super) const LEASE: &str = "l";
pub(super) const FENCE: &str = "f";
pub(super) const QUEUE: &str = "q";
pub(super) const DEADLINES: &str = "d";
pub(super) const WRITER: &str = "w";
pub(super) const READERS: &str = "r";
pub(super) const RW_QUEUE: &str = "rq";
pub(super) const RW_DEADLINES: &str = "rd";
pub(super) const WAITING_WRITERS: &str = "i";
pub(super) const PERMITS: &str = "p";
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

/// Returns the channel of this process that belongs to the channel of a name.
pub(super) fn process_channel(channel: &str) -> Arc<str> {
    format!("{channel}:{}", Owner::process()).into()
}
