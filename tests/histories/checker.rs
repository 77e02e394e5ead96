//! Checks whether a history keeps the promises of the crate.
//!
//! Every operation lies between two times: the call and the answer. If one operation was answered
//! before the call of another operation, the first operation came first. Nothing else is known of
//! the order. An operation may have happened at any time since its call if it failed, or if its
//! process was killed.
//!
//! The rules:
//!
//! - [`Rule::OneLoad`]: two leased loads of a key do not overlap. An overlap is excused if, between
//!   the grants, the key was written or the lease was deleted. An overlap is also excused if the
//!   loss of the older lease was reported, or if the process of the older load did not run when the
//!   newer load began.
//! - [`Rule::OneFlight`]: two loads of a key in one process do not overlap, leased or not. An
//!   overlap is excused if that process had written the key, or ended a tag, while the first load
//!   waited or ran. An overlap is also excused if the loss of the first lease was reported before,
//!   because a load of many keys gives back the lease of a key that no caller waits for. Where
//!   values are refreshed, `OneLoad` alone judges a load under a lease.
//! - [`Rule::Fences`]: a later grant or write has a greater fence, and no two have the same fence.
//! - [`Rule::StoreGoesOn`]: after a greater fence was taken, nothing is stored under a smaller
//!   fence.
//! - [`Rule::NeverBack`]: the fence of a read is not older than the fence of an earlier read,
//!   unless the value stands in for a failure. Some values may not have been stored, so these are
//!   no earlier reads: a value that is not to be stored, a value that the store has refused, a
//!   value whose load a refresh superseded, and the value of a load after a deferred write
//!   of the same process. Another process may take the stored value for younger than such a value.
//! - [`Rule::NotBeforeWrite`]: a read is not answered with a value that was made before a write.
//!   The write must have returned when the read was asked for. An expiry is a write. A value from
//!   before an expiry is served only in place of a load that failed meanwhile. A read during which
//!   the server loses all its data may find no end of a tag.
//! - [`Rule::Local`]: a copy is not older than an act of the same process that returned before the
//!   read was asked for. `NeverBack` and `NotBeforeWrite` hold for a copy as of a moment before the
//!   call, by as much as a local tier may be behind.
//! - [`Rule::Windows`]: a value is read from the store within its windows only. The windows begin
//!   when the value is stored or touched. A read counts by the time at which the caller asked.
//! - [`Rule::Degraded`]: a value that was loaded without a lease stays in its process and is not
//!   stored. Such a value is not older than a local write. After the process has read an answer of
//!   the store for the key, no caller that asks later gets a value that was loaded before that
//!   read. While the store refuses writes, an answer with an older value does not count: the store
//!   has not taken the loaded one.
//! - [`Rule::Remembered`]: in an outage, a process serves a value of the store within its windows
//!   only, and only if the value has a stale window. The value is not older than a local insert or
//!   invalidation, and not older than a value of the store that the process was served before. If
//!   the commit of a load of this process has no answer, the value counts from the landing of that
//!   load.
//! - [`Rule::Deferred`]: after a write that failed and is deferred, the process serves nothing that
//!   was made before the write, from whatever source. An expired value may stand in for a load that
//!   fails or is too slow, as a stored or a remembered value. Unless the process is killed, the
//!   process sends the write again, or a stronger write.
//! - [`Rule::BackOff`]: after a failed load that backs off, no lease of the key is granted until
//!   the time of the back-off is over. An act on the key ends the back-off.
//! - [`Rule::Failure`]: a read fails only if a load of the key failed shortly before, or meanwhile.
//!   The pauses of the loading process do not count.
//! - [`Rule::Refreshed`]: a refresh returns a value that was made or touched after the refresh was
//!   asked for.
//! - [`Rule::Origin`]: a value was loaded or inserted for the key of the read, before the answer.
//! - [`Rule::OneHolder`]: two holds of a lock do not overlap. The term of a leader is a hold, from
//!   the call of the work until the work has returned or was dropped. An overlap is excused by a
//!   reported loss of the older hold, a deletion of its lease, or a pause of its process. A lock
//!   that was unlocked as held to the end had no other holder.
//! - [`Rule::NoneBesideWriter`]: a hold of a writer and a hold of a reader do not overlap. The same
//!   events of either hold excuse an overlap. A hold that was unlocked as held to the end has no
//!   excuse.
//! - [`Rule::Limit`]: the permits that are held at once are no more than the limit, with the same
//!   excuses.
//! - [`Rule::Latch`]: a latch is set once and not missed afterwards, and each step counts once. The
//!   latch is done after as many steps as it was set to.
//! - [`Rule::Ticks`]: a tick of a job is begun once. A tick that runs at least once may be begun
//!   again until its turn is done. Nothing begins a tick after a later one of its job was begun.
//! - [`Rule::Answered`]: every call is answered, and no load fails but by plan.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
};

