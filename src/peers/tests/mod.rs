//! Peers against each other, and against whoever is none, over loopback.

mod delivery;
mod failures;
mod strangers;
mod world;
