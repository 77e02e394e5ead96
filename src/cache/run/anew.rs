//! A run whose callers take only a value whose load begins after they have asked.
//!
//! The run looks for the stored entry first. A claim may then be told of one more load that began
//! before: the load that ended since, or the one that is under way. Each greater fence was granted
//! after that, so its load began after the callers asked that joined before the look. The others
//! join anew.

use super::{Run, Step, look::uncacheable};
use crate::{
    cache::{core::Decision, freshness::Rules, settings::OnUncacheable},
    flight::Epoch,
    sync::lock,
};

impl<V: Clone + Send + Sync + 'static> Run<V> {
    pub(super) fn is_anew(&self) -> bool {
        self.options().sharing.is_anew
    }

    /// Returns whether no value may stand in for a load.
    pub(super) fn wants_new(&self) -> bool {
        self.supersedes.is_some() || self.is_anew()
    }

    /// Returns the epoch of the look, if the run is anew.
    pub(super) fn asked(&self) -> Option<Epoch> {
        self.asked.get().copied()
    }

    /// Asks for the entry that the load is to replace. The callers that are ready join meanwhile.
    pub(super) async fn look_anew(&self) -> Step<V> {
        self.leader.own_task().await;
        if self.is_alone {
            return self.away();
        }
        let _turn = self.shard.turn().await;
        let epoch = self.leader.begin_epoch();
        let _ = self.asked.set(epoch);
        let options = self.options();
        let rules = Rules { replaces: true, ..options.rules };
        let seen = match self.stored(&rules).await {
            Decision::Refresh(_, _, known) | Decision::Old(known) => {
                let fence = known.fence;
                *lock(&self.known) = Some((known, epoch));
                fence
            }
            Decision::Served(_, _, record) => record.and_then(|it| it.fence()).unwrap_or_default(),
            Decision::Uncacheable { .. }
                if options.sharing.on_uncacheable == OnUncacheable::Pass =>
            {
                return Step::Land(uncacheable());
            }
            Decision::Miss { seen } => return self.missed(seen),
            Decision::Uncacheable { seen } => seen,
            Decision::Unanswered(_) => return self.away(),
        };
        Step::Claim { seen }
    }

    /// Returns which callers a load without a lease is for that begins now.
    pub(super) fn epoch_alone(&self) -> Epoch {
        if self.is_anew() { self.leader.begin_epoch() } else { Epoch::END }
    }
}
