//! The connection for commands.
//!
//! A loop keeps it (`link`). Whoever sends a command takes the present connection; if there is none because the
//! last attempt failed, the command fails at once; if an attempt is under way, it waits for that within its own
//! time-out. So nothing queues up while the server is away.
//!
//! A connection on which one command was not answered in time gets no further ones. It may be dead, and then
//! a second try must not go the way of the first; or it lost an answer, and then every later one would go to
//! the wrong command. What is under way on it may still be answered. A command that its caller gave up
//! earlier puts the connection to the question: a word is sent, and must come back.

use std::{pin::pin, sync::Arc};

use redis::{
    Cmd, ErrorKind, RedisError, RetryMethod, ServerErrorKind, Value, aio::MultiplexedConnection,
};
use tokio::{
    runtime::Handle,
    sync::watch,
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    RedisOptions, Replicas,
    link::{Link, Run, Shared, Up, keep},
    node::Signs,
    patience::Patience,
    script::Call,
    target::Target,
    task::Task,
};
use crate::{
    error::{BackendError, BackendErrorKind},
    time::after,
};

pub(super) struct Commands {
    shared: Arc<Shared>,
    task: Task,
}

/// How long something may take.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    deadline: Instant,
    /// All of the time of a command is left, for it has just begun.
    whole: bool,
}

impl Limit {
    /// The time of a command that begins now.
    pub(super) fn of(options: &RedisOptions) -> Self {
        Self { deadline: after(Instant::now(), options.command_timeout), whole: true }
    }

    /// What is left of it when something was done already.
    pub(super) fn rest(self) -> Self {
        Self { whole: false, ..self }
    }

    pub(super) fn deadline(self) -> Instant {
        self.deadline
    }
}

/// What goes with a command on its connection, with nothing in between.
#[derive(Clone, Copy, Default)]
pub(super) struct Escort {
    /// Before it: a `PING`. A server writes to whoever it owes something last first, so an answer that is owed already
    /// lets those hear first whom the script tells.
    pub(super) last: bool,
    /// Before it: that it is sent to a node that is only about to get its slot.
    pub(super) asking: bool,
    /// Behind it: so many replicas are to confirm it.
    pub(super) replicas: Option<Replicas>,
}

/// An answer, and how many replicas had it confirmed, if that was asked for.
pub(super) struct Answer {
    pub(super) value: Value,
    pub(super) confirmed: usize,
}

impl Commands {
    pub(super) fn new(target: Target, options: RedisOptions, signs: Signs) -> Self {
        let patience = Patience::new(options.command_timeout);
        let link = watch::Sender::new(Link::Idle);
        let shared = Shared { target, options, link, patience, signs };
        Self { shared: Arc::new(shared), task: Task::default() }
    }

    /// Runs a script, and sends it along if the server does not know it.
    pub(super) async fn call(
        &self,
        call: &Call<'_>,
        escort: Escort,
        limit: Limit,
    ) -> Result<Answer, Failed> {
        let escort = Escort { last: call.is_answered_last(), ..escort };
        match self.run(call.by_digest(), escort, limit).await {
            Err(Failed { turn: Some(Turn::WithSource), .. }) => {
                Box::pin(self.run(&call.with_source(), escort, limit.rest())).await
            }
            answer => answer,
        }
    }

