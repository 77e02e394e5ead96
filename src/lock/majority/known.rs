//! The owners under which the servers know what is held.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use crate::{
    backend::{Claim, Owner, Renewal},
    sync::lock,
};

/// The leases that are held, by the caller's owner.
#[derive(Default)]
pub(super) struct KnownLeases(Mutex<HashMap<Owner, KnownLease>>);

/// The fence, and the owner at each server, in their order.
type KnownLease = (u64, Vec<ServerHolder>);

#[derive(Clone, Copy)]
pub(super) struct ServerHolder {
    owner: Owner,
    /// The server has granted it the lease. Otherwise there is nothing to release.
    is_granted: bool,
    /// At the last renewal, the server denied that it has the lease.
    missing: bool,
}

impl ServerHolder {
    pub(super) fn granted(owner: Owner) -> Self {
        Self { owner, is_granted: true, missing: false }
    }

    /// Returns the holder at a server that has granted nothing, or may have to undo its grant.
    pub(super) fn none() -> Self {
        Self { owner: Owner::fresh(), is_granted: false, missing: false }
    }
}

impl KnownLeases {
    pub(super) fn insert(&self, ours: Owner, fence: u64, theirs: Vec<ServerHolder>) {
        self.all().insert(ours, (fence, theirs));
    }

    /// Returns the fence of a claim, if it is held as far as this process knows.
    pub(super) fn fence(&self, claim: &Claim) -> Option<u64> {
        self.all().get(&claim.owner).map(|(fence, _)| *fence)
    }

    /// Returns the claim as each server knows it, if it is held.
    pub(super) fn of(&self, claim: &Claim) -> Option<Vec<Claim>> {
        self.all().get(&claim.owner).map(|(_, theirs)| at_each(claim, theirs))
    }

    /// Returns the fence, and the claim at each server that has granted it, if it is held.
    pub(super) fn granted(&self, claim: &Claim) -> Option<(u64, Vec<Option<Claim>>)> {
        self.all().get(&claim.owner).map(|lease| granted_at_each(claim, lease))
    }

    /// Does the same as [`granted`](Self::granted), and forgets the claim.
    pub(super) fn remove(&self, claim: &Claim) -> Option<(u64, Vec<Option<Claim>>)> {
        self.all().remove(&claim.owner).map(|lease| granted_at_each(claim, &lease))
    }

    /// Notes what the servers say of a lease. Returns those that deny it for the second time in a
    /// row.
    pub(super) fn said(&self, ours: Owner, said: &[Renewal]) -> Vec<usize> {
        let mut all = self.all();
        let theirs = all.get_mut(&ours).map_or(&mut [][..], |(_, theirs)| theirs);
        let mut twice = Vec::new();
        for (at, (holder, said)) in theirs.iter_mut().zip(said).enumerate() {
            let missing = *said == Renewal::NotHeld;
            if *said != Renewal::Unknown
                && std::mem::replace(&mut holder.missing, missing)
                && missing
            {
                twice.push(at);
            }
        }
        twice
    }

    /// Notes that one server knows the lease under another owner. Returns whether it is held.
    pub(super) fn replace(&self, ours: Owner, at: usize, theirs: Owner) -> bool {
        let mut all = self.all();
        let known = all.get_mut(&ours).and_then(|(_, each)| each.get_mut(at));
        known.map(|known| *known = ServerHolder::granted(theirs)).is_some()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Owner, KnownLease>> {
        lock(&self.0)
    }
}

fn at_each(claim: &Claim, theirs: &[ServerHolder]) -> Vec<Claim> {
    let claim = Claim { waits: false, ..claim.clone() };
    theirs.iter().map(|holder| Claim { owner: holder.owner, ..claim.clone() }).collect()
}

fn granted_at_each(claim: &Claim, (fence, theirs): &KnownLease) -> (u64, Vec<Option<Claim>>) {
    let claims = at_each(claim, theirs).into_iter().zip(theirs);
    (*fence, claims.map(|(claim, holder)| holder.is_granted.then_some(claim)).collect())
}
