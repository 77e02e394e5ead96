//! The backend of a worker: the real one, with a record of every grant and every write. For a test
//! that expects the checker to fail, one of its scripts is broken.

use std::{
    collections::HashSet,
    io::Write,
    sync::{Arc, Mutex},
};

use bellwether::{
    RedisBackend,
    backend::{Acquired, AcquiredAll, Claim, Claimed, Committed, Entry, Grant},
    error::BackendError,
    key::Name,
};
use testkit::interceptor::{Answer, Hook, Interceptor, Operation};

use super::{
    broken::Scripts,
    history::{Event, Family, Line, Time, Value, now},
};

/// Writes a whole line at once, so that it survives a later kill.
pub fn tell(event: Event) {
    tell_at(now(), event);
}

pub fn tell_at(at: Time, event: Event) {
    let line = serde_json::to_string(&Line { at, event }).unwrap();
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
    broken: Option<Arc<Scripts>>,
    /// The values whose fence was recorded.
    seen: Arc<Mutex<HashSet<Value>>>,
}

impl Recorder {
    /// Returns the backend with a record of its answers. The broken scripts replace those of the
    /// crate.
    pub fn over(inner: RedisBackend, broken: Option<Scripts>) -> Interceptor<RedisBackend, Self> {
        let hook = Self { broken: broken.map(Arc::new), seen: Arc::default() };
        Interceptor { inner, hook }
    }

    fn record(&self, operation: &Operation, answer: &Answer, sent: Time) {
        match (operation, answer) {
            (Operation::Acquire { claim }, Answer::Acquire(Acquired::Granted(grant)))
            | (Operation::Pass { to: claim, .. }, Answer::Pass(Some(grant))) => {
                granted(Family::Lock, claim, grant, sent);
            }
            (
                Operation::AcquireAll { claims },
                Answer::AcquireAll(AcquiredAll::Granted(grants)),
            ) => {
                for (claim, grant) in claims.iter().zip(grants) {
                    granted(Family::Lock, claim, grant, sent);
                }
            }
            (Operation::Claim { claim, .. }, Answer::Claim(Claimed::Granted(grant))) => {
                granted(Family::Cache, claim, grant, sent);
            }
            (Operation::Claim { claim, .. }, Answer::Claim(Claimed::Newer(entry)))
            | (Operation::Commit { claim, .. }, Answer::Commit(Committed::Newer(entry))) => {
                self.saw(&claim.name, entry);
            }
            (Operation::Get { name }, Answer::Get(Some(entry))) => self.saw(name, entry),
            (Operation::Commit { claim, fence, .. }, Answer::Commit(Committed::Stored)) => {
                tell(Event::Stored { key: key(&claim.name), fence: *fence, sent });
            }
            (Operation::Put { name, entry, .. }, Answer::Put(fence)) => {
                tell(Event::Burnt { key: key(name), fence: *fence, value: value(entry), sent });
            }
            (Operation::Invalidate { name, .. }, Answer::Invalidate(fence)) => {
                tell(Event::Burnt { key: key(name), fence: *fence, value: None, sent });
            }
            _ => {}
        }
    }

    fn saw(&self, name: &Name, entry: &Entry) {
        if let Some(value) = value(entry)
            && self.seen.lock().unwrap().insert(value)
        {
            tell(Event::Seen { key: key(name), value, fence: entry.fence });
        }
    }
}

impl Hook<RedisBackend> for Recorder {
    async fn around(
        &self,
        backend: &RedisBackend,
        operation: Operation,
    ) -> Result<Answer, BackendError> {
        let sent = now();
        let answer = match &self.broken {
            Some(broken) if broken.breaks(&operation) => broken.perform(&operation).await,
            _ => operation.perform(backend).await,
        }?;
        self.record(&operation, &answer, sent);
        Ok(answer)
    }
}

fn granted(family: Family, claim: &Claim, grant: &Grant, sent: Time) {
    if !claim.mode.is_fenced() {
        return;
    }
    let (key, owner) = (key(&claim.name), claim.owner.to_string());
    tell(Event::Granted { family, key, owner, fence: grant.fence(), sent });
}

/// Returns the key of a name as its user writes it.
fn key(name: &Name) -> String {
    let prefix = name.prefix();
    prefix[prefix.find('{').unwrap() + 1..prefix.find('}').unwrap()].to_owned()
}

fn value(entry: &Entry) -> Option<Value> {
    serde_json::from_slice(&entry.payload).ok()
}
