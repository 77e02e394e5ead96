//! Releases, which happen whatever becomes of their callers.
//!
//! A release is polled by its caller, since a task would cost a change of threads. If the caller
//! leaves, the release goes on in a task on the runtime of the acquisition. That runtime may go
//! away as well, in the middle of a load, and the fleet would wait for the end of the lease. So a
//! [`Release`] is an obligation: dropped before it is done, it goes to the janitor. The janitor is
//! a thread with a small runtime of its own, and lives as long as there is something to release.
//! The end of the process ends it too, and the leases end by themselves.
//!
//! A runtime of the current thread runs its tasks only inside of `block_on`. A caller outside of it
//! cannot know whether that comes again, so its release goes to the janitor as well.

mod janitor;

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    time::{Instant, sleep, sleep_until},
};
use tracing::debug;

use crate::{
    backend::{Claim, DynLeases},
    error::{BackendError, Chain, Error},
    observe::Rarely,
    time::after,
};

pub(crate) use self::janitor::Janitor;

/// The pauses between requests of a release. They are short, since a waiter needs the lease when
/// the backend is back. A request to a backend that is known to be away costs nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(80);

/// A release whose acquisition may arrive late is repeated after these parts of the lease, or after
/// these times if they are shorter. A server that stood still may run the first release a moment
/// before the acquisition, which lies in an older connection.
const LATE: [(u32, Duration); 4] = [
    (64, Duration::from_millis(200)),
    (16, Duration::from_secs(1)),
    (4, Duration::from_secs(10)),
    (1, Duration::from_secs(60)),
];

/// How long an acquisition is believed to lie in a server that does not answer.
const LONGEST_SILENCE: Duration = Duration::from_secs(3600);

/// A release that must happen. Dropped before it is done, it goes to the janitor's thread.
pub(super) struct Release {
    janitor: Arc<Janitor>,
    claim: Claim,
    /// The acquisition may still be on its way, and arrive after its release.
    outcome_unknown: bool,
    duty: Duty,
}

/// On what the release depends.
#[derive(Clone, Copy, PartialEq)]
enum Duty {
    /// A caller or a task, whose runtime may go away.
    Runtime,
    /// The janitor's thread.
    Janitor,
    /// Nothing any more: it is done.
    Done,
}

impl Release {
    pub(super) fn new(janitor: Arc<Janitor>, claim: Claim, outcome_unknown: bool) -> Self {
        Self { janitor, claim, outcome_unknown, duty: Duty::Runtime }
    }

    pub(super) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Releases in a task on this runtime.
    pub(super) fn begin(self, runtime: &Handle) {
        let janitor = self.janitor.clone();
        if is_driven(runtime) {
            janitor.tasks.spawn_on(self.run(), runtime);
        }
    }

    /// Ends the obligation: there is nothing to release, or it is owed elsewhere.
    pub(super) fn disarm(mut self) {
        self.duty = Duty::Done;
    }

    /// Asks the backend once, in its turn, after `begins`. Returns whether the lease was held.
    pub(super) async fn once(&self, begins: impl FnOnce()) -> Result<bool, BackendError> {
        self.ask(begins, self.janitor.backend.as_ref()).await
    }

    async fn ask(
        &self,
        begins: impl FnOnce(),
        backend: &dyn DynLeases,
    ) -> Result<bool, BackendError> {
        let sent = Instant::now();
        let answer = self.janitor.release_after(begins, backend, &self.claim).await;
        if answer.is_ok() {
            backend.ended(&self.claim, sent.elapsed());
        }
        answer
    }

    /// Settles the release of a lease that was held, and returns whether it was. A task does what
    /// the answer to the first request leaves to be done.
    pub(super) fn ended(mut self, answer: Result<bool, BackendError>) -> Result<(), Error> {
        let janitor = self.janitor.clone();
        let outcome = match answer {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::lost(&self.claim.name.key())),
            Err(error) => {
                // The lease may have been released, or be released later.
                self.outcome_unknown = true;
                janitor.tasks.spawn(self.run());
                return Err(error.into());
            }
        };
        match self.outcome_unknown {
            true => self.settle_late(&Handle::current()),
            false => self.duty = Duty::Done,
        }
        outcome
    }

    /// Releases in a task what may arrive late. The rest was released in another way.
    pub(super) fn settle_late(self, runtime: &Handle) {
        let janitor = self.janitor.clone();
        if is_driven(runtime) {
            janitor.tasks.spawn_on(self.run_late(), runtime);
        }
    }

    async fn run_late(mut self) {
        self.repeat_late(self.janitor.backend.as_ref()).await;
        self.duty = Duty::Done;
    }

    async fn run(mut self) {
        self.repeat(self.janitor.backend.as_ref()).await;
        self.duty = Duty::Done;
    }

    /// Releases what may be held.
    async fn repeat(&self, backend: &dyn DynLeases) {
        let life = self.claim.lease.max(self.claim.queue_entry_life());
        let is_answered = self.until(backend, after(Instant::now(), life)).await;
        if self.outcome_unknown {
            if !is_answered {
                self.at_first_answer(backend).await;
            }
            self.repeat_late(backend).await;
        }
    }

    /// Releases when the backend answers again, however late: a server that stood still runs the
    /// acquisition then. One release of a shard tries at a time.
    async fn at_first_answer(&self, backend: &dyn DynLeases) {
        let (begun, turns) = (Instant::now(), self.janitor.turns(&self.claim.name));
        while begun.elapsed() < LONGEST_SILENCE && !self.janitor.is_stopped() {
            let _turn = turns.late_releases.lock().await;
            if self.ask(|| {}, backend).await.is_ok() {
                return;
            }
            sleep(LONGEST_PAUSE).await;
        }
    }

    /// Releases what may come to be held: an acquisition that is still on its way on a broken
    /// connection may arrive after the release. Most of these are late by a moment.
    async fn repeat_late(&self, backend: &dyn DynLeases) {
        let released = Instant::now();
        for (part, longest) in LATE {
            let then = after(released, longest.min(self.claim.lease / part));
            tokio::select! {
                () = sleep_until(then) => {
                    self.until(backend, after(released, self.claim.lease)).await;
                }
                () = self.janitor.stop.cancelled() => return,
            }
        }
    }

    /// Releases, and tries again until the lease must have ended by itself. Returns whether the
    /// backend has answered.
    async fn until(&self, backend: &dyn DynLeases, end: Instant) -> bool {
        let name = &self.claim.name;
        let mut pause = FIRST_PAUSE;
        loop {
            match self.ask(|| {}, backend).await {
                Ok(_) => return true,
                Err(error) if Instant::now() + pause >= end => {
                    debug!(?name, error = %Chain(&error), "release failed; the lease expires");
                    return false;
                }
                Err(error) => {
                    static SAID: Rarely = Rarely::once_in(1);
                    if SAID.first() {
                        debug!(?name, error = %Chain(&error), "release failed; trying again");
                    }
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        if self.duty == Duty::Runtime {
            self.janitor.take_over(Self {
                janitor: self.janitor.clone(),
                claim: self.claim.clone(),
                outcome_unknown: self.outcome_unknown,
                duty: Duty::Janitor,
            });
        }
    }
}

/// Returns whether a task on this runtime can be expected to run.
pub(super) fn is_driven(runtime: &Handle) -> bool {
    runtime.runtime_flavor() != RuntimeFlavor::CurrentThread
        || Handle::try_current().is_ok_and(|current| current.id() == runtime.id())
}
