//! How long a command may take.

use std::time::Duration;

use redis::{Arg, Cmd, Pipeline};
use tokio::time::Instant;

use super::config::RedisConfig;
use crate::time::after;

/// The rate at which buffers on the way are assumed to empty, in bytes each second.
const BUFFERED_RATE: f64 = 8e6;

/// When a command began, and how long its connection may be silent.
#[derive(Clone, Copy)]
pub(super) struct CommandDeadline {
    pub(super) begun: Instant,
    pub(super) limit: Duration,
    /// The command begins now, and has the command time-out, so that the wheel can time it.
    pub(super) is_whole: bool,
}

impl CommandDeadline {
    /// Returns the deadline of a command that begins now.
    pub(super) fn from_now(config: &RedisConfig) -> Self {
        Self { begun: Instant::now(), limit: config.command_timeout, is_whole: true }
    }

    /// Returns the deadline of commands with a large argument.
    ///
    /// The bytes that buffers on the way have taken may not have arrived for long.
    pub(super) fn for_write(self, pipeline: &Pipeline) -> Self {
        let bytes: usize = pipeline
            .cmd_iter()
            .flat_map(Cmd::args_iter)
            .map(|arg| match arg {
                Arg::Simple(bytes) => bytes.len(),
                _ => 0,
            })
            .sum();
        let limit = self.limit + Duration::from_secs_f64(bytes as f64 / BUFFERED_RATE);
        Self { limit, is_whole: false, ..self }
    }

    /// Returns the same deadline for a later step of the command.
    pub(super) fn remainder(self) -> Self {
        Self { is_whole: false, ..self }
    }

    /// Returns the deadline of a command that had to wait for its connection until now.
    pub(super) fn restarted(self) -> Self {
        Self { begun: Instant::now(), is_whole: false, ..self }
    }

    /// Returns when the time of a command without progress ends.
    pub(super) fn at(self) -> Instant {
        after(self.begun, self.limit)
    }
}
