//! Tests of the generator against small servers with known answers.

mod accuracy;
mod bad_input;
mod open_loop;
mod plans;
mod server;
mod tls;
