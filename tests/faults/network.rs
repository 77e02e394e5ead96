//! A network under load that swallows, refuses and cuts.

use testkit::proxy::Mode;

use super::load::{Load, TAKES};
use super::*;

const RATE: u32 = 60;
const TIME_OUT: Duration = Duration::from_millis(250);
const SLOWEST: Duration = TAKES.saturating_add(TIME_OUT).saturating_add(Duration::from_millis(200));

/// A claim from before an outage may stand in the way after it, until its process is connected
/// again and has undone it.
const UNDO: Duration = Duration::from_millis(250);

/// How long a connection waits for the answer of a silent server. The leases of its process stay
/// until the next attempt.
const LOGIN: Duration = Duration::from_secs(1);

struct Scene {
    server: RedisServer,
    proxy: Proxy,
    caches: [Cache<String>; 2],
    load: Load,
}

impl Scene {
    async fn begin() -> Self {
        let server = RedisServer::start().await;
        let proxy = Proxy::start(server.port());
        let caches = [connected(&proxy.url()).await, connected(&proxy.url()).await];
        let load = Load::start(&caches, RATE);
        load.answers(60).await;
        load.event("begin");
        Self { server, proxy, caches, load }
    }

    fn commands(&self) -> u64 {
        ["get", "claim", "commit"].iter().map(|kind| self.proxy.seen(kind)).sum()
    }

    async fn end(self, what: &str) {
        self.load.event("end");
        self.proxy.clear();
        let [a, b] = &self.caches;
        let (took, _) = works_again(&mut self.server.raw().await, [a, b], RECOVERY).await;
        self.load.answers(60).await;
        let outcome = self.load.stop().await;
        println!("{what}: as before after {took:?}; {}", outcome.summary());
        outcome.assert_no_error();
        let happened = what == "cutting" || outcome.count(Source::Degraded) > 0;
        assert!(happened, "{what}: no request was affected");
        let bound = SLOWEST + if what == "swallowing" { LOGIN } else { UNDO };
        let slowest = outcome.assert_slowest(bound);
        println!("{what}: the slowest took {slowest:?} of {bound:?}");
    }
}

/// The network refuses nothing and answers nothing, and open connections stay silent for good.
/// Requests do not queue up. Few commands are sent, and none waits longer than its own time-out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_survive_a_network_that_swallows_everything() {
    let _turn = turn().await;
    let scene = Scene::begin().await;
    scene.proxy.set_mode(Mode::Stall);
    let before = scene.commands();
    let asked = 400;
    scene.load.answers(asked).await;
    let sent = scene.commands() - before;
    println!("{sent} commands were sent while {asked} requests were answered");
    assert!(sent < 100, "{sent} commands for {asked} requests");
    scene.end("swallowing").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_survive_a_network_that_cuts_connections() {
    let _turn = turn().await;
    let scene = Scene::begin().await;
    for _ in 0..20 {
        scene.proxy.cut();
        scene.load.answers(8).await;
    }
    scene.end("cutting").await;
}
