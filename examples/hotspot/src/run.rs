//! The run of one way, from its first request to its last.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use tokio::time::sleep_until;

use crate::{
    Failure, clients,
    figures::Figures,
    fleet::Fleet,
    options::Options,
    origin::{Load, Origin},
    replica::{Settings, Way},
    store::{Proxy, Shared},
    takeover,
};

/// Runs one way. Each tenth of a second, `tick` gets the loads since the start, and the start.
pub(crate) async fn one_way(
    options: &Options,
    way: Way,
    tick: impl FnMut(&[Load], Instant),
) -> Result<Figures, Failure> {
    let origin = Origin::start(options.load_time).await?;
    let store = Store::start(options, way).await?;
    let replicas = replicas(options, way, &origin, store.url(options));
    let fleet = Fleet::start(replicas, options.processes.is_some(), &store.shared).await?;

    clients::warm_up(options, &fleet.doors()).await;
    let begun = Instant::now();
    if let Some(time) = options.failing() {
        origin.fail(begun + time.start..begun + time.end);
    }
    let requests = clients::send_all(options, way, fleet.doors(), begun);
    let kill = async {
        if way == Way::Bellwether && options.kill_leader {
            takeover::kill_leader(options, &origin, &fleet).await
        } else {
            Ok(None)
        }
    };
    let outage = async {
        store.go_away(options, way, begun).await;
        Ok(())
    };
    let (tally, takeover, ()) = tokio::select! {
        all = async { tokio::try_join!(requests, kill, outage) } => all?,
        never = each_tick(tick, &origin, begun) => match never {},
    };
    let mut figures = Figures::new(options, way, begun, &origin, tally, takeover);
    figures.local = clients::local_reads(&fleet.doors()).await.min(figures.requests);
    Ok(figures)
}

/// The store of one way, and what can switch it off.
struct Store {
    shared: Shared,
    proxy: Option<Proxy>,
}

impl Store {
    async fn start(options: &Options, way: Way) -> Result<Self, Failure> {
        let proxy = match (way, &options.redis) {
            (Way::StoreAway, Some(url)) => Some(Proxy::start(url).await?),
            _ => None,
        };
        Ok(Self { shared: Shared::default(), proxy })
    }

    /// Returns the URL of Redis for the replicas.
    fn url(&self, options: &Options) -> Option<String> {
        match &self.proxy {
            Some(proxy) => Some(proxy.url().to_owned()),
            None => options.redis.clone(),
        }
    }

    /// Lets the store be away for a while, if the way has that.
    async fn go_away(&self, options: &Options, way: Way, begun: Instant) {
        let Some(time) = options.away_in(way) else { return };
        sleep_until((begun + time.start).into()).await;
        self.set_away(true);
        sleep_until((begun + time.end).into()).await;
        self.set_away(false);
    }

    fn set_away(&self, is_away: bool) {
        match &self.proxy {
            Some(proxy) => proxy.set_away(is_away),
            None => self.shared.set_away(is_away),
        }
    }
}

fn replicas(options: &Options, way: Way, origin: &Origin, redis: Option<String>) -> Vec<Settings> {
    // Each run has its own namespace, so that it finds no entry of an earlier run.
    let namespace = format!("hotspot-{:08x}", fastrand::u32(..));
    let settings = |number| Settings {
        number,
        way,
        origin: origin.address,
        redis: redis.clone(),
        namespace: namespace.clone(),
        ttl: options.ttl,
        lease: options.lease(),
        stale: options.stale,
        copies: options.copies,
    };
    (0..options.fleet_size()).map(settings).collect()
}

async fn each_tick(
    mut tick: impl FnMut(&[Load], Instant),
    origin: &Origin,
    begun: Instant,
) -> Infallible {
    let mut interval = tokio::time::interval(Duration::from_millis(100));
    loop {
        interval.tick().await;
        tick(&origin.loads(begun), begun);
    }
}
