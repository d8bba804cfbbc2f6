//! Links that are cut, lossy or slow, and strangers that speak the peer protocol.

pub mod partition;
pub mod stranger;
