//! What callers are told when something did not work.

use std::{fmt, sync::Arc};

/// Any error, as loaders and codecs return it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a call failed: a [kind](Error::kind), a sentence, and where there is one a source.
///
/// Cheap to clone: a failed load reaches everyone who waited for it as one shared error.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<BoxError>,
}

/// What went wrong, coarsely enough to decide what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The loader returned an error, in this process or in the one that led.
    Load,
    /// The loader panicked, in this process or in the one that led.
    Panicked,
    /// The loader took longer than the load limit.
    LoadTimeout,
    /// The load was cancelled: nobody waited for it any more, or its runtime or its cache was shut down.
    Cancelled,
    /// A cap was reached: too many loads at once, or too many callers who wait.
    Overloaded,
    /// The lock was not acquired before the wait limit or the retry strategy ended.
    NotAcquired,
    /// There is no such latch: it was never set, its time is over, or it was cleared.
    NotSet,
    /// The latch was not counted down to zero before the wait limit ended.
    NotDone,
    /// The lease was lost before this call; someone else may hold it by now.
    Lost,
    /// The backend did not answer, or refused. The source is a [`BackendError`].
    Backend,
    /// The value could not be encoded, or what was handed over could not be decoded.
    Codec,
    /// The key is empty or too long.
    InvalidKey,
    /// A setting is outside its range.
    InvalidConfig,
    /// The locks were shut down.
    ShutDown,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner { kind, message: message.into(), source: None }))
    }

    pub(crate) fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<BoxError>,
    ) -> Self {
        Self(Arc::new(Inner { kind, message: message.into(), source: Some(source.into()) }))
    }

    /// What a loader returned.
    pub(crate) fn load(error: impl Into<BoxError>) -> Self {
        let error = error.into();
        Self::with_source(ErrorKind::Load, format!("the load failed: {error}"), error)
    }

    /// What went wrong, to match on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The loader's own error, if it was returned in this process and is an `E`.
    ///
    /// An error of a load that another process led is a kind and a text only. Nor is one found that came as an
    /// `anyhow::Error`: the box that this becomes hides the type within.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::io;
    /// use bellwether::{Cache, MemoryBackend};
    ///
    /// let cache: Cache<String> = Cache::builder(MemoryBackend::new()).build()?;
    /// let error = cache
    ///     .get_or_load("k", |_lead| async { Err(io::Error::from(io::ErrorKind::NotFound)) })
    ///     .await
    ///     .unwrap_err();
    /// assert_eq!(error.load_ref::<io::Error>().unwrap().kind(), io::ErrorKind::NotFound);
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn load_ref<E: std::error::Error + 'static>(&self) -> Option<&E> {
        match self.0.kind {
            ErrorKind::Load => self.0.source.as_ref()?.downcast_ref(),
            _ => None,
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("message", &self.0.message)
            .field("source", &self.0.source)
            .finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.source {
            Some(source) => Some(source.as_ref()),
            None => None,
        }
    }
}

impl From<BackendError> for Error {
    fn from(error: BackendError) -> Self {
        Self::with_source(ErrorKind::Backend, error.to_string(), error)
    }
}

/// What a backend says when an operation did not work.
#[derive(Clone, Debug)]
pub struct BackendError {
    kind: BackendErrorKind,
    source: Arc<dyn std::error::Error + Send + Sync>,
}

/// What is known of an operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// There is no connection: the operation was not sent, so it did not happen.
    Unavailable,
    /// No answer came in time, or the connection broke after sending: it may have happened, or happen later.
    Unknown,
    /// The server answered with an error, so nothing changed.
    Refused,
    /// What stands under the name is not ours: another type, or bytes that cannot be read.
    Foreign,
    /// It happened, but fewer replicas confirmed it in time than were asked for. What was granted was given
    /// back, as far as the server still answered.
    Unreplicated,
}

impl BackendError {
    /// An error of a kind, with what caused it.
    pub fn new(kind: BackendErrorKind, source: impl Into<BoxError>) -> Self {
        Self { kind, source: Arc::from(source.into()) }
    }

    /// What is known of the operation.
    pub fn kind(&self) -> BackendErrorKind {
        self.kind
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            BackendErrorKind::Unavailable => "the backend is not reachable",
            BackendErrorKind::Unknown => "the backend did not answer in time",
            BackendErrorKind::Refused => "the backend refused",
            BackendErrorKind::Foreign => "something else stands under the name",
            BackendErrorKind::Unreplicated => "the backend did not make it safe",
        };
        write!(f, "{what}: {}", self.source)
    }
}

impl std::error::Error for BackendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.source.as_ref())
    }
}
