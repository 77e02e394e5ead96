//! Many permits of one semaphore: a script renews and hands over a bounded number of them.

use super::queues::Scene;
use crate::prelude::*;

const LIMIT_OF_PERMITS: u32 = 100_000;

impl Scene {
    fn permits(&self, limit: u32, count: u32) -> Claim {
        Claim::new(self.name.clone(), Mode::Permit { limit, count }, LEASE, 2 * LEASE)
    }

    async fn granted_permits(&self, limit: u32, count: u32) -> Claim {
        let claim = self.permits(limit, count);
        granted(&self.backend, &claim).await;
        claim
    }

    async fn waiting(&self, limit: u32, count: u32) -> Claim {
        let claim = self.permits(limit, count);
        held(&self.backend, &claim).await;
        claim
    }

    /// Returns how many scripts were called since the last call, and how often these wrote holds.
    async fn holds_written(&mut self) -> [u64; 2] {
        let written = [self.raw.calls("evalsha").await, self.raw.calls("zadd").await];
        self.raw.reset_stats().await;
        written
    }

    async fn out(&mut self) -> usize {
        self.raw.run(&["ZCARD", &self.name.suffixed("p")]).await
    }
}

/// One script renewed 30 leases of 1,000 permits, with a command for each permit. It kept the
/// server busy for 70 ms.
#[tokio::test]
async fn a_script_renews_a_bounded_number_of_permits() {
    let mut scene = Scene::start().await;
    let mut claims = Vec::new();
    for count in [1000; 5].into_iter().chain([19; 40]) {
        claims.push(scene.granted_permits(LIMIT_OF_PERMITS, count).await);
    }
    let mut held = async |claims: &[Claim]| {
        scene.holds_written().await;
        let renewed = scene.backend.renew(claims).await.unwrap();
        assert_eq!(renewed, vec![Renewal::Held; claims.len()]);
        scene.holds_written().await
    };
    assert_eq!(held(&claims[..1]).await, [1, 1]);
    // 20 leases of 19 permits cost as much as 100 leases.
    assert_eq!(held(&claims).await, [5 + 2, 5 + 40]);
    drop(scene.server);
}

#[tokio::test]
async fn a_grant_of_many_permits_is_one_command_in_its_script() {
    let mut scene = Scene::start().await;
    scene.granted_permits(LIMIT_OF_PERMITS, 1).await;
    scene.holds_written().await;
    let claim = scene.granted_permits(LIMIT_OF_PERMITS, 1000).await;
    assert_eq!((scene.holds_written().await, scene.out().await), ([1, 1], 1001));
    assert!(scene.backend.release(&claim).await.unwrap());
    assert_eq!((scene.holds_written().await, scene.out().await), ([1, 0], 1));
}

#[tokio::test]
async fn a_hold_that_has_lost_a_permit_is_lost() {
    let mut scene = Scene::start().await;
    let permits = scene.name.suffixed("p");
    for lost in ["", ":2", ":5"] {
        let claim = scene.granted_permits(5, 5).await;
        let gone = format!("{}{lost}", claim.owner);
        scene.raw.run::<()>(&["ZREM", &permits, &gone]).await;
        let mut longer = claim.clone();
        longer.lease = 2 * LEASE;
        assert_eq!(scene.backend.renew(&[longer]).await.unwrap(), [Renewal::NotHeld]);
        assert_eq!(scene.out().await, 4);
        assert!(!scene.backend.release(&claim).await.unwrap());
        assert_eq!(scene.out().await, 0);
    }
}

/// Two renewals in one millisecond write the same score, which is no change of the members.
#[tokio::test]
async fn a_hold_that_is_renewed_at_once_stands() {
    let scene = Scene::start().await;
    let claim = scene.granted_permits(100, 50).await;
    let twice = vec![claim; 20];
    assert_eq!(scene.backend.renew(&twice).await.unwrap(), [Renewal::Held; 20]);
}

/// A script handed over up to 25 claims, of 1,000 permits each.
#[tokio::test]
async fn a_script_hands_over_a_bounded_number_of_permits() {
    let mut scene = Scene::start().await;
    let few = scene.granted_permits(1000, 100).await;
    let many = scene.granted_permits(1000, 900).await;
    let mut waiting = Vec::new();
    for count in [100, 300, 150, 350] {
        let claim = scene.waiting(1000, count).await;
        waiting.push((testkit::changes_for(&scene.backend, &claim).await.unwrap(), claim));
    }
    scene.holds_written().await;
    assert!(scene.backend.release(&few).await.unwrap());
    assert_eq!(scene.holds_written().await, [1, 1]);
    // A script takes 900 back. The next ones hand over 300 and 150, then 350.
    assert!(scene.backend.release(&many).await.unwrap());
    assert_eq!(scene.holds_written().await, [3, 3]);
    assert_eq!(scene.out().await, 900);
    for (changes, claim) in &mut waiting {
        let change = timeout(LIMIT, changes.next()).await.unwrap();
        assert_eq!(change.addressee(), Some(claim.owner));
        assert!(scene.backend.release(claim).await.unwrap());
    }
}

/// A process ends after the first script of a release, which hands over nothing. Some permits stay
/// out.
#[tokio::test]
async fn the_next_look_hands_over_the_permits_that_a_release_has_left() {
    let mut scene = Scene::start().await;
    let stays = scene.granted_permits(1000, 100).await;
    let gone = scene.granted_permits(1000, 900).await;
    let waiting = scene.waiting(1000, 300).await;
    let mut changes = testkit::changes_for(&scene.backend, &waiting).await.unwrap();
    scene.released_once(&gone).await;
    assert_eq!(scene.out().await, 100);
    let kept = scene.backend.keep(std::slice::from_ref(&waiting), LEASE).await.unwrap();
    assert!(kept.handed_over);
    assert_eq!(scene.out().await, 400);
    let change = timeout(LIMIT, changes.next()).await.unwrap();
    assert_eq!(change.addressee(), Some(waiting.owner));
    assert!(scene.backend.release(&stays).await.unwrap());
}
