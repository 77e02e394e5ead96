//! Errors: what failed, and whether the operation may have happened.

use std::{any::Any, error::Error as StdError, fmt, sync::Arc, time::Duration};

use tokio::time::error::Elapsed;

/// Any error, as loaders and codecs return it.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// The reason why a call failed: a [kind](Self::kind), a sentence and, where there is one, a
/// source.
///
/// Cloning is cheap: all waiters for a failed load get the same error.
///
/// `{}` shows the sentence alone, and [`source`](StdError::source) has the rest. `{:#}` shows the
/// sentence and all sources in one line, for logs. `{:?}` shows the same line, because Rust prints
/// an error of `main` by `{:?}`.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    retry_after: Option<Duration>,
    is_deferred: bool,
}

impl Inner {
    fn new(kind: ErrorKind, message: String, source: Option<BoxError>) -> Self {
        let source = source.map(Arc::from);
        Self { kind, message, source, retry_after: None, is_deferred: false }
    }
}

/// The category of an [`Error`], for the caller to decide what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The loader returned an error, in this process or in the process that led the load.
    Load,
    /// The loader panicked, in this process or in the process that led the load.
    Panicked,
    /// The loader took longer than the load limit.
    LoadTimeout,
    /// No load was tried, because the key backs off after a failed load. The source is the text of
    /// that failure. [`retry_after`](Error::retry_after) returns how long the key backs off.
    BackingOff,
    /// The load was cancelled: no caller waited for it any more, or its runtime was shut down.
    Cancelled,
    /// A limit was reached: too many loads at once, or too many waiters.
    Overloaded,
    /// The lock was not acquired before the wait limit or the retry strategy ended.
    NotAcquired,
    /// The latch does not exist: it was never set, its time is over, or it was cleared.
    NotSet,
    /// The wait limit ended before the awaited event, such as the zero of a latch.
    NotDone,
    /// The lease was lost before this call. Another holder may have the lock.
    Lost,
    /// The backend did not answer, or refused. The source is a [`BackendError`].
    Backend,
    /// The value could not be encoded, or a value of another process could not be decoded.
    Codec,
    /// The key is empty or too long.
    InvalidKey,
    /// A setting is outside its range.
    InvalidConfig,
    /// The `Locks` or the `Redlock` was shut down, or the shutdown of a `Cache` ended the load.
    ///
    /// A call after the shutdown of a `Cache` loads for itself, and gets
    /// [`Degraded`](crate::cache::Source::Degraded).
    ShutDown,
}

impl Error {
    /// Returns the kind of the failure, to match on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the loader's own error, if it is an `E`.
    ///
    /// If another process led the load, the error has only a kind and a text, unless the cache has
    /// an [error codec](crate::cache::Builder::error_codec) for `E`. An `E` inside of an
    /// `anyhow::Error` is not found, because its box hides the type.
    pub fn load_ref<E: StdError + 'static>(&self) -> Option<&E> {
        match self.0.kind {
            ErrorKind::Load => self.0.source.as_ref()?.downcast_ref(),
            _ => None,
        }
    }

    /// Returns how long the key backs off, counted from the moment at which this caller got the
    /// error. Meanwhile no process loads the key.
    ///
    /// Returns `None` if the next call may load at once.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Returns whether this process repeats the failed write as soon as the backend answers.
    ///
    /// Until then, this process serves nothing older for the key or the tag. Other processes may
    /// serve older values, and the write is lost if this process ends first. [Deferred
    /// writes](crate::cache::windows#deferred-writes) has all rules.
    pub fn is_deferred(&self) -> bool {
        self.0.is_deferred
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner::new(kind, message.into(), None)))
    }

    pub(crate) fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<BoxError>,
    ) -> Self {
        Self(Arc::new(Inner::new(kind, message.into(), Some(source.into()))))
    }

    /// Creates the error of a lease that was lost before the call.
    pub(crate) fn lost(name: &str) -> Self {
        let why = format!("the lease of {name:?} was lost; another holder may have it by now");
        Self::new(ErrorKind::Lost, why)
    }

    /// Creates the error of a call that a shutdown ended.
    pub(crate) fn shut_down() -> Self {
        Self::new(ErrorKind::ShutDown, "the cache or the locks are shut down")
    }

    /// Wraps the error that a loader returned.
    pub(crate) fn load(error: impl Into<BoxError>) -> Self {
        Self::with_source(ErrorKind::Load, "the load failed", error)
    }

    /// Returns the same error for a later caller, while the key backs off for this time.
    pub(crate) fn again_after(&self, wait: Duration) -> Self {
        let mut error = self.clone().with_retry_after(wait);
        Arc::make_mut(&mut error.0).message.push_str("; its key backs off");
        error
    }

    /// Adds how long the key backs off. Clones that exist already do not change.
    pub(crate) fn with_retry_after(mut self, wait: Duration) -> Self {
        Arc::make_mut(&mut self.0).retry_after = Some(wait);
        self
    }

    /// Marks the error of a write that is repeated when the backend answers.
    pub(crate) fn deferred(mut self) -> Self {
        let inner = Arc::make_mut(&mut self.0);
        inner.is_deferred = true;
        inner.message.push_str("; the write is repeated when the backend answers");
        self
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Chain(self))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return write!(f, "{}", Chain(self));
        }
        f.write_str(&self.0.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<BackendError> for Error {
    fn from(error: BackendError) -> Self {
        // The message has the words of its source, and `Chain` shows them once.
        Self::with_source(ErrorKind::Backend, error.kind.to_string(), error)
    }
}

/// The reason why an operation of a backend failed.
///
/// `{}` shows whether the operation may have happened, and [`source`](StdError::source) has the
/// cause. `{:#}` and `{:?}` show both in one line, for logs.
#[derive(Clone)]
pub struct BackendError {
    kind: BackendErrorKind,
    source: Arc<dyn StdError + Send + Sync>,
    outlook: Outlook,
}

/// Whether a later try of a failed operation may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    /// A later try may succeed.
    Open,
    /// A later try succeeds once the server works again, after a failover or after loading its
    /// data.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    Passing,
    /// Each later try is refused until the server has room.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    Lasting,
    /// Each later try is refused until an operator acts.
    Forbidden,
}

