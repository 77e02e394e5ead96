//! Advice about settings that are legal and unwise.
//!
//! Each piece of advice is one warning in the log, with the reason. All of them have the target
//! `bellwether::advice`, so the filter `bellwether::advice=off` silences them.

use std::{
    collections::HashMap,
    sync::{
        LazyLock, Mutex, Once,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tracing::warn;

use crate::{backend::Claim, key::Namespace, sync::lock};

/// The target of all advice.
pub(crate) const TARGET: &str = "bellwether::advice";

/// The warning comes when so many fixed leases of one `Locks` have ended under their holders.
const USUAL: u32 = 3;
/// How many namespaces and schemas a process remembers. After that it gives no advice about them.
const MOST_NAMESPACES: usize = 1000;

/// A fixed lease ended before its guard. `ended` counts those of one `Locks`.
pub(crate) fn fixed_lease_ended(ended: &AtomicU32, claim: &Claim) {
    if ended.fetch_add(1, Ordering::Relaxed) + 1 == USUAL {
        warn!(
            target: TARGET, name = %claim.name.key(), lease = ?claim.lease,
            "the work under a lock outlasts its lease, which is not renewed, so another process \
             gets the lock in the middle of it; lengthen the lease, or leave out `fixed_lease`"
        );
    }
}

/// A load took the time `load`, and its value is `served` for so long, fresh or stale.
pub(crate) fn loaded(told: &Once, namespace: &Namespace, load: Duration, served: Duration) {
    if load <= served {
        return;
    }
    told.call_once_force(|_| {
        warn!(
            target: TARGET, namespace = namespace.as_str(), ?load, ?served,
            "a value takes longer to load than it is served, so nearly each caller waits for a \
             load; lengthen the time to live"
        );
    });
}

/// The first type of the values of each namespace and schema, or an empty text once warned.
type Types = HashMap<(String, u16), &'static str>;

/// A cache of a type is built. Its namespace matters over a backend that other processes share.
pub(crate) fn built<V>(is_shared: bool, namespace: &Namespace, schema: u16) {
    static TYPES: LazyLock<Mutex<Types>> = LazyLock::new(Mutex::default);
    let (mut types, second) = (lock(&TYPES), std::any::type_name::<V>());
    if !is_shared || types.len() == MOST_NAMESPACES {
        return;
    }
    let first = types.entry((namespace.as_str().to_owned(), schema)).or_insert(second);
    if *first != second && !first.is_empty() {
        let first = std::mem::take(first);
        warn!(
            target: TARGET, namespace = namespace.as_str(), first, second,
            "two caches with different types of values share a namespace, so each reads the \
             values of the other; give each type a namespace of its own"
        );
    }
}
