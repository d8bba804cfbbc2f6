//! Tests that take ten seconds and more, mostly waiting. Tests start in the order of their names.
//! This module's name sorts first, so that other tests run while the tests of this module wait. If
//! the waiting tests started last, they would run alone.

mod descriptors;
mod grow;
mod http2;
mod leases;
mod settings;
mod slow;
mod stories;
mod told;
mod walkthrough;
