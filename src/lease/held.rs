use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};

use super::{Claim, Engine, Mode, Token, Waiting, Watch, finish::Finish, line::Seat};
use crate::error::{Error, ErrorKind};

/// A lease that is held. Dropped, it is released by a task that no caller owns.
pub(crate) struct Held {
    engine: Arc<Engine>,
    fence: u64,
    watch: Arc<Watch>,
    runtime: Handle,
    released: bool,
}

impl Held {
    pub(crate) fn new(engine: Arc<Engine>, fence: u64, watch: Arc<Watch>, runtime: Handle) -> Self {
        Self { engine, fence, watch, runtime, released: false }
    }

    /// The same lease, to be passed on in its line.
    pub(crate) fn seated(self, seat: Seat) -> Self {
        self.watch.take_seat(seat);
        self
    }

    /// The same lease, by whom the line of its process was kept up to now. What he listened to while he waited goes on
    /// with it.
    pub(super) fn at(self, seat: Option<Seat>, waited: Option<Waiting>) -> Self {
        match seat {
            // Passed on with the lease. Where others may hold beside, the next tries at once.
            Some(mut seat) if self.claim().mode == Mode::Exclusive => {
                seat.begin();
                seat.keep(waited.and_then(Waiting::into_changes));
                self.seated(seat)
            }
            _ => self,
        }
    }

    pub(crate) fn claim(&self) -> &Claim {
        self.watch.claim()
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
            return Err(Self::lost());
        }
        let sent = Instant::now();
        let claims = std::slice::from_ref(self.claim());
        match timeout(self.remaining(), self.engine.backend().renew(claims)).await {
            Ok(Ok(held)) if held.first() == Some(&Some(true)) => {
                self.watch.renewed(sent);
                Ok(())
            }
            Ok(Ok(_)) => {
                self.watch.tell_lost();
                Err(Self::lost())
            }
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(Self::lost()),
        }
    }

    /// Gives the lease back, and says so if it was lost before.
    ///
    /// Dropping the future does not stop the release.
    pub(crate) async fn release(mut self) -> Result<(), Error> {
        self.released = true;
        self.engine.watchdog.forget(&self.watch);
        let lost = self.watch.is_lost();
        // That the backend does not answer says less than that the lease is lost, where that is known.
        self.give_back().await.map_err(|error| if lost { Self::lost() } else { error })
    }

    fn give_back(&self) -> Finish<Result<(), Error>> {
        let (claim, runtime) = (self.claim().clone(), self.runtime.clone());
        self.engine.give_back_on(claim, self.watch.leave_seat(), runtime)
    }

    /// Leaves the lease to itself, and says who has it.
    pub(crate) fn detach(mut self) -> Token {
        self.released = true;
        self.engine.watchdog.forget(&self.watch);
        self.claim().holder
    }

    /// Stops the renewals: the lease is about to end with the operation that it was for, and a renewal
    /// that came after would take that for a loss.
    pub(crate) fn closing(&self) {
        self.engine.watchdog.forget(&self.watch);
    }

    pub(crate) fn lost() -> Error {
        Error::new(ErrorKind::Lost, "the lease was lost; someone else may hold it by now")
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
            // It goes on by itself. Whether it was lost, nobody asks any more; what fails is repeated there.
            drop(self.give_back());
        }
    }
}
