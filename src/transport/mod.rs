//! Connections as byte streams, in plaintext or TLS 1.3, from clients, and from and to other nodes.
//!
//! ```text
//!  accept ─▶ has the node a certificate? ── no ──▶ Stream in plaintext
//!                 │ yes                                 (a TLS record is not HTTP there: 400)
//!                 ▼
//!            first byte ── not a TLS record ──▶ 400 in plaintext, with the right URL; closed
//!                 │
//!            ClientHello: ALPN ─┬─ kvorum-peer ──▶ no certificate is requested: nodes authenticate
//!                               │                  by the secret, bound to this connection
//!                               └─ h2, http/1.1 ─▶ with --tls-client-ca: a certificate of that CA
//! ```
//!
//! [`tls`] has the certificates, [`files`] loads and reloads the files, [`chain`] has the checks
//! that clients make, and [`bounded`] limits the bytes without application data.

mod bounded;
mod chain;
mod client;
mod files;
mod stream;
mod tls;

pub(crate) use client::{BlockingStream, Certificates};
pub(crate) use files::TlsError;
pub(crate) use stream::Stream;
pub(crate) use tls::{AcceptedStream, Tls, WARN_BEFORE, connect};
