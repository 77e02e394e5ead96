//! The sentinels, and what they say.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use redis::{ErrorKind, RedisError};
use tokio::{sync::watch, time::Instant};

use super::{
    super::{
        connect::ask,
        connect_error::ConnectError,
        handshake::refuse_replica,
        staggered::first_success,
        target::{Access, ConnectTarget},
    },
    HostPort, SentinelMaster,
};
use crate::error::BoxError;

/// How long one sentinel may take, before the next one is asked, too.
const ASK_PAUSE: Duration = Duration::from_millis(80);
/// How long all sentinels may take together.
const ASK_LIMIT: Duration = Duration::from_secs(1);

/// The facts that the connections and the watch share.
pub(super) struct KnownSentinels {
    pub(super) targets: Vec<ConnectTarget>,
    pub(super) master: SentinelMaster,
    /// How to log in to the master.
    pub(super) access: Access,
    /// The index of the sentinel to ask first.
    first: AtomicUsize,
    /// The master that the watch has seen last, sent again with each look.
    pub(super) seen: watch::Sender<Option<HostPort>>,
}

impl KnownSentinels {
    pub(super) fn new(
        targets: Vec<ConnectTarget>,
        master: SentinelMaster,
        access: &Access,
    ) -> Self {
        let (first, seen) = (AtomicUsize::new(0), watch::Sender::new(None));
        Self { targets, master, access: access.clone(), first, seen }
    }

    /// Returns whether both find the same master in the same way.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.targets.len() == other.targets.len()
            && self.targets.iter().zip(&other.targets).all(|(one, other)| one.is_same(other))
            && self.master.is_same(&other.master)
            && self.access.is_same(&other.access)
    }

    pub(super) fn master_name(&self) -> &str {
        &self.master.name
    }

    /// Returns the address of the master, and the index of the sentinel that named it.
    pub(super) async fn locate(&self) -> Result<(HostPort, usize), BoxError> {
        let begun = Instant::now();
        let (first, count) = (self.first.load(Ordering::Relaxed), self.targets.len());
        let questions = (0..count).map(|turn| (first + turn) % count).map(async |asked| {
            let left = ASK_LIMIT.saturating_sub(begun.elapsed());
            Ok::<_, ConnectError>((self.ask(asked, left).await?, asked))
        });
        let (address, named_by) = first_success(questions, ASK_PAUSE).await?;
        self.first.store(named_by, Ordering::Relaxed);
        Ok((address, named_by))
    }

    /// Asks one sentinel.
    pub(super) async fn ask(
        &self,
        sentinel: usize,
        limit: Duration,
    ) -> Result<HostPort, ConnectError> {
        let question = async |mut connection| {
            let mut question = redis::cmd("SENTINEL");
            question.arg("get-master-addr-by-name").arg(&self.master.name);
            let reply: Option<HostPort> = question.query_async(&mut connection).await?;
            let unknown = "a sentinel does not know the master";
            reply.ok_or_else(|| {
                RedisError::from((ErrorKind::Client, unknown, self.master.name.clone()))
            })
        };
        ask(&self.targets[sentinel], "the master", limit, question).await
    }

    /// Makes the next sentinel the first one to ask, since the server that this one named could not
    /// be used.
    pub(super) fn distrust(&self, sentinel: usize) {
        self.first.store((sentinel + 1) % self.targets.len(), Ordering::Relaxed);
    }

    pub(super) async fn is_master(&self, address: HostPort) -> bool {
        let Ok(target) = self.master.target_at(address, &self.access) else { return false };
        let question = async |mut connection| refuse_replica(&mut connection).await;
        ask(&target, "its role", ASK_LIMIT, question).await.is_ok()
    }
}
