//! `mark`: shows or removes the mark of a job. The mark is the last tick that was begun, and keeps
//! all earlier ticks from running.

use std::time::{Duration, SystemTime};

use bellwether::{
    key::Escaped,
    lock::{Job, JobMark},
};
use serde_json::{Value, json};

use crate::{Exit, Failure, Server, ask, show};

/// Whether and how the mark is removed.
#[derive(Clone, Copy)]
pub(crate) struct Removal {
    /// The mark is removed. Otherwise the mark is only shown.
    pub(crate) is_wanted: bool,
    /// The user is not asked before the removal.
    pub(crate) skips_question: bool,
}

/// Returns a job of this name. All ticks of a name share one mark, so any tick will do.
pub(crate) fn job(server: &Server, name: &str) -> Result<Job, Failure> {
    Ok(server.locks()?.once(name, SystemTime::UNIX_EPOCH))
}

/// Shows the mark of a job, and removes it after a question.
pub(crate) async fn examine(
    server: &Server,
    name: &str,
    removal: Removal,
    is_json: bool,
) -> Result<Exit, Failure> {
    let job = job(server, name)?;
    let mark = job.mark().await?;
    let was_removed = match mark {
        Some(mark) if removal.is_wanted => remove(&job, name, mark, removal.skips_question).await?,
        _ => false,
    };
    if is_json {
        show::print_json(&json!({
            "name": name,
            "mark": as_json(mark),
            "removed": was_removed,
        }))?;
    } else if let Some(mark) = mark {
        let act = if was_removed { "removed: " } else { "" };
        if was_removed || !removal.is_wanted {
            show::print(&format!("{act}{}: {}", Escaped(name), words(&mark)))?;
        }
    } else {
        let namespace = &server.namespace;
        let why = "no process has begun a tick, or the mark has expired or was removed";
        show::warn(&format!("{} has no mark in the namespace {namespace}: {why}", Escaped(name)));
    }
    let is_well = mark.is_some() && was_removed == removal.is_wanted;
    Ok(if is_well { Exit::Well } else { Exit::Nothing })
}

/// Removes the mark that the user was shown. Another mark stays, because its tick would run twice.
async fn remove(
    job: &Job,
    name: &str,
    shown: JobMark,
    skips_question: bool,
) -> Result<bool, Failure> {
    let escaped = Escaped(name);
    if !skips_question {
        let mark = words(&shown);
        let effect = "Then any tick may begin, also a tick that has run.";
        let question = format!("{escaped}: {mark}\n{effect}");
        ask(&question, &format!("Remove the mark of {escaped}"))?;
    }
    let was_removed = job.clear_mark_if(shown).await?;
    if !was_removed {
        show::warn(&format!("{escaped} has another mark by now, which stays, or has no mark"));
    }
    Ok(was_removed)
}

/// Returns the words for a mark in a line.
pub(crate) fn words(mark: &JobMark) -> String {
    // The mark of an id has the tick 0. So has the mark of a tick at the beginning of 1970.
    if mark.tick == SystemTime::UNIX_EPOCH {
        let state = if mark.is_done { "is done" } else { "was begun and is not done" };
        return format!("this id, or the tick of 1970, {state}");
    }
    let ahead = ahead(mark);
    if ahead.is_zero() {
        return format!("last tick {mark}");
    }
    // The text of a mark that lies ahead ends with the time of the server.
    format!("last tick {mark}, by {}; no earlier tick runs", show::time(ahead))
}

/// Returns how far a mark is ahead of the server's time.
fn ahead(mark: &JobMark) -> Duration {
    mark.tick.duration_since(mark.server_time).unwrap_or_default()
}

/// Returns a mark, or the lack of a mark, as JSON. A mark that could not be read is `null` instead.
pub(crate) fn as_json(mark: Option<JobMark>) -> Value {
    let Some(mark) = mark else { return json!({ "set": false }) };
    json!({
        "set": true,
        "tick_ms": since_1970(mark.tick),
        "done": mark.is_done,
        "server_time_ms": since_1970(mark.server_time),
        "ahead_ms": show::millis(ahead(&mark)),
    })
}

fn since_1970(time: SystemTime) -> u64 {
    show::millis(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}
