//! Tests of peer connections over loopback, with peers and with unauthenticated clients.

mod delivery;
mod failures;
mod strangers;
mod world;
