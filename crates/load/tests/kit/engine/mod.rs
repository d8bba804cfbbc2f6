//! The generator against small servers whose answers are known.

mod accuracy;
mod bad_input;
mod open_loop;
mod plans;
mod server;
mod tls;
