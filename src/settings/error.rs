//! Errors of settings. Each error is one line, for the user who starts the node.

use std::io;
use std::path::PathBuf;

use crate::settings::log::LogError;
use crate::settings::members::MembersError;
use crate::settings::memory::MemoryError;
use crate::settings::secret::SecretError;
use crate::settings::units::Size;

/// Reason why the settings do not result in a [`Config`](crate::settings::config::Config).
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("config file {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error(
        "config file {}, line {line}: {text}: {}",
        path.display(),
        source.message().replace('\n', " ")
    )]
    Line { path: PathBuf, line: usize, text: String, source: Box<toml::de::Error> },
    #[error("data = \"\" names no directory: give the node's data directory (--data, KVORUM_DATA)")]
    NoData,
    #[error(transparent)]
    Members(#[from] MembersError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(
        "--require-auth: the nodes of a cluster ask each other how they are, and show by the \
         cluster's secret who they are: pass it as --cluster-secret-file"
    )]
    NodesProve,
    #[error(
        "{place} is reachable from other machines, and the cluster has no secret: write 16 or more \
         random bytes into a file, the same on all nodes, and pass it as --cluster-secret-file"
    )]
    NoSecret { place: String },
    #[error(
        "{place} is reachable from other machines, and in clear: pass --tls-cert and --tls-key \
         (kvorum cert makes them) and give nodes https:// URLs, or --insecure, to serve in clear \
         and without tokens to whoever reaches the port"
    )]
    InClear { place: String },
    #[error("--tls-cert needs --tls-key, the file of its private key")]
    CertWithoutKey,
    #[error("--tls-key needs --tls-cert, the file of its certificate")]
    KeyWithoutCert,
    #[error(
        "--tls-client-ca needs --tls-cert and --tls-key: clients show certificates to a node that \
         shows one"
    )]
    ClientCaAlone,
    #[error("--allow-host: {0:?} is not a host name (without port)")]
    Host(String),
    #[error(
        "--allow-origin \"*\": any web page that somebody opens could then read and write what \
         that browser reaches; list the origins that you trust"
    )]
    AnyOrigin,
    #[error(
        "--allow-origin \"null\": sandboxed frames and files of anybody have that origin; serve \
         the page from http:// or https://"
    )]
    NullOrigin,
    #[error(
        "--allow-origin {0:?}: this is not a valid origin: write http:// or https://, the host, \
         and the port if it is not the usual one, without a path"
    )]
    Origin(String),
    #[error("--max-value {asked} is out of range 1B..{most} (the maximum with --memory {memory})")]
    MaxValue { asked: Size, most: Size, memory: Size },
}
