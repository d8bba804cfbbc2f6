//! Why what an earlier run of a node stored can't be read.

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// A later release wrote it, in a format of this number: nothing is wrong with it.
    #[error("it has format {0}, which a later release of kvorum wrote")]
    Later(u8),
    /// It is not what was written.
    #[error("{0}")]
    Damaged(String),
}

impl From<&'static str> for Unreadable {
    fn from(what: &'static str) -> Self {
        Self::Damaged(what.to_owned())
    }
}
