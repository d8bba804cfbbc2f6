//! Wall clocks that are wrong or step, also under values that expire.

pub mod clocks;
mod expired;
pub mod expiry;
pub mod wrong_clock;