    /// Runs scripts by their digests, all in one write.
    pub(super) async fn call_all(
        &self,
        calls: &[&Call<'_>],
        replicas: Option<Replicas>,
        limit: Limit,
    ) -> Result<Vec<Result<Answer, Failed>>, BackendError> {
        let mut pipeline = redis::pipe();
        for call in calls {
            pipeline.add_command(call.by_digest().clone());
        }
        if let Some(replicas) = replicas {
            pipeline.add_command(replicas.wait());
        }
        let count = calls.len() + usize::from(replicas.is_some());
        let sent = self.exchange(limit, |mut connection| async move {
            connection.send_packed_commands(&pipeline, 0, count).await
        });
        let (up, answers) = sent.await?;
        let mut answers = answers.map_err(|error| self.failed(error, &up).error)?;
        let confirmed = match replicas {
            Some(_) => confirmations(answers.pop()),
            None => 0,
        };
        let each = answers.into_iter().map(|value| match value.extract_error() {
            Ok(value) => Ok(Answer { value, confirmed }),
            Err(error) => Err(self.failed(error, &up)),
        });
        Ok(each.collect())
    }

    /// Runs a command.
    pub(super) async fn run(
        &self,
        command: &Cmd,
        escort: Escort,
        limit: Limit,
    ) -> Result<Answer, Failed> {
        if escort.last || escort.asking || escort.replicas.is_some() {
            return Box::pin(self.run_escorted(command, escort, limit)).await;
        }
        let sent = self.exchange(limit, |mut connection| async move {
            connection.send_packed_command(command).await
        });
        let (up, answer) = sent.await?;
        match answer.and_then(Value::extract_error) {
            Ok(value) => Ok(Answer { value, confirmed: 0 }),
            Err(error) => Err(self.failed(error, &up)),
        }
    }

    async fn run_escorted(
        &self,
        command: &Cmd,
        escort: Escort,
        limit: Limit,
    ) -> Result<Answer, Failed> {
        let mut pipeline = redis::pipe();
        if escort.last {
            pipeline.cmd("PING");
        }
        if escort.asking {
            pipeline.cmd("ASKING");
        }
        pipeline.add_command(command.clone());
        if let Some(replicas) = escort.replicas {
            pipeline.add_command(replicas.wait());
        }
        let skipped = usize::from(escort.last) + usize::from(escort.asking);
        let count = 1 + usize::from(escort.replicas.is_some());
        let sent = self.exchange(limit, |mut connection| async move {
            connection.send_packed_commands(&pipeline, skipped, count).await
        });
        let (up, answers) = sent.await?;
        let checked = answers.and_then(|answers| {
            let mut answers = answers.into_iter();
            let value = answers.next().unwrap_or(Value::Nil).extract_error()?;
            Ok(Answer { value, confirmed: confirmations(answers.next()) })
        });
        checked.map_err(|error| self.failed(error, &up))
    }

    /// Gives the present connection up: an answer of it was not one to what was asked.
    pub(super) fn out_of_step(&self) {
        if let Some(up) = self.present() {
            self.shared.give_up(&up.broken);
        }
    }

    /// Sends something by the present connection, which comes back with the answer.
    async fn exchange<T, F>(
        &self,
        limit: Limit,
        send: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<(Arc<Up>, Result<T, RedisError>), BackendError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let Limit { deadline, whole } = limit;
        let begun = deadline.checked_sub(self.shared.options.command_timeout);
        let (up, since, whole) = match self.present() {
            Some(up) => (up, begun.unwrap_or_else(Instant::now), whole),
            // In a box, so that the way of a command that need not wait stays small.
            None => (Box::pin(self.up(deadline)).await?, Instant::now(), false),
        };
        let unanswered = Unanswered { shared: &self.shared, up: &up, since };
        // In its place, for it is large.
        let sending = pin!(send(up.connected.connection.clone()));
        let over = async {
            // A loop on another runtime may stand still while this one goes on.
            match whole && Handle::current().id() == up.runtime {
                true => self.shared.patience.over().await,
                false => Box::pin(sleep_until(deadline)).await,
            }
        };
        tokio::select! {
            biased;
            answer = sending => {
                unanswered.answered();
                Ok((up, answer))
            }
            () = over => {
                let words = "no answer within the time of a command";
                Err(BackendError::new(BackendErrorKind::Unknown, words))
            }
        }
    }

    /// What an error says of its command; and the connection is given up if it says that it must be.
    fn failed(&self, error: RedisError, up: &Up) -> Failed {
        let replace = matches!(
            error.retry_method(),
            RetryMethod::Reconnect | RetryMethod::ReconnectFromInitialConnections
        );
        let code = code(&error);
        if replace || matches!(code, Some("READONLY" | "NOAUTH" | "MASTERDOWN")) {
            self.shared.give_up(&up.broken);
        }
        let kind = match code {
            Some("FOREIGN" | "WRONGTYPE") => BackendErrorKind::Foreign,
            Some("CLUSTERDOWN") => BackendErrorKind::Unavailable,
            Some(_) if !replace => BackendErrorKind::Refused,
            _ => BackendErrorKind::Unknown,
        };
        Failed { turn: Turn::after(&error), error: BackendError::new(kind, error) }
    }

    /// The present connection, if there is one.
    fn present(&self) -> Option<Arc<Up>> {
        match &*self.shared.link.borrow() {
            Link::Up(up) => Some(up.clone()),
            _ => None,
        }
    }

    /// The present connection, or the one that the attempt under way makes.
    async fn up(&self, deadline: Instant) -> Result<Arc<Up>, BackendError> {
        let mut link = self.shared.link.subscribe();
        loop {
            // Not looked at in place: what starts the loop writes what is looked at.
            let now = link.borrow_and_update().clone();
            match now {
                Link::Up(up) => return Ok(up),
                Link::Down(error) => return Err(error),
                Link::Connecting => {}
                Link::Idle => self.task.start(|| keep(Run(self.shared.clone()))),
            }
            match timeout_at(deadline, link.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(closed)) => {
                    return Err(BackendError::new(BackendErrorKind::Unavailable, closed));
                }
                Err(elapsed) => {
                    return Err(BackendError::new(BackendErrorKind::Unavailable, elapsed));
                }
            }
        }
    }
}

