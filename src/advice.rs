//! Advice about settings that are legal and unwise.
//!
//! Each piece of advice is one warning in the log, with the reason. All of them have the target
//! `bellwether::advice`, so the filter `bellwether::advice=off` silences them.

use std::{
    collections::HashMap,
    sync::{LazyLock, Mutex},
    time::Duration,
};

use tracing::warn;

use crate::{
    key::{Name, Namespace},
    sync::lock,
};

/// The target of all advice.
pub(crate) const TARGET: &str = "bellwether::advice";

/// How often a fixed lease ends under its holder before that counts as usual.
const USUAL: u32 = 3;
/// How many subjects a process remembers. It gives no advice about further ones.
const MOST_SUBJECTS: usize = 1000;

/// The settings and times that this process has seen.
static SEEN: LazyLock<Mutex<Seen>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Seen {
    /// How often each subject was met.
    met: HashMap<(Topic, String), u32>,
    /// The type of the values of each namespace and schema.
    types: HashMap<(String, u16), &'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Topic {
    FixedLease,
    ShortLife,
    TwoTypes,
}

/// Returns whether a subject is met for the `nth` time.
fn is_met(topic: Topic, subject: &str, nth: u32) -> bool {
    let (met, key) = (&mut lock(&SEEN).met, (topic, subject.to_owned()));
    if met.len() >= MOST_SUBJECTS && !met.contains_key(&key) {
        return false;
    }
    let times = met.entry(key).or_default();
    *times = times.saturating_add(1);
    *times == nth
}

/// Returns the type that a namespace and schema had first in this process.
fn first_type(namespace: &str, schema: u16, kind: &'static str) -> &'static str {
    let (types, key) = (&mut lock(&SEEN).types, (namespace.to_owned(), schema));
    if types.len() >= MOST_SUBJECTS && !types.contains_key(&key) {
        return kind;
    }
    types.entry(key).or_insert(kind)
}

/// A fixed lease ended before its guard was dropped.
pub(crate) fn fixed_lease_ended(name: &Name, lease: Duration) {
    if is_met(Topic::FixedLease, name.prefix(), USUAL) {
        warn!(
            target: TARGET, name = %name.key(), ?lease,
            "the work under a lock outlasts its lease, which is not renewed, so another process \
             gets the lock in the middle of it; lengthen the lease, or leave out `fixed_lease`"
        );
    }
}

/// A load took this long, and its value is served for this long, fresh or stale.
pub(crate) fn loaded(namespace: &Namespace, load: Duration, served: Duration) {
    if load > served && is_met(Topic::ShortLife, namespace.as_str(), 1) {
        warn!(
            target: TARGET, namespace = namespace.as_str(), ?load, ?served,
            "a value takes longer to load than it is served, so nearly each caller waits for a \
             load; lengthen the time to live"
        );
    }
}

/// A cache of a type is built. Its namespace matters over a backend that other processes share.
pub(crate) fn built<V>(is_shared: bool, namespace: &Namespace, schema: u16) {
    let (namespace, kind) = (namespace.as_str(), std::any::type_name::<V>());
    if !is_shared {
        return;
    }
    let first = first_type(namespace, schema, kind);
    if first != kind && is_met(Topic::TwoTypes, namespace, 1) {
        warn!(
            target: TARGET, namespace, first, second = kind,
            "two caches with different types of values share a namespace, so each reads the \
             values of the other; give each type a namespace of its own"
        );
    }
}
