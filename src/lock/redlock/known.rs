//! Under which token each server knows what is held.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::lease::{Claim, Token};

/// What is held, by the engine's token of it: the tokens at the servers, in their order.
#[derive(Default)]
pub(super) struct Known(Mutex<HashMap<Token, Vec<Token>>>);

impl Known {
    pub(super) fn insert(&self, ours: Token, theirs: Vec<Token>) {
        self.all().insert(ours, theirs);
    }

    /// The claim as each server knows it, if it is held.
    pub(super) fn of(&self, claim: &Claim) -> Option<Vec<Claim>> {
        self.all().get(&claim.holder).map(|theirs| at_each(claim, theirs))
    }

    /// The same, for the last time.
    pub(super) fn remove(&self, claim: &Claim) -> Option<Vec<Claim>> {
        self.all().remove(&claim.holder).map(|theirs| at_each(claim, &theirs))
    }

    /// From now on one server knows it under another token. Says whether it is held.
    pub(super) fn replace(&self, ours: Token, at: usize, theirs: Token) -> bool {
        let mut all = self.all();
        let known = all.get_mut(&ours).and_then(|each| each.get_mut(at));
        known.map(|known| *known = theirs).is_some()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Token, Vec<Token>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn at_each(claim: &Claim, theirs: &[Token]) -> Vec<Claim> {
    let claim = Claim { fence_life: claim.lease, waits: false, ..claim.clone() };
    theirs.iter().map(|holder| Claim { holder: *holder, ..claim.clone() }).collect()
}
