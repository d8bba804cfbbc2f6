//! Placeholder for the Cassandra client in builds without the Cassandra driver (the driver takes a
//! minute to build). Connecting always fails.

use std::net::SocketAddr;
use std::time::Duration;

use super::{FixedRateResults, LoopResults, StatementKind};

/// A client that can't be created, because connecting always fails.
pub(crate) enum Client {}

impl Client {
    pub(crate) fn connect(_: &[SocketAddr], _: usize) -> Result<Self, String> {
        Err("built without its client: --features bench-cluster/cassandra".to_owned())
    }

    pub(crate) fn fill(&self, _: u64) -> Result<(), String> {
        match *self {}
    }

    pub(crate) fn check_writable(&self, _: u64) -> Result<(), String> {
        match *self {}
    }

    pub(crate) fn run(&self, _: StatementKind, _: u64, _: Duration) -> Result<LoopResults, String> {
        match *self {}
    }

    pub(crate) fn only(nodes: &[SocketAddr], clients: usize) -> Result<Self, String> {
        Self::connect(nodes, clients)
    }

    pub(crate) fn load(&self, _: u64) -> Result<(), String> {
        match *self {}
    }

    pub(crate) fn write_late(&self, _: u64) -> Result<(), String> {
        match *self {}
    }

    pub(crate) fn run_at_fixed_rate(
        &self,
        _: u64,
        _: f64,
        _: Duration,
    ) -> Result<FixedRateResults, String> {
        match *self {}
    }

    pub(crate) fn repairs(&self) -> Result<Vec<f64>, String> {
        match *self {}
    }

    pub(crate) fn sent_bytes(&self) -> Result<f64, String> {
        match *self {}
    }
}
