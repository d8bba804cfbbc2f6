//! Too little memory, too few descriptors, more load than a node can serve, a log that takes no
//! lines.

pub mod descriptors;
pub mod memory;
pub mod overload;
pub mod real_input;
pub mod stderr;
pub mod unread;
