//! Errors of the engine, worded for an operator who must act on them. Errors are cheap to clone,
//! because one failed commit returns its error to every writer of the group.

use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use rustix::io::Errno;

use crate::format_range::FormatRange;

/// A file system operation that failed. The operation and its error together decide whether the
/// store can continue: after a failed sync or read, the state of the disk is unknown.
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
    /// Read a file's metadata.
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

/// A failed engine operation.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// An I/O operation failed. No write that depends on the operation was acknowledged.
    #[error("cannot {operation} {file}: {source}")]
    Io {
        /// The failed operation.
        operation: IoOp,
        /// The file's name within the data directory.
        file: String,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// Bytes on disk differ from those written. The engine reports the damage and never guesses the
    /// content.
    #[error("{file} is damaged at byte {offset}: {what}")]
    Corrupt {
        /// The file's name within the data directory.
        file: String,
        /// Offset at which the damaged part begins.
        offset: u64,
        /// Description of the mismatch.
        what: String,
    },
    /// The directory contains files, but no store of this engine.
    #[error(
        "not a kvorum data directory: it holds {found:?} but no valid STORE file; \
         name an empty directory, or the one the store was created in"
    )]
    NotAStore {
        /// Name of a file found there.
        found: String,
    },
    /// A newer release wrote the file.
    #[error(
        "{file} has format version {found}, this release reads up to {supported}: nothing was \
         changed. Start the release that last ran here, or a later one"
    )]
    NewerFormat {
        /// The file's name within the data directory.
        file: String,
        /// Format version in the file.
        found: u32,
        /// Highest version that this release reads.
        supported: u32,
    },
    /// The store's format is older than the formats that this release opens.
    #[error(
        "{file} has format version {found}, and this release opens {formats}: nothing was \
         changed. A release was skipped: start the release before this one, run `kvorum cluster \
         finalize`, then upgrade again"
    )]
    OlderFormat {
        /// The file's name within the data directory.
        file: String,
        /// Format version in the file.
        found: u32,
        /// Format versions that this release opens.
        formats: FormatRange,
    },
    /// The store was to be raised to a format that this release does not write.
    #[error(
        "this release writes the store formats {formats}, and not {format}: nothing was changed"
    )]
    UnknownFormat {
        /// The requested format.
        format: u32,
        /// Formats that this release writes.
        formats: FormatRange,
    },
    /// Another process has the directory open.
    #[error("data directory {directory} is in use by another process: stop it, or name another")]
    Locked {
        /// The path of the directory.
        directory: String,
    },
    /// The disk is full. Nothing was written, reads continue, and writes resume once space is free.
    #[error(
        "no space left on disk for {what}: enlarge the file system, or remove files that are not \
         in the data directory; writes then resume automatically. Deletions and compactions need \
         space as well, so they free none before"
    )]
    NoSpace {
        /// Purpose of the failed allocation.
        what: &'static str,
    },
    /// The file would exceed the process's file size limit (RLIMIT_FSIZE). As on a full disk,
    /// nothing was written, reads continue, and writes resume once the limit is raised.
    #[error(
        "{what} would exceed this process's limit of file sizes (ulimit -f, LimitFSIZE=): raise \
         it, as prlimit --fsize does for a running process, writes then resume automatically"
    )]
    OverFileLimit {
        /// Purpose of the failed write.
        what: &'static str,
    },
    /// Flushes or compactions are too far behind, or too many writes are queued: retry later.
    #[error("busy: {what}")]
    Busy {
        /// The limit that was reached.
        what: &'static str,
    },
    /// A write or sync failed earlier, so the state of the disk is unknown. The store rejects
    /// writes until it is reopened; reads continue.
    #[error("the store accepts no writes because of: {cause}; restart it to recover from the log")]
    Failed {
        /// Message of the first failure.
        cause: Arc<str>,
        /// True if this write itself failed midway: only a restart shows whether it took effect.
        outcome_unknown: bool,
    },
    /// A key, record or batch exceeds its limit.
    #[error("{what} is {len} bytes, the limit is {bound}")]
    TooLarge {
        /// The item that exceeds its limit.
        what: &'static str,
        /// Length of the item, in bytes.
        len: usize,
        /// The limit, in bytes.
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

    /// Returns true if the operating system reported a lack of space: a full disk, an exhausted
    /// quota, or the file size limit.
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

    /// Describes the lack of space without the advice in the error's message, which applies only to
    /// an open store. Returns `None` for every error but [`Error::NoSpace`] and
    /// [`Error::OverFileLimit`].
    pub fn space_cause(&self) -> Option<String> {
        match self {
            Self::NoSpace { what } => Some(format!("no space left on disk for {what}")),
            Self::OverFileLimit { what } => {
                Some(format!("{what} would exceed this process's limit of file sizes"))
            }
            _ => None,
        }
    }

    /// Returns true if the process's file size limit is the cause.
    pub fn is_over_file_limit(&self) -> bool {
        match self {
            Self::OverFileLimit { .. } => true,
            Self::Io { source, .. } => source.kind() == ErrorKind::FileTooLarge,
            _ => false,
        }
    }

    /// Converts an error that reports a lack of space into an error with the purpose `what` of the
    /// space; returns other errors unchanged.
    pub(crate) fn with_purpose(self, what: &'static str) -> Self {
        match () {
            () if self.is_over_file_limit() => Self::OverFileLimit { what },
            () if self.is_no_space() => Self::NoSpace { what },
            () => self,
        }
    }

    /// Returns true if the failed step can be retried: the disk is full, the process's file size
    /// limit is reached, no file descriptor is free, or the error is not an I/O error. After any
    /// other error, including every failed read or sync and every damage, the state of the disk is
    /// unknown.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Io { operation: IoOp::Sync | IoOp::Read, .. } | Self::Corrupt { .. } => false,
            Self::Io { source, .. } => self.is_no_space() || is_no_descriptor(source),
            _ => true,
        }
    }
}

/// Returns true if the process, or the whole system, has no free file descriptor.
fn is_no_descriptor(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}
