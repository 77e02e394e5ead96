//! A backend whose answers can be lost, and whose operations can fail, hang or come late.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bellwether::{
    MemoryBackend,
    backend::{
        Acquired, AcquiredAll, Changes, Claim, Claimed, Committed, Countdown, Entry, Failure,
        Grant, Latches, Leases, Mode, Occupied, Owner, Renewal, Store, acquire_in_order,
    },
    error::{BackendError, BackendErrorKind},
    key::Name,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Acquire,
    AcquireAll,
    Renew,
    Release,
    Pass,
    Holder,
    Clear,
    Changes,
    Get,
    Claim,
    Commit,
    Fail,
    Put,
    Invalidate,
    SetLatch,
    CountDown,
    Latch,
    ClearLatch,
}

#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// It is not done, and known not to be.
    Refuse,
    /// It is done, and the answer never comes.
    LoseReply,
    /// It is not done, and no answer comes.
    Hang,
    /// It is done twice.
    Double,
    /// It is done after this long, and then answered.
    Late(Duration),
    /// No answer comes; and an acquisition, a claim or a release is done after this long, whoever waits for it.
    Astray(Duration),
}

/// Which fault befalls an operation, if any.
type Plan = Box<dyn FnMut(Op) -> Option<Fault> + Send>;

/// No answer comes within the backend's own time-out.
async fn silence<T>() -> Result<T, BackendError> {
    tokio::time::sleep(Duration::from_millis(250)).await;
    Err(BackendError::new(BackendErrorKind::Unknown, "no answer"))
}

#[derive(Clone)]
pub struct Faulty {
    pub inner: MemoryBackend,
    /// Whose pushes are listened to, if not its own.
    pub pushes: Option<MemoryBackend>,
    /// Acquires several one after another, each an operation of its own.
    pub in_order: bool,
    plan: Arc<Mutex<Plan>>,
    done: Arc<Mutex<Vec<Op>>>,
}

impl Faulty {
    pub fn new(plan: impl FnMut(Op) -> Option<Fault> + Send + 'static) -> Self {
        Self::over(MemoryBackend::new(), plan)
    }

    pub fn over(
        inner: MemoryBackend,
        plan: impl FnMut(Op) -> Option<Fault> + Send + 'static,
    ) -> Self {
        let plan: Plan = Box::new(plan);
        Self {
            inner,
            pushes: None,
            in_order: false,
            plan: Arc::new(Mutex::new(plan)),
            done: Arc::default(),
        }
    }

    /// The first of these operations meets the fault, all else goes well.
    pub fn once(op: Op, fault: Fault) -> Self {
        let mut fault = Some(fault);
        Self::new(move |asked| if asked == op { fault.take() } else { None })
    }

    pub fn plan(&self, plan: impl FnMut(Op) -> Option<Fault> + Send + 'static) {
        *self.plan.lock().unwrap() = Box::new(plan);
    }

    /// How often an operation was done.
    pub fn count(&self, op: Op) -> usize {
        self.done.lock().unwrap().iter().filter(|done| **done == op).count()
    }

    async fn befall<T, F>(&self, op: Op, operation: impl FnMut() -> F) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        let fault = (self.plan.lock().unwrap())(op);
        self.suffer(fault, op, operation).await
    }

    /// As [`befall`](Self::befall), of what may be on its way for long.
    async fn stray<T, F>(
        &self,
        op: Op,
        operation: impl Fn(MemoryBackend) -> F + Clone + Send + 'static,
    ) -> Result<T, BackendError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, BackendError>> + Send,
    {
        let fault = (self.plan.lock().unwrap())(op);
        if let Some(Fault::Astray(wait)) = fault {
            let (inner, operation) = (self.inner.clone(), operation.clone());
            tokio::spawn(async move {
                tokio::time::sleep(wait).await;
                let _ = operation(inner).await;
            });
        }
        self.suffer(fault, op, || operation(self.inner.clone())).await
    }

    async fn suffer<T, F>(
        &self,
        fault: Option<Fault>,
        op: Op,
        mut operation: impl FnMut() -> F,
    ) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        let done = || self.done.lock().unwrap().push(op);
        match fault {
            None => {
                done();
                operation().await
            }
            Some(Fault::Refuse) => {
                Err(BackendError::new(BackendErrorKind::Unavailable, "out of order"))
            }
            Some(Fault::LoseReply) => {
                done();
                let _ = operation().await;
                silence().await
            }
            Some(Fault::Hang | Fault::Astray(_)) => silence().await,
            Some(Fault::Double) => {
                done();
                let first = operation().await?;
                let _ = operation().await;
                Ok(first)
            }
            Some(Fault::Late(wait)) => {
                tokio::time::sleep(wait).await;
                done();
                operation().await
            }
        }
    }
}

