//! The run of one way, from its first request to its last.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use crate::{
    Failure, clients,
    figures::Figures,
    fleet::Fleet,
    options::Options,
    origin::{Load, Origin},
    replica::{Settings, Way},
    takeover,
};

/// Runs one way. Each tenth of a second, `tick` gets the loads since the start, and the start.
pub(crate) async fn one_way(
    options: &Options,
    way: Way,
    tick: impl FnMut(&[Load], Instant),
) -> Result<Figures, Failure> {
    let origin = Origin::start(options.load_time).await?;
    let replicas = replicas(options, way, &origin);
    let fleet = Fleet::start(replicas, options.processes.is_some()).await?;

    clients::warm_up(options, &fleet.doors()).await;
    let begun = Instant::now();
    if let Some(time) = options.failing() {
        origin.fail(begun + time.start..begun + time.end);
    }
    let hammer = clients::hammer(options, fleet.doors(), begun);
    let kill = async {
        match (way, options.kill_leader) {
            (Way::Bellwether, true) => takeover::kill_leader(options, &origin, &fleet).await,
            _ => Ok(None),
        }
    };
    let (tally, takeover) = tokio::select! {
        both = async { tokio::try_join!(hammer, kill) } => both?,
        never = each_tick(tick, &origin, begun) => match never {},
    };
    let mut figures = Figures::new(options, way, begun, &origin, &tally, takeover);
    figures.local = clients::local_reads(&fleet.doors()).await.min(figures.requests);
    Ok(figures)
}

fn replicas(options: &Options, way: Way, origin: &Origin) -> Vec<Settings> {
    // Each run has its own namespace, so that it finds no entry of an earlier run.
    let namespace = format!("hotspot-{:08x}", fastrand::u32(..));
    let settings = |number| Settings {
        number,
        way,
        origin: origin.address,
        redis: options.redis.clone(),
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
