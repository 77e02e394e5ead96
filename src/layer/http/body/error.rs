use std::{error::Error as StdError, fmt, sync::Arc};

use crate::error::{BoxError, Chain};

/// The error of a response body. All readers of a shared body get the same one.
///
/// Its source is the error of the inner service's body, if there is one.
///
/// ```
/// use bellwether::layer::{BodyError, BodyErrorKind};
///
/// fn is_of_the_service(error: &BodyError) -> bool {
///     error.kind() == BodyErrorKind::Service
/// }
/// ```
#[derive(Clone)]
pub struct BodyError {
    kind: BodyErrorKind,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// Why a response body broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BodyErrorKind {
    /// The body of the inner service ended with an error.
    Service,
    /// The length of the body contradicts its `Content-Length`.
    Length,
    /// The body of the inner service panicked.
    Panicked,
    /// This reader of a shared body was too slow for it. The others read on.
    Slow,
}

impl BodyError {
    pub(super) fn new(kind: BodyErrorKind) -> Self {
        Self { kind, source: None }
    }

    /// The error of the inner service's body.
    pub(super) fn service(error: impl Into<BoxError>) -> Self {
        match error.into().downcast::<Self>() {
            // The body has passed through a body of this layer.
            Ok(error) => *error,
            Err(error) => Self { kind: BodyErrorKind::Service, source: Some(Arc::from(error)) },
        }
    }

    /// Returns why the body broke off.
    pub fn kind(&self) -> BodyErrorKind {
        self.kind
    }
}

impl fmt::Debug for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Chain(self))
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            BodyErrorKind::Service => "the response body broke off",
            BodyErrorKind::Length => {
                "the length of the response body contradicts its `Content-Length`"
            }
            BodyErrorKind::Panicked => "the response body panicked",
            BodyErrorKind::Slow => {
                "the response body was read too slowly for the buffer that it shares"
            }
        })
    }
}

impl StdError for BodyError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}
