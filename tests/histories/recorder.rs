//! The backend of a worker: the real one, with a record of every grant and every write.

use std::{
    collections::HashSet,
    io::Write,
    sync::{Arc, Mutex},
};

use bellwether::{
    backend::{Claim, Claimed, Committed, Edit, Entry, Grant, Store, TagEnd},
    error::{BackendError, BackendErrorKind},
    key::Name,
};
use testkit::interceptor::{Answer, Hook, Interceptor, Operation};

use super::history::{Act, Event, Family, Line, Process, Time, Value, now};

/// Where a process writes its events.
#[derive(Clone)]
pub enum Log {
    /// To its parent.
    Output,
    /// To a list that several share, under paused time.
    Memory(Process, Arc<Shared>),
}

/// The events of all processes that are simulated in this one.
pub struct Shared {
    begun: tokio::time::Instant,
    /// The last time that was given. No two events have the same time.
    last: Mutex<Time>,
    pub lines: Mutex<Vec<(Process, Line)>>,
}

impl Shared {
    pub fn new() -> Arc<Self> {
        let begun = tokio::time::Instant::now();
        Arc::new(Self { begun, last: Mutex::default(), lines: Mutex::default() })
    }
}

impl Log {
    pub fn now(&self) -> Time {
        match self {
            Self::Output => now(),
            Self::Memory(_, shared) => {
                let time = u64::try_from(shared.begun.elapsed().as_micros()).unwrap();
                let mut last = shared.last.lock().unwrap();
                *last = time.max(*last + 1);
                *last
            }
        }
    }

    /// Writes a whole line at once, so that it survives a later kill.
    pub fn tell(&self, event: Event) {
        let line = Line { at: self.now(), event };
        match self {
            Self::Output => print(line),
            Self::Memory(process, shared) => shared.lines.lock().unwrap().push((*process, line)),
        }
    }
}

fn print(line: Line) {
    let line = serde_json::to_string(&line).unwrap();
    let mut out = std::io::stdout().lock();
    // The test harness may have begun a line, so the event starts a new one.
    let told = out.write_all(format!("\n{line}\n").as_bytes());
    if told.and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Records the grants and the writes of the backend.
#[derive(Clone)]
pub struct Recorder {
    log: Log,
    /// The values and their fences that were recorded.
    seen: Arc<Mutex<HashSet<(Value, u64)>>>,
}

impl Recorder {
    /// Returns the backend with a record of its answers.
    pub fn over<B>(inner: B, log: Log) -> Interceptor<B, Self> {
        let hook = Self { log, seen: Arc::default() };
        Interceptor { inner, hook }
    }

    fn record(&self, operation: &Operation, answer: &Answer, sent: Time) {
        match (operation, answer) {
            (Operation::Acquire { claim }, Answer::Acquire(Claimed::Granted(grant)))
            | (Operation::Pass { to: claim, .. }, Answer::Pass(Some(grant))) => {
                self.granted(Family::Lock, claim, grant, sent);
            }
            (Operation::Claim { claim, .. }, Answer::Claim(Claimed::Granted(grant))) => {
                self.granted(Family::Cache, claim, grant, sent);
            }
            (Operation::Claim { claim, .. }, Answer::Claim(Claimed::Newer(entry)))
            | (Operation::Commit { claim, .. }, Answer::Commit(Committed::Newer(entry))) => {
                self.saw(&claim.name, entry);
            }
            (Operation::Get { name, .. }, Answer::Get(Some(entry))) => self.saw(name, entry),
            (Operation::Commit { claim, grant, .. }, Answer::Commit(Committed::Stored)) => {
                let key = key(&claim.name);
                let fence = grant.fence();
                self.log.tell(Event::Stored { key, fence, sent });
            }
            (Operation::Fail { claim, back_off: Some(back_off), .. }, Answer::Fail(true)) => {
                let wait = u64::try_from(back_off.wait.as_micros()).unwrap();
                self.log.tell(Event::BackedOff { key: key(&claim.name), wait, sent });
            }
            (Operation::Edit { name, edit, .. }, Answer::Edit(fence)) => {
                let (act, value) = match edit {
                    Edit::Put(entry, _) => (Act::Insert, value(entry)),
                    Edit::Invalidate => (Act::Invalidate, None),
                    Edit::Expire => (Act::Expire, None),
                    Edit::Supersede => (Act::Refresh, None),
                    Edit::Touch { .. } if *fence == 0 => return,
                    Edit::Touch { .. } => (Act::Touch, None),
                };
                let key = key(name);
                let fence = *fence;
                self.log.tell(Event::Written { act, key, fence, value, sent });
            }
            (Operation::EndTag { tag, end, .. }, Answer::EndTag(_)) => {
                let expires = *end == TagEnd::Expired;
                self.log.tell(Event::TagEnded { tag: tag.clone(), expires, sent });
            }
            _ => {}
        }
    }

    fn record_failure(&self, operation: &Operation, error: &BackendError) {
        if error.kind() != BackendErrorKind::Refused {
            return;
        }
        let (claim, fence) = match operation {
            Operation::Commit { claim, grant, .. } => (claim, Some(grant.fence())),
            Operation::Claim { claim, .. } => (claim, None),
            _ => return,
        };
        self.log.tell(Event::Refused { key: key(&claim.name), fence });
    }

    fn granted(&self, family: Family, claim: &Claim, grant: &Grant, sent: Time) {
        if !claim.mode.is_fenced() {
            return;
        }
        let key = key(&claim.name);
        let owner = claim.owner.to_string();
        self.log.tell(Event::Granted { family, key, owner, fence: grant.fence(), sent });
    }

    fn saw(&self, name: &Name, entry: &Entry) {
        if let Some(value) = value(entry)
            && self.seen.lock().unwrap().insert((value, entry.fence))
        {
            self.log.tell(Event::Seen { key: key(name), value, fence: entry.fence });
        }
    }
}

impl<B: Store> Hook<B> for Recorder {
    async fn around(&self, backend: &B, operation: Operation) -> Result<Answer, BackendError> {
        let sent = self.log.now();
        let answer = operation.perform(backend).await;
        match &answer {
            Ok(answer) => self.record(&operation, answer, sent),
            Err(error) => self.record_failure(&operation, error),
        }
        answer
    }
}

/// Returns the key of a name as its user writes it.
fn key(name: &Name) -> String {
    let prefix = name.prefix();
    prefix[prefix.find('{').unwrap() + 1..prefix.find('}').unwrap()].to_owned()
}

fn value(entry: &Entry) -> Option<Value> {
    serde_json::from_slice(&entry.payload).ok()
}
