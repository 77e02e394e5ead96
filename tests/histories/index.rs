//! The events of a history, sorted by subject.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
};

use super::history::{
    Act, Answer, Event, Family, History, Kind, LatchStep, LoadStep, LockStep, Process, Source,
    Time, TurnStep, Value,
};

/// The facts of one round.
#[derive(Default)]
pub struct Index {
    pub loads: HashMap<(Process, u64), Load>,
    pub inserts: HashMap<Value, Write>,
    pub writes: Vec<Write>,
    pub reads: Vec<Read>,
    pub holds: Vec<Hold>,
    pub latches: HashMap<String, Latch>,
    /// The turns of each job.
    pub turns: HashMap<String, Turns>,
    /// The grants and writes that took a fence.
    pub fences: Vec<Taken>,
    pub stored: Vec<Stored>,
    /// The claims and the loaded values that a backend has refused.
    pub refused: Vec<Refused>,
    /// The fences of inserts.
    pub inserted: HashSet<(String, u64)>,
    /// What ended values.
    pub performed: Vec<Performed>,
    /// The touches, with the fences that the entries got.
    pub touched: Vec<Stored>,
    /// The values that were not to be stored.
    pub unstored: HashSet<Value>,
    /// The loads that found the value unchanged.
    pub renewals: Vec<Renewal>,
    pub backed_off: Vec<BackedOff>,
    /// The refreshes that were answered with a value.
    pub refreshed: Vec<(Write, Value)>,
    /// The reads that were answered with a failed load.
    pub failed: Vec<FailedRead>,
    /// The values, each with a fence under which the value was made or seen.
    pub claimed: Vec<(Value, u64)>,
    /// The greatest fence under which each value was read from the store.
    pub last_seen: HashMap<Value, u64>,
    pub pauses: HashMap<Process, Vec<(Time, Time)>>,
    pub errors: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct Load {
    pub process: Process,
    pub key: String,
    pub value: Value,
    pub fence: Option<u64>,
    pub began: Time,
    pub ended: Time,
    pub lost: Option<Time>,
    pub failed: bool,
}

#[derive(Clone, Debug)]
pub struct Write {
    pub act: Act,
    pub process: Process,
    pub key: String,
    pub value: Option<Value>,
    pub asked: Time,
    pub answered: Option<Time>,
    /// The write was answered without an error.
    pub done: bool,
    /// The tag, if the write is the end of a tag.
    pub tag: Option<String>,
    /// The write failed, and its process repeats the write.
    pub deferred: bool,
}

/// A write without a load, or the end of a tag, that the backend has done for a process.
#[derive(Clone, Debug)]
pub struct Performed {
    pub process: Process,
    /// The key, or the tag.
    pub what: Ended,
    /// Whether the write removes the value, or ends the value for all but failures.
    pub removes: bool,
    pub sent: Time,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    Key(String),
    Tag(String),
}

#[derive(Clone, Debug)]
pub struct Read {
    pub process: Process,
    pub key: String,
    pub asked: Time,
    pub at: Time,
    pub patience: Option<Time>,
    pub value: Value,
    pub source: Source,
}

impl Read {
    /// Returns whether the value was surely stored. A value that was loaded may not have been.
    pub fn is_surely_stored(&self) -> bool {
        !matches!(self.source, Source::Degraded | Source::Shared)
    }
}

/// A load that says that the stored value is still right.
#[derive(Clone, Debug)]
pub struct Renewal {
    pub process: Process,
    pub key: String,
    pub value: Value,
    pub fence: Option<u64>,
    /// The beginning of the load, and the time at which the load said so.
    pub began: Time,
    pub at: Time,
    /// When the backend has renewed the value, if the backend did.
    pub answered: Option<Time>,
}

/// A failed load, after which no process loads for a time.
#[derive(Clone, Debug)]
pub struct BackedOff {
    pub key: String,
    pub wait: Time,
    pub sent: Time,
    pub answered: Time,
}

#[derive(Clone, Debug)]
pub struct FailedRead {
    pub key: String,
    pub asked: Time,
    pub at: Time,
}

#[derive(Clone, Debug)]
pub struct Hold {
    pub process: Process,
    pub name: String,
    pub kind: Kind,
    pub fence: u64,
    pub asked: Time,
    pub locked: Time,
    /// The time at which the guard reported the loss, the release began, or the process was
    /// killed.
    pub ended: Time,
    pub lost: Option<Time>,
    /// The time of the release, if the lock had been held to the end.
    pub held_until: Option<Time>,
}

/// The events of a latch.
#[derive(Clone, Debug, Default)]
pub struct Latch {
    /// The times at which the latch was reported as set, and whether the reporter had set it.
    pub set: Vec<(Time, bool)>,
    /// The beginnings of the steps.
    pub steps: Vec<Time>,
    /// The answers to the steps, each with its time and the number of steps left.
    pub left: Vec<(Time, u32)>,
    pub done: Vec<Time>,
    /// The beginnings of the calls that found no latch.
    pub missed: Vec<Time>,
}

/// The turns of a job.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    pub begun: Vec<BegunTurn>,
    /// The fences of the turns that are done.
    pub done: HashSet<u64>,
}

