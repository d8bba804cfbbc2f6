//! The `kvorum` binary.

fn main() {}
