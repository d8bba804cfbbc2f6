//! A disk in memory that can crash, tear, fill up, fail and rot on command.
/// A disk in memory.
pub struct MemDisk;
