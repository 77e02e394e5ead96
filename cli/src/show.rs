//! How locks and entries are shown: as a table for people, or as JSON for scripts.

use std::{
    io::{self, Write},
    time::Duration,
};

use bellwether::{
    backend::{Holding, SemaphoreKind},
    cache::{EntryState, Explanation},
    lock::ListedLock,
};
use serde_json::{Value, json};

/// Prints a text. A reader that went away wants no more of it.
pub(crate) fn print(text: &str) {
    let _ = writeln!(io::stdout(), "{}", text.trim_end());
}

/// Aligns the cells of a table. The first row is its head.
pub(crate) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}  "));
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    rows.iter().map(line).collect()
}

/// Shows a time with the unit that a reader needs.
pub(crate) fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        0.0 => "0 s".to_owned(),
        _ if seconds < 0.001 => format!("{} us", time.as_micros()),
        _ if seconds < 1.0 => format!("{} ms", time.as_millis()),
        _ if seconds < 120.0 => format!("{seconds:.1} s"),
        _ if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.0} h", seconds / 3600.0),
    }
}

pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes / (1024 * 1024)),
    }
}

/// Returns a URL as it may be shown.
pub(crate) fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => url.to_owned(),
    }
}

/// Names the holder by its label, its process, or their number.
pub(crate) fn holder(held: &Holding) -> String {
    match (&held.owner, &held.process) {
        (Some(owner), _) => owner.clone(),
        (None, Some(process)) => format!("process {process}"),
        (None, None) if held.holders == 0 => "nobody".to_owned(),
        (None, None) => format!("{} holders", held.holders),
    }
}

pub(crate) fn locks(namespace: &str, locks: &[ListedLock]) -> String {
    if locks.is_empty() {
        return format!("no lock is held or waited for in the namespace {namespace}");
    }
    let head = ["NAME", "KIND", "HOLDER", "HELD FOR", "LEFT", "WAITING", "FENCE"];
    let row = |lock: &ListedLock| {
        let held = &lock.held;
        [
            lock.name.clone(),
            lock.kind.to_string(),
            holder(held),
            held.held_for.map_or_else(|| "-".to_owned(), time),
            time(held.expires_in),
            held.waiting.to_string(),
            if held.fence > 0 { held.fence.to_string() } else { "-".to_owned() },
        ]
    };
    let rows = std::iter::once(head.map(str::to_owned)).chain(locks.iter().map(row));
    let mut shown = table(&rows.collect::<Vec<_>>());
    if locks.iter().any(|lock| lock.kind == SemaphoreKind::Mutex && lock.held.holders > 0) {
        shown += "WAITING of a mutex: processes, and each caller of a fair one; callers in the \
                  holder's process: not known\n";
    }
    shown
}

pub(crate) fn explanation(namespace: &str, key: &str, explained: &Explanation) -> String {
    let state = match explained.state {
        EntryState::Missing => format!("missing in the namespace {namespace}"),
        _ => state(explained),
    };
    let mut lines = vec![[key.to_owned(), state]];
    let mut add = |what: &str, text: String| lines.push([format!("  {what}"), text]);
    if let Some(entry) = &explained.entry {
        let age = entry.age.map_or_else(String::new, |age| format!("{} ago, ", time(age)));
        let bytes = size(explained.bytes as u64);
        add("stored", format!("{age}{bytes}, fence {}", entry.fence));
        add("load took", time(entry.cost));
        if let Some(windows) = entry.windows {
            let [fresh, stale, error] = [windows.fresh, windows.stale, windows.error].map(time);
            add("windows", format!("fresh {fresh}, then stale {stale}, for failures {error}"));
        }
        if let Some(tagged) = &entry.tagged {
            add("tags", tagged.tags.join(", "));
        }
    }
    let load = &explained.load;
    let now = match load.holders {
        0 => "none".to_owned(),
        _ => format!("{load}; callers in its own process: not known"),
    };
    add("load now", now);
    if let Some((back_off, failure)) = &load.failed {
        let next = match back_off.wait {
            wait if wait.is_zero() => "the next caller loads".to_owned(),
            wait => format!("no process loads for {}", time(wait)),
        };
        let failure = failure.message();
        add("failed", format!("{} loads in a row; {next}: {failure}", back_off.failures));
    }
    table(&lines)
}

fn state(explained: &Explanation) -> String {
    let state = word(explained.state);
    let remaining = explained.remaining;
    remaining.map_or_else(|| state.to_owned(), |left| format!("{state} for {}", time(left)))
}

fn word(state: EntryState) -> &'static str {
    match state {
        EntryState::Missing => "missing",
        EntryState::Fresh => "fresh",
        EntryState::Stale => "stale",
        EntryState::Fallback => "kept for failures",
        EntryState::Ended => "ended",
        EntryState::Uncacheable => "uncacheable",
        _ => "not known",
    }
}

fn held_json(held: &Holding) -> Value {
    json!({
        "holders": held.holders,
        "owner": held.owner,
        "process": held.process,
        "fence": held.fence,
        "held_for_ms": held.held_for.map(millis),
        "expires_in_ms": millis(held.expires_in),
        "waiting": held.waiting,
    })
}

pub(crate) fn locks_json(locks: &[ListedLock]) -> String {
    Value::Array(locks.iter().map(lock_json).collect()).to_string()
}

pub(crate) fn lock_json(lock: &ListedLock) -> Value {
    let mut fields = held_json(&lock.held);
    fields["name"] = lock.name.clone().into();
    fields["kind"] = lock.kind.to_string().into();
    fields
}

pub(crate) fn explanation_json(key: &str, explained: &Explanation) -> String {
    let entry = explained.entry.as_ref().map(|entry| {
        let tags = entry.tagged.as_ref().map_or(&[][..], |tagged| &tagged.tags);
        json!({
            "fence": entry.fence,
            "age_ms": entry.age.map(millis),
            "bytes": explained.bytes,
            "load_ms": millis(entry.cost),
            "fresh_ms": entry.windows.map(|windows| millis(windows.fresh)),
            "stale_ms": entry.windows.map(|windows| millis(windows.stale)),
            "error_ms": entry.windows.map(|windows| millis(windows.error)),
            "tags": tags.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    });
    let failed = explained.load.failed.as_ref();
    json!({
        "key": key,
        "state": word(explained.state),
        "remaining_ms": explained.remaining.map(millis),
        "entry": entry,
        "load": held_json(&explained.load),
        "failures": failed.map_or(0, |(back_off, _)| back_off.failures),
        "back_off_ms": failed.map(|(back_off, _)| millis(back_off.wait)),
        "failure": failed.map(|(_, failure)| failure.message()),
    })
    .to_string()
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
