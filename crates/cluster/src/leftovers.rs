//! Whether this node is to drop what is placed elsewhere.

use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub struct Leftovers(AtomicBool);

impl Leftovers {
    /// It is.
    pub fn want(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether it is.
    pub fn wanted(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// It has.
    pub fn dropped(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}