#[derive(Clone, Debug)]
pub struct BegunTurn {
    pub fence: u64,
    pub tick: u64,
}

/// A claim that a backend has refused, or a loaded value.
#[derive(Clone, Debug)]
pub struct Refused {
    pub process: Process,
    pub key: String,
    /// The fence of the loaded value.
    pub fence: Option<u64>,
    pub at: Time,
}

/// A grant, or a write without a load.
#[derive(Clone, Debug)]
pub struct Taken {
    pub family: Family,
    pub key: String,
    pub fence: u64,
    pub sent: Time,
    pub answered: Time,
    /// The owner of a grant, or `None` for a write.
    pub owner: Option<String>,
    /// A write that ends no value.
    pub leaves_value: bool,
}

impl Taken {
    /// Returns whether this is a write that ends all earlier values.
    pub fn ends_values(&self) -> bool {
        self.owner.is_none() && !self.leaves_value
    }

    /// Returns whether this is a refresh, which ends all earlier loads and leaves the value.
    pub fn is_refresh(&self) -> bool {
        self.owner.is_none() && self.leaves_value
    }
}

#[derive(Clone, Debug)]
pub struct Stored {
    pub key: String,
    pub fence: u64,
    pub sent: Time,
    pub answered: Time,
}

impl Index {
    pub fn new(history: &History) -> Self {
        let mut index = Self::default();
        let end = history.lines.iter().map(|(_, line)| line.at).max().unwrap_or(0);
        let ends: HashMap<_, _> =
            history.killed.iter().map(|(process, at, _)| (*process, *at)).collect();
        let mut writes: HashMap<(Process, u64), Write> = HashMap::new();
        let mut holds: HashMap<(Process, u64), Hold> = HashMap::new();
        for (process, line) in &history.lines {
            let process = *process;
            let at = line.at;
            // When the process was killed, or the end of the history.
            let end_of_process = ends.get(&process).copied().unwrap_or(end);
            match line.event.clone() {
                Event::Ready | Event::Done { .. } => {}
                Event::Paused { from } => {
                    index.pauses.entry(process).or_default().push((from, at));
                }
                Event::Read { key, asked, patience, answer } => match answer {
                    Answer::Nothing => {}
                    Answer::Failed => index.failed.push(FailedRead { key, asked, at }),
                    Answer::Value { value, source } => {
                        let read = Read { process, key, asked, at, patience, value, source };
                        index.reads.push(read);
                    }
                    Answer::Error(error) => index.errors.push(error),
                },
                Event::WriteAsked { write, act, key, tag, value } => {
                    let asked = at;
                    let answered = None;
                    let done = false;
                    let deferred = false;
                    let asked =
                        Write { act, process, key, value, asked, answered, done, tag, deferred };
                    writes.insert((process, write), asked);
                }
                Event::Refreshed { write, value } => {
                    let asked = writes.get(&(process, write)).cloned();
                    index.refreshed.extend(asked.map(|asked| (asked, value)));
                }
                Event::WriteAnswered { write, error, deferred } => {
                    if let Some(write) = writes.get_mut(&(process, write)) {
                        write.answered = Some(at);
                        write.deferred = deferred;
                        write.done = error.is_none();
                    }
                }
                Event::LoadBegan { key, value, fence } => {
                    let ended = end_of_process;
                    let began = at;
                    let lost = None;
                    let failed = false;
                    let load = Load { process, key, value, fence, began, ended, lost, failed };
                    index.loads.insert((process, value.number), load);
                    index.claimed.extend(fence.map(|fence| (value, fence)));
                }
                Event::Load { number, step } => {
                    let Some(load) = index.loads.get_mut(&(process, number)) else { continue };
                    match step {
                        LoadStep::Lost => load.lost = Some(at),
                        LoadStep::Failed => load.failed = true,
                        LoadStep::Ended => load.ended = at.min(end_of_process),
                        LoadStep::Unstored => drop(index.unstored.insert(load.value)),
                        LoadStep::Unchanged(value) => {
                            let Load { key, fence, began, .. } = load.clone();
                            let answered = None;
                            index.claimed.extend(fence.map(|fence| (value, fence)));
                            let renewal =
                                Renewal { process, key, value, fence, began, at, answered };
                            index.renewals.push(renewal);
                        }
                    }
                }
                Event::Granted { family, key, owner, fence, sent } => {
                    let owner = Some(owner);
                    let answered = at;
                    let leaves_value = false;
                    let taken = Taken { family, key, fence, sent, answered, owner, leaves_value };
                    index.fences.push(taken);
                }
                Event::TagEnded { tag, expires, sent } => {
                    let what = Ended::Tag(tag);
                    index.performed.push(Performed { process, what, removes: !expires, sent });
                }
                Event::Written { act, key, fence, value, sent } => {
                    if matches!(act, Act::Insert | Act::Invalidate | Act::Expire) {
                        let what = Ended::Key(key.clone());
                        let removes = act != Act::Expire;
                        index.performed.push(Performed { process, what, removes, sent });
                    }
                    index.inserted.extend(value.map(|_| (key.clone(), fence)));
                    index.claimed.extend(value.map(|value| (value, fence)));
                    if act == Act::Touch {
                        let key = key.clone();
                        let answered = at;
                        index.touched.push(Stored { key, fence, sent, answered });
                    }
                    let family = Family::Cache;
                    let owner = None;
                    let answered = at;
                    let leaves_value = act == Act::Refresh;
                    let taken = Taken { family, key, fence, sent, answered, owner, leaves_value };
                    index.fences.push(taken);
                }
                Event::Stored { key, fence, sent } => {
                    index.renewed(&key, fence, at);
                    index.stored.push(Stored { key, fence, sent, answered: at });
                }
                Event::Refused { key, fence } => {
                    index.refused.push(Refused { process, key, fence, at });
                }
                Event::BackedOff { key, wait, sent } => {
                    index.backed_off.push(BackedOff { key, wait, sent, answered: at });
                }
                Event::Seen { value, fence, .. } => {
                    index.claimed.push((value, fence));
                    let last = index.last_seen.entry(value).or_default();
                    *last = fence.max(*last);
                }
                Event::Locked { hold, name, kind, fence, asked } => {
                    let locked = at;
                    let ended = end_of_process;
                    let lost = None;
                    let held_until = None;
                    let taken =
                        Hold { process, name, kind, fence, asked, locked, ended, lost, held_until };
                    holds.insert((process, hold), taken);
                }
                Event::Lock { hold, step } => {
                    let Some(hold) = holds.get_mut(&(process, hold)) else { continue };
                    match step {
                        LockStep::Lost => (hold.lost, hold.ended) = (Some(at), hold.ended.min(at)),
                        LockStep::Unlocking => hold.ended = hold.ended.min(at),
                        LockStep::Unlocked(Some(true)) => hold.held_until = Some(hold.ended),
                        LockStep::Unlocked(_) => {}
                    }
                }
                Event::Latch { name, step } => {
                    let latch = index.latches.entry(name).or_default();
                    match step {
                        LatchStep::Set { did } => latch.set.push((at, did)),
                        LatchStep::Begins => latch.steps.push(at),
                        LatchStep::Left(left) => latch.left.push((at, left)),
                        LatchStep::Done => latch.done.push(at),
                        LatchStep::Missing { asked } => latch.missed.push(asked),
                    }
                }
                Event::Turn { job, tick, fence, step } => {
                    let turns = index.turns.entry(job).or_default();
                    match step {
                        TurnStep::Began => turns.begun.push(BegunTurn { fence, tick }),
                        TurnStep::Done => drop(turns.done.insert(fence)),
                    }
                }
            }
        }
        index.turns.values_mut().for_each(|turns| turns.begun.sort_by_key(|turn| turn.fence));
        index.inserts =
            writes.values().filter_map(|write| Some((write.value?, write.clone()))).collect();
        index.writes = writes.into_values().collect();
        index.holds = holds.into_values().collect();
        index
    }

