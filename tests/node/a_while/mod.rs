//! Tests that take ten seconds and more, mostly waiting. Tests start in the order of their names:
//! this module is named to start first, so that the others run meanwhile; started last, these tests
//! would run alone.

mod descriptors;
mod grow;
mod http2;
mod leases;
mod settings;
mod slow;
mod stories;
mod told;
mod walkthrough;
