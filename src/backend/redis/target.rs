//! Which server a connection goes to.

use std::sync::Arc;

use redis::Client;

use super::sentinel::{Sentinel, Sighting};
use crate::error::BackendError;

#[derive(Clone)]
pub(super) enum Target {
    /// This one.
    Server(Box<Client>),
    /// Whichever the sentinels call the master at the time.
    Sentinel(Arc<Sentinel>),
}

/// Where a connection went, and what says that it should go elsewhere.
pub(super) enum Place {
    Fixed,
    Master(Sighting),
}

impl Target {
    /// The server to connect to now.
    pub(super) async fn find(&self) -> Result<(Client, Place), BackendError> {
        match self {
            Self::Server(client) => Ok(((**client).clone(), Place::Fixed)),
            Self::Sentinel(sentinel) => {
                let (client, sighting) = sentinel.find().await?;
                Ok((client, Place::Master(sighting)))
            }
        }
    }

    pub(super) fn database(&self) -> i64 {
        match self {
            Self::Server(client) => client.get_connection_info().redis_settings().db(),
            Self::Sentinel(sentinel) => sentinel.database(),
        }
    }
}

impl Place {
    /// Completes when the server is no longer the one to be connected to.
    pub(super) async fn left(self) {
        match self {
            Self::Fixed => std::future::pending().await,
            Self::Master(sighting) => sighting.outdated().await,
        }
    }

    /// What was found here could not be used.
    pub(super) fn doubt(self) {
        if let Self::Master(sighting) = self {
            sighting.doubt();
        }
    }
}
