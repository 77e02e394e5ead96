//! A backend whose acquisitions arrive late, whether or not their caller still waits for them.

use std::time::Duration;

use bellwether::{
    MemoryBackend,
    backend::{Acquired, Changes, Claim, Grant, Leases, Mode, Occupied, Renewal},
    error::{BackendError, BackendErrorKind},
    key::Name,
};

#[derive(Clone)]
pub struct Stray {
    pub inner: MemoryBackend,
    pub by: Duration,
}

impl Leases for Stray {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired, BackendError> {
        let (inner, claim, by) = (self.inner.clone(), claim.clone(), self.by);
        let on_its_way = tokio::spawn(async move {
            tokio::time::sleep(by).await;
            inner.acquire(&claim).await
        });
        let lost = |error| BackendError::new(BackendErrorKind::Unknown, error);
        on_its_way.await.map_err(lost)?
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<Renewal>, BackendError> {
        self.inner.renew(claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        self.inner.release(claim).await
    }

    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        self.inner.pass(from, to).await
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
