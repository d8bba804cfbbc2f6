//! Peers over loopback.
