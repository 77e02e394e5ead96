//! The nodes of a cluster that are in use, with the connections to each.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use redis::{ConnectionAddr, ConnectionInfo};

use crate::{
    backend::redis::client::{
        config::RedisConfig,
        endpoint::Endpoint,
        events::{ChannelScope, NodeEvents},
        node::Node,
        target::ConnectTarget,
        topology::{NodeAddress, NodeSlots, Topology},
    },
    sync::lock,
};

pub(super) struct ClusterNodes {
    pub(super) topology: Arc<Topology>,
    pub(super) seeds: Vec<ConnectTarget>,
    /// The settings of each connection, but for the address.
    pub(super) template: ConnectionInfo,
    pub(super) config: RedisConfig,
    pub(super) nodes: Mutex<HashMap<NodeAddress, Arc<ClusterNode>>>,
}

/// A node of the cluster.
pub(super) struct ClusterNode {
    pub(super) address: NodeAddress,
    pub(super) connections: Node,
}

impl ClusterNodes {
    /// Returns the node at an address.
    pub(super) fn at(&self, address: &NodeAddress) -> Arc<ClusterNode> {
        if let Some(node) = lock(&self.nodes).get(address) {
            return node.clone();
        }
        let endpoint = Endpoint::Server(Box::new(self.target(address)));
        let slots = NodeSlots { topology: self.topology.clone(), address: address.clone() };
        let events = NodeEvents {
            channels: self.topology.channels.clone(),
            scope: ChannelScope::Slots(slots),
            trouble: self.topology.trouble.clone(),
            new_connections: self.topology.new_connections.clone(),
            outage: Arc::default(),
        };
        let connections = Node::new(&endpoint, &self.config, events);
        let node = Arc::new(ClusterNode { address: address.clone(), connections });
        // Another task may have inserted the node meanwhile, which is then used.
        lock(&self.nodes).entry(address.clone()).or_insert(node).clone()
    }

    pub(super) fn all(&self) -> Vec<Arc<ClusterNode>> {
        lock(&self.nodes).values().cloned().collect()
    }

    pub(super) fn target(&self, address: &NodeAddress) -> ConnectTarget {
        let (host, port) = (address.host.to_string(), address.port);
        let addr = match self.template.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        ConnectTarget::new(self.template.clone().set_addr(addr), &self.config.access)
    }
}