use super::{
    history::{Act, Family, History, Process, Source, Time, Value},
    index::{Ended, Index, Known, Load, Read, Write, beside},
    worker::STALENESS,
};

/// The longest delay between the end of a timer and its task on a busy machine. A longer delay
/// counts as a pause.
#[cfg(not(bellwether_sim))]
pub const SLACK: Time = 50_000;
/// Under paused time no task is late, and a timer has milliseconds.
#[cfg(bellwether_sim)]
pub const SLACK: Time = 2_000;

/// The time within which an unanswered write happens, or not at all. By then its connection is
/// broken, or the server has processed it. The server is never stopped for so long.
const LATE: Time = 5_000_000;

/// A timer and a backend count in whole milliseconds.
pub const MILLISECOND: Time = 1_000;

/// The time in which the flight of a load that failed still takes callers: until the end of its
/// lease is answered. Its process must run for so long.
const RELEASE: Time = 1_000_000;

/// The longest time from the refusal of a claim to the beginning of the load without a lease.
const AFTER_REFUSAL: Time = 1_000_000;

/// The time for which a flight that a write has put aside may still wait for another process,
/// before it loads.
const WAIT: Time = 10_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    OneLoad,
    OneFlight,
    Fences,
    StoreGoesOn,
    NeverBack,
    NotBeforeWrite,
    Local,
    Windows,
    Degraded,
    Remembered,
    Deferred,
    BackOff,
    Failure,
    Refreshed,
    Origin,
    OneHolder,
    NoneBesideWriter,
    Limit,
    Latch,
    Ticks,
    Answered,
}

impl Rule {
    /// Returns whether the rule compares fences.
    #[cfg(bellwether_sim)]
    pub fn is_of_fences(self) -> bool {
        matches!(self, Self::Fences | Self::StoreGoesOn | Self::NotBeforeWrite | Self::Ticks)
    }
}

#[derive(Clone, Debug)]
pub struct Violation {
    pub rule: Rule,
    pub text: String,
}

/// The holder of a lease.
pub struct Holder<'a> {
    pub family: Family,
    pub name: &'a str,
    pub process: Process,
}

/// The number of checks of each kind.
#[derive(Clone, Debug, Default)]
pub struct Tally(pub BTreeMap<&'static str, usize>);

impl Tally {
    pub fn add(&mut self, what: &'static str, count: usize) {
        *self.0.entry(what).or_default() += count;
    }

    pub fn take_in(&mut self, other: &Self) {
        other.0.iter().for_each(|(what, count)| self.add(what, *count));
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<_> = self.0.iter().map(|(what, count)| format!("{what} {count}")).collect();
        f.write_str(&counts.join(", "))
    }
}

/// Returns the violations of a history, and the number of checks.
pub fn check(history: &History) -> (Vec<Violation>, Tally) {
    let index = Index::new(history);
    let mut checker =
        Checker { history, index: &index, violations: Vec::new(), tally: Tally::default() };
    checker.fences();
    checker.stored();
    checker.loads();
    checker.reads();
    checker.windows();
    checker.degraded();
    checker.remembered();
    checker.deferred();
    checker.back_offs();
    checker.failures();
    checker.refreshes();
    checker.holds();
    checker.shared_holds();
    checker.latches();
    checker.ticks();
    checker.answered();
    (checker.violations, checker.tally)
}

/// Returns when each write was asked for, by its key and the time of its answer.
fn known<'a>(writes: impl Iterator<Item = &'a Write>) -> Known<&'a String, Time> {
    writes.filter_map(|write| Some((&write.key, write.answered?, write.asked))).collect()
}

pub struct Checker<'a> {
    history: &'a History,
    pub index: &'a Index,
    violations: Vec<Violation>,
    pub tally: Tally,
}

