//! Errors that keep a node from starting.

use std::io;

/// The last day in UTC whose microseconds fit into a timestamp.
const LAST_DAY: &str = "2112-09-16";

/// Reason why a node does not start, in one line. A failed start changes nothing, or the next start
/// continues with its changes.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store does not open.
    #[error(transparent)]
    Open(lsm::Error),
    /// The store could not be read or written.
    #[error("{what}: {source}")]
    Store {
        /// The part of the store.
        what: &'static str,
        /// The store's error.
        source: lsm::Error,
    },
    /// A later release wrote a stored record.
    #[error(
        "{what} has format {format}, which a later release of kvorum wrote. Nothing was changed: \
         start the release that ran here last, or a later one"
    )]
    LaterFormat {
        /// The record's name.
        what: String,
        /// The format that was found.
        format: u8,
    },
    /// A stored record is damaged.
    #[error("{what}: {why}")]
    Damaged {
        /// The record's name.
        what: String,
        /// The kind of damage.
        why: String,
    },
    /// The file that distinguishes the directory from its copies could not be read.
    #[error("cannot read LIFE, which tells the directory from a copy of it: {0}")]
    Unreadable(#[source] io::Error),
    /// The new process start could not be recorded in the directory.
    #[error("cannot write LIFE, which tells the directory from a copy of it: {0}")]
    Directory(#[source] io::Error),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// The directory belongs to another node or cluster. Contains the difference.
    #[error(
        "the data directory belongs to another node or cluster: {0}. Nothing was changed: start it \
         with the settings that it was created with; a new node needs an empty directory of its \
         own (--data)"
    )]
    Another(String),
    /// The wall clock is past the last time that a version can encode, less a margin of one day.
    #[error(
        "this machine's clock shows a time after {LAST_DAY}, the last that timestamps can hold: \
         correct the clock (date -u shows it). Nothing was changed"
    )]
    AfterLastDay,
    /// The node's clock would begin so far ahead of the wall clock that the other nodes would
    /// refuse its versions.
    #[error(
        "this node has issued timestamps up to {seconds} s ahead of its clock, and the other nodes \
         refuse such timestamps. Nothing was changed. Correct the clock if it is behind. If it is \
         correct now and was ahead before: if the other nodes' clocks were right, run `kvorum \
         repair-clock`, which removes this node's records of those timestamps. If other clocks \
         were ahead as well, other nodes may have acknowledged those records too, and repairs of \
         all these nodes would lose them: wait, a start in {wait_seconds} s succeeds and no \
         record is lost"
    )]
    Ahead {
        /// The clock's lead, in seconds.
        seconds: u64,
        /// The time until a start succeeds, in seconds.
        wait_seconds: u64,
    },
}

impl StartError {
    /// Returns true if the cause is a lack of disk space.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::Open(source) | Self::Store { source, .. } if source.is_no_space())
    }

    /// Describes the write for which there was no space, with true if the process's file size limit
    /// is the cause. `None` = the error is another one than a lack of space.
    pub fn no_room(&self) -> Option<(String, bool)> {
        let (Self::Open(source) | Self::Store { source, .. }) = self else { return None };
        let no_room = source.space_cause()?;
        let what = match self {
            Self::Store { what, .. } => format!("{what}: {no_room}"),
            _ => no_room,
        };
        Some((what, source.is_over_file_limit()))
    }

    /// Returns true if stored bytes differ from the written ones.
    pub fn is_damage(&self) -> bool {
        let is_corrupt = |source: &lsm::Error| matches!(source, lsm::Error::Corrupt { .. });
        match self {
            Self::Open(source) | Self::Store { source, .. } => is_corrupt(source),
            Self::Damaged { .. } => true,
            Self::LaterFormat { .. }
            | Self::Unreadable(_)
            | Self::Directory(_)
            | Self::Thread(_)
            | Self::Another(_)
            | Self::AfterLastDay
            | Self::Ahead { .. } => false,
        }
    }
}
