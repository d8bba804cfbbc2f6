//! The format of a store: the number in the file `STORE`, which decides the formats of all other
//! files. A release opens stores of a range of formats. It writes a store in the store's own format
//! until a call of [`Engine::raise_format`] raises the format.
//!
//! ```text
//!   release      opens   STORE = 1              STORE = 2
//!   this one     1 to 1  writes 1               refuses
//!   the next     1 to 2  writes 1 ── raise ──▶  writes 2
//!   one later    2 to 3  refuses                writes 2 ── raise ──▶ STORE = 3
//! ```
//!
//! Invariants:
//! * The engine writes no format that is not durable in `STORE`.
//! * A refused open, and a refused raise, change no byte of the directory.
//! * After a raise only releases that know the new format open the directory. A format never
//!   decreases.
//!
//! A raise replaces `STORE` atomically, so that a crash leaves the old or the new format, and the
//! raise can be repeated. If an error leaves the durable format unknown, the store fails: it writes
//! nothing until it is reopened.

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use super::Engine;
use super::core::Core;
use super::identity::Identity;
use crate::error::Error;
use crate::format_range::FormatRange;

/// Fails if `found`, the format of `file`, is outside the range `formats`.
pub(super) fn check_format(formats: FormatRange, file: &str, found: u32) -> Result<(), Error> {
    let file = file.to_owned();
    if found > formats.last {
        return Err(Error::NewerFormat { file, found, supported: formats.last });
    }
    if found < formats.first {
        return Err(Error::OlderFormat { file, found, formats });
    }
    Ok(())
}

/// The format of an open store.
pub(super) struct StoreFormat {
    /// The durable format.
    current: AtomicU32,
    /// The identity in `STORE`; locked during a raise.
    identity: Mutex<Identity>,
}

impl StoreFormat {
    pub(super) fn new(identity: Identity) -> Self {
        Self { current: AtomicU32::new(identity.format), identity: Mutex::new(identity) }
    }

    fn current(&self) -> u32 {
        self.current.load(Ordering::Acquire)
    }

    /// Raises the durable format to `format`, unless the store has this format or a later one.
    /// Returns the store's format.
    fn raise(&self, core: &Core, format: u32) -> Result<u32, Error> {
        let formats = core.options.formats;
        let mut identity = self.identity.lock();
        if format <= identity.format {
            return Ok(identity.format);
        }
        if format > formats.last {
            return Err(Error::UnknownFormat { format, formats });
        }
        core.health().check()?;
        let raised = Identity { format, ..*identity };
        let written = raised.write(&*core.files.disk);
        written.map_err(|error| core.health().classify(error.with_purpose("STORE")))?;
        *identity = raised;
        self.current.store(format, Ordering::Release);
        Ok(format)
    }
}

impl Engine {
    /// The durable format of the store, in which all files are written.
    pub fn format(&self) -> u32 {
        self.format.current()
    }

    /// The formats that this release opens, and to which it can raise a store.
    pub fn formats(&self) -> FormatRange {
        self.core.options.formats
    }

    /// Raises the format of the store durably; does not change a store of this format or a later
    /// one. Returns the store's format, or [`Error::UnknownFormat`] if this release does not write
    /// `format`. Blocks on the disk; reads and writes continue.
    pub fn raise_format(&self, format: u32) -> Result<u32, Error> {
        self.format.raise(&self.core, format)
    }
}
