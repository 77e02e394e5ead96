//! A backend in memory whose operations can fail, hang or come late, and whose answers can be lost.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bellwether::{
    MemoryBackend,
    backend::{Changes, Claim, Leases},
    error::{BackendError, BackendErrorKind},
    key::Name,
};
use tokio::time::sleep;

pub use crate::interceptor::Op;
use crate::interceptor::{Answer, Hook, Interceptor, Operation};

/// The fault that an operation meets.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The operation is not performed, and its caller is told so.
    Refuse,
    /// The operation is performed, and its answer is lost.
    LoseReply,
    /// The operation is not performed, and no answer comes.
    Hang,
    /// The operation is performed twice.
    Double,
    /// The operation is performed and answered after this time.
    Late(Duration),
    /// No answer comes. An acquisition, a claim or a release is performed after this time, even if
    /// its caller has given up by then.
    Astray(Duration),
}

/// Decides which fault an operation meets, if any.
type Plan = Box<dyn FnMut(Op) -> Option<Fault> + Send>;

/// A backend in memory with [`Faults`].
pub type Faulty = Interceptor<MemoryBackend, Faults>;

/// The hook of a [`Faulty`] backend.
#[derive(Clone)]
pub struct Faults {
    /// The backend whose pushes are delivered, if they are not those of the inner one.
    pub pushes: Option<MemoryBackend>,
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
        let plan = Arc::new(Mutex::new(plan));
        let hook = Faults { pushes: None, plan, done: Arc::default() };
        Self { inner, hook }
    }

    /// Gives the fault to the first of these operations, and to no other.
    pub fn once(op: Op, fault: Fault) -> Self {
        let mut fault = Some(fault);
        Self::new(move |asked| if asked == op { fault.take() } else { None })
    }

    pub fn plan(&self, plan: impl FnMut(Op) -> Option<Fault> + Send + 'static) {
        *self.hook.plan.lock().unwrap() = Box::new(plan);
    }

    /// Returns how many operations of this kind were performed, without those that went astray.
    pub fn count(&self, op: Op) -> usize {
        self.hook.done.lock().unwrap().iter().filter(|done| **done == op).count()
    }
}

impl Hook<MemoryBackend> for Faults {
    fn listen(&self, inner: &MemoryBackend, name: &Name, claim: Option<&Claim>) -> Changes {
        if let Some(Fault::Refuse) = (self.plan.lock().unwrap())(Op::Changes) {
            return Changes::none();
        }
        self.done.lock().unwrap().push(Op::Changes);
        self.pushes.as_ref().unwrap_or(inner).listen(name, claim)
    }

    async fn around(
        &self,
        inner: &MemoryBackend,
        operation: Operation,
    ) -> Result<Answer, BackendError> {
        let op = operation.op();
        let backend = match (op, &self.pushes) {
            (Op::Changes, Some(pushes)) => pushes,
            _ => inner,
        };
        let done = || self.done.lock().unwrap().push(op);
        let fault = (self.plan.lock().unwrap())(op);
        match fault {
            None => {
                done();
                operation.perform(backend).await
            }
            Some(Fault::Refuse) => {
                Err(BackendError::new(BackendErrorKind::Unavailable, "out of order"))
            }
            Some(Fault::LoseReply) => {
                done();
                let _ = operation.perform(backend).await;
                silence().await
            }
            Some(Fault::Hang) => silence().await,
            Some(Fault::Double) => {
                done();
                let first = operation.perform(backend).await?;
                let _ = operation.perform(backend).await;
                Ok(first)
            }
            Some(Fault::Late(wait)) => {
                sleep(wait).await;
                done();
                operation.perform(backend).await
            }
            Some(Fault::Astray(wait)) => {
                if matches!(op, Op::Acquire | Op::Claim | Op::Release) {
                    perform_later(wait, backend.clone(), operation);
                }
                silence().await
            }
        }
    }
}

/// Waits for an answer that does not come within the time limit of a backend.
async fn silence<T>() -> Result<T, BackendError> {
    sleep(Duration::from_millis(250)).await;
    Err(BackendError::new(BackendErrorKind::Unknown, "no answer"))
}

/// Performs an operation after this time, even if its caller has given up by then.
fn perform_later(wait: Duration, backend: MemoryBackend, operation: Operation) {
    tokio::spawn(async move {
        sleep(wait).await;
        let _ = operation.perform(&backend).await;
    });
}
