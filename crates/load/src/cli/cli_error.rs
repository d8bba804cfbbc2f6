//! Errors of a command line. Each message is one line that explains the correction.

use std::io;
use std::path::PathBuf;

use crate::plan::KEY;
use crate::{tls, url};

/// A command line that yields no [`CheckedArgs`](super::CheckedArgs), or whose hosts or TLS files
/// can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line gives neither a rate nor a closed loop.
    #[error(
        "a rate is needed: say -R RATE (requests a second over all connections), or --closed for a \
         closed loop as in wrk"
    )]
    NoRate,
    /// Two outputs would write the same file.
    #[error("--csv and --hdr-log both write {}: name two files", .0.display())]
    SameFile(PathBuf),
    /// The plan can't be carried out.
    #[error(transparent)]
    Plan(#[from] crate::Error),
    /// The threads outnumber the connections.
    #[error(
        "number of connections must be >= threads: -c{connections} is fewer than -t{threads}; say \
         -c{threads} or -t{connections}"
    )]
    FewConnections {
        /// Connections, from `-c`.
        connections: usize,
        /// Threads, from `-t`.
        threads: usize,
    },
    /// The timeout is zero.
    #[error("-T 0: the timeout must be more than 0, as every answer takes time")]
    NoTimeout,
    /// A word begins with a typographic dash.
    #[error("{word} begins with a dash that no flag has: say {meant}")]
    Dash {
        /// The word as given.
        word: String,
        /// The flag that the user probably meant.
        meant: String,
    },
    /// A word is an argument of a script, but there is no script.
    #[error("{0:?} is neither a URL nor a flag, and there is no script (-s) to give it to")]
    Word(String),
    /// A URL is invalid, or its host has no address.
    #[error(transparent)]
    Url(#[from] url::Error),
    /// A header has no name or no value.
    #[error("-H {0:?} is not a valid header: say -H 'Name: value'")]
    Header(String),
    /// The token file can't be read.
    #[error("--token-file {}: {source}", path.display())]
    TokenFile {
        /// Path of the token file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The token file holds no valid token.
    #[error("--token-file {}: it is not one word", .0.display())]
    Token(PathBuf),
    /// A number is zero, or too large for memory.
    #[error("{flag} {count}: there must be at least one")]
    Number {
        /// The flag that gives the number.
        flag: &'static str,
        /// The number as given.
        count: u64,
    },
    /// A URL has no placeholder for the key.
    #[error(
        "{url} does not say where the key goes: put {KEY} there, as in {}/item/{KEY}",
        url.origin()
    )]
    KeyPlace {
        /// The URL as given.
        url: url::Url,
    },
    /// A mix is not a list of methods with percentages that add up to 100.
    #[error("--mix {0}: say methods and percentages that make 100 together: put=50,get=50")]
    Mix(String),
    /// A key order is unknown.
    #[error("--keys {0}: say seq, scattered, uniform, zipf or latest:N")]
    Order(String),
    /// The TLS files can't be used.
    #[error(transparent)]
    Files(#[from] tls::FilesError),
}
