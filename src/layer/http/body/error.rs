use std::{error::Error as StdError, fmt, sync::Arc};

use crate::error::{BoxError, Chain};

/// Why a response body broke off. All readers of a shared body get the same error.
#[derive(Clone)]
#[non_exhaustive]
pub enum BodyError {
    /// The body of the inner service ended with this error, or with the runtime.
    Service(Arc<dyn StdError + Send + Sync>),
    /// The length of the body contradicts its `Content-Length`.
    Length,
    /// The body of the inner service panicked.
    Panicked,
    /// This reader of a shared body was too slow. The other readers read on.
    Slow,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Service(_) => "the response body broke off",
            Self::Length => "the length of the response body contradicts its `Content-Length`",
            Self::Panicked => "the response body panicked",
            Self::Slow => "the response body was read too slowly for the buffer that it shares",
        })
    }
}

// Not derived: the source would be the `Arc`, and no caller could downcast it.
impl StdError for BodyError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Service(error) => Some(&**error),
            Self::Length | Self::Panicked | Self::Slow => None,
        }
    }
}

impl BodyError {
    pub(super) fn service(error: impl Into<BoxError>) -> Self {
        match error.into().downcast::<Self>() {
            // The body has passed through a body of this layer.
            Ok(error) => *error,
            Err(error) => Self::Service(Arc::from(error)),
        }
    }
}

impl fmt::Debug for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Chain(self))
    }
}
