//! What takes ten seconds and more, mostly waiting. Tests begin in the order of their names: these
//! are named to begin first, so that the others run meanwhile; begun last, they would run alone.

mod descriptors;
mod grow;
mod http2;
mod leases;
mod settings;
mod slow;
mod stories;
mod told;
mod walkthrough;
