//! `mark`: the last tick of a job that was begun, which keeps all earlier ticks from running.

use std::time::{Duration, SystemTime};

use bellwether::{
    key::Escaped,
    lock::{Job, JobMark},
};
use serde_json::{Value, json};

use crate::{Exit, Failure, Server, ask, show};

/// How the mark is removed.
#[derive(Clone, Copy)]
pub(crate) struct Removal {
    /// The mark is removed, and not only shown.
    pub(crate) is_wanted: bool,
    /// The mark is removed without a question.
    pub(crate) is_confirmed: bool,
}

/// Returns the job of a name, whatever its schedule is. All ticks of a name have one mark.
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
        Some(mark) if removal.is_wanted => remove(&job, name, mark, removal.is_confirmed).await?,
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
        let why = "no process has begun a tick within 30 days, or its mark was removed";
        show::warn(&format!("{} has no mark in the namespace {namespace}: {why}", Escaped(name)));
    }
    let is_well = mark.is_some() && was_removed == removal.is_wanted;
    Ok(if is_well { Exit::Well } else { Exit::Nothing })
}

/// Removes a mark, if it is still the one that the user was shown.
async fn remove(
    job: &Job,
    name: &str,
    shown: JobMark,
    is_confirmed: bool,
) -> Result<bool, Failure> {
    let escaped = Escaped(name);
    if !is_confirmed {
        let mark = words(&shown);
        let effect = "Any tick may begin then, also one that has run.";
        let question = format!("{escaped}: {mark}\n{effect}");
        ask(&question, &format!("Remove the mark of {escaped}"))?;
    }
    // A tick that began while the user read the question would run twice.
    let is_same = match job.mark().await? {
        Some(now) => (now.tick, now.is_done) == (shown.tick, shown.is_done),
        None => false,
    };
    if !is_same {
        show::warn(&format!("{escaped} has another mark by now, which stays, or has none"));
        return Ok(false);
    }
    let was_there = job.clear_mark().await?;
    if !was_there {
        show::warn(&format!("{escaped} has no mark any more"));
    }
    Ok(was_there)
}

/// Returns the words for a mark in a line.
pub(crate) fn words(mark: &JobMark) -> String {
    // The mark of an id has the tick 0.
    if mark.tick == SystemTime::UNIX_EPOCH {
        let state = if mark.is_done { "is done" } else { "was begun and is not done" };
        return format!("this id {state}");
    }
    let ahead = ahead(mark);
    if ahead.is_zero() {
        return format!("last tick {mark}");
    }
    // The words of the mark end with the time of the server.
    format!("last tick {mark}, by {}; no earlier tick runs", show::time(ahead))
}

/// Returns how far a mark is ahead of the server's time.
fn ahead(mark: &JobMark) -> Duration {
    mark.tick.duration_since(mark.server_time).unwrap_or_default()
}

/// Returns a mark that is known. What is not known is `null`.
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
