//! Too little memory, too few descriptors, more load than a node can serve, and a log sink that
//! accepts no lines.

pub mod descriptors;
pub mod memory;
pub mod overload;
pub mod real_input;
pub mod stderr;
pub mod unread;
