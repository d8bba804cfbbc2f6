//! Tests that take ten seconds and more, mostly waiting. Tests start in the order of their names,
//! and this module's name makes them start first, so that the others run meanwhile. If they started
//! last, they would run alone.

mod descriptors;
mod grow;
mod http2;
mod leases;
mod settings;
mod slow;
mod stories;
mod told;
mod walkthrough;
