//! Wall clocks that are wrong or step, including the effect on values that expire.

pub mod clocks;
mod expired;
pub mod expiry;
pub mod wrong_clock;
