//! Parser of the query with which a node is told to raise its store.

use crate::http::params::{bad_parameter, parse_digits, raw_values, required};
use crate::http::problem::Problem;

/// Parameters of a raise.
pub(crate) const FORMAT: [&str; 1] = ["format"];

/// Parses the store format to raise the store to.
pub(crate) fn format(query: &str) -> Result<u32, Problem> {
    let [format] = raw_values(query, FORMAT)?;
    let text = required("format", format)?;
    let number = parse_digits(text).filter(|number| *number > 0);
    number.ok_or_else(|| {
        bad_parameter("format: it is not a valid store format: a whole number, 1 or more")
    })
}
