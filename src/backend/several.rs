use futures_util::future::join_all;

use super::{Acquired, Leases};
use crate::{
    backend::{Claim, Grant, Mode, Occupied},
    error::{BackendError, BackendErrorKind},
};

/// The answer to [`Leases::acquire_all`].
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquiredAll {
    /// All leases are held now: a grant for each claim, in their order.
    Granted(Vec<Grant>),
    /// Someone else holds the lease of the claim at this place, counted from zero, and nothing is held.
    Held(usize, Occupied),
}

/// Acquires leases one after another; gives back those that it has as soon as one is not to be had.
///
/// For a backend that cannot do it in one step. Where others do the same, the claims must be in one order
/// everywhere.
///
/// # Errors
///
/// As [`Leases::acquire_all`]. What may have been taken is given back before it returns; if it is not certain
/// that it was, the error is [unknown](BackendErrorKind::Unknown).
///
/// # Cancel safety
///
/// As that of [`Leases`]: whoever drops it gives back what may have been taken.
pub async fn acquire_in_order<B: Leases + ?Sized>(
    backend: &B,
    claims: &[Claim],
) -> Result<AcquiredAll, BackendError> {
    check(claims)?;
    let mut grants = Vec::with_capacity(claims.len());
    for (at, claim) in claims.iter().enumerate() {
        let stopped = match backend.acquire(claim).await {
            Ok(Acquired::Granted(grant)) => {
                grants.push(grant);
                continue;
            }
            Ok(Acquired::Held(occupied)) => Ok(AcquiredAll::Held(at, occupied)),
            Err(error) => Err(error),
        };
        // With those that were granted, the one that may have been.
        let unknown = stopped.as_ref().is_err_and(BackendError::may_have_happened);
        let taken = claims.iter().take(at + usize::from(unknown));
        let given_back = join_all(taken.map(|claim| backend.release(claim))).await;
        if let Some(error) = given_back.into_iter().find_map(Result::err) {
            return Err(BackendError::new(BackendErrorKind::Unknown, error));
        }
        return stopped;
    }
    Ok(AcquiredAll::Granted(grants))
}

/// Whether all claims are exclusive ones.
pub(super) fn check(claims: &[Claim]) -> Result<(), BackendError> {
    match claims.iter().find(|claim| claim.mode != Mode::Exclusive) {
        Some(claim) => {
            let why = format!("{:?} is not acquired together with others", claim.mode);
            Err(BackendError::new(BackendErrorKind::Refused, why))
        }
        None => Ok(()),
    }
}
