use std::time::Duration;

use super::{replicas::Replicas, target::Access};

/// The settings of a backend that do not depend on where its servers are.
#[derive(Clone, Debug)]
pub(in super::super) struct RedisConfig {
    pub(in super::super) command_timeout: Duration,
    pub(in super::super) connect_timeout: Duration,
    pub(in super::super) push_limit: usize,
    pub(in super::super) replicas: Option<Replicas>,
    /// The name that each connection gives itself.
    pub(in super::super) client_name: Option<String>,
    pub(in super::super) access: Access,
}

impl Default for RedisConfig {
    fn default() -> Self {
        Self {
            command_timeout: Duration::from_millis(250),
            connect_timeout: Duration::from_secs(1),
            push_limit: 64 << 10,
            replicas: None,
            client_name: None,
            access: Access::default(),
        }
    }
}
