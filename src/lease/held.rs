use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};

use super::{Claim, Engine, Mode, Owner, Waiting, Watch, finish::Finish, line::Seat, owed::Owed};
use crate::{
    backend::Renewal,
    error::{Error, ErrorKind},
};

/// A lease that is held. Dropped, it is released by a task that no caller owns.
pub(crate) struct Held {
    engine: Arc<Engine>,
    fence: u64,
    watch: Arc<Watch>,
    runtime: Handle,
    /// A try of its acquisition had no answer, and may be granted once more when this is given back.
    doubtful: bool,
    released: bool,
}

impl Held {
    pub(crate) fn new(engine: Arc<Engine>, fence: u64, watch: Arc<Watch>, runtime: Handle) -> Self {
        Self { engine, fence, watch, runtime, doubtful: false, released: false }
    }

    pub(super) fn doubted(mut self, doubtful: bool) -> Self {
        self.doubtful = doubtful;
        self
    }

    /// The same lease, to be passed on in its line. Who does not renew it would not learn that it was ended from outside,
    /// so he does not hold up the others of his process.
    pub(crate) fn seated(self, seat: Seat) -> Self {
        if self.watch.is_renewed() {
            self.watch.take_seat(seat);
        }
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
            Ok(Ok(held)) if held.first() == Some(&Renewal::Held) => {
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
        // A loss that was told stays one, whatever the server says.
        let given_back = self.give_back().await;
        if lost { Err(Self::lost()) } else { given_back }
    }

    fn give_back(&self) -> Finish<Result<(), Error>> {
        let owed = Owed::new(self.engine.clone(), self.claim().clone(), self.doubtful);
        self.engine.give_back_on(owed, self.watch.leave_seat(), self.runtime.clone())
    }

    /// Leaves the lease to itself, and says who has it.
    pub(crate) fn detach(mut self) -> Owner {
        self.released = true;
        self.engine.watchdog.forget(&self.watch);
        self.claim().owner
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
        if self.doubtful {
            let owed = Owed::new(self.engine.clone(), self.claim().clone(), true);
            self.engine.tasks.spawn_on(owed.pay_late(), &self.runtime);
        }
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
