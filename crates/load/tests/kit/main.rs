//! The kit as its callers see it. One program, so that what waits for a clock does so beside the
//! rest.
#![allow(clippy::unwrap_used, reason = "whatever a test unwraps, failing there is its verdict")]

mod capacity;
mod compare;
mod engine;
mod import;
mod report;
mod scripts;
