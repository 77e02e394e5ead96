//! One lock, several processes.

use std::time::Duration;

use super::{
    fleet::Fleet,
    protocol::{Command, Event, Setup, now},
    support::RedisServer,
};

const LEASE_MS: u64 = 1_000;

async fn fleet(server: &RedisServer, processes: usize) -> Fleet {
    Fleet::start(processes, &Setup::new(server.url())).await
}

async fn hold(fleet: &mut Fleet, process: usize, name: &str) {
    fleet.tell(process, &Command::Hold { name: name.to_owned(), lease_ms: LEASE_MS }).await;
}

async fn held(fleet: &mut Fleet, by: usize) -> (u64, u64) {
    fleet
        .wait_for(|process, event| match event {
            Event::Held { fence, at } => {
                assert_eq!(process, by, "the lock is held by another");
                Some((fence, at))
            }
            _ => None,
        })
        .await
}

#[tokio::test]
async fn no_update_is_lost() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let (processes, tasks, times) = (4, 8, 10);
    let mut fleet = fleet(&server, processes).await;
    for round in 0..5 {
        let name = format!("count-{round}");
        for process in 0..processes {
            fleet.tell(process, &Command::Count { name: name.clone(), tasks, times }).await;
        }
        for _ in 0..processes {
            fleet.wait_for(|_, event| matches!(event, Event::Done).then_some(())).await;
        }
        let number: usize = raw.run(&["GET", &format!("number:{name}")]).await;
        assert_eq!(number, processes * tasks * times);
        let fences: Vec<u64> = raw.run(&["LRANGE", &format!("fences:{name}"), "0", "-1"]).await;
        assert_eq!(fences.len(), number);
        assert!(fences.windows(2).all(|two| two[0] < two[1]), "fences grow: {fences:?}");
    }
}

#[tokio::test]
async fn a_killed_holder_costs_the_rest_of_its_lease() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let mut delays = Vec::new();
    for round in 0..3 {
        let mut fleet = fleet(&server, 2).await;
        let name = format!("killed-{round}");
        hold(&mut fleet, 0, &name).await;
        let (first, _) = held(&mut fleet, 0).await;
        hold(&mut fleet, 1, &name).await;
        tokio::time::sleep(Duration::from_millis(LEASE_MS * 3 / 2)).await;
        fleet.kill(0).await;
        let remaining = raw.pttl(&format!("bellwether:l:{{{name}}}:l")).await;
        let ends = now() + u64::try_from(remaining).unwrap() * 1000;
        let (second, at) = held(&mut fleet, 1).await;
        assert!(second > first);
        assert!(at + 2_000 >= ends, "nobody else holds it while the lease lasts");
        delays.push(Duration::from_micros(at.saturating_sub(ends)));
    }
    println!("after the end of a dead holder's lease: {delays:?}");
    assert!(delays.iter().min().unwrap() < &Duration::from_millis(200), "{delays:?}");
    assert!(delays.iter().max().unwrap() < &Duration::from_secs(2), "{delays:?}");
}

#[tokio::test]
async fn a_suspended_holder_learns_of_its_loss() {
    let server = RedisServer::start().await;
    for round in 0..3 {
        let mut fleet = fleet(&server, 2).await;
        let name = format!("suspended-{round}");
        hold(&mut fleet, 0, &name).await;
        let (first, _) = held(&mut fleet, 0).await;
        hold(&mut fleet, 1, &name).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        fleet.stop_signal(0);
        let (second, _) = held(&mut fleet, 1).await;
        assert!(second > first, "who holds it now has a greater fence: {first} {second}");
        let resumed = now();
        fleet.resume(0);
        let lost = fleet.wait_for(|process, event| match event {
            Event::Lost { at } if process == 0 => Some(at),
            _ => None,
        });
        let told = Duration::from_micros(lost.await - resumed);
        println!("told of the loss {told:?} after it runs again");
        assert!(told < Duration::from_millis(500), "{told:?}");
        // The one who lost it is told so; the other one's is untouched by that.
        assert_eq!(unlock(&mut fleet, 0).await, (true, Some("Lost".to_owned())));
        assert_eq!(unlock(&mut fleet, 1).await, (false, None));
    }
}

async fn unlock(fleet: &mut Fleet, process: usize) -> (bool, Option<String>) {
    fleet.tell(process, &Command::Unlock).await;
    fleet
        .wait_for(|from, event| match event {
            Event::Unlocked { was_lost, error } if from == process => Some((was_lost, error)),
            _ => None,
        })
        .await
}
