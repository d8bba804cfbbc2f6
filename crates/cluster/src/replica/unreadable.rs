//! Why what an earlier run of a node stored can't be read.

/// See the module.
#[derive(Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// A later release wrote it, in a format of this number: nothing is wrong with it.
    Later(u8),
    /// It is not what was written; why.
    Damaged(String),
}

impl From<&'static str> for Unreadable {
    fn from(what: &'static str) -> Self {
        Self::Damaged(what.to_owned())
    }
}
