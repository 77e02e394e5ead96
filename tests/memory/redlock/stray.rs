//! A backend whose acquisitions arrive late, whether or not their caller still waits for them.

use bellwether::error::{BackendError, BackendErrorKind};
use testkit::interceptor::{Answer, Hook, Interceptor, Operation};

use crate::prelude::*;

#[derive(Clone)]
pub struct Stray {
    by: Duration,
}

/// Returns a backend whose acquisitions arrive this much later.
pub fn stray(inner: &MemoryBackend, by: Duration) -> Interceptor<MemoryBackend, Stray> {
    Interceptor { inner: inner.clone(), hook: Stray { by } }
}

impl Hook<MemoryBackend> for Stray {
    async fn around(
        &self,
        inner: &MemoryBackend,
        operation: Operation,
    ) -> Result<Answer, BackendError> {
        if operation.op() != Op::Acquire {
            return operation.perform(inner).await;
        }
        let inner = inner.clone();
        let by = self.by;
        let on_its_way = spawn(async move {
            sleep(by).await;
            operation.perform(&inner).await
        });
        let lost = |error| BackendError::new(BackendErrorKind::Unknown, error);
        on_its_way.await.map_err(lost)?
    }
}
