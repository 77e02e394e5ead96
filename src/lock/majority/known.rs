//! Under which token each server knows what is held.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::backend::{Claim, Owner, Renewal};

/// What is held, by the engine's token of it: the shares at the servers, in their order.
#[derive(Default)]
pub(super) struct Known(Mutex<HashMap<Owner, Vec<Holder>>>);

#[derive(Clone, Copy)]
pub(super) struct Holder {
    token: Owner,
    /// At the last renewal the server said that it has it not.
    missing: bool,
}

impl From<Owner> for Holder {
    fn from(token: Owner) -> Self {
        Self { token, missing: false }
    }
}

impl Known {
    pub(super) fn insert(&self, ours: Owner, theirs: impl IntoIterator<Item = Owner>) {
        self.all().insert(ours, theirs.into_iter().map(Holder::from).collect());
    }

    /// The claim as each server knows it, if it is held.
    pub(super) fn of(&self, claim: &Claim) -> Option<Vec<Claim>> {
        self.all().get(&claim.owner).map(|theirs| at_each(claim, theirs))
    }

    /// The same, for the last time.
    pub(super) fn remove(&self, claim: &Claim) -> Option<Vec<Claim>> {
        self.all().remove(&claim.owner).map(|theirs| at_each(claim, &theirs))
    }

    /// Takes over what the servers say of it. Returns those that say for the second time in a row that they have it not.
    pub(super) fn said(&self, ours: Owner, said: &[Renewal]) -> Vec<usize> {
        let mut all = self.all();
        let theirs = all.get_mut(&ours).map_or(&mut [][..], Vec::as_mut_slice);
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

    /// From now on one server knows it under another token. Says whether it is held.
    pub(super) fn replace(&self, ours: Owner, at: usize, theirs: Owner) -> bool {
        let mut all = self.all();
        let known = all.get_mut(&ours).and_then(|each| each.get_mut(at));
        known.map(|known| *known = theirs.into()).is_some()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Owner, Vec<Holder>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn at_each(claim: &Claim, theirs: &[Holder]) -> Vec<Claim> {
    let claim = Claim { fence_life: claim.lease, waits: false, ..claim.clone() };
    theirs.iter().map(|holder| Claim { owner: holder.token, ..claim.clone() }).collect()
}
