//! The replies of a replica, made from the results of its store.

use crate::event::StoreError;
use crate::message::Reply;
use crate::shared::Shared;
use record::{Record, RecordOutline};

/// Returns the reply to a read, made from the store's result.
pub(crate) fn reply_to_read(shared: &Shared, result: Result<Option<Record>, StoreError>) -> Reply {
    let authoritative = |time| shared.membership.state.is_authoritative(time);
    match result {
        Ok(Some(record)) => {
            let authoritative = authoritative(Some(record.write_time()));
            Reply::Found { record, authoritative }
        }
        Ok(None) => Reply::Absent { authoritative: authoritative(None) },
        Err(error) => reply_to_error(&error),
    }
}

/// Returns the reply to a read whose record is longer than the asker accepts.
pub(crate) fn long(shared: &Shared, outline: RecordOutline) -> Reply {
    let authoritative = shared.membership.state.is_authoritative(Some(outline.rank.write_time()));
    Reply::Long { outline, authoritative }
}

/// Returns the reply to another node's write, made from the store's result.
pub(crate) fn reply_to_write(result: &Result<Option<u64>, StoreError>) -> Reply {
    match result {
        Ok(None) => Reply::Stored,
        Ok(Some(time)) => Reply::Newer { time: *time },
        Err(error) => reply_to_error(error),
    }
}

/// Returns the reply for an error of this node's store.
pub(crate) fn reply_to_error(error: &StoreError) -> Reply {
    match error {
        StoreError::Busy(_) => Reply::Busy,
        StoreError::NoSpace(_) => Reply::NoSpace,
        StoreError::Sealed(seal) => Reply::BallotRefused { promise: *seal },
        StoreError::Failed { .. } => Reply::Failed,
    }
}
