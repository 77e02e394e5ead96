#![doc = include_str!("../../../docs/failover.md")]
