//! One timer for the time-outs of many commands.
//!
//! A timer of the runtime for each command would be set and cancelled under a lock, and almost none
//! of them fires. All commands have the same time-out, so the wheel turns in steps of a sixteenth
//! of it. A command expires with the step that comes [`STEPS`] after the step in which it began. So
//! it may expire up to a sixteenth early.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use tokio::{
    sync::{Notify, futures::Notified},
    time::{Instant, sleep_until},
};

use crate::time::after;

/// The number of steps in one time-out.
const STEPS: usize = 16;

pub(super) struct TimeoutWheel {
    timeout: Duration,
    /// The number of steps so far.
    step: AtomicUsize,
    /// For the commands that began in each step, notified when they expire.
    expired: [Notify; STEPS + 1],
    /// A command has begun since the last step.
    is_used: AtomicBool,
    /// The wheel stands still, and the next command must start it.
    is_resting: AtomicBool,
    start: Notify,
}

impl TimeoutWheel {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            step: AtomicUsize::new(0),
            expired: std::array::from_fn(|_| Notify::new()),
            is_used: AtomicBool::new(false),
            is_resting: AtomicBool::new(false),
            start: Notify::new(),
        }
    }

    /// Completes when a command that begins now expires.
    ///
    /// To be polled soon, and only while the wheel [runs](Self::run).
    pub(super) fn expired(&self) -> Notified<'_> {
        let expired = self.expired[self.step.load(Ordering::SeqCst) % (STEPS + 1)].notified();
        // A command that finds the flag set will be seen by the next step without a store of its
        // own.
        if !self.is_used.load(Ordering::SeqCst) {
            self.is_used.store(true, Ordering::SeqCst);
        }
        if self.is_resting.load(Ordering::SeqCst) && self.is_resting.swap(false, Ordering::SeqCst) {
            self.start.notify_one();
        }
        expired
    }

    /// Completes [`expired`](Self::expired) for all commands before their time.
    pub(super) fn wake_all(&self) {
        for expired in &self.expired {
            expired.notify_waiters();
        }
    }

    /// Turns the wheel while there are commands, and rests while there are none.
    pub(super) async fn run(&self) {
        loop {
            self.rest().await;
            self.turn_while_used().await;
        }
    }

    async fn turn_while_used(&self) {
        let step_time = self.timeout / STEPS as u32;
        let mut quiet = 0;
        let mut next = Instant::now();
        while quiet <= STEPS {
            // After a pause of the process, the missed steps are not made up for: that would expire
            // commands that have just begun.
            if next.elapsed() > step_time {
                next = Instant::now();
            }
            next = after(next, step_time);
            sleep_until(next).await;
            let step = self.step.fetch_add(1, Ordering::SeqCst) + 1;
            self.expired[(step + 1) % (STEPS + 1)].notify_waiters();
            match self.is_used.swap(false, Ordering::SeqCst) {
                true => quiet = 0,
                false => quiet += 1,
            }
        }
    }

    async fn rest(&self) {
        self.is_resting.store(true, Ordering::SeqCst);
        // Checked after the store: a command that began before it did not see that the wheel rests.
        if !self.is_used.load(Ordering::SeqCst) {
            self.start.notified().await;
        }
        self.is_resting.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(160);

    fn running() -> Arc<TimeoutWheel> {
        let wheel = Arc::new(TimeoutWheel::new(TIMEOUT));
        let turned = wheel.clone();
        tokio::spawn(async move { turned.run().await });
        wheel
    }

    /// In every phase of a step, and after a rest of any length.
    #[tokio::test(start_paused = true)]
    async fn a_command_expires_at_most_a_sixteenth_early() {
        let wheel = running();
        for pause in [0, 3, 10, 17, 155, 170, 400, 1003] {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let begun = Instant::now();
            wheel.expired().await;
            let took = begun.elapsed();
            let tick = Duration::from_millis(1);
            assert!(
                took >= TIMEOUT * 15 / 16 - tick && took <= TIMEOUT + tick,
                "{took:?} after {pause} ms"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_commands_wake_when_a_connection_has_ended() {
        let wheel = running();
        let first = wheel.expired();
        tokio::time::sleep(TIMEOUT / 2).await;
        let (second, begun) = (wheel.expired(), Instant::now());
        wheel.wake_all();
        tokio::join!(first, second);
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    /// A process that was suspended sends its first commands when the steps are far behind.
    #[tokio::test(start_paused = true)]
    async fn a_pause_does_not_shorten_the_time_of_a_command_that_begins_after_it() {
        let wheel = running();
        let early = wheel.expired();
        tokio::task::yield_now().await;
        tokio::time::advance(TIMEOUT * 10).await;
        let begun = Instant::now();
        wheel.expired().await;
        assert!(begun.elapsed() >= TIMEOUT * 14 / 16, "{:?}", begun.elapsed());
        early.await;
    }

    #[tokio::test(start_paused = true)]
    async fn each_of_many_commands_expires_in_its_time() {
        let wheel = running();
        let commands = (0..200).map(|n| {
            let wheel = wheel.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(n * 3)).await;
                let begun = Instant::now();
                wheel.expired().await;
                begun.elapsed()
            })
        });
        for command in commands.collect::<Vec<_>>() {
            let took = command.await.unwrap_or_default();
            assert!(took >= TIMEOUT * 14 / 16 && took <= TIMEOUT * 17 / 16, "{took:?}");
        }
    }
}
