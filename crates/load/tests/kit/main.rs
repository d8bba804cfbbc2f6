//! Tests of the load crate's public interface, in one program, so that tests that wait for a time
//! run in parallel.
#![allow(clippy::unwrap_used, reason = "whatever a test unwraps, failing there is its verdict")]

mod capacity;
mod compare;
mod engine;
mod import;
mod report;
mod scripts;
