//! A server to connect to, and how to log in there.

use std::{fmt, io, panic::AssertUnwindSafe, sync::Arc};

use futures_util::{FutureExt, future::BoxFuture};
use redis::{ConnectionInfo, RedisConnectionInfo, RedisError};

use crate::error::{BoxError, words_of};

/// The name and the password with which a connection logs in.
///
/// ```
/// use bellwether::backend::Credentials;
///
/// let of_default_user = Credentials::password("secret");
/// let of_user = Credentials::user("shop", "secret");
/// assert!(!format!("{of_user:?}").contains("secret"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    username: Option<String>,
    password: String,
}

impl Credentials {
    /// Creates the credentials of the default user of Redis.
    pub fn password(password: impl Into<String>) -> Self {
        Self { username: None, password: password.into() }
    }

    /// Creates the credentials of a user.
    pub fn user(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self { username: Some(username.into()), password: password.into() }
    }

    /// Returns the settings of a connection that logs in with these credentials.
    fn of(self, settings: RedisConnectionInfo) -> RedisConnectionInfo {
        let settings = settings.set_password(self.password);
        match self.username {
            Some(username) => settings.set_username(username),
            None => settings,
        }
    }
}

/// Leaves the password out.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

type Provider = Arc<dyn Fn() -> BoxFuture<'static, Result<Credentials, BoxError>> + Send + Sync>;

/// How the connections of a backend log in, beyond what their URLs say.
#[derive(Clone, Default)]
pub(in super::super) struct Access {
    /// Asked at each connect. Without it, the credentials are those of the URL.
    pub(in super::super) credentials: Option<Provider>,
    /// Without it, the roots of the system are trusted.
    #[cfg(feature = "tls")]
    pub(in super::super) tls: Option<Arc<rustls::ClientConfig>>,
}

impl Access {
    /// Returns the access to sentinels, which have credentials of their own.
    pub(super) fn without_credentials(&self) -> Self {
        let mut access = self.clone();
        access.credentials = None;
        access
    }
}

impl Access {
    /// Returns whether both log in in the same way.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        #[cfg(feature = "tls")]
        let is_tls_same = are_same(self.tls.as_ref(), other.tls.as_ref());
        #[cfg(not(feature = "tls"))]
        let is_tls_same = true;
        is_tls_same && are_same(self.credentials.as_ref(), other.credentials.as_ref())
    }
}

fn are_same<T: ?Sized>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

/// Returns whether two connections log in with the same credentials and use the same database.
pub(super) fn log_in_alike(one: &RedisConnectionInfo, other: &RedisConnectionInfo) -> bool {
    one.username() == other.username()
        && one.password() == other.password()
        && one.db() == other.db()
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

/// A server to connect to.
#[derive(Clone)]
pub(in super::super) struct ConnectTarget {
    info: ConnectionInfo,
    pub(super) access: Access,
}

impl ConnectTarget {
    pub(super) fn new(info: ConnectionInfo, access: &Access) -> Self {
        Self { info, access: access.clone() }
    }

    pub(super) fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    /// Returns whether both are the same server, logged in to in the same way.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.info.addr() == other.info.addr()
            && log_in_alike(self.info.redis_settings(), other.info.redis_settings())
            && self.access.is_same(&other.access)
    }

    /// Returns the settings of a new connection, with the credentials of now.
    pub(super) async fn settings(&self) -> Result<RedisConnectionInfo, RedisError> {
        let settings = self.info.redis_settings().clone();
        match &self.access.credentials {
            None => Ok(settings),
            Some(provide) => Ok(provided(provide).await?.of(settings)),
        }
    }
}

/// Asks a callback for the credentials. A panic is a failure like any other, so that the attempt to
/// connect ends with it, and the next one comes after a pause.
async fn provided(provide: &Provider) -> Result<Credentials, io::Error> {
    // The callback may also panic before it returns its future.
    let asked = AssertUnwindSafe(async { provide().await }).catch_unwind();
    match asked.await {
        Ok(provided) => provided.map_err(io::Error::other),
        Err(panic) => {
            let why = format!("the callback for credentials panicked: {}", words_of(&*panic));
            Err(io::Error::other(why))
        }
    }
}
