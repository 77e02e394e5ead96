use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};

use super::{Claim, Engine, Watch, owed::Owed};
use crate::error::{Error, ErrorKind};

/// A lease that is held. Dropped, it is released by a task that no caller owns.
pub(crate) struct Held {
    engine: Arc<Engine>,
    claim: Claim,
    fence: u64,
    watch: Arc<Watch>,
    runtime: Handle,
    released: bool,
}

impl Held {
    pub(crate) fn new(
        engine: Arc<Engine>,
        claim: Claim,
        fence: u64,
        watch: Arc<Watch>,
        runtime: Handle,
    ) -> Self {
        Self { engine, claim, fence, watch, runtime, released: false }
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    pub(crate) fn fence(&self) -> u64 {
        self.fence
    }

    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self.watch.is_lost() {
            true => Duration::ZERO,
            false => self.watch.deadline().saturating_duration_since(Instant::now()),
        }
    }

    /// Renews the lease now.
    pub(crate) async fn refresh(&self) -> Result<(), Error> {
        if self.watch.is_lost() {
            return Err(lost());
        }
        let sent = Instant::now();
        let claims = std::slice::from_ref(&self.claim);
        match timeout(self.remaining(), self.engine.backend().renew(claims)).await {
            Ok(Ok(held)) if held.first() == Some(&true) => {
                self.watch.renewed(sent);
                Ok(())
            }
            Ok(Ok(_)) => {
                self.watch.tell_lost();
                Err(lost())
            }
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(lost()),
        }
    }

    /// Gives the lease back, and says so if it was lost before.
    ///
    /// Dropping the future does not stop the release.
    pub(crate) async fn release(mut self) -> Result<(), Error> {
        self.released = true;
        self.engine.watchdog.forget(&self.watch);
        let (engine, claim) = (self.engine.clone(), self.claim.clone());
        let owed = Owed::new(engine.clone(), claim.clone(), false);
        let release = async move {
            let answer = engine.backend().release(&claim).await;
            owed.paid();
            match answer {
                Ok(true) => Ok(()),
                Ok(false) => Err(lost()),
                Err(error) => {
                    let runtime = Handle::current();
                    engine.undo(claim, &runtime);
                    Err(error.into())
                }
            }
        };
        match self.engine.tasks.spawn_on(release, &self.runtime).await {
            Ok(outcome) => outcome,
            Err(gone) => Err(Error::with_source(
                ErrorKind::Cancelled,
                "the runtime was shut down before the lease was released",
                gone,
            )),
        }
    }

    /// Stops the renewals: the lease is about to end with the operation that it was for, and a renewal
    /// that came after would take that for a loss.
    pub(crate) fn closing(&self) {
        self.engine.watchdog.forget(&self.watch);
    }

    /// The backend has ended the lease with the operation that it was for.
    pub(crate) fn settled(mut self) {
        self.released = true;
        self.engine.watchdog.forget(&self.watch);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.released {
            self.engine.watchdog.forget(&self.watch);
            self.engine.release(self.claim.clone(), &self.runtime);
        }
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Lost, "the lease was lost; someone else may hold it by now")
}
