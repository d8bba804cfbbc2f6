//! Connections as byte streams, plaintext or TLS 1.3: of clients, and between nodes in both
//! directions.
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
//! Certificates: [`tls`]; loading and reloading of files: [`files`]; checks that clients make:
//! [`chain`]; the limit on bytes without application data: [`bounded`].

mod bounded;
mod chain;
mod client;
mod files;
mod stream;
mod tls;

pub(crate) use client::{BlockingStream, Certificates};
pub(crate) use files::TlsError;
pub(crate) use stream::Stream;
pub(crate) use tls::{AcceptedStream, Tls, connect};
