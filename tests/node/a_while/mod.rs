//! Tests that take ten seconds or more, mostly waiting. Tests start in the order of their names.
//! The name of this module sorts first, so that other tests run while these tests wait. If these
//! tests started last, they would run alone.

mod descriptors;
mod grow;
mod http2;
mod leases;
mod settings;
mod slow;
mod slow_disk;
mod stories;
mod told;
mod walkthrough;
