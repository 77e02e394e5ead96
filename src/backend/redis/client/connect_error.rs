//! The reason why an attempt to connect failed.

use std::{fmt, time::Duration};

use redis::RedisError;

use super::failure::ClientError;

/// How far an attempt to connect came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectPhase {
    /// Asks the user's callback for the credentials.
    Credentials,
    /// Resolves the name of the host, and opens the socket.
    Reach,
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "TLS is not compiled in"))]
    Tls,
    /// Negotiates the protocol and authenticates.
    Login,
    /// Asks whether the server is a replica.
    Role,
}

/// An attempt to connect that failed. It names the phase and the likely cause.
#[derive(Debug)]
pub(super) struct ConnectError {
    server: String,
    phase: ConnectPhase,
    outcome: ConnectOutcome,
}

#[derive(Debug)]
enum ConnectOutcome {
    Failed(ClientError),
    Elapsed(Duration),
}

impl ConnectError {
    pub(super) fn failed(server: String, phase: ConnectPhase, error: RedisError) -> Self {
        Self { server, phase, outcome: ConnectOutcome::Failed(ClientError(error)) }
    }

    pub(super) fn elapsed(server: String, phase: ConnectPhase, limit: Duration) -> Self {
        Self { server, phase, outcome: ConnectOutcome::Elapsed(limit) }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ConnectOutcome::{Elapsed, Failed};
        let Self { server, phase, outcome } = self;
        match (phase, outcome) {
            (ConnectPhase::Credentials, _) => {
                write!(f, "the credentials for {server} could not be had in time")
            }
            (ConnectPhase::Reach, Failed(_)) => {
                write!(f, "cannot connect to {server}")
            }
            (ConnectPhase::Reach, Elapsed(limit)) => {
                write!(f, "{server} accepted no connection within {limit:?}")
            }
            (ConnectPhase::Tls, Failed(_)) => {
                write!(f, "the TLS handshake with {server} failed")
            }
            (ConnectPhase::Tls, Elapsed(limit)) => write!(
                f,
                "{server} accepted the connection, but did not answer the TLS handshake within \
                 {limit:?}; is it a port without TLS? Then use `redis:` in place of `rediss:`"
            ),
            (ConnectPhase::Login, Failed(ClientError(error))) if error.code().is_none() => {
                write!(
                    f,
                    "{server} accepted the connection, but did not speak the protocol of Redis; \
                     is it a port for TLS? Then use `rediss:` in place of `redis:`"
                )
            }
            (ConnectPhase::Login, Failed(_)) => {
                write!(f, "{server} refused the login or the database")
            }
            (ConnectPhase::Login, Elapsed(limit)) => write!(
                f,
                "{server} accepted the connection, but did not answer the login within {limit:?}; \
                 it is blocked or overloaded, or its port is for TLS"
            ),
            (ConnectPhase::Role, Failed(_)) => write!(f, "{server} cannot be used"),
            (ConnectPhase::Role, Elapsed(limit)) => {
                write!(f, "{server} did not tell its role within {limit:?}")
            }
        }
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.outcome {
            ConnectOutcome::Failed(error) => Some(error),
            ConnectOutcome::Elapsed(_) => None,
        }
    }
}
