//! Clients that are slow, idle, or send malformed requests.

pub mod crowd;
pub mod fuzz;
pub mod slow;
pub mod steady;