/// The category of a [`BackendError`]: whether the failed operation may have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// There is no connection, or too few servers of a majority answer. The operation did not
    /// happen.
    #[error("Redis is not available")]
    Unavailable,
    /// No answer came in time, or the connection broke after sending. The operation may have
    /// happened, or may happen later.
    #[error("the backend gave no usable answer, so the operation may have happened")]
    Unknown,
    /// The server answered with an error, so nothing changed.
    #[error("the backend refused the operation")]
    Refused,
    /// Another program has written the data under the name, because the data has another type or
    /// cannot be read.
    #[error("the name holds data that this crate did not write; delete it or use another name")]
    Foreign,
    /// The operation happened, but fewer replicas than the setting confirmed it in time, or the
    /// server refused to count them. The source says which. A grant was released, if the server
    /// still answered.
    #[error("the operation happened, but too few replicas confirmed it")]
    Unreplicated,
}

impl BackendError {
    /// Creates an error of a kind from its cause.
    #[doc(hidden)]
    pub fn new(kind: BackendErrorKind, source: impl Into<BoxError>) -> Self {
        let outlook = match kind {
            BackendErrorKind::Foreign => Outlook::Forbidden,
            _ => Outlook::Open,
        };
        Self { kind, source: Arc::from(source.into()), outlook }
    }

    /// Creates the error of an operation that the backend refused.
    pub(crate) fn refused(why: impl Into<BoxError>) -> Self {
        Self::new(BackendErrorKind::Refused, why)
    }

    /// Marks the error of an operation that the server refuses until there is room.
    #[cfg(feature = "redis")]
    pub(crate) fn lasting(self) -> Self {
        Self { outlook: Outlook::Lasting, ..self }
    }

    /// Marks the error of an operation that the server refuses until an operator acts.
    #[cfg(feature = "redis")]
    pub(crate) fn forbidden(self) -> Self {
        Self { outlook: Outlook::Forbidden, ..self }
    }

    /// Marks the error of an operation that the server refuses until it works again.
    #[cfg(feature = "redis")]
    pub(crate) fn passing(self) -> Self {
        Self { outlook: Outlook::Passing, ..self }
    }

    /// Returns whether another try at once would fail again.
    ///
    /// Most refusals are not of this kind. During a failover or while a slot moves, a server
    /// refuses an operation that this or another server accepts soon after.
    pub(crate) fn is_lasting(&self) -> bool {
        matches!(self.outlook, Outlook::Lasting | Outlook::Forbidden)
    }

    /// Returns whether each later try fails until an operator acts.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.outlook == Outlook::Forbidden
    }

    /// Returns whether the backend is away: it did not answer, or its server refuses for a while.
    pub(crate) fn is_away(&self) -> bool {
        let is_unanswered =
            matches!(self.kind, BackendErrorKind::Unavailable | BackendErrorKind::Unknown);
        is_unanswered || self.outlook == Outlook::Passing
    }

    /// Creates the error of an operation that was sent and not answered in time.
    pub(crate) fn timed_out(elapsed: Elapsed) -> Self {
        Self::new(BackendErrorKind::Unknown, elapsed)
    }

    /// Returns whether the operation may have changed something, now or later. The caller of an
    /// acquisition that failed in this way must undo it.
    pub(crate) fn may_have_happened(&self) -> bool {
        matches!(self.kind, BackendErrorKind::Unknown | BackendErrorKind::Unreplicated)
    }

    /// Returns the category of the failure, to match on.
    pub fn kind(&self) -> BackendErrorKind {
        self.kind
    }
}

impl fmt::Debug for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Chain(self))
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return write!(f, "{}", Chain(self));
        }
        write!(f, "{}", self.kind)
    }
}

impl StdError for BackendError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(self.source.as_ref())
    }
}

/// Returns the text of a panic of a caller's code.
pub(crate) fn words_of(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(words), _) => words,
        (_, Some(words)) => words.as_str(),
        _ => "with a payload that is not text",
    }
}

/// Shows an error and its sources in one line, the outermost first.
///
/// An error of another crate may repeat its source in its own text. Such a source is left out.
pub(crate) struct Chain<'a>(pub(crate) &'a dyn StdError);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.0.to_string();
        f.write_str(&shown)?;
        let mut next = self.0.source();
        while let Some(source) = next {
            let text = source.to_string();
            if !shown.contains(&text) {
                write!(f, ": {text}")?;
                shown = text;
            }
            next = source.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("read failed: {0}")]
    struct Repeats(#[source] std::io::Error);

    #[test]
    fn a_display_shows_no_source_and_an_alternate_display_shows_each_once() {
        let refused = std::io::Error::other("connection refused");
        let error = BackendError::new(BackendErrorKind::Unavailable, Repeats(refused));
        let error = Error::from(error);
        assert_eq!(error.to_string(), "Redis is not available");
        let all = "Redis is not available: read failed: connection refused";
        assert_eq!(format!("{error:#}"), all);
        assert_eq!(Chain(&error).to_string(), all);
    }
}
