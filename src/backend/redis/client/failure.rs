//! Classification of an error reply: what is known of the command, and how to retry it.

use redis::{ErrorKind, RedisError, RetryMethod, ServerErrorKind};

use crate::error::{BackendError, BackendErrorKind};

/// The codes of refusals that pass without a change of the command: the server is in a failover,
/// loads its data, cannot save, lacks replicas, or runs a long script; or a slot of the cluster
/// moves.
const PASSING: &[&str] = &[
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOREPLICAS",
    "BUSY",
    "TRYAGAIN",
    "CLUSTERDOWN",
];

pub(super) struct CommandFailure {
    /// How to send the command so that the command works, or `None` if no way is known.
    pub(super) retry: Option<CommandRetry>,
    pub(super) error: BackendError,
}

/// How to send a command again that the server did not run.
pub(super) enum CommandRetry {
    /// With the source of the script.
    WithSource,
    /// To this node, which serves the slot now. With `asking`, the node is about to receive the
    /// slot, and serves only commands behind an `ASKING`.
    At { node: String, asking: bool },
    /// A moment later: the keys of the command are split over two nodes.
    Later,
}

impl CommandFailure {
    pub(super) fn of(error: RedisError) -> Self {
        let kind = match code(&error) {
            Some("FOREIGN" | "WRONGTYPE") => BackendErrorKind::Foreign,
            Some("CLUSTERDOWN") => BackendErrorKind::Unavailable,
            Some(_) if !asks_to_reconnect(&error) => BackendErrorKind::Refused,
            _ => BackendErrorKind::Unknown,
        };
        let retry = CommandRetry::of(&error);
        let outlook: fn(BackendError) -> BackendError = match code(&error) {
            Some("OOM") => BackendError::lasting,
            Some("NOPERM") => BackendError::forbidden,
            Some(code) if PASSING.contains(&code) => BackendError::passing,
            _ => |error| error,
        };
        let lacks_right =
            error.detail().is_some_and(|text| text.contains("can't run this command"));
        // The text has all that the client library knows, also the source of its error.
        let mut why = error.to_string();
        if lacks_right {
            // The server does not name the command.
            why = format!(
                "an ACL forbids a command of the script; `RedisBackend::ready` names it: {why}"
            );
        }
        let mut error = outlook(BackendError::new(kind, why));
        if lacks_right {
            error = error.forbidden();
        }
        Self { retry, error }
    }
}

impl From<BackendError> for CommandFailure {
    fn from(error: BackendError) -> Self {
        Self { retry: None, error }
    }
}

impl From<CommandFailure> for BackendError {
    fn from(failure: CommandFailure) -> Self {
        failure.error
    }
}

impl CommandRetry {
    fn of(error: &RedisError) -> Option<Self> {
        let ErrorKind::Server(kind) = error.kind() else { return None };
        match kind {
            ServerErrorKind::NoScript => Some(Self::WithSource),
            ServerErrorKind::Moved | ServerErrorKind::Ask => {
                let (node, _) = error.redirect_node()?;
                Some(Self::At { node: node.to_owned(), asking: kind == ServerErrorKind::Ask })
            }
            ServerErrorKind::TryAgain => Some(Self::Later),
            _ => None,
        }
    }
}

/// Returns whether the connection that returned this error must not be used again.
pub(super) fn ends_connection(error: &RedisError) -> bool {
    asks_to_reconnect(error) || matches!(code(error), Some("READONLY" | "NOAUTH" | "MASTERDOWN"))
}

fn asks_to_reconnect(error: &RedisError) -> bool {
    let retry = error.retry_method();
    matches!(retry, RetryMethod::Reconnect | RetryMethod::ReconnectFromInitialConnections)
}

/// Returns the code of an error reply.
///
/// Before version 7, Redis reports a failure in a script as an `ERR` with the code in its text:
/// `Error running script (call to f_..): @user_script:9: WRONGTYPE Operation against ..`. Every
/// version reports an error of the script's own in this way.
fn code(error: &RedisError) -> Option<&str> {
    let code = error.code()?;
    let inner = error.detail().and_then(|text| {
        if text.starts_with("FOREIGN ") {
            return Some("FOREIGN");
        }
        // Some refusals name the line of the script twice.
        let (_, mut said) = text.strip_prefix("Error running script")?.split_once("@user")?;
        while let Some(behind) = said.strip_prefix("_script:") {
            said = behind.trim_start_matches(|c: char| c.is_ascii_digit() || " :-".contains(c));
            said = said.strip_prefix("@user").unwrap_or(said);
        }
        said.split(' ').next()
    });
    Some(inner.unwrap_or(code))
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    /// Texts of servers of version 6 and 7. A refusal is lasting if an operator must act. A server
    /// whose refusal passes counts as away.
    #[test]
    fn the_code_of_a_failure_is_found_and_whether_it_is_lasting() {
        let of_script = "ERR Error running script (call to f_32): @user_script:";
        for (said, expected, is_lasting) in [
            ("OOM command not allowed when used memory > 'maxmemory'.", "OOM", true),
            (&format!("{of_script} 12: -OOM command not allowed"), "OOM", true),
            ("NOPERM this user has no permissions to run the 'wait' command", "NOPERM", true),
            ("ERR The user executing the script can't run this command", "ERR", true),
            ("LOADING Redis is loading the dataset in memory", "LOADING", false),
            ("TRYAGAIN Multiple keys request during rehashing", "TRYAGAIN", false),
            (&format!("{of_script}86: WRONGTYPE Operation against"), "WRONGTYPE", true),
            (&format!("{of_script}12: @user_script: 12: -READONLY You"), "READONLY", false),
            (&format!("{of_script}8: FOREIGN @user_script: holds"), "FOREIGN", true),
            ("ERR FOREIGN k holds something script: 3f, on @user_script:8.", "FOREIGN", true),
        ] {
            let line = format!("-{said}\r\n");
            let reply = redis::parse_redis_value(line.as_bytes()).and_then(Value::extract_error);
            let Err(error) = reply else { panic!("no error: {said}") };
            assert_eq!(code(&error), Some(expected), "{said}");
            let error = CommandFailure::of(error).error;
            assert_eq!(error.is_lasting(), is_lasting, "{said}");
            let is_away = ["LOADING", "TRYAGAIN", "READONLY"].contains(&expected);
            assert_eq!(error.is_away(), is_away, "{said}");
            assert_eq!(error.is_forbidden(), is_lasting && expected != "OOM", "{said}");
        }
    }
}
