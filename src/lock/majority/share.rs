use std::{sync::Arc, time::Duration};

use tokio::{runtime::Handle, time::timeout};

use crate::{
    backend::{Claim, in_time},
    error::BackendError,
    lease::Engine,
};

/// What one try may have taken at one server. Dropped before it is [kept](Self::keep), it is undone there.
pub(super) struct Share {
    server: Arc<Engine>,
    claim: Claim,
    owes: Owes,
    runtime: Handle,
}

#[derive(Clone, Copy, PartialEq)]
enum Owes {
    Nothing,
    Release,
    /// It may have been taken, or be taken later by what is still on its way.
    Doubt,
}

impl Share {
    pub(super) fn new(server: Arc<Engine>, claim: Claim) -> Self {
        Self { server, claim, owes: Owes::Nothing, runtime: Handle::current() }
    }

    /// Asks for it; `taken` says of an answer whether it was granted.
    pub(super) async fn ask<'a, T, F>(
        &'a mut self,
        limit: Duration,
        send: impl FnOnce(&'a Claim) -> F,
        taken: impl FnOnce(&T) -> bool,
    ) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, BackendError>> + 'a,
    {
        self.owes = Owes::Doubt;
        let answer = in_time(limit, send(&self.claim)).await;
        self.owes = match &answer {
            Ok(answer) if taken(answer) => Owes::Release,
            // (What was given back for want of replicas may not have been.)
            Err(error) if error.may_have_happened() => Owes::Doubt,
            _ => Owes::Nothing,
        };
        answer
    }

    pub(super) fn is_taken(&self) -> bool {
        self.owes == Owes::Release
    }

    /// It is part of what is held from now on.
    pub(super) fn keep(mut self) {
        self.owes = Owes::Nothing;
    }

    /// Gives it back, and waits so long for the answer. What takes longer is done in the background, as it
    /// is when the future is dropped.
    pub(super) async fn give_back(mut self, limit: Duration) {
        self.owes = Owes::Nothing;
        let _ = timeout(limit, self.server.end(self.claim.clone())).await;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.owes != Owes::Nothing {
            self.server.undo(self.claim.clone(), self.owes == Owes::Doubt, &self.runtime);
        }
    }
}
