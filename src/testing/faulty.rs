//! A backend in memory whose operations can fail, hang or come late, and whose answers can be lost.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::sleep;

use super::{Answer, Hook, Interceptor, Op, Operation};
use crate::{
    MemoryBackend,
    backend::{Changes, Claim, Edit, Leases},
    error::{BackendError, BackendErrorKind},
    key::Name,
    sync::lock,
};

/// The fault of an operation of a [`Faulty`] backend.
///
/// If no answer comes, the caller gets an error of the kind
/// [`Unknown`](BackendErrorKind::Unknown) after 250 ms, the default command time-out of
/// `RedisBackend`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The backend is away: the operation is not performed, and its caller gets an error at once.
    Refuse,
    /// The backend has no room. It performs reads, renewals, releases and removals, and refuses new
    /// leases, entries, tags and latches. A [commit](Op::Commit) gives its value to the waiters and
    /// stores nothing.
    Full,
    /// The backend is silent: the operation is not performed, and no answer comes.
    Hang,
    /// The backend is slow: the operation is performed and answered after this time. After more
    /// than a second, the operation is not performed, and no answer comes.
    Late(Duration),
    /// The operation is performed, and no answer comes.
    LoseReply,
    /// The operation is performed, and its pushes reach neither waiters nor local tiers. For
    /// [`Op::Changes`], the waiter is registered and receives nothing.
    LosePushes,
    /// The operation is performed twice, as if the command was sent twice.
    Double,
    /// No answer comes. An [acquisition](Op::Acquire), a [claim](Op::Claim) or a
    /// [release](Op::Release) is performed after this time, even if its caller has given up by
    /// then.
    Astray(Duration),
}

type FaultPlan = Box<dyn FnMut(Op) -> Option<Fault> + Send>;

/// A backend in memory whose operations meet [faults](Fault), by a plan.
///
/// The plan is a function that is called before each operation, and returns the fault of the
/// operation, or `None`. Clones share the plan, the data and the counts. A test that pauses tokio's
/// time pauses the backend.
pub type Faulty = Interceptor<MemoryBackend, Faults>;

/// The [`Hook`] of a [`Faulty`] backend.
#[derive(Clone)]
pub struct Faults {
    plan: Arc<Mutex<FaultPlan>>,
    performed: Arc<Mutex<Vec<Op>>>,
}

impl Faulty {
    /// Creates a backend with the faults of this plan.
    ///
    /// The plan is called under a lock, so it must not use this backend.
    pub fn new(plan: impl FnMut(Op) -> Option<Fault> + Send + 'static) -> Self {
        Self::over(MemoryBackend::new(), plan)
    }

    /// Puts the faults of a plan in front of a backend.
    ///
    /// To simulate a fleet, create a `Faulty` for each process over clones of one
    /// [`MemoryBackend`]. Each process then has its own faults.
    pub fn over(
        inner: MemoryBackend,
        plan: impl FnMut(Op) -> Option<Fault> + Send + 'static,
    ) -> Self {
        let plan: FaultPlan = Box::new(plan);
        let hook = Faults { plan: Arc::new(Mutex::new(plan)), performed: Arc::default() };
        Self { inner, hook }
    }

    /// Replaces the plan, for the operations that begin from now on.
    pub fn plan(&self, plan: impl FnMut(Op) -> Option<Fault> + Send + 'static) {
        *lock(&self.hook.plan) = Box::new(plan);
    }

    /// Returns how many operations of this kind were performed, or at least begun. An operation
    /// that was refused, that hung or that went [astray](Fault::Astray) does not count.
    pub fn count(&self, op: Op) -> usize {
        let performed = lock(&self.hook.performed);
        performed.iter().filter(|performed| **performed == op).count()
    }
}

impl Faults {
    fn fault(&self, op: Op) -> Option<Fault> {
        (lock(&self.plan))(op)
    }

    async fn perform(
        &self,
        backend: &MemoryBackend,
        operation: &Operation,
    ) -> Result<Answer, BackendError> {
        lock(&self.performed).push(operation.op());
        operation.perform(backend).await
    }
}

impl Hook<MemoryBackend> for Faults {
    fn listen(&self, inner: &MemoryBackend, name: &Name, claim: Option<&Claim>) -> Changes {
        let fault = self.fault(Op::Changes);
        if let Some(Fault::Refuse) = fault {
            return Changes::none();
        }
        lock(&self.performed).push(Op::Changes);
        match fault {
            Some(Fault::LosePushes) => inner.without_waiters().listen(name, claim),
            _ => inner.listen(name, claim),
        }
    }

    async fn around(
        &self,
        inner: &MemoryBackend,
        operation: Operation,
    ) -> Result<Answer, BackendError> {
        match self.fault(operation.op()) {
            None => self.perform(inner, &operation).await,
            Some(Fault::Refuse) => {
                Err(BackendError::new(BackendErrorKind::Unavailable, "out of order"))
            }
            Some(Fault::Full) => self.perform(inner, &without_room(operation)?).await,
            Some(Fault::Hang) => silence().await,
            Some(Fault::Late(wait)) => {
                sleep(wait).await;
                self.perform(inner, &operation).await
            }
            Some(Fault::LoseReply) => {
                let _ = self.perform(inner, &operation).await;
                silence().await
            }
            Some(Fault::LosePushes) => self.perform(&inner.without_waiters(), &operation).await,
            Some(Fault::Double) => {
                let first = self.perform(inner, &operation).await?;
                let _ = operation.perform(inner).await;
                Ok(first)
            }
            Some(Fault::Astray(wait)) => {
                if matches!(operation.op(), Op::Acquire | Op::Claim | Op::Release) {
                    let backend = inner.clone();
                    tokio::spawn(async move {
                        sleep(wait).await;
                        operation.perform(&backend).await
                    });
                }
                silence().await
            }
        }
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").finish_non_exhaustive()
    }
}

/// Returns the operation as a backend without room performs it, or its refusal.
fn without_room(operation: Operation) -> Result<Operation, BackendError> {
    match operation {
        Operation::Acquire { .. }
        | Operation::SetFence { .. }
        | Operation::Mark { .. }
        | Operation::Claim { .. }
        | Operation::Edit { edit: Edit::Put(..) | Edit::Touch { .. }, .. }
        | Operation::EndTag { .. }
        | Operation::SetLatch { .. } => Err(BackendError::refused("the backend is full")),
        Operation::Commit { claim, grant, entry, .. } => {
            Ok(Operation::Commit { claim, grant, entry, ttl: None })
        }
        fits => Ok(fits),
    }
}

/// Waits for an answer that does not come within the time limit of a backend.
async fn silence<T>() -> Result<T, BackendError> {
    sleep(Duration::from_millis(250)).await;
    Err(BackendError::new(BackendErrorKind::Unknown, "no answer"))
}
