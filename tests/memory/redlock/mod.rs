//! The promises of a lock over a majority of servers, with paused time and faults that are
//! `played`. `tests/redis/redlock` has real servers that are killed, suspended and restarted.

mod fences;
mod loss;
mod memory;
mod order;
mod passing;
mod played;
mod stray;
mod undo;

use crate::prelude::*;

/// Returns the name of a lock as each server knows it.
fn name(key: &str) -> Name {
    Name::new(&Namespace::standard(), Family::Redlock, &Key::from(key), 512).unwrap()
}

/// Returns the number of servers at which some owner holds a share of the lock.
async fn shares(servers: &[impl Leases], key: &str) -> usize {
    let mut held = 0;
    for server in servers {
        held += usize::from(
            testkit::holder(server, &name(key), Mode::Exclusive).await.unwrap().is_some(),
        );
    }
    held
}
