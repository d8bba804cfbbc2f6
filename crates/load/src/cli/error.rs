//! Why a command line is not carried out, and how to mend that: each is one line.

use std::io;
use std::path::PathBuf;

use crate::plan::KEY;
use crate::{tls, url};

/// Why there is no [`Asked`](super::Asked), or its servers can't be asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It has neither a rate nor a closed loop.
    #[error(
        "a rate is needed: say -R RATE (requests a second over all connections), or --closed for a \
         closed loop as in wrk"
    )]
    NoRate,
    /// Two outputs would be one file.
    #[error("--csv and --hdr-log both write {}: name two files", .0.display())]
    SameFile(PathBuf),
    /// A plan can't be carried out.
    #[error(transparent)]
    Plan(#[from] crate::Error),
    /// Some threads would have no connection.
    #[error(
        "number of connections must be >= threads: -c{connections} is fewer than -t{threads}; say \
         -c{threads} or -t{connections}"
    )]
    FewConnections {
        /// What `-c` says.
        connections: usize,
        /// What `-t` says.
        threads: usize,
    },
    /// Nothing is answered in no time.
    #[error("-T 0: the timeout must be more than 0, as every answer takes time")]
    NoTimeout,
    /// A word begins with a typographic dash.
    #[error("{word} begins with a dash that no flag has: say {meant}")]
    Dash {
        /// The word as it was given.
        word: String,
        /// The flag that was meant.
        meant: String,
    },
    /// A word that only a script could take.
    #[error("{0:?} is neither a URL nor a flag, and there is no script (-s) to give it to")]
    Word(String),
    /// A URL is wrong, or its host has no address.
    #[error(transparent)]
    Url(#[from] url::Error),
    /// A header has no name, or nothing after it.
    #[error("-H {0:?} is not a valid header: say -H 'Name: value'")]
    Header(String),
    /// The file of the token can't be read.
    #[error("--token-file {}: {source}", path.display())]
    TokenFile {
        /// Which file it is.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file of the token has something else.
    #[error("--token-file {}: it is not one word", .0.display())]
    Token(PathBuf),
    /// A number is zero, or larger than anything in memory.
    #[error("{flag} {count}: there must be at least one")]
    Number {
        /// The flag that says it.
        flag: &'static str,
        /// What it says.
        count: u64,
    },
    /// A URL has no place for the key.
    #[error(
        "{url} does not say where the key goes: put {KEY} there, as in {}/item/{KEY}",
        url.origin()
    )]
    KeyPlace {
        /// The URL as it was given.
        url: url::Url,
    },
    /// A mix is not of methods and percentages.
    #[error("--mix {0}: say methods and percentages that make 100 together: put=50,get=50")]
    Mix(String),
    /// There is no such order of keys.
    #[error("--keys {0}: say seq, scattered, uniform, zipf or latest:N")]
    Order(String),
    /// The files that TLS needs are of no use.
    #[error(transparent)]
    Files(#[from] tls::FilesError),
}