    /// Notes that the backend has stored the value of a load under this fence. If the load found
    /// the value unchanged, the value was stored anew.
    fn renewed(&mut self, key: &str, fence: u64, at: Time) {
        let mut of = self
            .renewals
            .iter_mut()
            .filter(|renewal| renewal.key == key && renewal.fence == Some(fence));
        if let Some(renewal) = of.next() {
            renewal.answered = Some(at);
        }
    }

    /// Returns the fences that touches, expiries and loads of unchanged values gave to entries.
    /// Beside each fence are the key, and the times of the call and of the answer.
    pub fn rewritten(&self) -> impl Iterator<Item = (&str, u64, Time, Time)> {
        let writes = self.fences.iter().filter(|taken| taken.owner.is_none());
        let kept =
            writes.filter(|taken| !self.inserted.contains(&(taken.key.clone(), taken.fence)));
        let renewals = self.renewals.iter().filter_map(|renewal| {
            Some((
                renewal.key.as_str(),
                renewal.fence?,
                renewal.at,
                renewal.answered.unwrap_or(Time::MAX),
            ))
        });
        kept.map(|taken| (taken.key.as_str(), taken.fence, taken.sent, taken.answered))
            .chain(renewals)
    }

    /// Returns the key of a value, if the making of the value was recorded.
    pub fn key_of(&self, value: &Value) -> Option<&str> {
        let load = self.loads.get(&(value.by, value.number)).map(|load| load.key.as_str());
        load.or_else(|| self.inserts.get(value).map(|insert| insert.key.as_str()))
    }

