use std::time::Duration;

use super::{replicas::Replicas, target::Access};

const COMMAND_TIMEOUT: Duration = Duration::from_millis(250);
/// The number of round trips that a command may take on a slow link.
const SLOW_ROUND_TRIPS: u32 = 4;

/// Returns the connect time-out that goes with a command time-out.
pub(in super::super) fn default_connect_timeout(command_timeout: Duration) -> Duration {
    command_timeout.saturating_mul(4).max(Duration::from_secs(1))
}

/// The settings of a backend that do not depend on where its servers are.
#[derive(Clone, Debug)]
pub(in super::super) struct RedisConfig {
    pub(in super::super) command_timeout: Duration,
    pub(in super::super) connect_timeout: Duration,
    pub(in super::super) push_limit: usize,
    pub(in super::super) replicas: Option<Replicas>,
    /// The name that each connection gives itself.
    pub(in super::super) client_name: Option<String>,
    pub(in super::super) access: Access,
}

impl RedisConfig {
    /// Returns how long a connection may be silent while a command is under way. That is the
    /// command time-out, or a few round trips where the link is slow.
    pub(super) fn silence_limit(&self, round_trip: Duration) -> Duration {
        let few = round_trip.saturating_mul(SLOW_ROUND_TRIPS).min(self.connect_timeout);
        self.command_timeout.max(few)
    }
}

impl Default for RedisConfig {
    fn default() -> Self {
        Self {
            command_timeout: COMMAND_TIMEOUT,
            connect_timeout: default_connect_timeout(COMMAND_TIMEOUT),
            push_limit: 64 << 10,
            replicas: None,
            client_name: None,
            access: Access::default(),
        }
    }
}
