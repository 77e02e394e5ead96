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

/// The warning comes when this many fixed leases of one `Locks` have ended under their holders.
const USUAL: u32 = 3;
/// How many namespaces and schemas a process remembers. About further namespaces it gives no
/// advice.
const MOST_NAMESPACES: usize = 1000;

/// A fixed lease ended before its guard. `ended` counts such leases of one `Locks`.
pub(crate) fn fixed_lease_ended(ended: &AtomicU32, claim: &Claim) {
    if ended.fetch_add(1, Ordering::Relaxed) + 1 == USUAL {
        warn!(
            target: TARGET, name = %claim.name.key(), lease = ?claim.lease,
            "the work under a lock outlasts its lease, which is not renewed, so another process \
             gets the lock in the middle of it; lengthen the lease, or leave out `fixed_lease`"
        );
    }
}

/// A load took the time `load`, and its value is served for the time `served`, fresh or stale.
pub(crate) fn loaded(logged: &Once, namespace: &Namespace, load: Duration, served: Duration) {
    if load <= served {
        return;
    }
    logged.call_once_force(|_| {
        warn!(
            target: TARGET, namespace = namespace.as_str(), ?load, ?served,
            "a value takes longer to load than it is served, so nearly each caller waits for a \
             load; lengthen the time to live"
        );
    });
}

/// An early refresh would begin in the first half of the time to live.
pub(crate) fn too_early(namespace: &Namespace, ttl: Duration) {
    warn!(
        target: TARGET, namespace = namespace.as_str(), ?ttl,
        "`early_refresh` is set to more than half of the time to live, and begins at the half; \
         shorten it, or lengthen the time to live"
    );
}

/// A local tier is set over a backend that has its entries in the process.
pub(crate) fn tier_in_process(namespace: &Namespace) {
    warn!(
        target: TARGET, namespace = namespace.as_str(),
        "the backend has its entries in this process, so a `local` tier keeps them a second time; \
         leave the tier out, or use a backend that other processes share"
    );
}

/// A backend in memory has less room than an entry without a value takes.
pub(crate) fn no_room(limit: usize, least: usize) {
    warn!(
        target: TARGET, limit, least,
        "`MemoryBackend::with_weight` has no room for any entry, so each caller loads; raise the \
         weight"
    );
}

/// `serve_stale_after` is set, but the cache keeps no value that could be served after that time.
pub(crate) fn nothing_stands_in(namespace: &Namespace) {
    warn!(
        target: TARGET, namespace = namespace.as_str(),
        "`serve_stale_after` has no effect, because no value is kept to stand in for a slow load; \
         set `stale_if_error`"
    );
}

/// A setting of a layer has a text that cannot be the name of a header.
#[cfg(feature = "http")]
pub(crate) fn no_header(setting: &'static str, name: &str) {
    warn!(
        target: TARGET, setting, name,
        "a setting has no effect, because no header can have this name; correct the name"
    );
}

/// The first type of the values of each namespace and schema, or an empty text once warned.
type Types = HashMap<(String, u16), &'static str>;

/// A cache with values of type `V` is built. Over a backend that other processes share, all caches
/// of a namespace must have one type.
pub(crate) fn built<V>(is_shared: bool, namespace: &Namespace, schema: u16) {
    static TYPES: LazyLock<Mutex<Types>> = LazyLock::new(Mutex::default);
    let mut types = lock(&TYPES);
    if !is_shared || types.len() == MOST_NAMESPACES {
        return;
    }
    let second = std::any::type_name::<V>();
    let shared = (namespace.as_str().to_owned(), schema);
    let first = types.entry(shared).or_insert(second);
    if *first != second && !first.is_empty() {
        let first = std::mem::take(first);
        warn!(
            target: TARGET, namespace = namespace.as_str(), first, second,
            "two caches with different types of values share a namespace, so each reads the \
             values of the other; give each type a namespace of its own"
        );
    }
}
