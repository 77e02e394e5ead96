//! The server that a connection goes to.

use std::sync::Arc;

use redis::Client;

use super::{
    address,
    sentinel::{MasterWatch, Sentinels},
};
use crate::error::{BackendError, Error};

#[derive(Clone)]
pub(in super::super) enum Endpoint {
    Server(Box<Client>),
    /// The server that the sentinels name as the master.
    Sentinel(Arc<Sentinels>),
}

/// Reports when a connection must go to another server.
pub(super) enum EndpointWatch {
    Never,
    Master(MasterWatch),
}

impl Endpoint {
    pub(in super::super) fn server(url: &str) -> Result<Self, Error> {
        Ok(Self::Server(Box::new(address::client(address::parse(url)?)?)))
    }

    /// Returns the server to connect to now.
    pub(super) async fn find(&self) -> Result<(Client, EndpointWatch), BackendError> {
        match self {
            Self::Server(client) => Ok(((**client).clone(), EndpointWatch::Never)),
            Self::Sentinel(sentinels) => {
                let (client, watch) = sentinels.find().await?;
                Ok((client, EndpointWatch::Master(watch)))
            }
        }
    }

    /// Returns the server for logs, without credentials.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Server(client) => client.get_connection_info().addr().to_string(),
            Self::Sentinel(sentinels) => format!("master {:?}", sentinels.master_name()),
        }
    }

    pub(in super::super) fn database(&self) -> i64 {
        match self {
            Self::Server(client) => client.get_connection_info().redis_settings().db(),
            Self::Sentinel(sentinels) => sentinels.database(),
        }
    }
}

impl EndpointWatch {
    /// Completes when the connection must go to another server.
    pub(super) async fn outdated(self) {
        match self {
            Self::Never => std::future::pending().await,
            Self::Master(watch) => watch.outdated().await,
        }
    }

    /// Reports that the server could not be used.
    pub(super) fn report_failure(self) {
        if let Self::Master(watch) = self {
            watch.report_failure();
        }
    }
}
