//! What this process does while its backend is away.

mod writes;

pub(super) use self::writes::{Deferral, DeferredWrites, Target};