impl Checker<'_> {
    pub fn violated(&mut self, rule: Rule, text: String) {
        self.violations.push(Violation { rule, text });
    }

    fn fences(&mut self) {
        // A claim that is granted twice has one fence, and only the first grant took it.
        let mut granted = HashSet::new();
        let taken = self.index.fences.iter();
        let taken = taken
            .filter(|grant| grant.owner.is_none() || granted.insert((&grant.owner, grant.fence)));
        let taken: Vec<_> =
            taken.map(|grant| ((grant.family, grant.key.as_str()), grant)).collect();
        self.tally.add("fences", taken.len());
        let known: Known<_, _> =
            taken.iter().map(|(of, grant)| (*of, grant.answered, grant.fence)).collect();
        let mut fences = HashSet::new();
        for (of, taken) in taken {
            let before = known.before(&of, taken.sent);
            if before.is_some_and(|fence| *fence >= taken.fence) {
                self.violated(Rule::Fences, format!("{of:?}: {taken:?} after {before:?}"));
            }
            if !fences.insert((of, taken.fence)) {
                let text = format!("{of:?}: the fence was taken a second time: {taken:?}");
                self.violated(Rule::Fences, text);
            }
        }
        let rewritten: HashSet<_> =
            self.index.rewritten().map(|(key, fence, ..)| (key, fence)).collect();
        let mut of = HashMap::new();
        for (value, fence) in &self.index.claimed {
            let key = self.index.key_of(value).unwrap_or_default();
            let is_first = !rewritten.contains(&(key, *fence));
            // A write without an answer may have given the value another fence.
            let is_rewritten = !is_first || self.may_be_rewritten(key);
            if !is_rewritten && *of.entry(value).or_insert(fence) != fence {
                self.violated(Rule::Fences, format!("{value:?} under {fence} and {}", of[value]));
            }
        }
    }

    fn may_be_rewritten(&self, key: &str) -> bool {
        self.index.writes.iter().any(|write| {
            !write.done && write.key == key && matches!(write.act, Act::Touch | Act::Expire)
        })
    }

    fn stored(&mut self) {
        let taken = self.index.fences.iter().filter(|taken| taken.family == Family::Cache);
        let known: Known<_, _> =
            taken.map(|grant| (&grant.key, grant.answered, grant.fence)).collect();
        for stored in &self.index.stored {
            self.tally.add("commits stored", 1);
            if let Some(fence) = known.before(&&stored.key, stored.sent)
                && *fence > stored.fence
            {
                self.violated(
                    Rule::StoreGoesOn,
                    format!("{stored:?} after fence {fence} was taken"),
                );
            }
        }
    }

    fn loads(&mut self) {
        let mut keys: HashMap<&str, Vec<&Load>> = HashMap::new();
        for load in self.index.loads.values() {
            keys.entry(&load.key).or_default().push(load);
            self.tally.add(if load.fence.is_some() { "loads" } else { "loads without a lease" }, 1);
        }
        for loads in keys.into_values() {
            for (load, running) in beside(loads, |load| (load.began, load.ended)) {
                running.iter().for_each(|other| self.overlap(other, load));
            }
        }
    }

    /// Checks two loads of a key that ran at the same time, the one that began first as the first.
    fn overlap(&mut self, first: &Load, second: &Load) {
        if first.process == second.process {
            let overlap = first.ended.min(second.ended) - second.began;
            let process = first.process;
            let key = first.key.as_str();
            let has_tags = self.history.windows.is_some_and(|windows| windows.tags);
            let written = self.index.writes.iter().any(|write| {
                let ends_tag = has_tags && matches!(write.act, Act::Invalidate | Act::Expire);
                write.process == process
                    && (write.key == key || ends_tag)
                    && write.asked <= second.began
                    && write.answered.is_none_or(|answered| answered + WAIT >= first.began)
            });
            let paused = self.index.paused(process, second.began, second.began + overlap);
            // A refresh is no flight: only its lease holds it apart from other loads.
            let refreshes = self.history.windows.is_some_and(|windows| windows.refreshes);
            let apart = refreshes && (first.fence.is_some() || second.fence.is_some());
            let lost = first.lost.is_some_and(|lost| lost <= second.began);
            if overlap > SLACK && !written && !paused && !apart && !lost {
                self.violated(Rule::OneFlight, format!("{first:?} and {second:?}"));
            }
        }
        let (Some(one), Some(two)) = (first.fence, second.fence) else { return };
        self.tally.add("overlaps", 1);
        let (older, newer) = if one <= two { (first, second) } else { (second, first) };
        match self.excuse(older, newer) {
            Some(excuse) => self.tally.add(excuse, 1),
            None => self.violated(Rule::OneLoad, format!("{older:?} and {newer:?}")),
        }
    }

    /// Returns the reason for which two leased loads may have overlapped.
    fn excuse(&self, older: &Load, newer: &Load) -> Option<&'static str> {
        let from = older.fence?;
        let to = newer.fence?;
        if from == to {
            return None;
        }
        let key = &older.key;
        let both = older.began.max(newer.began);
        let both_end = older.lost.unwrap_or(older.ended).min(newer.ended);
        let holder = Holder { family: Family::Cache, name: key, process: older.process };
        let first = self.index.grants(Family::Cache, key, from);
        let second: Vec<_> = self.index.grants(Family::Cache, key, to).collect();
        let first_sent = first.map(|taken| taken.sent).min().unwrap_or(0);
        let second_sent = second.iter().map(|taken| taken.sent).min().unwrap_or(0);
        let second_answered = second.iter().map(|taken| taken.answered).max().unwrap_or(both);
        let burnt = self.index.fences.iter().any(|taken| {
            taken.owner.is_none() && taken.key == *key && from < taken.fence && taken.fence < to
        });
        let unanswered = self.index.writes.iter().any(|write| {
            !write.done
                && write.key == *key
                && write.asked < both
                && write.asked + LATE > first_sent
        });
        if burnt {
            Some("overlaps after a write")
        } else if self.evicted(&holder, first_sent, second_answered, both_end) {
            Some("overlaps after an eviction")
        } else if older.lost.is_some_and(|lost| lost <= both + SLACK) {
            Some("overlaps after a reported loss")
        } else if self.index.paused(older.process, second_sent.saturating_sub(SLACK), both + SLACK)
        {
            Some("overlaps with a suspended process")
        } else if unanswered {
            Some("overlaps after a write that may have happened")
        } else {
            None
        }
    }

    /// Returns whether the lease of a holder was deleted between two times. The holder must have
    /// learned of that by the time `until`.
    pub fn evicted(&self, holder: &Holder<'_>, from: Time, to: Time, until: Time) -> bool {
        self.history.evicted.iter().any(|(family, name, before, after)| {
            let known = self.history.loss_known.map_or(Time::MAX, |known| after + known + SLACK);
            *family == holder.family
                && name == holder.name
                && *before <= to
                && from <= *after
                && (until <= known || self.index.paused(holder.process, *after, until))
        })
    }

    fn reads(&mut self) {
        let fences = Fences::new(self.index);
        let shared = self.index.reads.iter().filter(|read| {
            read.source != Source::Degraded && !self.index.unstored.contains(&read.value)
        });
        let seen: Known<_, _> = shared
            .filter_map(|read| {
                let fence = fences.least(read)?;
                let is_unstored = self.was_refused(read, fence)
                    || self.is_superseded(read, fence)
                    || self.is_ahead_of_store(read, fence);
                if is_unstored {
                    return None;
                }
                Some((&read.key, read.at, (fence, read.value)))
            })
            .collect();
        let burnt = self.index.fences.iter().filter(|taken| taken.ends_values());
        let burnt: Known<_, _> =
            burnt.map(|write| (&write.key, write.answered, write.fence)).collect();
        let done = self.index.writes.iter().filter(|write| write.done);
        self.tally.add("writes", done.clone().count());
        self.tally
            .add("writes that may have happened", self.index.writes.len() - done.clone().count());
        // A value that was touched is as good as before, and so is one that is refreshed.
        let ends = done.filter(|write| !matches!(write.act, Act::Touch | Act::Refresh));
        let writes_of_keys = known(ends.clone().filter(|write| write.tag.is_none()));
        let writes = known(ends);

        for read in &self.index.reads {
            self.tally.add("reads", 1);
            self.origin(read);
            if read.source == Source::Degraded {
                continue;
            }
            let as_of = self.as_of(read);
            if let Some(fence) = fences.greatest(read) {
                if let Some((newer, value)) = seen.before(&&read.key, as_of)
                    && *newer > fence
                    && !self.replaces_failure(read)
                {
                    let text = format!("{read:?} under {fence} after {value:?} under {newer}");
                    self.violated(Rule::NeverBack, text);
                }
                if let Some(burnt) = burnt.before(&&read.key, as_of)
                    && *burnt > fence
                {
                    let text = format!("{read:?} under {fence} after fence {burnt} was burnt");
                    self.violated(Rule::NotBeforeWrite, text);
                }
            }
            let misses_tag_ends = self.misses_tag_ends(read);
            self.tally.add("reads during a loss of data", usize::from(misses_tag_ends));
            let writes = if misses_tag_ends { &writes_of_keys } else { &writes };
            // The same check without a look at fences, which may be wrong themselves.
            if let Some(made) = self.made(read)
                && let Some(asked) = writes.before(&&read.key, as_of)
                && *asked > made
                && !self.stands_in(read, made)
            {
                let text = format!("{read:?} after a write that was called at {asked}");
                self.violated(Rule::NotBeforeWrite, text);
            }
            if read.source == Source::Local {
                self.local(read);
            }
        }
    }

    /// Returns whether the store has refused the value of a load. Only the callers in the process
    /// of that load get the value.
    fn was_refused(&self, read: &Read, fence: u64) -> bool {
        if read.source != Source::Shared || self.index.is_stored(&read.key, fence) {
            return false;
        }
        let mut refused = self.index.refused.iter();
        refused.any(|refused| {
            refused.process == read.process
                && refused.key == read.key
                && refused.fence == Some(fence)
        })
    }

    /// Returns whether the load of a value was not stored because of a refresh. Its own callers get
    /// the value, and the others the stored one.
    fn is_superseded(&self, read: &Read, fence: u64) -> bool {
        if read.source != Source::Shared || self.index.is_stored(&read.key, fence) {
            return false;
        }
        let mut refreshes = self.index.fences.iter().filter(|taken| taken.is_refresh());
        refreshes.any(|refresh| {
            refresh.key == read.key && refresh.fence > fence && refresh.sent <= read.at
        })
    }

    /// Returns whether the value of a load was not stored, after a deferred write of its process.
    /// That process counts the stored value as old, and the other processes do not know of the
    /// write yet.
    fn is_ahead_of_store(&self, read: &Read, fence: u64) -> bool {
        if read.source != Source::Shared || self.index.is_stored(&read.key, fence) {
            return false;
        }
        let mut deferred = self.index.writes.iter().filter(|write| write.deferred);
        deferred.any(|write| {
            write.process == read.process && write.key == read.key && write.asked < read.value.began
        })
    }

    /// Returns whether the server has lost all its data while this read was under way. The read
    /// asks for the entry first, and then for the ends of its tags.
    fn misses_tag_ends(&self, read: &Read) -> bool {
        let mut lost = self.history.data_lost.iter();
        lost.any(|lost| read.asked <= *lost && *lost <= read.at)
    }

    /// Returns whether a read misses a write, because the write is the end of a tag.
    fn misses_end(&self, read: &Read, write: &Write) -> bool {
        write.tag.is_some() && self.misses_tag_ends(read)
    }

    /// Returns as of when a read must be right.
    fn as_of(&self, read: &Read) -> Time {
        let behind = match read.source {
            Source::Local => u64::try_from(STALENESS.as_micros()).unwrap_or(Time::MAX),
            _ => 0,
        };
        read.asked.saturating_sub(behind)
    }

    /// Checks a copy against the acts of its own process.
    fn local(&mut self, read: &Read) {
        self.tally.add("copies", 1);
        let Some(made) = self.made(read) else { return };
        let newer = self.index.writes.iter().find(|write| {
            write.done
                && (write.process, &write.key) == (read.process, &read.key)
                && !matches!(write.act, Act::Touch | Act::Refresh)
                && write.asked > made
                && write.answered.is_some_and(|answered| answered < read.asked)
                && !self.misses_end(read, write)
        });
        if let Some(write) = newer.filter(|_| !self.stands_in(read, made)) {
            let text = format!("{read:?} after {write:?}");
            self.violated(Rule::Local, text);
        }
    }

    /// Returns when a value was made at the latest, if that is known. A load that found it
    /// unchanged made it anew.
    fn made(&self, read: &Read) -> Option<Time> {
        let made = match self.index.inserts.get(&read.value) {
            None => Some(read.value.began),
            Some(Write { done: true, answered, .. }) => *answered,
            // A failed insert may have happened at any later time.
            Some(_) => None,
        };
        let renewals = self.index.renewals.iter();
        let renewals =
            renewals.filter(|renewal| renewal.value == read.value && renewal.at <= read.at);
        Some(renewals.map(|renewal| renewal.began).fold(made?, Time::max))
    }

    /// Returns whether a value that was made then stood in for a failure. It may then be older
    /// than an expiry, and not older than another write.
    fn stands_in(&self, read: &Read, made: Time) -> bool {
        let mut writes = self.index.writes.iter().filter(|write| {
            write.done
                && write.key == read.key
                && write.asked > made
                && write.answered.is_some_and(|answered| answered < read.asked)
        });
        self.replaces_failure(read)
            && writes.all(|write| matches!(write.act, Act::Expire | Act::Touch | Act::Refresh))
    }

    /// Returns whether a stale value stood in for a load that failed, or that was too slow for its
    /// caller.
    fn replaces_failure(&self, read: &Read) -> bool {
        read.source == Source::Stale && self.may_be_old(read)
    }

    /// Returns whether a load failed, or was too slow for its caller, so that an expired value may
    /// stand in for what the caller asked for.
    fn may_be_old(&self, read: &Read) -> bool {
        let has_waited =
            read.patience.is_some_and(|patience| read.asked + patience <= read.at + MILLISECOND);
        has_waited || self.has_failed(&read.key, read.asked, read.at)
    }

    /// Returns whether a load of a key failed that may have answered a call of `asked` until `at`.
    pub fn has_failed(&self, key: &str, asked: Time, at: Time) -> bool {
        self.index.loads.values().any(|load| {
            load.failed
                && load.key == key
                && load.began <= at
                && self.index.has_run(load.process, load.ended, RELEASE) >= asked
        })
    }

    fn windows(&mut self) {
        let Some(windows) = self.history.windows else { return };
        let begun = Begun::new(self.index);
        for read in &self.index.reads {
            let length = match read.source {
                Source::Hit => windows.fresh,
                Source::Stored | Source::Local => windows.fresh + windows.stale,
                Source::Stale => windows.fresh + windows.stale.max(windows.error),
                Source::Shared | Source::Degraded => continue,
            };
            let Some(begun) = begun.last(read) else {
                self.tally.add("reads of unknown age", 1);
                continue;
            };
            let what = match read.source {
                Source::Stale => "stale reads",
                _ if read.asked > begun + windows.fresh => "reads late in a window",
                _ => "fresh reads",
            };
            self.tally.add(what, 1);
            if read.asked > begun + length + windows.slack {
                self.violated(Rule::Windows, format!("{read:?} began at {begun}"));
            }
        }
    }

    fn origin(&mut self, read: &Read) {
        let load = self.index.loads.get(&(read.value.by, read.value.number));
        let known = match (load, self.index.inserts.get(&read.value)) {
            (Some(load), _) => {
                load.value == read.value && load.key == read.key && load.ended <= read.at
            }
            (None, Some(insert)) => insert.key == read.key && insert.asked <= read.at,
            (None, None) => false,
        };
        if !known {
            self.violated(Rule::Origin, format!("{read:?} of {load:?}"));
        }
    }

    fn degraded(&mut self) {
        for (value, fence) in &self.index.claimed {
            let load = self.index.loads.get(&(value.by, value.number));
            if load.is_some_and(|load| load.fence.is_none()) {
                self.violated(
                    Rule::Degraded,
                    format!("{value:?} was stored under {fence} without a lease"),
                );
            }
        }
        let mut waited: HashMap<Value, Vec<&Read>> = HashMap::new();
        for read in &self.index.reads {
            if read.source == Source::Degraded && !self.is_of_store(read) {
                self.tally.add("reads of loads without a lease", 1);
                waited.entry(read.value).or_default().push(read);
            }
        }
        let writes = self.index.writes.iter();
        let local: Known<_, _> = writes
            .filter_map(|write| Some(((write.process, &write.key), write.answered?, write.asked)))
            .collect();
        let mut hits: HashMap<(Process, &String), Vec<&Read>> = HashMap::new();
        for read in self.index.reads.iter().filter(|read| read.source == Source::Hit) {
            hits.entry((read.process, &read.key)).or_default().push(read);
        }
        for hits in hits.values_mut() {
            hits.sort_by_key(|hit| hit.at);
        }
        for (value, reads) in waited {
            for read in &reads {
                // A load that found the value unchanged made it anew.
                let renewals = self.index.renewals.iter().filter(|renewal| {
                    renewal.value == value
                        && renewal.process == read.process
                        && renewal.at <= read.at
                });
                let made = renewals.map(|renewal| renewal.at).max().unwrap_or(0);
                let answered = reads.iter().map(|read| read.at).filter(|at| *at >= made);
                let first_answered = answered.min().unwrap_or(0);
                let of = (read.process, &read.key);
                let hits = hits.get(&of).map(Vec::as_slice).unwrap_or_default();
                let since = hits.partition_point(|hit| hit.at <= first_answered);
                let mut before = hits[since..].iter().take_while(|hit| hit.at < read.asked);
                let refused = self.index.refused.iter().any(|refused| {
                    refused.process == read.process
                        && refused.key == read.key
                        && value.began <= refused.at + AFTER_REFUSAL
                        && refused.at <= read.at
                });
                let loaded = self.made(read).unwrap_or(value.began);
                let news = before.find(|hit| {
                    let is_older = self.made(hit).is_some_and(|stored| stored < loaded);
                    hit.asked > first_answered && !(refused && is_older)
                });
                if let Some(news) = news {
                    self.violated(Rule::Degraded, format!("{read:?} after {news:?}"));
                }
                let written = local.before(&of, read.asked);
                let stale = written.is_some_and(|asked| *asked > value.began);
                if read.process != value.by || stale {
                    self.violated(Rule::Degraded, format!("{read:?} after {written:?}"));
                }
            }
        }
    }

    /// Returns whether the value was inserted, or loaded under a lease.
    fn is_of_store(&self, read: &Read) -> bool {
        let load = self.index.loads.get(&(read.value.by, read.value.number));
        load.is_none_or(|load| load.fence.is_some())
    }

    fn remembered(&mut self) {
        let Some(windows) = self.history.windows else { return };
        let kept = windows.fresh + windows.stale.max(windows.error);
        let fences = Fences::new(self.index);
        let begun = Begun::new(self.index);
        let ends = self
            .index
            .writes
            .iter()
            .filter(|write| write.done && matches!(write.act, Act::Insert | Act::Invalidate));
        let local: Known<_, _> = ends
            .filter_map(|write| Some(((write.process, &write.key), write.answered?, write.asked)))
            .collect();
        let of_store = self.index.reads.iter().filter(|read| read.is_surely_stored());
        let served: Known<_, _> = of_store
            .filter_map(|read| Some(((read.process, &read.key), read.at, fences.least(read)?)))
            .collect();
        for read in &self.index.reads {
            // The leader of a load without an answer to its commit tells its process of the value.
            let is_own = read.value.by == read.process && self.made(read).is_some();
            if read.source != Source::Degraded || !self.is_of_store(read) {
                continue;
            }
            self.tally.add("remembered reads", 1);
            let of = (read.process, &read.key);
            // A load without a lease that finds the value unchanged counts in its process.
            let own = self.index.renewals.iter().filter(|renewal| {
                renewal.value == read.value
                    && renewal.process == read.process
                    && renewal.at <= read.at
            });
            let own = own.map(|renewal| renewal.at).max().unwrap_or(0);
            if windows.stale.max(windows.error) == 0 && !is_own && own == 0 {
                self.violated(Rule::Remembered, format!("{read:?} has no stale window"));
            }
            if let Some(begun) = begun.last(read).map(|begun| begun.max(own))
                && read.asked > begun + kept + windows.slack
                && !(is_own && self.was_under_way(read))
            {
                self.violated(Rule::Remembered, format!("{read:?} began at {begun}"));
            }
            let written = local.before(&of, read.asked);
            if self.made(read).is_some_and(|made| written.is_some_and(|asked| *asked > made)) {
                self.violated(Rule::Remembered, format!("{read:?} after {written:?}"));
            }
            let newer = served.before(&of, read.asked);
            let is_older = fences.greatest(read).is_some_and(|fence| newer > Some(&fence));
            // A load that was under way when the caller asked may find an old value unchanged.
            if is_older && own == 0 && !(is_own && self.was_older_at_its_landing(read, &fences)) {
                self.violated(Rule::Remembered, format!("{read:?} after fence {newer:?}"));
            }
        }
    }

    /// Returns whether the flight that made this value had not landed when the read was asked for.
    /// A commit without an answer lands late, and the value has no windows for those that joined.
    fn was_under_way(&self, read: &Read) -> bool {
        let of_process = self.index.reads.iter().filter(|other| other.process == read.process);
        let mut of_flight = of_process.filter(|other| other.value == read.value);
        of_flight.any(|other| {
            other.source == Source::Shared && other.key == read.key && other.at > read.asked
        })
    }

    /// Returns whether the process had no newer value of the store since its own load has landed,
    /// until this read was asked for. While that load was under way, a peek may have seen one. The
    /// process does not know which is newer if the commit has no answer.
    fn was_older_at_its_landing(&self, read: &Read, fences: &Fences) -> bool {
        let of_process = self.index.reads.iter().filter(|other| other.process == read.process);
        let reads: Vec<_> = of_process.filter(|other| other.key == read.key).collect();
        let of_value = reads.iter().filter(|other| other.value == read.value);
        let landed = of_value.map(|other| other.at).min();
        let mut since = reads.iter().filter(|other| {
            landed.is_none_or(|landed| other.at > landed) && other.at <= read.asked
        });
        !since.any(|other| other.is_surely_stored() && fences.least(other) > fences.greatest(read))
    }

    fn deferred(&mut self) {
        let deferred = self.index.writes.iter().filter(|write| write.deferred);
        for write in deferred {
            self.tally.add("deferred writes", 1);
            let later = self.index.reads.iter().filter(|read| {
                (read.process, &read.key) == (write.process, &write.key)
                    && write.answered.is_some_and(|answered| answered < read.asked)
            });
            for read in later {
                let is_older = self.made(read).is_some_and(|made| made < write.asked);
                // The value may be one that the process remembers.
                let is_kept = matches!(read.source, Source::Stale | Source::Degraded);
                let stands_in = write.act == Act::Expire && is_kept && self.may_be_old(read);
                if is_older && !stands_in && !self.misses_end(read, write) {
                    let text = format!("{read:?} after {write:?}");
                    self.violations.push(Violation { rule: Rule::Deferred, text });
                }
            }
            let what = match &write.tag {
                Some(tag) => Ended::Tag(tag.clone()),
                None => Ended::Key(write.key.clone()),
            };
            let is_repeated = self.index.performed.iter().any(|performed| {
                performed.process == write.process
                    && performed.what == what
                    && performed.sent > write.asked
                    && (performed.removes || write.act == Act::Expire)
            });
            let was_killed =
                self.history.killed.iter().any(|(process, ..)| *process == write.process);
            if !is_repeated && !was_killed {
                let text = format!("{write:?} was not repeated");
                self.violations.push(Violation { rule: Rule::Deferred, text });
            }
        }
    }

    fn answered(&mut self) {
        for error in &self.index.errors {
            self.violated(Rule::Answered, error.clone());
        }
        for process in &self.history.hanging {
            self.violated(Rule::Answered, format!("process {process} still waits"));
        }
    }
}

