//! What the commands and the scripts of a server read and change.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    keyspace::{Keyspace, Millis},
    reply::Reply,
};

pub type ClientId = u64;

/// Where the bytes for a client go.
pub trait Outlet: Send + Sync {
    fn send(&self, bytes: Vec<u8>);
}

pub struct Client {
    pub outlet: Arc<dyn Outlet>,
    /// The version of its protocol: 2 or 3.
    pub version: u8,
    pub channels: BTreeSet<Vec<u8>>,
}

#[derive(Default)]
pub struct Data {
    pub keys: Keyspace,
    /// The time of the server's clock in microseconds. It stands still while a command runs.
    pub now: i64,
    /// It refuses writes as a replica does.
    pub refuses_writes: bool,
    /// How many commands wrote.
    pub writes: u64,
    pub clients: BTreeMap<ClientId, Client>,
}

impl Data {
    pub fn millis(&self) -> Millis {
        self.now.div_euclid(1000)
    }

    /// Sends a message to the subscribers of a channel. Returns their number.
    pub fn publish(&mut self, channel: &[u8], message: &[u8]) -> i64 {
        let mut heard = 0;
        for client in self.clients.values().filter(|client| client.channels.contains(channel)) {
            let words = [b"message".as_slice(), channel, message].map(Reply::text);
            client.send(&Reply::Push(words.to_vec()));
            heard += 1;
        }
        heard
    }

    /// Returns the channels that have a subscriber.
    pub fn channels(&self) -> BTreeSet<Vec<u8>> {
        self.clients.values().flat_map(|client| client.channels.iter().cloned()).collect()
    }
}

impl Client {
    pub fn send(&self, reply: &Reply) {
        let mut bytes = Vec::new();
        reply.encode(self.version, &mut bytes);
        if !bytes.is_empty() {
            self.outlet.send(bytes);
        }
    }
}
