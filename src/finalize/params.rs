//! Parser of the query with which a node is told to raise its store.

use crate::http::params::{bad, fill, plain, required};
use crate::http::problem::Problem;

/// Parameters of a raise.
pub(crate) const FORMAT: [&str; 1] = ["format"];

/// Parses the store format to raise the store to.
pub(crate) fn format(query: &str) -> Result<u32, Problem> {
    let [format] = fill(query, FORMAT)?;
    let text = required("format", format)?;
    let number = plain(text).filter(|number| *number > 0);
    number.ok_or_else(|| bad("format: it is not a valid store format: a whole number, 1 or more"))
}
