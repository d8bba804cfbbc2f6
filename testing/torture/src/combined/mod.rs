//! Faults of several kinds at once.

pub mod converge;
pub mod histories;
pub mod mixed;