/// The fences under which values stood, each with the times at which it was asked for and answered.
/// A touch and an expiry give a value a fence of their own. They give it to the value that stood
/// before them and after them, also if no process has seen it under that fence.
struct Fences(HashMap<Value, Vec<(u64, Time, Time)>>);

impl Fences {
    fn new(index: &Index) -> Self {
        let rewritten: BTreeMap<_, _> =
            index.rewritten().map(|(key, fence, sent, at)| ((key, fence), (sent, at))).collect();
        let mut all: HashMap<_, BTreeSet<_>> = HashMap::new();
        for (value, fence) in &index.claimed {
            all.entry(*value).or_default().insert(*fence);
        }
        let of = all.into_iter().map(|(value, mut fences)| {
            let key = index.key_of(&value).unwrap_or_default();
            let first = fences.first().copied().unwrap_or_default();
            if let Some(last) = index.last_seen.get(&value) {
                let between = rewritten.range((key, first)..(key, first.max(*last)));
                fences.extend(between.map(|((_, fence), _)| *fence));
            }
            let mut with_times = Vec::new();
            for fence in fences {
                with_times.push(match rewritten.get(&(key, fence)) {
                    Some((sent, answered)) => (fence, *sent, *answered),
                    None if fence == first => (fence, 0, 0),
                    // A write without an answer gave the fence.
                    None => (fence, 0, Time::MAX),
                });
            }
            (value, with_times)
        });
        Self(of.collect())
    }

