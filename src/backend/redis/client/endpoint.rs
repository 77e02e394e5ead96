//! The server that a connection goes to.

use std::sync::Arc;

use super::{
    address,
    sentinel::{MasterWatch, Sentinels},
    target::{Access, ConnectTarget},
};
use crate::error::{BackendError, Error};

#[derive(Clone)]
pub(in super::super) enum Endpoint {
    Server(Box<ConnectTarget>),
    /// The server that the sentinels name as the master.
    Sentinel(Arc<Sentinels>),
}

/// Reports when a connection must go to another server than the one that it found last.
#[derive(Clone)]
pub(super) enum EndpointWatch {
    /// No server was found, or it is always the same.
    Never,
    Master(MasterWatch),
}

impl Endpoint {
    pub(in super::super) fn server(url: &str, access: &Access) -> Result<Self, Error> {
        Ok(Self::Server(Box::new(ConnectTarget::new(address::parse(url)?, access))))
    }

    /// Returns the server to connect to now.
    pub(super) async fn find(&self) -> Result<(ConnectTarget, EndpointWatch), BackendError> {
        match self {
            Self::Server(target) => Ok(((**target).clone(), EndpointWatch::Never)),
            Self::Sentinel(sentinels) => {
                let (target, watch) = sentinels.find().await?;
                Ok((target, EndpointWatch::Master(watch)))
            }
        }
    }

    /// Returns the server for logs, without credentials.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Server(target) => target.info().addr().to_string(),
            Self::Sentinel(sentinels) => format!("master {:?}", sentinels.master_name()),
        }
    }

    pub(in super::super) fn database(&self) -> i64 {
        match self {
            Self::Server(target) => target.info().redis_settings().db(),
            Self::Sentinel(sentinels) => sentinels.database(),
        }
    }
}

impl EndpointWatch {
    /// Completes when the connection must go to another server.
    pub(super) async fn outdated(&mut self) {
        match self {
            Self::Never => std::future::pending().await,
            Self::Master(watch) => watch.outdated().await,
        }
    }

    /// Reports that the server could not be used.
    pub(super) fn report_failure(&self) {
        if let Self::Master(watch) = self {
            watch.report_failure();
        }
    }
}
