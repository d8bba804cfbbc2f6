//! A node between protocol and engine: everything of it that is neither socket, clock nor thread.
//! The process (`src/`) and the simulator drive the same code; both bring the bytes and the times.
#![forbid(unsafe_code)]

pub mod link;
