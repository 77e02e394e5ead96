//! The time that each server has for an answer.
//!
//! It follows the round trip, because a slow link is no outage. The round trip that counts is that
//! of the server that completes a majority. So one server that is far away or hangs does not
//! lengthen the time for which the others wait for it.
//!
//! The time is spent from the lease, so it ends well before the lease does.

use std::{pin::pin, time::Duration};

use tokio::time::{Instant, timeout};

use super::Majority;
use crate::{
    backend::{RoundTrip, in_time},
    error::BackendError,
};

/// The default limit for the answer of one server, where the round trip is short.
pub(in crate::lock) const SERVER_LIMIT: Duration = Duration::from_millis(50);
/// The number of round trips that an answer may take on a slow link.
const SLOW_ROUND_TRIPS: u32 = 4;
/// The part of a lease that a round trip may lengthen the limit to. A renewal after a third of the
/// lease then still comes in time.
const LEASE_PART: u32 = 4;
/// The longest wait for the connections to a majority.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// How often a request looks whether there is a majority of connections.
const CONNECT_LOOK: Duration = Duration::from_millis(10);
/// The least time for the turns of a few other claims, and its round trips on a slow link.
const ROUND_OF_TURNS: Duration = Duration::from_secs(1);
const ROUND_TRIPS_OF_TURNS: u32 = 16;
/// The number of requests that an operation makes at most, one after the other.
const REQUESTS: u32 = 8;

impl Majority {
    /// Returns the time that one server has for an answer about a lease of this length.
    pub(super) fn limit(&self, lease: Duration) -> Duration {
        self.limit_at(self.majority_round_trip(), lease)
    }

    fn limit_at(&self, round_trip: RoundTrip, lease: Duration) -> Duration {
        let few = match round_trip {
            RoundTrip::Untold => Duration::ZERO,
            RoundTrip::Measured(round_trip) => round_trip.saturating_mul(SLOW_ROUND_TRIPS),
            RoundTrip::Unmeasured => CONNECT_LIMIT,
        };
        self.set_limit.max(few.min(lease / LEASE_PART))
    }

    /// Returns how long the turns of a few other claims take.
    ///
    /// A name counts as contended for so long. A claim with a queue entry asks all servers once in
    /// this time, in its turn or not, because the lease at the queue server may be that of a claim
    /// without a majority.
    pub(super) fn round_of_turns(&self) -> Duration {
        match self.majority_round_trip() {
            RoundTrip::Measured(round_trip) => {
                ROUND_OF_TURNS.max(round_trip.saturating_mul(ROUND_TRIPS_OF_TURNS))
            }
            RoundTrip::Untold | RoundTrip::Unmeasured => ROUND_OF_TURNS,
        }
    }

    /// Returns how long an operation takes at most.
    pub(super) fn operation_limit(&self) -> Duration {
        self.limit(Duration::MAX).saturating_mul(REQUESTS)
    }

    /// Waits for the answer of one server about a lease of this length. The outcome is unknown if
    /// the limit passes first.
    pub(super) async fn in_time<T>(
        &self,
        lease: Duration,
        answer: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let (begun, mut answer) = (Instant::now(), pin!(answer));
        let mut round_trip = self.majority_round_trip();
        // A request is sent when its connection is made, so its limit counts from then.
        while round_trip == RoundTrip::Unmeasured
            && begun.elapsed() < self.limit_at(round_trip, lease)
        {
            if let Ok(answer) = timeout(CONNECT_LOOK, answer.as_mut()).await {
                return answer;
            }
            round_trip = self.majority_round_trip();
        }
        let limit = match round_trip {
            RoundTrip::Unmeasured => Duration::ZERO,
            known => self.limit_at(known, lease),
        };
        in_time(limit, answer).await
    }

    /// Replaces the error of an acquisition if no try can succeed, because the servers are too far
    /// away for the lease. The acquisition goes on until its wait limit: servers that stand still
    /// for a while look as if they were far away.
    pub(super) fn failure(&self, lease: Duration, error: BackendError) -> BackendError {
        let known = self.majority_round_trip();
        let limit = self.limit_at(known, lease);
        match known {
            RoundTrip::Measured(round_trip) if round_trip > limit => {
                let needed = round_trip.saturating_mul(LEASE_PART);
                let why = format!(
                    "a lease of {lease:?} leaves a server {limit:?} for its answer, but the round \
                     trip to a majority takes {round_trip:.1?}; \
                     set a lease longer than {needed:.1?}, or a longer answer limit"
                );
                BackendError::new(error.kind(), why)
            }
            _ => error,
        }
    }

    /// Returns the round trip to the server that completes a majority.
    fn majority_round_trip(&self) -> RoundTrip {
        let servers = self.servers.iter();
        let mut each: Vec<_> = servers.map(|server| server.backend().round_trip()).collect();
        let (_, completing, _) = each.select_nth_unstable(self.needed() - 1);
        *completing
    }
}
