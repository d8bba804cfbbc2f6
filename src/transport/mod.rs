//! Connections as byte streams, in clear or by TLS 1.3: those of clients and, both ways, those
//! between nodes.
//!
//! ```text
//!  accept ─▶ has the node a certificate? ── no ──▶ Stream in clear
//!                 │ yes                                 (a TLS record there is no HTTP: 400)
//!                 ▼
//!            first byte ── no TLS record ──▶ 400 in clear, with the right URL; closed
//!                 │
//!            ClientHello: ALPN ─┬─ kvorum-peer ──▶ no certificate is asked for: nodes prove
//!                               │                  themselves by the secret, for this connection
//!                               └─ h2, http/1.1 ─▶ with --tls-client-ca: a certificate of that CA
//! ```
//!
//! Certificates: [`tls`]; how they are read from files, and read anew: [`files`]; whether clients
//! accept them: [`chain`]. How much may come
//! before there is data: [`bounded`].

mod bounded;
mod chain;
mod client;
mod files;
mod stream;
mod tls;

pub(crate) use client::{Blocking, Certificates};
pub(crate) use files::TlsError;
pub(crate) use stream::Stream;
pub(crate) use tls::{Came, Tls, connect};
