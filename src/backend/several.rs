use futures_util::future::join_all;

use super::{Acquired, Kept, Leases};
use crate::{
    backend::{Claim, Grant, Mode, Occupied},
    error::{BackendError, BackendErrorKind},
};

/// The answer to [`Leases::acquire_all`].
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquiredAll {
    /// All leases are held now. There is a grant for each claim, in their order.
    Granted(Vec<Grant>),
    /// Another holder has the lease of the claim at this index, and nothing is held.
    Occupied(usize, Occupied),
}

/// Acquires leases one after another, and releases those that it has as soon as one is not granted.
///
/// It is for a backend that cannot do it in one step. The order of the claims must be the same
/// everywhere.
///
/// # Errors
///
/// As [`Leases::acquire_all`]. Leases that may have been granted are released before it returns. If
/// a release had no answer, the error is [unknown](BackendErrorKind::Unknown).
///
/// # Cancel safety
///
/// As that of [`Leases`]: the caller releases what may have been granted.
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
            Ok(Acquired::Occupied(occupied)) => Ok(AcquiredAll::Occupied(at, occupied)),
            Err(error) => Err(error),
        };
        // Includes the claim that may have been granted.
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

/// Keeps each queue by a request of its own, all at once.
pub(super) async fn keep_each_alone<B: Leases + ?Sized>(
    backend: &B,
    queues: &[Vec<Claim>],
) -> Vec<Result<Kept, BackendError>> {
    join_all(queues.iter().map(|claims| backend.keep(claims))).await
}

/// Returns an error if one of the claims is not exclusive.
pub(super) fn check(claims: &[Claim]) -> Result<(), BackendError> {
    match claims.iter().find(|claim| claim.mode != Mode::Exclusive) {
        Some(claim) => {
            let why = format!("{:?} is not acquired together with others", claim.mode);
            Err(BackendError::new(BackendErrorKind::Refused, why))
        }
        None => Ok(()),
    }
}
