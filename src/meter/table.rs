//! All metrics: the kind, the unit and the description of each metric.
//!
//! A test compares this table with `docs/metrics.md`.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// How the values of several caches, or of several engines of locks, are merged into one value.
#[derive(Clone, Copy)]
pub(super) enum Merge {
    Sum,
    Least,
    Greatest,
    /// The least value, or zero if there is none.
    Shortest,
}

enum Kind {
    Counter,
    Gauge(Merge),
    Histogram,
}

struct Metric {
    name: &'static str,
    kind: Kind,
    help: &'static str,
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, help }
}

const fn gauge(name: &'static str, merge: Merge, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge(merge), help }
}

const fn histogram(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram, help }
}

const METRICS: &[Metric] = &[
    counter("bellwether_requests_total", "callers, by result"),
    counter("bellwether_loads_total", "loaders that were started"),
    counter(
        "bellwether_failures_total",
        "loads that failed, panicked or took too long; HTTP: also those answered with a 5xx",
    ),
    counter("bellwether_refreshes_total", "loads beside the old value"),
    histogram("bellwether_load_seconds", "time of a loader, by result: value, error"),
    histogram(
        "bellwether_wait_seconds",
        "time from a miss to its value, once for callers of a process that wait together, or one \
         that loads alone, by result: led, received, hit, stale, degraded, alone, error",
    ),
    histogram(
        "bellwether_wake_up_seconds",
        "time from the push that ended a wait to the value or the lock, in the waiting process \
         and with its reread, by result: received, error; acquired for locks",
    ),
    counter("bellwether_stored_total", "loads that were stored, or stored as uncacheable"),
    counter("bellwether_unchanged_total", "loads that found the value unchanged"),
    counter(
        "bellwether_refused_total",
        "values that came after an invalidation, or without the lease",
    ),
    counter("bellwether_unstored_total", "values whose commit failed"),
    counter("bellwether_unstorable_total", "values that are too large, or cannot be encoded"),
    counter("bellwether_undecodable_total", "entries that cannot be decoded"),
    counter("bellwether_backed_off_total", "loads that did not begin, because the key backs off"),
    counter(
        "bellwether_backend_errors_total",
        "questions that the backend refused or did not answer",
    ),
    counter(
        "bellwether_slow_total",
        "callers that got the old value, because the load took longer than they wait",
    ),
    counter("bellwether_unasked_total", "values for ids that were not asked for"),
    counter("bellwether_missed_variant_total", "HTTP: no stored variant fits the request"),
    counter("bellwether_missed_stale_total", "HTTP: the stored response is too old"),
    counter(
        "bellwether_passed_failed_total",
        "HTTP: of passed, requests that the service answered with a 5xx or an error",
    ),
    counter("bellwether_passed_method_total", "HTTP: of passed, by the method"),
    counter(
        "bellwether_passed_header_total",
        "HTTP: of passed, because of a header that the layer does not know to be harmless",
    ),
    counter("bellwether_passed_body_total", "HTTP: of passed, because the request has a body"),
    counter("bellwether_passed_key_total", "HTTP: of passed, because the request has no key"),
    counter(
        "bellwether_passed_switched_total",
        "HTTP: of passed, because the layer is switched off",
    ),
    counter(
        "bellwether_passed_uncacheable_total",
        "HTTP: of passed, because the responses of its key belong to their callers, also as errors",
    ),
    counter("bellwether_passed_overloaded_total", "HTTP: of passed, because too many loads run"),
    counter(
        "bellwether_local_dropped_total",
        "copies that the local tier dropped, because a push named a newer entry",
    ),
    counter(
        "bellwether_local_evicted_total",
        "copies that were dropped because the weight of the local tier and of the outage memory \
         is used up",
    ),
    gauge(
        "bellwether_local_bytes",
        Merge::Sum,
        "weight of the copies of the local tier and of the outage memory",
    ),
    gauge(
        "bellwether_local_capacity_bytes",
        Merge::Sum,
        "greatest weight of the copies of the local tier and of the outage memory",
    ),
    counter(
        "bellwether_local_untrusted_seconds_total",
        "seconds in which the local tier could not rely on its messages, from the first key on \
         that it would keep",
    ),
    histogram(
        "bellwether_local_age_seconds",
        "how long ago the backend was asked for a copy that is served, for one copy in 64",
    ),
    gauge("bellwether_flights", Merge::Sum, "rebuilds under way in this process"),
    gauge(
        "bellwether_deferred_writes",
        Merge::Sum,
        "writes that failed while the backend was away, and wait to be repeated",
    ),
    gauge("bellwether_leases", Merge::Sum, "leases that loads of this process hold"),
    gauge("bellwether_breaker_open", Merge::Sum, "parts of the backend that count as broken"),
    gauge(
        "bellwether_round_trip_seconds",
        Merge::Greatest,
        "time of the last ping of this process to Redis, also with the label locks; 0 while a \
         connection is broken",
    ),
    gauge(
        "bellwether_connected_seconds",
        Merge::Shortest,
        "how long the connections of this process to Redis have stood, also with the label locks",
    ),
    gauge(
        "bellwether_local_trusted",
        Merge::Least,
        "1 while the local tier serves copies without a question; first published when it would \
         keep a copy, and 1 after the end of the cache",
    ),
    gauge(
        "bellwether_local_staleness_seconds",
        Merge::Greatest,
        "how far a copy of the local tier may be behind now",
    ),
    counter("bellwether_locks_acquired_total", "leases that were acquired"),
    counter(
        "bellwether_locks_not_acquired_total",
        "acquisitions that waited, and ended because of other holders",
    ),
    counter("bellwether_locks_taken_total", "tries without a wait that found other holders"),
    counter("bellwether_locks_failed_total", "acquisitions that ended with another error"),
    counter("bellwether_locks_lost_total", "leases that were lost while they were held"),
    counter("bellwether_locks_renewed_total", "renewals"),
    counter("bellwether_locks_unrenewed_total", "renewals without an answer"),
    histogram(
        "bellwether_lock_wait_seconds",
        "time of an acquisition, but not of a job or a candidate, which may wait for days; by \
         result: acquired, taken, error",
    ),
    histogram("bellwether_lock_hold_seconds", "time of a guard, by result: held, lost"),
    gauge(
        "bellwether_job_period_seconds",
        Merge::Greatest,
        "period of a job of every that this process waits for, by schedule, its name",
    ),
    gauge(
        "bellwether_job_last_tick_seconds",
        Merge::Greatest,
        "last tick of a job of every that was begun anywhere, in seconds since 1970, by schedule",
    ),
    gauge(
        "bellwether_leader",
        Merge::Sum,
        "1 in the process whose candidate leads, 0 where one waits, by leader",
    ),
    gauge("bellwether_locks_held", Merge::Sum, "leases that are held"),
    gauge(
        "bellwether_locks_longest_hold_seconds",
        Merge::Greatest,
        "how long the lease that is held for longest has been held",
    ),
    gauge(
        "bellwether_locks_longest_wait_seconds",
        Merge::Greatest,
        "how long the caller that waits for longest has waited, but for jobs and leaders, which \
         wait for long",
    ),
    gauge(
        "bellwether_locks_waiting",
        Merge::Sum,
        "entries of this process in the queues of the server",
    ),
];

/// Describes all metrics to the recorder.
pub(super) fn describe() {
    for Metric { name, kind, help } in METRICS {
        let unit = match *name {
            name if name.contains("_seconds") => Unit::Seconds,
            name if name.ends_with("_bytes") => Unit::Bytes,
            _ => Unit::Count,
        };
        match kind {
            Kind::Counter => describe_counter!(*name, unit, *help),
            Kind::Gauge(_) => describe_gauge!(*name, unit, *help),
            Kind::Histogram => describe_histogram!(*name, unit, *help),
        }
    }
}

pub(super) fn merge_of(name: &str) -> Merge {
    let found = METRICS.iter().find(|metric| metric.name == name);
    match found.map(|metric| &metric.kind) {
        Some(Kind::Gauge(merge)) => *merge,
        _ => Merge::Sum,
    }
}
