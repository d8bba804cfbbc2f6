//! The health of the store: after a failure that leaves the state of the disk unknown, the store
//! accepts no writes until it is reopened.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::error::Error;

/// Advice for a failure at the process's file size limit: a write to the log would have exceeded
/// the limit.
const OVER_LIMIT: &str = ", for that is past this process's limit of file sizes (ulimit -f, \
    LimitFSIZE=): raise the limit";

/// The first failure of the store, if any.
#[derive(Default)]
pub(super) struct Health {
    /// True once the store is open. Before that, a failure is only returned to the opener.
    opened: AtomicBool,
    failed: OnceLock<Arc<str>>,
}

impl Health {
    /// Declares the store open.
    pub(super) fn set_opened(&self) {
        self.opened.store(true, Ordering::Release);
    }

    /// Fails if the store rejects writes.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.failed.get() {
            Some(cause) => Err(Error::Failed { cause: Arc::clone(cause), outcome_unknown: false }),
            None => Ok(()),
        }
    }

    /// Message of the failure that made the store reject writes.
    pub(super) fn cause(&self) -> Option<String> {
        self.failed.get().map(|cause| cause.to_string())
    }

    /// Makes the store reject writes from now on, because the state of the disk is unknown. Returns
    /// [`Error::Failed`] with the store's first failure. While the store is being opened, only
    /// returns `error`.
    pub(super) fn fail(&self, error: &Error) -> Error {
        if !self.opened.load(Ordering::Acquire) {
            return error.clone();
        }
        let cause = self.failed.get_or_init(|| {
            tracing::error!(%error, "the store accepts no more writes; reads continue");
            // The advice is part of the cause, because an unchanged limit makes a reopen fail too.
            let limit = if error.is_over_file_limit() { OVER_LIMIT } else { "" };
            format!("{error}{limit}").into()
        });
        Error::Failed { cause: Arc::clone(cause), outcome_unknown: false }
    }

    /// Calls [`Health::fail`] for a write that may be partly in the log.
    pub(super) fn fail_outcome_unknown(&self, error: &Error) -> Error {
        match self.fail(error) {
            Error::Failed { cause, .. } => Error::Failed { cause, outcome_unknown: true },
            other => other,
        }
    }

    /// Returns a transient error (a full disk, a lack of descriptors) unchanged. Any other error
    /// makes the store reject writes: [`Health::fail`].
    pub(super) fn classify(&self, error: Error) -> Error {
        if error.is_transient() { error } else { self.fail(&error) }
    }
}
