//! Reasons why this node cannot read data that an earlier process stored.

/// The reason why stored data can't be read.
#[derive(Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// A later release wrote the data in a format with this number. The data is intact.
    LaterFormat(u8),
    /// The data is damaged; the text says how.
    Damaged(String),
}

impl From<&'static str> for Unreadable {
    fn from(what: &'static str) -> Self {
        Self::Damaged(what.to_owned())
    }
}