    /// Returns the time at which a process has run for so long since another time.
    pub fn has_run(&self, process: Process, from: Time, long: Time) -> Time {
        let mut pauses = self.pauses.get(&process).cloned().unwrap_or_default();
        pauses.sort_unstable();
        let mut end = from + long;
        let mut counted = from;
        for (began, ended) in pauses {
            // The worker and its parent may both have recorded a pause.
            let began = began.max(counted);
            if began <= end && began < ended {
                end += ended - began;
                counted = ended;
            }
        }
        end
    }

    /// Returns the grants of a fence of a name, and the writes that took this fence.
    pub fn grants(&self, family: Family, key: &str, fence: u64) -> impl Iterator<Item = &Taken> {
        let of_key = self.fences.iter().filter(move |taken| taken.key == key);
        of_key.filter(move |taken| taken.family == family && taken.fence == fence)
    }

    /// Returns whether the value of a load was stored.
    pub fn is_stored(&self, key: &str, fence: u64) -> bool {
        self.stored.iter().any(|stored| stored.key == key && stored.fence == fence)
    }

    /// Returns `true` if a process did not run at some moment between two times.
    pub fn paused(&self, process: Process, from: Time, to: Time) -> bool {
        let pauses = self.pauses.get(&process).map(Vec::as_slice).unwrap_or_default();
        pauses.iter().any(|(began, ended)| *began <= to && from <= *ended)
    }
}

/// The greatest fact of each subject that was known at each time.
pub struct Known<K, T>(HashMap<K, Vec<(Time, T)>>);

impl<K: Eq + Hash, T: Ord + Clone> FromIterator<(K, Time, T)> for Known<K, T> {
    fn from_iter<I: IntoIterator<Item = (K, Time, T)>>(facts: I) -> Self {
        let mut all: HashMap<K, Vec<(Time, T)>> = HashMap::new();
        for (of, at, fact) in facts {
            all.entry(of).or_default().push((at, fact));
        }
        // Each fact becomes the greatest of all facts up to that time.
        for facts in all.values_mut() {
            facts.sort_by_key(|(at, _)| *at);
            for at in 1..facts.len() {
                facts[at].1 = facts[at].1.clone().max(facts[at - 1].1.clone());
            }
        }
        Self(all)
    }
}

impl<K: Eq + Hash, T> Known<K, T> {
    /// Returns the greatest fact of a subject that was known before a time.
    pub fn before(&self, of: &K, time: Time) -> Option<&T> {
        let facts = self.0.get(of)?;
        let count = facts.partition_point(|(at, _)| *at < time);
        Some(&facts[count.checked_sub(1)?].1)
    }
}

/// Returns each span with the earlier spans that had not ended when the span began.
pub fn beside<T>(mut spans: Vec<&T>, of: impl Fn(&T) -> (Time, Time)) -> Vec<(&T, Vec<&T>)> {
    spans.sort_by_key(|span| of(span).0);
    let mut running: Vec<&T> = Vec::new();
    let mut all = Vec::new();
    for span in spans {
        running.retain(|other| of(other).1 > of(span).0);
        all.push((span, running.clone()));
        running.push(span);
    }
    all
}
