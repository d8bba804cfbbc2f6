//! Planned restarts: one node after another, with another release, or with other settings.

pub mod finalize;
pub mod restarts;
pub mod settings;
pub mod upgrade;
