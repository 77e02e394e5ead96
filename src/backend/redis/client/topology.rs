//! The node that serves each slot of a cluster.

use std::{
    collections::{BTreeMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use redis::Value;

use super::settings::Address;

/// The number of slots, which the protocol fixes.
const COUNT: u16 = 16_384;

/// Returns the slot of a key. If the key has text in its first braces, that text decides.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let length = rest.iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &rest[..length])
    });
    crc16(tag.unwrap_or(key)) % COUNT
}

/// CRC-16/XMODEM, as the cluster specification of Redis defines it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

impl Address {
    /// Reads `host:port`. A node that does not know its own host gives only the port. The host is
    /// then `from`, the host of the node that replied.
    pub(super) fn read(text: &str, from: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Some(Self::of_node(host, port.parse().ok()?, from))
    }

    fn of_node(host: &str, port: u16, from: &str) -> Self {
        Self { host: if host.is_empty() { from } else { host }.into(), port }
    }

    fn in_slots(node: &Value, from: &str) -> Option<Self> {
        let Value::Array(fields) = node else { return None };
        let [host, Value::Int(port), ..] = fields.as_slice() else { return None };
        let host = match host {
            Value::BulkString(host) => std::str::from_utf8(host).ok()?,
            Value::Nil => "",
            _ => return None,
        };
        let port = u16::try_from(*port).ok()?;
        (host != "?").then(|| Self::of_node(host, port, from))
    }
}

/// The first slot of each range and its owner, by the last slot.
#[derive(PartialEq)]
pub(super) struct SlotMap(BTreeMap<u16, (u16, Address)>);

impl SlotMap {
    /// Returns the map of a server that serves all slots.
    pub(super) fn of_one(address: Address) -> Self {
        Self(BTreeMap::from([(COUNT - 1, (0, address))]))
    }

    /// Reads the reply to `CLUSTER SLOTS`. Returns `None` if the reply has another form, or names
    /// no slot.
    pub(super) fn read(reply: &Value, from: &str) -> Option<Self> {
        let Value::Array(replied) = reply else { return None };
        let mut ranges = BTreeMap::new();
        for range in replied {
            let Value::Array(fields) = range else { return None };
            let [Value::Int(first), Value::Int(last), master, ..] = fields.as_slice() else {
                return None;
            };
            let first = u16::try_from(*first).ok()?;
            let last = u16::try_from(*last).ok()?;
            if first > last || last >= COUNT {
                return None;
            }
            if let Some(master) = Address::in_slots(master, from) {
                ranges.insert(last, (first, master));
            }
        }
        (!ranges.is_empty()).then_some(Self(ranges))
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Address> {
        let (_, (first, owner)) = self.0.range(slot..).next()?;
        (*first <= slot).then_some(owner)
    }

    /// Returns a number that depends only on the owner of a slot, or zero if the slot has no owner.
    pub(super) fn number(&self, slot: u16) -> usize {
        self.owner(slot).map_or(0, |owner| {
            let mut hasher = DefaultHasher::new();
            owner.hash(&mut hasher);
            hasher.finish() as usize | 1
        })
    }

    pub(super) fn owners(&self) -> HashSet<&Address> {
        self.0.values().map(|(_, owner)| owner).collect()
    }
}

/// Checks a map of slots, if a reply to `CLUSTER SLOTS` is one: each slot has an owner of the map,
/// or no owner.
#[cfg(any(fuzzing, test))]
pub(in super::super) fn check_any_slots(value: &Value) {
    if let Some(slots) = SlotMap::read(value, "asked") {
        for slot in (0..=u16::MAX).step_by(251) {
            let owner = slots.owner(slot);
            assert!(owner.is_none_or(|owner| slots.owners().contains(owner)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the cluster specification, and from `CLUSTER KEYSLOT`.
    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, slot) in [
            ("foo", 12182),
            ("shop:l:{foo}:l", 12182),
            ("{}:l", crc16(b"{}:l") % COUNT),
            ("a{b}{c}", slot_of(b"b")),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }

    fn range(first: i64, last: i64, host: &str, port: i64) -> Value {
        let node = Value::Array(vec![Value::BulkString(host.into()), Value::Int(port)]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node])
    }

    #[test]
    fn a_reply_is_read() {
        let reply = Value::Array(vec![
            range(0, 5460, "a", 7000),
            range(5461, 10_922, "", 7001),
            range(10_923, 10_923, "?", 0),
            range(16_383, 16_383, "a", 7000),
        ]);
        let slots = SlotMap::read(&reply, "asked");
        let owner = |slot| slots.as_ref()?.owner(slot).map(|owner| (&*owner.host, owner.port));
        let owners = [0, 5461, 10_923, 16_382, 16_383].map(owner);
        let a = Some(("a", 7000));
        let asked = Some(("asked", 7001));
        assert_eq!(owners, [a, asked, None, None, a]);
        assert_eq!(slots.as_ref().map(|slots| slots.owners().len()), Some(2));
        for range in [range(0, 16_384, "a", 1), range(7, 3, "a", 1), Value::Nil] {
            assert!(SlotMap::read(&Value::Array(vec![range]), "asked").is_none());
        }
    }

    #[test]
    fn an_address_is_read() {
        let texts = ["[::1]:7005", ":7005", "host", "host:port", ":70000"];
        let read =
            texts.map(|text| Address::read(text, "asked").map(|node| (node.host, node.port)));
        let [known, own] = ["::1", "asked"].map(|host| Some((host.into(), 7005)));
        assert_eq!(read, [known, own, None, None, None]);
    }
}
