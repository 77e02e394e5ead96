//! Two services of one Redis server, a Prometheus that scrapes them, and the hand that breaks them.

use testkit::RedisServer;
use tokio::time::{Instant, sleep};

use super::{
    fault::Fault,
    panels,
    prometheus::{PAUSE, Prometheus, in_time},
    service::Service,
};

pub struct Shop {
    pub prometheus: Prometheus,
    services: [Service; 2],
    redis: RedisServer,
    /// When the last fault was complete.
    broken: Instant,
}

impl Shop {
    pub async fn open() -> Self {
        let redis = RedisServer::start().await;
        let url = redis.url();
        let services = [Service::start(&url).await, Service::start(&url).await];
        let prometheus = Prometheus::start(&[services[0].port, services[1].port]).await;
        Self { prometheus, services, redis, broken: Instant::now() }
    }

    /// Waits until each fault's panel has data of all services, and shows that all is well.
    pub async fn becomes_quiet(&self) {
        let begun = Instant::now();
        let mut seen = (Fault::OriginFails, None);
        let is_quiet = async || {
            let mut is_quiet = self.prometheus.scrapes_since(begun).await >= 4;
            for fault in Fault::ALL {
                let value = self.value_of(fault).await;
                is_quiet &= value == Some(0.0);
                seen = (fault, value);
                if !is_quiet {
                    break;
                }
            }
            is_quiet
        };
        let is_quiet = in_time(is_quiet).await;
        assert!(is_quiet, "a panel moves without a fault: {seen:?}");
    }

    /// Breaks something, once its panel is quiet. Returns the second in which it did.
    pub async fn begin(&mut self, fault: Fault) -> f64 {
        let is_quiet = async || self.value_of(fault).await == Some(0.0);
        assert!(in_time(is_quiet).await, "the panel moves before {}", fault.words());
        let begun = self.prometheus.age();
        match fault {
            Fault::OriginFails => self.tell_all("origin fails").await,
            Fault::LockStuck => self.services[0].tell("hold").await,
            Fault::HotKeyExpires => self.services[0].tell("expire").await,
            Fault::RedisAway => self.redis.kill(),
        }
        self.broken = Instant::now();
        begun
    }

    pub async fn end(&mut self, fault: Fault) {
        match fault {
            Fault::OriginFails => self.tell_all("origin works").await,
            Fault::LockStuck => self.services[0].tell("release").await,
            Fault::HotKeyExpires => {}
            Fault::RedisAway => self.redis.start_again().await,
        }
    }

    async fn tell_all(&mut self, words: &str) {
        for service in &mut self.services {
            service.tell(words).await;
        }
    }

    /// Waits until a fault has moved its panel. Returns after how many scrapes of each service, and
    /// to which value.
    pub async fn moved_by(&self, fault: Fault) -> (u64, f64) {
        loop {
            // Before the question, which a third scrape may overtake.
            let scrapes = self.prometheus.scrapes_since(self.broken).await;
            match self.value_of(fault).await {
                Some(value) if value > 0.0 => return (scrapes, value),
                value => {
                    assert!(scrapes < 2, "{value:?} after two scrapes while {}", fault.words())
                }
            }
            sleep(PAUSE).await;
        }
    }

    /// Returns the sum of what a panel shows of a fault, or `None` if it has no data.
    async fn value_of(&self, fault: Fault) -> Option<f64> {
        let moved = fault.panel();
        let mut sum = None;
        for query in panels::titled(moved.title).queries {
            let returned = self.prometheus.query(&query.text).await;
            let its = returned.iter().filter(|series| moved.is_of(series));
            for (_, value) in its.flat_map(|series| &series.points) {
                *sum.get_or_insert(0.0) += value;
            }
        }
        sum
    }
}