/// A command that is on its way. Dropped, it was not answered: its time was over, or its caller's patience,
/// which may be the shorter one.
struct Unanswered<'a> {
    shared: &'a Shared,
    up: &'a Up,
    since: Instant,
}

impl Unanswered<'_> {
    fn answered(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        // Callers have the same limit, and theirs may end a moment earlier.
        if self.since.elapsed() >= self.shared.options.command_timeout.mul_f64(0.9) {
            self.shared.give_up(&self.up.broken);
        } else {
            self.up.doubted.notify_one();
        }
    }
}

/// The code of what went wrong. Before version 7, Redis says of whatever fails in a script that the script failed,
/// and the rest as text: `Error running script (call to f_..): @user_script:9: WRONGTYPE Operation against ..`.
fn code(error: &RedisError) -> Option<&str> {
    let code = error.code()?;
    let called = error.detail().and_then(|text| {
        let (_, said) = text.strip_prefix("Error running script")?.rsplit_once("@user_script:")?;
        let said = said.trim_start_matches(|c: char| c.is_ascii_digit() || " :-".contains(c));
        said.split(' ').next()
    });
    Some(called.unwrap_or(code))
}

/// How many replicas a `WAIT` has counted.
fn confirmations(wait: Option<Value>) -> usize {
    match wait {
        Some(Value::Int(count)) => usize::try_from(count).unwrap_or(0),
        _ => 0,
    }
}

/// A command that failed.
pub(super) struct Failed {
    /// What it takes for it to work; nothing, where that is not known.
    pub(super) turn: Option<Turn>,
    pub(super) error: BackendError,
}

/// What to do with a command that a server did not run.
pub(super) enum Turn {
    /// Send the script along.
    WithSource,
    /// Send it to this server, which has its slot now.
    Moved(String),
    /// Send this one there, where its slot is about to go.
    Ask(String),
    /// Send it again in a moment: some of its keys are here, and others there already.
    Later,
}

impl Turn {
    fn after(error: &RedisError) -> Option<Self> {
        let ErrorKind::Server(kind) = error.kind() else { return None };
        let there = || error.redirect_node().map(|(address, _)| address.to_owned());
        match kind {
            ServerErrorKind::NoScript => Some(Self::WithSource),
            ServerErrorKind::Moved => there().map(Self::Moved),
            ServerErrorKind::Ask => there().map(Self::Ask),
            ServerErrorKind::TryAgain => Some(Self::Later),
            _ => None,
        }
    }
}

impl From<BackendError> for Failed {
    fn from(error: BackendError) -> Self {
        Self { turn: None, error }
    }
}

impl From<Failed> for BackendError {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What servers of version 6 and 7 say when a command in a script fails.
    #[test]
    fn the_code_of_what_failed_in_a_script_is_found() {
        for (said, expected) in [
            ("WRONGTYPE Operation against a key holding the wrong kind of value", "WRONGTYPE"),
            ("FOREIGN bellwether:l:{k}:l holds something that is not a lease", "FOREIGN"),
            (
                "ERR Error running script (call to f_32): @user_script:86: WRONGTYPE Operation against a key",
                "WRONGTYPE",
            ),
            (
                "ERR Error running script (call to f_32): @user_script:12: @user_script: 12: -READONLY You can't write",
                "READONLY",
            ),
            ("ERR unknown command", "ERR"),
        ] {
            let line = format!("-{said}\r\n");
            let error = redis::parse_redis_value(line.as_bytes()).and_then(Value::extract_error);
            assert_eq!(error.as_ref().err().and_then(code), Some(expected), "{said}");
        }
    }
}
