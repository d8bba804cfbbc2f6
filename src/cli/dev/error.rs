//! Errors that prevent the start of `kvorum dev`, or end it. The text of each error is one line.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::orphans::{OrphanedNode, list_text, stop_command};
use super::plan::{MAX_NODES, RANDOM};
use crate::cli::cert::CertError;
use crate::settings::error::ConfigError;

/// An error of `kvorum dev`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DevError {
    #[error(
        "another kvorum dev runs with the data directory {}: stop that one, or choose another \
         --data",
        .0.display()
    )]
    Another(PathBuf),
    #[error(
        "nodes of an earlier kvorum dev still run with the data directory {}: {}. A kvorum dev \
         that is killed (SIGKILL) leaves them running. Stop them ({}), then start again; their \
         data is kept",
        data.display(),
        list_text(nodes),
        stop_command(nodes)
    )]
    StillRun { data: PathBuf, nodes: Vec<OrphanedNode> },
    #[error("{RANDOM}: {0}")]
    Random(#[source] io::Error),
    #[error("{} (serve flags after --)", first_line(.0))]
    Flags(#[source] clap::Error),
    #[error("{0} (serve flags after --)")]
    Settings(#[from] ConfigError),
    #[error(
        "{}: {source}: it is damaged; without it the nodes that have data directories there are \
         started",
        file.display()
    )]
    Damaged { file: PathBuf, source: serde_json::Error },
    #[error("{}: {source}", file.display())]
    File { file: PathBuf, source: io::Error },
    #[error("--port {first}: there is no port for {node}")]
    NoPort { first: u16, node: String },
    #[error("{MAX_NODES} nodes are the most that kvorum dev runs")]
    TooMany,
    #[error(
        "--tls-cert is not for the nodes of kvorum dev, whose URLs would still begin with http://: \
         kvorum dev --tls makes certificates, and serves by them"
    )]
    OtherTls,
    #[error(transparent)]
    Cert(#[from] CertError),
    #[error(
        "cannot listen on {address}: {source}; choose another --port, or stop what listens there. \
         Nodes of a kvorum dev with another data directory may: they go on if it is killed"
    )]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot make {}: {source}", data.display())]
    NoDirectory { data: PathBuf, source: io::Error },
    #[error("cannot start: {0}")]
    Runtime(#[source] io::Error),
    #[error("cannot handle signals: {0}")]
    Signals(#[source] io::Error),
    #[error("cannot determine the path of this program: {0}")]
    Program(#[source] io::Error),
    #[error("cannot write to stdout: {0}")]
    Stdout(#[source] io::Error),
    #[error("{0} failed to start; the other nodes were stopped")]
    GaveUp(String),
    #[error("no node is left running")]
    NoneLeft,
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}
