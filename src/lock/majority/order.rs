//! The order of the waiters, which one of the servers keeps.
//!
//! The queues of several servers would have several orders. So a waiting claim enters the queue of
//! one server only, the *queue server*: the first of the list that answers and pushes. A release
//! there tells the next claim that it is its turn, and keeps the lease at that server for it. The
//! claim then asks all servers, and the rest of them is free.
//!
//! This is about order, and never about safety: a majority decides. Processes that disagree about
//! the queue server may split the servers between them. A claim that has the queue server then
//! tries again a few times, since a claim that asks out of its turn gives way.
//!
//! At the queue server, a claim has the owner of its caller, so that the push of its turn reaches
//! the caller. An owner whose request had no answer there is not used there again.

use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    backend::{Claim, Owner},
    error::{BackendError, BackendErrorKind},
    key::Name,
    lease::Acquisition,
    sync::lock,
    time::after,
};

/// A claim that has left the queue asks again after this time, which doubles each time.
const LEFT: Duration = Duration::from_millis(5);
/// The number of contended names that are remembered.
const NAMES: usize = 1024;

/// The waiting claims of one majority, and what is known of its servers.
pub(super) struct Order {
    places: Mutex<HashMap<Owner, ClaimPlace>>,
    /// Until when a name counts as contended, because other claims were in the way.
    contended: Mutex<HashMap<Name, Instant>>,
    servers: Box<[Server]>,
}

#[derive(Default)]
struct Server {
    /// The last request failed.
    is_silent: AtomicBool,
    /// The last subscription failed.
    is_mute: AtomicBool,
}

impl Server {
    fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Relaxed)
    }

    fn is_mute(&self) -> bool {
        self.is_mute.load(Ordering::Relaxed)
    }
}

/// The position of a claim.
pub(super) enum ClaimPlace {
    /// It has an entry in the queue of a server.
    Queued(Queued),
    /// It has left the queue, because it had the queue server and no majority.
    Left {
        /// How often it did so in a row.
        times: u32,
    },
    /// A request is under way, or had no answer.
    Unknown,
}

/// A queue entry.
pub(super) struct Queued {
    /// The number of the queue server.
    pub(super) at: usize,
    pub(super) acquisition: Acquisition,
    /// When the claim is to ask without a push.
    pub(super) look_at: Instant,
}

impl Order {
    pub(super) fn new(servers: usize) -> Self {
        let servers = (0..servers).map(|_| Server::default()).collect();
        Self { places: Mutex::default(), contended: Mutex::default(), servers }
    }

    /// Returns the number of the queue server.
    pub(super) fn queue_server(&self) -> usize {
        let answers = || self.servers.iter().position(|server| !server.is_silent());
        (0..self.servers.len()).find(|at| self.serves(*at)).or_else(answers).unwrap_or(0)
    }

    /// Returns whether a server answers and pushes.
    pub(super) fn serves(&self, at: usize) -> bool {
        self.servers.get(at).is_some_and(|server| !server.is_silent() && !server.is_mute())
    }

    /// Returns whether the last request to a server failed.
    pub(super) fn is_silent(&self, at: usize) -> bool {
        self.servers.get(at).is_some_and(Server::is_silent)
    }

    /// Returns whether the last request to any server failed.
    pub(super) fn has_silent(&self) -> bool {
        self.servers.iter().any(Server::is_silent)
    }

    /// Notes how a server has answered a request.
    pub(super) fn answered<T>(&self, at: usize, answer: &Result<T, BackendError>) {
        let error = answer.as_ref().err().map(BackendError::kind);
        let is_silent = error.is_some_and(|kind| kind != BackendErrorKind::Foreign);
        if let Some(server) = self.servers.get(at) {
            server.is_silent.store(is_silent, Ordering::Relaxed);
        }
    }

    /// Notes whether a server pushes.
    pub(super) fn subscribed<T>(&self, at: usize, answer: &Result<T, BackendError>) {
        if let Some(server) = self.servers.get(at) {
            server.is_mute.store(answer.is_err(), Ordering::Relaxed);
        }
    }

    /// Takes the place of a claim for a request.
    pub(super) fn take(&self, claim: &Claim) -> Option<ClaimPlace> {
        lock(&self.places).insert(claim.owner, ClaimPlace::Unknown)
    }

    /// Gives a claim its place. It is to ask without a push after this time.
    pub(super) fn put(&self, at: usize, acquisition: Acquisition, look: Duration) {
        let (owner, look_at) = (acquisition.claim().owner, after(Instant::now(), look));
        lock(&self.places).insert(owner, ClaimPlace::Queued(Queued { at, acquisition, look_at }));
    }

    /// Notes that a claim has left the queue so many times in a row. Returns after how long it is
    /// to ask again.
    ///
    /// A share in its way may be one that is being released, or that of a long hold.
    pub(super) fn leave(&self, claim: &Claim, times: u32) -> Duration {
        lock(&self.places).insert(claim.owner, ClaimPlace::Left { times });
        LEFT.saturating_mul(1 << times.min(7))
    }

    /// Removes the place of a claim.
    pub(super) fn remove(&self, owner: Owner) -> Option<ClaimPlace> {
        lock(&self.places).remove(&owner)
    }

    /// Returns the queue server of a claim, and when the claim is to ask without a push.
    pub(super) fn place(&self, claim: &Claim) -> Option<(usize, Instant)> {
        match lock(&self.places).get(&claim.owner)? {
            ClaimPlace::Queued(queued) => Some((queued.at, queued.look_at)),
            ClaimPlace::Left { .. } | ClaimPlace::Unknown => None,
        }
    }

    /// Notes that another claim is in the way, and may be for this time.
    pub(super) fn met(&self, name: &Name, lasts: Duration) {
        let (mut contended, now) = (lock(&self.contended), Instant::now());
        if contended.len() >= NAMES {
            contended.retain(|_, until| *until > now);
        }
        if contended.len() < NAMES {
            contended.insert(name.clone(), after(now, lasts));
        }
    }

    /// Returns whether other claims for a name were in the way lately.
    pub(super) fn is_contended(&self, name: &Name) -> bool {
        lock(&self.contended).get(name).is_some_and(|until| *until > Instant::now())
    }
}
