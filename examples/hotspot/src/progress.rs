//! One line on standard error that says how far the run is.

use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

const WIDTH: usize = 32;

/// The line; it stays hidden where standard error is not a terminal.
pub(crate) struct Progress {
    begun: Instant,
    length: Duration,
    visible: bool,
}

impl Progress {
    pub(crate) fn new(length: Duration) -> Self {
        Self { begun: Instant::now(), length, visible: io::stderr().is_terminal() }
    }

    pub(crate) fn show(&self, message: &str) {
        let (elapsed, length) = (self.begun.elapsed(), self.length);
        let share = (elapsed.as_secs_f64() / length.as_secs_f64()).min(1.0);
        let full = (share * WIDTH as f64) as usize;
        let bar = format!("{}{}", "█".repeat(full), "░".repeat(WIDTH - full));
        let time = format!("{}s of about {}s", elapsed.as_secs(), length.as_secs());
        self.write(&format!("\r{message:<36} {bar} {time}\x1b[K"));
    }

    pub(crate) fn clear(&self) {
        self.write("\r\x1b[K");
    }

    fn write(&self, text: &str) {
        if self.visible {
            let mut out = io::stderr().lock();
            // A run whose progress cannot be shown is a run all the same.
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        }
    }
}
