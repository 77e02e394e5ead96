//! A part of the backends that unit tests stand on.

/// The operations of [`Leases`](crate::backend::Leases) that a test does not need. They never end.
macro_rules! unanswered {
    () => {
        async fn acquire(
            &self,
            _: &$crate::backend::Claim,
        ) -> Result<$crate::backend::Acquired, $crate::error::BackendError> {
            std::future::pending().await
        }

        async fn renew(
            &self,
            _: &[$crate::backend::Claim],
        ) -> Result<Vec<$crate::backend::Renewal>, $crate::error::BackendError> {
            std::future::pending().await
        }

        async fn release(
            &self,
            _: &$crate::backend::Claim,
        ) -> Result<bool, $crate::error::BackendError> {
            std::future::pending().await
        }

        async fn pass(
            &self,
            _: &$crate::backend::Claim,
            _: &$crate::backend::Claim,
        ) -> Result<Option<$crate::backend::Grant>, $crate::error::BackendError> {
            std::future::pending().await
        }

        async fn inspect(
            &self,
            _: &$crate::key::Name,
            _: $crate::backend::SemaphoreKind,
        ) -> Result<$crate::backend::Holding, $crate::error::BackendError> {
            std::future::pending().await
        }

        async fn clear(
            &self,
            _: &$crate::key::Name,
            _: $crate::backend::Mode,
        ) -> Result<bool, $crate::error::BackendError> {
            std::future::pending().await
        }
    };
}

pub(super) use unanswered;
