//! Tests of peers against each other, and against unauthenticated clients, over loopback.

mod delivery;
mod failures;
mod strangers;
mod world;
