use super::Codec;
use crate::backend::{Entry, EntryKind};

/// What an entry is good for.
pub(super) enum Decision<V> {
    /// It is served.
    Fresh(V),
    /// There is none, or none that can be read: load, under the lease. `seen` is the fence of what stands
    /// there, 0 if nothing does.
    Miss { seen: u64 },
    /// What is loaded cannot be shared, so nobody need wait for anybody.
    Uncacheable,
}

/// What an entry is good for, in this process with its schema and codec.
///
/// Without freshness windows an entry that exists is fresh: the server drops it when its time is over.
pub(super) fn decide<V: 'static>(entry: Entry, tag: u32, codec: &dyn Codec<V>) -> Decision<V> {
    match entry.kind {
        EntryKind::Uncacheable => Decision::Uncacheable,
        EntryKind::Value if entry.tag == tag => match codec.decode(entry.payload) {
            Ok(value) => Decision::Fresh(value),
            Err(_) => Decision::Miss { seen: entry.fence },
        },
        EntryKind::Value => Decision::Miss { seen: entry.fence },
    }
}
