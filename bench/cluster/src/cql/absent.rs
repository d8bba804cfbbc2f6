//! The Cassandra client in builds without the Cassandra driver, which takes a minute to build. This
//! client never connects.

use std::net::SocketAddr;
use std::time::Duration;

use super::{Ask, Seen, Steady};

/// A client that can't exist.
pub(crate) enum Client {}

impl Client {
    pub(crate) fn connect(_: &[SocketAddr], _: usize) -> Result<Self, String> {
        Err("built without its client: --features bench-cluster/cassandra".to_owned())
    }

    pub(crate) fn fill(&self, _: u64) -> Result<(), String> {
        match *self {}
    }

    pub(crate) fn serves(&self, _: u64) -> Result<(), String> {
        match *self {}
    }

    pub(crate) fn run(&self, _: Ask, _: u64, _: Duration) -> Result<Seen, String> {
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

    pub(crate) fn steady(&self, _: u64, _: f64, _: Duration) -> Result<Steady, String> {
        match *self {}
    }

    pub(crate) fn repairs(&self) -> Result<Vec<f64>, String> {
        match *self {}
    }

    pub(crate) fn sent_bytes(&self) -> Result<f64, String> {
        match *self {}
    }
}
