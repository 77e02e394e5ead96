use std::{
    future::poll_fn,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use super::{
    driver::Task,
    flight::Flight,
    landing::{First, Waited},
    leader::Notice,
    waiters::Registration,
};

/// One caller in a flight. Dropping it leaves the flight.
pub(crate) struct Follower<T> {
    pub(super) flight: Arc<Flight<T>>,
    /// How many callers had joined before it.
    number: u64,
    /// Whether the first of two landings is of use to it.
    takes_first: bool,
    stage: Stage,
    /// Where its waker is, while it waits.
    registration: Option<Registration>,
}

enum Stage {
    /// It polls the leader's work, until a task does.
    Carrying,
    /// It waits for the landing.
    Waiting,
    /// It has what it waited for.
    Served,
}

impl<T> Follower<T> {
    /// Joins a flight. To be called under the lock of the map.
    pub(super) fn new(flight: Arc<Flight<T>>) -> Self {
        flight.flights.waiting.fetch_add(1, Ordering::Relaxed);
        let number = flight.joined.fetch_add(1, Ordering::Release);
        Self { flight, number, takes_first: false, stage: Stage::Waiting, registration: None }
    }

    /// Makes the leader's work independent of its caller, if this is the second caller. The later
    /// ones find it so. To be called without the lock of the map.
    pub(super) fn depend(&self) {
        if self.number == 1 {
            self.flight.driver.detach();
        }
    }

    /// Returns the number of the flight in the process.
    pub(crate) fn flight_id(&self) -> u64 {
        self.flight.id
    }

    /// Takes the outcome of the first landing, if there are two.
    pub(crate) fn take_first(&mut self) {
        self.takes_first = true;
    }

    /// Waits for the last landing from here on, even if there was a first one.
    pub(crate) fn leave_first(&mut self) {
        self.takes_first = false;
    }

    pub(crate) fn tell(&self, notice: Notice) {
        self.flight.notices.tell(notice);
    }

    /// Brings the leader's work. This follower polls it while it [waits](Self::wait), as long as no
    /// other caller depends on it.
    pub(crate) fn lead(&mut self, work: Task) {
        self.flight.driver.bring(work);
        self.stage = Stage::Carrying;
    }

    /// Polls the leader's work, if it is this follower's to poll, until a task does.
    ///
    /// # Cancel safety
    ///
    /// As [`wait`](Self::wait).
    pub(crate) fn carry(&mut self) -> impl Future<Output = ()> {
        poll_fn(|cx| self.poll_work(cx))
    }

    fn poll_work(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Stage::Carrying = self.stage {
            ready!(self.flight.driver.poll(cx));
            self.stage = Stage::Waiting;
        }
        Poll::Ready(())
    }

    /// Lets the flight go on, even if no caller is left.
    pub(crate) fn leave_behind(&self) {
        let _ = self.flight.goes_on.set(());
    }
}

impl<T: Clone> Follower<T> {
    /// Waits until the flight has landed, for the first time if that is of use to this follower.
    ///
    /// A follower that [leads](Self::lead) polls the work meanwhile, as long as no other caller
    /// depends on it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future and the follower leaves the flight, which goes on for the others. The
    /// work goes on in a task.
    pub(crate) fn wait(&mut self) -> impl Future<Output = Waited<T>> {
        // Not an async function: what a follower holds while it waits is its own state.
        poll_fn(|cx| {
            let waited = ready!(self.poll(cx));
            self.stage = Stage::Served;
            Poll::Ready(waited)
        })
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Waited<T>> {
        if let Stage::Carrying = self.stage {
            ready!(self.poll_work(cx));
            // The last caller that has the flight needs no copy of the outcome.
            let landing = Arc::get_mut(&mut self.flight).and_then(|flight| flight.landing.take());
            if let Some(landing) = landing {
                return Poll::Ready(landing.into_first());
            }
        }
        let (flight, number) = (&*self.flight, self.number);
        let first = || self.takes_first.then(|| flight.first.of(number));
        let waited = flight.waiters.poll(&mut self.registration, cx, || match first() {
            Some(First::Admitted(outcome)) => Some(Waited::Outcome(outcome.clone())),
            Some(First::Closed) => Some(Waited::JoinAgain),
            _ => Some(flight.landing.get()?.of(number)?.cloned()),
        });
        // After the registration: a first landing that comes later wakes this follower.
        if waited.is_pending() && matches!(first(), Some(First::Late)) {
            flight.notices.tell(Notice::LateJoiner);
        }
        waited
    }
}

impl<T> Drop for Follower<T> {
    fn drop(&mut self) {
        let flight = &self.flight;
        flight.waiters.leave(self.registration);
        if let Stage::Carrying = self.stage {
            flight.driver.detach();
        }
        flight.flights.waiting.fetch_sub(1, Ordering::Relaxed);
        let left = flight.left.fetch_add(1, Ordering::AcqRel) + 1;
        let is_last = left == flight.joined.load(Ordering::Relaxed);
        if is_last && !matches!(self.stage, Stage::Served) {
            flight.abandon();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        future::pending,
        pin::pin,
        sync::mpsc,
        task::{Wake, Waker},
        thread,
        time::Duration,
    };

    use super::*;
    use crate::{
        flight::{Abandoned, Group, Joined, Leader, Limits},
        key::Key,
    };

    fn flight() -> (Group<u64>, Leader<u64>, Follower<u64>) {
        let group = Group::new(Abandoned::Finish, Limits::NONE);
        let Joined { follower, leader: Some(leader) } = join(&group) else { unreachable!() };
        (group, leader, follower)
    }

    fn join(group: &Group<u64>) -> Joined<u64> {
        group.join(&Key::from("k")).unwrap_or_else(|_| unreachable!())
    }

    fn is_pending(wait: impl Future<Output = Waited<u64>>, waker: &Waker) -> bool {
        pin!(wait).poll(&mut Context::from_waker(waker)).is_pending()
    }

    struct Task;

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    /// The memory of a task would stay until the landing.
    #[test]
    fn a_follower_that_leaves_takes_its_waker_along() {
        let (group, _leader, _first) = flight();
        let mut follower = join(&group).follower;
        let task = Arc::new(Task);
        assert!(is_pending(follower.wait(), &Waker::from(task.clone())));
        assert_eq!(Arc::strong_count(&task), 2);
        drop(follower);
        assert_eq!(Arc::strong_count(&task), 1);
    }

    /// A waker that owns the last caller of a flight. Its drop detaches the work.
    struct Joins(Group<u64>);

    impl Wake for Joins {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Joins {
        fn drop(&mut self) {
            drop(join(&self.0));
        }
    }

    /// The waker of the last poll was dropped under the lock that its drop took as well.
    #[tokio::test]
    async fn a_caller_may_be_polled_with_a_new_waker_whose_predecessor_runs_code() {
        let (group, leader, mut first) = flight();
        first.lead(Box::pin(async move {
            pending::<()>().await;
            drop(leader);
        }));
        // The second caller detaches the work.
        let waker = Waker::from(Arc::new(Joins(group)));
        assert!(is_pending(first.wait(), &waker));
        drop(waker);
        // In a thread, which would block for ever.
        let (polled, answer) = mpsc::channel();
        thread::spawn(move || polled.send(is_pending(first.wait(), Waker::noop())));
        assert_eq!(answer.recv_timeout(Duration::from_secs(10)), Ok(true));
    }
}
