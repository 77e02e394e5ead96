//! How locks and entries are shown: as a table for people, or as JSON for scripts.
//!
//! Other programs choose names, labels, tags and texts of failures, so these texts are escaped:
//! [`table`] escapes each cell, and [`Escaped`] a text within a line.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    time::Duration,
};

use bellwether::{
    backend::{Holding, SemaphoreKind},
    cache::{EntryState, Explanation},
    key::{Escaped, acts_on_a_terminal},
    lock::ListedLock,
};
use serde_json::{Value, json};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Prints a text.
///
/// # Errors
///
/// If the reader of the output has gone.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", harmless(text.trim_end()))?;
    out.flush()
}

/// Prints JSON, and escapes the characters that a terminal acts on, because JSON does not escape
/// all of them.
pub(crate) fn print_json(value: &Value) -> io::Result<()> {
    let mut text = String::new();
    for letter in value.to_string().chars() {
        if acts_on_a_terminal(letter) {
            // All such characters are among the first 65,536.
            text.push_str(&format!("\\u{:04x}", u32::from(letter)));
        } else {
            text.push(letter);
        }
    }
    print(&text)
}

/// Prints a line to the error output, if there is a reader.
pub(crate) fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "bellwether: {}", in_line(text));
}

/// Returns a text of another program in one line, without what a terminal would act on.
pub(crate) fn in_line(text: &str) -> String {
    harmless(&text.replace('\n', " "))
}

/// Escapes what a terminal would act on, but for line breaks.
fn harmless(text: &str) -> String {
    let mut harmless = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\n' => harmless.push('\n'),
            letter if acts_on_a_terminal(letter) => harmless.extend(letter.escape_unicode()),
            letter => harmless.push(letter),
        }
    }
    harmless
}

/// Stands where a text was cut.
const CUT: &str = "…";
/// No column is cut to less.
const NARROWEST: usize = 8;

/// Escapes and aligns the cells of a table. The first row is the head.
pub(crate) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    table_within(rows, usize::MAX)
}

/// Returns a table whose lines have at most so many columns. The widest cells are cut.
pub(crate) fn table_within<const N: usize>(rows: &[[String; N]], columns: usize) -> String {
    let mut escaped = Vec::with_capacity(rows.len());
    let mut widths = [0; N];
    for row in rows {
        let row = row.each_ref().map(|cell| Escaped(cell).to_string());
        for (width, cell) in widths.iter_mut().zip(&row) {
            *width = cell.width().max(*width);
        }
        escaped.push(row);
    }
    while widths.iter().sum::<usize>() + 2 * (N - 1) > columns {
        let Some(widest) = widths.iter_mut().max() else { break };
        if *widest <= NARROWEST {
            break;
        }
        *widest -= 1;
    }
    let mut table = String::new();
    for row in &escaped {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let cell = cut(cell, width);
            let pad = width.saturating_sub(cell.width());
            let _ = write!(line, "{cell}{:pad$}  ", "");
        }
        table.push_str(&cut(line.trim_end(), columns));
        table.push('\n');
    }
    table
}

/// Cuts a text to so many columns. The middle of the text is left out, because names differ at
/// their ends.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let left = columns.saturating_sub(CUT.width());
    let tail_width = left / 3;
    let mut tail: Vec<_> = taken(text.chars().rev(), tail_width);
    tail.reverse();
    let head = taken(text.chars(), left - tail_width);
    let head: String = head.into_iter().collect();
    let tail: String = tail.into_iter().collect();
    format!("{head}{CUT}{tail}")
}

/// Returns the first characters that fit into so many columns.
fn taken(letters: impl Iterator<Item = char>, columns: usize) -> Vec<char> {
    let mut left = columns;
    let mut taken = Vec::new();
    for letter in letters {
        let width = letter.width().unwrap_or(0);
        if width > left {
            break;
        }
        left -= width;
        taken.push(letter);
    }
    taken
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

/// Names the holder by its label, its process, or their number.
pub(crate) fn holder(held: &Holding) -> String {
    if held.is_foreign {
        return "data of another program".to_owned();
    }
    match (&held.owner, &held.process) {
        (Some(owner), _) => owner.clone(),
        (None, Some(process)) => format!("process {process}"),
        (None, None) if held.holders == 0 => "nobody".to_owned(),
        (None, None) => format!("{} holders", held.holders),
    }
}

/// The head of a table of locks.
pub(crate) const LOCKS: [&str; 7] =
    ["NAME", "KIND", "HOLDER", "HELD FOR", "LEFT", "WAITING", "FENCE"];

/// Explains a column of the locks, in lines that fit 80 columns.
pub(crate) const WAITING: &str = "\
WAITING of a mutex: processes, and each caller of a fair one;
callers in the holder's process: not known
";

/// Returns a table of locks, whose lines have at most so many columns.
pub(crate) fn locks(locks: &[ListedLock], columns: usize) -> String {
    let mut rows = vec![LOCKS.map(str::to_owned)];
    rows.extend(locks.iter().map(lock_row));
    let mut shown = table_within(&rows, columns);
    if locks.iter().any(|lock| lock.kind == SemaphoreKind::Mutex && lock.held.holders > 0) {
        shown += WAITING;
    }
    shown
}

pub(crate) fn lock_row(lock: &ListedLock) -> [String; 7] {
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
}

pub(crate) fn no_lock(namespace: &str) -> String {
    format!("no lock is held or waited for in the namespace {namespace}")
}

pub(crate) fn explanation(namespace: &str, key: &str, explained: &Explanation) -> String {
    let state = match explained.state {
        EntryState::Missing => format!("missing in the namespace {namespace}"),
        _ => state(explained),
    };
    let mut facts = Vec::new();
    if let Some(entry) = &explained.entry {
        let age = entry.age.map_or_else(String::new, |age| format!("{} ago, ", time(age)));
        let bytes = size(explained.bytes as u64);
        facts.push(("stored", format!("{age}{bytes}, fence {}", entry.fence)));
        facts.push(("load took", time(entry.cost)));
        if let Some(windows) = entry.windows {
            let fresh = time(windows.fresh);
            let stale = time(windows.stale);
            let error = time(windows.error);
            let text = format!("fresh {fresh}, then stale {stale}, for failures {error}");
            facts.push(("windows", text));
        }
        if let Some(tagged) = &entry.tagged {
            facts.push(("tags", tagged.tags.join(", ")));
        }
    }
    let load = &explained.load;
    let now = match load.holders {
        0 => "none".to_owned(),
        _ => format!("{load}; callers in its own process: not known"),
    };
    facts.push(("load now", now));
    if let Some((back_off, failure)) = &load.failed {
        let next = match back_off.wait {
            wait if wait.is_zero() => "the next caller loads".to_owned(),
            wait => format!("no process loads for {}", time(wait)),
        };
        let failure = failure.message();
        let text = format!("{} loads in a row; {next}: {failure}", back_off.failures);
        facts.push(("failed", text));
    }
    let mut lines = vec![[key.to_owned(), state]];
    for (what, text) in facts {
        lines.push([format!("  {what}"), text]);
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
        "foreign": held.is_foreign,
    })
}

pub(crate) fn locks_json(locks: &[ListedLock]) -> Value {
    let locks = locks.iter().map(lock_json);
    Value::Array(locks.collect())
}

pub(crate) fn lock_json(lock: &ListedLock) -> Value {
    let mut fields = held_json(&lock.held);
    fields["name"] = lock.name.clone().into();
    fields["kind"] = lock.kind.to_string().into();
    fields
}

pub(crate) fn explanation_json(key: &str, explained: &Explanation) -> Value {
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
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