impl Leases for Faulty {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired, BackendError> {
        let claim = claim.clone();
        let acquire = move |inner: MemoryBackend| {
            let claim = claim.clone();
            async move { inner.acquire(&claim).await }
        };
        self.stray(Op::Acquire, acquire).await
    }

    async fn acquire_all(&self, claims: &[Claim]) -> Result<AcquiredAll, BackendError> {
        if self.in_order {
            return acquire_in_order(self, claims).await;
        }
        self.befall(Op::AcquireAll, || self.inner.acquire_all(claims)).await
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<Renewal>, BackendError> {
        self.befall(Op::Renew, || self.inner.renew(claims)).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        let claim = claim.clone();
        let release = move |inner: MemoryBackend| {
            let claim = claim.clone();
            async move { inner.release(&claim).await }
        };
        self.stray(Op::Release, release).await
    }

    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        self.befall(Op::Pass, || self.inner.pass(from, to)).await
    }

    async fn holder(&self, name: &Name, mode: Mode) -> Result<Option<Occupied>, BackendError> {
        self.befall(Op::Holder, || self.inner.holder(name, mode)).await
    }

    async fn clear(&self, name: &Name, mode: Mode) -> Result<bool, BackendError> {
        self.befall(Op::Clear, || self.inner.clear(name, mode)).await
    }

    async fn changes(&self, name: &Name) -> Result<Changes, BackendError> {
        let pushes = self.pushes.as_ref().unwrap_or(&self.inner);
        self.befall(Op::Changes, || pushes.changes(name)).await
    }
}

impl Store for Faulty {
    async fn get(&self, name: &Name) -> Result<Option<Entry>, BackendError> {
        self.befall(Op::Get, || self.inner.get(name)).await
    }

    async fn claim(&self, claim: &Claim, seen: u64) -> Result<Claimed, BackendError> {
        let claim = claim.clone();
        let claims = move |inner: MemoryBackend| {
            let claim = claim.clone();
            async move { inner.claim(&claim, seen).await }
        };
        self.stray(Op::Claim, claims).await
    }

    async fn commit(
        &self,
        claim: &Claim,
        grant: &Grant,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError> {
        self.befall(Op::Commit, || self.inner.commit(claim, grant, entry, ttl)).await
    }

    async fn fail(&self, claim: &Claim, failure: &Failure) -> Result<bool, BackendError> {
        self.befall(Op::Fail, || self.inner.fail(claim, failure)).await
    }

    async fn put(
        &self,
        name: &Name,
        entry: &Entry,
        ttl: Duration,
        fence_life: Duration,
    ) -> Result<u64, BackendError> {
        self.befall(Op::Put, || self.inner.put(name, entry, ttl, fence_life)).await
    }

    async fn invalidate(&self, name: &Name, fence_life: Duration) -> Result<u64, BackendError> {
        self.befall(Op::Invalidate, || self.inner.invalidate(name, fence_life)).await
    }
}

impl Latches for Faulty {
    async fn set_latch(
        &self,
        name: &Name,
        id: Owner,
        count: u32,
        ttl: Duration,
    ) -> Result<bool, BackendError> {
        self.befall(Op::SetLatch, || self.inner.set_latch(name, id, count, ttl)).await
    }

    async fn count_down(
        &self,
        name: &Name,
        id: Owner,
        by: u32,
    ) -> Result<Option<Countdown>, BackendError> {
        self.befall(Op::CountDown, || self.inner.count_down(name, id, by)).await
    }

    async fn latch(&self, name: &Name) -> Result<Option<Countdown>, BackendError> {
        self.befall(Op::Latch, || self.inner.latch(name)).await
    }

    async fn clear_latch(&self, name: &Name) -> Result<bool, BackendError> {
        self.befall(Op::ClearLatch, || self.inner.clear_latch(name)).await
    }
}
