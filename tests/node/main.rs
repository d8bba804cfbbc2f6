//! The `kvorum` binary, run as users run it and talked to over raw sockets, so that what no client
//! library would send can be sent.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod a_while;
mod addresses;
mod bench;
mod changes;
mod client;
mod cluster;
mod compact;
mod conditional;
mod conditions;
mod config;
mod contract;
mod crowd;
mod damaged;
mod dashboard;
mod deploy;
mod dev;
mod directory;
mod future;
mod http2;
mod identity;
mod join;
mod large;
mod layouts;
mod lifecycle;
mod malformed;
mod members;
mod moves;
mod origin;
mod peers;
mod people;
mod process;
mod profile;
mod protocol;
mod ranges;
mod receipts;
mod recipes;
mod recover;
mod remembered;
mod repair;
mod rollback;
mod stderr;
mod tls;
mod tokens;
mod ttl;
