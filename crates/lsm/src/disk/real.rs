//! A directory of the real file system.
/// A directory of the real file system, locked against other processes.
pub struct RealDisk;
