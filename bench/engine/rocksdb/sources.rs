//! This file is empty: see `Cargo.toml`.