    fn of(&self, read: &Read) -> impl Iterator<Item = &(u64, Time, Time)> {
        self.0.get(&read.value).into_iter().flatten()
    }

    /// Returns the greatest fence under which the value may have been read.
    fn greatest(&self, read: &Read) -> Option<u64> {
        self.of(read).filter(|(_, sent, _)| *sent <= read.at).map(|(fence, ..)| *fence).max()
    }

    /// Returns the fence under which the value was read at least.
    fn least(&self, read: &Read) -> Option<u64> {
        let known = self.of(read).filter(|(.., answered)| *answered < read.asked);
        known.map(|(fence, ..)| *fence).max()
    }
}

/// When the windows of values began at the latest.
struct Begun<'a> {
    index: &'a Index,
    fences: Fences,
    /// The answers to the commits and the touches, by key and fence.
    answered: HashMap<(&'a str, u64), Time>,
}

impl<'a> Begun<'a> {
    fn new(index: &'a Index) -> Self {
        let stored = index.stored.iter().chain(&index.touched);
        let renewed = index.renewals.iter();
        let renewed = renewed.filter_map(|renewal| {
            Some(((renewal.key.as_str(), renewal.fence?), renewal.answered?))
        });
        let stored = stored.map(|entry| ((entry.key.as_str(), entry.fence), entry.answered));
        let answered = stored.chain(renewed).collect();
        Self { index, fences: Fences::new(index), answered }
    }

    /// Returns the last beginning before the end of a read, if all that may count are known.
    fn last(&self, read: &Read) -> Option<Time> {
        let unknown = self.index.writes.iter().any(|write| {
            (write.act == Act::Touch || write.value == Some(read.value))
                && write.key == read.key
                && !write.done
                && write.asked <= read.at
        });
        let is_renewed = self.index.renewals.iter().any(|renewal| {
            let is_unknown = renewal.fence.is_some() && renewal.answered.is_none();
            renewal.value == read.value && renewal.at <= read.at && is_unknown
        });
        if unknown || is_renewed {
            return None;
        }
        let fences = self.fences.of(read).filter(|(_, sent, _)| *sent <= read.at);
        let told = fences.filter_map(|(fence, ..)| self.answered.get(&(&*read.key, *fence)));
        let first = match self.index.inserts.get(&read.value) {
            Some(insert) => insert.answered,
            None => {
                let load = self.index.loads.get(&(read.value.by, read.value.number))?;
                self.answered.get(&(&*read.key, load.fence?)).copied()
            }
        }?;
        Some(told.copied().fold(first, Time::max))
    }
}
