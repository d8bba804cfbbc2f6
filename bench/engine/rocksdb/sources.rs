//! This file is empty: the crate exists only so that cargo fetches RocksDB's sources (see
//! `Cargo.toml`).
