//! The reason why an attempt to connect failed.

use std::{fmt, time::Duration};

use redis::RedisError;

use super::{failure::ClientError, target::ConnectTarget};

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
    /// Asks for this, on a connection for one question.
    Question(&'static str),
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
    pub(super) fn failed(target: &ConnectTarget, phase: ConnectPhase, error: RedisError) -> Self {
        Self::new(target, phase, ConnectOutcome::Failed(ClientError(error)))
    }

    pub(super) fn elapsed(target: &ConnectTarget, phase: ConnectPhase, limit: Duration) -> Self {
        Self::new(target, phase, ConnectOutcome::Elapsed(limit))
    }

    fn new(target: &ConnectTarget, phase: ConnectPhase, outcome: ConnectOutcome) -> Self {
        Self { server: target.info().addr().to_string(), phase, outcome }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            ConnectOutcome::Failed(ClientError(error)) => self.write_failure(f, error),
            ConnectOutcome::Elapsed(limit) => self.write_silence(f, *limit),
        }
    }
}

impl ConnectError {
    fn write_failure(&self, f: &mut fmt::Formatter<'_>, error: &RedisError) -> fmt::Result {
        let server = &self.server;
        match self.phase {
            ConnectPhase::Credentials => {
                write!(f, "the credentials for {server} could not be had")
            }
            ConnectPhase::Reach => write!(f, "cannot connect to {server}"),
            ConnectPhase::Tls => write!(f, "the TLS handshake with {server} failed"),
            ConnectPhase::Login if error.code().is_none() => write!(
                f,
                "{server} accepted the connection, but did not speak the protocol of Redis; \
                 is it a port for TLS? Then use `rediss:` in place of `redis:`"
            ),
            ConnectPhase::Login => write!(f, "{server} refused the login or the database"),
            ConnectPhase::Role => write!(f, "{server} cannot be used"),
            ConnectPhase::Question(what) => write!(f, "{server} could not tell {what}"),
        }
    }

    fn write_silence(&self, f: &mut fmt::Formatter<'_>, limit: Duration) -> fmt::Result {
        let server = &self.server;
        match self.phase {
            ConnectPhase::Credentials => {
                write!(f, "the credentials for {server} could not be had in time")
            }
            ConnectPhase::Reach => write!(f, "{server} accepted no connection within {limit:?}"),
            ConnectPhase::Tls => write!(
                f,
                "{server} accepted the connection, but did not answer the TLS handshake within \
                 {limit:?}; is it a port without TLS? Then use `redis:` in place of `rediss:`"
            ),
            ConnectPhase::Login => write!(
                f,
                "{server} accepted the connection, but did not answer the login within {limit:?}; \
                 it is blocked or overloaded, or its port is for TLS"
            ),
            ConnectPhase::Role => write!(f, "{server} did not tell its role within {limit:?}"),
            ConnectPhase::Question(what) => {
                write!(f, "{server} did not tell {what} within {limit:?}")
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
