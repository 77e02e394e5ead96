//! The backend of a worker: the real one, with a record of every grant and every write; or, where a test
//! wants to see the checker fail, with one of its scripts broken.

use std::{
    collections::HashSet,
    io::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use bellwether::{
    RedisBackend,
    backend::{
        Acquired, AcquiredAll, Changes, Claim, Claimed, Committed, Countdown, Entry, Failure,
        Grant, Latches, Leases, Mode, Occupied, Owner, Renewal, Store,
    },
    error::BackendError,
    key::Name,
};

use super::{
    broken::Scripts,
    history::{Event, Family, Line, Time, Value, now},
};

/// Writes a line, whole and at once, so that it outlives a kill that comes after it.
pub fn tell(event: Event) {
    tell_at(now(), event);
}

pub fn tell_at(at: Time, event: Event) {
    let line = serde_json::to_string(&Line { at, event }).unwrap();
    let mut out = std::io::stdout().lock();
    // On a line of its own, whatever the test harness has begun to write on the present one.
    let told = out.write_all(format!("\n{line}\n").as_bytes());
    if told.and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

#[derive(Clone)]
pub struct Recorder {
    inner: RedisBackend,
    broken: Option<Arc<Scripts>>,
    /// The values whose fence was told.
    seen: Arc<Mutex<HashSet<Value>>>,
}

impl Recorder {
    pub fn new(inner: RedisBackend, broken: Option<Scripts>) -> Self {
        Self { inner, broken: broken.map(Arc::new), seen: Arc::default() }
    }

    fn saw(&self, name: &Name, entry: &Entry) {
        if let Some(value) = value(entry)
            && self.seen.lock().unwrap().insert(value)
        {
            tell(Event::Seen { key: key(name), value, fence: entry.fence });
        }
    }
}

fn granted(family: Family, claim: &Claim, grant: &Grant, sent: Time) {
    if !claim.mode.is_fenced() {
        return;
    }
    let (key, token) = (key(&claim.name), claim.owner.to_string());
    tell(Event::Granted { family, key, token, fence: grant.fence(), sent });
}

/// What its user calls a name.
fn key(name: &Name) -> String {
    let prefix = name.prefix();
    prefix[prefix.find('{').unwrap() + 1..prefix.find('}').unwrap()].to_owned()
}

fn value(entry: &Entry) -> Option<Value> {
    serde_json::from_slice(&entry.payload).ok()
}

impl Leases for Recorder {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired, BackendError> {
        let sent = now();
        let answer = match &self.broken {
            Some(broken) if broken.breaks(claim.mode) => broken.acquire(claim).await,
            _ => self.inner.acquire(claim).await,
        };
        if let Ok(Acquired::Granted(grant)) = &answer {
            granted(Family::Lock, claim, grant, sent);
        }
        answer
    }

    async fn acquire_all(&self, claims: &[Claim]) -> Result<AcquiredAll, BackendError> {
        let sent = now();
        let answer = self.inner.acquire_all(claims).await;
        if let Ok(AcquiredAll::Granted(grants)) = &answer {
            for (claim, grant) in claims.iter().zip(grants) {
                granted(Family::Lock, claim, grant, sent);
            }
        }
        answer
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<Renewal>, BackendError> {
        self.inner.renew(claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        match &self.broken {
            Some(broken) if broken.release.is_some() && claim.mode == Mode::Exclusive => {
                broken.release(claim).await
            }
            _ => self.inner.release(claim).await,
        }
    }

    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        let sent = now();
        let answer = self.inner.pass(from, to).await;
        if let Ok(Some(grant)) = &answer {
            granted(Family::Lock, to, grant, sent);
        }
        answer
    }

    async fn holder(&self, name: &Name, mode: Mode) -> Result<Option<Occupied>, BackendError> {
        self.inner.holder(name, mode).await
    }

    async fn clear(&self, name: &Name, mode: Mode) -> Result<bool, BackendError> {
        self.inner.clear(name, mode).await
    }

    async fn changes(&self, name: &Name) -> Result<Changes, BackendError> {
        self.inner.changes(name).await
    }
}

impl Store for Recorder {
    async fn get(&self, name: &Name) -> Result<Option<Entry>, BackendError> {
        let answer = self.inner.get(name).await;
        if let Ok(Some(entry)) = &answer {
            self.saw(name, entry);
        }
        answer
    }

    async fn claim(&self, claim: &Claim, seen: u64) -> Result<Claimed, BackendError> {
        let sent = now();
        let answer = match &self.broken {
            Some(broken) if broken.acquire.is_some() => broken.claim(claim, seen).await,
            _ => self.inner.claim(claim, seen).await,
        };
        match &answer {
            Ok(Claimed::Granted(grant)) => granted(Family::Cache, claim, grant, sent),
            Ok(Claimed::Newer(entry)) => self.saw(&claim.name, entry),
            _ => {}
        }
        answer
    }

    async fn commit(
        &self,
        claim: &Claim,
        grant: &Grant,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError> {
        let sent = now();
        let answer = match &self.broken {
            Some(broken) if broken.commit.is_some() => {
                broken.commit(claim, grant, entry, ttl).await
            }
            _ => self.inner.commit(claim, grant, entry, ttl).await,
        };
        match &answer {
            Ok(Committed::Stored) => {
                tell(Event::Stored { key: key(&claim.name), fence: grant.fence(), sent });
            }
            Ok(Committed::Newer(entry)) => self.saw(&claim.name, entry),
            _ => {}
        }
        answer
    }

    async fn fail(&self, claim: &Claim, failure: &Failure) -> Result<bool, BackendError> {
        self.inner.fail(claim, failure).await
    }

    async fn put(
        &self,
        name: &Name,
        entry: &Entry,
        ttl: Duration,
        fence_life: Duration,
    ) -> Result<u64, BackendError> {
        let sent = now();
        let answer = self.inner.put(name, entry, ttl, fence_life).await;
        if let Ok(fence) = answer {
            tell(Event::Burnt { key: key(name), fence, value: value(entry), sent });
        }
        answer
    }

    async fn invalidate(&self, name: &Name, fence_life: Duration) -> Result<u64, BackendError> {
        let sent = now();
        let answer = match &self.broken {
            Some(broken) if broken.invalidate.is_some() => {
                broken.invalidate(name, fence_life).await
            }
            _ => self.inner.invalidate(name, fence_life).await,
        };
        if let Ok(fence) = answer {
            tell(Event::Burnt { key: key(name), fence, value: None, sent });
        }
        answer
    }
}

impl Latches for Recorder {
    async fn set_latch(
        &self,
        name: &Name,
        id: Owner,
        count: u32,
        ttl: Duration,
    ) -> Result<bool, BackendError> {
        self.inner.set_latch(name, id, count, ttl).await
    }

    async fn count_down(
        &self,
        name: &Name,
        id: Owner,
        by: u32,
    ) -> Result<Option<Countdown>, BackendError> {
        self.inner.count_down(name, id, by).await
    }

    async fn latch(&self, name: &Name) -> Result<Option<Countdown>, BackendError> {
        self.inner.latch(name).await
    }

    async fn clear_latch(&self, name: &Name) -> Result<bool, BackendError> {
        self.inner.clear_latch(name).await
    }
}
