//! The callers that wait for something to happen, such as the landing of a flight.
//!
//! Their wakers lie side by side, so that waking them is a walk through an array. `Notify` keeps
//! its list in the memory of the waiters: with thousands of them, each step is a miss of the
//! processor's cache.

use std::{
    future::poll_fn,
    mem,
    task::{Context, Poll, Waker},
};

use crate::sync::checked::{Mutex, lock};

#[derive(Default)]
pub(super) struct Waiters(Mutex<Registry>);

#[derive(Default)]
struct Registry {
    wakers: Vec<Option<Waker>>,
    free: Vec<u32>,
    /// How often all waiters were woken. An older registration is gone.
    woken: u32,
}

/// Where the waker of a waiter is, and since which wake-up.
#[derive(Clone, Copy)]
pub(super) struct Registration {
    at: u32,
    woken: u32,
}

/// A waiter, which ends its registration when it is dropped.
struct Waiter<'a> {
    waiters: &'a Waiters,
    registration: Option<Registration>,
}

impl Waiters {
    /// Waits until `look` finds something. To be [woken](Self::wake) each time after it may.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the registration.
    pub(super) fn until<T>(&self, look: impl Fn() -> Option<T>) -> impl Future<Output = T> {
        let mut waiter = Waiter { waiters: self, registration: None };
        // Not an async function, whose future would hold its arguments twice.
        poll_fn(move |cx| self.poll(&mut waiter.registration, cx, &look))
    }

    /// Polls for what `look` finds, for a waiter with this registration.
    pub(super) fn poll<T>(
        &self,
        registration: &mut Option<Registration>,
        cx: &Context<'_>,
        look: impl Fn() -> Option<T>,
    ) -> Poll<T> {
        let found = look().or_else(|| self.register(registration, cx, look));
        if found.is_some() {
            // The registration is gone with the wake-up that has come, or is about to.
            *registration = None;
        }
        found.map_or(Poll::Pending, Poll::Ready)
    }

    /// Registers a waiter, unless it finds something now.
    fn register<T>(
        &self,
        registration: &mut Option<Registration>,
        cx: &Context<'_>,
        look: impl Fn() -> Option<T>,
    ) -> Option<T> {
        let mut registry = lock(&self.0);
        // Under the lock, because the wake-up takes the wakers under it afterwards.
        if let Some(found) = look() {
            return Some(found);
        }
        let kept = registration.filter(|it| it.woken == registry.woken);
        match kept.and_then(|it| registry.wakers.get_mut(it.at as usize)) {
            Some(Some(waker)) if waker.will_wake(cx.waker()) => {}
            Some(waker) => {
                let last = waker.replace(cx.waker().clone());
                // Without the lock, because the last reference to a task may drop a waiter.
                drop(registry);
                drop(last);
            }
            None => *registration = Some(registry.take(cx.waker().clone())),
        }
        None
    }

    /// Ends a registration, if there is one.
    pub(super) fn leave(&self, registration: Option<Registration>) {
        let Some(registration) = registration else { return };
        let mut registry = lock(&self.0);
        if registration.woken == registry.woken {
            let waker = registry.wakers.get_mut(registration.at as usize).and_then(Option::take);
            registry.free.push(registration.at);
            drop(registry);
            drop(waker);
        }
    }

    /// Wakes all waiters.
    ///
    /// The first one leads the next flight if this one had nothing for it. It is not the one that
    /// came right behind the leader: requests that come one after another are often alike.
    pub(super) fn wake(&self) {
        let mut wakers = {
            let mut registry = lock(&self.0);
            registry.woken = registry.woken.wrapping_add(1);
            registry.free.clear();
            mem::take(&mut registry.wakers)
        };
        // So the leaders of several flights in a row come from different parts of the crowd.
        let first = wakers.len() * 5 / 13;
        let (earlier, later) = wakers.split_at_mut(first);
        for waker in later.iter_mut().chain(earlier) {
            waker.take().into_iter().for_each(Waker::wake);
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.waiters.leave(self.registration);
    }
}

impl Registry {
    fn take(&mut self, waker: Waker) -> Registration {
        let at = match self.free.pop() {
            Some(at) => {
                self.wakers[at as usize] = Some(waker);
                at
            }
            None => {
                self.wakers.push(Some(waker));
                self.wakers.len() as u32 - 1
            }
        };
        Registration { at, woken: self.woken }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicBool, AtomicUsize, Ordering},
        },
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn wait(waiter: &mut Waiter<'_>, count: &Arc<Count>) -> Poll<()> {
        let waker = Waker::from(count.clone());
        waiter.waiters.poll(&mut waiter.registration, &Context::from_waker(&waker), || None)
    }

    #[test]
    fn each_waiter_is_woken_once_unless_it_left() {
        let waiters = Waiters::default();
        let waiter = || Waiter { waiters: &waiters, registration: None };
        let counts: Vec<_> = (0..5).map(|_| Arc::new(Count::default())).collect();
        let mut waiting: Vec<_> = counts.iter().map(|_| waiter()).collect();
        for _ in 0..2 {
            for (waiter, count) in waiting.iter_mut().zip(&counts) {
                assert!(wait(waiter, count).is_pending());
            }
        }
        drop(waiting.remove(2));
        // The place is free for another waiter.
        let late = Arc::new(Count::default());
        let mut next = waiter();
        assert!(wait(&mut next, &late).is_pending());
        assert_eq!(next.registration.map(|it| it.at), Some(2));
        waiters.wake();
        let woken: Vec<_> = counts.iter().map(|count| count.0.load(Ordering::SeqCst)).collect();
        assert_eq!((woken, late.0.load(Ordering::SeqCst)), (vec![1, 1, 0, 1, 1], 1));
        // Leaving after a wake-up takes no place from a waiter that came since.
        let mut again = waiter();
        assert!(wait(&mut again, &late).is_pending());
        drop(waiting.remove(0));
        waiters.wake();
        assert_eq!(late.0.load(Ordering::SeqCst), 2);
        assert!(counts.iter().all(|count| Arc::strong_count(count) == 1), "a waker was kept");
    }

    /// A waiter that looks before the outcome is there, and registers after the wake-up, would
    /// sleep for ever.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_waiter_sleeps_through_the_wake_up() {
        for _ in 0..2_000 {
            let shared = Arc::new((Waiters::default(), AtomicBool::new(false)));
            let theirs = shared.clone();
            let waiting = tokio::spawn(async move {
                let look = || theirs.1.load(Ordering::SeqCst).then_some(());
                theirs.0.until(look).await;
            });
            shared.1.store(true, Ordering::SeqCst);
            shared.0.wake();
            waiting.await.unwrap();
        }
    }
}
