//! Releases that somebody owes, and who does them when their runtime is gone.
//!
//! A release runs in a task that no caller owns, on the runtime of the acquisition. That runtime may go away
//! in the middle of a load, with the task, and would leave the fleet to wait for the end of the lease. So
//! what is owed is a guard: dropped unpaid, it is handed to a thread with a small runtime of its own, which
//! lives as long as there is something to release. (A process that ends takes the thread with it; then the
//! lease ends by itself.)

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{
    runtime::Builder,
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};
use tracing::{debug, warn};

use super::{Claim, Engine};
use crate::{
    backend::{ANSWER_LIMIT, DynLeases, answered_by},
    time::after,
};

/// Between tries of a release. They are short, for when the backend is back, somebody waits for it; and while
/// it is known to be away, a try costs nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(80);

/// A release is repeated after these parts of the lease, or these times if they are shorter, where the acquisition may
/// arrive after it.
const LATE: [(u32, Duration); 3] =
    [(16, Duration::from_secs(1)), (4, Duration::from_secs(10)), (1, Duration::from_secs(60))];

/// A release that must happen.
pub(super) struct Owed {
    engine: Arc<Engine>,
    debt: Debt,
    paid: bool,
}

#[derive(Clone)]
struct Debt {
    claim: Claim,
    /// The acquisition may still be on its way, and arrive after its release.
    doubtful: bool,
}

/// What no runtime does any more.
#[derive(Default)]
pub(super) struct Estate {
    unpaid: Mutex<Unpaid>,
    /// Told when there is more.
    came: Notify,
}

#[derive(Default)]
struct Unpaid {
    debts: Vec<Debt>,
    running: bool,
}

impl Owed {
    pub(super) fn new(engine: Arc<Engine>, claim: Claim, doubtful: bool) -> Self {
        Self { engine, debt: Debt { claim, doubtful }, paid: false }
    }

    /// Pays it.
    pub(super) async fn pay(mut self) {
        self.debt.pay(&self.engine, self.engine.backend().as_ref()).await;
        self.paid = true;
    }

    /// It was paid but for what may arrive late.
    pub(super) async fn pay_late(mut self) {
        self.debt.pay_late(&self.engine, self.engine.backend().as_ref()).await;
        self.paid = true;
    }

    pub(super) fn is_doubtful(&self) -> bool {
        self.debt.doubtful
    }

    pub(super) fn claim(&self) -> &Claim {
        &self.debt.claim
    }

    /// What was tried was not answered, so it may yet be done, or undone.
    pub(super) fn doubted(mut self) -> Self {
        self.debt.doubtful = true;
        self
    }

    /// It was paid in another way.
    pub(super) fn paid(mut self) {
        self.paid = true;
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if !self.paid {
            inherit(&self.engine, self.debt.clone());
        }
    }
}

impl Debt {
    /// Releases what may be held.
    async fn pay(&self, engine: &Engine, backend: &dyn DynLeases) {
        release_until(backend, &self.claim, after(Instant::now(), self.claim.lease)).await;
        if self.doubtful {
            self.pay_late(engine, backend).await;
        }
    }

    /// Releases what may come to be held: an acquisition that is still on its way on a connection that broke can arrive
    /// after the release. Most that are late are so by a moment.
    async fn pay_late(&self, engine: &Engine, backend: &dyn DynLeases) {
        let released = Instant::now();
        for (part, most) in LATE {
            let then = after(released, most.min(self.claim.lease / part));
            tokio::select! {
                () = sleep_until(then) => {
                    release_until(backend, &self.claim, after(released, self.claim.lease)).await;
                }
                () = engine.stop.cancelled() => return,
            }
        }
    }
}

/// Releases, and tries again until the lease must have ended by itself.
async fn release_until(backend: &dyn DynLeases, claim: &Claim, end: Instant) {
    let mut pause = FIRST_PAUSE;
    loop {
        match answered_by(backend, ANSWER_LIMIT, backend.release(claim)).await {
            Ok(_) => return,
            Err(error) if Instant::now() + pause >= end => {
                debug!(name = ?claim.name, error = %crate::error::Chain(&error), "a lease could not be released; it ends by itself");
                return;
            }
            Err(error) => {
                debug!(name = ?claim.name, error = %crate::error::Chain(&error), "release failed; trying again")
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn inherit(engine: &Arc<Engine>, debt: Debt) {
    let mut unpaid = engine.estate.unpaid();
    unpaid.debts.push(debt);
    if std::mem::replace(&mut unpaid.running, true) {
        engine.estate.came.notify_one();
        return;
    }
    let heir = engine.clone();
    let started = thread::Builder::new().name("bellwether-release".to_owned()).spawn(|| work(heir));
    if let Err(error) = started {
        warn!(%error, "leases of a runtime that is gone are not released; they end by themselves");
        *unpaid = Unpaid::default();
    }
}

fn work(engine: Arc<Engine>) {
    let _token = engine.tasks.token();
    let Ok(runtime) = Builder::new_current_thread().enable_all().build() else {
        *engine.estate.unpaid() = Unpaid::default();
        return;
    };
    // With connections of its own: one that is made here ends here, and others may be in use elsewhere.
    let backend = engine.backend().apart().unwrap_or_else(|| engine.backend().clone());
    runtime.block_on(async {
        let mut paying = FuturesUnordered::new();
        loop {
            {
                let mut unpaid = engine.estate.unpaid();
                let debts = unpaid.debts.drain(..);
                let (engine, backend) = (&engine, backend.as_ref());
                paying.extend(debts.map(|debt| async move { debt.pay(engine, backend).await }));
                if paying.is_empty() {
                    unpaid.running = false;
                    return;
                }
            }
            // One that takes its time keeps no other waiting.
            tokio::select! {
                _ = paying.next() => {}
                () = engine.estate.came.notified() => {}
            }
        }
    });
}

impl Estate {
    fn unpaid(&self) -> MutexGuard<'_, Unpaid> {
        self.unpaid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
