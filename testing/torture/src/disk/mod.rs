//! Disks that lose power, fill up, return errors, rot, are slow, or are replaced by empty ones.

pub mod blackout;
pub mod corrupt;
pub mod disk_full;
pub mod power_cut;
pub mod slow_replica;
pub mod sync_error;
pub mod wiped;
