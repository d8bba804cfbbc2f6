//! What can go wrong, said so that a person can act on it. Errors are cheap to clone because one
//! failed sync answers every writer of its batch.

use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use rustix::io::Errno;

/// What the engine asked of the operating system. It decides, with the error, whether the store
/// goes on: after a failed sync or read nobody knows what is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoOp {
    /// Open an existing file or directory.
    Open,
    /// Create a file or directory.
    Create,
    /// Reserve space for a file.
    Allocate,
    /// Read from a file.
    Read,
    /// Write to a file.
    Write,
    /// Make a file's content, or a directory's names, durable.
    Sync,
    /// Give a file another name.
    Rename,
    /// Delete a file.
    Remove,
    /// List a directory.
    List,
    /// Ask for a file's metadata.
    Stat,
    /// Lock a file or directory.
    Lock,
    /// Start a thread.
    StartThread,
}

impl fmt::Display for IoOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Create => "create",
            Self::Allocate => "allocate space for",
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Rename => "rename",
            Self::Remove => "delete",
            Self::List => "list",
            Self::Stat => "stat",
            Self::Lock => "lock",
            Self::StartThread => "start thread",
        })
    }
}

/// Why the engine did not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The disk refused. Nothing was acknowledged because of it.
    #[error("cannot {operation} {file}: {source}")]
    Io {
        /// What was being done.
        operation: IoOp,
        /// The file's name within the data directory.
        file: String,
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// Bytes on disk are not what was written. The engine does not guess.
    #[error("{file} is damaged at byte {offset}: {what}")]
    Corrupt {
        /// The file's name within the data directory.
        file: String,
        /// Where the damaged part begins.
        offset: u64,
        /// What does not match.
        what: String,
    },
    /// The directory has files, but no store that this engine made.
    #[error(
        "not a kvorum data directory: it holds {found:?} but no valid STORE file; \
         name an empty directory, or the one the store was created in"
    )]
    NotAStore {
        /// A file that was found there.
        found: String,
    },
    /// Written by a newer release.
    #[error("{file} has format version {found}, this release reads up to {supported}: upgrade")]
    NewerFormat {
        /// The file's name within the data directory.
        file: String,
        /// The version in the file.
        found: u32,
        /// The newest this release knows.
        supported: u32,
    },
    /// Another process has the directory open.
    #[error("data directory {directory} is in use by another process: stop it, or name another")]
    Locked {
        /// The path of the directory.
        directory: String,
    },
    /// The disk is full: nothing was written, reads go on, writes resume when there is room.
    #[error("no space left on disk for {what}: free some space, writes then resume automatically")]
    NoSpace {
        /// What there was no room for.
        what: &'static str,
    },
    /// The process may not write files as large as that (RLIMIT_FSIZE). As on a full disk, nothing
    /// was written, reads go on, and writes resume once the limit is raised.
    #[error(
        "{what} would exceed this process's limit of file sizes (ulimit -f, LimitFSIZE=): raise \
         it, as prlimit --fsize does for a running process, writes then resume automatically"
    )]
    OverFileLimit {
        /// What was to be written.
        what: &'static str,
    },
    /// Flushes or compactions are too far behind, or too many writes wait: try later.
    #[error("busy: {what}")]
    Busy {
        /// Which bound was reached.
        what: &'static str,
    },
    /// A write or sync failed earlier, so what is on disk is unknown: no write is taken until the
    /// store is opened anew. Reads go on.
    #[error("the store accepts no writes because of: {cause}; restart it to recover from the log")]
    Failed {
        /// The first failure.
        cause: Arc<str>,
        /// It was this very write that failed half-way: whether it is done, a restart will show.
        begun: bool,
    },
    /// A key, record or batch over its bound.
    #[error("{what} is {len} bytes, the limit is {bound}")]
    TooLarge {
        /// What exceeds its limit.
        what: &'static str,
        /// How long it is.
        len: usize,
        /// How long it may be.
        bound: usize,
    },
    /// The store is shutting down.
    #[error("the store is closing")]
    Closing,
}

impl Error {
    pub(crate) fn io(operation: IoOp, file: &str, source: io::Error) -> Self {
        Self::Io { operation, file: file.to_owned(), source: Arc::new(source) }
    }

    pub(crate) fn corrupt(file: &str, offset: u64, what: impl Into<String>) -> Self {
        Self::Corrupt { file: file.to_owned(), offset, what: what.into() }
    }

    /// Whether the operating system refused for lack of room; a quota that is used up is one, and
    /// so is the limit of file sizes.
    pub fn is_no_space(&self) -> bool {
        match self {
            Self::NoSpace { .. } => true,
            Self::Io { source, .. }
                if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
            {
                true
            }
            _ => self.is_over_file_limit(),
        }
    }

    /// What there is no room for, and why, without what is to be done about it in a store that is
    /// open.
    pub fn no_room(&self) -> Option<String> {
        match self {
            Self::NoSpace { what } => Some(format!("no space left on disk for {what}")),
            Self::OverFileLimit { what } => {
                Some(format!("{what} would exceed this process's limit of file sizes"))
            }
            _ => None,
        }
    }

    /// Whether the room that lacks is that under the process's limit of file sizes.
    pub fn is_over_file_limit(&self) -> bool {
        match self {
            Self::OverFileLimit { .. } => true,
            Self::Io { source, .. } => source.kind() == ErrorKind::FileTooLarge,
            _ => false,
        }
    }

    /// That there is no room for `what`, and why, if that is what the error says.
    pub(crate) fn no_room_for(self, what: &'static str) -> Self {
        match () {
            () if self.is_over_file_limit() => Self::OverFileLimit { what },
            () if self.is_no_space() => Self::NoSpace { what },
            () => self,
        }
    }

    /// Whether a step that ended so can be tried again: the disk is full, or no file can be opened
    /// for lack of descriptors. After anything else, and after any error of a read or a sync,
    /// nobody knows what is on the disk.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Self::Io { operation: IoOp::Sync | IoOp::Read, .. } | Self::Corrupt { .. } => false,
            Self::Io { source, .. } => self.is_no_space() || is_no_descriptor(source),
            _ => true,
        }
    }
}

/// Whether the process, or the whole system, has no file descriptor left.
fn is_no_descriptor(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}
