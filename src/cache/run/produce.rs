//! The load of a leader: the leader runs the loader, with or without a lease, and serves the head
//! of the value meanwhile.

use std::{
    convert::Infallible,
    future::pending,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering,
};

use tracing::debug;

use super::{
    AskedKey, FlightEnd, Held, Load, Run,
    made::{LoadBegun, MadeValue},
};
use crate::{
    backend::Tagged,
    cache::{
        Lead, Loaded,
        loader::{self, Produced, Work},
        outcome::{Alone, FlightResult},
    },
    error::{Error, ErrorKind},
    flight::Epoch,
    lease::LeaseGuard,
};

impl<V: Clone + Send + Sync + 'static> Run<V> {
    /// Runs the loader under the lease, and commits the value to the backend.
    pub(super) async fn load_leased(&self, work: Work<V>, load: Box<Load<V>>) -> FlightEnd<V> {
        let granted = load.granted;
        let produced = self.produce(work, load.begun, &load.lead, Some(&load.guard), granted).await;
        // Before `close` stops the renewals: the lease is renewed until this turn has come.
        let _turn = self.turn().await;
        // In boxes, which do not stay during the load.
        match produced {
            Ok(Produced { shared: Ok(made) }) => {
                // Callers that join from here on get a look of their own.
                let committed = self.leader.begin_epoch();
                let outcome = Box::pin(load.commit_value(made)).await;
                match outcome.late {
                    None => FlightEnd::found(outcome.loaded, committed),
                    Some(late) => FlightEnd { late, ..FlightEnd::found(outcome.loaded, granted) },
                }
            }
            Ok(Produced { shared: Err(why) }) => {
                Box::pin(load.end_alone(why)).await;
                FlightEnd::alone(why)
            }
            Err(error) => FlightEnd::failed(Box::pin(load.fail_with(error)).await),
        }
    }

    /// Loads without a lease, for all callers of this process that wait, or for one without a
    /// flight. In an outage, the value is remembered until its end.
    pub(super) async fn load_unleased(&self, work: Work<V>, held: &mut Held<V>) -> FlightEnd<V> {
        let AskedKey { core, key, .. } = &self.asked;
        if let Some(error) = core.loads.failures.backs_off_here(key) {
            core.counters.backed_off.add();
            return FlightEnd::failed(error);
        }
        if held.permit.is_none() {
            match Box::pin(self.permit()).await {
                Ok(permit) => held.permit = permit,
                Err(end) => return end,
            }
        }
        let previous = held.previous.as_ref().map(|(previous, _)| previous.clone());
        let begun = self.asked.begin_load();
        let number = core.local.tags.greatest.load(Ordering::Acquire);
        let tagged = Tagged { number, ..self.asked.options.tagged.clone() };
        let lead = Lead::new(None, previous, tagged);
        let produced = self.produce(work, begun, &lead, None, Epoch::END).await;
        match produced {
            Ok(Produced { shared: Ok(MadeValue { value, entry, .. }) }) => {
                // A load for its caller alone is of no use to other callers.
                let outage = begun.outage.filter(|_| !self.leader.is_alone());
                self.asked.remember(&value, entry, begun, &lead, outage);
                FlightEnd::for_all(Ok(FlightResult::Loaded(Loaded::degraded(value))))
            }
            Ok(Produced { shared: Err(why) }) => FlightEnd::alone(why),
            Err(error) => {
                let back_off = self.asked.back_off(&error, &lead, 0);
                FlightEnd::failed(self.asked.fails_alone(error, back_off, &lead))
            }
        }
    }

    /// Runs the loader, under this lease if there is one, and lands its head for the callers that
    /// joined before the epoch.
    async fn produce(
        &self,
        work: Work<V>,
        begun: LoadBegun,
        lead: &Lead<V>,
        guard: Option<&LeaseGuard>,
        epoch: Epoch,
    ) -> Result<Produced<MadeValue<V>>, Error> {
        let AskedKey { core, options, .. } = &self.asked;
        if !options.sharing.is_uncounted {
            core.counters.loads.add();
        }
        let produced = tokio::select! {
            biased;
            produced = loader::run(core, work, lead.clone(), self.leader.id) => {
                // The loader may announce the head and end in one poll. The callers that take a
                // head do not wait for the commit.
                if let Ok(Produced { shared: Ok(_) }) = &produced
                    && let Some(head) = lead.0.head.get()
                {
                    self.leader.land_head(Ok(lead.headed(head)), epoch);
                }
                produced
            }
            // In a box, so that the future of a load stays small.
            never = Box::pin(self.serve_head(lead, guard, epoch)) => match never {},
        };
        let made = match produced {
            Ok(Produced { shared: Ok(value) }) => {
                self.made(value, begun, lead).map(Produced::value)
            }
            Ok(Produced { shared: Err(why) }) => Ok(Produced { shared: Err(why) }),
            Err(error) => Err(error),
        };
        self.note_made(&made, lead);
        made
    }

    /// Makes the entry of a loaded value. A codec that panics fails the load.
    fn made(&self, value: V, begun: LoadBegun, lead: &Lead<V>) -> Result<MadeValue<V>, Error> {
        let made = AssertUnwindSafe(|| self.asked.made(value, begun, lead));
        catch_unwind(made).map_err(|panic| loader::panicked(panic.as_ref()))
    }

    /// Forgets the failures of the key after a load that succeeded. Counts a failure, and closes
    /// the head.
    fn note_made(&self, made: &Result<Produced<MadeValue<V>>, Error>, lead: &Lead<V>) {
        let AskedKey { core, key, .. } = &self.asked;
        match made {
            // A reserved answer is for one caller, and says nothing of the next load of the key.
            Ok(Produced { shared: Err(Alone::Reserved) }) => {}
            Ok(_) => core.loads.failures.forget(key),
            Err(_) => {
                core.counters.failures.add();
                // No more callers take the head of a value that will never be whole.
                if lead.0.head.get().is_some() {
                    self.leader.close_head();
                }
            }
        }
    }

    /// Lands the head when the loader announces it, and admits the callers that join later.
    ///
    /// A late joiner may know of a change since the load began. Each act that changes the value
    /// ends the lease, so a lease that is held says that there was none.
    async fn serve_head(
        &self,
        lead: &Lead<V>,
        guard: Option<&LeaseGuard>,
        epoch: Epoch,
    ) -> Infallible {
        let head = lead.0.head.wait().await;
        let leader = &self.leader;
        leader.land_head(Ok(lead.headed(head)), epoch);
        let Some(guard) = guard else { return pending().await };
        loop {
            leader.late_joiner().await;
            let epoch = leader.begin_epoch();
            if !self.is_current(lead, guard).await {
                break;
            }
            leader.admit_to_head(epoch);
        }
        debug!("the lease is lost or a tag has ended, so no more callers are served this load");
        leader.close_head();
        pending().await
    }

    /// Returns whether no act and no end of a tag is known to have ended what the load makes.
    /// Without an answer, callers are served as all callers are without a lease.
    async fn is_current(&self, lead: &Lead<V>, guard: &LeaseGuard) -> bool {
        if self.asked.shard.breaker.is_open() {
            return true;
        }
        let tagged = lead.keeping().tagged.clone();
        match Box::pin(guard.renew()).await {
            // The end of a tag takes no lease away.
            Ok(()) => Box::pin(self.asked.core.are_current(&tagged)).await,
            Err(error) => error.kind() != ErrorKind::Lost,
        }
    }
}
